"""The session: the setup key by key, what a click changes, the compared scenarios."""

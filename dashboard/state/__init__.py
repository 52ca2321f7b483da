"""What does the visit hold? The setup key by key, what a click changes, the scenarios that are compared."""

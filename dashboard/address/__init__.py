"""The URL: a setup as a query, and the keys that no visible widget writes."""

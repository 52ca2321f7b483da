"""The URL: a setup as a query string, and the keys that no visible widget writes."""

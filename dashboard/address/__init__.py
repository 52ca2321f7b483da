"""What does the address say? A setup as a query, and the keys that no drawn widget writes."""

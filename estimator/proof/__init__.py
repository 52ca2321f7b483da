"""Is it true? Measured and traced beside estimated."""

"""Is it true? Measured and traced runs compared with their estimates."""

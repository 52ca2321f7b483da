"""What stands in a file? Texts in YAML, JSON, shell and Python, read without running any of it."""

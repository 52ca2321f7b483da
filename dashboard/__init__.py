"""The page: a folder is a question, and imports go down (pyproject.toml holds the order)."""

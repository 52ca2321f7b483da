"""The page: a folder is a question, and imports go down."""

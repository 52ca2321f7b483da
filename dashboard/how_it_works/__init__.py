"""The page How it works: the method, in words and computed numbers."""

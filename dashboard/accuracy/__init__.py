"""The page Accuracy: measurements compared with estimates."""

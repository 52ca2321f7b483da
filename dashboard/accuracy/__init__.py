"""The page Accuracy: what was measured beside what is estimated."""

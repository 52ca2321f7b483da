"""The page Estimate: one setup, its need, and changes to it."""

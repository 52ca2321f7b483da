"""The page Estimate: one setup, what it needs, what to change."""

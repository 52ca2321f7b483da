"""The page Compare: up to eight setups side by side."""

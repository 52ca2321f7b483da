"""The page Plan: every setup that answers a question, and a recommendation."""

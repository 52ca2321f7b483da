"""The page Plan: every setup that answers a question, and which to take."""

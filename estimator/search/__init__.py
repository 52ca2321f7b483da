"""What should I change, and how far can I go? Limits, remedies, scaling, ranking."""

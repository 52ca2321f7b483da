"""What to change and how far a setup goes: limits, remedies, scaling, ranking."""

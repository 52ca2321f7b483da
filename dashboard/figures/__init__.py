"""Figures as plain Plotly dicts."""

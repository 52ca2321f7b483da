"""What does a result look like? Plain Plotly dicts."""

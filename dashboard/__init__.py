"""The web interface. Each folder answers one question; pyproject.toml enforces the order of imports."""

"""Measured, traced and published runs compared with their estimates."""

"""Reads and writes users' own config files, and knows each tool's defaults."""

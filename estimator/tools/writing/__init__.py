"""How is a setup said in a tool's own words? The way out through the same tables, as files, and as changes of files."""

"""One table a tool: each of its keys, and which of ours it is."""

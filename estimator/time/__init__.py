"""How long, and how dear? Operations, seconds, exchange, dollars."""

"""How long a run takes and what it costs: operations, seconds, communication, dollars."""

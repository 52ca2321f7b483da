"""When is what alive? A training step in order of time, evaluation, what torch reserves."""

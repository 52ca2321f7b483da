"""What is alive when: a training step in order of time, evaluation, what torch reserves."""

"""Which of these runs fit? Judges files of setups one by one, and finds the smallest change that makes each fit."""

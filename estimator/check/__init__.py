"""Which of these runs fit? Files of setups judged one by one, and the smallest change that mends each that does not."""

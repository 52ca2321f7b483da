"""What takes memory: the tape and its operators, weights, optimizers, and what lies beside them."""

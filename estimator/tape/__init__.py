"""What does an operator take? A stand-in autograd whose tensors have sizes and lifetimes but no values."""

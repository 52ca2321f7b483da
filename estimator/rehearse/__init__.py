"""Does this script fit? Runs the user's own, on PyTorch's CUDA build and a card that is not there."""

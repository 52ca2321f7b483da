"""How many tokens and patches does an image become? One file for each image processor of transformers."""

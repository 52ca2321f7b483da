"""How many tokens and patches does an image become? One file per kind of image processor."""

"""What a run needs outside its steps: loading, saving, checkpoints; and steps over a device map."""

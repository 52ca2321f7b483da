"""What does a run need beside its steps? Loading, saving, checkpoints, device maps."""

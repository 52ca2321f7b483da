"""What stays on the GPU throughout a step: weights, optimizer states, workspaces; and stored checkpoints."""

"""What lies on the GPU all the time? Optimizer states, workspaces, quantised storage."""

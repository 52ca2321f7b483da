"""What do many setups need? Recorded steps evaluated with NumPy arrays."""

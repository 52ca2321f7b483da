"""What are the options, and what does the next dollar buy? Imports NumPy, on demand."""

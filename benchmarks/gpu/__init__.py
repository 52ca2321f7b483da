"""What `measure_gpu.py` is made of: cases, the real run, rows, the session, the comparison."""

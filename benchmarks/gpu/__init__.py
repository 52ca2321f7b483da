"""The parts of `measure_gpu.py`: cases, the real run, the session, the comparison."""

"""Data types shared by everything else: keys of the contract, setups, models, GPUs, estimates, refusals."""

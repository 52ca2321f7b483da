"""How much do many setups need at once? The one folder of the estimator that imports NumPy."""

"""What is a step? Passes of models and a loss behind them, one file an objective."""

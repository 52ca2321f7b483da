"""What ``headroom rehearse`` puts into the user's process: a card that is not there, and a watch on what it is asked.

It runs under the user's Python, 3.9 or newer, beside their libraries, and imports nothing of Headroom's but
``estimator.preflight``, where that can be imported, to read the live Trainer.
"""

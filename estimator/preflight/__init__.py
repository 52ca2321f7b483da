"""Does this live Trainer fit? Checks before ``trainer.train()``, and compares with the measurement after two steps.

>>> from estimator.preflight import MemoryCheck, check
>>> # check(trainer)                             # prints one sentence
>>> # trainer.add_callback(MemoryCheck(trainer)) # prints measured beside estimated after step two
"""

from estimator.preflight.callback import MemoryCheck
from estimator.preflight.check import DoesNotFitError, Preflight, check

__all__ = ["DoesNotFitError", "MemoryCheck", "Preflight", "check"]

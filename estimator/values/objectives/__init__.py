"""The objectives, one file each. Every module here has its own as ``OBJECTIVE``, and all are registered, the default
first.
"""

from importlib import import_module
from pkgutil import iter_modules

from estimator.values.objective import OBJECTIVES
from estimator.values.objectives.sft import OBJECTIVE as SFT

OBJECTIVES[SFT] = SFT
for found in iter_modules(__path__):
    objective = import_module(f"{__name__}.{found.name}").OBJECTIVE
    OBJECTIVES[objective] = objective

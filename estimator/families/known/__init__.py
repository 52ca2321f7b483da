"""The families, one file each. Every module here lists its own in ``FAMILIES``, and all are registered."""

from importlib import import_module
from pkgutil import iter_modules

from estimator.families.registry import register

for found in iter_modules(__path__):
    register(*import_module(f"{__name__}.{found.name}").FAMILIES)

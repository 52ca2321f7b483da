"""The kinds of towers, a file each: every module here lists its own in ``TOWERS``, and all are in the registry."""

from importlib import import_module
from pkgutil import iter_modules

from estimator.families.vision_family import register

for found in iter_modules(__path__):
    register(*import_module(f"{__name__}.{found.name}").TOWERS)

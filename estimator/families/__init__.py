"""What a model is: config defaults, modules and their full names, each layer's program."""

from estimator.families import known as known  # registers every family
from estimator.families.vision import known as towers_known  # noqa: F401  # registers every tower

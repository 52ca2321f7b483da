"""What is this model? Its config's defaults, its modules, its tree of names, its layers' programs."""

from estimator.families import known as known  # puts every family into the registry
from estimator.families.vision import known as towers_known  # noqa: F401  # and every tower

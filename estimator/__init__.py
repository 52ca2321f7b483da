"""Headroom's estimator: what a fine-tuning step takes of a GPU's memory, when, and whether it fits.

>>> from estimator import Method, TrainingSetup, catalog, estimate
>>> model, gpu = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
>>> estimate(model, gpu, TrainingSetup(method=Method.QLORA)).verdict.value
'fits'
"""

from estimator import catalog, hub, repository
from estimator.custom import resized
from estimator.engine import estimate
from estimator.repository import HubModel, Trouble
from estimator.results import Estimate, Moment
from estimator.specs import (
    ALL_LINEAR,
    STEP_PHASES,
    AttnImplementation,
    Component,
    Dtype,
    Gpu,
    Method,
    MixedPrecision,
    Model,
    Optimizer,
    Phase,
    TrainingSetup,
    Verdict,
)

__all__ = [
    "ALL_LINEAR",
    "STEP_PHASES",
    "AttnImplementation",
    "Component",
    "Dtype",
    "Estimate",
    "Gpu",
    "HubModel",
    "Method",
    "MixedPrecision",
    "Model",
    "Moment",
    "Optimizer",
    "Phase",
    "TrainingSetup",
    "Trouble",
    "Verdict",
    "catalog",
    "estimate",
    "hub",
    "repository",
    "resized",
]

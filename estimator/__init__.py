"""Headroom's estimator: what a fine-tuning step takes of a GPU's memory, and a run in hours and dollars.

>>> from estimator import Method, TrainingSetup, catalog, estimate
>>> model, gpu = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
>>> estimate(model, gpu, TrainingSetup(method=Method.QLORA)).verdict.value
'fits'
"""

from estimator import accuracy, catalog, hub, placement, repository
from estimator.accuracy import Comparison, Trust, trust
from estimator.custom import resized
from estimator.engine import estimate
from estimator.ranking import Ranking, pareto, rank_gpus
from estimator.repository import HubModel, Trouble
from estimator.results import Estimate, Moment, Part, RunCost, RunTime
from estimator.specs import (
    ALL_LINEAR,
    STEP_PHASES,
    AttnImplementation,
    Component,
    Dtype,
    Gpu,
    Loss,
    Method,
    MixedPrecision,
    Model,
    Optimizer,
    Phase,
    Price,
    TrainingSetup,
    Verdict,
)

__all__ = [
    "ALL_LINEAR",
    "STEP_PHASES",
    "AttnImplementation",
    "Comparison",
    "Component",
    "Dtype",
    "Estimate",
    "Gpu",
    "HubModel",
    "Loss",
    "Method",
    "MixedPrecision",
    "Model",
    "Moment",
    "Optimizer",
    "Part",
    "Phase",
    "Price",
    "Ranking",
    "RunCost",
    "RunTime",
    "TrainingSetup",
    "Trouble",
    "Trust",
    "Verdict",
    "accuracy",
    "catalog",
    "estimate",
    "hub",
    "pareto",
    "placement",
    "rank_gpus",
    "repository",
    "resized",
    "trust",
]

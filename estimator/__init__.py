"""Headroom's estimator: what a fine-tuning step takes of a GPU's memory, and a run in hours and dollars.

>>> from estimator import Method, TrainingSetup, catalog, estimate
>>> model, gpu = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
>>> estimate(model, gpu, TrainingSetup(method=Method.QLORA)).verdict.value
'fits'
"""

from estimator import accuracy, catalog, hub, placement, repository, scaling
from estimator.accuracy import Comparison, Trust, trust
from estimator.custom import resized
from estimator.engine import estimate
from estimator.ranking import Ranking, pareto, rank_gpus
from estimator.ranks import Rank, ranks
from estimator.repository import HubModel, Trouble
from estimator.results import Estimate, Moment, Part, RunCost, RunTime
from estimator.scaling import Curve, Point
from estimator.specs import (
    ALL_LINEAR,
    STEP_PHASES,
    AttnImplementation,
    Component,
    Dtype,
    Gpu,
    Loss,
    Machine,
    Method,
    MixedPrecision,
    Model,
    Optimizer,
    Phase,
    Price,
    Strategy,
    TrainingSetup,
    Verdict,
)

__all__ = [
    "ALL_LINEAR",
    "STEP_PHASES",
    "AttnImplementation",
    "Comparison",
    "Component",
    "Curve",
    "Dtype",
    "Estimate",
    "Gpu",
    "HubModel",
    "Loss",
    "Machine",
    "Method",
    "MixedPrecision",
    "Model",
    "Moment",
    "Optimizer",
    "Part",
    "Phase",
    "Point",
    "Price",
    "Rank",
    "Ranking",
    "RunCost",
    "RunTime",
    "Strategy",
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
    "ranks",
    "repository",
    "resized",
    "scaling",
    "trust",
]

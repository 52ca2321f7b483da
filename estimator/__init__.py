"""Headroom's estimator: what a fine-tuning step takes of a GPU's memory, and a run in hours and dollars.

>>> from estimator import Method, TrainingSetup, catalog, estimate
>>> model, gpu = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
>>> estimate(model, gpu, TrainingSetup(method=Method.QLORA)).verdict.value
'fits'
"""

from estimator.answer.estimate import estimate
from estimator.answer.ranks import Rank, ranks
from estimator.families.custom import resized
from estimator.parallel import placement
from estimator.proof import accuracy
from estimator.proof.accuracy import Comparison, Kin, Trust, kin
from estimator.search import scaling
from estimator.search.ranking import Ranking, pareto, rank_gpus
from estimator.search.scaling import Curve, Point
from estimator.sources import catalog, hub, repository
from estimator.sources.repository import HubModel, Trouble
from estimator.values.results import Estimate, Moment, RunCost, RunTime, TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
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
    "Kin",
    "Loss",
    "Machine",
    "Method",
    "MixedPrecision",
    "Model",
    "Moment",
    "Optimizer",
    "Phase",
    "Point",
    "Price",
    "Rank",
    "Ranking",
    "RunCost",
    "RunTime",
    "Strategy",
    "TimePart",
    "TrainingSetup",
    "Trouble",
    "Trust",
    "Verdict",
    "accuracy",
    "catalog",
    "estimate",
    "hub",
    "kin",
    "pareto",
    "placement",
    "rank_gpus",
    "ranks",
    "repository",
    "resized",
    "scaling",
]

"""Headroom's estimator: GPU memory of a fine-tuning step, and hours and dollars of a run.

>>> from estimator import Method, TrainingSetup, catalog, estimate
>>> model, gpu = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
>>> estimate(model, gpu, TrainingSetup(method=Method.QLORA)).verdict.value
'fits'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from estimator import contract
from estimator.answer import overflow
from estimator.answer.estimate import estimate
from estimator.answer.explain import Explanation, Term, explain, kept_terms
from estimator.answer.needs import need
from estimator.answer.own_error import OwnError, error_in, explained_by, said_of, stops_at
from estimator.answer.own_step import own_step
from estimator.answer.ranks import Rank, ranks
from estimator.answer.verdict import beyond_the_step, smaller_evaluation
from estimator.families.adapters import default_targets, linear_names, outer_names
from estimator.families.custom import resized
from estimator.families.registry import family_of
from estimator.families.vision.by_tool import image_by_tool, processor_setting
from estimator.families.vision.by_tool import settings_of as image_settings
from estimator.families.vision.by_tool import video_settings_of as video_settings
from estimator.families.vision.sentences import image_costs
from estimator.families.vision_family import images_of
from estimator.parallel import placement
from estimator.parallel.combinations import OFFLOADS, offload_targets, sharing
from estimator.parallel.module_devices import (
    WithTower,
    placed_with_tower,
    why_left_on_the_cpu,
)
from estimator.parallel.offload import offloads
from estimator.passes.batch import least_batch, least_length
from estimator.proof import accuracy, replays
from estimator.proof.accuracy import Comparison, SimilarRuns, Trust, similar_runs
from estimator.proof.calibration import Calibration, calibration, calibration_in_fp8
from estimator.resident.stored import checkpoint_bytes
from estimator.run.sharded_saving import write_seconds
from estimator.run.stages import Stage, stages
from estimator.search import scaling
from estimator.search.best_ways import COUNTS, BestWay, Reach, best_way, best_ways, reach, ways_on
from estimator.search.limits import (
    MOST_GPUS,
    evaluation_stops,
    fewer_checkpoints,
    largest_micro_batch,
    longest_context,
    shortest_row,
    smallest_gpu,
    smallest_set,
    why_not_shared,
)
from estimator.search.ranking import Ranking, middle_dollars, middle_hours, pareto, rank_gpus
from estimator.search.remedies import MOST_TOGETHER, remedies
from estimator.search.rungs import Rung, batch_rungs, context_rungs
from estimator.search.scaling import Curve, Point
from estimator.search.vllm_share import least_share, vllm_shares
from estimator.sources import catalog, hub, repository
from estimator.sources.repository import HubModel, Trouble
from estimator.step.evaluation import kept_logits_bytes
from estimator.step.reserved import shown
from estimator.tools.defaults import QUESTION, TOOLS, SetByTool, defaults_of, with_defaults_of
from estimator.tools.imported import Fate, Imported, KeyRead, read_files
from estimator.tools.message import files_in
from estimator.tools.writing.changes import Changed, changed_files, changes_between
from estimator.tools.writing.files import TakeAway, files_of
from estimator.tools.writing.registry import WRITABLE
from estimator.values.keys import LARGEST
from estimator.values.losses import Loss
from estimator.values.methods import Method
from estimator.values.objective import OBJECTIVES, Objective
from estimator.values.range import Range
from estimator.values.results import (
    Estimate,
    Moment,
    OnDevice,
    Remedy,
    RunCost,
    RunTime,
    Shown,
    TimePart,
    Utilisation,
    UtilisationSearch,
)
from estimator.values.setup import KEY_FACET, TrainingSetup
from estimator.values.specs import (
    ALL_LINEAR,
    FULL_STATE_DICT,
    GENERATION_PHASES,
    LARGEST_MEMORY,
    LOWEST_MFU,
    MORE_PASSES,
    NETWORK,
    RATE_SPAN,
    SHARDED_STATE_DICT,
    SMALLEST_MEMORY,
    STEP_PHASES,
    AttnImplementation,
    Component,
    Dtype,
    Gpu,
    Machine,
    MixedPrecision,
    Model,
    ModelClass,
    Offload,
    Optimizer,
    Phase,
    Price,
    Verdict,
)
from estimator.values.strategies import Strategy

if TYPE_CHECKING:
    from estimator.grid.needs import Needs, needs
    from estimator.grid.runs import Runs, runs
    from estimator.plan import words as plan_words
    from estimator.plan.advice import Advice, NearMiss, Pick, Stair, advise, options_of, pick
    from estimator.plan.candidates import Progress, candidates
    from estimator.plan.command import priced_by
    from estimator.plan.files import CountedTexts, count_texts, price_list
    from estimator.plan.lanes import lanes
    from estimator.plan.question import Offer, Question, TokenLengths
    from estimator.plan.reading import (
        object_of_text,
        question_object,
        question_of,
        question_of_text,
    )
    from estimator.plan.recipes import Candidates, Recipe
    from estimator.plan.report import plan_csv, timetable_csv, timetable_summary
    from estimator.plan.team_reading import TeamQuestion, question_of_setup, team_object, team_of
    from estimator.plan.teams import Assignment, Job, JobOption, Timetable, schedule, team_jobs

__all__ = [
    "ALL_LINEAR",
    "COUNTS",
    "FULL_STATE_DICT",
    "GENERATION_PHASES",
    "KEY_FACET",
    "LARGEST",
    "LARGEST_MEMORY",
    "LOWEST_MFU",
    "MORE_PASSES",
    "MOST_GPUS",
    "MOST_TOGETHER",
    "NETWORK",
    "OBJECTIVES",
    "OFFLOADS",
    "QUESTION",
    "RATE_SPAN",
    "SHARDED_STATE_DICT",
    "SMALLEST_MEMORY",
    "STEP_PHASES",
    "TOOLS",
    "WRITABLE",
    "Advice",
    "Assignment",
    "AttnImplementation",
    "BestWay",
    "Calibration",
    "Candidates",
    "Changed",
    "Comparison",
    "Component",
    "CountedTexts",
    "Curve",
    "Dtype",
    "Estimate",
    "Explanation",
    "Fate",
    "Gpu",
    "HubModel",
    "Imported",
    "Job",
    "JobOption",
    "KeyRead",
    "Loss",
    "Machine",
    "Method",
    "MixedPrecision",
    "Model",
    "ModelClass",
    "Moment",
    "NearMiss",
    "Needs",
    "Objective",
    "Offer",
    "Offload",
    "OnDevice",
    "Optimizer",
    "OwnError",
    "Phase",
    "Pick",
    "Point",
    "Price",
    "Progress",
    "Question",
    "Range",
    "Rank",
    "Ranking",
    "Reach",
    "Recipe",
    "Remedy",
    "RunCost",
    "RunTime",
    "Rung",
    "Runs",
    "SetByTool",
    "Shown",
    "SimilarRuns",
    "Stage",
    "Stair",
    "Strategy",
    "TakeAway",
    "TeamQuestion",
    "Term",
    "TimePart",
    "Timetable",
    "TokenLengths",
    "TrainingSetup",
    "Trouble",
    "Trust",
    "Utilisation",
    "UtilisationSearch",
    "Verdict",
    "WithTower",
    "accuracy",
    "advise",
    "batch_rungs",
    "best_way",
    "best_ways",
    "beyond_the_step",
    "calibration",
    "calibration_in_fp8",
    "candidates",
    "catalog",
    "changed_files",
    "changes_between",
    "checkpoint_bytes",
    "context_rungs",
    "contract",
    "count_texts",
    "default_targets",
    "defaults_of",
    "error_in",
    "estimate",
    "evaluation_stops",
    "explain",
    "explained_by",
    "family_of",
    "fewer_checkpoints",
    "files_in",
    "files_of",
    "hub",
    "image_by_tool",
    "image_costs",
    "image_settings",
    "images_of",
    "kept_logits_bytes",
    "kept_terms",
    "lanes",
    "largest_micro_batch",
    "least_batch",
    "least_length",
    "least_share",
    "linear_names",
    "longest_context",
    "middle_dollars",
    "middle_hours",
    "need",
    "needs",
    "object_of_text",
    "offload_targets",
    "offloads",
    "options_of",
    "outer_names",
    "overflow",
    "own_step",
    "pareto",
    "pick",
    "placed_with_tower",
    "placement",
    "plan_csv",
    "plan_words",
    "price_list",
    "priced_by",
    "processor_setting",
    "question_object",
    "question_of",
    "question_of_setup",
    "question_of_text",
    "rank_gpus",
    "ranks",
    "reach",
    "read_files",
    "remedies",
    "replays",
    "repository",
    "resized",
    "runs",
    "said_of",
    "scaling",
    "schedule",
    "sharing",
    "shortest_row",
    "shown",
    "similar_runs",
    "smaller_evaluation",
    "smallest_gpu",
    "smallest_set",
    "stages",
    "stops_at",
    "team_jobs",
    "team_object",
    "team_of",
    "timetable_csv",
    "timetable_summary",
    "video_settings",
    "vllm_shares",
    "ways_on",
    "why_left_on_the_cpu",
    "why_not_shared",
    "with_defaults_of",
    "write_seconds",
]

_WITH_ARRAYS = {
    "Assignment": "plan.teams",
    "Job": "plan.teams",
    "JobOption": "plan.teams",
    "Timetable": "plan.teams",
    "options_of": "plan.advice",
    "schedule": "plan.teams",
    "team_jobs": "plan.teams",
    "lanes": "plan.lanes",
    "TeamQuestion": "plan.team_reading",
    "question_of_setup": "plan.team_reading",
    "team_object": "plan.team_reading",
    "team_of": "plan.team_reading",
    "price_list": "plan.files",
    "priced_by": "plan.command",
    "CountedTexts": "plan.files",
    "count_texts": "plan.files",
    "plan_csv": "plan.report",
    "timetable_csv": "plan.report",
    "timetable_summary": "plan.report",
    "Needs": "grid.needs",
    "needs": "grid.needs",
    "Runs": "grid.runs",
    "runs": "grid.runs",
    "Advice": "plan.advice",
    "Pick": "plan.advice",
    "pick": "plan.advice",
    "NearMiss": "plan.advice",
    "Stair": "plan.advice",
    "advise": "plan.advice",
    "Candidates": "plan.recipes",
    "Progress": "plan.candidates",
    "Recipe": "plan.recipes",
    "candidates": "plan.candidates",
    "Offer": "plan.question",
    "Question": "plan.question",
    "TokenLengths": "plan.question",
    "object_of_text": "plan.reading",
    "question_object": "plan.reading",
    "question_of": "plan.reading",
    "question_of_text": "plan.reading",
}
"""Where the names are whose modules need NumPy, which a single estimate does not."""


def __getattr__(name: str) -> Any:
    """Imports on demand what needs NumPy."""
    if name == "plan_words":
        return import_module("estimator.plan.words")
    if name in _WITH_ARRAYS:
        return getattr(import_module(f"estimator.{_WITH_ARRAYS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""One setup on increasing numbers of GPUs: the need per GPU and the time of the run, under every strategy.

Micro-batch and accumulation per GPU stay fixed, so the effective batch grows with the GPUs and an epoch has fewer
steps. Adjusting the learning rate is left to the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from estimator.answer.estimate import estimate
from estimator.parallel.combinations import OFFLOADS, sharing
from estimator.values.refusals import InputError
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Verdict
from estimator.values.strategies import Strategy

COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Default numbers of GPUs of a curve."""
STRATEGIES = tuple(strategy for strategy in Strategy if not strategy.is_alone)
"""Strategies that have a curve, in the order of the contract."""


class TooFewError(InputError):
    """The number of GPUs is not a multiple of the strategy's group, or is below two groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One strategy on a number of GPUs."""

    num_gpus: int
    strategy: Strategy
    estimate: Estimate | None
    """None if the strategy cannot run this setup on this number of GPUs."""
    refusal: str = ""
    """The reason, in one sentence."""
    too_few: bool = False
    """Whether another number of GPUs would work: this one does not form two or more whole hsdp groups."""

    @property
    def fits(self) -> bool:
        """Whether the high end of the need fits; false without a GPU."""
        return self.estimate is not None and self.estimate.verdict is Verdict.FITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One strategy on increasing numbers of GPUs; all curves share the point of one GPU, which shards nothing."""

    strategy: Strategy
    points: tuple[Point, ...]

    @property
    def first_that_fits(self) -> Point | None:
        """The fitting point with the fewest GPUs; None if none fits or no GPU is given."""
        return next((point for point in self.points if point.fits), None)


def curves(
    model: Model,
    gpu: Gpu | None,
    setup: TrainingSetup,
    counts: Sequence[int] = COUNTS,
    strategies: Sequence[Strategy] = STRATEGIES,
) -> tuple[Curve, ...]:
    """The setup under each strategy on each number of GPUs, in ascending order.

    The user's ``mfu`` was measured on one number of GPUs, so it is ignored here. ``hsdp`` shards within a machine of
    ``gpus_per_node``, or over the setup's shard group if the setup uses hsdp.

    >>> from estimator import catalog
    >>> of = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB"), TrainingSetup()
    >>> [curve.first_that_fits.num_gpus for curve in curves(*of, strategies=[Strategy.DDP, Strategy.ZERO3])]
    [1, 1]
    """
    same = setup.replace(mfu=None)
    ascending = sorted(set(counts))
    return tuple(
        Curve(
            strategy=strategy,
            points=tuple(_point(model, gpu, same, strategy, number) for number in ascending),
        )
        for strategy in strategies
    )


def shared_by(setup: TrainingSetup, strategy: Strategy, num_gpus: int) -> TrainingSetup:
    """The setup on ``num_gpus`` GPUs under a strategy, with its offload keys unchanged; ``ValueError`` says why not.

    >>> shared_by(TrainingSetup(), Strategy.HSDP, 32).mesh.dp_replicate_size
    4
    >>> shared_by(TrainingSetup(), Strategy.FSDP, 1).mesh.strategy.value
    'none'
    """
    strategy = strategy if num_gpus > 1 else Strategy.NONE
    copies = 1
    if strategy.has_groups:
        shards = (
            setup.mesh.shard_ranks if setup.mesh.strategy.has_groups else setup.mesh.gpus_per_node
        )
        copies, rest = divmod(num_gpus, shards)
        if copies < 2 or rest or shards < 2:
            raise TooFewError(
                f"hsdp needs two or more groups of {shards} GPUs here; {num_gpus} GPUs do not form such groups."
            )
    keys = sharing(setup.mesh, strategy, num_gpus, copies)
    return replace(setup, **{key: value for key, value in keys.items() if key not in OFFLOADS})


def _point(
    model: Model, gpu: Gpu | None, setup: TrainingSetup, strategy: Strategy, num_gpus: int
) -> Point:
    try:
        answer = estimate(model, gpu, shared_by(setup, strategy, num_gpus))
    except ValueError as problem:
        return Point(
            num_gpus=num_gpus,
            strategy=strategy,
            estimate=None,
            refusal=str(problem),
            too_few=isinstance(problem, TooFewError),
        )
    return Point(num_gpus=num_gpus, strategy=strategy, estimate=answer)


def rented_in(gpu: Gpu | None, num_gpus: int) -> int | None:
    """The fewest GPUs that any listing rents together, if more than ``num_gpus``; else None (a count).

    Source: data/prices.csv, by row.

    >>> from estimator import catalog
    >>> rented_in(catalog.gpu("A10G"), 1) is None
    True
    """
    if gpu is None or not gpu.prices:
        return None
    least = min(price.min_gpus for price in gpu.prices)
    return least if least > num_gpus else None


def most_rented(gpu: Gpu) -> int | None:
    """The most GPUs that any listing has together (a count); None: no listing says.

    Source: data/prices.csv, by row.

    >>> from estimator import catalog
    >>> most_rented(catalog.gpu("A10G")), most_rented(catalog.gpu("L4"))
    (1, None)
    """
    most = [price.max_gpus for price in gpu.prices]
    return None if None in most else max(filter(None, most), default=None)

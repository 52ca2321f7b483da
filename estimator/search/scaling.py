"""One setup on more and more GPUs: what each of them needs, and what the run takes, under every strategy.

Each GPU keeps its micro-batch and its accumulation, so the effective batch grows with the GPUs and an epoch has fewer
steps; the learning rate that goes with it is the reader's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from estimator.answer.estimate import estimate
from estimator.parallel.combinations import OFFLOADS, sharing
from estimator.values.refusals import InputError
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Strategy, Verdict

COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""GPUs that a curve goes through by default."""
STRATEGIES = tuple(strategy for strategy in Strategy if strategy is not Strategy.NONE)
"""Strategies that have a curve, in the order of the contract."""


class TooFewError(InputError):
    """So many GPUs are not whole groups of the strategy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One strategy on a number of GPUs."""

    num_gpus: int
    strategy: Strategy
    estimate: Estimate | None
    """None where the strategy cannot share this setup's work among so many."""
    refusal: str = ""
    """Why not, in one sentence."""
    too_few: bool = False
    """Whether more GPUs could be shared: these are not whole groups of hsdp's."""

    @property
    def fits(self) -> bool:
        """Whether even the high end of the need fits; false without a GPU."""
        return self.estimate is not None and self.estimate.verdict is Verdict.FITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One strategy on more and more GPUs; the first point of all curves is the same one GPU, which shares nothing."""

    strategy: Strategy
    points: tuple[Point, ...]

    @property
    def first_that_fits(self) -> Point | None:
        """The point with the fewest GPUs of those that fit; None where none does, or no GPU was given."""
        return next((point for point in self.points if point.fits), None)


def curves(
    model: Model,
    gpu: Gpu | None,
    setup: TrainingSetup,
    counts: Sequence[int] = COUNTS,
    strategies: Sequence[Strategy] = STRATEGIES,
) -> tuple[Curve, ...]:
    """The setup under each strategy on each number of GPUs, in ascending order.

    A utilisation of one's own was measured on one number of GPUs, so it is left out here. ``hsdp`` shards within a
    machine of ``gpus_per_node``, or among as many GPUs as the setup does if it is one of hsdp.

    >>> from estimator import catalog
    >>> of = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB"), TrainingSetup()
    >>> [curve.first_that_fits.num_gpus for curve in curves(*of, strategies=[Strategy.DDP, Strategy.ZERO3])]
    [1, 1]
    """
    same = replace(setup, mfu=None)
    ascending = sorted(set(counts))
    return tuple(
        Curve(
            strategy=strategy,
            points=tuple(_point(model, gpu, same, strategy, number) for number in ascending),
        )
        for strategy in strategies
    )


def shared_by(setup: TrainingSetup, strategy: Strategy, num_gpus: int) -> TrainingSetup:
    """The setup on so many GPUs under a strategy, which rests where it did; ``ValueError`` says why it cannot be.

    >>> shared_by(TrainingSetup(), Strategy.HSDP, 32).dp_replicate_size
    4
    >>> shared_by(TrainingSetup(), Strategy.FSDP, 1).strategy.value
    'none'
    """
    strategy = strategy if num_gpus > 1 else Strategy.NONE
    copies = 1
    if strategy is Strategy.HSDP:
        of_own = setup.strategy is Strategy.HSDP
        shards = setup.shard_ranks if of_own else setup.gpus_per_node
        copies, rest = divmod(num_gpus, shards)
        if copies < 2 or rest or shards < 2:
            raise TooFewError(
                f"hsdp has copies of {shards} GPUs here, which {num_gpus} are not two or more of."
            )
    keys = sharing(setup, strategy, num_gpus, copies)
    return replace(setup, **{key: it for key, it in keys.items() if key not in OFFLOADS})


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
    """The fewest GPUs that any listing rents together, where that is more than so many; None else (a count).

    Source: data/prices.csv, by row.

    >>> from estimator import catalog
    >>> rented_in(catalog.gpu("A10G"), 1) is None
    True
    """
    if gpu is None or not gpu.prices:
        return None
    least = min(price.min_gpus for price in gpu.prices)
    return least if least > num_gpus else None

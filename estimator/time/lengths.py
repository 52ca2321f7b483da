"""Rows, tokens and operations of a micro-batch, derived from the setup's keys."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from estimator.passes.batch import passed_rows
from estimator.time.flops import Work, attended_pairs, is_eager, work
from estimator.time.one_gpu import Facets, is_shared, of_micro_step, setup_of
from estimator.values.arithmetic import Operation, StandIn, real
from estimator.values.facets.batch import Batch
from estimator.values.facets.computation import Computation
from estimator.values.range import Range
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


class Lengths(NamedTuple):
    """Rows and tokens as the GPU sees them."""

    rows_per_epoch: int
    """Examples, or packed rows."""
    mean: int
    """Tokens of text per example, at most those of a row."""
    tokens: int
    """Tokens computed per row."""
    text: float
    """Tokens of text in a row."""


def lengths(setup: TrainingSetup) -> Lengths:
    """Rows per epoch and tokens per row; the work is examples times their mean length.

        packed   rows = ⌈examples · mean / max_length⌉, each of max_length tokens
        padded   rows = examples, each as long as the longest row of its micro-batch, ``expected_longest``
        padding_free without packing   rows = examples, each of the mean length

    Leaves out: batches of like lengths (``group_by_length``), which are padded less, and GPUs that wait for another's
    longer rows.
    Source: derived; TRL, data_utils.py, ``pack_dataset``; transformers 5.23, data/data_collator.py.

    >>> lengths(TrainingSetup(num_train_examples=100, mean_tokens_per_example=256)).rows_per_epoch
    25
    """
    longest = setup.batch.max_length
    mean = setup.run.mean_tokens_per_example or longest
    examples = setup.run.num_train_examples
    if setup.batch.padding_free and not setup.batch.packing:
        mean = min(mean, longest)
        return Lengths(examples, mean, mean, real(mean))
    if setup.batch.padded and not setup.task.objective.generates:  # whose time knows its own rows
        mean = min(mean, longest)
        computed = expected_longest(passed_rows(setup), mean, longest)
        return Lengths(examples, mean, computed, real(mean))
    rows = -(-examples * mean // longest)
    return Lengths(rows, min(mean, longest), longest, examples * mean / rows)


def expected_longest(rows: int, mean: int, limit: int) -> int:
    """Tokens that the longest of so many random rows has on average, if all that is known of them is mean and limit.

        ∫ x(u^(1/rows)) du, u from 0 to 1     x(q) = -ln(1 - q · (1 - exp(-t))) / t · limit, an exponential cut at the
                                              limit, whose mean is limit · (1 / t - 1 / (exp(t) - 1))

    Of all spreads from 0 to a limit with a given mean this exponential assumes least. Above half the limit it is
    mirrored. The integral is the mean of ``POINTS`` quantiles.

    Error: 8 log-normal rows (mean 600 before they are cut at 2,048): -7 % where their logarithms deviate by 1.0, +1 %
        by 0.8, +16 % by 0.6; even lengths: none.
    Source: derived; Jaynes 1957, doi:10.1103/PhysRev.106.620 (maximum entropy); the highest of independent draws has
        the rows-th power of their distribution (David and Nagaraja, Order Statistics, 2003, section 2.1).

    >>> [expected_longest(rows, 600, 2048) for rows in (1, 2, 8, 64)], expected_longest(3, 512, 1024)
    ([600, 872, 1421, 1904], 768)
    """
    if mean >= limit or (not isinstance(rows, StandIn) and rows == 1):
        return min(mean, limit)
    return _longest_by(mean).of(rows, limit)


POINTS = 64
"""Quantiles of the longest row: ours; their mean is within 0.5 % of the integral."""


@lru_cache(maxsize=64)
def _longest_by(mean: int) -> Operation:
    """``expected_longest`` of a mean, as one operation on rows and limit."""
    rate_at = lru_cache(maxsize=1024)(lambda limit: _decay(min(mean, limit - mean) / limit))

    def longest(rows: int, limit: int) -> int:
        if rows == 1 or mean >= limit:
            return int(min(mean, limit))
        rate, tokens = rate_at(limit), 0.0
        for point in range(POINTS):
            quantile = ((point + 0.5) / POINTS) ** (1 / rows)
            tokens += _at(quantile, rate) if 2 * mean <= limit else 1 - _at(1 - quantile, rate)
        return int(max(mean, round(limit * tokens / POINTS)))

    return Operation(longest, lambda rows, limit: limit)


def _at(quantile: float, rate: float) -> float:
    """A quantile of the exponential that is cut at 1."""
    return -math.log1p(quantile * math.expm1(-rate)) / rate


def _decay(share: float) -> float:
    """The decay t of an exponential cut at 1 whose mean is a share of at most one half, by bisection."""
    low, high = MOST_EVEN, 1 / share
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        mean = 1 / middle + math.exp(-middle) / math.expm1(-middle)
        low, high = (middle, high) if mean > share else (low, middle)
    return low


MOST_EVEN = 1e-4
"""Decay below which lengths are as good as even: ours; 1 / t - 1 / (exp(t) - 1) loses its digits below."""
HALVINGS = 48


def works(model: Model, setup: TrainingSetup, length: Lengths) -> Range[Work]:
    """The work of a micro-batch, whose ends differ in padding and in pairs that the kernel skips."""
    if is_shared(setup):
        return _works_on_one_gpu(model, of_micro_step(setup), length)
    return _works(model, setup, length)


@lru_cache(maxsize=1024)
def _works_on_one_gpu(model: Model, facets: Facets, length: Lengths) -> Range[Work]:
    return _works(model, setup_of(facets), length)


def _works(model: Model, setup: TrainingSetup, length: Lengths) -> Range[Work]:
    eager = is_eager(model, setup.computation)
    if setup.batch.is_joined:
        return Range.of(
            work(
                model,
                setup,
                length.tokens,
                pairs=_joined_pairs(model, setup.batch, setup.computation, length),
            )
        )
    masked = setup.batch.padded or 0 < model.sliding_window <= length.tokens
    masked = masked or setup.computation.masks_when_traced
    skips = not eager and (setup.computation.attn_implementation.is_flash or not masked)
    most = attended_pairs(model, length.tokens, skips=skips)
    # neither padding nor another packed example is attended to if the kernel knows their bounds
    example = length.tokens if eager else length.mean
    least = attended_pairs(model, example, skips=not eager)
    if not setup.batch.padded:
        least = least * length.tokens // example
    slow = work(model, setup, length.tokens, pairs=most)
    if least == most:
        return Range.of(slow)
    return Range(work(model, setup, length.tokens, pairs=least), slow)


def _joined_pairs(model: Model, batch: Batch, computation: Computation, length: Lengths) -> int:
    """Pairs of a query and a key for each row of a micro-batch whose rows are joined into one.

    FlashAttention is told where each example begins; other kernels multiply all tokens with all and mask the result.
    """
    if computation.attn_implementation.is_flash:
        return attended_pairs(model, length.mean, skips=True) * length.tokens // length.mean
    rows = batch.per_device_train_batch_size
    return attended_pairs(model, rows * length.tokens, skips=False) // rows

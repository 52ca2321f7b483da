"""Rows, tokens and operations of a micro-batch, at best and at worst, derived from the setup's keys."""

from __future__ import annotations

from typing import NamedTuple

from estimator.time.flops import Work, attended_pairs, is_eager, work
from estimator.values.arithmetic import real
from estimator.values.setup import TrainingSetup
from estimator.values.specs import AttnImplementation, Model


class Lengths(NamedTuple):
    """Rows and tokens as the GPU sees them."""

    rows_per_epoch: int
    """Examples, or packed rows."""
    mean: int
    """Tokens of text per example, at most those of a row."""
    fast: int
    """Tokens computed per row at best."""
    slow: int
    """At worst."""
    text: float
    """Tokens of text in a row."""


def lengths(setup: TrainingSetup) -> Lengths:
    """Rows per epoch and tokens per row; the work is examples times their mean length.

        packed   rows = ⌈examples · mean / max_length⌉, each of max_length tokens
        padded   rows = examples, from the mean length (batches of similar lengths) to max_length (padded to it)
        padding_free without packing   rows = examples, each of the mean length

    Source: derived; TRL, data_utils.py, ``pack_dataset``; transformers 5.23, data/data_collator.py.

    >>> lengths(TrainingSetup(num_train_examples=100, mean_tokens_per_example=256)).rows_per_epoch
    25
    """
    longest = setup.batch.max_length
    mean = setup.run.mean_tokens_per_example or longest
    examples = setup.run.num_train_examples
    if setup.batch.padding_free and not setup.batch.packing:
        mean = min(mean, longest)
        return Lengths(examples, mean, mean, mean, real(mean))
    if setup.batch.padded:
        mean = min(mean, longest)
        return Lengths(examples, mean, mean, longest, real(mean))
    rows = -(-examples * mean // longest)
    return Lengths(rows, min(mean, longest), longest, longest, examples * mean / rows)


def works(model: Model, setup: TrainingSetup, length: Lengths) -> tuple[Work, Work]:
    """The work of a micro-batch at best and at worst, which differ in padding and in pairs that the kernel skips."""
    eager = is_eager(model, setup.computation)
    if setup.batch.is_joined:
        only = work(model, setup, length.fast, pairs=_joined_pairs(model, setup, length))
        return only, only
    masked = setup.batch.padded or 0 < model.sliding_window <= length.slow
    masked = masked or setup.computation.masks_when_traced
    skips = not eager and (
        setup.computation.attn_implementation is AttnImplementation.FLASH_ATTENTION_2 or not masked
    )
    slow_pairs = attended_pairs(model, length.slow, skips=skips)
    slow = work(model, setup, length.slow, pairs=slow_pairs)
    # packed examples do not attend to each other if the kernel knows their bounds
    example = length.fast if eager else length.mean
    pairs = attended_pairs(model, example, skips=not eager) * length.fast // example
    if (length.fast, pairs) == (length.slow, slow_pairs):
        return slow, slow
    return work(model, setup, length.fast, pairs=pairs), slow


def _joined_pairs(model: Model, setup: TrainingSetup, length: Lengths) -> int:
    """Pairs of a query and a key for each row of a micro-batch whose rows are joined into one.

    FlashAttention is told where each example begins; other kernels multiply all tokens with all and mask the result.
    """
    if setup.computation.attn_implementation is AttnImplementation.FLASH_ATTENTION_2:
        return attended_pairs(model, length.mean, skips=True) * length.fast // length.mean
    rows = setup.batch.per_device_train_batch_size
    return attended_pairs(model, rows * length.fast, skips=False) // rows

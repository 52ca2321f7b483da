"""Arrays of values by key, one cell per setup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from estimator.grid.arrays import Numbers
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.batch import Batch
from estimator.values.facets.mesh import Mesh
from estimator.values.refusals import InputError
from estimator.values.setup import TrainingSetup

KEYS = (
    "per_device_train_batch_size",
    "max_length",
    "lora_r",
    "num_gpus",
    "gradient_accumulation_steps",
)
"""Keys that may be arrays. The first two change only sizes; the others form a few groups, computed one by one."""
BATCH, LENGTH, RANK, GPUS, ACCUMULATION = KEYS
MOST_COUNTED = 2**25
"""Maximum size of the table that marks which combinations occur (our choice: a quarter of a GiB)."""
Cells = Mapping[str, Numbers]
"""The value of each of ``KEYS`` in each cell."""


def of(setup: TrainingSetup, asked: Mapping[str, ArrayLike]) -> tuple[Cells, tuple[int, ...]]:
    """Broadcasts arrays by key into cells, and returns the common shape; other keys are the setup's.

    Source: derived.
    """
    if unknown := set(asked) - set(KEYS):
        raise InputError(f"{', '.join(sorted(unknown))}: arrays are taken for {', '.join(KEYS)}.")
    given = [np.asarray(asked.get(key, setup.value(key)), dtype=np.int64) for key in KEYS]
    for key, numbers in zip(KEYS, given, strict=True):
        if numbers.size and numbers.min() < 1:
            raise InputError(f"{key} holds {numbers.min()}; a count is at least 1.")
    together = np.broadcast_arrays(*given)
    return dict(zip(KEYS, map(np.ravel, together), strict=True)), together[0].shape


def sized(
    setup: TrainingSetup,
    *,
    rank: int,
    gpus: int,
    accumulation: int,
    batch: int | None = None,
    length: int | None = None,
) -> TrainingSetup:
    """The setup with other numbers; None: its own. Its facets are shared with setups of the same numbers.

    Source: derived.
    """
    rows = batch or setup.batch.per_device_train_batch_size
    return replace(
        setup,
        adapters=_adapters(setup.adapters, rank),
        mesh=_mesh(setup.mesh, gpus),
        batch=_batch(setup.batch, rows, length or setup.batch.max_length, accumulation),
    )


@lru_cache(maxsize=1024)
def _adapters(like: Adapters, rank: int) -> Adapters:
    return replace(like, lora_r=rank)


@lru_cache(maxsize=1024)
def _mesh(like: Mesh, gpus: int) -> Mesh:
    return replace(like, num_gpus=gpus)


@lru_cache(maxsize=8192)
def _batch(like: Batch, rows: int, length: int, accumulation: int) -> Batch:
    return replace(
        like,
        per_device_train_batch_size=rows,
        max_length=length,
        gradient_accumulation_steps=accumulation,
    )


def distinct(columns: Sequence[Numbers]) -> tuple[Sequence[Numbers], Numbers]:
    """The distinct rows of columns of positive ints, column by column, and the index of each row among them.

    By counting, since sorting a million rows takes longer than reading them; where there may be too many to count, each
    row stands for itself.

    Source: derived.
    """
    code = np.zeros_like(columns[0])
    values, combinations = [], 1
    for column in columns:
        present = np.flatnonzero(np.bincount(column))
        combinations *= len(present)
        if combinations > MOST_COUNTED:
            return columns, np.arange(len(code))
        code = code * len(present) + _places(present)[column]
        values.append(present)
    rest = np.flatnonzero(np.bincount(code, minlength=1))
    number = _places(rest)[code]
    distinct = []
    for present in reversed(values):
        rest, part = np.divmod(rest, len(present))
        distinct.append(present[part])
    return distinct[::-1], number


def present(column: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct numbers of a column from 1 up, rising, and the place of each of its numbers among them.

    Source: derived.

    >>> [it.tolist() for it in present(np.array([5, 3, 5]))]
    [[3, 5], [1, 0, 1]]
    """
    found = np.flatnonzero(np.bincount(column))
    return found, _places(found)[column]


def _places(present: Numbers) -> Numbers:
    """The rank of each value among the distinct values."""
    places = np.zeros(present.max(initial=0) + 1, dtype=np.int64)
    places[present] = np.arange(len(present))
    return places

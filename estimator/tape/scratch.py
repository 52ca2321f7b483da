"""What CUDA kernels allocate for themselves while they run: bytes of each temporary, in order.

PyTorch's CUDA build allocates these, and frees them when the kernel's launch returns; the CPU build does not. So they
are in ``torch.cuda.max_memory_allocated`` and decide which blocks a run gets, but are no tensors of the step.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from estimator.values.arithmetic import ceil_div

FLOAT = 4
INDEX = 8


class Card(NamedTuple):
    """What a kernel's launch depends on."""

    multiprocessors: int = 108
    """An A100's."""
    threads: int = 2048
    """Threads that a multiprocessor holds."""


def rows_summed(rows: int, columns: int, card: Card) -> tuple[int, ...]:
    """Partial sums of ``sum`` over the rows of a contiguous [rows, columns], where blocks of threads share a column.

    Source: torch 2.13, aten/src/ATen/native/cuda/Reduce.cuh, ``setReduceConfig``, ``global_memory_size``.

    >>> rows_summed(2048, 576, Card())
    (9437184, 20)
    """
    if rows < 2:
        return ()
    vector = next(size for size in (4, 2, 1) if columns % size == 0)
    most = 512 // vector
    across, along = _last_power(columns // vector, most), _last_power(rows, most)
    width = min(across, 32)
    height = min(along, most // width)
    width = min(across, most // height)
    outputs_at_once = width
    values = rows
    splits = values >= min(height * 16, 256)
    if splits:
        values = ceil_div(rows, height)
    else:
        outputs_at_once *= height
    grid = ceil_div(columns // vector, outputs_at_once)
    target = card.multiprocessors * (card.threads // (width * height))
    if not splits or values < 256 or grid > target:
        return ()
    blocks = max(min(ceil_div(target, grid), ceil_div(values, 16)), ceil_div(values, 256))
    if blocks < 2:
        return ()
    return FLOAT * columns * blocks * width * vector, FLOAT * grid


def _last_power(number: int, most: int) -> int:
    """The largest power of two that is at most ``number`` and ``most``, itself a power of two."""
    return most if number >= most else 1 << (max(number, 1).bit_length() - 1)


def flash_backward(
    batch: int, length: int, heads: int, key_value_heads: int, head_dim: int, width: int, card: Card
) -> tuple[int, ...]:
    """The sums of each row, the queries' gradient in float32, and the gradients of grouped keys and values before they
    are added up.

    Source: torch 2.13, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, ``mha_bwd``.

    >>> flash_backward(2, 1024, 9, 3, 64, 2, Card())
    (73728, 4718592, 2359296, 2359296)
    """
    rows = ceil_div(length, 128) * 128
    wide = ceil_div(head_dim, 32) * 32
    sizes = (FLOAT * batch * heads * rows, FLOAT * batch * rows * heads * wide)
    if key_value_heads == heads:
        return sizes
    expanded = width * batch * length * heads * head_dim
    return (*sizes, expanded, expanded)


def flash_forward(
    batch: int, length: int, heads: int, head_dim: int, card: Card
) -> tuple[int, ...]:
    """Partial sums and outputs where a row's keys are split over multiprocessors that would be idle.

    Source: torch 2.13, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, ``set_params_splitkv``,
    ``num_splits_heuristic``.

    >>> flash_forward(1, 512, 12, 128, Card())
    (49152, 6291456)
    """
    tiles, slots = batch * heads * ceil_div(length, 64), 2 * card.multiprocessors
    if tiles >= 0.8 * slots:
        return ()
    keys = ceil_div(length, 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64)
    shares = {
        splits: (waves := tiles * splits / slots) / ceil(waves)
        for splits in range(1, min(128, slots, keys) + 1)
        if splits == 1 or ceil_div(keys, splits) != ceil_div(keys, splits - 1)
    }
    enough = 0.85 * max(shares.values())
    splits = next(splits for splits, share in shares.items() if share >= enough)
    if splits == 1:
        return ()
    rows = FLOAT * splits * batch * heads * length
    return rows, rows * ceil_div(head_dim, 32) * 32


def softmax_backward(elements: int, width: int, card: Card) -> tuple[int, ...]:
    """The product of the gradient and the output.

    Source: torch 2.13, aten/src/ATen/native/cuda/SoftMax.cu, ``softmax_backward_cuda_out``.

    >>> softmax_backward(1024, 4, Card())
    (4096,)
    """
    return (width * elements,)


SORTED_FROM = 3072
"""Tokens up to which no sort is needed: aten/src/ATen/native/cuda/Embedding.cu, ``embedding_dense_backward_cuda``."""
ROWS_PER_THREAD = 10
"""aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu, ``NROWS_PER_THREAD``."""


def embedding_backward(tokens: int, rows: int, columns: int, card: Card) -> tuple[int, ...]:
    """The sorted tokens and their places, and one float32 gradient for each ten equal tokens.

    Source: torch 2.13, aten/src/ATen/native/cuda/Embedding.cu, ``embedding_dense_backward_cuda``;
    EmbeddingBackwardKernel.cu, ``embedding_backward_cuda_kernel``.
    """
    if tokens <= SORTED_FROM:
        return ()
    several = min(tokens, rows)
    partial = tokens // ROWS_PER_THREAD + several
    return (
        INDEX * tokens,
        INDEX * tokens,
        INDEX * tokens,
        INDEX * several,
        INDEX * several,
        INDEX * partial,
        FLOAT * partial * columns,
    )

"""Packing and padding-free: a micro-batch is one row.

tests/test_reference.py compares whole steps with traced ones ("joined").
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import AttnImplementation, Loss, Phase, TrainingSetup, catalog, estimate
from estimator.time.lengths import lengths

LLAMA = catalog.model("meta-llama/Llama-3.2-1B")
GPU = catalog.gpu("A100-SXM4-80GB")
FLASH = AttnImplementation.FLASH_ATTENTION_2
SETUP = TrainingSetup(
    per_device_train_batch_size=4,
    max_length=1024,
    attn_implementation=FLASH,
    loss=Loss.CHUNKED_TRL,
)
TOKENS = 4 * 1024


def loss_height(**keys: object) -> int:
    return estimate(LLAMA, GPU, replace(SETUP, **keys)).phases[Phase.LOSS].bytes


def seconds(**keys: object) -> tuple[float, float]:
    parts = estimate(LLAMA, GPU, replace(SETUP, **keys)).time.parts
    attention = next(part for part in parts if part.name == "attention")
    return attention.seconds.low, attention.seconds.high


def test_with_flash_attention_a_joined_row_adds_only_positions_and_tables():
    """Positions in int64 and example numbers in int32, 12 bytes a token; cosine and sine of 4 rows instead of 1."""
    tables = 2 * 2 * 64 * (TOKENS - 1024)
    own_positions = 8 * 1024
    more = 12 * TOKENS + tables - own_positions
    assert loss_height(padding_free=True) - loss_height() == pytest.approx(more, abs=2**14)


def test_packing_joins_a_single_row_and_padding_free_does_not():
    one = {"per_device_train_batch_size": 1, "attn_implementation": AttnImplementation.SDPA}
    assert loss_height(**one, padding_free=True) == loss_height(**one)
    assert loss_height(**one, packing=True) > loss_height(**one)


def test_sdpa_masks_the_whole_micro_batch_as_one_square():
    """A mask of T² bytes, and without checkpointing an additive copy of 2 · T² bytes in every layer."""
    sdpa = {"attn_implementation": AttnImplementation.SDPA}
    kept = 16 * 2 * TOKENS**2
    repeated = 16 * 2 * 2 * TOKENS * (2048 - 512)  # keys and values, repeated for the kernel
    found = loss_height(**sdpa, packing=True) - loss_height(packing=True)
    assert found == pytest.approx(kept + repeated, rel=0.02)


def test_examples_do_not_attend_to_each_other_if_the_kernel_knows_their_bounds():
    """Four examples of 256 tokens per row: a quarter of the pairs of whole rows, except for the diagonal."""
    whole = seconds(packing=True)[1]
    packed = seconds(packing=True, mean_tokens_per_example=256)[1]
    # nearly: each part is drawn to its typical seconds by as much as the whole step
    assert packed == pytest.approx(whole * 257 / 1025, rel=0.02)


def test_sdpa_multiplies_the_whole_square():
    """(4 L)² pairs for the micro-batch; causal flash attention has 4 · L · (L + 1) / 2."""
    flash = seconds(packing=True)[0]
    sdpa = seconds(packing=True, attn_implementation=AttnImplementation.SDPA)[0]
    assert sdpa == pytest.approx(flash * TOKENS**2 / (4 * 1024 * 1025 / 2), rel=0.03)


def test_padding_free_examples_cost_only_their_own_tokens():
    setup = replace(SETUP, padding_free=True, mean_tokens_per_example=300, num_train_examples=100)
    found = lengths(setup)
    assert (found.rows_per_epoch, found.tokens) == (100, 300)
    packed = lengths(replace(setup, packing=True))
    assert packed.rows_per_epoch == 30  # ⌈100 · 300 / 1024⌉

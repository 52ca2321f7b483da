"""Bytes that operators between matmuls write, counted by hand from transformers' code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import Method, TrainingSetup, catalog
from estimator.families.modules import TINY_LLAMA
from estimator.time.between import traffic
from estimator.values.specs import AttnImplementation

HIDDEN, QUERIES, KEYS, MLP = 8, 8, 4, 16
"""Widths of the tiny model, which has two layers, and heads of 4 that the kernel pads to 8."""


def test_a_layer_writes_what_transformers_llama_computes_between_matmuls():
    """transformers 5.23, models/llama/modeling_llama.py, in bfloat16, bytes per token and layer."""
    # LlamaRMSNorm: float32 4, square 4, times the root 4, bfloat16 2, times the weight 2; per row: mean, sum, root
    norm = 16 * HIDDEN + 3 * 4
    # rotate_half: negated half 1, joined 2; times cos 2, times sin 2, summed 2
    rotary = 9 * (QUERIES + KEYS)
    padded = (
        2 * 2 * (QUERIES + 2 * KEYS) + 2 * QUERIES
    )  # padded to twice the width; the output is copied without its padding
    forward = 2 * norm + rotary + padded + 2 * 2 * HIDDEN + 2 * 2 * MLP
    # backward: both factors of both products of a norm, 2·2 and 2·4, and a sum per row; casts 4 and 2; the root 4+4 per
    # row; the expanded mean 4; the square's three steps 12
    norm_back = 12 * HIDDEN + 4 + 6 * HIDDEN + 8 + 4 * HIDDEN + 12 * HIDDEN
    # and under autocast, the gradients of the rotated heads are copied to rows: 2
    rotary_back = 7 * (QUERIES + KEYS)
    # gradients of slices: halves into full tensors twice for q and k, then the padded q, k, v and the output
    sliced = 80 + 32
    backward = 2 * norm_back + rotary_back + sliced + 2 * MLP + 2 * 2 * MLP
    found = traffic(TINY_LLAMA, TrainingSetup(), 0.0)
    assert (found.forward, found.backward) == (2 * forward, pytest.approx(2 * backward))
    assert found.image == found.fixed == 0


def test_checkpointing_adds_operators_but_not_bytes_per_pass():
    plain = traffic(TINY_LLAMA, TrainingSetup(), 0.0)
    again = traffic(TINY_LLAMA, TrainingSetup(gradient_checkpointing=True), 1.0)
    assert again.forward == plain.forward
    assert again.backward == pytest.approx(plain.backward, rel=0.03)
    assert again.operators > 1.3 * plain.operators


def test_layer_norms_and_plain_mlps_write_less_than_rms_norms_and_gated_mlps():
    mpt, llama = (catalog.model(name) for name in ("mosaicml/mpt-7b", "meta-llama/Llama-2-7b-hf"))
    setup = TrainingSetup(attn_implementation=AttnImplementation.FLASH_ATTENTION_2)
    assert traffic(mpt, setup, 0.0).forward < 0.6 * traffic(llama, setup, 0.0).forward


def test_adapters_more_than_double_the_operators():
    model = catalog.model("mistralai/Mistral-7B-v0.1")
    full, lora = (
        traffic(model, TrainingSetup(method=method), 0.0) for method in (Method.FULL, Method.LORA)
    )
    assert lora.operators > 2 * full.operators
    assert lora.forward > 2 * full.forward


def test_adapted_experts_are_merged_once_per_micro_batch_whatever_its_length():
    mixtral = catalog.model("mistralai/Mixtral-8x7B-v0.1")
    setup = TrainingSetup(method=Method.LORA)
    found = traffic(mixtral, setup, 0.0)
    experts = 32 * 8 * 3 * 4096 * 14_336
    assert found.fixed >= 2 * experts
    assert traffic(mixtral, replace(setup, max_length=4096), 0.0) == found


def test_preference_pairs_write_twice_as_much_and_the_reference_adds_a_pass():
    dpo = traffic(TINY_LLAMA, TrainingSetup(objective="dpo"), 0.0)
    sft = traffic(TINY_LLAMA, TrainingSetup(), 0.0)
    assert dpo.forward == pytest.approx(2 * sft.forward, rel=0.1)
    assert dpo.backward == pytest.approx(2 * sft.backward, rel=0.01)

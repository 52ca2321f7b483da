"""Qwen3-Next and Qwen3.5: counts and messages. The bytes of real steps are in tests/reference/traced.jsonl."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from estimator import TrainingSetup, catalog, estimate
from estimator.families.hf_config import model_from_config
from estimator.families.model_tree import total_parameters
from estimator.time.flops import attended_pairs, delta_products
from estimator.values.specs import Gpu, MixedPrecision, Model, Optimizer, Phase

QWEN3_5 = {
    "model_type": "qwen3_5_text",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 3,
    "linear_value_head_dim": 5,
}


def test_three_of_four_qwen3_5_layers_have_a_delta_net():
    model = model_from_config(QWEN3_5)
    assert model.layer_types == ("linear_attention",) * 3 + ("full_attention",)
    every = 2 * 8 + 3 * 8 * 16  # two norms, and an MLP
    keys, values = 2 * 3, 4 * 5
    # qkv, z, b and a; out_proj; filters of four; dt_bias and A_log; one norm for all heads
    delta = 8 * (2 * keys + values + values + 4 + 4) + values * 8 + 4 * (2 * keys + values) + 8 + 5
    attention = 8 * (2 * 8 + 4 + 4) + 8 * 8 + 2 * 4  # q with its gate, k, v; o; two norms of a head
    assert total_parameters(model) == 4 * every + 3 * delta + attention + 2 * 100 * 8 + 8
    assert attended_pairs(model, 4, skips=True) == 10  # one layer in four has attention


def test_qwen3_5_wrapper_is_read_as_its_text_model():
    inside = {key: value for key, value in QWEN3_5.items() if key != "model_type"}
    wrapped = {"model_type": "qwen3_5", "text_config": inside, "vision_config": {"depth": 2}}
    assert model_from_config(wrapped) == model_from_config(QWEN3_5)


def test_every_two_more_chunks_add_the_same_bytes_to_a_delta_net():
    """Exact to the byte, whether every round is simulated or one round represents several."""
    setup = TrainingSetup(mixed_precision=MixedPrecision.NO, optim=Optimizer.SGD)
    # multiples of 512 bytes
    even = {
        "hidden_size": 64,
        "head_dim": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    }
    model = model_from_config(QWEN3_5 | even)
    kept = [
        estimate(model, None, replace(setup, max_length=128 * pairs)).phases[Phase.FORWARD].bytes
        for pairs in range(1, 8)
    ]
    assert len({after - before for before, after in pairwise(kept)}) == 1


def test_assumptions_name_the_pytorch_fallback_of_the_kernels():
    said = " ".join(estimate(model_from_config(QWEN3_5), None, TrainingSetup()).assumptions)
    assert "gated delta-nets are counted as PyTorch runs them" in said
    assert "flash-linear-attention and causal-conv1d" in said


def test_liger_in_qwen3_5_is_refused():
    with pytest.raises(ValueError, match="use_liger_kernel is not modelled yet for qwen3_5_text"):
        estimate(model_from_config(QWEN3_5), None, TrainingSetup(use_liger_kernel=True))


def test_delta_net_products_match_a_hand_count():
    # three layers, four heads, 65 tokens in two chunks of 64; keys of 3, values of 5
    row = 64 * (3 + 3 + 5) + 64 * (3 + 5) // 2 + 3 * 3 * 5
    assert delta_products(model_from_config(QWEN3_5), 65) == 3 * 4 * 128 * row


def test_loop_over_chunks_takes_time_quadratic_in_length():
    wide = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_value_heads": 32}
    model, gpu = model_from_config(QWEN3_5 | wide), catalog.gpu("A100-SXM4-80GB")
    setups = [TrainingSetup(max_length=length) for length in (16_384, 32_768, 65_536)]
    short, middle, long = (delta_net_seconds(model, gpu, setup) for setup in setups)
    for end in (0, 1):
        assert middle[end] / short[end] == pytest.approx(4, rel=0.05)
        assert long[end] / middle[end] == pytest.approx(4, rel=0.03)


def delta_net_seconds(model: Model, gpu: Gpu, setup: TrainingSetup) -> tuple[float, float]:
    time = estimate(model, gpu, setup).time
    part = next(timed for timed in time.parts if timed.name == "delta-nets")
    return part.seconds.low, part.seconds.high

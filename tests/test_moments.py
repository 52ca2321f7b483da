"""The step: what a layer keeps, where phases peak, and that simulating one layer of each kind equals simulating all.

Bytes a layer keeps per token are compared with sums written out from the modeling code; see each test.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import (
    Component,
    Dtype,
    Method,
    MixedPrecision,
    Model,
    Phase,
    Strategy,
    TrainingSetup,
    estimate,
)
from estimator.answer import estimate as engine
from estimator.parallel.combinations import RULES
from estimator.passes import stack
from estimator.step import timeline as moments_module
from estimator.values.setup import FACETS
from tests import steps

H, F, V, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 512, 1536, 4096, 6, 8, 2, 64
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
TOKENS = 256
LLAMA = Model(
    model_type="llama",
    vocab_size=V,
    hidden_size=H,
    intermediate_size=F,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position_embeddings=8192,
)
BF16 = TrainingSetup(mixed_precision=MixedPrecision.NO, max_length=TOKENS)
FLASH_RNG = 2 * 512  # the kernel's seed and offset: two tensors at any length


EXPERTS, CHOSEN = 8, 2
MIXTRAL = replace(
    LLAMA,
    model_type="mixtral",
    num_experts=EXPERTS,
    num_experts_per_tok=CHOSEN,
    moe_intermediate_size=F,
    norm_topk_prob=True,
)
QWEN3_MOE = replace(
    MIXTRAL, model_type="qwen3_moe", norm_topk_prob=False, output_router_logits=True
)
ATTENTION_OF_A_LAYER = 16 * H + 4 * Q + 4 * KV + 4 * HEADS + 8
ROUTING = 4 * EXPERTS + 4 + CHOSEN * (4 * 8 + 4 + 4)
# float32 softmax over the experts and the sum of the selected shares; per selected expert four int64 indices (topk,
# order, token, way back) and two float32 shares (before their division, and in the order of the experts)


def kept_per_layer(setup: TrainingSetup, model: Model = LLAMA) -> int:
    return steps.kept_per_layer(setup, model)


def test_full_bfloat16_layer_keeps_16h_8f_4q_4kv_4heads_8_bytes_a_token():
    # two norms: 2 · (4h float32 + 2h normalised + 2h output) + 2 · 4; q, out: 4q; k, v: 4kv; log-sum-exp: 4 · heads;
    # gate, silu, up, product: 8f
    expected = 16 * H + 8 * F + 4 * Q + 4 * KV + 4 * HEADS + 8
    assert kept_per_layer(BF16) == TOKENS * expected + FLASH_RNG


def test_frozen_layer_under_lora_without_dropout_in_bfloat16_keeps_12h_8f_4q_4kv():
    lora = replace(
        BF16, method=Method.LORA, lora_dropout=0.0, autocast_adapter_dtype=False, lora_r=16
    )
    # the frozen norms do not keep their normalised input; each adapted linear keeps its input and A's output, 2r
    expected = 12 * H + 8 * F + 4 * Q + 4 * KV + 4 * HEADS + 8 + 7 * 2 * 16
    assert kept_per_layer(lora) == TOKENS * expected + FLASH_RNG


def test_lora_with_float32_adapters_keeps_more_than_full_fine_tuning():
    assert kept_per_layer(replace(BF16, method=Method.LORA)) > kept_per_layer(BF16)


def test_mixtral_layer_keeps_4h_8f_per_selected_expert_instead_of_8f():
    # gathered input 2h and output 2h of each expert; gate and up 4f, silu 2f, product 2f
    expected = ATTENTION_OF_A_LAYER + ROUTING + CHOSEN * (4 * H + 8 * F)
    assert kept_per_layer(BF16, MIXTRAL) == TOKENS * expected + FLASH_RNG


def test_frozen_experts_keep_neither_their_input_nor_the_product():
    lora = replace(
        BF16,
        method=Method.LORA,
        lora_dropout=0.0,
        autocast_adapter_dtype=False,
        lora_r=16,
        lora_target_modules=("q_proj", "k_proj", "v_proj", "o_proj"),
    )
    # the norms' 16h lose the normalised copies, 4h, and the output before the frozen router and experts, 2h
    attention = ATTENTION_OF_A_LAYER - 6 * H + 4 * 2 * 16
    expected = attention + ROUTING + CHOSEN * (2 * H + 6 * F)
    assert kept_per_layer(lora, MIXTRAL) == TOKENS * expected + FLASH_RNG
    all_linear = replace(lora, lora_target_modules="all-linear")
    # PEFT merges B @ A into the router and every expert: a copy of all these weights in each layer
    folded = 2 * (EXPERTS * 3 * H * F + EXPERTS * H)
    trained = expected + 2 * H + CHOSEN * (2 * H + 2 * F)
    assert kept_per_layer(all_linear, MIXTRAL) == TOKENS * trained + FLASH_RNG + folded


def test_expert_count_affects_only_what_the_router_keeps():
    more = replace(MIXTRAL, num_experts=4 * EXPERTS)
    router = TOKENS * 4 * 3 * EXPERTS
    assert kept_per_layer(BF16, more) - kept_per_layer(BF16, MIXTRAL) == router


def test_checkpointed_layer_keeps_only_its_input():
    assert kept_per_layer(replace(BF16, gradient_checkpointing=True)) == TOKENS * 2 * H


def test_float32_under_autocast_keeps_its_input_in_float32_when_checkpointed():
    autocast = replace(
        BF16, dtype=Dtype.FLOAT32, mixed_precision=MixedPrecision.BF16, gradient_checkpointing=True
    )
    # at the end of backward only; in the loss phase the cache of 16-bit weights is also alive
    linears = 2 * H * (Q + KV) + 3 * H * F
    assert kept_per_layer(autocast) + 0 >= TOKENS * 4 * H
    loss = [
        estimate(replace(LLAMA, num_hidden_layers=n), None, autocast).phases[Phase.LOSS]
        for n in (LAYERS, LAYERS + 1)
    ]
    static = (Component.WEIGHTS, Component.OPTIMIZER_STATES)
    rise = [moment.bytes - sum(moment.resident[c] for c in static) for moment in loss]
    assert rise[1] - rise[0] == TOKENS * 4 * H + 2 * linears


def test_log_softmax_backward_is_the_peak_of_a_short_model_with_a_large_vocabulary():
    model = replace(LLAMA, vocab_size=128_256, num_hidden_layers=1)
    result = estimate(model, None, replace(BF16, method=Method.LORA))
    assert result.peak.phase is Phase.BACKWARD
    assert "log-softmax" in result.peak.name
    assert result.peak.resident[Component.LOGITS] == 3 * 4 * TOKENS * 128_256


def test_accumulation_adds_all_gradients_to_the_second_micro_batch():
    once = estimate(LLAMA, None, BF16)
    twice = estimate(LLAMA, None, replace(BF16, gradient_accumulation_steps=2))
    gradients = once.phases[Phase.OPTIMIZER_STEP].resident[Component.GRADIENTS]
    assert twice.phases[Phase.LOSS].bytes - once.phases[Phase.LOSS].bytes == gradients
    more = estimate(LLAMA, None, replace(BF16, gradient_accumulation_steps=16))
    assert more.peak.bytes == twice.peak.bytes, "accumulation beyond two takes no more"


SETUPS = {
    "full": BF16,
    "full, checkpointed": replace(BF16, gradient_checkpointing=True),
    "full, float32 under autocast": replace(
        BF16, dtype=Dtype.FLOAT32, mixed_precision=MixedPrecision.BF16
    ),
    "full, float32 under autocast, checkpointed": replace(
        BF16, dtype=Dtype.FLOAT32, mixed_precision=MixedPrecision.BF16, gradient_checkpointing=True
    ),
    "lora": replace(BF16, method=Method.LORA),
    "lora, checkpointed": replace(BF16, method=Method.LORA, gradient_checkpointing=True),
    "qlora, padded": replace(BF16, method=Method.QLORA, padded=True),
    "accumulated": replace(BF16, gradient_accumulation_steps=4),
}
WINDOWED = replace(
    LLAMA,
    model_type="gemma3_text",
    num_hidden_layers=13,
    sliding_window=128,
    tie_word_embeddings=True,
    layer_types=tuple("full_attention" if i % 6 == 5 else "sliding_attention" for i in range(13)),
)


def forget() -> None:
    for remembers in (estimate, engine.per_structure, moments_module.plan, moments_module._plan):
        remembers.cache_clear()


@pytest.mark.parametrize(
    "model",
    [LLAMA, WINDOWED, QWEN3_MOE],
    ids=["llama", "two kinds of layers", "experts and their balance"],
)
@pytest.mark.parametrize("name", SETUPS)
def test_simulating_one_layer_of_each_kind_equals_simulating_all(name, model, monkeypatch):
    setup = SETUPS[name]
    if model.num_experts:
        setup = replace(setup, lora_dropout=0.0)  # required by PEFT for adapted experts
    few = estimate(model, None, setup)
    forget()
    monkeypatch.setattr(stack, "played_layers", lambda kinds: list(range(len(kinds))))
    monkeypatch.setattr(stack, "stand_ins", lambda kinds, chosen: list(chosen))
    every = estimate(model, None, setup)
    forget()
    assert [(m.phase, m.bytes) for m in few.moments] == [(m.phase, m.bytes) for m in every.moments]
    assert few.phases == every.phases


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.LOSS, Phase.BACKWARD])
def test_tensors_held_at_a_moment_add_up_to_its_components(name, phase):
    answer = estimate(WINDOWED, None, SETUPS[name])
    made: dict[Component, int] = {}
    for held in answer.timeline.held(phase):
        assert held.tensors > 0
        made[held.component] = made.get(held.component, 0) + held.bytes
    beside = {
        Component.WEIGHTS,
        Component.ADAPTERS,
        Component.OPTIMIZER_STATES,
        Component.WORKSPACE,
    }
    moment = dict(answer.phases[phase].resident)
    if SETUPS[name].batch.gradient_accumulation_steps > 1:
        made[Component.GRADIENTS] = moment[Component.GRADIENTS]  # of the micro-steps before
    assert made == {part: size for part, size in moment.items() if part not in beside}


def test_a_layer_keeps_its_operators_outputs():
    timeline = estimate(LLAMA, None, BF16).timeline
    by_operation = {held.operation: held.bytes for held in timeline.kept_by_a_layer()}
    assert by_operation["mlp.gate_proj"] == 2 * TOKENS * F
    assert sum(by_operation.values()) == kept_per_layer(BF16)


class Watched:
    """A setup that records which keys are read from it or from its facets."""

    def __init__(self, setup: object, asked: set[str] | None = None) -> None:
        self.setup = setup
        self.asked: set[str] = set() if asked is None else asked

    def __getattr__(self, name: str) -> object:
        found = getattr(self.setup, name)
        if name in FACETS:
            return Watched(found, self.asked)
        self.asked.add(name)
        return found


@pytest.mark.parametrize("strategy", Strategy)
def test_no_refusal_reads_keys_excluded_from_a_structure(strategy):
    watched = Watched(TrainingSetup(strategy=strategy, num_gpus=8))
    for rule in RULES:
        rule.breaks(watched)
    assert "strategy" in watched.asked
    assert not watched.asked & moments_module.STRETCHING - {"gradient_accumulation_steps"}

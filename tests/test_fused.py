"""Fused kernels and losses: sums by hand from the kernels' source, and heights of the real libraries' steps.

``TRACED``: transformers 5.23, peft 0.21 and torch 2.13 with liger-kernel 0.8.5 run one training step on a device that
counts allocations and computes nothing (the kernels' launches do nothing; all that they write, Python allocates).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import (
    AttnImplementation,
    Component,
    Dtype,
    Gpu,
    Loss,
    Method,
    MixedPrecision,
    Model,
    Optimizer,
    Phase,
    TrainingSetup,
    catalog,
)
from estimator.answer.estimate import estimate
from estimator.search.remedies import remedies
from estimator.tape import fused
from estimator.tape.tape import GRADIENTS, LOGITS, Leaf, Parameter, Tape, leaf_node
from tests import steps
from tests.tapes import played

H, F, V, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 512, 1408, 32000, 3, 8, 4, 64
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
T = 512
LLAMA = Model(
    model_type="llama",
    vocab_size=V,
    hidden_size=H,
    intermediate_size=F,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position_embeddings=4096,
)
BF16 = TrainingSetup(mixed_precision=MixedPrecision.NO, max_length=T, use_liger_kernel=True)
FLASH_RNG = 2 * 512  # the kernel's seed and offset: two tensors at any length


def kept_per_layer(setup: TrainingSetup, model: Model = LLAMA) -> int:
    return steps.kept_per_layer(setup, model)


# --- what a layer keeps -------------------------------------------------------------------------


def test_a_liger_layer_keeps_8h_6f_4q_4kv_4heads_8_bytes_a_token():
    # two norms: 2 · (2h input + 2h output) + 2 · 4 for the float32 deviation; q, out: 4q; k, v: 4kv; log-sum-exp:
    # 4 · heads; gate, up, product: 6f. Without Liger 16h and 8f.
    expected = 8 * H + 6 * F + 4 * Q + 4 * KV + 4 * HEADS + 8
    assert kept_per_layer(BF16) == T * expected + FLASH_RNG


def test_fused_halves_are_copied_for_the_kernel_and_the_fused_output_is_freed():
    # Phi-3: gate and up are copies, 4f, the product 2f; q and k are copies too, 2q + 2kv, while v holds the fused
    # q + 2kv whole; out: 2q
    phi3 = replace(LLAMA, model_type="phi3")
    attention = 2 * (Q + 2 * KV) + 2 * (Q + KV) + 2 * Q + 4 * HEADS
    assert kept_per_layer(BF16, phi3) == T * (8 * H + 6 * F + attention + 8) + FLASH_RNG


def test_liger_replaces_the_head_norms_of_qwen3_but_not_of_hunyuan():
    # Qwen3's norms of queries and keys keep input 2 and output 2 an element and 4 a head; Llama's of transformers keep
    # 4 float32, 2 normalised and 2 of output; Hunyuan's come after rotary, so that nothing else keeps their input
    qwen3, hunyuan = (
        replace(LLAMA, model_type=name, qk_norm=True) for name in ("qwen3", "hunyuan_v1_dense")
    )
    plain = kept_per_layer(BF16)
    heads = 4 * (HEADS + KV_HEADS)
    assert kept_per_layer(BF16, qwen3) - plain == T * (2 * (Q + KV) + heads)
    assert kept_per_layer(BF16, hunyuan) - plain == T * (6 * (Q + KV) + heads)


def test_flash_attention_keeps_the_unpadded_output_too_and_the_indices():
    # in addition to what a packed layer keeps: the kernel's output without padding, 2q, and an int64 index a token
    packed = replace(BF16, attn_implementation=AttnImplementation.FLASH_ATTENTION_2)
    padded = replace(packed, padded=True)
    assert kept_per_layer(padded) - kept_per_layer(packed) == T * (2 * Q + 8)


@pytest.mark.parametrize("kernel", [AttnImplementation.SDPA, AttnImplementation.FLASH_ATTENTION_2])
def test_flash_attention_keeps_padded_heads_and_the_sliced_output(kernel):
    # heads of 36 are kept as heads of 40, 2 (q + k + v + out); the slice of the output is a copy, 2q, which
    # the next product saves
    setup = replace(BF16, attn_implementation=kernel, use_liger_kernel=False)
    whole, cut = (kept_per_layer(setup, replace(LLAMA, head_dim=width)) for width in (40, 36))
    assert cut - whole == T * 2 * HEADS * 36


# --- head and loss in one -----------------------------------------------------------------------


def head_on_a_tape(*, trained: bool, autocast: int | None = None, width: int = 2) -> Tape:
    """Liger's loss alone: T hidden states, a head of V · H."""
    tape = Tape(autocast_width=autocast)
    hidden = tape.new(T * H, width)
    hidden.requires_grad, hidden.node = True, leaf_node(Leaf(0))
    weight = Parameter("head", V * H, width, trainable=trained)
    tape.enter(Phase.LOSS, "loss")
    loss = fused.linear_cross_entropy(tape, hidden, weight, H, V)
    del hidden
    tape.enter(Phase.BACKWARD, "before")
    tape.backward(loss)
    return tape


def test_logits_exist_for_one_chunk_and_forward_computes_the_head_s_gradient():
    # ⌈32000 / 512⌉ = 63 chunks' worth, ⌈512 / 63⌉ = 9 tokens, the next power of two: 16
    segments = [run for run in played(head_on_a_tape(trained=True)) if run.mark.phase is Phase.LOSS]
    (loss,) = segments
    assert loss.rise[LOGITS] == 16 * V * 2
    assert loss.rise[GRADIENTS] == V * H * 2
    # kept until backward: both gradients and the loss, instead of the hidden states
    assert sum(loss.net) == V * H * 2 + T * H * 2 + 512 - T * H * 2


def test_a_frozen_head_has_no_gradient():
    (loss,) = [run for run in played(head_on_a_tape(trained=False)) if run.mark.phase is Phase.LOSS]
    assert loss.rise[GRADIENTS] == 0


def test_backward_of_the_fused_loss_allocates_only_the_gradient_of_the_loss():
    segments = played(head_on_a_tape(trained=True))
    backward = [segment for segment in segments if segment.mark.phase is Phase.BACKWARD]
    assert sum(sum(segment.rise) for segment in backward) <= 512


def test_under_autocast_a_float32_head_is_cast_twice_and_one_cast_is_kept():
    # the second chunk: the kept cast, another for the product, and 16 rows each of hidden states and logits
    (loss,) = [
        run
        for run in played(head_on_a_tape(trained=True, autocast=2, width=4))
        if run.mark.phase is Phase.LOSS
    ]
    casts, rows = 2 * V * H * 2, 16 * H * 2 + 16 * V * 2
    labels, sums = 8 * (T + 64) + 8 * T, 4 * T + T  # 513 labels of 8 bytes are 4,608 as allocated
    assert sum(loss.rise) == casts + rows + V * H * 4 + T * H * 4 + labels + sums


def test_a_tied_head_s_gradient_accumulates_the_embedding_s_in_place():
    # without Liger three tensors of V · h coexist (the head's is a view, see test_tape); here only two
    tied = replace(LLAMA, tie_word_embeddings=True)
    end = estimate(tied, None, BF16).phases[Phase.BACKWARD]
    gradients = (
        estimate(tied, None, BF16).phases[Phase.OPTIMIZER_STEP].resident[Component.GRADIENTS]
    )
    other = (
        end.resident[Component.GRADIENTS] + end.resident.get(Component.TEMPORARIES, 0) - gradients
    )
    assert V * H * 2 <= other < 2 * V * H * 2


# --- losses in chunks ---------------------------------------------------------------------------


def stretch(setup: TrainingSetup, phase: Phase, component: Component, model: Model = LLAMA) -> int:
    """Bytes of a component at the highest moment of a phase."""
    return estimate(model, None, setup).phases[phase].resident.get(component, 0)


def test_trl_has_one_tile_of_logits_for_any_vocabulary():
    # 511 tokens have a label; the tile is 32,768 words wide even for a smaller vocabulary
    setup = replace(BF16, loss=Loss.CHUNKED_TRL)
    tile = (T - 1) * 32768 * 2
    assert stretch(setup, Phase.LOSS, Component.LOGITS) == tile
    larger = replace(LLAMA, vocab_size=8 * V)
    assert stretch(setup, Phase.LOSS, Component.LOGITS, larger) == tile


def test_trl_accumulates_the_head_s_gradient_in_float32_beside_its_cast():
    # the tile, T - 1 hidden states' gradients and the head's, in float32 and in bfloat16
    setup = replace(BF16, loss=Loss.CHUNKED_TRL)
    longer = replace(LLAMA, vocab_size=2 * V)
    heights = [
        estimate(model, None, setup).phases[Phase.BACKWARD].bytes for model in (LLAMA, longer)
    ]
    # V rows more: weights in the embedding and the head and both of their float32 sums' widths; AdamW's states, 4
    added = V * H * (2 + 2 + 4 + 2) + 2 * V * H * 4
    assert heights[1] - heights[0] == added


def test_torchtune_keeps_the_log_softmax_of_every_chunk_and_upcasts_one():
    # 512 tokens in 8 chunks: all logits in bfloat16 and all log-softmax in float32, and one chunk in float32
    setup = replace(BF16, loss=Loss.CHUNKED_TORCHTUNE)
    assert stretch(setup, Phase.LOSS, Component.LOGITS) == T * V * 2 + T * V * 4 + T // 8 * V * 4


# --- the real libraries -------------------------------------------------------------------------

GEMMA = replace(LLAMA, model_type="gemma", tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh")
GEMMA2 = replace(
    GEMMA,
    model_type="gemma2",
    sliding_window=4096,
    layer_types=("sliding_attention", "full_attention", "full_attention"),
    attn_logit_softcapping=True,
    final_logit_softcapping=True,
)
PHI3 = replace(LLAMA, model_type="phi3")
QWEN3 = replace(LLAMA, model_type="qwen3", qk_norm=True)
MIXTRAL = replace(
    LLAMA,
    model_type="mixtral",
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=F,
    norm_topk_prob=True,
)
QWEN3_MOE = replace(
    MIXTRAL, model_type="qwen3_moe", moe_intermediate_size=256, norm_topk_prob=False
)
GPT_OSS = replace(
    MIXTRAL,
    model_type="gpt_oss",
    norm_topk_prob=False,
    attention_bias=True,
    attention_output_bias=True,
    sliding_window=4096,
    layer_types=("sliding_attention", "full_attention", "full_attention"),
)
SGD = replace(BF16, optim=Optimizer.SGD)
FLOAT32 = replace(SGD, dtype=Dtype.FLOAT32, mixed_precision=MixedPrecision.BF16)
LORA = replace(SGD, method=Method.LORA)
ATTENTION = replace(LORA, lora_target_modules=("q_proj", "v_proj"), lora_dropout=0.0)
LONG = replace(SGD, gradient_checkpointing=True, per_device_train_batch_size=3, max_length=700)
EAGER = replace(SGD, attn_implementation=AttnImplementation.EAGER)
TRL, TORCHTUNE = Loss.CHUNKED_TRL, Loss.CHUNKED_TORCHTUNE
TRACED = {
    "llama": (LLAMA, SGD, 142_807_040, 167_014_400),
    "llama, LoRA": (LLAMA, LORA, 138_143_744, 139_593_728),
    "llama, float32 under autocast": (LLAMA, FLOAT32, 351_628_288, 334_014_464),
    "llama, float32": (LLAMA, replace(SGD, dtype=Dtype.FLOAT32), 379_322_368, 334_014_464),
    "llama, checkpointed": (LLAMA, LONG, 133_294_592, 170_430_464),
    "qwen3": (QWEN3, SGD, 145_243_136, 167_020_544),
    "phi3, LoRA": (PHI3, LORA, 128_641_024, 134_580_224),
    "phi3, checkpointed": (PHI3, LONG, 133_294_592, 178_127_872),
    "gemma, tied": (GEMMA, SGD, 110_039_552, 134_246_912),
    "gemma2, eager": (GEMMA2, EAGER, 165_056_000, 173_458_944),
    "mixtral": (MIXTRAL, SGD, 186_194_432, 244_895_744),
    "qwen3_moe, frozen experts": (QWEN3_MOE, ATTENTION, 103_677_440, 107_890_176),
    "gpt_oss, eager": (GPT_OSS, EAGER, 253_080_064, 258_409_984),
    "trl": (LLAMA, replace(SGD, loss=TRL), 142_522_880, 241_857_024),
    "trl, LoRA": (LLAMA, replace(LORA, loss=TRL), 170_627_584, 171_657_728),
    "trl, float32 under autocast": (LLAMA, replace(FLOAT32, loss=TRL), 286_305_792, 351_832_576),
    "trl, tied": (GEMMA, replace(SGD, loss=TRL), 109_755_392, 209_089_536),
    "torchtune": (LLAMA, replace(SGD, loss=TORCHTUNE), 214_985_216, 231_495_680),
}


@pytest.mark.parametrize("name", TRACED)
def test_loss_and_backward_match_the_real_step_to_one_part_in_three_thousand(name):
    model, setup, loss, backward = TRACED[name]
    phases = estimate(model, None, setup).phases
    for phase, height in ((Phase.LOSS, loss), (Phase.BACKWARD, backward)):
        moment = phases[phase]
        estimated = moment.bytes - moment.resident[Component.WORKSPACE]
        assert abs(estimated - height) < height / 3000


# --- what Liger refuses and what it does not replace --------------------------------------------

GPT2 = catalog.model("openai-community/gpt2")


def test_a_family_unknown_to_liger_is_unchanged_and_reported():
    without = estimate(GPT2, None, replace(BF16, use_liger_kernel=False))
    told = estimate(GPT2, None, BF16)
    assert told.phases == without.phases
    assert (
        "Liger 0.8.5 has no kernels for gpt2: Trainer logs this and trains without them."
        in told.assumptions
    )


@pytest.mark.parametrize("loss", [loss for loss in Loss if loss.sentence])
def test_a_non_standard_loss_is_reported(loss):
    of_preferences = loss in (Loss.SELECTIVE, Loss.SELECTIVE_TRL)
    objective = "dpo" if of_preferences else "sft"
    setup = replace(BF16, use_liger_kernel=False, loss=loss, objective=objective)
    assert loss.sentence in estimate(LLAMA, None, setup).assumptions


def test_granite_s_logits_are_not_chunked_and_hold_their_own_gradient():
    # bfloat16 twice (they are divided by a scalar) and float32, overwritten by the gradient; without Liger the
    # log-softmax adds 4 bytes an element
    granite = replace(LLAMA, model_type="granite")
    assert stretch(BF16, Phase.LOSS, Component.LOGITS, granite) == T * V * (2 + 4)
    assert stretch(
        replace(BF16, use_liger_kernel=False), Phase.LOSS, Component.LOGITS, granite
    ) == T * V * (2 + 4 + 4)


def test_adapters_on_liger_s_experts_are_refused_because_the_kernel_fails():
    # seen with peft 0.21: 'ParamWrapper' object has no attribute 'hidden_dim'
    with pytest.raises(ValueError, match=r"^lora_target_modules: Liger's kernel fails on experts"):
        estimate(MIXTRAL, None, replace(LORA, lora_dropout=0.0))


@pytest.mark.parametrize(
    ("model", "keys"),
    [(LLAMA, {"use_liger_kernel": True}), (GPT2, {"loss": Loss.CHUNKED_TRL})],
)
def test_a_fused_loss_is_proposed_when_the_logits_do_not_fit(model, keys):
    setup = replace(BF16, use_liger_kernel=False, per_device_train_batch_size=64)
    card = Gpu(
        name="one's own", memory_bytes=estimate(model, None, setup).need_high_bytes * 9 // 10
    )
    (found,) = [
        remedy for remedy in remedies(estimate(model, card, setup), []) if dict(remedy.keys) == keys
    ]
    after = estimate(model, card, replace(setup, **dict(found.keys)))
    assert after.need_high_bytes == found.need_high_bytes <= card.memory_bytes

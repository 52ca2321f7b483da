"""Fused kernels and losses: sums by hand from the kernels' source, and heights of the real library's own step.

``TRACED``: transformers 5.23, peft 0.21 and torch 2.13 with liger-kernel 0.8.5 run one training step on a device that
counts allocations and computes nothing (the kernels' launches do nothing; all that they write, Python allocates).
"""

from __future__ import annotations

from dataclasses import replace

from estimator import (
    AttnImplementation,
    Component,
    Loss,
    MixedPrecision,
    Model,
    Phase,
    TrainingSetup,
)
from estimator.engine import estimate
from estimator.memory import fused
from estimator.memory.tape import GRADIENTS, LOGITS, Leaf, Parameter, Tape, leaf_node
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
FLASH_RNG = 2 * 512  # the kernel's seed and offset, two tensors, whatever the length


def kept_per_layer(setup: TrainingSetup, model: Model = LLAMA) -> int:
    """What one more layer adds to the height of the loss, beside its weights and states."""
    heights = []
    for layers in (LAYERS, LAYERS + 1):
        loss = estimate(replace(model, num_hidden_layers=layers), None, setup).phases[Phase.LOSS]
        heights.append(loss.resident[Component.ACTIVATIONS])
    return heights[1] - heights[0]


# --- what a layer keeps -------------------------------------------------------------------------


def test_a_liger_layer_keeps_8h_6f_4q_4kv_4heads_8_bytes_a_token():
    # two norms: 2 · (2h input + 2h output) + 2 · 4 for the float32 deviation; q, out: 4q; k, v: 4kv; log-sum-exp:
    # 4 · heads; gate, up, product: 6f. Without Liger 16h and 8f.
    expected = 8 * H + 6 * F + 4 * Q + 4 * KV + 4 * HEADS + 8
    assert kept_per_layer(BF16) == T * expected + FLASH_RNG


def test_fused_halves_are_copied_for_the_kernel_and_the_whole_is_let_go():
    # Phi-3: gate and up are copies, 4f, the product 2f; q and k are copies too, 2q + 2kv, while v holds the fused
    # q + 2kv whole; out: 2q
    phi3 = replace(LLAMA, model_type="phi3")
    attention = 2 * (Q + 2 * KV) + 2 * (Q + KV) + 2 * Q + 4 * HEADS
    assert kept_per_layer(BF16, phi3) == T * (8 * H + 6 * F + attention + 8) + FLASH_RNG


def test_liger_leaves_the_head_norms_of_hunyuan_and_takes_those_of_qwen3():
    # Qwen3's norms of queries and keys keep input 2 and output 2 an element and 4 a head; Llama's of transformers keep
    # 4 float32, 2 normalised and 2 of output; Hunyuan's follow the rotation, so that nothing else keeps their input
    qwen3, hunyuan = (
        replace(LLAMA, model_type=name, qk_norm=True) for name in ("qwen3", "hunyuan_v1_dense")
    )
    plain = kept_per_layer(BF16)
    heads = 4 * (HEADS + KV_HEADS)
    assert kept_per_layer(BF16, qwen3) - plain == T * (2 * (Q + KV) + heads)
    assert kept_per_layer(BF16, hunyuan) - plain == T * (6 * (Q + KV) + heads)


def test_flash_attention_keeps_the_unpadded_output_too_and_the_indices():
    # beside what a packed layer keeps: the kernel's output without padding, 2q, and an int64 index a token
    packed = replace(BF16, attn_implementation=AttnImplementation.FLASH_ATTENTION_2)
    padded = replace(packed, padded=True)
    assert kept_per_layer(padded) - kept_per_layer(packed) == T * (2 * Q + 8)


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


def test_logits_exist_for_one_chunk_and_the_head_s_gradient_is_made_in_forward():
    # ⌈32000 / 512⌉ = 63 chunks' worth, ⌈512 / 63⌉ = 9 tokens, the next power of two: 16
    segments = [it for it in played(head_on_a_tape(trained=True)) if it.mark.phase is Phase.LOSS]
    (loss,) = segments
    assert loss.rise[LOGITS] == 16 * V * 2
    assert loss.rise[GRADIENTS] == V * H * 2
    # kept until backward: both gradients and the loss, in place of the hidden states
    assert sum(loss.net) == V * H * 2 + T * H * 2 + 512 - T * H * 2


def test_a_frozen_head_has_no_gradient():
    (loss,) = [it for it in played(head_on_a_tape(trained=False)) if it.mark.phase is Phase.LOSS]
    assert loss.rise[GRADIENTS] == 0


def test_backward_of_the_fused_loss_allocates_nothing_but_the_loss_s_own_gradient():
    segments = played(head_on_a_tape(trained=True))
    backward = [it for it in segments if it.mark.phase is Phase.BACKWARD]
    assert sum(sum(it.rise) for it in backward) <= 512


def test_under_autocast_a_float32_head_is_cast_twice_and_one_cast_stays():
    # the second chunk: the cast that stays, another for the product, 16 rows of each of hidden states and logits
    (loss,) = [
        it
        for it in played(head_on_a_tape(trained=True, autocast=2, width=4))
        if it.mark.phase is Phase.LOSS
    ]
    casts, rows = 2 * V * H * 2, 16 * H * 2 + 16 * V * 2
    labels, sums = 8 * (T + 64) + 8 * T, 4 * T + T  # 513 labels of 8 bytes are 4,608 as allocated
    assert sum(loss.rise) == casts + rows + V * H * 4 + T * H * 4 + labels + sums


def test_a_tied_head_s_gradient_takes_the_embedding_s_in_place():
    # without Liger three of V · h meet (the head's is a view): see test_tape; here the two, and no third
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


def test_trl_has_one_tile_of_logits_whatever_the_vocabulary():
    # 511 tokens have a label; the tile is 32,768 words wide even where the vocabulary is smaller
    setup = replace(BF16, loss=Loss.CHUNKED_TRL)
    tile = (T - 1) * 32768 * 2
    assert stretch(setup, Phase.LOSS, Component.LOGITS) == tile
    larger = replace(LLAMA, vocab_size=8 * V)
    assert stretch(setup, Phase.LOSS, Component.LOGITS, larger) == tile


def test_trl_sums_the_head_s_gradient_in_float32_beside_its_cast():
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

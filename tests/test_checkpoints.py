"""Partial, offloaded and selective checkpointing, and TRL's activation offloading.

tests/test_reference.py compares whole steps with traced ones ("trl sft").
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import Estimate, Loss, Method, Phase, TrainingSetup, catalog, estimate, remedies
from estimator.passes.stack import is_checkpointed
from estimator.tape import operators as op
from estimator.tape.offloading import Offloading
from estimator.tape.tape import ACTIVATIONS, Parameter, Tape, Tensor
from estimator.time.flops import work
from estimator.time.offload_time import host_copies
from estimator.values.specs import AttnImplementation, ModelClass
from tests.tapes import alive

LLAMA = catalog.model("meta-llama/Llama-3.2-1B")
LAYERS, HIDDEN, QUERIES, HEADS = 16, 2048, 2048, 32
GPU = catalog.gpu("A100-SXM4-80GB")
FULL = TrainingSetup(
    max_length=2048, per_device_train_batch_size=2, gradient_checkpointing=True, loss=Loss.LIGER
)
TOKENS = 2 * 2048


def result(**keys: object) -> Estimate:
    return estimate(LLAMA, GPU, replace(FULL, **keys))


def loss_height(**keys: object) -> int:
    return result(**keys).phases[Phase.LOSS].bytes


def test_every_second_layer_is_checkpointed_starting_with_the_first():
    setup = replace(FULL, checkpoint_every_n_layers=2)
    found = [is_checkpointed(LLAMA, setup, index) for index in range(4)]
    assert found == [True, False, True, False]


def test_layer_count_starts_at_the_vision_tower():
    """SigLIP's 27 layers precede Gemma 3's text layers: 27 % 4 is 3, so the text's second layer is index 28."""
    gemma = catalog.model("google/gemma-3-4b-it")
    setup = replace(FULL, checkpoint_every_n_layers=4)
    found = [is_checkpointed(gemma, setup, index) for index in range(6)]
    assert found == [False, True, False, False, False, True]
    alone = replace(setup, model_class=ModelClass.TEXT)
    assert [is_checkpointed(gemma, alone, index) for index in range(2)] == [True, False]


def test_a_layer_without_a_checkpoint_keeps_all_its_activations():
    """Eight of sixteen layers keep theirs: half the increase from all checkpoints to none."""
    every, second, none = (
        loss_height(),
        loss_height(checkpoint_every_n_layers=2),
        loss_height(gradient_checkpointing=False),
    )
    assert second - every == (none - every) // 2
    assert none > every


def test_offloaded_checkpoints_leave_no_layer_activations_on_the_gpu():
    """A checkpoint in bfloat16 is 2 · T · h bytes; the last layer's output is the final norm's input."""
    assert loss_height() - loss_height(offload_checkpoints=True) == LAYERS * 2 * TOKENS * HIDDEN


def test_host_holds_the_checkpoints_and_each_crosses_the_link_twice():
    setup = replace(FULL, offload_checkpoints=True, gradient_accumulation_steps=3)
    size = LAYERS * 2 * TOKENS * HIDDEN
    assert host_copies(LLAMA, setup) == (size, size)
    parts = {part.name: part for part in estimate(LLAMA, GPU, setup).time.parts}
    # both directions, three micro-steps, at 0.88 and 0.35 of PCIe 4 x16: 16 lanes of 16 GT/s, 128 of 130 bits
    pcie = 16 * 16e9 * 128 / 130 / 8
    part = parts["saved tensors to the host and back"]
    assert part.seconds.low == pytest.approx(2 * 3 * size / (0.88 * pcie))
    assert part.seconds.high == pytest.approx(2 * 3 * size / (0.35 * pcie))
    without = estimate(LLAMA, GPU, replace(setup, save_strategy="no"))
    assert without.host_bytes >= size


def test_page_locked_blocks_are_rounded_up_to_powers_of_two():
    """1,000 tokens: a checkpoint of 4,096,000 bytes takes 4 MiB."""
    setup = replace(FULL, offload_checkpoints=True, per_device_train_batch_size=1, max_length=1000)
    assert host_copies(LLAMA, setup).pinned == LAYERS * 2**22


def test_every_rank_on_a_host_has_its_own_copies():
    keys = {"num_gpus": 4, "strategy": "ddp", "save_strategy": "no", "offload_checkpoints": True}
    large = replace(FULL, per_device_train_batch_size=64)  # more than loading needs
    size = LAYERS * 2 * 32 * TOKENS * HIDDEN
    assert estimate(LLAMA, GPU, replace(large, **keys)).host_bytes == 4 * size


def test_selective_checkpoints_keep_attention_output_and_log_sum():
    """2 bytes per element of the output, 4 per head, and one 512-byte block each for the kernel's seed and offset."""
    more = LAYERS * (2 * QUERIES * TOKENS + 4 * HEADS * TOKENS + 2 * 512)
    assert loss_height(selective_checkpointing=True) - loss_height() == more


def test_selective_checkpoints_of_eager_attention_keep_nothing_extra():
    eager = {"attn_implementation": AttnImplementation.EAGER}
    assert loss_height(selective_checkpointing=True, **eager) == loss_height(**eager)


def test_only_discarded_activations_are_recomputed():
    def again(**keys: object) -> tuple[float, float]:
        found = work(LLAMA, replace(FULL, **keys), 2048, pairs=1000)
        return found.products_again, found.attention_again

    products, attention = again()
    assert again(checkpoint_every_n_layers=2) == (products / 2, attention / 2)
    assert again(selective_checkpointing=True) == (products, 0.0)


def saved_one_after_another(elements: int, count: int) -> tuple[Tape, list[Tensor]]:
    """This many tensors of two bytes an element, each saved by a product and freed by its producer."""
    tape = Tape(autocast_width=None, saved_tensor_hooks=Offloading)
    weight = Parameter("w", 1, 2, trainable=True)
    held = []
    for _ in range(count):
        held.append(op.multiply(tape, tape.new(elements, 2), weight))
        held[-1].storage = None
    return tape, held


def test_trl_offloads_all_but_the_last_five_saved_tensors():
    """Each product saves only its input, 2,048 bytes: ``max_fwd_stash_size``."""
    tape, _ = saved_one_after_another(1024, 8)
    assert len(tape.host_copies) == 8
    assert alive(tape)[ACTIVATIONS] == 5 * 2048


def test_trl_does_not_offload_tensors_below_1024_bytes():
    # trl 1.16, models/activation_offloading.py: num_bytes >= min_offload_size
    tape, _ = saved_one_after_another(511, 8)  # 1,022 bytes
    assert not tape.host_copies
    assert alive(tape)[ACTIVATIONS] == 8 * 1024
    tape, _ = saved_one_after_another(512, 8)  # 1,024
    assert len(tape.host_copies) == 8


def test_a_tensor_saved_again_immediately_stays_on_the_gpu():
    """The input of q, k and v: its first copy to the host saves nothing."""
    tape = Tape(autocast_width=None, saved_tensor_hooks=Offloading)
    weight = Parameter("w", 1, 2, trainable=True)
    x = tape.new(4096, 2)
    outputs = [op.multiply(tape, x, weight) for _ in range(3)]
    for out in outputs:
        out.storage = None
    del x
    for _ in range(6):
        outputs.append(op.multiply(tape, tape.new(1024, 2), weight))
        outputs[-1].storage = None
    assert len(tape.host_copies) == 1 + 6
    assert alive(tape)[ACTIVATIONS] == 2 * 4096 + 5 * 2048


def test_activation_offloading_keeps_little_and_does_not_affect_evaluation():
    keys = {"loss": Loss.CHUNKED_TRL, "gradient_checkpointing": False, "eval_strategy": "epoch"}
    plain, moved = result(**keys), result(**keys, activation_offloading=True)
    assert moved.phases[Phase.LOSS].bytes < 0.7 * plain.phases[Phase.LOSS].bytes
    assert moved.phases[Phase.EVALUATION] == plain.phases[Phase.EVALUATION]


def test_with_adapters_the_embedding_output_and_its_gradient_outlive_the_step():
    """TRL's hooks keep the last node alive: 2 · T · h bytes each, also during the optimizer step (traced)."""
    keys = {"method": Method.LORA, "loss": Loss.CHUNKED_TRL}
    plain, moved = result(**keys), result(**keys, activation_offloading=True)
    steps = [answer.phases[Phase.OPTIMIZER_STEP].bytes for answer in (plain, moved)]
    assert steps[1] - steps[0] == 2 * 2 * TOKENS * HIDDEN


def test_offloaded_checkpoints_are_proposed_when_they_help():
    mistral = catalog.model("mistralai/Mistral-7B-v0.1")
    setup = TrainingSetup(
        method=Method.LORA,
        gradient_checkpointing=True,
        max_length=65_536,
        loss=Loss.CHUNKED_TRL,
        checkpoint_every_n_layers=1,
    )
    short = estimate(mistral, catalog.gpu("A100-PCIE-40GB"), setup)
    offered = [remedy for remedy in remedies(short, []) if "offload_checkpoints" in remedy.keys]
    assert offered, [remedy.title for remedy in remedies(short, [])]
    changed = estimate(mistral, short.gpu, replace(setup, **offered[0].keys))
    assert changed.need_high_bytes == offered[0].need_high_bytes < short.need_high_bytes

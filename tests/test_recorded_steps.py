"""A step recorded once with symbols and evaluated at other sizes equals that step played afresh."""

from __future__ import annotations

import gc
from dataclasses import replace
from random import Random
from weakref import ref

import pytest

from estimator import (
    AttnImplementation,
    Dtype,
    Loss,
    Method,
    MixedPrecision,
    Model,
    Phase,
    TrainingSetup,
    catalog,
)
from estimator.families.kernels import attention_of
from estimator.passes.causal_lm import causal_lm
from estimator.passes.prepared import as_played
from estimator.passes.stack import stack_of
from estimator.passes.step import Step
from estimator.step import timeline as moments_module
from tests.tapes import played


def fresh(model: Model, setup: TrainingSetup) -> list[tuple[Phase, str, int]]:
    """Peaks of a step played at its own sizes, without a recording."""
    model, setup = as_played(model, setup)
    setup = replace(setup, attn_implementation=attention_of(model, setup.computation))
    step = Step(model, setup, stack_of(model, setup, setup.batch.max_length))
    causal_lm(step)
    return [(s.mark.phase, s.operation, sum(s.rise)) for s in played(step.tape)]


FAMILIES = {model.model_type: model for model in map(catalog.model, catalog.models())}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_recording_evaluated_at_other_sizes_equals_a_fresh_step(family):
    dice, model = Random(family), FAMILIES[family]
    setup = TrainingSetup(
        method=dice.choice([*Method]),
        dtype=dice.choice([*Dtype]),
        mixed_precision=dice.choice([MixedPrecision.NO, MixedPrecision.BF16]),
        gradient_checkpointing=dice.choice([False, True]),
        attn_implementation=dice.choice([AttnImplementation.SDPA, AttnImplementation.EAGER]),
        padded=dice.choice([False, True]),
        use_liger_kernel=dice.choice([False, True]),
        loss=dice.choice([None, Loss.CHUNKED_TRL, Loss.CHUNKED_TORCHTUNE]),
    )
    same = moments_module.Plan(model, setup)
    for _ in range(3):
        sizes = {
            "per_device_train_batch_size": dice.randint(1, 9),
            "max_length": dice.randint(1, 9000),
            "lora_r": dice.randint(1, 600),
        }
        sized = replace(setup, **sizes)
        segments = same.step(moments_module.Sizes.of(sized, gpus=1))[0].segments
        assert [(s.mark.phase, s.operation, sum(s.rise)) for s in segments] == fresh(model, sized)


KEPT = (
    {"gradient_checkpointing": True, "activation_offloading": True},
    {"activation_offloading": True},
    {"gradient_checkpointing": True, "offload_checkpoints": True, "checkpoint_every_n_layers": 3},
    {"gradient_checkpointing": True, "selective_checkpointing": True},
    {"packing": True},
    {"padding_free": True},
    {"optimizer_in_bwd": True},
    {"method": "lora", "lora_target_modules": ("q_proj",), "layers_to_transform": (1, 5)},
)


@pytest.mark.parametrize("keys", KEPT, ids=" ".join)
def test_host_copies_and_left_overs_of_a_recording_equal_a_fresh_step(keys):
    """Small tensors are not offloaded and a single row is not concatenated; if a guard fails, the step is replayed."""
    model = catalog.model("meta-llama/Llama-3.2-1B")
    setup = TrainingSetup(loss=Loss.CHUNKED_TRL, **keys)
    same = moments_module.Plan(model, setup)
    for rows, length in ((1, 512), (1, 3), (4, 16), (3, 777)):
        asked = replace(setup, per_device_train_batch_size=rows, max_length=length)
        sizes = moments_module.Sizes.of(asked)
        (read, _), (anew, _) = same.step(sizes), moments_module.Plan(model, setup).step(sizes)
        assert read.heights == anew.heights
        assert read.host_copies == anew.host_copies
        assert read.left_over == anew.left_over


SHARED = (
    ({"strategy": "ddp", "num_gpus": 8}, {"loss": Loss.CHUNKED_TRL}),
    ({"strategy": "ddp", "num_gpus": 8}, {"gradient_checkpointing": True}),  # whose sink is off
    # whose largest gradient, of the embedding, is cut to an eighth of 1.2 billion
    ({"strategy": "zero2", "num_gpus": 8, "offload_optimizer": "cpu"}, {"method": "full"}),
    ({"strategy": "zero3", "num_gpus": 8, "offload_param": "cpu"}, {"loss": Loss.CHUNKED_TRL}),
    ({"strategy": "zero3", "num_gpus": 8}, {"gradient_accumulation_steps": 2}),
    ({"strategy": "zero2", "num_gpus": 8}, {"method": "lora", "gradient_accumulation_steps": 2}),
    ({"strategy": "zero2", "num_gpus": 8}, {"method": "full"}),  # cut at other layers than on 2
)


@pytest.mark.parametrize(("mesh", "keys"), SHARED, ids=lambda one: "-".join(map(str, one.values())))
def test_setups_that_share_a_plan_play_the_same_step(mesh, keys):
    """Of their own they are played without a plan of others: event by event, and what stage 3 gathers."""
    model = catalog.model("meta-llama/Llama-3.2-1B")
    setup = moments_module.structure(TrainingSetup(**mesh, **keys))
    sizes = moments_module.Sizes(3, 700, 8, 8, 699, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments_module, "_with_resting_weights", lambda *_: None)
        own, own_schedule = moments_module.Plan(model, setup).step(sizes)
    plan = moments_module.plan(model, setup)
    plan.step(sizes._replace(gpus=2))
    shared, schedule = plan.step(sizes)
    for segment in range(len(own.heights)):
        assert [*shared.events(segment)] == [*own.events(segment)]
    assert schedule.rules == own_schedule.rules
    assert shared.wholes == own.wholes


def test_a_batch_of_more_tiles_is_read_from_the_same_record_unless_a_tile_is_cast():
    # trl 1.16, kernels/chunked_logprob.py: TOKEN_CHUNK_SIZE is 4,096; a loop that casts nothing allocates nothing
    model = catalog.model("meta-llama/Llama-3.2-1B")
    for keys, records in (
        ({"dtype": "bfloat16"}, 1),
        ({"mixed_precision": "bf16", "dtype": "float32"}, 3),
    ):
        setup = TrainingSetup(loss=Loss.CHUNKED_TRL, gradient_checkpointing=True, **keys)
        plan = moments_module.Plan(model, setup)
        for rows in (1, 5, 9):
            plan.step(moments_module.Sizes(rows, 1024, 16, 1, 1023, rows))
        assert len(list(plan.schedules)) == records


def test_numbers_of_gpus_whose_partitions_cut_alike_are_read_from_one_record():
    # the equal adapters of 16 layers are cut between layers; of whole weights, half begins with the embedding
    model = catalog.model("meta-llama/Llama-3.2-1B")
    for method, records in (("lora", 1), ("full", 3)):
        setup = TrainingSetup(strategy="zero2", num_gpus=2, method=method)
        plan = moments_module.Plan(model, moments_module.structure(setup))
        for gpus in (2, 4, 8):
            plan.step(moments_module.Sizes(1, 64, 16, gpus, 63, 1))
        assert len(list(plan.schedules)) == records


def test_a_tape_is_gone_once_it_is_recorded(monkeypatch):
    tapes = []
    program = moments_module.Program

    def recorded(tape, recording):
        tapes.append(ref(tape))
        return program(tape, recording)

    monkeypatch.setattr(moments_module, "Program", recorded)
    setup = TrainingSetup(strategy="zero2", num_gpus=2, gradient_checkpointing=True)
    gc.disable()  # which would take it, with 1,500 events, while everything else waits
    try:
        moments_module.Plan(catalog.model("meta-llama/Llama-3.2-1B"), setup).step(
            moments_module.Sizes(2, 512, 8, 1, 511, 2)
        )
        assert [tape() for tape in tapes] == [None]
    finally:
        gc.enable()

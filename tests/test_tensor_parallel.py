"""Ranks that divide every layer: what one of them holds, by hand, and what it does not go with.

The bytes of a step in two real processes are compared in tests/verify/test_tensor_parallel.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.answer.explain import explain
from estimator.contract.setups import parse, read_setup
from estimator.parallel.fsdp2 import CUT
from estimator.step.timeline import Sizes, plan, structure
from estimator.time.exchange_time import EXCHANGE
from estimator.values.specs import Component, Phase
from estimator.values.strategies import Strategy

LLAMA = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": False,
}
WHOLE = {
    "model": LLAMA,
    "gpu": "H100-SXM5-80GB",
    "dtype": "float32",
    "mixed_precision": "no",
    "max_length": 128,
    "save_only_model": True,
}
HALF = {**WHOLE, "num_gpus": 2, "tp_size": 2}
LINEARS = 2 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 512)
"""Elements of the divided linears of both layers, whole."""
WORDS = 1024 * 256
NORMS = 5 * 256


def phases(keys: dict[str, Any]) -> Any:
    return estimate(*parse(keys)).phases


def test_a_rank_holds_half_of_every_matrix_and_all_norms():
    found = estimate(*parse(HALF))
    assert found.timeline.resident[Component.WEIGHTS] == 4 * ((LINEARS + 2 * WORDS) // 2 + NORMS)
    assert found.total_parameters == LINEARS + 2 * WORDS + NORMS
    assert found.setup.effective_batch_size == 1, "both ranks work on the same rows"


def test_a_rank_has_the_whole_embeddings_gradient_and_its_part_once_more_in_the_step():
    step = phases(HALF)[Phase.OPTIMIZER_STEP].resident
    assert step[Component.GRADIENTS] == 4 * ((LINEARS + WORDS) // 2 + WORDS + NORMS)
    assert step[Component.TEMPORARIES] == 4 * WORDS // 2


def test_the_logits_are_whole_on_every_rank_beside_the_buffer_they_were_gathered_in():
    forward = phases(HALF)[Phase.FORWARD]
    assert forward.name == "logits joined"
    # a rank's half, what is gathered, and what its parts are joined in
    logits = 128 * 1024 * 4
    assert forward.resident[Component.TEMPORARIES] == 2 * logits + logits // 2


def test_saving_gathers_one_matrix_at_a_time_and_joins_its_parts_in_a_second_copy():
    # down_proj is divided by its inputs: the largest of two copies, above one of the embedding
    found = estimate(*parse({**HALF, "model": {**LLAMA, "intermediate_size": 1024}}))
    assert found.phases[Phase.SAVE].resident[Component.COMMUNICATION] == 2 * 4 * 1024 * 256
    assert found.disk_bytes == 4 * found.total_parameters


@pytest.mark.parametrize("mesh", [{}, {"num_gpus": 4, "strategy": "fsdp"}])
def test_an_explanation_adds_up_to_a_ranks_bytes(mesh):
    found = estimate(*parse({**HALF, **mesh}))
    for component, size in found.peak.resident.items():
        if size:
            assert sum(term.bytes for term in explain(found, component).terms) == size, component


def test_more_ranks_take_less_computation_and_more_exchange():
    times = [
        estimate(*parse({**WHOLE, "num_gpus": ranks, "tp_size": ranks})).time for ranks in (1, 2)
    ]
    parts = [{part.name: part.seconds.high for part in of.parts} for of in times if of is not None]
    assert EXCHANGE not in parts[0]
    # a row of 128 tokens: 4 bytes x (2 x 256 x (7 sums of 2 layers + 2) + 1024 words), at the slow end of NVLink
    sent = 128 * 4 * (2 * 256 * (7 * 2 + 2) + 1024) / 2
    assert parts[1][EXCHANGE] == pytest.approx(sent / (450e9 * 0.78), rel=0.01)
    assert parts[1]["matrix products"] < parts[0]["matrix products"]


@pytest.mark.parametrize(
    ("checkpoints", "measured"), [(False, (475_136, 507_392)), (True, (218_624, 388_608))]
)
def test_passes_take_what_two_real_processes_took(*, checkpoints, measured):
    # above what is there when the step begins; tests/verify/test_tensor_parallel.py measures them again
    model = {
        **LLAMA,
        "vocab_size": 500,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
    }
    given = {
        **HALF,
        "model": {**model, "head_dim": 16},
        "max_length": 32,
        "attn_implementation": "eager",
    }
    found = estimate(
        *parse({**given, "gradient_checkpointing": checkpoints, "use_reentrant": False})
    )
    rest = sum(found.timeline.resident.values())
    forward = max(found.phases[phase].bytes for phase in (Phase.FORWARD, Phase.LOSS))
    ours = forward - rest, found.phases[Phase.BACKWARD].bytes - rest
    assert ours == pytest.approx(measured, abs=2048)


def test_each_divided_input_has_its_gradient_summed_into_a_new_tensor():
    model, _, setup = parse(HALF)
    sized, schedule = plan(model, structure(setup)).step(Sizes.of(setup))
    program = schedule.program
    sums = [
        sized.sizes[program.slots[at]]
        for at, name in enumerate(program.operations)
        if name == "all-reduce of its gradient" and program.signs[at] > 0
    ]
    layers = len({mark.place.layer for mark in program.marks} - {None})
    assert sums == [128 * 256 * 4] * (5 * layers + 1), "q, k, v, gate, up; and the head"


MESH = {**HALF, "num_gpus": 4, "strategy": "fsdp"}
"""Two shards of every half."""
DIVIDED = (LINEARS + 2 * WORDS) // 2


def test_a_rank_of_a_mesh_holds_a_shard_of_its_half_and_a_shard_of_every_norm():
    found = estimate(*parse(MESH))
    assert found.timeline.resident[Component.WEIGHTS] == 4 * (DIVIDED + NORMS) // 2
    states = 2 * 4 * (DIVIDED + NORMS) // 2 + 512 * (2 * 9 + 3)  # and each tensor's number of steps
    assert found.timeline.resident[Component.OPTIMIZER_STATES] == states
    assert found.total_parameters == LINEARS + 2 * WORDS + NORMS
    assert found.setup.effective_batch_size == 2, "each pair of ranks works on rows of its own"
    assert found.disk_bytes == 4 * found.total_parameters


def test_the_whole_embeddings_gradient_lies_beside_a_ranks_part_before_it_is_scattered():
    model, _, setup = parse(MESH)
    sized, schedule = plan(model, structure(setup)).step(Sizes.of(setup))
    program, cuts = schedule.program, [0, 0]
    for at, name in enumerate(program.operations):
        if name == CUT and program.signs[at] > 0:
            cuts = [cuts[0] + 1, sized.sizes[program.slots[at]]]
    assert cuts == [1, 4 * WORDS // 2]


def test_gradients_that_wait_lie_whole_the_embeddings_with_all_rows():
    once, twice = (
        phases({**MESH, "gradient_accumulation_steps": steps})[Phase.FORWARD].resident
        for steps in (1, 2)
    )
    assert Component.GRADIENTS not in once
    assert twice[Component.GRADIENTS] == 4 * ((LINEARS + WORDS) // 2 + WORDS + NORMS)


def test_replicas_of_one_shard_hold_what_ranks_of_a_layer_hold_and_gather_nothing():
    replicas = {**MESH, "strategy": "hsdp", "dp_replicate_size": 2}
    halves = (estimate(*parse(keys)).timeline.resident for keys in (HALF, replicas))
    assert len({half[Component.WEIGHTS] for half in halves}) == 1
    model, _, setup = parse(replicas)
    sized, schedule = plan(model, structure(setup)).step(Sizes.of(setup))
    gathered = [
        sized.sizes[slot]
        for slot, name in zip(schedule.program.slots, schedule.program.operations, strict=True)
        if name == "all-gather"
    ]
    assert not any(gathered)


@pytest.mark.parametrize("sharing", [{}, {"dtype": "bfloat16", "mixed_precision": "bf16"}])
def test_weights_of_a_mesh_are_gathered_as_they_are_loaded(sharing):
    # transformers' fully_shard has no policy, so accelerate's float32 copies are not there
    found = estimate(*parse({**MESH, **sharing}))
    width = 2 if sharing else 4
    resident = found.phases[Phase.OPTIMIZER_STEP].resident
    norms = 5 * 512  # half of 256 elements, rounded up
    assert resident[Component.WEIGHTS] == width * DIVIDED // 2 + norms
    # all gradients of a group are one tensor: the head's lie with one norm's
    assert resident[Component.GRADIENTS] == pytest.approx(width * (DIVIDED + NORMS) // 2, abs=512)


def test_a_mesh_exchanges_between_its_halves_and_between_shards():
    parts = (estimate(*parse(keys)).time for keys in (HALF, MESH))
    alone, both = (
        {part.name: part.seconds.high for part in of.parts}[EXCHANGE]
        for of in parts
        if of is not None
    )
    assert both > alone


@pytest.mark.parametrize("strategy", ["none", "fsdp"])
def test_a_run_that_saves_nothing_needs_no_other_key(strategy):
    keys = {**MESH, "strategy": strategy, "num_gpus": 2 if strategy == "none" else 4}
    estimate(*parse({**keys, "save_strategy": "no", "save_only_model": False}))


def test_a_tool_puts_no_replicas_beside_ranks_that_divide_every_layer():
    asked = {**HALF, "tool": "trl", "loss": "standard"}
    meshes = [read_setup({**asked, "tp_size": ranks}).setup.mesh for ranks in (2, 1)]
    found = [(mesh.num_gpus, mesh.tp_size, mesh.strategy) for mesh in meshes]
    assert found == [(2, 2, Strategy.NONE), (2, 1, Strategy.DDP)]

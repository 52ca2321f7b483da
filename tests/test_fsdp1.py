"""FSDP 1: flat parameters, their memory, and what a reentrant checkpoint around them keeps.

tests/test_reference.py compares steps with traced ones ("FSDP 1").
"""

from __future__ import annotations

import pytest

from estimator import Component, Phase
from estimator.answer.ranks import ranks
from estimator.contract.setups import parse
from estimator.parallel.fsdp1 import flat_parameter, flat_parameters
from estimator.search.scaling import shared_by
from estimator.values.setup import TrainingSetup
from estimator.values.strategies import Strategy
from tests.steps import heights
from tests.test_sharding import LLAMA, told

ON_8 = {
    "num_gpus": 8,
    "max_length": 64,
    "max_grad_norm": 0.0,
    "strategy": "fsdp",
    "fsdp_version": 1,
}
LORA = {"method": "lora"}
CHECKPOINTED = {"gradient_checkpointing": True}
LONG = {**LORA, **CHECKPOINTED, "max_length": 1024}
OLD = {"use_reentrant": True, "checkpoint_around_fsdp": True}


def test_reentrant_checkpoints_around_fsdp1_keep_inputs_and_gradients_of_frozen_layers():
    # the same trace, with the checkpoint outside FSDP's modules: 195,185,152 bytes, in the lowest layer; inside
    # they take 177,099,264, in the highest. By hand: gradients of the inputs of 9 layers, 1024 x 1024 x 2 bytes
    # each, less the one that exists in either case; and what the adapters of 9 layers keep
    inside = told({**ON_8, **LONG, "use_reentrant": True}, num_hidden_layers=10)
    outside = told({**ON_8, **LONG, **OLD}, num_hidden_layers=10)
    hidden, adapters = 1024 * 1024 * 2, 9 * 145_408 + 5_120
    grown = outside.peak.bytes - inside.peak.bytes
    assert grown == 195_185_152 - 177_099_264
    assert grown == pytest.approx(8 * hidden + adapters, abs=8192)
    assert outside.peak.name.startswith("layer 1 of 10")
    assert inside.peak.name.startswith("layer 10 of 10")


@pytest.mark.parametrize("changed", [{"method": "full"}, {"use_reentrant": False}])
def test_trained_layers_and_non_reentrant_checkpoints_keep_nothing_extra(changed):
    keys = {**ON_8, **LONG, **OLD, **changed}
    outside = told(keys)
    inside = told({**keys, "checkpoint_around_fsdp": False})
    assert heights(outside) == heights(inside)


def test_kept_tensors_are_freed_at_the_end_of_backward_for_any_layer_count():
    # the ledger of the last moment before the step: weights, adapters, their gradients and states, and nothing else
    for layers in (2, 5, 9):
        moments = told({**ON_8, **LONG, **OLD}, num_hidden_layers=layers).moments
        last = [moment for moment in moments if moment.phase is Phase.BACKWARD][-1]
        assert last.resident.get(Component.ACTIVATIONS, 0) < 1024 * 1024 * 2 * 2 * layers


def test_a_rank_updates_its_shard_of_every_unit():
    # by hand: every size here is divisible by 8, so the first rank's shards are an eighth of the trained elements
    model, _, setup = parse({"model": LLAMA, **ON_8})
    assert isinstance(setup, TrainingSetup)
    every = flat_parameters(model, setup)
    trained = sum(sum(unit.sizes) * unit.alike for unit in every)
    pieces = [piece for unit in every for piece in unit.pieces]
    assert 8 * sum(piece.alike * piece.shape[0] for piece in pieces) == trained
    four = setup.replace(num_gpus=4)
    unit = flat_parameter([10, 10], four, is_adapter=False)
    assert unit.shard == 7  # 10, 6 of padding to 16 bytes, 10, and 2 to divide by 4


def test_another_strategy_or_one_gpu_resets_the_fsdp_version():
    setup = TrainingSetup(
        num_gpus=4,
        strategy=Strategy.FSDP,
        fsdp_version=1,
        use_reentrant=True,
        checkpoint_around_fsdp=True,
    )
    assert shared_by(setup, Strategy.FSDP, 8).mesh.fsdp_version == 1
    for strategy, gpus in ((Strategy.ZERO3, 8), (Strategy.FSDP, 1)):
        changed = shared_by(setup, strategy, gpus)
        assert (changed.mesh.fsdp_version, changed.mesh.checkpoint_around_fsdp) == (2, False)


def test_all_fsdp1_ranks_are_equal_except_the_one_that_saves():
    # three ranks, over which FSDP 2 could not divide rows evenly
    keys = {**ON_8, "num_gpus": 3, "save_strategy": "no"}
    assert ranks(told(keys)) == ()
    assert len(ranks(told({**keys, "fsdp_version": 2}))) > 1


LAYER = 2 * 1024**2 + 2 * 256 * 1024 + 3 * 1024 * 2816 + 2 * 1024
ROOT = 2 * 1000 * 1024 + 1024


@pytest.mark.parametrize(
    ("keys", "gathered"),
    [
        # by hand: a trained layer's states follow its weights: the whole unit and the rank's eighth of it in float32
        ({}, 4 * (LAYER + LAYER // 8)),
        # by hand: a frozen layer's weights, in bfloat16
        (LORA, 2 * LAYER),
        # by hand: with a sharded state dict the root is gathered while each layer is
        ({"fsdp_state_dict_type": "SHARDED_STATE_DICT"}, 4 * (ROOT + LAYER)),
    ],
)
def test_saving_gathers_flat_parameters(keys, gathered):
    save = told({**ON_8, **keys}).phases[Phase.SAVE]
    assert save.resident[Component.COMMUNICATION] == pytest.approx(gathered, rel=1e-4)

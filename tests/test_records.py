"""Words that have facts: what is asked about a strategy or an objective holds together."""

from __future__ import annotations

import pickle

import pytest

from estimator.values.losses import Loss
from estimator.values.objective import OBJECTIVES
from estimator.values.records import Record
from estimator.values.strategies import Strategy


def test_a_fact_that_nobody_asks_for_is_refused():
    with pytest.raises(AssertionError, match="lemon has facts"):
        Record("Fruit", [("LEMON", ("lemon", {"is_sour": True}))])


def test_a_word_stays_one_object():
    # members are compared by identity, also after a process has sent them to another
    assert pickle.loads(pickle.dumps(Strategy.HSDP)) is Strategy("hsdp") is Strategy.HSDP


@pytest.mark.parametrize("strategy", Strategy)
def test_what_a_strategy_shards_holds_together(strategy):
    """Rajbhandari et al. 2020, arXiv:1910.02054, figure 1: states, then gradients too, then weights too."""
    sharded = [strategy.shards_states, strategy.shards_gradients, strategy.shards_weights]
    assert sharded == sorted(sharded, reverse=True)
    assert strategy.shards_states == (strategy.is_fsdp or strategy.is_zero)
    assert [strategy.keeps_whole, strategy.places_layers, strategy.shards_states].count(True) == 1
    assert strategy.shards_weights or not (strategy.keeps_gathered or strategy.has_groups)
    # each of DeepSpeed's stages does one thing with gradients
    stages = strategy.reduces_after_backward, strategy.keeps_parts, strategy.has_gradient_buffer
    assert stages.count(True) == strategy.is_zero
    assert strategy.partitions_flat == (strategy.is_zero and not strategy.gathers_modules)


@pytest.mark.parametrize("objective", OBJECTIVES.values())
def test_what_is_known_of_an_objective_holds_together(objective):
    assert (objective.usual_loss_type in objective.loss_types) == bool(objective.loss_types)
    # a weight is a reference's, or ORPO's, of which that is the point (Hong et al. 2024, arXiv:2403.07691)
    assert (objective.beta is not None) == (objective.has_reference or objective.prepares_base)
    # the head has the vocabulary, or outputs whose number the objective or the setup says
    has_own_head = objective.labels is not None or objective.asks_labels
    assert has_own_head == (objective.has_score or objective.compares_rows)
    assert not (objective.is_paired and objective.generates)
    assert objective.brings_mask != objective.is_causal_lm


@pytest.mark.parametrize("loss", Loss)
def test_a_loss_computes_the_logits_in_one_way(loss):
    ways = loss.takes_whole_logits, loss.fuses_gradient, loss.tiles_logits, loss.chunks_sequence
    assert [*ways, loss.selects].count(True) == 1
    # a fused loss reads the head's weight by itself: trl 1.16, trainer/utils.py, add_fused_lm_head
    assert loss.calls_head != (loss.fuses_gradient or loss.tiles_logits)
    assert loss.selects or not (loss.keeps_logits or loss.is_verls)

"""No valid input costs much more than another. Work is counted in events and trials, not in seconds."""

from __future__ import annotations

import json

import pytest

from estimator import catalog, estimate, remedies
from estimator.__main__ import _answer
from estimator.answer.needs import per_structure
from estimator.contract import setups
from estimator.contract.setups import MOST_UNKNOWN, parse, read_setup
from estimator.families.reader import MOST_LAYERS
from estimator.parallel.zero3_coordinator import Coordinator
from estimator.search import best_ways
from estimator.search import remedies as search
from estimator.search.limits import largest_micro_batch, longest_context
from estimator.search.scaling import curves
from estimator.step import records, timeline
from estimator.step.reserved import MOST_LAYERS_REPLAYED, reserved_bytes
from estimator.tape.symbols import Recording
from estimator.values.specs import Offload
from estimator.values.strategies import Strategy
from tests.counted import A_SECOND, counted

DEEPEST = {"like": "HuggingFaceTB/SmolLM2-135M", "num_hidden_layers": MOST_LAYERS}
KINDS = [
    {},
    {"method": "lora", "gradient_checkpointing": True},
    {"objective": "dpo", "gradient_accumulation_steps": 4},
    {"num_gpus": 8, "strategy": "fsdp", "fsdp_version": 1},
    {"num_gpus": 8, "strategy": "zero2"},
]


@pytest.mark.parametrize("keys", KINDS, ids=str)
def test_a_thousand_layers_are_estimated_from_a_bounded_number_of_events(keys):
    model, _, setup = parse({"model": DEEPEST, **keys})
    reserved_bytes.cache_clear()
    with counted() as work:
        found = reserved_bytes(model, None, setup)
    assert 0 < work.units < 2 * A_SECOND
    assert found >= estimate(model, None, setup).decisive.bytes * 0.98


def test_every_catalogued_model_is_replayed_for_its_verdict_and_no_model_of_a_thousand_layers():
    assert (
        max(catalog.model(model).num_hidden_layers for model in catalog.models())
        <= MOST_LAYERS_REPLAYED
    )
    model, _, setup = parse({"model": DEEPEST})
    assert estimate(model, None, setup).needs.replay is None


def test_only_a_hundred_unknown_keys_are_looked_up(monkeypatch):
    looked_up = []
    meant = setups.meant_keys
    monkeypatch.setattr(
        setups, "meant_keys", lambda name, known: looked_up.append(name) or meant(name, known)
    )
    reading = read_setup(
        {"model": "openai-community/gpt2", **{f"lora_{i}": 1 for i in range(10_000)}}
    )
    assert len(looked_up) == MOST_UNKNOWN
    assert len(reading.problems) == MOST_UNKNOWN + 1
    assert (
        reading.problems[-1]
        == "9,900 more keys are not read; leave out what is not a key of a setup."
    )


def test_a_thousand_layers_are_tried_with_one_changed_setup(monkeypatch):
    tried = []
    monkeypatch.setattr(search, "holds", lambda *of: tried.append(of) and False)
    monkeypatch.setattr(search, "_sets", lambda *of: [])
    card = catalog.gpu("H200-SXM-141GB")
    model, _, setup = parse(
        {"model": DEEPEST, "max_length": 8192, "per_device_train_batch_size": 64}
    )
    remedies(estimate(model, card, setup), [card])
    assert len(tried) == 1


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What ZeRO-3's coordinators traced."""
    traced: list[object] = []
    monkeypatch.setattr(
        timeline, "Coordinator", lambda *of, **how: traced.append(of) or Coordinator(*of, **how)
    )
    timeline._coordinated.cache_clear()
    return traced


def test_equal_calls_of_two_schedules_are_coordinated_once(played):
    # other kernels and another loss call the same modules; checkpointing calls each layer's twice
    of = {"model": "HuggingFaceTB/SmolLM2-135M", "num_gpus": 8, "strategy": "zero3"}
    for keys in ({}, {"attn_implementation": "flash_attention_2"}, {"max_length": 64}):
        timeline.plan.cache_clear()
        estimate(*parse({**of, "lora_r": 77, **keys}))
    assert len(played) == 1
    estimate(*parse({**of, "gradient_checkpointing": True}))
    assert len(played) == 2


def test_zeros_partitions_are_one_operation_of_a_record(monkeypatch):
    # 14,000 adapters of 999 layers: each was a sum of the record, once for each number of GPUs
    recorded, steps = [], []
    computed, play = Recording.computed, timeline.Plan._played

    def played(plan, sizes):
        steps.append(sizes)
        return play(plan, sizes)

    monkeypatch.setattr(
        Recording, "computed", lambda self, *of: recorded.append(of) or computed(self, *of)
    )
    monkeypatch.setattr(timeline.Plan, "_played", played)
    of = parse({"model": {**DEEPEST, "num_hidden_layers": 999}, "method": "lora"})
    for strategy, different in ((Strategy.ZERO1, 1), (Strategy.ZERO2, 3)):
        curves(*of, [2, 4, 8], [strategy])
        assert len(steps) == different
        assert 0 < len(recorded) < 5_000 * different
        recorded.clear()
        steps.clear()


QUESTIONS = {
    "remedies": lambda *of: remedies(estimate(*of), [of[1]]),
    "limits": lambda *of: (longest_context(*of), largest_micro_batch(*of)),
    "curves": lambda *of: curves(*of, [1, 8, 64]),
}


@pytest.mark.parametrize(
    ("question", "layers"), [("remedies", 124), ("limits", 125), ("curves", 126)]
)
def test_a_question_about_the_most_layers_of_any_model_is_a_few_seconds_work(question, layers):
    # a number of layers for each, so that none finds what another has recorded
    given = {"model": {**DEEPEST, "num_hidden_layers": layers}, "gpu": "A10G", "method": "lora"}
    several = {"num_gpus": 8, "strategy": "zero3", "objective": "dpo"}
    for keys in ({"per_device_train_batch_size": 64, "max_length": 8192}, several):
        with counted() as work:
            QUESTIONS[question](*parse({**given, "gradient_checkpointing": True, **keys}))
        assert 0 < work.units < 4 * A_SECOND


def test_an_offloaded_model_is_traced_with_the_one_that_is_not(played):
    of = {"model": "HuggingFaceTB/SmolLM2-135M", "num_gpus": 8, "strategy": "zero3", "lora_r": 78}
    for rests in ("none", "cpu"):
        estimate(*parse({**of, "offload_param": rests, "offload_optimizer": rests}))
    assert len(played) == 1


def test_what_cannot_stay_on_a_card_is_told_without_a_step(monkeypatch):
    # 70 billion weights in 4 bits are 35 GB, more than a card of 24: only ZeRO-3 with the weights on the host is played
    tried = set()
    steps = best_ways._steps
    monkeypatch.setattr(
        best_ways, "_steps", lambda *of: tried.add(of[2].mesh.offload_param) or steps(*of)
    )
    model, card, setup = parse({"model": "meta-llama/Llama-3.1-70B", "gpu": "A10G"})
    best_ways.best_way.cache_clear()
    way = best_ways.best_way(model, card, 1, setup)
    assert way.keys["offload_param"] == "cpu"
    assert tried == {Offload.CPU}


def test_one_layer_above_the_limit_is_refused():
    deeper = {**DEEPEST, "num_hidden_layers": MOST_LAYERS + 1}
    answer = _answer(
        json.dumps({"model": deeper}).encode(), None, with_remedies=False, with_shares=False
    )
    assert answer == {
        "error": "model: num_hidden_layers must be a whole number from 1 to 1000, not 1001."
    }


def test_memory_does_not_grow_with_the_setups_that_were_asked_for(monkeypatch):
    """Records and estimates are remembered up to their bytes, and dropped ones give the same answer again."""
    setups = [
        parse(
            {"model": "HuggingFaceTB/SmolLM2-135M", "lora_r": 5, **keys, "use_liger_kernel": liger}
        )
        for keys in KINDS[:3]
        for liger in (False, True)
    ]
    timeline._plan.cache_clear()
    timeline.plan.cache_clear()
    per_structure.cache_clear()
    one = timeline.plan(*_as_played(*setups[0])).step(timeline.Sizes.of(setups[0][2]))[1].bytes
    monkeypatch.setattr(records, "MOST_BYTES", 3 * one)
    monkeypatch.setattr(estimate, "_most_bytes", 3 * one)
    first = [estimate(*of).decisive for of in setups]
    assert records._ALL.bytes <= 3 * one
    assert estimate.bytes <= 3 * one
    assert len(estimate) < len(setups)
    assert [estimate(*of).decisive for of in setups] == first


def _as_played(model, _, setup):
    return model, timeline.structure(setup)

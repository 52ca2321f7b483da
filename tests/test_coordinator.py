"""What ZeRO stage 3 has gathered at each moment, by hand for small call sequences.

tests/test_reference.py compares steps with traced ones ("ZeRO 3").
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import catalog, estimate
from estimator.contract.setups import parse
from estimator.parallel import zero3_coordinator as coordinator
from estimator.parallel.tensors import model_tensors
from estimator.parallel.zero import gathering
from estimator.parallel.zero3_coordinator import (
    OUTSIDE,
    Amount,
    CallTrace,
    Coordinator,
    Rules,
    Stretch,
)
from estimator.step import timeline
from estimator.step.timeline import Sizes, plan, structure
from estimator.tape.tape import CallMark, WholeWeight
from estimator.values.facets.adapters import Adapters
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Phase
from estimator.values.strategies import Strategy
from tests.rows import for_each
from tests.steps import heights

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
HERE = {"is_offloaded": False, "alone": False, "is_wrapped": False}
CHECKPOINTS = {"gradient_checkpointing": True}


@pytest.mark.parametrize(
    ("keys", "live", "reuse", "traced"),
    [
        ({}, 10_000_000, 10_000_000, (785_185_792, 785_302_528, 796_081_152)),
        (CHECKPOINTS, 20_000_000, 30_000_000, (787_445_760, 783_681_024, 800_495_104)),
        (
            {"method": "lora", "lora_r": 16, **CHECKPOINTS},
            20_000_000,
            30_000_000,
            (168_909_824, 161_131_008, 170_416_128),
        ),
    ],
)
def test_a_model_beyond_the_limits_matches_the_real_stage_3(monkeypatch, keys, live, reuse, traced):
    # traced as in tests/reference/steps.jsonl ("ZeRO 3"), on 8 layers, stage3_max_live_parameters and
    # stage3_max_reuse_distance lowered to match
    monkeypatch.setattr(coordinator, "LIVE", live)
    monkeypatch.setattr(coordinator, "REUSE_DISTANCE", reuse)
    longest = {"max_position_embeddings": 4097}  # a model that no other test has cached
    timeline._coordinated.cache_clear()
    given = {"model": {**LLAMA, "num_hidden_layers": 8, **longest}, "max_length": 64}
    given |= {"num_gpus": 2, "strategy": "zero3", "lora_target_modules": "all-linear"}
    ours = heights(estimate(*parse({**given, **keys})))
    timeline._coordinated.cache_clear()
    assert ours[:3] == pytest.approx(traced, rel=0.003)


def test_trainer_derives_buckets_from_the_hidden_size():
    # transformers 5.23, integrations/deepspeed.py, for "auto": int(0.9 * hidden_size * hidden_size), 10 * hidden_size
    setup = TrainingSetup(strategy=Strategy.ZERO3, num_gpus=8)
    rules = gathering(catalog.model("mistralai/Mistral-7B-v0.1"), setup.adapters, setup.mesh)
    assert (rules.prefetched, rules.persistent) == (15_099_494, 40_960)


def test_prefetch_fills_the_limit_of_live_weights():
    # 7.2 billion weights over 64 ranks; 10⁹ elements of 2 bytes are gathered, and gathers that started
    # before the limit may finish: matrices of the MLP, 14,336 · 4,096
    model, gpu = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
    setup = TrainingSetup(strategy=Strategy.ZERO3, num_gpus=64, gradient_checkpointing=True)
    of = estimate(model, gpu, setup)
    rest = of.phases[Phase.OPTIMIZER_STEP].resident[Component.WEIGHTS]
    whole = of.phases[Phase.FORWARD].resident[Component.WEIGHTS] - rest
    assert 2 * 10**9 <= whole <= 2 * (10**9 + 3 * 14336 * 4096)


def calls(name: str, size: int, *, begins: bool, is_forward: bool) -> CallMark:
    weights = (WholeWeight(name, size, 2, trained=True),) if size else ()
    return CallMark(0, 0, name, weights, begins, is_forward)


def levels(sizes: dict[str, int], rules: Rules, ranks: int) -> list[int]:
    """Gathered bytes before, at and after each module call, in forward and then in reverse in backward."""
    both = [
        [
            calls(name, sizes[name], begins=begins, is_forward=is_forward)
            for name in names
            for begins in (True, False)
        ]
        for names, is_forward in ((sizes, True), (reversed(sizes), False))
    ]
    step = [[Stretch(OUTSIDE, back, both[back])] for back in (False, True)]
    script = CallTrace(step, sizes, rules)
    told = Coordinator(script, rules).levels(ranks, is_offloaded=rules.is_offloaded)
    forward, backward = told
    return [*forward[0], *backward[0]]


def test_weights_are_gathered_at_their_call_and_stay_until_backward():
    # 1,024 elements of 2 bytes; the second is prefetched once the first has begun; both stay, because backward
    # uses them within 10⁹ elements, and are released one by one
    rules = Rules(1024, 10, **HERE)
    seen = levels({"a": 1024, "b": 1024}, rules, 2)
    forward, backward = seen[:9], seen[9:]
    assert forward == [0, *[4096] * 8]
    assert backward == [4096, 4096, 4096, 4096, 2048, 2048, 2048, 2048, 0]


@pytest.mark.parametrize(("size", "stays"), [(10**9 // 2 - 1, True), (10**9 // 2, False)])
def test_a_weight_stays_gathered_if_reused_within_a_billion_elements(size, stays):
    # DeepSpeed 0.19.6, runtime/zero/config.py, max_reuse_distance 1e9: from the end of a's forward to its backward
    # b is called twice, 2 · size elements, fewer than 10⁹ or not. Nothing is prefetched
    seen = levels({"a": 4096, "b": size}, Rules(0, 0, **HERE), 1)
    assert seen[:4] == [0, 8192, 8192, 8192]
    assert seen[4] == (8192 if stays else 0)


def test_a_rank_copies_its_shard_from_the_host_for_each_gather():
    # 4,096 elements of 2 bytes on 4 ranks: all of them, and briefly the quarter that this rank sends
    rules = Rules(0, 0, is_offloaded=True, alone=False, is_wrapped=False)
    assert levels({"a": 4096}, rules, 4)[:3] == [0, 8192 + 2048, 8192]


@pytest.mark.parametrize(("elements", "ranks"), [(1001, 8), (1_000_001, 1024), (4096, 8)])
def test_gathered_weights_are_padded_to_equal_shards(elements, ranks):
    # partition_parameters.py: partition_size = ceil(numel / ranks); all ranks send the same amount
    part = -(-elements // ranks)
    amount = Amount(((elements, 2),), part=False, padded=True)
    assert amount.of(ranks) == -(-part * ranks * 2 // 512) * 512
    own = Amount(((elements, 2),), part=True, padded=False)
    assert own.of(ranks) == -(-part * 2 // 512) * 512


def test_weights_gathered_together_exist_twice_until_copied_out():
    # before its first module runs, the model prefetches a and b into one buffer of 4,096 bytes, then c alone, 2,048;
    # at a's call both are copied out of the buffer, 4,096 more, and at b's call the buffer is freed
    rules = Rules(2048, 10, **HERE)
    seen = levels({"a": 1024, "b": 1024, "c": 1024}, rules, 2)
    assert seen[:7] == [0, 10240, 10240, 10240, 10240, 10240, 6144]


def test_small_weights_need_no_gather():
    rules = Rules(1024, 2048, **HERE)
    assert not any(levels({"a": 1024, "b": 1024}, rules, 2))


ONE_OF_EACH = {found.model.model_type: found.model for found in catalog.models().values()}


@for_each("family", sorted(ONE_OF_EACH))
def test_every_weight_of_a_family_but_the_small_ones_is_gathered(family):
    # by its table of modules; a weight that no module call names would never be gathered
    model = ONE_OF_EACH[family]
    setup = TrainingSetup(strategy=Strategy.ZERO3, num_gpus=8)
    sized, schedule = plan(model, structure(setup)).step(Sizes.of(setup))
    rules = schedule.rules[0]
    assert rules is not None
    script = CallTrace([run.stretches for run in schedule.calls(0)], sized.wholes, rules)
    large = [
        (tensor.numel, tensor.alike)
        for tensor in model_tensors(model, Adapters(model_class="text"))
        if tensor.numel > 10 * model.hidden_size
    ]
    assert sum(script.elements) == sum(elements * alike for elements, alike in large)

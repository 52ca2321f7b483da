"""Every feature works with every objective, or is refused in one sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from estimator import (
    COUNTS,
    OBJECTIVES,
    Component,
    Estimate,
    Phase,
    Strategy,
    TrainingSetup,
    best_way,
    catalog,
    estimate,
    explain,
    least_batch,
    least_length,
    longest_context,
    rank_gpus,
    remedies,
    scaling,
)
from estimator.answer.estimate import fits
from estimator.contract.estimates import write_estimate
from estimator.contract.scenarios import read, scenario_of
from estimator.contract.setups import parse, write_fields
from estimator.contract.text import describe
from estimator.search.limits import fewer_checkpoints, largest_micro_batch

MODEL = catalog.model("HuggingFaceTB/SmolLM2-135M")
CARD = catalog.gpu("RTX 4090")
FEW = [catalog.gpu(name) for name in ("RTX 3060 12GB", "A100-SXM4-80GB")]
BASE = TrainingSetup(
    per_device_train_batch_size=2,
    max_length=256,
    max_completion_length=128,
    num_generations=2,
    num_train_examples=1000,
)
WAYS: tuple[Mapping[str, Any], ...] = (
    *({"objective": objective} for objective in OBJECTIVES),
    {"objective": "embedding", "mini_batch_size": 2},
    {"objective": "dpo", "loss": "standard"},
    {"objective": "kto", "loss": "selective"},
    {"objective": "dpo", "precompute_ref_log_probs": True},
)
SHARED = {"num_gpus": 2}
FEATURES: tuple[Mapping[str, Any], ...] = (
    {"method": "lora"},
    {"method": "qlora"},
    {"method": "lora", "use_dora": True},
    {"method": "lora", "modules_to_save": ("embed_tokens",)},
    {"method": "lora", "load_in_8bit": True},
    {"padded": True},
    {"packing": True},
    {"padding_free": True},
    {"gradient_checkpointing": True, "use_reentrant": True},
    {"gradient_checkpointing": True, "checkpoint_every_n_layers": 2},
    {"gradient_checkpointing": True, "selective_checkpointing": True},
    {"gradient_checkpointing": True, "offload_checkpoints": True},
    {"activation_offloading": True},
    {"use_liger_kernel": True},
    {"attn_implementation": "eager"},
    {"dtype": "float32", "mixed_precision": "fp16"},
    {"mixed_precision": "no"},
    {"optim": "paged_adamw_8bit"},
    {"optimizer_in_bwd": True, "max_grad_norm": 0},
    {"gradient_accumulation_steps": 4},
    {"eval_strategy": "steps", "per_device_eval_batch_size": 1},
    {"label_smoothing_factor": 0.1},
    *(
        {**SHARED, "strategy": word}
        for word in ("ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp_grad_op", "device_map")
    ),
    {**SHARED, "strategy": "fsdp", "fsdp_version": 1},
    {"num_gpus": 4, "strategy": "hsdp", "dp_replicate_size": 2},
    {**SHARED, "strategy": "zero2", "offload_optimizer": "cpu"},
)


def answered(keys: Mapping[str, Any]) -> Estimate | None:
    """The estimate, or None if it is refused in one sentence."""
    try:
        return estimate(MODEL, CARD, replace(BASE, **keys))
    except ValueError as problem:
        said = str(problem)
        assert said.endswith("."), said
        assert "\n" not in said
        assert len(said) < 400
        return None


def test_each_feature_works_with_each_objective_or_says_why_not():
    """Each feature with three random objectives: sums, phases, seconds, and the round trip through the contract."""
    random_, worked = random.Random(19), 0
    order = list(WAYS)
    for number, feature in enumerate(FEATURES):
        random_.shuffle(order)
        drawn = {id(way): way for way in (WAYS[number % len(WAYS)], *order[:2])}
        for way in drawn.values():
            answer = answered({**feature, **way})
            if answer is None:
                continue
            worked += 1
            written = write_estimate(answer)
            json.dumps(written)
            parts: Any = written["components"]
            assert sum(parts.values()) == written["peak_bytes"]
            for phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER_STEP):
                assert answer.phases[phase].bytes > 0
            if not answer.setup.task.objective.generates:  # generation may have no time estimate
                assert 0 < answer.time.step_seconds.low <= answer.time.step_seconds.high
            again = parse(write_fields(answer.model, answer.gpu, answer.setup))
            assert estimate(*again).peak == answer.peak
    assert worked > len(FEATURES)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_analysis_works_with_every_objective(way):
    """Limits, remedies, cards, several GPUs, explanations, text, scenarios, links."""
    setup = replace(BASE, **way)
    answer = estimate(MODEL, CARD, setup)
    batch, length = largest_micro_batch(MODEL, CARD, setup), longest_context(MODEL, CARD, setup)
    assert batch >= least_batch(setup)
    assert length >= least_length(setup.task)
    assert fits(MODEL, CARD, replace(setup, per_device_train_batch_size=batch))
    fewer_checkpoints(MODEL, CARD, replace(setup, gradient_checkpointing=True))
    too_much = estimate(MODEL, FEW[0], replace(setup, per_device_train_batch_size=batch))
    for remedy in remedies(too_much, FEW):
        assert remedy.text
    assert rank_gpus(MODEL, setup, FEW)
    assert best_way(MODEL, CARD, COUNTS[0], setup)
    ways = (Strategy.DDP, Strategy.ZERO3, Strategy.FSDP)
    for curve in scaling.curves(MODEL, CARD, setup, counts=(1, 4), strategies=ways):
        assert curve.points
    for part in (*Component, None):
        explain(answer, part)
    assert describe(answer)
    reading = read(scenario_of("it", MODEL, CARD, setup))
    assert not reading.problems
    assert reading.setup == setup

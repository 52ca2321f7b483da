"""Several GPUs: what each strategy shards, what it adds, and which combinations are refused.

tests/test_reference.py compares steps with traced ones ("FSDP 2", "ZeRO 1", "ZeRO 3").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from estimator import catalog, estimate
from estimator.answer.needs import need
from estimator.contract.setups import parse, read_setup
from estimator.families.model_tree import (
    At,
    modules_in_order,
    modules_with_counts,
    tied_head,
    total_parameters,
)
from estimator.families.modules import Module, weight_shapes
from estimator.families.packed import scale_bytes
from estimator.parallel.combinations import refusal
from estimator.parallel.strategies import resident_memory
from estimator.parallel.tensors import model_tensors
from estimator.parallel.zero import part_bytes, zero_part
from estimator.parallel.zero_partitions import (
    Parts,
    kept_gradients,
    partition,
    place,
    trained_elements,
)
from estimator.step.timeline import Plan, StepTimeline, structure
from estimator.values.methods import Method
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Model, Phase
from estimator.values.strategies import Strategy
from tests.steps import heights

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
A100 = catalog.gpu("A100-SXM4-80GB")
LORA: dict[str, Any] = {"method": "lora"}
ON_8 = {"num_gpus": 8, "max_length": 64, "max_grad_norm": 0.0}


def told(keys: dict[str, Any], **config: Any) -> Estimate:
    return estimate(*parse({"model": {**LLAMA, **config}, **keys}))


def test_fsdp_divides_weights_gradients_and_states_by_ranks():
    # by hand: float32 shards of every tensor under mixed precision; here 8 divides all row counts
    step = told({**ON_8, "strategy": "fsdp"}).phases[Phase.OPTIMIZER_STEP].resident
    layer = 2 * 1024**2 + 2 * 256 * 1024 + 3 * 1024 * 2816 + 2 * 1024
    parameters = 2 * 1000 * 1024 + 1024 + 6 * layer
    assert step[Component.WEIGHTS] == 4 * parameters / 8
    assert step[Component.GRADIENTS] == pytest.approx(4 * parameters / 8, rel=1e-3)
    assert step[Component.OPTIMIZER_STATES] == pytest.approx(8 * parameters / 8, rel=2e-3)


def test_ddp_adds_a_second_copy_of_the_gradients_in_every_phase():
    alone = told({"max_length": 64})
    shared = told({"max_length": 64, "num_gpus": 2, "strategy": "ddp"})
    gradients = alone.phases[Phase.OPTIMIZER_STEP].resident[Component.GRADIENTS]
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP):
        added = shared.phases[phase].bytes - alone.phases[phase].bytes
        assert added == pytest.approx(gradients, rel=1e-3)
        assert shared.phases[phase].resident[Component.COMMUNICATION] == added


def test_4_bit_weights_are_unsharded_without_a_float_storage_dtype():
    keys = {**ON_8, "strategy": "fsdp", "method": "qlora"}
    whole = told(keys).phases[Phase.OPTIMIZER_STEP].resident[Component.WEIGHTS]
    shard = told({**keys, "bnb_4bit_quant_storage": "bfloat16"})
    packed = 6 * (1024 * (1024 + 256 + 256 + 1024) + 3 * 1024 * 2816) // 2
    step = shard.phases[Phase.OPTIMIZER_STEP].resident
    assert whole - step[Component.WEIGHTS] == pytest.approx(packed * 7 / 8, rel=1e-3)


# --- ZeRO -----------------------------------------------------------------------------------------


def small_tensors() -> Model:
    """A model whose largest tensor is far smaller than a rank's part, so none spans several parts."""
    config = {**LLAMA, "num_hidden_layers": 600, "num_key_value_heads": 16}
    return parse({"model": config})[0]


def states_of(strategy: Strategy) -> float:
    """GB of weights, gradients and states on one rank of 64, scaled to the paper's 7.5 billion parameters."""
    model = small_tensors()
    of = zero_part(
        model, TrainingSetup(strategy=strategy, num_gpus=64, gradient_accumulation_steps=2)
    )
    gradients = of.accumulated if strategy is Strategy.ZERO1 else of.gradients
    total = of.weights + gradients + of.states.resident_bytes
    return total / total_parameters(model) * 7.5


@pytest.mark.parametrize(
    ("strategy", "gigabytes"),
    [(Strategy.ZERO1, 31.4), (Strategy.ZERO2, 16.6), (Strategy.ZERO3, 1.9)],
)
def test_zero_divides_as_in_figure_1_of_its_paper(strategy, gigabytes):
    # Rajbhandari et al. 2020, arXiv:1910.02054, Figure 1: 7.5B parameters, 64 GPUs, 12 bytes of states each
    assert states_of(strategy) == pytest.approx(gigabytes, rel=0.03)


def test_zero_2_at_its_step_matches_deepspeeds_own_estimate():
    # DeepSpeed 0.19.6, stage_1_and_2.py, estimate_zero2_model_states_mem_needs: 2 N + 18 N/W, where 18 is 12 of
    # weights and states, plus gradients in 16 bits and in float32. We count 2 more while the flat copy of the 16-bit
    # gradients is cast to float32, and whole tensors where a part's bound splits them.
    model, ranks = small_tensors(), 8
    of = zero_part(model, TrainingSetup(strategy=Strategy.ZERO2, num_gpus=ranks))
    count = total_parameters(model)
    ours = of.weights + of.gradients + of.states.resident_bytes + of.transient
    assert ours - 2 * count / ranks == pytest.approx(2 * count + 18 * count / ranks, rel=0.005)


def test_zero_3_matches_deepspeeds_own_estimate():
    # stage3.py, estimate_zero3_model_states_mem_needs: 18 N/W + 4 bytes of the largest layer. Its 18 are stage 2's
    # (2 and 4 of gradients, 12 of states); it omits the shards of the 16-bit weights, 2 N/W. Ours adds them, another
    # 2 N/W for the flat copy of the gradients (one group of 10^9 elements holds all), and norms whole on each rank.
    model, ranks = small_tensors(), 64
    of = zero_part(model, TrainingSetup(strategy=Strategy.ZERO3, num_gpus=ranks))
    count = total_parameters(model)
    norms = 2 * 1024 * (2 * 600 + 1)
    ours = of.weights + of.gradients + of.states.resident_bytes + of.transient - norms
    assert ours - 4 * count / ranks == pytest.approx(18 * count / ranks, rel=0.005)


def test_a_large_embeddings_gradient_is_whole_on_each_rank_that_shares_it():
    # Llama-3-8B on 64 GPUs: a part is 125 million elements, the embedding 525 million, and its gradient is kept whole
    # (copy_grads_in_partition copies param.numel() elements)
    model = catalog.model("meta-llama/Meta-Llama-3-8B")
    setup = TrainingSetup(strategy=Strategy.ZERO2, num_gpus=64)
    assert (
        max(kept_gradients(model, setup.adapters, setup.mesh.num_gpus))
        >= 128_256 * 4096
        > partition(model, setup)
    )


@pytest.mark.parametrize("ranks", [2, 3, 7, 64])
def test_each_group_is_padded_to_twice_the_ranks(ranks):
    # nccl_start_alignment_factor is 2: a group of n elements is padded to a multiple of 2 · ranks. One group has an
    # embedding and a head of 1,001 h each and a layer's 4 h² + 3 h f, the other 3 h of norms: h 48, f 101
    model = parse(
        {
            "model": {
                **LLAMA,
                "vocab_size": 1001,
                "hidden_size": 48,
                "intermediate_size": 101,
                "num_key_value_heads": 16,
                "num_hidden_layers": 1,
            }
        }
    )[0]
    matrices, norms = 2 * 1001 * 48 + 4 * 48**2 + 3 * 48 * 101, 3 * 48
    expected = sum(2 * -(-group // (2 * ranks)) for group in (matrices, norms))
    setup = TrainingSetup(strategy=Strategy.ZERO2, num_gpus=ranks)
    assert partition(model, setup) == expected
    # a rank holds float32 weights and two states of its part; its 16-bit weights stay whole
    states = zero_part(model, setup).states.resident_bytes
    assert 0 <= states - 12 * expected < 4 * 512


@pytest.mark.parametrize("strategy", [Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3])
@pytest.mark.parametrize("keys", [{}, {"method": Method.LORA}], ids=["full", "lora"])
def test_each_zero_stage_needs_no_more_than_the_one_before(strategy, keys):
    setup = TrainingSetup(strategy=strategy, num_gpus=8, gradient_checkpointing=True, **keys)
    of = estimate(MISTRAL, A100, setup)
    low, high = need(MISTRAL, A100, setup)
    if of.needs.replay is None:
        assert (low, high) == (of.need_low_bytes, of.need_high_bytes)
    else:  # PyTorch's allocator needs more than the tensors
        assert low < of.need_low_bytes
        assert of.need_high_bytes - of.need_low_bytes < high - low
    assert of.peak.bytes == max(moment.bytes for moment in of.moments)
    if strategy is not Strategy.ZERO1:
        before = {Strategy.ZERO2: Strategy.ZERO1, Strategy.ZERO3: Strategy.ZERO2}[strategy]
        assert of.peak.bytes <= estimate(MISTRAL, A100, replace(setup, strategy=before)).peak.bytes


def test_nccl_buffers_are_needed_beside_torchs_memory():
    two = TrainingSetup(strategy=Strategy.DDP, num_gpus=2)
    of = estimate(MISTRAL, A100, two)
    replay = of.needs.replay
    assert of.need_low_bytes - replay.least - of.context_bytes.low == 256 * 2**20
    assert of.need_high_bytes - replay.least - of.context_bytes.high == 544 * 2**20


FP16_WEIGHTS = [
    {"method": method, "dtype": dtype, "autocast_adapter_dtype": autocast}
    for method in ("full", "lora", "qlora")
    for dtype in ("float32", "float16", "bfloat16")
    for autocast in (True, False)
]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp1", "fsdp", "fsdp_grad_op", "zero2", "zero3"])
def test_fp16_is_refused_only_if_the_scaler_gets_16_bit_gradients(strategy):
    # torch 2.13, GradScaler: "Attempting to unscale FP16 gradients.", and no kernel for bfloat16. Its ShardedGradScaler
    # allows them; accelerate's FSDP 1 makes none. FSDP 2's trained weights become float32 except with a 4-bit base.
    sharing = {"strategy": strategy.removesuffix("1"), "num_gpus": 4, "max_length": 256}
    if strategy == "fsdp1":
        sharing["fsdp_version"] = 1
    for keys in FP16_WEIGHTS:
        kept_in_16_bits = (
            keys["dtype"] != "float32"
            and (keys["method"] == "full" or not keys["autocast_adapter_dtype"])
            and (strategy == "ddp" or (strategy.startswith("fsdp") and keys["method"] == "qlora"))
            and strategy != "fsdp1"
        )
        packed_as = {"bnb_4bit_quant_storage": keys["dtype"]} if keys["method"] == "qlora" else {}
        given = {"model": LLAMA, **sharing, **keys, **packed_as}
        found = read_setup({**given, "mixed_precision": "fp16"}).problems
        if kept_in_16_bits:
            assert f"refuses to unscale {keys['dtype']} gradients" in found[0]
            continue
        assert found == ()
        if not keys["autocast_adapter_dtype"]:
            continue
        # either way gathered and computed in 16 bits: the same memory
        told_fp16 = estimate(*parse({**given, "mixed_precision": "fp16"}))
        told_bf16 = estimate(*parse({**given, "mixed_precision": "bf16"}))
        assert heights(told_fp16) == heights(told_bf16)


def test_a_t4_can_run_fsdp_under_fp16():
    # no bfloat16; weights, gradients and AdamW's states take 16 bytes per parameter, sharded
    keys = {"dtype": "float16", "mixed_precision": "fp16", "strategy": "fsdp", "num_gpus": 16}
    answer = estimate(
        *parse({"model": "bigscience/bloom-7b1", "gpu": "T4", "max_length": 256, **keys})
    )
    assert answer.peak.bytes > 16 * total_parameters(answer.model) / 16
    assert answer.time.step_seconds.low > 0


def test_zero_3_shards_4_bit_weights():
    # the real DeepSpeed 0.19.8 on two ranks, bitsandbytes 0.50 with bfloat16 storage: after deepspeed.initialize a
    # Params4bit of 128 x 128 has ds_numel 4,096 (two weights per byte, two bytes per element), no data, and 2,048
    # elements in its ds_tensor; the model was also run
    config = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2}
    keys = {"method": "qlora", "strategy": "zero3", "bnb_4bit_quant_storage": "bfloat16"}
    model, _, two = parse({"model": {**LLAMA, **config}, **keys, "num_gpus": 2})
    tensors = model_tensors(model, two.adapters)
    query = next(
        one for one in tensors if one.module.name == "self_attn.q_proj" and not one.trained
    )
    scales = scale_bytes(128 * 128, double_quant=two.adapters.bnb_4bit_use_double_quant)
    assert part_bytes(query, two, 10 * 128) - scales == 2 * 2048
    # a weight of up to 10 h elements also stays whole
    assert part_bytes(query, two, 4096) - scales == 2 * (2048 + 4096)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_qlora_under_zero_3_shards_the_base(ranks):
    # by hand, Llama-2-70B: 34 GB of 4-bit weights, sharded; a rank gathers at most 10^9 elements of 2 bytes, plus
    # the fetch in progress
    model = catalog.model("meta-llama/Llama-2-70b-hf")
    keys = {
        "method": Method.QLORA,
        "strategy": Strategy.ZERO3,
        "bnb_4bit_quant_storage": "bfloat16",
    }
    setup = TrainingSetup(num_gpus=ranks, gradient_checkpointing=True, lora_r=1, **keys)
    weights = zero_part(model, setup).weights
    packed = (total_parameters(model) - 2 * 32_000 * 8192) / 2
    # a byte of scale per 64 weights, and 4 bytes per 256 of these, whole on each rank
    scales = 2 * packed / 64 * (1 + 4 / 256)
    ends = 4 * 32_000 * 8192
    assert weights == pytest.approx((packed + ends) / ranks + scales, rel=0.02)
    peak = estimate(model, None, setup).peak
    assert peak.resident[Component.WEIGHTS] < weights + 2.6 * 10**9


def test_a_larger_lora_rank_lowers_the_peak_only_through_zero_3_gathers():
    # stage3_max_live_parameters: 10^9 live elements; the embedding is half of them
    model = catalog.model("meta-llama/Meta-Llama-3-8B")
    keys = {
        "method": Method.QLORA,
        "strategy": Strategy.ZERO3,
        "bnb_4bit_quant_storage": "bfloat16",
    }
    told_of = [
        estimate(
            model, None, TrainingSetup(num_gpus=8, gradient_checkpointing=True, lora_r=r, **keys)
        )
        for r in (8, 64, 128, 200, 255, 271)
    ]
    fell = 0
    for less, more in pairwise(told_of):
        if more.peak.bytes < less.peak.bytes:
            fell += 1
            gathered = Component.WEIGHTS
            assert less.peak.resident[gathered] - more.peak.resident[gathered] > (
                less.peak.bytes - more.peak.bytes
            )
            assert any("stage3_max_live_parameters" in sentence for sentence in more.assumptions)
    assert fell


ONE_OF_EACH = {entry.model_type: entry for entry in map(catalog.model, reversed(catalog.models()))}
TOY = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 5000,
}
PHI3 = {"model_type": "phi3", "tie_word_embeddings": False, **TOY}
QWEN2 = {"model_type": "qwen2", "tie_word_embeddings": True, **TOY}
ALL_LINEAR = {"method": "lora", "lora_target_modules": "all-linear", "lora_dropout": 0}


@pytest.mark.parametrize(
    ("config", "layers", "keys", "kept", "part", "grown"),
    [
        (PHI3, 2, {}, [1280256, 1739008, 852224, 1673472, 1280256], 748186, 2_674_688),
        (PHI3, 4, {}, [1280512, 2067200, 1114880, 2001664, 1280512], 984322, 3_331_072),
        (QWEN2, 2, {}, [1280384, 1280384, 1280512, 1739264, 459264, 459264], 410326, 6_692_352),
        (QWEN2, 4, {}, [1280768, 1281024, 1870720, 721920, 721920, 721664], 607276, 5_706_240),
        (
            PHI3,
            4,
            {**ALL_LINEAR, "lora_r": 64, "gradient_checkpointing": True},
            [196608, 212992, 212992, 180224, 180224],
            170394,
            607_232,
        ),
    ],
)
def test_zero_2_gradients_by_rank_match_real_deepspeed(config, layers, keys, kept, part, grown):
    # Two micro-steps of the real DeepSpeed 0.19.8 (transformers 5.23, peft 0.21, torch 2.13) for each rank of 5 or 6, a
    # fake process group, on the CPU with every storage counted: elements of params_in_partition by rank, the sum of
    # partition_size, and in the second micro-step backward's peak over all ranks less forward's peak.
    # Phi-3 of 2 layers: rank 3 peaks in backward, rank 1 in forward, where it holds the most from the first micro-step.
    model, gpu, setup = parse(
        {
            "model": {**config, "num_hidden_layers": layers},
            "strategy": "zero2",
            "num_gpus": len(kept),
            "gradient_accumulation_steps": 2,
            "max_length": 64,
            **keys,
        }
    )
    assert list(kept_gradients(model, setup.adapters, setup.mesh.num_gpus)) == kept
    assert partition(model, setup) == part
    of = estimate(model, gpu, setup).phases
    found = of[Phase.BACKWARD].bytes - max(of[phase].bytes for phase in (Phase.FORWARD, Phase.LOSS))
    # 20 tensors of up to 512 bytes: attention saves different statistics on CPU and GPU
    assert found == pytest.approx(grown, abs=20 * 512)


@pytest.mark.parametrize("ranks", [3, 5, 8, 13])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_playing_only_distinct_layers_matches_playing_all(ranks, accumulated):
    # playing every layer separately gives the same step
    model, _, setup = parse(
        {
            "model": {**PHI3, "num_hidden_layers": 12, "hidden_size": 128, "vocab_size": 900},
            "strategy": "zero2",
            "num_gpus": ranks,
            "gradient_accumulation_steps": accumulated,
            "gradient_checkpointing": True,
            "max_length": 16,
        }
    )
    short, every = (_timeline(model, setup, alone) for alone in (None, range(12)))
    of_short, of_every = (step.heights()[Phase.BACKWARD].bytes for step in (short, every))
    # a represented layer copies a gradient if any layer of its kind does: at most a layer's input more
    assert 0 <= of_short - of_every <= 12 * 16 * 128 * 2


def _timeline(model: Model, setup: TrainingSetup, alone: Iterable[int] | None) -> StepTimeline:
    """With these layers played separately; None: as many as needed."""
    found = (
        nullcontext()
        if alone is None
        else patch.object(Parts, "_alone", lambda *_, **__: frozenset(map(At, alone)))
    )
    with found:
        plan = Plan(model, structure(setup))
        return StepTimeline(setup, plan, resident_memory(model, setup), 0)


def test_a_tensor_split_across_ranks_is_copied_only_while_a_slice_waits():
    # by hand: a part of 10 elements; 8 to 12 span two parts. A tensor beyond the limit is copied only if a slice
    # waits for the next one: 5 and 5 do under a limit of 6, 10 and 10 do not
    assert place(8, 12, 10, 6).ranks == range(2)
    assert place(0, 10, 10, 6) == (range(1), False)
    assert place(5, 15, 10, 6).copied
    assert not place(0, 20, 10, 6).copied


def test_an_estimate_refuses_what_the_contract_refuses():
    setup = TrainingSetup(num_gpus=4)
    assert refusal(setup)
    with pytest.raises(ValueError, match="needs a strategy"):
        estimate(MISTRAL, A100, setup)
    with pytest.raises(ValueError, match="needs a strategy"):
        need(MISTRAL, A100, replace(setup, num_gpus=5))


# --- real ZeRO stage 1 ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [pytest.param(model, id=kind) for kind, model in ONE_OF_EACH.items()],
)
def test_modules_in_order_lists_every_module_with_parameters(model):
    counted: Counter[Module] = Counter(tied_head(model))
    for module, count in modules_with_counts(model):
        counted[module] += count * bool(weight_shapes(module))
    assert Counter(placed.module for placed in modules_in_order(model)) == +counted


def test_zero_2_keeps_every_gradient_of_mixed_layers():
    # by hand: some rank keeps every gradient; both ranks keep one that their bound splits
    model = ONE_OF_EACH["granitemoehybrid"]
    setup = TrainingSetup(strategy=Strategy.ZERO2, num_gpus=3, max_length=16)
    trained = total_parameters(model)
    cut = 2 * 2 * max(trained_elements(model, setup.adapters))
    assert (
        trained <= sum(kept_gradients(model, setup.adapters, setup.mesh.num_gpus)) <= trained + cut
    )
    gradients = estimate(model, None, setup).phases[Phase.BACKWARD].resident[Component.GRADIENTS]
    assert gradients >= 2 * max(kept_gradients(model, setup.adapters, setup.mesh.num_gpus))

"""DPO, KTO, ORPO, reward models, classifiers and embeddings: memory of each, compared with steps already known.

Numbers are by hand or the difference to another step; traced steps of TRL's own trainers are in the reference cases.
Symbols: B examples, S tokens of a row, h hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator import (
    Component,
    Dtype,
    Estimate,
    Method,
    MixedPrecision,
    Phase,
    Strategy,
    TrainingSetup,
    catalog,
    estimate,
    largest_micro_batch,
    least_batch,
    least_length,
    longest_context,
    need,
    remedies,
)
from estimator.contract.estimates import write_estimate
from estimator.families.model_tree import modules_with_counts, total_parameters
from estimator.families.modules import Linear
from estimator.parallel.zero_hooks import ZeroHooks
from estimator.passes import prepared
from estimator.passes.batch import scored_tokens
from estimator.values.losses import Loss

MODEL = catalog.model("HuggingFaceTB/SmolLM2-135M")
A100 = catalog.gpu("A100-SXM4-80GB")
BASE = TrainingSetup(per_device_train_batch_size=2, max_length=512, gradient_checkpointing=True)
FUSED = replace(BASE, loss=Loss.CHUNKED_TRL)
TILE = 32_768
"""Columns per tile of logits: trl 1.16, trainer/utils.py."""


def of(setup: TrainingSetup = BASE, **keys: Any) -> Estimate:
    return estimate(MODEL, A100, replace(setup, **keys))


def sizes(setup: TrainingSetup = BASE, **keys: Any) -> dict[Phase, int]:
    return {phase: moment.bytes for phase, moment in of(setup, **keys).phases.items()}


# --- rows and scored tokens ---------------------------------------------------------------------


def test_a_pair_is_two_rows_of_supervised_fine_tuning():
    """With a precomputed reference a DPO step is a step on twice the rows, plus scalars and masks."""
    pairs = sizes(objective="dpo", precompute_ref_log_probs=True, max_prompt_length=1)
    rows = sizes(FUSED, per_device_train_batch_size=4)
    for phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD):
        # one more tensor in the batch (the completion mask), 8 bytes per token
        assert abs(pairs[phase] - rows[phase]) <= 4 * 512 * 3 * 8
    assert pairs[Phase.OPTIMIZER_STEP] == rows[Phase.OPTIMIZER_STEP]


@pytest.mark.parametrize(
    ("keys", "scored"),
    [
        ({}, 511),  # all but the first token, which nothing predicts
        ({"completion_fraction": 0.25}, 128),
        ({"completion_fraction": 1e-6}, 1),
        ({"objective": "dpo"}, 256),  # half of the row is prompt
        ({"objective": "dpo", "max_prompt_length": 500}, 12),
        ({"objective": "kto", "max_prompt_length": 1}, 511),
    ],
)
def test_only_completion_tokens_are_scored(keys, scored):
    assert scored_tokens(replace(BASE, **keys)) == scored


def test_prompt_tokens_cost_the_fused_head_nothing():
    """The loss holds the scored hidden states, N·h·2 bytes, and a tile of min(N, 4096)·32768·2: trl 1.16."""
    half, whole = (sizes(FUSED, completion_fraction=share)[Phase.LOSS] for share in (0.5, 1.0))
    fewer = 2 * 511 - 2 * 256
    by_hand = fewer * (MODEL.hidden_size * 2 + TILE * 2 + 7 * 4 + 8)
    assert whole - half == pytest.approx(by_hand, rel=1e-3)


def test_without_the_fused_head_prompt_tokens_cost_as_much_as_completion_tokens():
    assert sizes(completion_fraction=0.5) == sizes()


LLAMA = catalog.model("meta-llama/Llama-3.2-1B")


def test_trainer_smooths_labels_without_a_second_forward():
    phases = sizes(label_smoothing_factor=0.1)
    assert Phase.REFERENCE not in phases
    assert phases == sizes(label_smoothing_factor=0.2)


# --- the reference model ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FLOAT32])
@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_a_reference_is_a_second_copy_of_the_weights_in_the_policys_dtype(objective, dtype):
    peak = of(objective=objective, dtype=dtype).peak
    by_hand = total_parameters(MODEL) * dtype.bytes
    # each tensor is rounded up to 512 bytes
    assert peak.resident[Component.REFERENCE_MODEL] == pytest.approx(by_hand, rel=1e-4)
    assert peak.resident[Component.REFERENCE_MODEL] == peak.resident[Component.WEIGHTS]


def test_a_reference_of_a_full_model_is_whole_whatever_load_in_8bit_says():
    """Only adapters have a packed base: full fine-tuning ignores ``load_in_8bit``."""
    keys = {"objective": "dpo", "strategy": "fsdp", "num_gpus": 2}
    whole, same = (of(**keys, load_in_8bit=said).peak for said in (False, True))
    assert whole == same


def test_adapters_and_precomputed_references_need_no_second_model():
    for keys in ({"method": Method.LORA}, {"precompute_ref_log_probs": True}):
        answer = of(objective="dpo", **keys)
        assert all(
            Component.REFERENCE_MODEL not in moment.resident for moment in answer.phases.values()
        )
    assert Phase.REFERENCE in of(objective="dpo", method=Method.LORA).phases
    assert Phase.REFERENCE not in of(objective="dpo", precompute_ref_log_probs=True).phases


def test_the_reference_runs_while_the_policys_graph_is_alive():
    answer = of(objective="dpo", gradient_checkpointing=False)
    saved = [moment for moment in answer.moments if moment.phase is Phase.LOSS][-1]
    asked = answer.phases[Phase.REFERENCE]
    assert asked.resident[Component.ACTIVATIONS] >= saved.resident[Component.ACTIVATIONS]
    assert asked.name.startswith("reference: ")


def test_autocast_caches_16_bit_copies_of_a_float32_reference():
    """2 bytes per weight of a linear: from_pretrained leaves requires_grad on, so autocast caches each cast."""
    keys = {"objective": "dpo", "dtype": Dtype.FLOAT32}
    linears = sum(linear.in_features * linear.out_features for linear in _linears())
    copies = [
        sizes(**keys, mixed_precision=autocast)[Phase.REFERENCE] - _saved(keys, autocast)
        for autocast in (MixedPrecision.BF16, MixedPrecision.NO)
    ]
    assert copies[0] > 2 * linears
    # without autocast the pass needs only one layer's tensors and the head's tile
    assert copies[1] < copies[0] - linears


def _saved(keys: dict[str, Any], autocast: MixedPrecision) -> int:
    moments = of(**keys, mixed_precision=autocast).moments
    before = [moment for moment in moments if moment.phase is Phase.LOSS]
    return before[-1].bytes


def _linears() -> list[Any]:
    return [
        module
        for module, count in modules_with_counts(MODEL)
        for _ in range(count)
        if isinstance(module, Linear)
    ]


def test_adapter_dropout_is_zero_where_trl_disables_it():
    for objective in ("dpo", "orpo", "reward"):
        with_it = of(objective=objective, method=Method.LORA, lora_dropout=0.1)
        without = of(objective=objective, method=Method.LORA, lora_dropout=0.0)
        assert with_it.peak == without.peak
    kept = sizes(FUSED, method=Method.LORA, gradient_checkpointing=False, lora_dropout=0.1)
    assert kept != sizes(FUSED, method=Method.LORA, gradient_checkpointing=False, lora_dropout=0.0)


# --- several GPUs -------------------------------------------------------------------------------


SHARES = {
    Strategy.DDP: 1.0,  # prepare_model(evaluation_mode=True)
    Strategy.ZERO1: 1.0,  # stage 0 for the reference: trl 1.16, models/utils.py, prepare_deepspeed
    Strategy.ZERO2: 1.0,
    Strategy.ZERO3: 1 / 4,
    Strategy.FSDP: 1 / 4,
}


@pytest.mark.parametrize("strategy", SHARES)
def test_a_reference_is_sharded_or_replicated_by_strategy(strategy):
    answer = of(objective="dpo", num_gpus=4, strategy=strategy)
    there = answer.phases[Phase.OPTIMIZER_STEP].resident[Component.REFERENCE_MODEL]
    by_hand = 2 * total_parameters(MODEL) * SHARES[strategy]
    # a weight's rows are padded to a multiple of 4, and norms stay whole under ZeRO-3
    assert there == pytest.approx(by_hand, rel=0.01)


def test_fsdp2_gathers_the_whole_reference_for_its_call():
    """The root is the only group, so the gather buffer and all weights: twice the model (trl 1.16, prepare_fsdp)."""
    keys = {"objective": "dpo", "num_gpus": 4, "strategy": Strategy.FSDP}
    held = of(**keys).phases[Phase.REFERENCE].resident
    gathered = held[Component.COMMUNICATION] + held[Component.WEIGHTS]
    shards = 2 * total_parameters(MODEL) / 4
    assert gathered > 2 * 2 * total_parameters(MODEL) * 0.99
    assert held[Component.REFERENCE_MODEL] == pytest.approx(shards, rel=0.01)


def test_the_fused_loss_is_called_by_no_other_trainers_name():
    said = [
        sentence
        for sentence in of(FUSED, objective="dpo").assumptions
        if "tile by tile" in sentence
    ]
    assert said
    assert not any("SFT" in sentence for sentence in said)


def test_zero3_gathers_the_head_for_the_fused_loss_and_again_in_backward(monkeypatch):
    """V·h elements in the weights' dtype: trl 1.16, maybe_gather_lm_head_ctx, in forward and in backward."""
    keys = {"loss": Loss.CHUNKED_TRL, "num_gpus": 4, "strategy": Strategy.ZERO3}
    setup = replace(BASE, method=Method.LORA, gradient_checkpointing=False, **keys)
    untied = replace(MODEL, tie_word_embeddings=False)
    gathers = estimate(untied, None, setup)
    monkeypatch.setattr(ZeroHooks, "gather", lambda *_: None)
    never = estimate(replace(untied, hub_id="the same without"), None, setup)
    head = 2 * MODEL.vocab_size * MODEL.hidden_size
    assert gathers.phases[Phase.LOSS].bytes - never.phases[Phase.LOSS].bytes == head
    of_head = [
        next(moment.bytes for moment in answer.moments if moment.phase is Phase.BACKWARD)
        for answer in (gathers, never)
    ]
    assert of_head[0] - of_head[1] == head


# --- reinforcement learning ---------------------------------------------------------------------

RL = {"max_completion_length": 256, "num_generations": 2}


@pytest.mark.parametrize(
    ("keys", "labels"),
    [
        ({"objective": "grpo"}, set()),  # beta is 0, steps are aligned
        ({"objective": "grpo", "beta": 0.04}, {"reference"}),
        ({"objective": "grpo", "num_iterations": 2}, {"old"}),
        ({"objective": "grpo", "steps_per_generation": 2}, {"old"}),
        # one step of four micro-steps, all on one generation
        (
            {
                "objective": "grpo",
                "steps_per_generation": 4,
                "gradient_accumulation_steps": 4,
            },
            set(),
        ),
        ({"objective": "rloo"}, {"old", "reference"}),
        ({"objective": "rloo", "beta": 0.0}, {"old"}),
    ],
)
def test_rl_completions_are_scored_before_the_graph_exists(keys, labels):
    answer = of(**RL, **keys)
    scored = [moment for moment in answer.moments if moment.phase is Phase.SCORING]
    assert {moment.name.partition(":")[0] for moment in scored} == labels
    resting = answer.phases[Phase.FORWARD].resident[Component.WEIGHTS]
    assert all(moment.resident[Component.WEIGHTS] == resting for moment in scored)
    assert (Component.REFERENCE_MODEL in answer.peak.resident) is ("reference" in labels)


def test_grpo_without_a_reference_costs_sft_on_the_completions():
    grpo = sizes(objective="grpo", **RL)
    tuned = sizes(FUSED, completion_fraction=0.5)
    for phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD):
        assert abs(grpo[phase] - tuned[phase]) <= 2 * 512 * 4 * 8  # ids and masks


def test_the_time_of_a_step_includes_its_generation():
    answer = of(objective="grpo", **RL)
    assert {"prompts of the generation", "tokens of the generation"} <= {
        part.name for part in answer.time.parts
    }


# --- mixture of experts -------------------------------------------------------------------------


def test_trl_always_requests_router_logits_of_a_mixture_of_experts(monkeypatch):
    """T·E logits per layer, 2 bytes each, live until the loss; the reference returns none."""
    mixture = catalog.model("Qwen/Qwen3-30B-A3B")
    setup = replace(FUSED, method=Method.LORA, lora_target_modules=("q_proj",))
    routed = estimate(mixture, None, setup)
    said = estimate(replace(mixture, output_router_logits=True), None, setup)
    assert routed.peak == said.peak
    monkeypatch.setattr(prepared, "balances_experts", lambda _: False)
    plain = estimate(replace(mixture, hub_id="the same without"), None, setup)
    logits = 2 * (2 * 512) * mixture.num_experts * mixture.num_hidden_layers
    ends = [
        [moment for moment in answer.moments if moment.phase is Phase.FORWARD][-1].bytes
        for answer in (routed, plain)
    ]
    assert ends[0] - ends[1] == logits


# --- KTO ----------------------------------------------------------------------------------------


def test_kto_runs_four_forward_passes_and_its_unpaired_loss_two():
    labels = {
        moment.name.partition(":")[0]
        for moment in of(objective="kto").moments
        if moment.phase is Phase.REFERENCE
    }
    assert labels == {"KL", "reference's KL", "reference"}
    unpaired = of(objective="kto", loss_type="apo_zero_unpaired")
    assert {
        moment.name.partition(":")[0]
        for moment in unpaired.moments
        if moment.phase is Phase.REFERENCE
    } == {"reference"}


def test_kto_saves_a_graph_for_its_rows_only():
    single = sizes(objective="kto", precompute_ref_log_probs=True, max_prompt_length=1)
    rows = sizes(FUSED)
    assert abs(single[Phase.FORWARD] - rows[Phase.FORWARD]) <= 2 * 512 * 6 * 8


# --- ORPO ---------------------------------------------------------------------------------------


def test_orpo_holds_two_and_a_half_float32_gradients_of_all_logits():
    """20·B·S·V bytes in backward: 10 for each of the 2·B·S tokens' V logits (trl 1.16, concatenated_forward)."""
    answer = of(objective="orpo", per_device_train_batch_size=4)
    by_hand = 20 * 4 * 512 * MODEL.vocab_size
    logits = answer.phases[Phase.BACKWARD].resident
    held = logits.get(Component.LOGITS, 0) + logits.get(Component.TEMPORARIES, 0)
    assert held == pytest.approx(by_hand, rel=0.01)
    assert answer.peak.phase is Phase.BACKWARD


def test_cpo_takes_what_orpo_takes_and_alphapo_reads_no_chosen_row_twice():
    """Of the chosen half, backward holds one tensor in float32 less: trl 1.16, cpo_config.py, ``cpo_alpha`` 0."""
    keys = {"per_device_train_batch_size": 4}
    orpo, cpo = of(objective="orpo", **keys), of(objective="cpo", loss_type="simpo", **keys)
    alphapo = of(objective="cpo", loss_type="alphapo", **keys)
    assert cpo.phases == orpo.phases
    assert cpo.time == orpo.time
    spared = cpo.phases[Phase.BACKWARD].bytes - alphapo.phases[Phase.BACKWARD].bytes
    assert spared == pytest.approx(4 * 4 * 512 * MODEL.vocab_size, rel=0.01)
    of_loss = [
        next(part for part in answer.time.parts if part.name == "logits and loss").seconds.high
        for answer in (alphapo, cpo)
    ]
    assert of_loss[1] == pytest.approx(1.5 * of_loss[0], rel=0.01)  # the chosen half is read twice


def test_orpo_casts_the_embedding_beside_a_4_bit_base_back_under_bfloat16():
    """V·h elements, 4 bytes after prepare_model_for_kbit_training, 2 after peft_module_casting_to_bf16."""
    packed = {"objective": "orpo", "method": Method.QLORA}
    cast_back, prepared = of(**packed), of(**packed, mixed_precision=MixedPrecision.NO)
    weights = [
        answer.phases[Phase.OPTIMIZER_STEP].resident[Component.WEIGHTS]
        for answer in (cast_back, prepared)
    ]
    assert weights[1] - weights[0] == 2 * MODEL.vocab_size * MODEL.hidden_size


# --- classification heads, and no head ----------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "labels"),
    [
        ({"objective": "reward"}, 1),
        ({"objective": "reward", "num_labels": 7}, 1),
        ({"objective": "sequence_classification"}, 2),
        ({"objective": "sequence_classification", "num_labels": 20}, 20),
    ],
)
def test_a_classification_head_replaces_the_lm_head(keys, labels):
    """SmolLM2's head is its embedding, which stays: h·labels parameters are added, and there are no logits."""
    answer = of(**keys)
    assert answer.total_parameters == total_parameters(MODEL) + MODEL.hidden_size * labels
    assert all(
        Component.LOGITS not in moment.resident or moment.resident[Component.LOGITS] < 2**20
        for moment in answer.phases.values()
    )


def test_a_new_head_is_fully_trained_beside_adapters():
    answer = of(objective="reward", method=Method.LORA)
    adapters = of(method=Method.LORA).trainable_parameters
    assert answer.trainable_parameters == adapters + MODEL.hidden_size
    named = of(objective="reward", method=Method.LORA, modules_to_save=("score",))
    assert named.trainable_parameters == answer.trainable_parameters


def test_embedding_models_have_no_head():
    untied = replace(MODEL, tie_word_embeddings=False)
    setup = replace(BASE, objective="embedding")
    parameters = estimate(untied, None, setup).total_parameters
    assert parameters == total_parameters(untied) - MODEL.hidden_size * MODEL.vocab_size


def test_grad_cache_needs_one_mini_batch_and_accumulated_gradients():
    keys = {"objective": "embedding", "per_device_train_batch_size": 256}
    cached = sizes(**keys, mini_batch_size=4)
    larger = sizes(**(keys | {"per_device_train_batch_size": 512}), mini_batch_size=4)
    # for twice the batch: two columns of ids and masks, vectors and their gradients, and one mini-batch's scores
    more = 256 * (4 * 512 * 8 + 4 * MODEL.hidden_size * 4)
    assert larger[Phase.FORWARD] - cached[Phase.FORWARD] == pytest.approx(more, rel=0.01)
    gradients = 2 * total_parameters(MODEL)
    assert of(**keys, mini_batch_size=4).phases[Phase.FORWARD].resident[
        Component.GRADIENTS
    ] == pytest.approx(gradients, rel=1e-4)


# --- time ---------------------------------------------------------------------------------------


def work(**keys: Any) -> tuple[float, float]:
    """Operations of a step: as MFU counts them, and as the GPU executes them."""
    time = of(**keys).time
    return time.model_flops_per_step.high, time.hardware_flops_per_step


def test_pairs_double_the_work_and_the_reference_adds_a_third():
    """A forward pass is a third of forward and backward; without checkpointing nothing else runs."""
    one = {"gradient_checkpointing": False, "max_prompt_length": 1}
    rows, _ = work(loss=Loss.CHUNKED_TRL, gradient_checkpointing=False)
    pairs, run = work(objective="dpo", precompute_ref_log_probs=True, **one)
    assert pairs == pytest.approx(2 * rows, rel=2e-3)  # one token of 512 is prompt
    _, asked = work(objective="dpo", **one)
    assert asked - run == pytest.approx(
        pairs / 3, rel=0.02
    )  # attention's backward is 2.5 times its forward


def test_precomputing_adds_a_pass_at_the_start_and_shortens_every_step():
    asking = of(objective="dpo", num_train_epochs=3.0).time
    before = of(objective="dpo", num_train_epochs=3.0, precompute_ref_log_probs=True).time
    assert asking.before is None
    assert before.step_seconds.high <= asking.step_seconds.high
    once = before.total_steps / 3 * (asking.step_seconds.low - before.step_seconds.low)
    assert before.before.seconds.low == pytest.approx(once, rel=1e-3)
    total = before.total_steps * before.step_seconds.low + before.before.seconds.low
    assert before.total_hours.low == pytest.approx(total / 3600)


def test_a_published_dpo_step_is_inside_the_bracket():
    """6.19 seconds: OLMo2-7B on 16 H100 under FSDP, 524,288 tokens a step, rows packed to 16,384, half of them chosen.

    The reference's log-probabilities are cached before training, and nearly all activations are recomputed.
    No other published step of preference training was found that gives its tokens, card and sharding.

    Source: https://github.com/allenai/open-instruct/pull/1466 (6 February 2026, "bs=32"), read 2026-11-23.
    """
    setup = TrainingSetup(
        objective="dpo",
        precompute_ref_log_probs=True,
        max_length=16_384,
        max_prompt_length=1,
        gradient_checkpointing=True,
        attn_implementation="flash_attention_2",
        strategy=Strategy.FSDP,
        num_gpus=16,
    )
    card = catalog.gpu("H100-SXM5-80GB")
    time = estimate(catalog.model("allenai/OLMo-2-1124-7B"), card, setup).time
    assert 2 * 16_384 * 16 == 524_288
    assert time.step_seconds.low < 6.19 < time.step_seconds.high


# --- remedies -----------------------------------------------------------------------------------


def titles(**keys: Any) -> dict[str, dict[str, Any]]:
    """Titles of the remedies for a card of 24 GB."""
    gpu = catalog.gpu("RTX 4090")
    setup = replace(BASE, dtype=Dtype.FLOAT32, gradient_checkpointing=True, **keys)
    return {remedy.title: dict(remedy.keys) for remedy in remedies(estimate(LLAMA, gpu, setup), ())}


def test_precomputing_is_the_first_remedy_for_a_reference_that_does_not_fit():
    found = titles(objective="dpo")
    alone = [keys for title, keys in found.items() if title.startswith("Reference precomputed")]
    assert alone, found
    assert all(keys["precompute_ref_log_probs"] is True for keys in alone)
    assert not any("Liger" in title or "tiles" in title for title in found)


def test_an_embedding_batch_is_split_and_never_made_smaller():
    keys = {"objective": "embedding", "per_device_train_batch_size": 256}
    setup = replace(BASE, method=Method.LORA, **keys)
    found = remedies(estimate(LLAMA, catalog.gpu("RTX 4090"), setup), ())
    assert any(set(remedy.keys) == {"mini_batch_size"} for remedy in found)
    assert not any("per_device_train_batch_size" in remedy.keys for remedy in found)


# --- the answer ---------------------------------------------------------------------------------


def test_only_objectives_with_a_reference_list_it():
    plain = write_estimate(of())
    assert "reference_model" not in plain["components"]
    assert "reference" not in plain["phases"]
    asked = write_estimate(of(objective="dpo"))
    assert sum(asked["components"].values()) == asked["peak_bytes"]
    assert asked["phases"]["reference"] > 0


def test_loading_and_evaluation_hold_the_reference_too():
    answer = of(objective="dpo", eval_strategy="steps")
    alone = of(eval_strategy="steps")
    for phase in (Phase.LOAD, Phase.EVALUATION):
        assert answer.phases[phase].resident[Component.REFERENCE_MODEL] > 0
        assert Component.REFERENCE_MODEL not in alone.phases[phase].resident


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {"objective": "kto"},
        {"objective": "dpo", "max_prompt_length": 400},
        {"objective": "grpo", "max_completion_length": 256, "num_generations": 6},
    ],
)
def test_limits_respect_the_rows_an_objective_needs(keys):
    gpu, setup = catalog.gpu("RTX 4090"), replace(BASE, per_device_train_batch_size=6, **keys)
    size, length = largest_micro_batch(MODEL, gpu, setup), longest_context(MODEL, gpu, setup)
    assert size % least_batch(setup) == 0 or setup.task.objective == "kto"
    assert size >= least_batch(setup)
    assert length >= least_length(setup.task)
    for held, changed in (
        (size, {"per_device_train_batch_size": size}),
        (length, {"max_length": length}),
    ):
        assert held > 0
        assert need(MODEL, gpu, replace(setup, **changed)).high <= gpu.memory_bytes

"""Limits are exact and remedies keep their word, over random setups of the catalogue's models and cards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimator import (
    AttnImplementation,
    Dtype,
    Loss,
    Method,
    MixedPrecision,
    Optimizer,
    Phase,
    TrainingSetup,
    Verdict,
    catalog,
    estimate,
)
from estimator.engine import least_need
from estimator.limits import fits, largest_micro_batch, longest_context, smallest_gpu
from estimator.memory.optimizer import LOW_RANK_OPTIMIZERS
from estimator.remedies import remedies
from estimator.specs import LARGEST

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
A100 = catalog.gpu("A100-SXM4-80GB")
SETUPS = st.builds(
    TrainingSetup,
    method=st.sampled_from(Method),
    dtype=st.sampled_from([Dtype.BFLOAT16, Dtype.FLOAT32]),
    mixed_precision=st.sampled_from([MixedPrecision.NO, MixedPrecision.BF16]),
    optim=st.sampled_from(Optimizer),
    optim_state_dtype=st.sampled_from([None, None, Dtype.FLOAT32]),
    attn_implementation=st.sampled_from([AttnImplementation.SDPA, AttnImplementation.EAGER]),
    gradient_checkpointing=st.booleans(),
    padded=st.booleans(),
    per_device_train_batch_size=st.integers(1, 48),
    gradient_accumulation_steps=st.integers(1, 4),
    max_length=st.integers(16, 2000),
    use_liger_kernel=st.booleans(),
    loss=st.sampled_from([None, None, Loss.STANDARD, Loss.CHUNKED_TRL]),
    lora_r=st.sampled_from([4, 16, 64]),
)
# one model of each family and size is enough; each is played anew for every structure
MODELS = st.sampled_from(
    [
        MISTRAL,
        *map(
            catalog.model,
            [
                "openai-community/gpt2",
                "HuggingFaceTB/SmolLM2-135M",
                "Qwen/Qwen3-8B",
                "google/gemma-2-2b",
                "meta-llama/Llama-3.1-70B",
            ],
        ),
    ]
)
GPUS = st.sampled_from([card for card in catalog.gpus().values() if card.vendor == "NVIDIA"])


def can_be_trained(model, setup):
    """GPT-2 has learned so many positions, and no nn.Linear whose gradient GaLore or APOLLO could project."""
    is_long = 0 < model.position_limit <= setup.max_length
    has_linear = setup.uses_adapters or model.model_type != "gpt2"
    return not is_long and (has_linear or setup.optim not in LOW_RANK_OPTIMIZERS)


@settings(max_examples=200, deadline=None)
@given(model=MODELS, gpu=GPUS, setup=SETUPS)
def test_every_limit_fits_and_one_more_does_not(model, gpu, setup):
    assume(can_be_trained(model, setup))
    batch = largest_micro_batch(model, gpu, setup)
    assert batch == 0 or fits(model, gpu, replace(setup, per_device_train_batch_size=batch))
    if batch != LARGEST["per_device_train_batch_size"]:
        assert not fits(model, gpu, replace(setup, per_device_train_batch_size=batch + 1))
    length = longest_context(model, gpu, setup)
    assert length == 0 or fits(model, gpu, replace(setup, max_length=length))
    if length != model.position_limit:
        assert not fits(model, gpu, replace(setup, max_length=length + 1))


@settings(max_examples=250, deadline=None)
@given(model=MODELS, gpu=GPUS, setup=SETUPS)
def test_every_remedy_applied_does_what_it_promised(model, gpu, setup):
    assume(can_be_trained(model, setup))
    before = estimate(model, gpu, setup)
    proposed = remedies(before, catalog.gpus_like(gpu))
    if before.verdict is Verdict.FITS:
        assert proposed == ()
    singles = [remedy for remedy in proposed if len(remedy.title.split(" + ")) == 1]
    for remedy in proposed:
        keys = dict(remedy.keys)
        card = catalog.gpu(keys.pop("gpu", gpu.name))
        after = estimate(model, card, replace(setup, **keys))
        assert after.verdict is Verdict.FITS
        assert after.need_high_bytes == remedy.need_high_bytes
        assert after.setup.effective_batch_size == setup.effective_batch_size
        if card == gpu:
            assert remedy.saved_bytes == before.need_high_bytes - after.need_high_bytes > 0
        else:
            assert card.memory_bytes > gpu.memory_bytes
    assert not [
        it for it in proposed if it not in singles and any("gpu" not in s.keys for s in singles)
    ]


@settings(max_examples=40, deadline=None)
@given(model=MODELS, setup=SETUPS)
def test_the_smallest_gpu_fits_and_none_smaller_does(model, setup):
    assume(can_be_trained(model, setup))
    cards = catalog.gpus_like(None)
    smallest = smallest_gpu(model, cards, setup)
    if smallest is not None:
        assert fits(model, smallest, setup)
    limit = smallest.memory_bytes if smallest else 2**60
    suited = [it for it in cards if it.supports_bf16 or not setup.uses_bf16]
    assert not [it for it in suited if it.memory_bytes < limit and fits(model, it, setup)]
    assert smallest is None or smallest in suited


@settings(max_examples=60, deadline=None)
@given(model=MODELS, setup=SETUPS)
def test_no_setup_needs_less_than_its_optimizer_s_step(model, setup):
    assume(can_be_trained(model, setup))
    answer = estimate(model, None, setup)
    assert least_need(model, setup) <= answer.need_low_bytes
    step = answer.phases[Phase.OPTIMIZER_STEP]
    assert least_need(model, setup) < step.bytes + answer.context_high_bytes


def test_a_learned_position_table_is_the_longest_context():
    gpt2 = catalog.model("openai-community/gpt2")
    assert longest_context(gpt2, A100, TrainingSetup()) == 1024


def test_the_example_is_mended_by_real_states_first_and_by_adapters_last():
    what_if = TrainingSetup(mixed_precision=MixedPrecision.NO, optim_state_dtype=Dtype.FLOAT32)
    proposed = remedies(estimate(MISTRAL, A100, what_if), catalog.gpus_like(A100))
    assert [dict(remedy.keys) for remedy in proposed[:1]] == [{"optim_state_dtype": None}]
    assert [remedy.keys.get("method") for remedy in proposed[2:4]] == [Method.LORA, Method.QLORA]
    assert "gpu" in proposed[-1].keys


def test_accumulation_is_never_proposed_to_a_card_that_is_full_of_weights():
    # 7.24 billion parameters x (2 weights + 2 gradients + 2 x 4 states) are 80.9 GiB at any batch
    setup = TrainingSetup(
        mixed_precision=MixedPrecision.NO,
        optim_state_dtype=Dtype.FLOAT32,
        per_device_train_batch_size=8,
    )
    assert least_need(MISTRAL, setup) > 12 * MISTRAL_PARAMETERS
    proposed = remedies(estimate(MISTRAL, A100, setup), catalog.gpus_like(A100))
    assert not [
        it
        for it in proposed
        if set(it.keys) == {"per_device_train_batch_size", "gradient_accumulation_steps"}
    ]


MISTRAL_PARAMETERS = 7_241_732_096


def test_adapters_on_experts_are_proposed_without_the_dropout_that_peft_refuses_there():
    olmoe, card = catalog.model("allenai/OLMoE-1B-7B-0924"), catalog.gpu("A100-SXM4-40GB")
    proposed = remedies(estimate(olmoe, card, TrainingSetup()), [])
    (lora,) = [remedy for remedy in proposed if remedy.keys.get("method") is Method.LORA]
    assert lora.keys["lora_dropout"] == 0
    assert estimate(olmoe, card, replace(TrainingSetup(), **lora.keys)).verdict is Verdict.FITS


def test_two_changes_are_proposed_where_no_single_one_is_enough():
    setup = TrainingSetup(per_device_train_batch_size=16, max_length=4096)
    card = catalog.gpu("L4")
    proposed = remedies(estimate(MISTRAL, card, setup), [])
    assert proposed
    assert all(" + " in remedy.title for remedy in proposed)


def test_without_a_gpu_there_is_nothing_to_remedy():
    assert remedies(estimate(MISTRAL, None, TrainingSetup()), catalog.gpus_like(None)) == ()


@pytest.mark.parametrize("cards", [[], [catalog.gpu("T4")]])
def test_no_card_is_named_where_none_is_large_enough(cards):
    assert smallest_gpu(catalog.model("meta-llama/Llama-3.1-70B"), cards, TrainingSetup()) is None

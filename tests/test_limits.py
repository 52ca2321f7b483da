"""Limits are exact and remedies work, for random setups of catalogued models and cards."""

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
from estimator.answer.needs import least_need
from estimator.contract.setups import parse
from estimator.parallel.combinations import beyond_one_machine, refusal, sharing_keys
from estimator.parallel.fsdp2_hooks import check_head
from estimator.resident.optimizer import LOW_RANK_OPTIMIZERS
from estimator.search.free_changes import free_changes
from estimator.search.limits import (
    MOST_GPUS,
    _largest_micro_batch,
    _longest_context,
    evaluation_stops,
    fits,
    holds,
    largest_micro_batch,
    longest_context,
    shortest_row,
    smallest_gpu,
    smallest_set,
)
from estimator.search.remedies import remedies
from estimator.values.keys import LARGEST
from estimator.values.specs import Offload
from estimator.values.strategies import Strategy

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
    num_gpus=st.just(1),
)
SEVERAL = st.builds(
    replace,
    SETUPS,
    num_gpus=st.sampled_from([2, 3, 4, 8]),
    gpus_per_node=st.sampled_from([4, 8]),
    strategy=st.sampled_from([strategy for strategy in Strategy if strategy is not Strategy.NONE]),
    dp_replicate_size=st.sampled_from([1, 1, 2]),
    bnb_4bit_quant_storage=st.sampled_from(["uint8", "bfloat16"]),
    fsdp_version=st.sampled_from([2, 2, 2, 1]),
    offload_optimizer=st.sampled_from([Offload.NONE, Offload.NONE, Offload.CPU]),
    offload_param=st.sampled_from([Offload.NONE, Offload.NONE, Offload.CPU]),
)
# one model per family and size is enough; each is simulated again for every structure
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
    """GPT-2 has a fixed number of learned positions and no nn.Linear whose gradient GaLore or APOLLO could project.

    Not every strategy works with every setup, and a device map does not span two machines.
    """
    is_long = 0 < model.position_limit <= setup.batch.max_length
    has_linear = setup.adapters.uses_adapters or model.model_type != "gpt2"
    is_projected = has_linear or setup.optimisation.optim not in LOW_RANK_OPTIMIZERS
    is_shared = refusal(setup) is None and beyond_one_machine(setup.mesh) is None
    return not is_long and is_projected and is_shared and finds_head(model, setup)


def finds_head(model, setup):
    """With adapters, Liger's loss reads a head that FSDP 2 has not gathered."""
    try:
        check_head(model, setup)
    except ValueError:
        return False
    return True


@settings(max_examples=25)
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


@settings(max_examples=35)
@given(model=MODELS, gpu=GPUS, setup=st.one_of(SETUPS, SEVERAL))
def test_every_applied_remedy_does_what_it_promised(model, gpu, setup):
    assume(can_be_trained(model, setup))
    before = estimate(model, gpu, setup)
    proposed = remedies(before, catalog.gpus_like(gpu))
    if before.verdict is Verdict.FITS:
        assert proposed == ()
    named = [bool({"gpu", "num_gpus"} & set(remedy.keys)) for remedy in proposed]
    assert len({*named}) <= 1, "a card is named only where no change on this one is enough"
    for remedy in proposed:
        keys = dict(remedy.keys)
        card = catalog.gpu(keys.pop("gpu", gpu.name))
        after = estimate(model, card, replace(setup, **keys))
        assert after.verdict is Verdict.FITS
        assert after.need_high_bytes == remedy.need_high_bytes
        if after.setup.effective_batch_size != setup.effective_batch_size:
            assert f"grows to {after.setup.effective_batch_size:,}." in remedy.text
            assert setup.effective_batch_size % after.setup.mesh.num_gpus
        if card == gpu:
            assert remedy.saved_bytes == before.need_high_bytes - after.need_high_bytes > 0
        else:
            assert card.memory_bytes > gpu.memory_bytes
        if "num_gpus" in remedy.keys:
            no_fewer_gpus_do(model, gpu, setup, after.setup)


def no_fewer_gpus_do(model, gpu, before, after):
    """Half as many GPUs, shared the same way, do not hold it; skipped if the setup already had that many."""
    number = after.mesh.num_gpus // 2
    if number <= max(before.mesh.num_gpus, 1):
        return
    alike = replace(before, gradient_checkpointing=after.computation.gradient_checkpointing)
    keys = sharing_keys(alike, after.mesh.strategy, number)
    assert not holds(model, gpu, replace(alike, **keys))


@settings(max_examples=25)
@given(model=MODELS, gpu=st.one_of(st.none(), GPUS), setup=st.one_of(SETUPS, SEVERAL))
def test_smallest_set_fits_and_fewer_gpus_do_not(model, gpu, setup):
    assume(can_be_trained(model, setup))
    found = smallest_set(model, gpu, catalog.gpus_like(gpu), setup)
    if found is None:
        return
    assert fits(model, found.gpu, found.setup)
    assert replace(setup, **found.keys) == found.setup
    assert setup.mesh.num_gpus < found.setup.mesh.num_gpus <= MOST_GPUS
    if gpu == found.gpu:
        no_fewer_gpus_do(model, gpu, setup, found.setup)


def test_zero3_is_proposed_for_setups_that_fsdp_cannot_train():
    # with adapters, Liger's loss reads an untied head that FSDP 2 does not gather
    llama = catalog.model("meta-llama/Llama-3.1-70B")
    setup = TrainingSetup(method=Method.LORA, use_liger_kernel=True, gradient_checkpointing=True)
    found = smallest_set(llama, catalog.gpu("L40S"), catalog.gpus_like(None), setup)
    assert found.setup.mesh.strategy is Strategy.ZERO3


def test_more_gpus_are_named_where_no_change_on_these_is_enough():
    # 70.6 billion weights in 4 bits are 33 GiB, and SGD is not offloaded; in 16 bits with gradients 263 GiB in all
    llama, card = catalog.model("meta-llama/Llama-3.1-70B"), catalog.gpu("RTX 4090")
    setup = TrainingSetup(optim=Optimizer.SGD, gradient_checkpointing=True, max_length=512)
    proposed = remedies(estimate(llama, card, setup), [])
    shared = next(remedy for remedy in proposed if remedy.keys.get("strategy") is Strategy.FSDP)
    assert shared.title == "64 × GeForce RTX 4090 with FSDP"
    assert dict(shared.keys) == {"num_gpus": 64, "strategy": Strategy.FSDP}
    assert "The effective batch grows to 64." in shared.price
    assert all("num_gpus" in remedy.keys for remedy in proposed)


def test_more_gpus_reduce_accumulation_first_then_the_batch():
    setup = TrainingSetup(per_device_train_batch_size=4, gradient_accumulation_steps=6)
    assert sharing_keys(setup, Strategy.FSDP, 2)["gradient_accumulation_steps"] == 3
    assert sharing_keys(setup, Strategy.FSDP, 8) == {
        "num_gpus": 8,
        "strategy": Strategy.FSDP,
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 1,
    }


def test_fewer_examples_than_gpus_become_one_per_gpu():
    keys = sharing_keys(TrainingSetup(per_device_train_batch_size=4), Strategy.FSDP, 8)
    assert keys["per_device_train_batch_size"] == 1


def test_sharding_4_bit_weights_sets_a_float_storage_dtype():
    keys = sharing_keys(TrainingSetup(method=Method.QLORA), Strategy.FSDP, 2)
    assert keys["bnb_4bit_quant_storage"] == "bfloat16"


def test_ddp_that_does_not_fit_is_sharded_on_the_same_gpus():
    setup = TrainingSetup(num_gpus=8, strategy=Strategy.DDP, gradient_checkpointing=True)
    llama, card = catalog.model("meta-llama/Llama-3.1-8B"), catalog.gpu("A100-SXM4-40GB")
    proposed = remedies(estimate(llama, card, setup), [])
    titles = [remedy.title for remedy in proposed]
    assert "FSDP instead of ddp" in titles
    assert "ZeRO-3 instead of ddp" in titles


def test_offload_is_proposed_for_a_setup_too_large_for_one_gpu():
    # 7.24 billion 16-bit weights and gradients, 27 GiB, stay on the GPU; 12 bytes a weight, 81 GiB, are offloaded
    setup = TrainingSetup(dtype=Dtype.FLOAT32, gradient_checkpointing=True, max_length=512)
    proposed = remedies(estimate(MISTRAL, A100, setup), [])
    (offloaded,) = [remedy for remedy in proposed if "offload_optimizer" in remedy.keys]
    assert dict(offloaded.keys) == {
        "strategy": Strategy.ZERO2,
        "offload_optimizer": Offload.CPU,
    }
    after = estimate(MISTRAL, A100, replace(setup, **offloaded.keys))
    assert after.host_bytes > 12 * MISTRAL_PARAMETERS


def test_a_remedy_that_ends_offloading_says_that_tensors_move_back():
    states_alone = TrainingSetup(
        num_gpus=8,
        strategy=Strategy.ZERO2,
        offload_optimizer=Offload.CPU,
        gradient_checkpointing=True,
    )
    llama = catalog.model("meta-llama/Llama-3.1-70B")
    back = [
        change
        for change in free_changes(llama, A100, states_alone)
        if change.options and change.options[0].get("offload_optimizer") is Offload.NONE
    ]
    assert back
    assert all("Offloaded tensors move back" in remedy.price for remedy in back)


def test_evaluation_is_named_when_only_it_does_not_fit():
    setup = TrainingSetup(method=Method.QLORA, eval_strategy="epoch", per_device_eval_batch_size=64)
    card = catalog.gpu("L4")
    assert largest_micro_batch(MISTRAL, card, setup) == 0
    assert evaluation_stops(MISTRAL, card, setup, per_device_train_batch_size=1)
    assert not evaluation_stops(
        MISTRAL, card, replace(setup, eval_strategy="no"), per_device_train_batch_size=1
    )


@settings(max_examples=25)
@given(model=MODELS, setup=SETUPS)
def test_the_smallest_fitting_gpu_fits_and_no_smaller_one_does(model, setup):
    assume(can_be_trained(model, setup))
    cards = catalog.gpus_like(None)
    smallest = smallest_gpu(model, cards, setup)
    if smallest is not None:
        assert fits(model, smallest, setup)
    limit = smallest.memory_bytes if smallest else 2**60
    suited = [gpu for gpu in cards if gpu.supports_bf16 or not setup.precision.uses_bf16]
    assert not [gpu for gpu in suited if gpu.memory_bytes < limit and fits(model, gpu, setup)]
    assert smallest is None or smallest in suited


@settings(max_examples=25)
@given(model=MODELS, setup=SETUPS)
def test_every_setup_needs_at_least_its_optimizer_step(model, setup):
    assume(can_be_trained(model, setup))
    answer = estimate(model, None, setup)
    assert least_need(model, None, setup) <= answer.need_low_bytes
    step = answer.phases[Phase.OPTIMIZER_STEP]
    assert least_need(model, None, setup) < step.bytes + answer.context_bytes.high


def test_the_longest_context_is_never_shorter_than_an_examples_images():
    """Two images of Qwen2.5-VL, 1,000 × 1,000 pixels, are 1,296 tokens each and two markers: 36 squares of 28 pixels a
    side. An RTX 3060 of 12 GB holds shorter rows, which no example is.
    """
    keys = {"images_per_example": 2, "image_width": 1000, "image_height": 1000}
    asked = {"model": "Qwen/Qwen2.5-VL-3B-Instruct", "method": "lora", "max_length": 16_384}
    model, _, setup = parse({**asked, **keys, "gradient_checkpointing": True})
    assert shortest_row(model, setup) == 2 * (1296 + 2)
    found = [
        longest_context(model, catalog.gpu(card), setup)
        for card in ("RTX 3060 12GB", "RTX A4500", "L4")
    ]
    assert found[0] == 0
    assert 2596 < found[1] < found[2]


def test_remedies_of_the_example_start_with_the_real_state_dtype():
    what_if = TrainingSetup(mixed_precision=MixedPrecision.NO, optim_state_dtype=Dtype.FLOAT32)
    proposed = remedies(estimate(MISTRAL, A100, what_if), catalog.gpus_like(A100))
    assert [dict(remedy.keys) for remedy in proposed[:1]] == [{"optim_state_dtype": None}]
    assert [remedy.keys.get("method") for remedy in proposed[2:4]] == [Method.LORA, Method.QLORA]
    assert proposed[4].keys["offload_optimizer"] is Offload.CPU
    assert not [remedy for remedy in proposed if remedy.keys.keys() & {"gpu", "num_gpus"}]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_a_remedy_that_changes_the_dtype_says_so(dtype):
    setup = TrainingSetup(dtype=dtype, per_device_train_batch_size=8)
    proposed = remedies(
        estimate(MISTRAL, catalog.gpu("L40S"), setup), []
    )  # 6 bytes a weight: 40 GiB
    assert any(remedy.keys.get("method") is Method.QLORA for remedy in proposed)
    for remedy in proposed:
        assert ("bfloat16" in remedy.title) is (remedy.keys.get("dtype", dtype) is not dtype), (
            remedy.title
        )


def test_accumulation_is_not_proposed_when_weights_fill_the_card():
    # 7.24 billion parameters x (2 weights + 2 gradients + 2 x 4 states) are 80.9 GiB at any batch
    setup = TrainingSetup(
        mixed_precision=MixedPrecision.NO,
        optim_state_dtype=Dtype.FLOAT32,
        per_device_train_batch_size=8,
    )
    assert least_need(MISTRAL, None, setup) > 12 * MISTRAL_PARAMETERS
    proposed = remedies(estimate(MISTRAL, A100, setup), catalog.gpus_like(A100))
    assert not [
        remedy
        for remedy in proposed
        if set(remedy.keys) == {"per_device_train_batch_size", "gradient_accumulation_steps"}
    ]


MISTRAL_PARAMETERS = 7_241_732_096


def test_attention_adapters_are_proposed_when_peft_refuses_dropout_on_experts():
    olmoe, card = catalog.model("allenai/OLMoE-1B-7B-0924"), catalog.gpu("A100-SXM4-40GB")
    proposed = remedies(estimate(olmoe, card, TrainingSetup()), [])
    (lora,) = [remedy for remedy in proposed if remedy.keys.get("method") is Method.LORA]
    assert lora.keys["lora_target_modules"] == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert estimate(olmoe, card, replace(TrainingSetup(), **lora.keys)).verdict is Verdict.FITS


def test_two_changes_are_proposed_when_no_single_one_is_enough():
    setup = TrainingSetup(per_device_train_batch_size=16, max_length=4096)
    card = catalog.gpu("L4")
    proposed = remedies(estimate(MISTRAL, card, setup), [])
    assert proposed
    assert all(" + " in remedy.title for remedy in proposed)


@pytest.mark.parametrize(
    "changed", [{"method": Method.LORA}, {"method": Method.FULL, "num_gpus": 8}]
)
def test_no_remedy_computes_in_a_dtype_that_the_card_has_no_units_for(changed):
    """A T4 is of Turing, whose tensor cores multiply float16: https://www.nvidia.com/en-us/data-center/tesla-t4/."""
    t4, way = catalog.gpu("T4"), Strategy.DDP if "num_gpus" in changed else Strategy.NONE
    setup = TrainingSetup(
        dtype=Dtype.FLOAT32, mixed_precision=MixedPrecision.FP16, strategy=way, **changed
    )
    proposed = remedies(estimate(MISTRAL, t4, setup), catalog.gpus_like(t4))
    assert proposed
    for remedy in proposed:
        keys = {key: value for key, value in remedy.keys.items() if key != "gpu"}
        assert replace(setup, **keys).runs_on(t4)
        assert "bfloat16" not in remedy.text


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ("GeForce RTX 4090", "which are PCIe between these cards"),  # Ada Lovelace has no NVLink
        ("A100-SXM4-40GB", "at 600 GB/s both ways together"),
    ],
)
def test_more_gpus_are_said_to_exchange_over_the_link_that_they_have(card, said):
    of = estimate(MISTRAL, catalog.gpu(card), TrainingSetup(num_gpus=8, strategy=Strategy.DDP))
    proposed = [remedy.text for remedy in remedies(of, []) if "FSDP instead" in remedy.title]
    assert proposed
    assert all(said in one and "NVLink" not in one for one in proposed)


@pytest.mark.parametrize("cards", [[], [catalog.gpu("T4")]])
def test_no_card_is_named_when_none_is_large_enough(cards):
    assert smallest_gpu(catalog.model("meta-llama/Llama-3.1-70B"), cards, TrainingSetup()) is None


def test_lora_on_default_targets_is_proposed_when_peft_fails_on_a_layer():
    # Llama 4 Scout: 109 billion weights, 203 GiB in bfloat16, on a card that holds them but not their gradients
    scout = catalog.model("meta-llama/Llama-4-Scout-17B-16E")
    card = catalog.gpu("B300-270GB")
    setup = TrainingSetup(mixed_precision=MixedPrecision.NO, gradient_checkpointing=True)
    proposed = remedies(estimate(scout, card, setup), [])
    lora = next(remedy for remedy in proposed if remedy.keys.get("method") is Method.LORA)
    # peft 0.21, utils/constants.py, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING["llama4"]
    assert lora.title.startswith("LoRA of rank 16 on q_proj, v_proj")
    assert lora.keys["lora_target_modules"] == ("q_proj", "v_proj")


@pytest.mark.parametrize(
    ("search", "found", "key"),
    [
        (largest_micro_batch, _largest_micro_batch, "per_device_train_batch_size"),
        (longest_context, _longest_context, "max_length"),
    ],
)
@pytest.mark.parametrize("objective", ["sft", "kto"])
def test_a_limit_is_searched_once_wherever_its_own_slider_stands(search, found, key, objective):
    model, gpu = catalog.model("Qwen/Qwen3-0.6B"), catalog.gpu("L4")
    rows = {"objective": objective, "per_device_train_batch_size": 2}
    setups = [TrainingSetup(**{**rows, key: number}) for number in (2, 40)]
    searched_for_each = {found.__wrapped__(model, gpu, setup, 0) for setup in setups}
    assert {search(model, gpu, setup) for setup in setups} == searched_for_each
    assert len(searched_for_each) == 1
    before = found.cache_info().misses
    assert search(model, gpu, replace(setups[0], **{key: 8})) in searched_for_each
    assert found.cache_info().misses == before

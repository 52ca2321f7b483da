"""The JSON contract: what it reads, what it refuses and why, and lossless round trips."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import catalog
from estimator.answer.estimate import estimate
from estimator.contract.estimates import write_estimate
from estimator.contract.setups import IMAGE_KEYS, parse, read_link, read_setup, write_fields
from estimator.families.model_tree import modules_with_counts
from estimator.families.modules import Linear
from estimator.parallel.combinations import SHARING_KEYS, clipped_in_backward, refusal
from estimator.search.remedies import remedies
from estimator.values.declaration import Key
from estimator.values.keys import BY_NAME, DEFAULT, GPU_KEYS, GROUPS, KEYS
from estimator.values.kinds import (
    Choice,
    Flag,
    Indices,
    Names,
    Number,
    Percentages,
    Ranks,
    ShortText,
    Version,
    WholeNumber,
)
from estimator.values.later_keys import LATER
from estimator.values.parallelisms import PARALLEL_WORDS, UNMODELLED_STRATEGIES
from estimator.values.setup import KEY_FACET, TrainingSetup
from estimator.values.specs import (
    Dtype,
    Gpu,
    MixedPrecision,
    Optimizer,
    Verdict,
)
from tests.rows import for_each

MISTRAL = "mistralai/Mistral-7B-v0.1"
GPT2 = "openai-community/gpt2"
TINY_CONFIG: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
WRONG = [{}, [[]], -1, "x\n", float("nan"), float("inf"), 10**30, 10**5000, 0.1 + 1j]
"""Values of no key at all."""
EVERY_KEY = for_each("key", KEYS)

# The contract's table, retyped by hand: the defaults of Trainer, TRL, PEFT and Headroom.
DEFAULTS = """
v 1 · tool "trainer" · tool_version null
num_gpus 1 · gpus_per_node 8 · method "full" · model_class "auto" · dtype "bfloat16" · mixed_precision "bf16"
fp8_backend "ao" · fp8_pad_inner_dim true
optim "adamw_torch_fused" · optim_args null · optim_state_dtype null · per_device_train_batch_size 1
gradient_accumulation_steps 1 · max_length 1024 · padded false · packing false
padding_free false · gradient_checkpointing false
use_reentrant false · checkpoint_every_n_layers 1 · offload_checkpoints false · selective_checkpointing false
activation_offloading false · attn_implementation "sdpa" · use_liger_kernel false · objective "sft" · loss null
completion_fraction 1.0 · max_prompt_length null
precompute_ref_log_probs false · loss_type null · beta null · max_completion_length 256
num_generations 8 · steps_per_generation null · num_iterations 1 · num_labels 2 · mini_batch_size null
label_smoothing_factor 0.0 · hold_outputs false
lora_r 16 · lora_alpha 32 · lora_dropout 0.05 · lora_target_modules "all-linear" · modules_to_save null
layers_to_transform null · rank_pattern null · exclude_modules null · target_parameters null · lora_bias false
bias "none"
use_dora false · autocast_adapter_dtype true · bnb_4bit_quant_type "nf4" · bnb_4bit_use_double_quant true
bnb_4bit_quant_storage "uint8"
torch_compile false · torch_compile_backend null · torch_compile_mode null
load_in_8bit false · prepare_model_for_kbit_training false · max_grad_norm 1.0 · optimizer_in_bwd false
expandable_segments false · roundup_power2_divisions 1
max_split_size_mb null · torch_empty_cache_steps null
strategy "none"
tp_size 1 · pp_size 1 · cp_size 1 · ep_size 1 · dp_replicate_size 1 · offload_optimizer "none"
fsdp_version 2 · checkpoint_around_fsdp false
offload_param "none" · overlap_comm null · num_cpu_threads_per_process null · host_cores null
host_memory_bandwidth_gb_per_s null · pcie_generation null · pcie_lanes null
num_train_examples 10000 · num_train_epochs 1 · mean_tokens_per_example null
per_device_eval_batch_size 8 · eval_strategy "no" · compute_metrics false · eval_accumulation_steps null
save_strategy "epoch" · save_total_limit null
save_only_model false · fsdp_state_dict_type "FULL_STATE_DICT" · zero3_save_16bit_model false
usd_per_gpu_hour null · mfu null · pace null · pace_from null · pace_shares null
freeze_vision false · freeze_projector false · freeze_language false · vision_gradient_checkpointing null
images_per_example 0 · image_height null
image_width null · image_sizes null · text_tokens null · min_pixels null · max_pixels null
do_image_splitting null · image_longest_edge null · crop_to_patches null · max_patches null
do_pan_and_scan null · max_soft_tokens null · videos_per_example 0 · video_frames 16 · video_height null
video_width null · video_min_pixels null · video_max_pixels null · cap_pixels_per_frame null
use_vllm false · vllm_mode "colocate" · vllm_gpu_memory_utilization 0.3 · vllm_enable_sleep_mode false
vllm_tensor_parallel_size 1 · vllm_data_parallel_size 1 · vllm_max_model_length null · vllm_max_num_seqs null
vllm_max_num_batched_tokens 4096 · generation_offload_model false · generation_offload_optimizer false
use_transformers_continuous_batching false · ds3_gather_for_generation true
"""


def problem(**given: object) -> str:
    """The one sentence that these keys produce."""
    (sentence,) = read_setup({"model": MISTRAL, **given}).problems
    return sentence


# --- the table ----------------------------------------------------------------------------------


def test_table_has_every_key_of_the_contract_at_its_default():
    rows = [row.split(" ") for row in re.split(r" · |\n", DEFAULTS.strip())]
    assert {key.name: key.default for key in KEYS} == {
        name: json.loads(value) for name, value in rows
    }


def test_every_field_of_a_setup_is_a_key():
    assert set(KEY_FACET) == {key.name for key in KEYS if key.in_setup}


def test_every_field_of_a_gpu_is_a_key_of_its_object():
    catalogued = ("prices", "machines", "device_name", "like", "slices", "instance")
    facts = [field.name for field in fields(Gpu) if field.name not in catalogued]
    assert sorted(GPU_KEYS) == sorted(facts), "those are the catalogue's, and like is a key itself"


def test_no_key_appears_twice():
    names = [name for key in KEYS for name in (key.name, *key.aliases)]
    assert len(names) == len(set(names)) == len(BY_NAME)
    assert sum(len(group) for group in GROUPS.values()) == len(KEYS)


@EVERY_KEY
def test_default_value_is_accepted_and_changes_nothing(key):
    reading = read_setup({"model": MISTRAL, key.name: key.default})
    assert reading.problems == ()
    assert reading.setup == DEFAULT


@EVERY_KEY
@for_each("wrong", WRONG)
def test_wrong_type_gets_one_short_sentence_starting_with_the_key(key, wrong):
    if isinstance(key.kind, Ranks) and wrong == {}:  # PEFT's own default
        assert read_setup({"model": MISTRAL, key.name: wrong}).setup == DEFAULT
        return
    sentence = problem(**{key.name: wrong})
    assert sentence.startswith(f"{key.name} ")
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 400


@EVERY_KEY
def test_true_is_not_one(key):
    if not isinstance(key.kind, Flag):
        assert key.name in problem(**{key.name: True})


@EVERY_KEY
def test_null_is_refused_for_non_nullable_keys(key):
    said = read_setup({"model": MISTRAL, key.name: None}).problems
    assert bool(said) is not key.kind.nullable


@for_each("name", [key.name for key in KEYS if key.modelled and not isinstance(key.kind, Version)])
def test_unmodelled_value_of_a_key_is_refused(name):
    assert problem(**{name: 2}).startswith(f"{name} 2 is not modelled yet: a run with ")


# by hand, from accelerate's ParallelismConfig, vLLM's and Megatron-LM's arguments, torchtitan's and ms-swift's configs
ASK_FOR_PARALLELISM = {
    "tensor parallelism": (
        {"tensor_parallel_size": 4},
        {"tensor-model-parallel-size": 4},
        {"tp": 2},
        {"tensor_parallel_degree": 2},
        {"strategy": "tp"},
        {"strategy": "tensor_parallel"},
        {"tp_plan": "auto"},
        {"autotp_size": 4},
        {"num_tp_ranks": 4},
        {"strategy": "fsdp+tp"},
    ),
    "pipeline parallelism": (
        {"pipeline_parallel_size": 2},
        {"pipeline_model_parallel_size": 2},
        {"strategy": "pipeline"},
        {"virtual_pipeline_model_parallel_size": 2},
        {"num_pipeline_stages": 4},
        {"strategy": "interleaved_1f1b"},
    ),
    "context parallelism": ({"context_parallel_size": 2}, {"strategy": "ring_attention"}),
    "sequence parallelism": (
        {"sequence_parallel_size": 2},
        {"ulysses_degree": 8},
        {"sp_size": 2},
        {"sequence_parallel": True},
    ),
    "expert parallelism": ({"expert_parallel": 8}, {"enable_expert_parallel": True}),
    "tensor or pipeline parallelism": ({"strategy": "megatron"}, {"strategy": "Megatron-LM"}),
}


def _refused_with(what: str) -> str:
    if what == "tensor parallelism":  # which has a key
        return "with strategy none, or to a multiple with strategy fsdp."
    return f"is not modelled yet: a run with {what} cannot be estimated."


@pytest.mark.parametrize(
    ("asked", "what"),
    [(asked, what) for what, them in ASK_FOR_PARALLELISM.items() for asked in them],
    ids=str,
)
def test_unmodelled_parallelism_is_named_without_advising_another_run(asked, what):
    said = _refused_with(what)
    ((name, value),) = asked.items()
    link = str(value).lower() if isinstance(value, bool) else str(value)
    for problems in (
        read_setup({"model": MISTRAL, "num_gpus": 8, "strategy": "fsdp", **asked}).problems,
        read_link({"model": MISTRAL, "num_gpus": "8", "strategy": "fsdp", name: link}).problems,
    ):
        (sentence,) = problems
        assert sentence.startswith(f"{name} ")
        assert sentence.endswith(said)


@pytest.mark.parametrize("name", LATER)
def test_an_unmodelled_key_is_accepted_only_at_its_default(name):
    base = read_setup({"model": MISTRAL})
    default = LATER[name]
    for said in (default, None):
        assert read_setup({"model": MISTRAL, name: said}) == base
        link = json.dumps(said).strip('"')
        assert read_link({"model": MISTRAL, name: link}).problems == ()
    for other in ("other", 7, True, [3]):
        (sentence,) = read_setup({"model": MISTRAL, name: other}).problems
        assert sentence.startswith(f"{name} ")
        assert sentence.endswith(" is not modelled yet: a run with it cannot be estimated.")
    (sentence,) = read_link({"model": MISTRAL, name: "7"}).problems
    assert sentence.startswith(f"{name} 7.0 is not modelled yet")
    # a key with a formula belongs in the table of keys
    assert name not in BY_NAME


@for_each("word", sorted(PARALLEL_WORDS))
def test_parallelism_of_one_rank_is_accepted(word):
    assert read_setup({"model": MISTRAL, word: 1}) == read_setup({"model": MISTRAL})
    assert read_link({"model": MISTRAL, word: "1"}).problems == ()


@for_each("word", sorted(set(PARALLEL_WORDS) - set(BY_NAME)))
def test_link_may_only_turn_unmodelled_parallelism_off(word):
    for text in ("null", "false", "False", "true", "4", ""):
        problems = read_link({"model": MISTRAL, word: text}).problems
        assert bool(problems) is (text not in {"null", "false", "False"})
        assert all(PARALLEL_WORDS[word] in said for said in problems)


@pytest.mark.parametrize("word", sorted(UNMODELLED_STRATEGIES))
def test_unmodelled_strategy_is_not_replaced_by_another(word):
    (sentence,) = read_setup({"model": MISTRAL, "num_gpus": 8, "strategy": word}).problems
    assert sentence.endswith(_refused_with(UNMODELLED_STRATEGIES[word]))
    assert not {"take", "leave"} & set(sentence.split())


# --- sentences: those of JSON are in tests/reference/refusals.jsonl -------------------------------


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        (
            {"lora_dropout": float("nan")},
            "lora_dropout must be a number from 0 and below 1, not NaN.",
        ),
        ({"model": "x" * 10**6}, "model must be a Hub id or the object of a config.json, not 'xxx"),
        ({"model": {**TINY_CONFIG, "extra": {1, 2}}}, "model: the config holds what JSON cannot; "),
    ],
    ids=["nan", "long", "a set"],
)
def test_what_json_cannot_hold_gets_a_sentence(given, begins):
    assert problem(**given).startswith(begins)


def test_missing_model_is_reported():
    assert read_setup({}).problems[0].startswith("model is missing; give a Hub id such as ")


# --- reading ------------------------------------------------------------------------------------


def test_valid_fields_survive_invalid_ones():
    reading = read_setup(
        {"model": MISTRAL, "gpu": "nope", "max_length": 2048, "lora_r": "x", "method": "qlora"}
    )
    assert reading.model == catalog.model(MISTRAL)
    assert reading.gpu is None
    assert reading.setup == replace(
        parse({"model": MISTRAL, "method": "qlora"})[2], max_length=2048
    )
    assert len(reading.problems) == 2


def test_every_bad_field_has_its_sentence_and_parse_raises_them_all():
    with pytest.raises(ValueError, match=r"(?s)lora_r .*max_length .*gpu "):
        parse({"model": MISTRAL, "lora_r": 0, "max_length": 0, "gpu": ""})


def test_conflict_resets_only_one_field():
    reading = read_setup(
        {"model": MISTRAL, "max_length": 512, "dtype": "float16", "mixed_precision": "fp16"}
    )
    assert reading.setup.batch.max_length == 512
    assert reading.setup.precision.dtype is Dtype.FLOAT16
    assert reading.setup.precision.mixed_precision is MixedPrecision.BF16


def test_hugging_face_aliases_are_understood():
    setup = parse({"model": MISTRAL, "optim": "adamw_8bit", "activation_checkpointing": True})[2]
    assert setup.optimisation.optim is Optimizer.ADAMW_BNB_8BIT
    assert setup.computation.gradient_checkpointing is True


@pytest.mark.parametrize(
    ("optim_args", "optim"),
    [
        (None, Optimizer.SGD),
        ("momentum=0", Optimizer.SGD),
        ("momentum=0.9", Optimizer.SGD_MOMENTUM),
        ("momentum = .5", Optimizer.SGD_MOMENTUM),
    ],
)
def test_momentum_makes_sgd_another_optimizer(optim_args, optim):
    assert (
        parse({"model": MISTRAL, "optim": "sgd", "optim_args": optim_args})[2].optimisation.optim
        is optim
    )


def test_adapter_keys_are_ignored_in_full_fine_tuning():
    assert (
        read_setup({"model": MISTRAL, "lora_r": 8, "lora_target_modules": ["none"]}).problems == ()
    )


def test_custom_gpu_needs_only_its_memory():
    gpu = parse({"model": MISTRAL, "gpu": {"memory_bytes": 2**34}})[1]
    assert gpu == Gpu(name="own GPU", memory_bytes=2**34)


# --- a link -------------------------------------------------------------------------------------


def test_link_values_are_parsed_by_the_kind_of_their_key():
    reading = read_link(
        {
            "model": MISTRAL,
            "gpu": '{"memory_bytes": 17179869184}',
            "method": ["lora"],
            "max_length": "2048",
            "lora_dropout": "1e-1",
            "padded": "True",
            "gradient_checkpointing": ["false"],
            "optim_state_dtype": "null",
            "lora_target_modules": ["q_proj", "v_proj"],
        }
    )
    assert reading.problems == ()
    assert reading.gpu.memory_bytes == 2**34
    assert write_fields(catalog.model(MISTRAL), None, reading.setup) == {
        "model": MISTRAL,
        "method": "lora",
        "max_length": 2048,
        "lora_dropout": 0.1,
        "padded": True,
        "lora_target_modules": ["q_proj", "v_proj"],
    }


@pytest.mark.parametrize(
    ("texts", "begins"),
    [
        ({"max_length": "two"}, "max_length must be a whole number from 1 to 16777216, not 'two'."),
        ({"max_length": "1_024"}, "max_length must be a whole number"),
        ({"max_length": "٣"}, "max_length must be a whole number"),
        ({"max_length": ["1", "2"]}, "max_length is given 2 times; give it once."),
        ({"max_length": []}, "max_length is given 0 times; give it once."),
        ({"lora_dropout": "nan"}, "lora_dropout must be a number"),
        ({"lora_dropout": "1e400"}, "lora_dropout must be a number"),
        ({"padded": "yes"}, "padded must be true or false, not 'yes'."),
        (
            {"gpu": "{"},
            "gpu is not valid JSON (Expecting property name enclosed in double quotes at ",
        ),
        ({"model": "{" * 10**5}, "model is not valid JSON (Expecting property name enclosed in "),
        ({"model": '{"a":' * 1000 + "1" + "}" * 1000}, "model is nested too deeply; "),
        ({"model": "{" + " " * 10**6 + "}"}, "model is longer than 1000000 bytes; shorten it."),
        ({"lora_target_modules": "q_proj,,v_proj"}, "lora_target_modules must list names"),
    ],
)
def test_damaged_link_reports_what_was_damaged(texts, begins):
    assert read_link({"model": MISTRAL, **texts}).problems[0].startswith(begins)


# --- round trips --------------------------------------------------------------------------------


def _values(key: Key) -> st.SearchStrategy[object]:
    """Values of a setup that this key may have."""
    if key.modelled:
        return st.just(key.default)
    none = st.none() if key.kind.nullable else st.nothing()
    match key.kind:
        case Choice(words=words, member=member):
            return none | st.sampled_from([member(word) for word in words])
        case Flag():
            return st.booleans()
        case WholeNumber(low=low, high=high):
            return none | st.integers(low, high)
        case Number() as kind:
            return none | st.floats(
                kind.low, kind.high, exclude_min=kind.open_low, exclude_max=kind.open_high
            )
        case Names(word=word):
            found = st.just(word or ("lm_head",))
            return none if key.name == "target_parameters" else none | found
        case Indices():
            return none | st.just((0, 3))
        case Ranks():
            return none | st.just((("q_proj", 4), ("layers.1.mlp.up_proj", 8)))
        case Percentages():
            return none | st.just("60/10/20/0/10")
        case ShortText():
            return none | st.just("1.25 s, a run of mine")
        case _:
            raise AssertionError(f"no values are known for {key.name}")


FIELDS = {key.name: _values(key) for key in KEYS if key.in_setup and key.name not in IMAGE_KEYS}
"""Image keys have a test of their own: a text-only model refuses them."""


@st.composite
def setups(draw: st.DrawFn) -> TrainingSetup:
    values = {name: draw(strategy) for name, strategy in FIELDS.items()}
    values["max_length"] = draw(st.integers(1, 1024))
    values["roundup_power2_divisions"] = 2 ** draw(st.integers(0, 6))
    if values["dtype"] is not Dtype.FLOAT32:
        values["mixed_precision"] = draw(st.sampled_from([MixedPrecision.NO, MixedPrecision.BF16]))
    setup = replace(DEFAULT, **values)
    if refusal(setup) or clipped_in_backward(setup.optimisation):
        setup = replace(setup, optimizer_in_bwd=False)
    if refusal(setup):
        alone = {name: DEFAULT.value(name) for name in SHARING_KEYS}
        setup = replace(setup, **alone)
    if refusal(setup):  # not every setup supports this checkpointing or these adapters
        setup = replace(
            setup,
            selective_checkpointing=False,
            layers_to_transform=None,
            lora_bias=False,
            bias="none",
            packing=False,
            padding_free=False,
        )
    return setup


GPUS = (
    st.none()
    | st.sampled_from(list(catalog.gpus().values()))
    | st.builds(
        Gpu,
        name=st.text("abc XYZ-", max_size=20),
        memory_bytes=st.integers(2**28, 2**43),
        supports_bf16=st.booleans(),
    )
)
MODELS = st.sampled_from([row.model for row in catalog.models().values()]) | st.just(
    parse({"model": TINY_CONFIG})[0]
)


@given(model=MODELS, gpu=GPUS, setup=setups())
def test_setups_round_trip(model, gpu, setup):
    if (
        model.num_experts and setup.adapters.uses_adapters
    ):  # PEFT adapts stacked experts without dropout only
        setup = replace(setup, lora_dropout=0.0, use_dora=False, lora_bias=False)
    # PEFT fails on Llama 4's router and refuses adapters behind a scan
    linears = [module for module, _ in modules_with_counts(model) if isinstance(module, Linear)]
    if any(linear.routes or linear.unadaptable for linear in linears):
        setup = replace(setup, lora_target_modules=("q_proj",))
    if model.towers is not None:  # adapters that differ between layers are refused beside towers
        setup = replace(setup, rank_pattern=None, layers_to_transform=None)
    if (
        setup.task.objective.has_score or setup.task.objective == "embedding"
    ):  # they have no lm_head
        setup = replace(setup, modules_to_save=None)
    asked = (model, gpu, setup)
    written = write_fields(*asked)
    assert parse(json.loads(json.dumps(written, allow_nan=False))) == asked


@given(
    count=st.integers(0, 3),
    sizes=st.none()
    | st.lists(st.tuples(st.integers(56, 900), st.integers(56, 900)), min_size=1, max_size=3),
    frozen=st.booleans(),
)
def test_images_round_trip(count, sizes, frozen):
    given = {"model": "google/gemma-3-4b-it", "images_per_example": count, "freeze_vision": frozen}
    if sizes is not None:
        given["image_sizes"] = [list(size) for size in sizes]
    asked = parse(given)
    assert asked[2].adapters.model_class == "image_text"
    assert parse(json.loads(json.dumps(write_fields(*asked)))) == asked


@given(setup=setups())
def test_only_non_default_keys_are_written(setup):
    written = write_fields(catalog.model(MISTRAL), None, setup)
    differing = {name for name in KEY_FACET if setup.value(name) != DEFAULT.value(name)}
    assert set(written) == {"model", *differing}


def test_config_is_written_unchanged():
    config = {**TINY_CONFIG, "rope_theta": 5e5, "architectures": ["LlamaForCausalLM"]}
    assert write_fields(*parse({"model": config}))["model"] == config


def test_config_in_a_link_may_start_with_a_line_break():
    reading = read_link({"model": "\n " + json.dumps(TINY_CONFIG)})
    assert reading.problems == ()
    assert reading.model == parse({"model": TINY_CONFIG})[0]


def test_hand_built_model_cannot_be_written():
    with pytest.raises(ValueError, match="built in code"):
        write_fields(replace(catalog.model(GPT2), num_hidden_layers=13), None, DEFAULT)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["model", "gpu", *BY_NAME]) | st.text()


@settings(max_examples=300)
@given(st.dictionaries(NAMES, ANYTHING, max_size=6))
def test_reading_never_raises(given):
    reading = read_setup(given)
    assert bool(reading.problems) or reading.model is not None
    assert all("\n" not in sentence for sentence in reading.problems)


@settings(max_examples=300)
@given(st.dictionaries(NAMES, st.text() | st.lists(st.text(), max_size=3), max_size=6))
def test_reading_a_link_never_raises(given):
    reading = read_link(given)
    assert bool(reading.problems) or reading.model is not None
    assert all("\n" not in sentence for sentence in reading.problems)


# --- the answer ---------------------------------------------------------------------------------

ANSWER_KEYS = """
peak_bytes peak_phase peak_moment phases moments components need_low_bytes need_high_bytes need_phase
allocated_bytes least_bytes
device_bytes device_low_bytes device_high_bytes
capacity_bytes verdict fits first_overflow
per_gpu stored_bytes host_bytes nvme_bytes disk_bytes run_disk_bytes paged_bytes total_parameters
trainable_parameters
step_seconds_low step_seconds_high step_parts tokens_per_second_low tokens_per_second_high flops_per_step
mfu_low mfu_high steps_per_epoch total_steps epoch_hours_low epoch_hours_high total_hours_low total_hours_high
energy_kwh_low energy_kwh_high usd_per_gpu_hour price_provider price_date cost_usd_low cost_usd_high
assumptions remedies
"""


def answer(**given: object) -> dict[str, object]:
    return write_estimate(estimate(*parse({"model": TINY_CONFIG, "max_length": 32, **given})))


OF_A_RUN = ("epoch_hours", "total_hours", "energy_kwh", "cost_usd")


@pytest.mark.parametrize(("memory", "runs"), [(80 * 10**9, True), (2**28, False)])
def test_hours_and_dollars_are_null_if_it_does_not_fit(memory, runs):
    card = {"like": "A100-SXM4-80GB", "memory_bytes": memory}
    told = answer(gpu=card, usd_per_gpu_hour=2.0, per_device_train_batch_size=4096)
    assert told["verdict"] == ("fits" if runs else "does_not_fit")
    for name in OF_A_RUN:
        for end in ("low", "high"):
            assert (told[f"{name}_{end}"] is not None) == runs
    assert told["step_seconds_low"] is not None


def test_answer_has_every_key_of_the_contract():
    assert list(answer()) == ANSWER_KEYS.split()


def test_fits_is_null_without_a_gpu_or_when_tight():
    large = {"per_device_train_batch_size": 4096, "max_length": 64}
    model, _, setup = parse({"model": TINY_CONFIG, **large})
    low, high = (answer(**large)[f"need_{end}_bytes"] for end in ("low", "high"))
    assert answer(**large)["fits"] is None
    assert 2**28 < low < high  # a card has at least 256 MiB
    for memory, verdict, fits in [
        (high, "fits", True),
        (low, "tight", None),
        (low - 2**22, "does_not_fit", False),  # the least memory is found to 1 in 512
    ]:
        said = write_estimate(estimate(model, Gpu(name="own GPU", memory_bytes=memory), setup))
        assert (said["verdict"], said["fits"]) == (verdict, fits)
        assert said["capacity_bytes"] == memory


@pytest.mark.parametrize(
    "given",
    [
        {"model": MISTRAL, "gpu": "A100-SXM4-80GB", "dtype": "float32"},
        {"model": MISTRAL, "gpu": "GeForce RTX 4090", "method": "lora", "max_length": 4096},
        {"model": MISTRAL, "gpu": {"memory_bytes": 12 * 2**30}, "strategy": "ddp", "num_gpus": 2},
        {"model": "meta-llama/Llama-4-Scout-17B-16E", "gpu": "H100-SXM5-80GB"},
    ],
)
def test_each_remedy_applied_to_the_object_does_what_it_says(given):
    before = estimate(*parse(given))
    said = write_estimate(before, remedies(before, catalog.gpus_like(before.gpu)))
    assert write_estimate(before)["remedies"] == [], "each is an estimate more: not unasked"
    offered = json.loads(json.dumps(said))["remedies"]
    assert offered
    for remedy in offered:
        assert list(remedy) == ["keys", "saved_bytes", "text"]
        after = estimate(*parse(given | remedy["keys"]))
        assert after.verdict is Verdict.FITS, remedy["text"]
        if after.gpu == before.gpu:
            assert remedy["saved_bytes"] == before.need_high_bytes - after.need_high_bytes
        else:
            assert remedy["saved_bytes"] == 0
        assert str(remedy["text"]).endswith(".")


VARIED: list[dict[str, object]] = [
    {"model": MISTRAL, "gpu": "A100-SXM4-80GB", "dtype": "float32", "optim": "adamw_torch"},
    {"model": GPT2, "max_length": 32, "optim": "paged_adamw_8bit"},
    {
        "model": MISTRAL,
        "gpu": "GeForce RTX 4090",
        "method": "qlora",
        "eval_strategy": "epoch",
        "usd_per_gpu_hour": 1.5,
    },
    {
        "model": MISTRAL,
        "gpu": "H100-SXM5-80GB",
        "strategy": "zero3",
        "num_gpus": 3,
        "offload_optimizer": "nvme",
        "num_train_examples": 100_000,
        "num_train_epochs": 2,
        "per_device_eval_batch_size": 64,
        "eval_strategy": "epoch",
    },
    {"model": "meta-llama/Llama-3.1-8B", "strategy": "device_map", "num_gpus": 2, "gpu": "L4"},
    {"model": GPT2, "gpu": "T4", "num_gpus": 3, "strategy": "fsdp"},
    {"model": TINY_CONFIG, "max_length": 32},
]


def test_no_key_of_the_answer_is_constant():
    """A key that never varies would be hard-coded, not computed."""
    estimates = [estimate(*parse(given)) for given in VARIED]
    answers = [
        write_estimate(told, remedies(told, catalog.gpus_like(told.gpu))) for told in estimates
    ]
    constant = {key for key in answers[0] if len({json.dumps(said[key]) for said in answers}) == 1}
    assert constant == set()
    for nested in ("phases", "components"):
        inner = [said[nested] for said in answers]
        assert {key for key in inner[0] if len({one[key] for one in inner}) == 1} == set(), nested


def test_floats_do_not_depend_on_the_python_version(monkeypatch):
    """Python 3.12 began to sum floats with compensation (whatsnew/3.12): ``sum`` is for whole numbers here.

    ``math.fsum`` rounds once in every version. The lengths are unique to this test, so that no answer is cached.
    """

    def of_whole_numbers(items: Iterable[Any], start: int = 0) -> Any:
        listed = list(items)
        assert not any(isinstance(value, float) for value in listed), "use math.fsum"
        return real(listed, start)

    real = sum
    monkeypatch.setattr("builtins.sum", of_whole_numbers)
    for number, keys in enumerate(VARIED):
        answer = estimate(*parse(keys | {"max_length": 611 + 13 * number}))
        assert write_estimate(answer, remedies(answer, catalog.gpus_like(answer.gpu)))


# --- GPU names with a count ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "number", "strategy", "per_node"),
    [
        ({"gpu": "4x A100-SXM4-80GB"}, 4, "ddp", 8),
        ({"gpu": "g5.12xlarge"}, 4, "ddp", 8),
        ({"gpu": "g5.12xlarge", "num_gpus": 1}, 1, "none", 8),  # one of the machine's four
        ({"gpu": "2x g5.12xlarge"}, 8, "ddp", 4),  # by hand: two machines of four
        ({"gpu": "a2-megagpu-16g", "strategy": "zero3"}, 16, "zero3", 16),
        ({"gpu": "RTX 4090"}, 1, "none", 8),
    ],
)
def test_gpu_name_may_contain_the_count(asked, number, strategy, per_node):
    reading = read_setup({"model": "openai-community/gpt2", **asked})
    assert not reading.problems
    mesh = reading.setup.mesh
    assert (mesh.num_gpus, mesh.strategy, mesh.gpus_per_node) == (number, strategy, per_node)


def test_conflicting_gpu_counts_are_refused():
    reading = read_setup({"model": "openai-community/gpt2", "gpu": "4x T4", "num_gpus": 2})
    assert "gpu '4x T4' means 4 GPUs, but num_gpus is 2; give only one of them." in reading.problems


def test_requests_are_rounded_to_a_power_of_two_of_steps():
    with pytest.raises(
        ValueError, match="roundup_power2_divisions must be a power of two, such as 4 or 16, not 3"
    ):
        parse({"model": TINY_CONFIG, "roundup_power2_divisions": 3})

"""The cases to measure: setups of the JSON contract, read or refused, and the built-in list."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from estimator.answer.estimate import estimate
from estimator.contract import setups as contract
from estimator.values.methods import Method
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import AttnImplementation, Gpu, Model, Optimizer

Given = Mapping[str, object]

LIGER = "use_liger_kernel"
"""The only key that is measured even if the contract does not model its value yet."""
DEFAULT_MARGIN = 0.05
"""Margin that must be free above our predicted peak, as a share of it (our choice: five times the largest error of a
traced step)."""
BITSANDBYTES_OPTIMIZERS = frozenset(
    {Optimizer.ADAMW_BNB_8BIT, Optimizer.LION_8BIT, Optimizer.LION_32BIT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A setup that can be measured."""

    id: str
    model: Model
    setup: TrainingSetup
    use_liger_kernel: bool = False

    def fields(self, gpu: Gpu | None) -> str:
        """The setup as one line of JSON, an object of the contract, on this GPU."""
        written = contract.write_fields(self.model, gpu, self.setup)
        if self.use_liger_kernel:
            written[LIGER] = True
        return json.dumps(written)

    def predicted(self, gpu: Gpu | None) -> Estimate:
        """Our estimate; for a case with Liger that of the same case without it, which needs more."""
        return estimate(self.model, gpu, self.setup)

    @property
    def needs(self) -> list[str]:
        """Packages that this case needs besides torch, transformers and accelerate."""
        needed = {
            "peft": self.setup.adapters.uses_adapters,
            "bitsandbytes": self.setup.adapters.method is Method.QLORA
            or self.setup.optimisation.optim in BITSANDBYTES_OPTIMIZERS,
            "flash_attn": self.setup.computation.attn_implementation
            is AttnImplementation.FLASH_ATTENTION_2,
            "liger_kernel": self.use_liger_kernel,
        }
        return [package for package, is_needed in needed.items() if is_needed]


def read_case(given: Given) -> Case:
    """Reads a case from an object of the contract; ``ValueError`` holds one sentence that says what to change.

    A GPU that is named there is left out: it is measured on the card that is here.
    """
    keys = {name: value for name, value in given.items() if name != "gpu"}
    _refuse_paged(keys.get("optim"))
    liger = keys.get(LIGER) is True
    if liger:
        del keys[LIGER]
    model, _, setup = contract.parse(keys)
    if setup.optimisation.optim_state_dtype is not None:
        raise ValueError(
            "optim_state_dtype is a what-if that no Trainer run has, so it cannot be measured; leave it out."
        )
    case = Case(id="", model=model, setup=setup, use_liger_kernel=liger)
    estimate(model, None, setup)  # refuses what the model cannot do
    return Case(id=_name(case), model=model, setup=setup, use_liger_kernel=liger)


def _refuse_paged(optim: object) -> None:
    if isinstance(optim, str) and optim.startswith("paged"):
        raise ValueError(
            f"optim {optim} keeps its states in CUDA's managed memory, which can hang a GPU and is never used here; "
            "name an optimizer that is not paged."
        )


def _name(case: Case) -> str:
    """A readable identifier: model, method, batch × length, and all keys that differ from the defaults."""
    setup = json.loads(case.fields(None))
    named = case.model.hub_id.split("/")[-1] or case.model.model_type
    shape = f"{case.setup.batch.per_device_train_batch_size}x{case.setup.batch.max_length}"
    left_out = {"model", "method", "per_device_train_batch_size", "max_length"}
    others = [_said(key, value) for key, value in setup.items() if key not in left_out]
    return " ".join([named, case.setup.adapters.method.value, shape, *others])


def _said(key: str, value: object) -> str:
    if value is True:
        return key
    if isinstance(value, list):
        return f"{key}={','.join(map(str, value))}"
    return f"{key}={value}"


def read_lines(lines: Iterable[str]) -> Iterator[Case | str]:
    """A case, or a sentence about what is wrong, for each line of JSON; empty lines are skipped."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            if not isinstance(given, dict):
                raise ValueError("it must be one JSON object, a setup of the contract.")
            yield read_case(given)
        except ValueError as problem:
            yield f"line {number}: {problem}"


def fits(peak_bytes: int, free_bytes: int, margin: float) -> bool:
    """Whether the predicted peak plus ``margin`` fits in this much free memory.

    >>> fits(100, 105, 0.05), fits(100, 104, 0.05)
    (True, False)
    """
    return peak_bytes * (1 + margin) <= free_bytes


# --- the built-in list --------------------------------------------------------------------------

LLAMA_1B, LLAMA_3B = "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B"
LLAMA_8B, LLAMA_2_7B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-2-7b-hf"
MISTRAL, QWEN_HALF = "mistralai/Mistral-7B-v0.1", "Qwen/Qwen2.5-0.5B"


def _given(model: str, method: str, batch: int, length: int, **keys: object) -> Given:
    return {
        "model": model,
        "method": method,
        "per_device_train_batch_size": batch,
        "max_length": length,
        **keys,
    }


CHECKPOINTED = {"gradient_checkpointing": True}
FLOAT32 = {"dtype": "float32"}
NO_AUTOCAST = {"mixed_precision": "no"}

# In order of what is learned: first the mechanisms on which most estimates rest, then one step away from each,
# then the families, last what repeats them larger. What a setup does not say is the contract's default.
BUILT_IN: tuple[Given, ...] = (
    # the three methods as they are most used
    _given(QWEN_HALF, "full", 1, 1024),
    _given(LLAMA_8B, "qlora", 1, 2048, **CHECKPOINTED),
    _given(LLAMA_8B, "lora", 1, 1024),
    _given(LLAMA_1B, "full", 2, 1024),
    # autocast over float32 weights: its cache of weight copies, with and without checkpointing
    _given(LLAMA_1B, "full", 2, 1024, **FLOAT32),
    _given(LLAMA_1B, "full", 2, 1024, **FLOAT32, **CHECKPOINTED),
    # float32 throughout: which attention kernel takes grouped heads there
    _given(LLAMA_1B, "full", 1, 1024, **FLOAT32, **NO_AUTOCAST),
    # no autocast: adapters in float32 on a bfloat16 base; the upcasts for k-bit training
    _given(LLAMA_3B, "lora", 2, 1024, **NO_AUTOCAST),
    _given(LLAMA_3B, "qlora", 2, 1024, prepare_model_for_kbit_training=True, **CHECKPOINTED),
    _given(LLAMA_3B, "qlora", 1, 1024, prepare_model_for_kbit_training=True, **NO_AUTOCAST),
    # the optimizer's own peak: long weights, short texts
    _given(LLAMA_3B, "full", 1, 256, optim="adamw_torch", **NO_AUTOCAST, **CHECKPOINTED),
    _given(LLAMA_3B, "full", 1, 256, optim="adafactor", **NO_AUTOCAST, **CHECKPOINTED),
    _given(LLAMA_3B, "full", 1, 256, optim="adamw_bnb_8bit", **NO_AUTOCAST, **CHECKPOINTED),
    _given(LLAMA_3B, "full", 1, 256, **NO_AUTOCAST, **CHECKPOINTED),
    # tied gradients that wait, alone and with accumulation; an untied head with it
    _given(LLAMA_1B, "full", 1, 512, gradient_accumulation_steps=2, **NO_AUTOCAST),
    _given(LLAMA_2_7B, "full", 1, 512, gradient_accumulation_steps=2, optim="sgd", **NO_AUTOCAST),
    # a peak inside a layer: long texts, small vocabulary, checkpointing
    _given(LLAMA_2_7B, "lora", 1, 8192, **CHECKPOINTED),
    _given(MISTRAL, "qlora", 1, 8192, **CHECKPOINTED),  # beyond its window: a mask
    _given(LLAMA_1B, "full", 1, 8192, **NO_AUTOCAST, **CHECKPOINTED),
    # the first again, in a process that has seen others: does it leave the same peaks
    _given(QWEN_HALF, "full", 1, 1024),
    # attention: eager, padded, flash; one key-value head for 71, which the fused kernels may not take
    _given("tiiuae/falcon-7b", "lora", 2, 1024),
    _given(LLAMA_1B, "full", 2, 1024, attn_implementation="eager", **NO_AUTOCAST),
    _given(LLAMA_1B, "full", 4, 1024, padded=True, **NO_AUTOCAST),
    _given(LLAMA_1B, "full", 2, 2048, attn_implementation="flash_attention_2", **NO_AUTOCAST),
    # float16, with a scaler
    _given(LLAMA_1B, "full", 1, 1024, mixed_precision="fp16", **FLOAT32),
    _given(LLAMA_3B, "lora", 1, 1024, dtype="float16", mixed_precision="fp16"),
    # Liger's kernels
    _given(LLAMA_1B, "full", 2, 1024, use_liger_kernel=True, **NO_AUTOCAST),
    _given(LLAMA_8B, "qlora", 1, 2048, use_liger_kernel=True, **CHECKPOINTED),
    # one step away in LoRA and QLoRA
    _given(LLAMA_3B, "lora", 2, 1024, autocast_adapter_dtype=False, lora_dropout=0, **NO_AUTOCAST),
    _given(LLAMA_3B, "lora", 2, 1024, lora_target_modules=["q_proj", "v_proj"], lora_r=8),
    _given(LLAMA_3B, "lora", 2, 1024, lora_r=256),
    _given(LLAMA_3B, "lora", 2, 1024, **FLOAT32),
    _given(LLAMA_3B, "qlora", 2, 1024, bnb_4bit_quant_type="fp4", bnb_4bit_use_double_quant=False),
    _given(LLAMA_3B, "qlora", 2, 1024, autocast_adapter_dtype=False, **CHECKPOINTED),
    _given(LLAMA_3B, "lora", 4, 1024, use_reentrant=True, **CHECKPOINTED),
    _given(LLAMA_3B, "lora", 4, 1024, **CHECKPOINTED),
    _given(LLAMA_1B, "full", 2, 1024, hold_outputs=True),
    # the other optimizers
    _given(LLAMA_1B, "full", 1, 256, optim="sgd", optim_args="momentum=0.9", **NO_AUTOCAST),
    _given(LLAMA_1B, "full", 1, 256, optim="lion_8bit", **NO_AUTOCAST),
    _given(LLAMA_1B, "full", 1, 256, optim="lion_32bit", **FLOAT32),
    # families: large vocabularies, norms, biases, windows, dropouts
    _given("google/gemma-3-1b-pt", "full", 1, 1024),
    _given("google/gemma-2-2b", "lora", 1, 1024),
    _given("openai-community/gpt2", "full", 8, 1024, **FLOAT32, **NO_AUTOCAST),
    _given("Qwen/Qwen3-4B", "lora", 1, 2048),
    _given("EleutherAI/pythia-1.4b", "full", 4, 1024),
    _given("microsoft/Phi-3.5-mini-instruct", "lora", 2, 2048),
    _given("allenai/OLMo-2-0425-1B", "full", 2, 1024, **NO_AUTOCAST),
    _given("microsoft/phi-2", "qlora", 4, 1024),
    _given("facebook/opt-1.3b", "full", 4, 1024),
    _given("bigscience/bloom-560m", "full", 2, 1024),
    _given("bigcode/starcoder2-3b", "lora", 2, 1024),
    _given("HuggingFaceTB/SmolLM2-135M", "full", 16, 1024),
    _given("HuggingFaceTB/SmolLM3-3B", "lora", 2, 2048, **CHECKPOINTED),
    _given("stabilityai/stablelm-2-1_6b", "full", 2, 1024),
    _given("ibm-granite/granite-3.3-2b-base", "lora", 4, 1024),
    _given("CohereLabs/aya-expanse-8b", "qlora", 1, 1024),
    # experts
    _given("ibm-granite/granite-3.1-1b-a400m-base", "full", 2, 1024),
    _given("allenai/OLMoE-1B-7B-0924", "lora", 1, 1024, lora_dropout=0),
    # larger
    _given("Qwen/Qwen2.5-14B", "qlora", 2, 2048, **CHECKPOINTED),
    _given(LLAMA_2_7B, "full", 1, 1024, optim="adamw_bnb_8bit", **NO_AUTOCAST, **CHECKPOINTED),
    _given("Qwen/Qwen3-14B", "lora", 1, 2048, **CHECKPOINTED),
    _given(QWEN_HALF, "full", 8, 2048, **CHECKPOINTED),
    _given(LLAMA_8B, "lora", 8, 512, **CHECKPOINTED),
)

TINY: Given = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
"""A model small enough to train on a laptop's CPU."""

DRY_RUN: tuple[Given, ...] = tuple(
    {"model": TINY, "method": method, "max_length": 16, **keys}
    for method, keys in (
        ("full", FLOAT32),
        ("full", CHECKPOINTED | {"gradient_accumulation_steps": 2}),
        ("lora", NO_AUTOCAST),
        ("qlora", CHECKPOINTED | {"prepare_model_for_kbit_training": True}),
    )
)
"""Cases for a machine without a GPU: the same steps, as a smoke test."""

"""The table of the JSON contract: one row a key, with what it may be and what it means.

Everything that knows a key reads it here: the contract, the link, the flags of the command line and
their help. A default is that of ``TrainingSetup``; only keys that are no field of it state theirs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from estimator.values.kinds import (
    Choice,
    Flag,
    Kind,
    Momentum,
    Names,
    Number,
    Text,
    Version,
    WholeNumber,
    not_modelled,
)
from estimator.values.refusals import InputError
from estimator.values.specs import (
    ALL_LINEAR,
    FULL_STATE_DICT,
    LARGEST,
    LOWEST_MFU,
    NETWORK,
    RATE_SPAN,
    RATES,
    SHARDED_STATE_DICT,
    AttnImplementation,
    Dtype,
    Loss,
    Method,
    MixedPrecision,
    Offload,
    Optimizer,
    Strategy,
    TrainingSetup,
)

DEFAULT = TrainingSetup()

# --- parallelisms without physics -----------------------------------------------------------------


class Parallelism(NamedTuple):
    """A way to share a run between GPUs that no formula knows yet, and what people call it."""

    name: str
    words: tuple[str, ...]
    """Alone and with ``_size`` and ``_degree`` behind them they are keys of a configuration; alone, strategies too."""
    strategies: tuple[str, ...] = ()
    """More words for a strategy."""


PARALLELISMS = (
    # accelerate 1.15, parallelism_config.py; vLLM and ms-swift; Megatron-LM's arguments.py; torchtitan's
    Parallelism(
        "tensor parallelism",
        ("tp", "tensor_parallel", "tensor_parallelism", "tensor_model_parallel", "tp_plan"),
    ),
    Parallelism(
        "pipeline parallelism",
        ("pp", "pipeline_parallel", "pipeline_parallelism", "pipeline_model_parallel"),
        ("pipeline", "gpipe", "1f1b"),
    ),
    Parallelism(
        "context parallelism",
        ("cp", "context_parallel", "context_parallelism", "ring_attention", "ring_attn"),
        ("ring",),
    ),
    Parallelism(
        "sequence parallelism",
        (
            *("sp", "sequence_parallel", "sequence_parallelism"),
            *("ulysses", "ulysses_parallel", "ulysses_sequence_parallel", "alst"),
        ),
        ("deepspeed_ulysses",),
    ),
    Parallelism(
        "expert parallelism",
        (
            *("ep", "expert_parallel", "expert_parallelism", "expert_model_parallel", "moe_ep"),
            *("expert_tensor_parallel", "enable_expert_parallel", "moe_expert_parallel"),
        ),
    ),
    Parallelism(
        "tensor or pipeline parallelism",
        ("model_parallel", "megatron", "megatron_lm"),
        ("megatron_core", "mcore", "3d", "3d_parallel", "3d_parallelism"),
    ),
)

PARALLEL_WORDS: Mapping[str, str] = MappingProxyType(
    {
        word + suffix: it.name
        for it in PARALLELISMS
        for word in it.words
        for suffix in ("", "_size", "_degree")
    }
)
"""Each key that asks for such a parallelism, in ``plain`` spelling, and which."""

UNMODELLED_STRATEGIES: Mapping[str, str] = MappingProxyType(
    {word: it.name for it in PARALLELISMS for word in (*it.words, *it.strategies)}
)
"""The same of strategies."""

NOT_PARALLEL = (None, False, 1)
"""What such a key says where nothing is shared that way."""

MEANT: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (
            *("world_size", "num_processes", "nproc_per_node", "n_gpus", "n_gpu", "gpus"),
            *("devices", "dp_size", "dp_shard_size", "data_parallel_size", "dp"),
        ),
        "num_gpus",
    )
)
"""Keys that others use and that look like none here, in ``plain`` spelling."""

# --- keys -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """One row of the contract."""

    name: str
    kind: Kind
    help: str
    aliases: tuple[str, ...] = ()
    ours: bool = False
    """Is the default ours? All others are Trainer's, TRL's or PEFT's."""
    modelled: tuple[object, ...] = ()
    """The only values that the physics knows so far, the default first; empty: all of its kind."""

    @property
    def in_setup(self) -> bool:
        """Is it a field of ``TrainingSetup``?"""
        return hasattr(DEFAULT, self.name)

    @property
    def default(self) -> object:
        """The value where the key is left out."""
        if self.in_setup:
            return getattr(DEFAULT, self.name)
        return self.modelled[0] if self.modelled else None

    def read(self, value: object) -> object:
        """The value of the setup; ``ValueError`` is one sentence that begins with the key."""
        try:
            read = self.kind.read(value)
        except ValueError as problem:
            raise InputError(f"{self.name} {problem}") from None
        if self.modelled and read not in self.modelled:
            raise not_modelled(value, PARALLEL_WORDS[self.name], self.name)
        return read


def _count(name: str, meaning: str, *, nullable: bool = False, ours: bool = False) -> Key:
    return Key(name, WholeNumber(LARGEST[name], nullable=nullable), meaning, ours=ours)


def _later(name: str, kind: Kind, meaning: str, *modelled: object) -> Key:
    """A key of the contract whose physics is not built yet, with the values that are accepted."""
    return Key(name, kind, meaning, modelled=modelled)


_OPTIM = Choice(
    tuple(Optimizer),
    enum=Optimizer,
    # transformers 5, training_args.OptimizerNames: second names of the same optimizer, and the rest
    aliases={
        "adamw_8bit": "adamw_bnb_8bit",
        "paged_adamw": "paged_adamw_32bit",
        "lion": "lion_32bit",
        "rmsprop_bnb_32bit": "rmsprop_bnb",
    },
    later=(
        "adalomo",
        "adamw_anyprecision",
        "adamw_apex_fused",
        "adamw_torch_4bit",
        "adamw_torch_8bit",
        "apollo_adamw_layerwise",
        "galore_adafactor",
        "galore_adafactor_layerwise",
        "galore_adamw_8bit",
        "galore_adamw_8bit_layerwise",
        "galore_adamw_layerwise",
        "grokadamw",
        "lomo",
    ),
)
_ATTENTION = Choice(
    tuple(AttnImplementation),
    enum=AttnImplementation,
    later=("flash_attention_3", "flex_attention"),
)
_STATE_DTYPE = Choice((Dtype.FLOAT32, Dtype.BFLOAT16), enum=Dtype, nullable=True)
_STRATEGY = Choice(tuple(Strategy), enum=Strategy, stands_for=UNMODELLED_STRATEGIES)
_LOSS = Choice(tuple(Loss), enum=Loss, nullable=True)
_OFFLOAD = Choice(tuple(Offload), enum=Offload)
_WHEN = ("no", "steps", "epoch")

GROUPS: Mapping[str, tuple[Key, ...]] = MappingProxyType(
    {
        "what is trained, and in what precision": (
            Key(
                "method",
                Choice(tuple(Method), enum=Method),
                "every weight, or adapters beside a frozen base",
            ),
            Key("dtype", Choice(tuple(Dtype), enum=Dtype), "what the weights are loaded in"),
            Key("mixed_precision", Choice(tuple(MixedPrecision), enum=MixedPrecision), "autocast"),
            Key("optim", _OPTIM, "the optimizer, by Trainer's name"),
            Key("optim_args", Momentum(nullable=True), "momentum, for sgd"),
            Key("optim_state_dtype", _STATE_DTYPE, "a what-if: optimizer states in this dtype"),
            Key("max_grad_norm", Number(1_000_000), "norm that gradients are clipped to; 0: never"),
        ),
        "the batch": (
            _count("per_device_train_batch_size", "examples in a micro-batch", ours=True),
            _count("gradient_accumulation_steps", "micro-batches in an optimizer step"),
            _count("max_length", "tokens in an example, packed or padded to it"),
            Key("padded", Flag(), "some rows end in padding, so that a mask is built", ours=True),
        ),
        "what is kept for the backward pass": (
            Key(
                "gradient_checkpointing",
                Flag(),
                "keep only each layer's input and play the layer again",
                aliases=("activation_checkpointing",),
            ),
            Key("use_reentrant", Flag(), "checkpoint in the older, reentrant way"),
            Key("attn_implementation", _ATTENTION, "the attention kernel"),
            Key("hold_outputs", Flag(), "the loop keeps the model's outputs through backward"),
            Key("use_liger_kernel", Flag(), "Liger's fused norm, MLP, rope and loss"),
            Key("loss", _LOSS, "how the loss is computed; null: Liger's with its kernels"),
        ),
        "LoRA": (
            _count("lora_r", "rank of the adapters"),
            _count("lora_alpha", "scale of the adapters; no memory"),
            Key("lora_dropout", Number(1, open_high=True), "dropout before the adapters"),
            Key(
                "lora_target_modules",
                Names(ALL_LINEAR),
                "the linears that get an adapter",
                ours=True,
            ),
            Key("autocast_adapter_dtype", Flag(), "adapters in float32, as PEFT; else as the base"),
            Key(
                "modules_to_save",
                Names(nullable=True),
                "modules of which a copy is trained whole, beside the adapters",
            ),
            Key("use_dora", Flag(), "DoRA: the length of each column is trained apart"),
        ),
        "the quantised base": (
            Key("bnb_4bit_quant_type", Choice(("nf4", "fp4")), "the 4-bit format"),
            Key("bnb_4bit_use_double_quant", Flag(), "quantise the scales too", ours=True),
            Key(
                "bnb_4bit_quant_storage",
                Choice(("uint8", "bfloat16", "float16", "float32")),
                "the dtype that packed weights pass for; FSDP and ZeRO-3 divide floats only",
            ),
            Key("prepare_model_for_kbit_training", Flag(), "PEFT's upcasts"),
            Key("load_in_8bit", Flag(), "LLM.int8 base, with lora"),
        ),
        "several GPUs": (
            _count("num_gpus", "GPUs in the job"),
            _count("gpus_per_node", "GPUs in one machine"),
            Key("strategy", _STRATEGY, "how GPUs share the work"),
            _later("tp_size", WholeNumber(1024), "ranks of tensor parallelism", 1),
            _later("pp_size", WholeNumber(1024), "ranks of pipeline parallelism", 1),
            _later("cp_size", WholeNumber(1024), "ranks of context parallelism", 1),
            _later("ep_size", WholeNumber(1024), "ranks of expert parallelism", 1),
            _count("dp_replicate_size", "replicas of the sharded model, for hsdp"),
            _count("fsdp_version", "1: the older FSDP, of flat parameters (fsdp_config's version)"),
            Key(
                "checkpoint_around_fsdp",
                Flag(),
                "checkpoints lie around FSDP 1's modules: transformers before 4.52",
            ),
            Key("offload_optimizer", _OFFLOAD, "where optimizer states rest"),
            Key("offload_param", _OFFLOAD, "where weights rest"),
        ),
        "the run": (
            _count("num_train_examples", "examples in the training set"),
            Key("num_train_epochs", Number(1_000_000, open_low=True), "passes over them"),
            _count("mean_tokens_per_example", "null: as max_length", nullable=True),
            _count("per_device_eval_batch_size", "examples in an evaluation batch"),
            Key("eval_strategy", Choice(_WHEN), "when to evaluate"),
            Key("save_strategy", Choice((*_WHEN, "best")), "when to save", ours=True),
            _count("save_total_limit", "checkpoints kept; null: all", nullable=True),
            Key("save_only_model", Flag(), "checkpoints without optimizer states"),
            Key(
                "fsdp_state_dict_type",
                Choice((FULL_STATE_DICT, SHARDED_STATE_DICT)),
                "how FSDP saves: whole through rank 0, or each rank its shards",
            ),
            Key(
                "zero3_save_16bit_model",
                Flag(),
                "ZeRO-3 gathers 16-bit weights to save them",
                aliases=("stage3_gather_16bit_weights_on_model_save",),
            ),
            Key(
                "usd_per_gpu_hour",
                Number(1_000_000, nullable=True),
                "your own price; null: from the table of prices",
            ),
            Key(
                "mfu",
                Number(1, low=LOWEST_MFU, nullable=True),
                "your own utilisation, a share; null: the bracket of published ones",
            ),
            _later("v", Version(), "version of the contract", 1),
        ),
    }
)
"""The keys of a setup but ``model`` and ``gpu``, as the help lists them."""

KEYS: tuple[Key, ...] = tuple(key for group in GROUPS.values() for key in group)

BY_NAME: Mapping[str, Key] = MappingProxyType(
    {name: key for key in KEYS for name in (key.name, *key.aliases)}
)
"""Each key by its name and by its other names."""

GPU_KEYS: Mapping[str, Kind] = MappingProxyType(
    {
        "name": Text(),
        "memory_bytes": WholeNumber(10**15),
        "memory_is_derived": Flag(),
        "nameplate_gb": Number(1_000_000),
        "vendor": Text(),
        "architecture": Text(),
        "compute_capability": Text(),
        "supports_bf16": Flag(),
        **dict.fromkeys((*RATES, NETWORK), Number(RATE_SPAN[1], low=RATE_SPAN[0], nullable=True)),
        "source": Text(),
    }
)
"""The keys of a GPU of one's own, beside ``like``: the fields of ``Gpu`` but what only the catalogue knows."""

"""One fine-tuning run, in facets; each key of the JSON contract is declared here, once, as a field of its facet.

To add a key is to add a row: its check, its place in the JSON object, its flag, its link and its widget follow from it.
A name that is no key of Hugging Face's is ours. What a group of keys is called stands in ``FACETS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from estimator.values.declaration import (
    Checked,
    Hashed,
    Key,
    Section,
    Whose,
    Widget,
    flat,
    key,
    rows,
)
from estimator.values.kinds import Choice, Flag, Momentum, Names, Number, Version, WholeNumber
from estimator.values.parallelisms import strategy_asks_for
from estimator.values.specs import (
    ALL_LINEAR,
    FULL_STATE_DICT,
    LOWEST_MFU,
    SHARDED_STATE_DICT,
    AttnImplementation,
    Dtype,
    Loss,
    Method,
    MixedPrecision,
    ModelClass,
    Offload,
    Optimizer,
    Strategy,
)

GPUS, LORA, QUANTISATION, RUN, MORE, ALWAYS = (
    Section.SEVERAL_GPUS,
    Section.LORA,
    Section.QUANTISATION,
    Section.RUN,
    Section.MORE,
    Section.ALWAYS,
)

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
_OFFLOAD = Choice(tuple(Offload), enum=Offload)
_WHEN = ("no", "steps", "epoch")
_UNMODELLED = "only 1 is modelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters(Checked):
    """What is trained: every weight, or adapters beside a frozen base, which may be packed."""

    __hash__ = Hashed.__hash__

    method: Method = key(
        Method.FULL,
        Choice(tuple(Method), enum=Method),
        "every weight, or adapters beside a frozen base",
        whose=Whose.OURS,
        code="me",
        widget=Widget(
            shape="segments",
            section=ALWAYS,
            label="Method",
            help="full trains every weight; lora small adapters; qlora does so beside a 4-bit base.",
        ),
    )
    model_class: ModelClass = key(
        ModelClass.AUTO,
        Choice(tuple(ModelClass), enum=ModelClass),
        "of a checkpoint with towers: auto, as AutoModelForCausalLM makes it, or its text alone",
        whose=Whose.TRANSFORMERS,
        code="mc",
        widget=Widget(
            shape="segments",
            section=MORE,
            label="Class",
            help="auto is what AutoModelForCausalLM makes, towers for images and sound too; text is the class of the "
            "text alone.",
        ),
    )
    lora_r: int = key(
        16,
        WholeNumber(8192),
        "rank of the adapters",
        whose=Whose.OURS,
        beside="PEFT's is 8",
        code="r",
        widget=Widget(
            shape="slider",
            section=LORA,
            label="Rank",
            help="Width of the adapters; their size grows in step with it.",
            steps=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512),
        ),
    )
    lora_alpha: int = key(
        32,
        WholeNumber(10**6),
        "scale of the adapters; no memory",
        whose=Whose.TRL,
        code="la",
        widget="a scale: it takes no memory and no time",
    )
    lora_target_modules: str | tuple[str, ...] = key(
        ALL_LINEAR,
        Names(ALL_LINEAR),
        "the linears that get an adapter",
        whose=Whose.OURS,
        code="lt",
        widget=Widget(
            shape="options",
            section=LORA,
            label="Modules",
            help="The same by name, as PEFT's target_modules.",
        ),
    )
    lora_dropout: float = key(
        0.05,
        Number(1, open_high=True),
        "dropout before the adapters",
        whose=Whose.TRL,
        code="ld",
        widget=Widget(
            shape="number",
            section=LORA,
            label="Dropout",
            help="Dropout before the adapters; any at all keeps one more tensor.",
            step=0.05,
            ends=(0.0, 0.95),
        ),
    )
    autocast_adapter_dtype: bool = key(
        True,
        Flag(),
        "adapters in float32, as PEFT; else as the base",
        whose=Whose.PEFT,
        beside="TRL turns it off for QLoRA",
        code="ad",
        widget=Widget(
            shape="toggle",
            section=LORA,
            label="Adapters in float32",
            help="autocast_adapter_dtype; without it adapters have the base's dtype.",
        ),
    )
    use_dora: bool = key(
        False,
        Flag(),
        "DoRA: the length of each column is trained apart",
        whose=Whose.PEFT,
        code="do",
        widget=Widget(
            shape="toggle",
            section=LORA,
            label="DoRA",
            help="Trains the length of a weight's columns apart; with dropout every adapted weight is kept once more.",
        ),
    )
    modules_to_save: tuple[str, ...] | None = key(
        None,
        Names(nullable=True),
        "modules of which a copy is trained whole, beside the adapters",
        whose=Whose.PEFT,
        null="none",
        code="ms",
        widget=Widget(
            shape="options",
            section=LORA,
            label="Trained whole",
            help="PEFT's modules_to_save: of each a copy is trained beside the adapters, and the frozen original "
            "stays.",
        ),
    )
    bnb_4bit_quant_type: str = key(
        "nf4",
        Choice(("nf4", "fp4")),
        "the 4-bit format",
        whose=Whose.TRL,
        code="qt",
        widget=Widget(
            shape="segments", section=QUANTISATION, label="4-bit format", help="Equal in size."
        ),
    )
    bnb_4bit_use_double_quant: bool = key(
        True,
        Flag(),
        "quantise the scales too",
        whose=Whose.OURS,
        code="dq",
        widget=Widget(
            shape="toggle",
            section=QUANTISATION,
            label="Double quantisation",
            help="Quantise the scales as well: 0.4 bits a parameter less.",
        ),
    )
    bnb_4bit_quant_storage: str = key(
        "uint8",
        Choice(("uint8", "bfloat16", "float16", "float32")),
        "the dtype that packed weights pass for; FSDP and ZeRO-3 divide floats only",
        whose=Whose.TRANSFORMERS,
        widget=Widget(
            shape="select",
            section=QUANTISATION,
            label="Packed weights pass for",
            help="bnb_4bit_quant_storage: FSDP and ZeRO-3 divide packed weights only where they pass for floats.",
        ),
    )
    prepare_model_for_kbit_training: bool = key(
        False,
        Flag(),
        "PEFT's upcasts",
        whose=Whose.TRL,
        code="kb",
        widget=Widget(
            shape="toggle",
            section=QUANTISATION,
            label="Prepare for k-bit training",
            help="PEFT's helper: norms, embeddings and head go to float32.",
        ),
    )
    load_in_8bit: bool = key(
        False,
        Flag(),
        "LLM.int8 base, with lora; the other methods do not look at it",
        whose=Whose.TRL,
        code="i8",
        widget=Widget(
            shape="toggle",
            section=QUANTISATION,
            label="8-bit base (LoRA only)",
            help="LLM.int8: a byte a weight; its inputs stay through backward even under checkpointing.",
        ),
    )

    @property
    def uses_adapters(self) -> bool:
        """LoRA or QLoRA."""
        return self.method is not Method.FULL

    @property
    def has_8bit_base(self) -> bool:
        """Whether the adapters' base is packed into 8 bits."""
        return self.method is Method.LORA and self.load_in_8bit

    @property
    def has_packed_base(self) -> bool:
        """Whether bitsandbytes packs the adapters' base, into 4 or 8 bits."""
        return self.method is Method.QLORA or self.has_8bit_base


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision(Checked):
    """What weights are loaded in, and what the forward pass computes in."""

    __hash__ = Hashed.__hash__

    dtype: Dtype = key(
        Dtype.BFLOAT16,
        Choice(tuple(Dtype), enum=Dtype),
        "what the weights are loaded in",
        whose=Whose.OURS,
        beside="as in TRL's guides",
        code="dt",
        widget=Widget(
            shape="segments", section=MORE, label="Weights", help="The dtype behind Precision."
        ),
    )
    mixed_precision: MixedPrecision = key(
        MixedPrecision.BF16,
        Choice(tuple(MixedPrecision), enum=MixedPrecision),
        "autocast",
        whose=Whose.TRL,
        code="mp",
        widget=Widget(
            shape="segments",
            section=MORE,
            label="Autocast",
            help="Trainer's bf16 or fp16 behind Precision.",
        ),
    )

    @property
    def uses_bf16(self) -> bool:
        """Whether any arithmetic is in bfloat16."""
        return self.dtype is Dtype.BFLOAT16 or self.mixed_precision is MixedPrecision.BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation(Checked):
    """What becomes of the gradients."""

    __hash__ = Hashed.__hash__

    optim: Optimizer = key(
        Optimizer.ADAMW_TORCH_FUSED,
        _OPTIM,
        "the optimizer, by Trainer's name",
        code="op",
        widget=Widget(
            shape="select",
            section=ALWAYS,
            label="Optimizer",
            help="Trainer's optim, by its own names.",
        ),
    )
    optim_state_dtype: Dtype | None = key(
        None,
        Choice((Dtype.FLOAT32, Dtype.BFLOAT16), enum=Dtype, nullable=True),
        "a what-if: optimizer states in this dtype",
        whose=Whose.OURS,
        null="as the optimizer keeps them",
        code="os",
        widget=Widget(
            shape="select",
            section=MORE,
            label="Optimizer states (what-if)",
            help="A what-if: hold the states in this dtype.",
        ),
    )
    max_grad_norm: float = key(
        1.0,
        Number(1_000_000),
        "norm that gradients are clipped to; 0: never",
        code="gn",
        widget=Widget(
            shape="number",
            section=MORE,
            label="Gradients clipped to a norm of",
            help="Trainer's max_grad_norm; 0 never clips, and takes no norm.",
            step=0.1,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Checked):
    """What goes through the model, and how often before a step. Counts are ``int``."""

    __hash__ = Hashed.__hash__

    per_device_train_batch_size: int = key(
        1,
        WholeNumber(4096),
        "examples in a micro-batch",
        whose=Whose.OURS,
        beside="Trainer's is 8",
        code="b",
        widget=Widget(
            shape="slider",
            section=ALWAYS,
            label="Micro-batch",
            help="Examples that go through the model at once.",
            steps=(*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 192, 256),
        ),
    )
    gradient_accumulation_steps: int = key(
        1,
        WholeNumber(65_536),
        "micro-batches in an optimizer step",
        code="a",
        widget=Widget(
            shape="slider",
            section=ALWAYS,
            label="Accumulation",
            help="Micro-batches whose gradients are added before a step.",
            steps=(*range(1, 17), 20, 24, 32, 48, 64, 96, 128, 256, 512),
        ),
    )
    max_length: int = key(
        1024,
        WholeNumber(2**24),
        "tokens in an example, packed or padded to it",
        whose=Whose.TRL,
        code="l",
        widget=Widget(
            shape="slider",
            section=ALWAYS,
            label="Context",
            help="Tokens in each example, packed or padded to it.",
            steps=tuple(sorted({n << k for n in (128, 192) for k in range(11)} - {196_608})),
        ),
    )
    padded: bool = key(
        False,
        Flag(),
        "some rows end in padding, so that a mask is built",
        whose=Whose.OURS,
        beside="as with TRL's packing",
        code="pa",
        widget=Widget(
            shape="toggle",
            section=MORE,
            label="Rows end in padding",
            help="padded: some rows of a batch are shorter, so that a mask is built.",
        ),
    )

    @property
    def tokens(self) -> int:
        """Tokens in one micro-batch, padding included."""
        return self.per_device_train_batch_size * self.max_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation(Checked):
    """By which kernels layers and loss are computed, and what is kept for the backward pass."""

    __hash__ = Hashed.__hash__

    gradient_checkpointing: bool = key(
        False,
        Flag(),
        "keep only each layer's input and play the layer again",
        beside="TRL's is on",
        code="gc",
        aliases=("activation_checkpointing",),
        widget=Widget(
            shape="toggle",
            section=ALWAYS,
            label="Gradient checkpointing",
            help="Keep only each layer's input and compute the layer again in backward.",
            decides=True,
        ),
    )
    use_reentrant: bool = key(
        False,
        Flag(),
        "checkpoint in the older, reentrant way",
        whose=Whose.TRANSFORMERS,
        code="re",
        widget=Widget(
            shape="toggle",
            section=MORE,
            label="Reentrant checkpoints",
            help="use_reentrant of gradient_checkpointing_kwargs: the older way, which holds each block's input and "
            "output while it is replayed.",
            decides=True,
        ),
    )
    attn_implementation: AttnImplementation = key(
        AttnImplementation.SDPA,
        _ATTENTION,
        "the attention kernel",
        whose=Whose.TRANSFORMERS,
        code="at",
        widget=Widget(
            shape="select",
            section=ALWAYS,
            label="Attention",
            help="The attention kernel; eager keeps the whole table of scores.",
        ),
    )
    use_liger_kernel: bool = key(
        False,
        Flag(),
        "Liger's fused norm, MLP, rope and loss",
        code="lk",
        widget=Widget(
            shape="toggle",
            section=MORE,
            label="Liger kernels",
            help="Trainer's use_liger_kernel: fused norm, MLP, rotation and loss.",
        ),
    )
    loss: Loss | None = key(
        None,
        Choice(tuple(Loss), enum=Loss, nullable=True),
        "how the loss is computed",
        null="Liger's with its kernels, else standard",
        code="lo",
        widget=Widget(
            shape="select",
            section=MORE,
            label="Loss",
            help="Whether the logits are ever held whole.",
        ),
    )
    hold_outputs: bool = key(
        False,
        Flag(),
        "the loop keeps the model's outputs through backward",
        code="ho",
        widget=Widget(
            shape="toggle",
            section=MORE,
            label="The loop holds the outputs",
            help="hold_outputs: a loop of your own that keeps the model's outputs, and so the logits, through "
            "backward.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh(Checked):
    """How many GPUs there are, how they share the work, and what rests outside them."""

    __hash__ = Hashed.__hash__

    num_gpus: int = key(
        1,
        WholeNumber(65_536),
        "GPUs in the job",
        whose=Whose.OURS,
        code="n",
        widget=Widget(
            shape="slider",
            section=GPUS,
            label="GPUs",
            help="GPUs that train one model together; the sizes shown are those of the fullest.",
            steps=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024),
        ),
    )
    strategy: Strategy = key(
        Strategy.NONE,
        Choice(tuple(Strategy), enum=Strategy, stands_for=strategy_asks_for),
        "how GPUs share the work",
        whose=Whose.OURS,
        code="st",
        widget=Widget(
            shape="select",
            section=GPUS,
            label="Strategy",
            help="Who keeps what: ddp all on each; zero1, zero2, zero3 divide states, gradients, weights (DeepSpeed); "
            "fsdp divides all (accelerate's FSDP2), hsdp in groups; device_map puts layers on different GPUs, "
            "which work in turn.",
        ),
    )
    gpus_per_node: int = key(
        8,
        WholeNumber(1024),
        "GPUs in one machine",
        whose=Whose.OURS,
        code="nn",
        widget=Widget(
            shape="number",
            section=GPUS,
            label="GPUs in one machine",
            help="Accelerators that share a machine's links.",
            decides=True,
        ),
    )
    dp_replicate_size: int = key(
        1,
        WholeNumber(65_536),
        "replicas of the sharded model, for hsdp",
        whose=Whose.ACCELERATE,
        code="dr",
        widget=Widget(
            shape="number",
            section=GPUS,
            label="Groups (hsdp)",
            help="accelerate's dp_replicate_size: groups that are replicas of each other.",
        ),
    )
    tp_size: int = key(
        1,
        WholeNumber(1024),
        "ranks of tensor parallelism",
        whose=Whose.ACCELERATE,
        code="tp",
        modelled=(1,),
        widget=_UNMODELLED,
    )
    pp_size: int = key(
        1,
        WholeNumber(1024),
        "ranks of pipeline parallelism",
        whose=Whose.ACCELERATE,
        code="pp",
        modelled=(1,),
        widget=_UNMODELLED,
    )
    cp_size: int = key(
        1,
        WholeNumber(1024),
        "ranks of context parallelism",
        whose=Whose.ACCELERATE,
        code="cp",
        modelled=(1,),
        widget=_UNMODELLED,
    )
    ep_size: int = key(
        1,
        WholeNumber(1024),
        "ranks of expert parallelism",
        whose=Whose.ACCELERATE,
        code="ep",
        modelled=(1,),
        widget=_UNMODELLED,
    )
    fsdp_version: int = key(
        2,
        WholeNumber(2),
        "1: the older FSDP, of flat parameters (fsdp_config's version)",
        whose=Whose.OURS,
        beside="of accelerate's launcher: 1",
        widget=Widget(
            shape="segments",
            section=GPUS,
            label="FSDP",
            help="fsdp_version: 2 divides each parameter; 1, torch's FullyShardedDataParallel, flattens those of a "
            "layer into one.",
        ),
    )
    checkpoint_around_fsdp: bool = key(
        False,
        Flag(),
        "checkpoints lie around FSDP 1's modules: transformers before 4.52",
        whose=Whose.TRANSFORMERS,
        widget=Widget(
            shape="toggle",
            section=GPUS,
            label="Checkpoints around FSDP's modules",
            help="checkpoint_around_fsdp: as in transformers before 4.52, where frozen layers' inputs stay until "
            "backward has ended.",
        ),
    )
    offload_optimizer: Offload = key(
        Offload.NONE,
        _OFFLOAD,
        "where optimizer states rest",
        whose=Whose.DEEPSPEED,
        code="oo",
        widget=Widget(
            shape="select",
            section=GPUS,
            label="Optimizer rests on",
            help="ZeRO-Offload: states and gradients lie in the host's memory, or on NVMe (zero3), and the CPU steps "
            "the optimizer. FSDP offloads weights with it.",
        ),
    )
    offload_param: Offload = key(
        Offload.NONE,
        _OFFLOAD,
        "where weights rest",
        whose=Whose.DEEPSPEED,
        code="of",
        widget=Widget(
            shape="select",
            section=GPUS,
            label="Weights rest on",
            help="Weights come from the host's memory, or from NVMe (zero3), whenever a layer needs them.",
        ),
    )

    @property
    def shard_ranks(self) -> int:
        """GPUs that one copy of what is divided is spread over."""
        return self.num_gpus // self.dp_replicate_size

    @property
    def uses_fsdp1(self) -> bool:
        """Whether torch's older FSDP divides the work."""
        return self.strategy.is_fsdp and self.fsdp_version == 1

    @property
    def replicas(self) -> int:
        """Processes that each take a micro-batch of their own: one a GPU, but one in all under ``device_map``."""
        return 1 if self.strategy is Strategy.DEVICE_MAP else self.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun(Checked):
    """The run around the steps: examples, evaluations, checkpoints, and what an hour of it costs."""

    __hash__ = Hashed.__hash__

    num_train_examples: int = key(
        10_000,
        WholeNumber(10**12),
        "examples in the training set",
        whose=Whose.OURS,
        code="x",
        widget=Widget(
            shape="number",
            section=RUN,
            label="Examples",
            help="Examples in the training set.",
            step=1000,
        ),
    )
    num_train_epochs: float = key(
        1.0,
        Number(1_000_000, open_low=True),
        "passes over them",
        whose=Whose.OURS,
        beside="Trainer's is 3",
        code="e",
        widget=Widget(
            shape="number",
            section=RUN,
            label="Epochs",
            help="Passes over the examples.",
            ends=(0.01, 1_000_000.0),
        ),
    )
    mean_tokens_per_example: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "tokens in an example on average",
        whose=Whose.OURS,
        null="as many as the context",
        code="mt",
        widget=Widget(
            shape="number",
            section=RUN,
            label="Mean tokens of an example",
            help="The work is examples × their mean length; the memory follows the context.",
            step=64,
        ),
    )
    eval_strategy: str = key(
        "no",
        Choice(_WHEN),
        "when to evaluate",
        code="es",
        widget=Widget(
            shape="select",
            section=RUN,
            label="Evaluation",
            help="Trainer's eval_strategy: evaluating holds its own batch.",
        ),
    )
    per_device_eval_batch_size: int = key(
        8,
        WholeNumber(4096),
        "examples in an evaluation batch",
        code="eb",
        widget=Widget(
            shape="number",
            section=RUN,
            label="Examples in an evaluation batch",
            help="Trainer's per_device_eval_batch_size.",
        ),
    )
    save_strategy: str = key(
        "epoch",
        Choice((*_WHEN, "best")),
        "when to save",
        whose=Whose.OURS,
        beside="Trainer's is steps",
        code="ss",
        widget=Widget(
            shape="select",
            section=RUN,
            label="Save",
            help="Trainer's save_strategy: every 500 steps, every epoch, or when the metric is best.",
        ),
    )
    save_total_limit: int | None = key(
        None,
        WholeNumber(10**6, nullable=True),
        "checkpoints kept",
        null="all",
        code="sl",
        widget=Widget(
            shape="number",
            section=RUN,
            label="Checkpoints kept",
            help="Trainer's save_total_limit; the oldest goes when the next is written.",
        ),
    )
    save_only_model: bool = key(
        False,
        Flag(),
        "checkpoints without optimizer states",
        code="so",
        widget=Widget(
            shape="toggle",
            section=RUN,
            label="Weights only",
            help="Trainer's save_only_model: no optimizer states, so no run can go on from it.",
        ),
    )
    fsdp_state_dict_type: str = key(
        FULL_STATE_DICT,
        Choice((FULL_STATE_DICT, SHARDED_STATE_DICT)),
        "how FSDP saves: whole through rank 0, or each rank its shards",
        beside=f"of accelerate's launcher: {SHARDED_STATE_DICT}",
        code="sd",
        widget=Widget(
            shape="select",
            section=GPUS,
            label="Checkpoints of FSDP",
            help="fsdp_state_dict_type: the whole model through rank 0, or each GPU its shards.",
        ),
    )
    zero3_save_16bit_model: bool = key(
        False,
        Flag(),
        "ZeRO-3 gathers 16-bit weights to save them",
        whose=Whose.DEEPSPEED,
        code="z6",
        aliases=("stage3_gather_16bit_weights_on_model_save",),
        widget=Widget(
            shape="toggle",
            section=GPUS,
            label="ZeRO-3 saves 16-bit weights",
            help="zero3_save_16bit_model: gathers the model to save it, beside DeepSpeed's parts.",
        ),
    )
    usd_per_gpu_hour: float | None = key(
        None,
        Number(1_000_000, nullable=True),
        "your own price",
        whose=Whose.OURS,
        null="the cheapest listing known",
        code="us",
        widget=Widget(
            shape="number",
            section=RUN,
            label="US dollars a GPU-hour",
            help="Your own price; listings stand in data/prices.csv, named with their dates.",
            step=0.1,
        ),
    )
    mfu: float | None = key(
        None,
        Number(1, low=LOWEST_MFU, nullable=True),
        "your own utilisation, a share",
        whose=Whose.OURS,
        null="the bracket of published runs",
        widget=Widget(
            shape="number",
            section=RUN,
            label="Model FLOPs utilisation (0 to 1)",
            help="What you have measured of such a run; it narrows the bracket.",
            step=0.05,
        ),
    )


FACETS: Mapping[str, tuple[type[Checked], str]] = MappingProxyType(
    {
        "adapters": (Adapters, "what is trained: every weight, or adapters"),
        "precision": (Precision, "what is computed in"),
        "optimisation": (Optimisation, "the optimizer"),
        "batch": (Batch, "the batch"),
        "computation": (Computation, "kernels, and what is kept for the backward pass"),
        "mesh": (Mesh, "several GPUs"),
        "run": (TrainingRun, "the run"),
    }
)
"""The facets of a setup, each by its field, with what the help calls it."""
READ_INTO_OTHERS: Mapping[str, tuple[Key, ...]] = MappingProxyType(
    {
        "optimisation": (
            Key(
                name="optim_args",
                default=None,
                kind=Momentum(nullable=True),
                help="momentum, for sgd",
                null="none",
                code="oa",
                widget="its momentum makes sgd the optimizer sgd_momentum, which the box for it offers",
            ),
        ),
        "run": (
            Key(
                name="v",
                default=1,
                kind=Version(),
                help="version of the contract",
                whose=Whose.OURS,
                modelled=(1,),
                widget="of the contract, not of the setup",
            ),
        ),
    }
)
"""Keys of the contract that no setup has, beside the facet that they are listed with."""
FACET_OF: Mapping[str, str] = flat({name: of for name, (of, _) in FACETS.items()})
"""Which facet answers to each key and each property of one."""


if TYPE_CHECKING:

    class _Keys(  # type: ignore[misc]  # no object has all their slots: at run time each is asked
        Adapters, Precision, Optimisation, Batch, Computation, Mesh, TrainingRun
    ):
        """Every key of every facet, typed as its facet has it."""
else:

    class _Keys(Hashed):
        """Every key and property of every facet, asked of the facet."""

        __slots__ = ()

    for _name, _facet in FACET_OF.items():
        setattr(_Keys, _name, property(attrgetter(f"{_facet}.{_name}")))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup(_Keys):
    """One fine-tuning run in facets. Every key can also be given, asked for and replaced by its own name.

    >>> setup = TrainingSetup(method=Method.LORA, num_gpus=2, mesh=Mesh(strategy=Strategy.DDP))
    >>> setup.adapters.method.value, setup.mesh.num_gpus, setup.strategy.value, replace(setup, lora_r=8).lora_r
    ('lora', 2, 'ddp', 8)
    """

    __hash__ = Hashed.__hash__

    adapters: Adapters = field(default=Adapters())
    precision: Precision = field(default=Precision())
    optimisation: Optimisation = field(default=Optimisation())
    batch: Batch = field(default=Batch())
    computation: Computation = field(default=Computation())
    mesh: Mesh = field(default=Mesh())
    run: TrainingRun = field(default=TrainingRun())

    if not TYPE_CHECKING:

        def __init__(self, **given: Any) -> None:
            """Facets by their names, and on top of them keys by theirs."""
            changed: dict[str, dict[str, Any]] = {}
            for name, value in given.items():
                if (facet := KEY_FACET.get(name)) is not None:
                    changed.setdefault(facet, {})[name] = value
                elif name not in FACETS:
                    raise TypeError(f"a setup has no {name}")
            for facet, unchanged in _DEFAULTS.items():
                now = given.get(facet, unchanged)
                if facet in changed:
                    now = replace(now, **changed[facet])
                object.__setattr__(self, facet, now)

    @property
    def effective_batch_size(self) -> int:
        """Examples per optimizer step, over all GPUs."""
        batch = self.batch
        examples = batch.per_device_train_batch_size * batch.gradient_accumulation_steps
        return examples * self.mesh.replicas


KEY_FACET: Mapping[str, str] = MappingProxyType(
    {row.name: facet for facet, (of, _) in FACETS.items() for row in rows(of)}
)
"""The facet that has each key."""
_DEFAULTS: Mapping[str, Checked] = MappingProxyType(
    {name: of() for name, (of, _) in FACETS.items()}
)

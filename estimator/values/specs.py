"""Models, GPUs and the enums of a setup, all frozen and validated when built.

Names are Hugging Face's (``TrainingArguments``, ``BitsAndBytesConfig``, ``LoraConfig``, ``config.json``).
Sizes are counts or bytes, always ``int``. A ``ValueError`` says what to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from estimator.values.quantization import Quantization
from estimator.values.records import Record
from estimator.values.refusals import InputError, show
from estimator.values.towers import Towers


class ModelClass(StrEnum):
    """Which class loads a multimodal checkpoint."""

    AUTO = "auto"
    """What ``AutoModelForCausalLM`` loads: for Gemma 3, 3n and 4 the text model and its towers."""
    TEXT = "text"
    """The text model only, such as ``Gemma3ForCausalLM``."""
    IMAGE_TEXT = "image_text"
    """What ``AutoModelForImageTextToText`` makes: the text with the tower that sees."""


class Part(StrEnum):
    """A part of a model that is trained or frozen as one."""

    TEXT = "text"
    PROJECTOR = "projector"
    VISION = "vision"


class Dtype(StrEnum):
    """The dtype that the weights are loaded in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def bytes(self) -> int:
        """Bytes per element."""
        return 4 if self is Dtype.FLOAT32 else 2


class MixedPrecision(StrEnum):
    """Trainer's ``bf16=True`` or ``fp16=True``: autocast around the forward pass, not a cast of the weights.

    ``fp8`` is accelerate's: bf16 autocast, and linears that multiply in FP8.
    """

    NO = "no"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"


class Fp8Backend(StrEnum):
    """``fp8_backend`` of accelerate: the library whose linears multiply in FP8."""

    AO = "ao"
    TE = "te"


class Optimizer(StrEnum):
    """``TrainingArguments.optim``, by the names of transformers' ``OptimizerNames``."""

    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_TORCH = "adamw_torch"
    ADAMW_BNB_8BIT = "adamw_bnb_8bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADAMW_32BIT = "paged_adamw_32bit"
    ADAMW_TORCH_8BIT = "adamw_torch_8bit"
    ADAMW_TORCH_4BIT = "adamw_torch_4bit"
    ADAFACTOR = "adafactor"
    SGD = "sgd"
    SGD_MOMENTUM = "sgd_momentum"
    LION_32BIT = "lion_32bit"
    LION_8BIT = "lion_8bit"
    PAGED_LION_32BIT = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    ADEMAMIX = "ademamix"
    ADEMAMIX_8BIT = "ademamix_8bit"
    PAGED_ADEMAMIX_32BIT = "paged_ademamix_32bit"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    RMSPROP_BNB = "rmsprop_bnb"
    RMSPROP_BNB_8BIT = "rmsprop_bnb_8bit"
    RMSPROP = "rmsprop"
    ADAGRAD = "adagrad"
    STABLE_ADAMW = "stable_adamw"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    SCHEDULE_FREE_RADAM = "schedule_free_radam"
    SCHEDULE_FREE_SGD = "schedule_free_sgd"
    GALORE_ADAMW = "galore_adamw"
    APOLLO_ADAMW = "apollo_adamw"


class AttentionFacts:
    """What is asked about an attention kernel."""

    label: str
    keeps_scores: bool = False
    """The scores of all pairs of tokens are a matrix, to which a mask is added, and which backward reads."""
    is_torchs: bool = False
    """torch takes the fastest of its kernels that the shapes allow."""
    is_flash: bool = False
    """Dao's, which takes no mask and computes in 16 bits."""


class AttnImplementation(AttentionFacts, Record):
    """The attention kernel, as ``from_pretrained(attn_implementation=…)`` names it."""

    EAGER = "eager", {"label": "eager"}, "keeps_scores"
    SDPA = "sdpa", {"label": "SDPA"}, "is_torchs"
    FLASH_ATTENTION_2 = "flash_attention_2", {"label": "FlashAttention 2"}, "is_flash"


class CompileMode(StrEnum):
    """The mode of ``torch.compile``, as Trainer's ``torch_compile_mode`` names it."""

    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    """Launches CUDA graphs."""
    MAX_AUTOTUNE = "max-autotune"
    """Times the templates of each product as well."""
    MAX_AUTOTUNE_NO_CUDAGRAPHS = "max-autotune-no-cudagraphs"


CUDA_GRAPHS = frozenset({CompileMode.REDUCE_OVERHEAD, CompileMode.MAX_AUTOTUNE})
"""Modes that launch a step as CUDA graphs: torch 2.13, _inductor/__init__.py, ``list_mode_options``."""


class Offload(StrEnum):
    """Where weights or optimizer states are stored when no layer needs them."""

    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


class Phase(StrEnum):
    """The phases of one training step in order of time, then those of a run outside its steps."""

    FORWARD = "forward"
    LOSS = "loss"
    REFERENCE = "reference"
    """Forward calls under ``no_grad`` inside the loss."""
    SCORING = "scoring"
    """Forward calls under ``no_grad`` before the micro-step."""
    PUSH_WEIGHTS = "push_weights"
    """New weights are copied to the inference engine, before it generates."""
    GENERATION = "generation"
    """Completions are written, before they are scored."""
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    LOAD = "load"
    EVALUATION = "evaluation"
    SAVE = "save"


STEP_PHASES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER_STEP)
"""Of every step."""
MORE_PASSES = (Phase.REFERENCE, Phase.SCORING)
"""Of a step whose objective asks a model without training it."""
GENERATION_PHASES = (Phase.PUSH_WEIGHTS, Phase.GENERATION)
"""Of a step whose objective trains on what the model writes; they come before its passes."""


class Component(StrEnum):
    """The components of memory, in the order of the stacked bars."""

    WEIGHTS = "weights"
    ADAPTERS = "adapters"
    REFERENCE_MODEL = "reference_model"
    """Weights of a model that is asked and not trained."""
    INFERENCE_ENGINE = "inference_engine"
    """What vLLM holds on a GPU that it shares with the trainer, or transformers' cache of keys and values."""
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer_states"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    TEMPORARIES = "temporaries"
    COMMUNICATION = "communication"
    WORKSPACE = "workspace"


OF_EVERY_STEP = tuple(
    part
    for part in Component
    if part not in (Component.REFERENCE_MODEL, Component.INFERENCE_ENGINE)
)
"""Components that every answer lists."""


class Verdict(StrEnum):
    """Need compared with capacity."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"


ALL_LINEAR = "all-linear"
FULL_STATE_DICT, SHARDED_STATE_DICT = "FULL_STATE_DICT", "SHARDED_STATE_DICT"
"""What FSDP saves: transformers 5.23, training_args.py, ``fsdp_config`` (default: the first; accelerate's launcher
uses the second for FSDP2)."""

FIRST_WITH_FP8 = (8, 9)
"""The lowest compute capability with FP8."""
RATES = (
    "memory_bandwidth_gb_per_s",
    "bf16_dense_tflops",
    "fp16_dense_tflops",
    "fp8_dense_tflops",
    "fp32_tflops",
    "sustained_tflops",
    "fp8_sustained_tflops",
    "interconnect_gb_per_s",
    "tdp_w",
)
"""The fields of a GPU that determine time and energy."""
HOST_RATES = ("host_link_gb_per_s", "host_memory_gb_per_s")
COUNTS: Mapping[str, int] = MappingProxyType(
    {"multiprocessors": 1024, "interconnect_gpus": 1024, "pcie_generation": 6, "pcie_lanes": 16}
)
"""The counts of a GPU, and the most that each may be."""
NETWORK = "network_gb_per_s"
"""A further rate that only a custom GPU can give; otherwise it is a property of the machine."""
SMALLEST_MEMORY, LARGEST_MEMORY = 2**28, 2**43
"""Range of a card's memory in bytes. Our choice, far wider than any real card."""
RATE_SPAN = (0.001, 1e9)
"""Range of such a rate, in its unit. Our choice, far wider than any card, so that every quotient is finite."""
LOWEST_MFU = 0.0001
"""The lowest accepted utilisation, a share. Our choice, for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """Sizes of a Mamba 2 mixer (Dao and Gu 2024, arXiv:2405.21060), the same in every layer that has one."""

    heads: int
    head_dim: int
    state_size: int
    """State elements per channel of a head."""
    groups: int
    """Number of B and C projections, each shared by equally many heads."""
    chunk_size: int
    """Tokens per chunk of the scan."""
    conv_kernel: int = 4
    """Kernel size of the convolution before the scan."""
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    is_normed: bool = True
    """Whether the gate is combined with a norm (in Falcon-H1 the config decides)."""
    norm_before_gate: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "state_size", "groups", "chunk_size", "conv_kernel"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 10**5:
                raise InputError(
                    f"{name} of a state-space layer must be a whole number from 1 to 100000, not {show(value)}; check "
                    "the config."
                )
        if self.heads % self.groups:
            raise InputError(
                f"the {self.heads} heads of a state-space layer are not a multiple of its {self.groups} groups; check "
                "the config."
            )

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def group_width(self) -> int:
        """Elements of B for one token; C has the same."""
        return self.groups * self.state_size

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: the heads' input, B and C."""
        return self.width + 2 * self.group_width

    @property
    def projected_width(self) -> int:
        """Of what one token is projected to: gate, channels of the convolution, a step for each head."""
        return self.width + self.conv_width + self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """The sizes of a gated delta-net (Yang et al. 2024, arXiv:2412.06464), of every layer that has one."""

    key_heads: int
    """Heads of queries, and of keys."""
    value_heads: int
    """Heads of values, each with a state of its own; a head of keys serves as many of them as of another."""
    key_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        for name in ("key_heads", "value_heads", "key_dim", "value_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 10**5:
                raise InputError(
                    f"{name} of a gated delta-net must be a whole number from 1 to 100000, not {show(value)}; check "
                    "the config."
                )
        if self.value_heads % self.key_heads:
            raise InputError(
                f"linear_num_value_heads {self.value_heads} is not a multiple of linear_num_key_heads "
                f"{self.key_heads}; correct one of the two in the config."
            )

    @property
    def key_width(self) -> int:
        """Of all keys of a token together, and equally of all queries."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Of all values of a token together."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder's dimensions and the config options that change shapes or memory.

    Properties of the family (which norm, fused or separate projections, how the MLP is gated) are not stored here;
    ``estimator.families.registry`` finds them by ``model_type``.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hub_id: str = ""
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 0
    hidden_act: str = "silu"
    attention_bias: bool = False
    """Biases on the query, key and value projections."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    num_labels: int | None = None
    """Of a classification head in place of the vocabulary's; 0: no head; None: the vocabulary's."""
    qk_norm: bool = False
    """Norms on queries and keys, in families where the config decides (StableLM, Cohere)."""
    learned_positions: int = 0
    """Rows of a learned position embedding; 0: rotary, ALiBi or no positions."""
    word_embed_proj_dim: int = 0
    """OPT: width of the embedding where it differs from the hidden size; 0: the same."""
    do_layer_norm_before: bool = True
    """OPT: false if norms come after attention and MLP, without a final norm (OPT 350M)."""
    partial_rotary_factor: float = 1.0
    sliding_window: int = 0
    """Tokens that a windowed layer sees; 0: no window."""
    layer_types: tuple[str, ...] = ()
    """``full_attention`` or ``sliding_attention`` per layer; empty: all layers are alike."""
    no_rope_layers: tuple[bool, ...] = ()
    """True where a layer has no rotary embedding (SmolLM3); empty: rotary everywhere."""
    parallel_residual: bool = False
    """Attention and MLP read the same input, in families where the config decides (GPT-NeoX, Falcon)."""
    new_decoder_architecture: bool = False
    """Falcon 40B and 180B: two norms, grouped key-value heads."""
    num_ln_in_parallel_attn: int = 2
    """Falcon's new decoder: norms before attention and MLP; 1 in Falcon 11B, where both read the same norm."""
    norms_without_weight: bool = False
    """OLMo 1: layer norms that have no parameters."""
    attn_logit_softcapping: bool = False
    final_logit_softcapping: bool = False
    clip_qkv: bool = False
    """Queries, keys and values are clamped after projection (OLMo, OLMoE, MPT)."""
    reorder_and_upcast_attn: bool = False
    """GPT-2: eager attention multiplies queries and keys in float32."""
    use_bidirectional_attention: bool = False
    """Gemma 3: tokens also attend to later tokens, so a mask is always built."""
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    num_experts: int = 0
    """Experts in every layer; 0: a dense model."""
    num_experts_per_tok: int = 0
    """Experts per token."""
    moe_intermediate_size: int = 0
    """Width of one expert. ``intermediate_size`` is the width of a dense MLP, if the model has one."""
    shared_expert_intermediate_size: int = 0
    """Width of the shared expert (Qwen2-MoE); 0: none."""
    norm_topk_prob: bool = False
    """The weights of the chosen experts are normalised to sum to 1."""
    expert_groups: int = 0
    """DeepSeek: number of expert groups, of which only the best are considered; 0: no groups."""
    q_lora_rank: int = 0
    """Latent attention: width of the queries' latent; 0: queries are projected directly."""
    kv_lora_rank: int = 0
    """Latent attention: width of the latent for keys and values of all heads; 0: ordinary attention."""
    qk_nope_head_dim: int = 0
    """Latent attention: the part of a head's query and key without rotary embedding; ``head_dim`` is both parts."""
    qk_rope_head_dim: int = 0
    """Latent attention: the part with rotary embedding. All heads share one such key."""
    v_head_dim: int = 0
    """Width of a head's values where it differs from its keys'; 0: the same."""
    short_filter: int = 3
    """LFM2: kernel size of its short convolutions."""
    state_space: StateSpace | None = None
    """Sizes of layers with a Mamba 2 mixer."""
    delta_net: DeltaNet | None = None
    """Sizes of layers with a gated delta net."""
    mlp_layer_types: tuple[str, ...] = ()
    """``dense`` or ``sparse`` per layer; empty: all layers are alike."""
    global_head_dim: int = 0
    """Gemma 4: head width in layers without a window; 0: the same as in other layers."""
    num_global_key_value_heads: int = 0
    """Gemma 4: key-value heads in layers without a window; 0: the same as in other layers."""
    altup_num_inputs: int = 0
    """Gemma 3n: parallel streams of hidden states; 0: one."""
    laurel_rank: int = 0
    """Gemma 3n: rank of the low-rank branch parallel to attention."""
    cut_layers: int = 0
    """Gemma 3n: number of first layers whose MLP keeps only its largest gate activations."""
    jitters_input: bool = False
    """PhiMoE, Mixtral: the experts' input is multiplied by noise during training."""
    attention_k_eq_v: bool = False
    """Gemma 4: layers without a window have no value projection and reuse the projected keys as values."""
    num_kv_shared_layers: int = 0
    """Gemma 4: number of last layers that reuse keys and values of the last earlier layer of their type."""
    use_double_wide_mlp: bool = False
    """Gemma 4: layers that reuse keys and values have MLPs twice as wide."""
    hidden_size_per_layer_input: int = 0
    """Width of the per-layer embedding (Gemma 4); 0: none."""
    vocab_size_per_layer_input: int = 0
    """Rows of the per-layer embedding table."""
    output_router_logits: bool = False
    """Adds the load-balancing loss, so every layer's router logits outlive the layer."""
    vision: Vision | None = None
    """The tower that sees, as ``AutoModelForImageTextToText`` makes it; None: there is none, or it is not known."""
    towers: Towers | None = None
    """Towers that ``AutoModelForCausalLM`` loads in addition to the text model; None: none, or unknown."""
    quantization: Quantization | None = None
    """How the checkpoint stores its weights; None: as plain floats."""
    stored_width: int = 0
    """Bytes per unquantised element in the files; 0: unknown."""
    config: str = field(default="", compare=False, repr=False)
    """The JSON object that the user gave for this model, so it can be written back; empty for catalogued models."""
    notes: tuple[str, ...] = ()
    """Sentences for the user, such as what was left out or how the weights are stored."""

    def __post_init__(self) -> None:
        positive = (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
        )
        for name in positive:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 10**7:
                raise InputError(
                    f"{name} must be a whole number from 1 to 10 million, not {show(value)}; check the config."
                )
        if self.num_attention_heads % self.num_key_value_heads:
            raise InputError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}; check the config."
            )
        if self.num_attention_heads % (self.num_global_key_value_heads or 1):
            raise InputError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_global_key_value_heads "
                f"{self.num_global_key_value_heads}; check the config."
            )
        experts = self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size
        if any(experts) and not (all(experts) and self.num_experts_per_tok <= self.num_experts):
            raise InputError(
                "num_experts, num_experts_per_tok and moe_intermediate_size go together, and a token can be sent to "
                f"{self.num_experts} of {self.num_experts} experts at most, not {self.num_experts_per_tok}; "
                "check the config."
            )
        for name in ("layer_types", "no_rope_layers", "mlp_layer_types"):
            pattern = getattr(self, name)
            if pattern and len(pattern) != self.num_hidden_layers:
                raise InputError(
                    f"{name} lists {len(pattern)} layers, but num_hidden_layers is {self.num_hidden_layers}; "
                    "check the config."
                )

    @property
    def is_tied(self) -> bool:
        """Whether the head's weight is the embedding's: a classification head has its own."""
        return self.tie_word_embeddings and self.num_labels is None

    @property
    def position_limit(self) -> int:
        """Maximum tokens of a learned position embedding; 0: no limit. OPT's table has two more rows."""
        return self.learned_positions and (self.max_position_embeddings or self.learned_positions)

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def value_size(self) -> int:
        """Width of all heads' attention outputs together."""
        return self.num_attention_heads * (self.v_head_dim or self.head_dim)

    @property
    def key_value_size(self) -> int:
        """Width of all key heads together; value heads have the same."""
        return self.num_key_value_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """A tower that sees, beside a text: its layers, and what surrounds them; sizes in elements."""

    wrapper: str
    """``model_type`` of the checkpoint that has both."""
    tower: Model
    """Its layers, as a model of a family of its own."""
    patch_size: int
    merge_size: int = 1
    """Patches of a side that become one token."""
    image_size: int = 0
    """Pixels of a side that every image or tile is brought to; 0: any size."""
    num_channels: int = 3
    temporal_patch_size: int = 1
    positions: int = 0
    """Rows of a learned table of positions."""
    projector_input: int = 0
    """Width of what the projector is given, where the tower's own does not say it."""
    projector_width: int = 0
    """Width of the MLP within the projector, where it has one of its own."""
    image_tokens: int = 0
    """Tokens of one image or tile; 0: one for every merged patch."""
    deepstack: tuple[int, ...] = ()
    """Layers whose output is projected as well, and added after the first layers of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One provider's on-demand price for one GPU on one day."""

    provider: str
    usd_per_gpu_hour: float
    date: str
    """The day it was read, as ``2026-11-21``."""
    min_gpus: int = 1
    """Minimum number of GPUs rented together."""
    max_gpus: int | None = None
    """The most that are had together at this price: 1 for a host or machine of one GPU; None: not said."""
    instance: str = ""
    """The cloud's machine type that it is the price of; empty: not of a single one."""
    region: str = ""
    """The provider's name for the region; ``all``: one price everywhere; ``any``: the cheapest region."""
    commitment: str = ""
    """``on demand``, or ``marketplace``: the cheapest host's "starting at" price, which may no longer be available;
    ``spot`` or ``reserved`` where a planner's question asks for it."""
    is_old: bool = False
    """Whether it was read more than 120 days before the newest price in the table."""
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine with several GPUs of one kind, and its network."""

    name: str
    gpus: int
    network_gbit_per_s: float
    """All ports used for GPU traffic, one direction, 10⁹ bits per second."""
    note: str = ""
    source: str = ""


SAME_MEMORY = 0.025
"""By how much the memory of equal cards may differ: ours, twice what it does in data/out_of_memory.csv."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator as the driver reports it."""

    name: str
    memory_bytes: int
    """Usable bytes, as ``torch.cuda.get_device_properties().total_memory`` reports them."""
    memory_is_derived: bool = False
    """No reading exists; ``memory_bytes`` is the reported memory minus a stated reserve."""
    nameplate_gb: float = 0.0
    """The vendor's nominal memory, in GB."""
    vendor: str = ""
    architecture: str = ""
    compute_capability: str = ""
    multiprocessors: int | None = None
    """NVIDIA's streaming multiprocessors; None: unknown, or another vendor's."""
    supports_bf16: bool = True
    memory_bandwidth_gb_per_s: float | None = None
    """10⁹ bytes per second; None here and below: unknown."""
    bf16_dense_tflops: float | None = None
    """Tensor-core rate without sparsity, 10¹² operations per second."""
    fp16_dense_tflops: float | None = None
    fp8_dense_tflops: float | None = None
    fp32_tflops: float | None = None
    """Vector rate: PyTorch leaves TF32 off for matrix products."""
    sustained_tflops: float | None = None
    """The best measured rate of 16-bit matrix products; None: not measured, so the tensor-core rate is used."""
    fp8_sustained_tflops: float | None = None
    """The same in FP8."""
    interconnect_gb_per_s: float | None = None
    """Between GPUs of one machine, both directions together, 10⁹ bytes per second."""
    interconnect_gpus: int | None = None
    """GPUs that this link joins: 1 for PCIe, 2 for most bridges; None: all of a machine."""
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    host_link_gb_per_s: float | None = None
    """Between the GPU and a CPU that is not attached by PCIe, one direction, 10⁹ bytes per second."""
    host_memory_gb_per_s: float | None = None
    """Bandwidth of such a CPU's memory for each of its GPUs, 10⁹ bytes per second; None: as in machines of its age."""
    network_gb_per_s: float | None = None
    """Custom GPUs: network of a machine of ``gpus_per_node``, one direction, 10⁹ bytes per second; None: as in
    ``machines``."""
    tdp_w: float | None = None
    """Board power, watts."""
    source: str = ""
    device_name: str = ""
    """Its name according to the driver and ``torch.cuda.get_device_name``; empty: unknown."""
    like: str = ""
    """Custom GPUs: the catalogued card that the remaining figures come from."""
    slices: int = 1
    """MIG slices: the maximum number of such slices per card; 1: a whole card."""
    instance: str = ""
    """The cloud's machine type that it was named by, whose prices alone it then has; empty: named as a card."""
    prices: tuple[Price, ...] = ()
    """Rental prices, cheapest first; empty: none known."""
    machines: tuple[Machine, ...] = ()
    """Machines with this GPU, slowest network first; empty: none known."""

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes))  # enough, and faster than hashing all prices

    @property
    def name_in_a_setup(self) -> str:
        """What a setup names it by: the cloud's machine type, if it was, else the card.

        >>> Gpu(name="card", memory_bytes=2**34, instance="p5.48xlarge").name_in_a_setup
        'p5.48xlarge'
        """
        return self.instance or self.name

    @property
    def capitalised_name(self) -> str:
        """The name as a sentence begins with it.

        >>> Gpu(name="own GPU", memory_bytes=2**34).capitalised_name
        'Own GPU'
        """
        return self.name[:1].upper() + self.name[1:]

    @property
    def monitor(self) -> str:
        """The driver's program that shows the memory which torch's caching allocator of CUDA and HIP holds; empty: the
        vendor's torch has another allocator.

        >>> Gpu(name="card", memory_bytes=2**34, vendor="AMD").monitor
        'rocm-smi'
        """
        return {"": "nvidia-smi", "NVIDIA": "nvidia-smi", "AMD": "rocm-smi"}.get(self.vendor, "")

    def has_memory(self, size: int) -> bool:
        """Whether a message that names ``size`` bytes as the card's may be of this one: drivers keep more or less for
        themselves.
        """
        return abs(self.memory_bytes - size) <= SAME_MEMORY * size

    @property
    def lacks_fp8(self) -> bool:
        """Whether it is known not to multiply in FP8: NVIDIA's before compute capability 8.9, others without a rate.

        Source: accelerate 1.15, utils/environment.py, ``check_cuda_fp8_capability``.
        """
        capability = self.compute_capability.split(".")
        if all(word.isdecimal() for word in capability):
            return tuple(map(int, capability)) < FIRST_WITH_FP8
        return bool(self.vendor) and not self.fp8_dense_tflops

    def __post_init__(self) -> None:
        if not SMALLEST_MEMORY <= self.memory_bytes <= LARGEST_MEMORY:
            raise InputError(
                f"memory_bytes must be between 268435456 (256 MiB) and 8796093022208 (8 TiB), "
                f"not {self.memory_bytes}; give the card's memory in bytes."
            )
        for name, most in COUNTS.items():
            count = getattr(self, name)
            if count is not None and not 1 <= count <= most:
                raise InputError(
                    f"{name} must be a whole number from 1 to {most}, or null if unknown, not {show(count)}."
                )
        for name in (*RATES, *HOST_RATES, NETWORK):
            value = getattr(self, name)
            if value is not None and not RATE_SPAN[0] <= value <= RATE_SPAN[1]:
                raise InputError(
                    f"{name} must be between 0.001 and 1 billion, or null if unknown, not {show(value)}."
                )

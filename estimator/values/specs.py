"""What is asked: a model and a GPU, frozen and checked when built, and the words that a setup is told in.

Names are Hugging Face's (``TrainingArguments``, ``BitsAndBytesConfig``, ``LoraConfig``, ``config.json``).
Sizes are counts or bytes, always ``int``. A ``ValueError`` says what to change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from estimator.values.kinds import show
from estimator.values.quantization import Quantization
from estimator.values.refusals import InputError
from estimator.values.towers import Towers


class Method(StrEnum):
    """What is trained: every weight, or adapters beside a frozen (``qlora``: 4-bit) base."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class ModelClass(StrEnum):
    """Which class is made of a checkpoint that holds more than text."""

    AUTO = "auto"
    """What ``AutoModelForCausalLM`` makes: of Gemma 3, 3n and 4 the text and its towers."""
    TEXT = "text"
    """The text alone, as ``Gemma3ForCausalLM`` makes it."""


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
    """Trainer's ``bf16=True`` or ``fp16=True``: autocast around the forward pass, not a cast of the weights."""

    NO = "no"
    BF16 = "bf16"
    FP16 = "fp16"


class Optimizer(StrEnum):
    """``TrainingArguments.optim``, by the names of transformers' ``OptimizerNames``."""

    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_TORCH = "adamw_torch"
    ADAMW_BNB_8BIT = "adamw_bnb_8bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADAMW_32BIT = "paged_adamw_32bit"
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


class AttnImplementation(StrEnum):
    """The attention kernel, as ``from_pretrained(attn_implementation=…)`` names it."""

    EAGER = "eager"
    SDPA = "sdpa"
    FLASH_ATTENTION_2 = "flash_attention_2"


class Objective(StrEnum):
    """What a step trains for, as TRL's trainers, Trainer and sentence-transformers do."""

    SFT = "sft"
    """The next token."""
    DPO = "dpo"
    """Pairs of answers, against a reference model."""
    KTO = "kto"
    """Answers that are good or bad, against a reference model."""
    ORPO = "orpo"
    """Pairs of answers, without a reference model."""
    REWARD = "reward"
    """Pairs of answers; a head of one number instead of the vocabulary."""
    SEQUENCE_CLASSIFICATION = "sequence_classification"
    """A label for a text."""
    EMBEDDING = "embedding"
    """Pairs of texts whose vectors are drawn together, and from those of the rest of the batch apart."""

    @property
    def is_paired(self) -> bool:
        """Whether an example is two rows."""
        return self in PAIRED

    @property
    def has_reference(self) -> bool:
        """Whether the loss asks a reference model."""
        return self in (Objective.DPO, Objective.KTO)

    @property
    def has_score(self) -> bool:
        """Whether the model has a head of labels instead of the vocabulary."""
        return self in (Objective.REWARD, Objective.SEQUENCE_CLASSIFICATION)

    @property
    def is_preference(self) -> bool:
        """Whether an example is a prompt and its answers."""
        return self in (Objective.DPO, Objective.KTO, Objective.ORPO)


PAIRED = (Objective.DPO, Objective.ORPO, Objective.REWARD, Objective.EMBEDDING)


class Loss(StrEnum):
    """How the head and the loss are computed: over all logits, or without ever holding them whole."""

    STANDARD = "standard"
    LIGER = "liger"
    CHUNKED_TRL = "chunked_trl"
    CHUNKED_TORCHTUNE = "chunked_torchtune"


class Strategy(StrEnum):
    """How GPUs share the work: who keeps what, and what is gathered when."""

    NONE = "none"
    """One GPU."""
    DDP = "ddp"
    """Everything on every GPU; gradients are averaged through buckets."""
    ZERO1 = "zero1"
    """DeepSpeed: optimizer states and float32 weights are divided."""
    ZERO2 = "zero2"
    """And gradients."""
    ZERO3 = "zero3"
    """And weights."""
    FSDP = "fsdp"
    """FSDP2 as accelerate runs it: weights, gradients and states are divided, layers gathered one by one."""
    FSDP_GRAD_OP = "fsdp_grad_op"
    """The same, but what the forward pass gathered stays until backward (``reshard_after_forward=False``)."""
    HSDP = "hsdp"
    """FSDP inside groups of GPUs, which are replicas of each other."""
    DEVICE_MAP = "device_map"
    """Layers on different GPUs, one process that works on one after the other (``device_map="auto"``)."""

    @property
    def is_fsdp(self) -> bool:
        """One of FSDP2's."""
        return self in (Strategy.FSDP, Strategy.FSDP_GRAD_OP, Strategy.HSDP)

    @property
    def is_zero(self) -> bool:
        """One of DeepSpeed's."""
        return self in (Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3)

    @property
    def is_sharded(self) -> bool:
        """Whether GPUs keep different parts of something."""
        return self.is_fsdp or self.is_zero


class Offload(StrEnum):
    """Where weights or optimizer states rest when no layer needs them."""

    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


class Phase(StrEnum):
    """The parts of one training step in order of time, and what a run does beside its steps."""

    FORWARD = "forward"
    LOSS = "loss"
    REFERENCE = "reference"
    """Forward calls under ``no_grad`` inside the loss."""
    SCORING = "scoring"
    """Forward calls under ``no_grad`` before the micro-step."""
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    LOAD = "load"
    EVALUATION = "evaluation"
    SAVE = "save"


STEP_PHASES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER_STEP)
"""Of every step."""
MORE_PASSES = (Phase.REFERENCE, Phase.SCORING)
"""Of a step whose objective asks a model without training it."""


class Component(StrEnum):
    """What memory is made of. The order is the order of the stacked bars."""

    WEIGHTS = "weights"
    ADAPTERS = "adapters"
    REFERENCE_MODEL = "reference_model"
    """Weights of a model that is asked and not trained."""
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer_states"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    TEMPORARIES = "temporaries"
    COMMUNICATION = "communication"
    WORKSPACE = "workspace"


OF_EVERY_STEP = tuple(part for part in Component if part is not Component.REFERENCE_MODEL)
"""Components that every answer lists."""


class Verdict(StrEnum):
    """Need against capacity."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"


ALL_LINEAR = "all-linear"
FULL_STATE_DICT, SHARDED_STATE_DICT = "FULL_STATE_DICT", "SHARDED_STATE_DICT"
"""What FSDP saves: transformers 5.23, training_args.py, ``fsdp_config`` (the default is the first; accelerate's own
launcher takes the second for FSDP2)."""

RATES = (
    "memory_bandwidth_gb_per_s",
    "bf16_dense_tflops",
    "fp16_dense_tflops",
    "fp32_tflops",
    "sustained_tflops",
    "interconnect_gb_per_s",
    "tdp_w",
)
"""The fields of a GPU that time and energy follow from."""
NETWORK = "network_gb_per_s"
"""One more, which no card has of itself: only a GPU of one's own gives it."""
SMALLEST_MEMORY, LARGEST_MEMORY = 2**28, 2**43
"""What a card's memory may be, in bytes: ours, far beyond any on both sides."""
RATE_SPAN = (0.001, 1e9)
"""What such a rate may be, each in its unit: ours, far beyond any card, so that every quotient is finite."""
LOWEST_MFU = 0.0001
"""The lowest utilisation that is believed, a share: ours, for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """The sizes of Mamba 2's mixer (Dao and Gu 2024, arXiv:2405.21060), of every layer that has one."""

    heads: int
    head_dim: int
    state_size: int
    """Numbers of state for each channel of a head."""
    groups: int
    """How many B and C there are, each for as many heads."""
    chunk_size: int
    """Tokens that are multiplied together at once."""
    conv_kernel: int = 4
    """Numbers in each filter of the convolution before the scan."""
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    is_normed: bool = True
    """A norm joins the gate (Falcon-H1: where the config says so)."""
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
        """Of all heads together."""
        return self.heads * self.head_dim

    @property
    def group_width(self) -> int:
        """Of B, and equally of C, for one token."""
        return self.groups * self.state_size

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: what the heads read, B and C."""
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
    """A decoder's dimensions and the switches of its config that change shapes or memory.

    What follows from the family alone (which norm, fused or separate projections, how the MLP is gated)
    is not stored here: ``estimator.families.registry`` knows it by ``model_type``.
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
    """Where a family leaves it to the config (StableLM, Cohere): norms on queries and keys."""
    learned_positions: int = 0
    """Rows of a learned position embedding; 0: rotary, ALiBi or none."""
    word_embed_proj_dim: int = 0
    """OPT: width of the embedding where it differs from the hidden size; 0: the same."""
    do_layer_norm_before: bool = True
    """OPT: false where the norms follow attention and MLP and no final norm exists (OPT 350M)."""
    partial_rotary_factor: float = 1.0
    sliding_window: int = 0
    """Tokens that a windowed layer sees; 0: no window."""
    layer_types: tuple[str, ...] = ()
    """One of ``full_attention``, ``sliding_attention`` a layer; empty: all layers alike."""
    no_rope_layers: tuple[bool, ...] = ()
    """True where a layer has no rotary embedding (SmolLM3); empty: rotary everywhere."""
    parallel_residual: bool = False
    """Attention and MLP read the same input (GPT-NeoX, Falcon); where the family leaves it to the config."""
    new_decoder_architecture: bool = False
    """Falcon 40B and 180B: two norms, grouped key-value heads."""
    num_ln_in_parallel_attn: int = 2
    """Falcon's new decoder: norms before attention and MLP; 1 in Falcon 11B, where both read the same norm."""
    norms_without_weight: bool = False
    """OLMo 1: layer norms that have no parameters."""
    attn_logit_softcapping: bool = False
    final_logit_softcapping: bool = False
    clip_qkv: bool = False
    """Queries, keys and values are clamped as they are projected (OLMo, OLMoE, MPT)."""
    reorder_and_upcast_attn: bool = False
    """GPT-2: eager attention multiplies queries and keys in float32."""
    use_bidirectional_attention: bool = False
    """Gemma 3: every token sees those after it too, so that a mask is always built."""
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    num_experts: int = 0
    """Experts in every layer; 0: a dense model."""
    num_experts_per_tok: int = 0
    """Experts that each token is sent to."""
    moe_intermediate_size: int = 0
    """Width of one expert; ``intermediate_size`` is the width of a dense MLP, or the same."""
    shared_expert_intermediate_size: int = 0
    """Width of the expert that sees every token (Qwen2-MoE); 0: none."""
    norm_topk_prob: bool = False
    """The chosen experts' shares are divided by their sum."""
    expert_groups: int = 0
    """DeepSeek: experts are chosen from the best of so many groups; 0: from all."""
    q_lora_rank: int = 0
    """Latent attention: width of the queries' latent; 0: none, queries are projected at once."""
    kv_lora_rank: int = 0
    """Latent attention: width of the latent that all heads' keys and values come from; 0: ordinary attention."""
    qk_nope_head_dim: int = 0
    """Latent attention: the part of a head's query and key that is not turned; ``head_dim`` is both parts."""
    qk_rope_head_dim: int = 0
    """Latent attention: the part that is turned, of keys one for all heads."""
    v_head_dim: int = 0
    """Width of a head's values where it differs from its keys'; 0: the same."""
    state_space: StateSpace | None = None
    """Of the layers that have Mamba 2's mixer."""
    delta_net: DeltaNet | None = None
    """Of the layers that have a gated delta-net."""
    mlp_layer_types: tuple[str, ...] = ()
    """One of ``dense``, ``sparse`` a layer, by transformers' name; empty: all layers alike."""
    global_head_dim: int = 0
    """Gemma 4: width of a head in layers without a window; 0: as in all others."""
    num_global_key_value_heads: int = 0
    """Gemma 4: key-value heads of these layers; 0: as many as in all others."""
    altup_num_inputs: int = 0
    """Gemma 3n: streams of hidden states that the layers carry; 0: one."""
    laurel_rank: int = 0
    """Gemma 3n: rank of the path beside attention."""
    cut_layers: int = 0
    """Gemma 3n: so many first layers keep only the largest gates of their MLP."""
    jitters_input: bool = False
    """PhiMoE: noise is multiplied into the experts' input in training."""
    attention_k_eq_v: bool = False
    """Gemma 4: these layers have no projection for values, which are the keys as projected."""
    num_kv_shared_layers: int = 0
    """So many last layers take keys and values from the last layer of their type before them (Gemma 4)."""
    use_double_wide_mlp: bool = False
    """Gemma 4: these layers' MLPs are twice as wide."""
    hidden_size_per_layer_input: int = 0
    """Width of an embedding of its own for every layer (Gemma 4); 0: there is none."""
    vocab_size_per_layer_input: int = 0
    """Rows of the table of these."""
    output_router_logits: bool = False
    """The loss that spreads tokens evenly is added, so that every layer's router scores outlive the layer."""
    towers: Towers | None = None
    """What ``AutoModelForCausalLM`` makes beside the text; None: nothing, or it is not known."""
    quantization: Quantization | None = None
    """How the checkpoint's files store the weights, where not as plain floats."""
    stored_width: int = 0
    """Bytes of a number that the files do not quantise; 0: not known."""
    config: str = field(default="", compare=False, repr=False)
    """The JSON of the object that was given for it, to write it again; empty for the catalogue's."""
    notes: tuple[str, ...] = ()
    """What whoever uses it must know: what was left out, how it is stored; sentences."""

    def __post_init__(self) -> None:
        positive = (
            "vocab_size",
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
    def position_limit(self) -> int:
        """Tokens that a learned position embedding allows; 0: no such limit. OPT's table has two rows more."""
        return self.learned_positions and (self.max_position_embeddings or self.learned_positions)

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def value_size(self) -> int:
        """Width of all heads' outputs together, as attention weighs them."""
        return self.num_attention_heads * (self.v_head_dim or self.head_dim)

    @property
    def key_value_size(self) -> int:
        """Width of all key heads together (equally of all value heads)."""
        return self.num_key_value_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one provider asks for one GPU, on demand, on one day."""

    provider: str
    usd_per_gpu_hour: float
    date: str
    """The day it was read, as ``2026-11-21``."""
    min_gpus: int = 1
    """How many are rented together at least."""
    region: str = ""
    """Where, as the provider calls it; ``all``: one price everywhere; ``any``: the cheapest of all."""
    commitment: str = ""
    """``on demand``, or ``marketplace``: what the cheapest host asks ("starting at"), whose machine may be gone."""
    is_old: bool = False
    """It was read more than 120 days before the newest of the table."""
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What holds several accelerators of one kind, and its way to other machines."""

    name: str
    gpus: int
    network_gbit_per_s: float
    """All ports that GPUs exchange through, in one direction, 10⁹ bits a second."""
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator as the driver reports it."""

    name: str
    memory_bytes: int
    """Usable bytes: what ``torch.cuda.get_device_properties().total_memory`` says."""
    memory_is_derived: bool = False
    """No reading exists; ``memory_bytes`` is the reported memory less a stated reserve."""
    nameplate_gb: float = 0.0
    """What is printed on the box, in vendor's GB."""
    vendor: str = ""
    architecture: str = ""
    compute_capability: str = ""
    supports_bf16: bool = True
    memory_bandwidth_gb_per_s: float | None = None
    """10⁹ bytes a second; None here and below: unknown."""
    bf16_dense_tflops: float | None = None
    """Tensor rate without sparsity, 10¹² operations a second."""
    fp16_dense_tflops: float | None = None
    fp32_tflops: float | None = None
    """Vector rate: PyTorch leaves TF32 off for matrix products."""
    sustained_tflops: float | None = None
    """What 16-bit matrix products were measured to reach at best; None: no measurement, the tensor rate is taken."""
    interconnect_gb_per_s: float | None = None
    """Between GPUs, both directions together, 10⁹ bytes a second."""
    network_gb_per_s: float | None = None
    """One's own: what a machine of ``gpus_per_node`` sends to others, one direction, 10⁹ bytes a second; None: as
    ``machines`` say."""
    tdp_w: float | None = None
    """Board power, watts."""
    source: str = ""
    device_name: str = ""
    """What its driver and ``torch.cuda.get_device_name`` call it; empty: unknown."""
    like: str = ""
    """Of a card of one's own: the catalogued card whose other figures it has."""
    slices: int = 1
    """Of a MIG slice: how many such slices its card holds at most; 1: a whole card."""
    prices: tuple[Price, ...] = ()
    """What it is rented for, the cheapest first; empty: no listing is known."""
    machines: tuple[Machine, ...] = ()
    """What it comes in, the slowest network first; empty: none is known."""

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes))  # enough, and faster than all its prices

    def __post_init__(self) -> None:
        if not 2**28 <= self.memory_bytes <= 2**43:
            raise InputError(
                f"memory_bytes must lie between 268435456 (256 MiB) and 8796093022208 (8 TiB), "
                f"not {self.memory_bytes}; give the card's memory in bytes."
            )
        for name in (*RATES, NETWORK):
            value = getattr(self, name)
            if value is not None and not RATE_SPAN[0] <= value <= RATE_SPAN[1]:
                raise InputError(
                    f"{name} must lie between 0.001 and 1 billion, or be null where it is unknown, not {show(value)}."
                )

"""What defines a family: one record with everything that depends on the ``model_type``.

A file in ``families/known`` fills it in, and ``registry`` finds it by name. Defaults are Llama's, which most families
share. The record has four subjects: how a ``config.json`` is read (``ConfigClass``), what a layer is (``ModuleClass``),
what its norms, positions and masks are, and what Liger and PEFT do with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from estimator.families.config_class import LLAMA_CONFIG, ConfigClass, Why
from estimator.families.modules import Module
from estimator.families.parts import TreeOf
from estimator.tape.tape import Tensor
from estimator.values.specs import Model
from estimator.values.towers import AudioTower, Towers, VisionTower

BlockProgram = Callable[..., Tensor]
"""Plays operators on a ``block.Block``, its first argument. ``Block`` reads this record, so it is not imported here."""


class ModuleClass(NamedTuple):
    """A class of modules with a forward: a layer, or attention or an MLP in it.

    Layers are composed of these (``layers.decoder_layer``), and so are said once: which modules there are follows from
    their trees, what memory a step takes from their forwards.
    """

    name: str
    """Name in the layer, by which its forward calls its modules; empty: it is the layer."""
    tree: TreeOf
    """Its ``__init__``: what modules it consists of."""
    forward: BlockProgram
    """Its ``forward``, given the layer's block and the input. Local names are those of the source, because they
    determine how long each tensor lives."""


class Rotary(Enum):
    """What a family's ``apply_rotary_pos_emb`` does, in transformers 5.23, models/*/modeling_*.py."""

    HALVES = auto()
    """Llama: computed in the tables' dtype."""
    CAST_BACK = auto()
    """OLMo: tables in float32, and the result cast back to the dtype of q."""
    PAIRS = auto()
    """GLM: adjacent pairs are rotated; every layer expands the tables itself."""
    FLOAT32_PAIRS = auto()
    """Cohere: q and k in float32, tables in the model's dtype."""
    SPLIT_HALVES = auto()
    """GPT-OSS: each half of a head separately, with tables of half its width, then concatenated."""
    SPLIT_PAIRS = auto()
    """DeepSeek V3: even and odd elements separately, with half-width tables, then joined."""
    COMPLEX = auto()
    """DeepSeek V2: adjacent pairs as complex numbers of two float32, times one complex table."""
    FLOAT32_HALVES = auto()
    """Qwen's towers: q and k in float32, float32 tables."""
    FLOAT32_SPREAD_PAIRS = auto()
    """ERNIE: in float32, with float32 tables that every layer expands itself."""

    @property
    def float32_tables(self) -> bool:
        """Whether cosine and sine stay in float32 for every model dtype."""
        return self in (Rotary.CAST_BACK, Rotary.COMPLEX, Rotary.FLOAT32_SPREAD_PAIRS)


class NormKind(Enum):
    """How a family's norms compute."""

    RMS = auto()
    """Llama: float32 inside, cast back, then times the weight."""
    RMS_ONE_PLUS = auto()
    """Gemma: times 1 + weight in float32, cast last."""
    RMS_CAST_LAST = auto()
    """OLMo 2: times the weight in float32, cast last."""
    RMS_BY_POWER = auto()
    """Gemma 4: the same, with the inverse root as a power; some have no weight."""
    RMS_WEIGHT_FLOAT32 = auto()
    """Nemotron-H: the same with a copy of the weight in float32."""
    LAYER_NORM = auto()
    """PyTorch's kernel."""
    LAYER_NORM_FLOAT32 = auto()
    """OLMo: the same in float32, cast last."""
    LAYER_NORM_PLUS_ONE = auto()
    """Nemotron: times 1 + weight, and in 16 bits under autocast."""
    LAYER_NORM_IN_STEPS = auto()
    """Cohere: in Python, in float32, without a bias."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What Liger replaces in one family."""

    norm: bool = True
    head_norms: bool = True
    """Whether it also replaces norms of queries and keys."""
    in_place: bool = True
    """A norm's gradient overwrites the incoming one; not if two norms follow each other with a sum in between."""
    final_in_place: bool = True
    mlp: bool = True
    """Gate × up in one kernel."""
    mlp_beside_experts: bool = True
    """The same for an MLP in a layer that also has experts."""
    rotary: bool = True
    fuses_head: bool = True
    """Head and loss in one."""
    budget: int = 1
    """``chunk_mem_const``: maximum size of a chunk's logits in multiples of T · h (transformers/model/gpt_oss.py: 8).
    """
    whole_logits: bool = False
    """Liger's cross-entropy over full logits."""
    experts: bool = False
    """Sorting, both products and the sum over experts in one function."""
    relu_squared: bool = False
    left: frozenset[str] = frozenset()
    """Norms that it does not replace; it never replaces norms without a weight."""
    heads_first: bool = False
    """Queries and keys are normalised per head, and the kernel needs them contiguous, so they are copied."""


NO_KERNELS = Kernels(norm=False, mlp=False, rotary=False, fuses_head=False)
TOWER_NORMS = Kernels(mlp=False, rotary=False, fuses_head=False)
"""For towers of which only norms are replaced."""
NORMS_BESIDE = Kernels(in_place=False, final_in_place=False)
"""For layers in which two norms follow each other with a sum in between."""


class LargeBuffer(NamedTuple):
    """An untrained buffer of more than a few KiB."""

    name: str
    copies: int
    """Number of copies: one per layer, or one."""
    content_bytes: int
    """Bytes before rounding by the allocator."""


TowerConfig = Mapping[str, object] | None
"""A ``vision_config`` or an ``audio_config``; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerClass:
    """What ``AutoModelForCausalLM`` loads from a checkpoint with towers: transformers 5.23,
    models/auto/modeling_auto.py, ``MODEL_FOR_CAUSAL_LM_MAPPING_NAMES``.
    """

    made: str
    """The class of text model and towers."""
    text: str
    """The class of the text model only."""
    vision_types: tuple[str, ...]
    """``model_type`` of the vision towers whose modules are known."""
    read: Callable[[TowerConfig, TowerConfig], Towers | None]
    """The towers' sizes from the vision and audio configs; None: unknown."""
    modules: Callable[[VisionTower | None, AudioTower | None, Model], Iterable[tuple[Module, int]]]
    """Modules with weights of the towers and their projectors, and their multiplicity."""
    missing_class: Callable[[Towers], str] = lambda towers: ""
    """A class listed as not to be split that the model with these towers does not contain; empty: none.
    models/siglip/modeling_siglip.py, ``SiglipPreTrainedModel._no_split_modules``; models/gemma4/modeling_gemma4.py,
    likewise; modeling_utils.py, ``post_init`` (the union)."""
    runs_on_text: tuple[str, ...] = ()
    """Name prefixes of modules that run on every token, even without images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Everything that depends on the ``model_type``."""

    model_type: str
    config: ConfigClass = LLAMA_CONFIG

    prefix: str = ""
    """Prefix of its class names, ``@`` in the trees; a tower's is its checkpoint's (``TowerTree.prefixes``)."""
    layer: ModuleClass
    """The decoder layer, or the most common one."""
    others: Mapping[str, ModuleClass] = field(default_factory=dict)
    """Layers with other modules, by ``layer_kind``."""
    kind: Callable[[Model, int], str] | None = None
    """The kind of a layer, if ``layer_types`` and ``mlp_layer_types`` do not determine it."""
    root: TreeOf | None = None
    """The whole model with ``modules.LAYERS`` in place of its layers; None: ``parts.decoder()``."""
    untrained: Callable[[Model], int] | None = None
    """Parameters that the class itself freezes, in elements, whole model."""
    like: str = ""
    """The family whose measured steps count for this one too, since its layers compute the same; empty: none."""
    splits_packed_experts: bool = False
    """Whether stacked experts are split before they are packed into 4 or 8 bits."""

    norm: NormKind = NormKind.RMS
    rotary: Rotary | None = Rotary.HALVES
    """The kind of rotary embedding; None: none."""
    tables_by_kind: bool = False
    """Windowed layers have other rotary tables than the others (Gemma 3, OLMo 3)."""
    tables_if_turned: bool = False
    """There are no rotary tables if no layer uses them (Granite 4.0)."""
    tables_by_text: bool = False
    """Each sequence of a batch has its own rotary tables (Qwen3.5, whose positions also cover images)."""
    always_masked: bool = False
    """A mask is built even where a causal kernel would do (Falcon)."""
    scales_embedding: bool = False
    """The embedding's output is multiplied by a constant (Gemma, Granite)."""
    scales_in_module: bool = False
    """The embedding's own module does so, before the hook for input gradients (Gemma)."""
    layer_table: BlockProgram | None = None
    """Looks up the tokens' part of the inputs of all layers, before the tower runs (Gemma 4)."""
    layer_inputs: BlockProgram | None = None
    """Computes the inputs of all layers from that part and the embeddings, before the first layer (Gemma 4)."""
    spread: Callable[..., tuple[Tensor, list[Tensor]]] | None = None
    """Makes several streams of hidden states before the first layer, and returns what stays alive (Gemma 3n)."""
    gathered: BlockProgram | None = None
    """Merges the streams after the last layer."""
    reads_weights: str = ""
    """A linear whose weight is read directly, which fails once it is packed."""
    scales_logits: bool = False
    """The logits are multiplied or divided by a constant (Granite, Cohere)."""
    float32_logits: bool = False
    """The model itself returns float32 logits (Nemotron-H)."""
    eager_only: bool = False
    """transformers refuses SDPA for this family: it sets ``_supports_sdpa = False``."""
    flash_lacks: str = ""
    """What flash_attention_2 lacks for its attention; transformers uses a kernel of another name instead."""
    has_chunks: bool = False
    """Its windows are chunks: a token attends only to its own chunk."""
    runs_every_expert: bool = False
    """Every expert processes every token, with weight 0 for those not chosen."""
    fallback: tuple[str, str] | None = None
    """What is counted as the PyTorch fallback, and the packages whose kernels transformers would use if installed."""
    masks_unused_window: bool = False
    """A window mask is built although no layer has a window (Qwen2-MoE)."""
    returns_weights: bool = False
    """Each layer returns its eager attention weights, which live until the next layer returns."""
    softmax_float32: bool = True
    """Eager attention computes the softmax in float32 for every dtype."""
    rebinds_embedding: bool = False
    """The embedding's local name is rebound to the dropout's output (Phi)."""
    alibi_in_mask: bool = False
    """Every head's ALiBi is part of the mask if there is no rotary embedding (Falcon)."""
    alibi_by_head: bool = False
    """ALiBi of every head and position is a separate tensor, and the mask is boolean (MPT)."""

    liger: Kernels | None = None
    """None: Liger has no kernels for it."""
    liger_is_later: bool = False
    """Whether Liger's kernels for it are not modelled yet."""
    unread: Mapping[Why, str] = field(default_factory=dict)
    """Config keys that are not read, in addition to those common to all families."""
    sensitive: frozenset[str] = frozenset()
    """Keys of ``config_keys.SENSITIVE_IN_SOME`` that its config has."""
    peft_targets: tuple[str, ...] = ()
    """PEFT's default targets, for families where it refuses all linears: PEFT 0.21,
    utils/constants.py, ``TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING``."""
    has_tp_plan: bool = False
    """Transformers divides its layers between ranks as ``parallel.tensor_parallel.PLAN`` says."""
    merges_experts: bool = False
    """Its files store experts separately, but the model stacks them and fuses gate and up: transformers 5.23,
    conversion_mapping.py, ``MergeModulelist`` and ``Concatenate``. Granite MoE's files already store stacks."""
    finds_final_norm: bool = True
    """The final norm is a child of the module named by ``base_model_prefix``. OPT's is in its decoder, and Llama 4's
    model has no such module."""
    with_towers: TowerClass | None = None
    """None: a checkpoint with towers is loaded as text only, or not at all."""
    large_buffers: Callable[[Model], tuple[LargeBuffer, ...]] | None = None
    """Buffers of more than a few KiB."""
    own_linear: str = ""
    """The class of its linears if it is not ``nn.Linear``; bitsandbytes does not quantise those."""
    scales_queries: bool = False
    """Queries are multiplied by a factor per position (Ministral 3)."""
    multiplies_residual: bool = False
    """Residual branches are multiplied by a constant (Granite)."""
    float32_shares: bool = False
    """Expert weights stay in float32 (Mixtral)."""

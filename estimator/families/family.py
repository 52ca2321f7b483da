"""What a family is: one record of all that the rest asks of a ``model_type``.

A family's own file, in ``families/known``, fills it in; ``registry`` finds it by name. What most families have is the
default, which is Llama's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from estimator.families.config_rules import LLAMA_BIASES, Biases
from estimator.families.modules import Module
from estimator.families.parts import LLAMA_OUTER
from estimator.families.reader import Config
from estimator.families.rotary import Rotary
from estimator.tape.tape import Tensor
from estimator.values.specs import Model
from estimator.values.towers import AudioTower, Towers, VisionTower

if TYPE_CHECKING:
    from estimator.families.block import Block

ModuleTable = Callable[[Model], tuple[Module, ...]]
"""Modules with weights, as a model's sizes make them."""


@dataclass(frozen=True, slots=True)
class FamilyModules:
    """What holds weights: in a layer, and around the layers."""

    layer: ModuleTable
    outer: ModuleTable = LLAMA_OUTER
    others: Mapping[str, ModuleTable] = field(default_factory=dict)
    """Layers that hold other modules, by what ``layer_kind`` calls them."""
    kind: Callable[[Model, int], str] | None = None
    """Names the kind of a layer where ``layer_types`` and ``mlp_layer_types`` do not say all."""
    untrained: Callable[[Model], int] | None = None
    """Parameters that the class itself freezes, in elements, whole model."""


class Width(Enum):
    """What decides the width of a tensor's elements."""

    WEIGHT = "made in the model's dtype, as are buffers without a dtype of their own"
    MATRIX = "the weight of a linear layer: made in the model's dtype, unless a quantiser packs it"
    FLOAT32 = "a buffer that is float32 whatever the model's dtype"
    BOOL = "a mask"


@dataclass(frozen=True, slots=True)
class TreeTensor:
    """A parameter or a buffer."""

    name: str
    elements: int
    width: Width
    is_buffer: bool = False
    """One beside children, which no split of the module places."""


EACH_LAYER = "*"
"""In ``TreeLayout.buffers``: of every layer."""


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """How a class writes its tree.

    ``name:Class(children)``, children in the order of definition; ``@`` is the family's prefix of class names; ``*`` a
    layer, once for each, ``dense*`` one that ``layer_kind`` calls so; ``?`` a module that only some configs have, those
    whose ``FamilyModules`` name it; ``#`` whatever these have below.
    """

    prefix: str
    tree: str
    splits_packed_experts: bool = False
    """Stacked experts are taken apart before they are packed in 4 or 8 bits."""
    buffers: Mapping[str, Callable[[Model], tuple[TreeTensor, ...]]] = field(default_factory=dict)
    """Buffers that a module registers, by the module's last name; rotary frequencies as Llama has them need none."""


class NormKind(Enum):
    """How a family normalises."""

    RMS = auto()
    """Llama: float32 inside, cast back, then times the weight."""
    RMS_ONE_PLUS = auto()
    """Gemma: times 1 + weight in float32, cast last."""
    RMS_CAST_LAST = auto()
    """OLMo 2: times the weight in float32, cast last."""
    RMS_BY_POWER = auto()
    """Gemma 4: the same, its inverse root a power; some without a weight."""
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
class Architecture:
    """What a step of the family runs."""

    layer: Callable[[Block, Tensor], Tensor]
    """The program of one layer."""
    norm: NormKind = NormKind.RMS
    rotary: Rotary | None = Rotary.HALVES
    """How queries and keys are turned by their positions; None: not at all."""
    tables_by_kind: bool = False
    """Windowed layers turn by other tables than the rest (Gemma 3, OLMo 3)."""
    tables_if_turned: bool = False
    """There are no such tables where the config turns no layer (Granite 4.0)."""
    tables_by_text: bool = False
    """Each text of a batch has rotary tables of its own (Qwen3.5, whose positions are those of images as well)."""
    always_masked: bool = False
    """A mask is made even where causality would do (Falcon)."""
    scales_embedding: bool = False
    """The embedding is multiplied by a number (Gemma, Granite)."""
    scales_in_module: bool = False
    """It is so by the embedding's own module, so that the hook for input gradients comes after (Gemma)."""
    layer_inputs: Callable[[Block, Tensor, Tensor], Tensor] | None = None
    """What is made of ids and embeddings for all layers at once, before the first (Gemma 4)."""
    spread: Callable[[Block, Tensor], tuple[Tensor, list[Tensor]]] | None = None
    """What makes several streams of the hidden states before the first layer, and what of them is kept (Gemma 3n)."""
    gathered: Callable[[Block, Tensor], Tensor] | None = None
    """What makes one of them again after the last."""
    reads_weights: str = ""
    """A linear whose weight it reads past the module, where it is no matrix once it is packed."""
    scales_logits: bool = False
    """The logits are multiplied or divided by a number (Granite, Cohere)."""
    float32_logits: bool = False
    """The model itself hands on its logits in float32 (Nemotron-H)."""
    eager_only: bool = False
    """transformers refuses SDPA for this family: it sets ``_supports_sdpa = False``."""
    flash_lacks: str = ""
    """What of its attention flash_attention_2 does not know; transformers takes a kernel of another name instead."""
    has_chunks: bool = False
    """Its windows are chunks: a token attends to those of its own chunk."""
    runs_every_expert: bool = False
    """Every token goes through every expert, times a share that is 0 for those it was not chosen for."""
    fallback: tuple[str, str] | None = None
    """What is counted as PyTorch runs it, and the packages whose kernels transformers takes where it finds them."""
    masks_unused_window: bool = False
    """A window's mask is made although no layer has a window (Qwen2-MoE)."""
    returns_weights: bool = False
    """Each layer returns its eager attention's weights, which live until the next layer has returned."""
    softmax_float32: bool = True
    """Eager attention takes the softmax in float32 whatever the dtype."""
    rebinds_embedding: bool = False
    """The name of the embedding goes on to what dropout makes of it (Phi)."""
    alibi_in_mask: bool = False
    """ALiBi of every head joins the mask where no layer turns (Falcon)."""
    alibi_by_head: bool = False
    """ALiBi of every head and position lies beside the layers, and the mask is one of truth values (MPT)."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What Liger replaces in one family."""

    norm: bool = True
    head_norms: bool = True
    """The norms of queries and keys too, where the family has any."""
    in_place: bool = True
    """A norm's gradient is written over the incoming one: not where two norms follow each other with a sum between."""
    final_in_place: bool = True
    mlp: bool = True
    """Gate × up in one kernel."""
    mlp_beside_experts: bool = True
    """So it is where experts lie beside the MLP."""
    rotary: bool = True
    fuses_head: bool = True
    """Head and loss in one."""
    budget: int = 1
    """``chunk_mem_const``: how many times T · h a chunk's logits may have (transformers/model/gpt_oss.py: 8)."""
    whole_logits: bool = False
    """Liger's cross-entropy over whole logits."""
    experts: bool = False
    """Sorting, both products and the sum over a token's experts in one function."""
    relu_squared: bool = False
    left: frozenset[str] = frozenset()
    """Norms that it does not know and leaves; those without a weight it leaves too."""
    heads_first: bool = False
    """Queries and keys are normalised head by head, which the kernel wants to lie so: they are copied."""


NO_KERNELS = Kernels(norm=False, mlp=False, rotary=False, fuses_head=False)
NORMS_BESIDE = Kernels(in_place=False, final_in_place=False)
"""Of layers in which two norms follow each other with a sum between."""


class Why(Enum):
    """Why a key may be left unread."""

    FILE = "says what the file is or who wrote it"
    SETUP = "the setup says it instead: in what the weights are loaded, by which kernel"
    TOKENS = "a token's id or the tokenizer's name"
    GENERATION = "how text is generated"
    CACHE = "the cache of keys and values, which Trainer turns off (TrainingArguments.use_cache)"
    INITIALISATION = "how fresh weights are drawn"
    OTHER_HEADS = "a head for classes, or an encoder's decoder, which is not trained here"
    NUMBERS = "a number that values are multiplied by or compared with: the same operators, the same bytes"
    SAME_BYTES = "other operators, whose traced step has the same height"
    OFF = "read only where another key asks for it"
    TOWERS = "of vision or sound, which is left out"
    UNREAD = "no line of the class's model reads it"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowKeys:
    """How a config says which layers have a window, and of how many tokens."""

    default: int = 0
    """Tokens where ``sliding_window`` is absent."""
    size: Callable[[Config], int] | None = None
    """Reads it where it goes by another name."""
    seen: Callable[[Config, int], int] | None = None
    """What becomes of it."""
    everywhere: bool = False
    """All layers have it."""
    is_switched: bool = False
    """Only where ``use_sliding_window`` says so."""
    pattern: int = 0
    """Every n-th layer sees everything, where ``layer_types`` is absent."""
    pattern_is_fixed: bool = False
    """The class reads no ``sliding_window_pattern``."""
    unlisted: Callable[[Config, int], tuple[str, ...]] | None = None
    """Another rule where ``layer_types`` is absent."""
    last_is_full: bool = False
    """The last layer sees everything, whatever is listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKeys:
    """How a config describes a mixture of experts."""

    have_own_width: bool = False
    """``moe_intermediate_size``; else ``intermediate_size``."""
    shared_width: Callable[[Config, int], int] | None = None
    """Width of the experts that see every token, together, from the width of one; None: there are none."""
    always_normed: bool = False
    """Shares are divided by their sum, and no key says so."""
    normed: bool = False
    """``norm_topk_prob`` where it is absent."""
    groups: Callable[[Config], int] | None = None
    """Groups of experts of which the best are chosen first."""
    layer_types: Callable[[Config, int], tuple[str, ...]] | None = None
    """Which layers have one MLP; None: none has."""
    are_there: Callable[[Config], bool] | None = None
    """None: unless ``num_local_experts`` is 0."""
    only: Mapping[str, object] = field(default_factory=lambda: {"router_jitter_noise": 0})
    """Keys that are modelled at one value."""
    check: Callable[[Config], None] | None = None
    """Refuses what is not modelled."""


Dropout = tuple[str, float] | None
"""A key and its default; None: the class has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigClass:
    """Where a family's config class differs from ``LlamaConfig``: defaults, names of keys, rules."""

    tied: bool = False
    key_value_heads: int | None = None
    """None: as many as there are heads."""
    one_head_each: bool = False
    """A key-value head for every query head, and no key for it."""
    key_value_heads_of: Callable[[Config, int], int] | None = None
    """Reads them from the number of heads in another way."""
    head_dim: int | None = None
    """None: hidden_size / num_attention_heads."""
    derived_head_dim: bool = False
    """The class computes head_dim and reads no such key."""
    hidden_act: str = "silu"
    activation_key: str = "hidden_act"
    """Empty: the class has one activation, and no key."""
    partial_rotary_factor: float | None = None
    """None: whole heads are turned, and no key says otherwise."""
    biases: Biases = LLAMA_BIASES
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes that published files leave to the class."""
    width: Callable[[Config, int], int] | None = None
    """Reads intermediate_size from the hidden size in another way."""
    mlp_ratio: int | None = None
    """intermediate_size is so many times hidden_size; 0: a multiple that the config names."""
    layers: Callable[[Config], int] | None = None
    """Counts the layers where no key does."""
    position_offset: int | None = None
    """Rows of the table of positions beyond max_position_embeddings; None: positions are not learned."""
    windows: WindowKeys | None = None
    mixers: Callable[[Config, int], tuple[str, ...]] | None = None
    """Which layers hold something else in attention's place."""
    rotary_layers: Callable[[Config, tuple[str, ...], int], tuple[bool, ...]] | None = None
    """Which layers turn queries and keys, from their kinds and the window; None: all."""
    dropouts: tuple[Dropout, Dropout, Dropout] = (None, ("attention_dropout", 0.0), None)
    """Of the embeddings, of the attention's weights, of what joins the residual."""
    softcaps: tuple[float | None, float | None] | None = None
    """Of the attention's scores and of the logits, where the keys are absent; None: there are no such keys."""
    experts: ExpertKeys | None = None
    mlps_in_turn: bool = False
    """Layers with one MLP and with experts take turns; elsewhere the first differ from the rest."""
    own: Callable[[Config, dict[str, Any]], dict[str, Any]] | None = None
    """What else the config says, as fields of ``Model``, from those that are read already."""
    nested: str = ""
    """A key under which lies a config of its own."""
    wrappers: tuple[str, ...] = ()
    """Models of text and vision or sound whose ``text_config`` is this where it names no ``model_type``."""
    flat_wrappers: tuple[str, ...] = ()
    """Of these, those whose text's keys once lay beside the towers'."""
    aliases: tuple[str, ...] = ()
    """Models and text parts with a name of their own and the same modules."""
    nested_sizes: Mapping[str, int] = field(default_factory=dict)
    """What a ``text_config`` was long saved without, since it equals the class's defaults."""


class LargeBuffer(NamedTuple):
    """A tensor of more than a few KiB that belongs to the model and is not trained."""

    name: str
    copies: int
    """How many alike, one a layer or one in all."""
    content_bytes: int
    """Before allocation."""


TowerConfig = Mapping[str, object] | None
"""A ``vision_config`` or an ``audio_config``; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerClass:
    """What ``AutoModelForCausalLM`` makes of a checkpoint with towers: transformers 5.23, models/auto/modeling_auto.py,
    ``MODEL_FOR_CAUSAL_LM_MAPPING_NAMES``.
    """

    made: str
    """The class of the text and its towers."""
    text: str
    """The class of the text alone."""
    vision_types: tuple[str, ...]
    """``model_type`` of the vision towers whose modules are known."""
    read: Callable[[TowerConfig, TowerConfig], Towers | None]
    """The towers' sizes from the configs of vision and sound; None: not known here."""
    modules: Callable[[VisionTower | None, AudioTower | None, Model], Iterable[tuple[Module, int]]]
    """Modules with weights of the towers and of what joins them to the text, and how many alike."""
    missing_class: Callable[[Towers], str] = lambda towers: ""
    """A class that transformers would not split and that the model with these towers has not; empty: it has all.
    models/siglip/modeling_siglip.py, ``SiglipPreTrainedModel._no_split_modules``; models/gemma4/modeling_gemma4.py,
    likewise; modeling_utils.py, ``post_init`` (the union)."""
    runs_on_text: tuple[str, ...] = ()
    """Begin the names of what runs on every token, image or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All that follows from one ``model_type``."""

    model_type: str
    config: ConfigClass = ConfigClass()
    modules: FamilyModules
    tree: TreeLayout
    architecture: Architecture
    liger: Kernels | None = None
    """None: Liger has no kernels for it."""
    liger_is_later: bool = False
    """Liger replaces what is not modelled yet."""
    unread: Mapping[Why, str] = field(default_factory=dict)
    """Keys of its config that nothing here reads, beside what is common to all."""
    sensitive: frozenset[str] = frozenset()
    """Keys of ``config_keys.SENSITIVE_IN_SOME`` that its config has."""
    peft_targets: tuple[str, ...] = ()
    """What PEFT adapts where no target is named, of families where it refuses all linears: PEFT 0.21,
    utils/constants.py, ``TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING``."""
    merges_experts: bool = False
    """Its files hold experts one by one and its models hold them as stacks, gates and ups as one: transformers 5.23,
    conversion_mapping.py, ``MergeModulelist`` and ``Concatenate``. Granite MoE's files hold stacks already."""
    finds_final_norm: bool = True
    """The final norm is a child of what ``base_model_prefix`` names: OPT's lies in a decoder, and Llama 4 has no
    such."""
    with_towers: TowerClass | None = None
    """None: of a checkpoint with towers the text alone is made, or nothing."""
    large_buffers: Callable[[Model], tuple[LargeBuffer, ...]] | None = None
    """Buffers of more than a few KiB."""
    own_linear: str = ""
    """The class of its linears where it is not ``nn.Linear``, which bitsandbytes leaves as loaded."""
    scales_queries: bool = False
    """Queries are multiplied by a number for each position (Ministral 3)."""
    multiplies_residual: bool = False
    """What is added to the residual is multiplied by a number (Granite)."""
    float32_shares: bool = False
    """The shares of a token's experts stay in float32 (Mixtral)."""

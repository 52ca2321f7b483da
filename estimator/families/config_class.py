"""How a family's ``config.json`` is read: where its config class differs from ``LlamaConfig``.

``hf_config`` reads what all families have; a family says only its own defaults, names of keys and rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from estimator.families.config_rules import LLAMA_BIASES, Biases
from estimator.families.reader import Config


class Why(Enum):
    """Why a key can be ignored."""

    FILE = "says what the file is or who wrote it"
    SETUP = "the setup determines it instead: the dtype of the weights, the kernel"
    TOKENS = "a token's id or the tokenizer's name"
    GENERATION = "how text is generated"
    CACHE = "the key-value cache, which Trainer turns off (TrainingArguments.use_cache)"
    INITIALISATION = "how new weights are initialised"
    OTHER_HEADS = "a classification head, or an encoder-decoder, which is not trained here"
    NUMBERS = "a constant to multiply by or compare with: the same operators, the same bytes"
    SAME_BYTES = "other operators, whose traced step has the same peak"
    OFF = "only read if another key enables it"
    TOWERS = "part of vision or audio, which is left out"
    UNREAD = "not read by the class's model code"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowKeys:
    """How a config specifies which layers have a window, and its tokens."""

    default: int = 0
    """Tokens if ``sliding_window`` is missing."""
    size: Callable[[Config], int] | None = None
    """Reads the size from a key of another name."""
    seen: Callable[[Config, int], int] | None = None
    """Transforms the size."""
    everywhere: bool = False
    """All layers have the window."""
    is_switched: bool = False
    """Only if ``use_sliding_window`` is set."""
    pattern: int = 0
    """Every n-th layer has full attention, if ``layer_types`` is missing."""
    pattern_is_fixed: bool = False
    """The class does not read ``sliding_window_pattern``."""
    unlisted: Callable[[Config, int], tuple[str, ...]] | None = None
    """Another rule if ``layer_types`` is missing."""
    last_is_full: bool = False
    """The last layer has full attention, whatever is listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKeys:
    """How a config describes a mixture of experts."""

    have_own_width: bool = False
    """``moe_intermediate_size``; else ``intermediate_size``."""
    shared_width: Callable[[Config, int], int] | None = None
    """Total width of the shared experts, from the width of one; None: there are none."""
    always_normed: bool = False
    """Expert weights are always normalised, without a key."""
    normed: bool = False
    """``norm_topk_prob`` if it is missing."""
    groups: Callable[[Config], int] | None = None
    """Groups of experts, of which the best are chosen first."""
    layer_types: Callable[[Config, int], tuple[str, ...]] | None = None
    """Which layers have a dense MLP; None: none."""
    are_there: Callable[[Config], bool] | None = None
    """Whether there are experts; None: if ``num_local_experts`` is not 0."""
    only: Mapping[str, object] = field(default_factory=dict)
    """Keys that are modelled at one value only."""
    check: Callable[[Config], None] | None = None
    """Refuses what is not modelled."""


Dropout = tuple[str, float] | None
"""A key and its default; None: the class has none."""
Fields = dict[str, Any]
"""Fields of a ``Model``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigClass:
    """Where a family's config class differs from ``LlamaConfig``: defaults, names of keys, rules."""

    tied: bool | None = False
    """Whether the head is the embedding if no key says so; None: never, whatever a key says."""
    key_value_heads: int | None = None
    """Default number of key-value heads; None: the number of heads."""
    one_head_each: bool = False
    """One key-value head per query head, without a key."""
    key_value_heads_of: Callable[[Config, int], int] | None = None
    """Reads key-value heads by another rule, given the number of heads."""
    head_dim: int | None = None
    """None: hidden_size / num_attention_heads."""
    derived_head_dim: bool = False
    """The class computes head_dim and does not read such a key."""
    hidden_act: str = "silu"
    activation_key: str = "hidden_act"
    """Empty: the activation is fixed."""
    partial_rotary_factor: float | None = None
    """None: rotary embeddings cover whole heads, without a key."""
    biases: Biases = LLAMA_BIASES
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Default sizes that published configs omit."""
    width: Callable[[Config, int], int] | None = None
    """Reads intermediate_size by another rule, given the hidden size."""
    mlp_ratio: int | None = None
    """intermediate_size as a multiple of hidden_size; None: a key of its own."""
    layers: Callable[[Config], int] | None = None
    """Derives the number of layers if no key gives it."""
    position_offset: int | None = None
    """Rows of the position embedding beyond max_position_embeddings; None: positions are not learned."""
    windows: WindowKeys | None = None
    mixers: Callable[[Config, int], tuple[str, ...]] | None = None
    """Which layers have something else instead of attention."""
    rotary_layers: Callable[[Config, tuple[str, ...], int], tuple[bool, ...]] | None = None
    """Which layers have rotary embeddings, given their kinds and the window; None: all."""
    dropouts: tuple[Dropout, Dropout, Dropout] = (None, ("attention_dropout", 0.0), None)
    """Dropout of the embeddings, of the attention weights, and of the residual branches."""
    dropout_modules: tuple[bool, bool, bool] = (True, False, True)
    """Which of these are ``nn.Dropout`` modules; the others call the function with a number of their own."""
    softcaps: tuple[float | None, float | None] | None = None
    """Default soft caps of attention scores and of logits; None: there are no such keys."""
    experts: ExpertKeys | None = None
    mlps_in_turn: bool = False
    """Dense and expert layers alternate; otherwise the first layers differ from the rest."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Further fields of ``Model``, which no key changes."""
    flags: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    """Further fields of ``Model`` that a key turns on or off, with the key and its default."""
    own: Callable[[Config, Fields], Fields] | None = None
    """Other fields of ``Model`` from the config, given those already read."""
    nested: str = ""
    """A key that contains the config."""
    wrappers: tuple[str, ...] = ()
    """Multimodal models whose ``text_config`` has this type if it names no ``model_type``."""
    flat_wrappers: tuple[str, ...] = ()
    """Those whose older configs have the text's keys at the top level."""
    aliases: tuple[str, ...] = ()
    """Other names of models and text parts with the same modules."""
    alias_rotary_factors: Mapping[str, float] = field(default_factory=dict)
    """``partial_rotary_factor`` of aliases whose class has another default."""
    nested_sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes that older ``text_config``s omit because they equal the class's defaults."""


LLAMA_CONFIG = ConfigClass()
"""``LlamaConfig``, but for ``mlp_bias``."""

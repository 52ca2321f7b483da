"""A Hugging Face ``config.json`` object to a ``Model``.

Missing keys take the default of the family's own config class (transformers 5.23,
``models/*/configuration_*.py``), as ``from_pretrained`` does; but a config without the dimensions that
set its size is refused, unless the Hub's own files leave them out (Gemma 3). No I/O, no guessing: what
cannot be read is a ``ValueError`` that names the key and says what to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

from estimator.families.config_keys import SENSITIVE, is_sensitive, unread
from estimator.families.layer_kinds import (
    CONVOLUTION,
    DELTA_FILTER,
    DENSE,
    EXPERTS,
    LINEAR_ATTENTION,
    MLP,
    SHORT_FILTER,
)
from estimator.families.modules import OPT_POSITION_OFFSET
from estimator.families.registry import MODELLED, check_modelled
from estimator.values.arithmetic import ceil_div
from estimator.values.kinds import show
from estimator.values.refusals import NOT_MODELLED, InputError, Line, Refusal
from estimator.values.specs import DeltaNet, Model, StateSpace

MOST_LAYERS = 4096  # layers: our limit, thirty times the deepest catalogue model (126)
MOST_HEADS = 4096  # heads: our limit, seventeen times the catalogue's most (232)
MOST_ELEMENTS = 10**7  # rows or columns: as Model's own limit
MOST_POSITIONS = (
    10**8
)  # positions: our limit, ten times the longest context in the catalogue (10,485,760)

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
"""Llama 4's, read as a window: what lies outside a chunk is masked as what lies outside a window."""

TEXT_PARTS = {
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "qwen2_5_vl": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3",
    "smolvlm": "llama",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
"""Wrappers of a decoder with vision or sound, and the model_type of a ``text_config`` that names none.

Of these, and of any other wrapper that names a modelled one, the text part is estimated; the towers are left out.
"""

_SAME_LAYERS = {
    "kimi_k2": "deepseek_v3",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
}
"""Models and text parts with a name of their own, and the family whose modules they have."""

# A text_config was long saved without what equals its class's defaults (transformers 5.23, configuration_*.py).
_NESTED_SIZES: Mapping[str, Mapping[str, int]] = {
    model_type: dict(
        zip(
            (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "max_position_embeddings",
            ),
            sizes,
            strict=True,
        )
    )
    for model_type, sizes in {
        "gemma": (256_000, 3072, 24_576, 28, 16, 8192),
        "gemma2": (256_000, 2304, 9216, 26, 8, 8192),
        "llama": (32_000, 4096, 11_008, 32, 32, 2048),
        "mistral": (32_000, 4096, 14_336, 32, 32, 131_072),
        "qwen2": (151_936, 4096, 22_016, 32, 32, 32_768),
    }.items()
}


@dataclass(frozen=True, slots=True)
class _Defaults:
    """Where a family's config class differs from ``LlamaConfig``."""

    tied: bool = False
    key_value_heads: int | None = None
    """None: as many as there are heads."""
    head_dim: int | None = None
    """None: hidden_size / num_attention_heads."""
    derived_head_dim: bool = False
    """The class computes head_dim and reads no such key."""
    hidden_act: str = "silu"
    partial_rotary_factor: float = 1.0
    attention_bias: bool = False
    sliding_window: int | None = None
    sliding_pattern: int = 0
    """Every n-th layer sees everything; 0: the class has no such pattern."""


_DEFAULTS = {
    "apertus": _Defaults(hidden_act="xielu"),
    "arcee": _Defaults(hidden_act="relu2"),
    "bloom": _Defaults(tied=True, derived_head_dim=True, hidden_act="gelu"),
    "cohere": _Defaults(tied=True),
    "cohere2": _Defaults(tied=True, sliding_window=4096, sliding_pattern=4),
    "deepseek_v2": _Defaults(head_dim=128),
    "deepseek_v3": _Defaults(head_dim=128),
    "ernie4_5": _Defaults(tied=True, key_value_heads=2, head_dim=128),
    "ernie4_5_moe": _Defaults(tied=True, key_value_heads=4),
    "exaone4": _Defaults(key_value_heads=32, sliding_window=4096, sliding_pattern=4),
    "falcon": _Defaults(tied=True, derived_head_dim=True, hidden_act="gelu"),
    "falcon_h1": _Defaults(key_value_heads=8),
    "gemma": _Defaults(tied=True, key_value_heads=16, head_dim=256, hidden_act="gelu_pytorch_tanh"),
    "gemma2": _Defaults(
        tied=True,
        key_value_heads=4,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        sliding_window=4096,
        sliding_pattern=2,
    ),
    "gemma3_text": _Defaults(
        tied=True,
        key_value_heads=4,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        sliding_window=4096,
        sliding_pattern=6,
    ),
    "gemma3n_text": _Defaults(
        tied=True,
        key_value_heads=2,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        sliding_window=512,
        sliding_pattern=5,
    ),
    "gemma4_text": _Defaults(
        tied=True,
        key_value_heads=4,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        sliding_window=512,
        sliding_pattern=6,
    ),
    "glm": _Defaults(
        key_value_heads=2, head_dim=128, partial_rotary_factor=0.5, attention_bias=True
    ),
    "glm4": _Defaults(
        key_value_heads=2, head_dim=128, partial_rotary_factor=0.5, attention_bias=True
    ),
    "glm4_moe": _Defaults(key_value_heads=8, partial_rotary_factor=0.5),
    "glm4_moe_lite": _Defaults(head_dim=64),
    "gpt2": _Defaults(tied=True, derived_head_dim=True, hidden_act="gelu_new"),
    "gpt_bigcode": _Defaults(tied=True, derived_head_dim=True, hidden_act="gelu_pytorch_tanh"),
    "gpt_neox": _Defaults(
        derived_head_dim=True,
        hidden_act="gelu",
        partial_rotary_factor=0.25,
        attention_bias=True,
    ),
    "gpt_oss": _Defaults(
        key_value_heads=8,
        head_dim=64,
        attention_bias=True,
        sliding_window=128,
        sliding_pattern=2,
    ),
    "gptj": _Defaults(derived_head_dim=True, hidden_act="gelu_new"),
    "lfm2": _Defaults(tied=True, key_value_heads=8),
    "llama4_text": _Defaults(
        key_value_heads=8, head_dim=128, sliding_window=8192, sliding_pattern=4
    ),
    "ministral3": _Defaults(key_value_heads=8, head_dim=128),
    "mistral": _Defaults(key_value_heads=8, sliding_window=4096),
    "mixtral": _Defaults(key_value_heads=8),
    "mpt": _Defaults(tied=True, derived_head_dim=True, hidden_act="gelu"),
    "nemotron": _Defaults(hidden_act="relu2", partial_rotary_factor=0.5),
    "nemotron_h": _Defaults(key_value_heads=8, head_dim=128, hidden_act="relu2"),
    "olmo3": _Defaults(sliding_window=4096, sliding_pattern=4),
    "opt": _Defaults(tied=True, derived_head_dim=True, hidden_act="relu"),
    "phi": _Defaults(hidden_act="gelu_new", partial_rotary_factor=0.5),
    "phimoe": _Defaults(key_value_heads=8),
    "qwen2": _Defaults(key_value_heads=32, sliding_window=4096),
    "qwen2_moe": _Defaults(key_value_heads=16, sliding_window=4096),
    "qwen3": _Defaults(key_value_heads=32, head_dim=128, sliding_window=4096),
    "qwen3_5_moe_text": _Defaults(key_value_heads=2, head_dim=256, partial_rotary_factor=0.25),
    "qwen3_5_text": _Defaults(key_value_heads=4, head_dim=256, partial_rotary_factor=0.25),
    "qwen3_moe": _Defaults(key_value_heads=4, sliding_window=4096),
    "qwen3_next": _Defaults(key_value_heads=2, head_dim=256, partial_rotary_factor=0.25),
    "seed_oss": _Defaults(key_value_heads=8, head_dim=128, attention_bias=True),
    "smollm3": _Defaults(tied=True, key_value_heads=4),
    "stablelm": _Defaults(key_value_heads=32, derived_head_dim=True, partial_rotary_factor=0.25),
    "starcoder2": _Defaults(tied=True, key_value_heads=2, hidden_act="gelu_pytorch_tanh"),
}

# The Hub's text_config of Gemma 3 4B, 12B and 27B leaves these to the class.
_GEMMA3_SIZES = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "intermediate_size": 9216,
    "max_position_embeddings": 131_072,
}

DERIVED_HEAD_DIM = frozenset(name for name, family in _DEFAULTS.items() if family.derived_head_dim)
"""Families whose class computes head_dim from hidden_size and num_attention_heads."""
ONE_HEAD_EACH = frozenset({"bloom", "gpt2", "gpt_neox", "gptj", "mpt", "opt"})
"""Families with a key-value head for every query head."""
MPT_ATTENTION = "attn_config"
"""The object in which MPT keeps what concerns attention."""
GPTJ_ROTARY_DIM = 64  # GPTJConfig; null turns whole heads
_DELTA_NETS = frozenset({"qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"})
"""Families most of whose layers have a gated delta-net in attention's place."""
_PARTIAL_ROTARY = _DELTA_NETS | {
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_neox",
    "nemotron",
    "phi",
    "phi3",
    "stablelm",
}
_LATENT: Mapping[str, tuple[int, int, int, int, int]] = {
    "deepseek_v2": (1536, 512, 128, 64, 128),
    "deepseek_v3": (1536, 512, 128, 64, 128),
    "glm4_moe_lite": (768, 512, 192, 64, 256),
}
"""Latent attention, and its widths where a config leaves them out: q_lora_rank, kv_lora_rank, qk_nope_head_dim,
qk_rope_head_dim, v_head_dim."""
_MLP_BIAS = frozenset(
    {"arcee", "deepseek_v2", "falcon_h1", "granite", "llama", "nemotron", "seed_oss", "smollm3"}
)
_USE_BIAS = {
    "ernie4_5": ("use_bias", False),
    "ernie4_5_moe": ("use_bias", False),
    "falcon": ("bias", False),
    "opt": ("enable_bias", True),
    "starcoder2": ("use_bias", True),
}
_ALL_WINDOWED = frozenset(
    {"ministral3", "mistral", "mixtral", "phi3", "phimoe", "qwen3_moe", "starcoder2"}
)
_SWITCHED_WINDOW = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"})
_WINDOWED = (
    _ALL_WINDOWED
    | _SWITCHED_WINDOW
    | {"cohere2", "exaone4", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss"}
    | {"llama4_text"}
    | {"olmo3"}
)
_PARTLY_DENSE = frozenset(
    {"deepseek_v2", "deepseek_v3", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite"}
)
"""The first layers have one MLP, the others experts, and shared experts beside them."""
_EXPERTS = _PARTLY_DENSE | {
    "gemma4_text",
    "gpt_oss",
    "granitemoe",
    "granitemoehybrid",
    "llama4_text",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
}
_EXPERTS_OF_THEIR_OWN_WIDTH = _PARTLY_DENSE | {
    "gemma4_text",
    "nemotron_h",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
}
_NORMED_SHARES = frozenset({"deepseek_v3", "glm4_moe", "glm4_moe_lite", "nemotron_h", "qwen3_next"})
_PDROP = ("embd_pdrop", "attn_pdrop", "resid_pdrop")
_SOFTCAPPED = {
    "gemma2": (50.0, 30.0),
    "gemma3_text": (None, None),
    "gemma3n_text": (None, 30.0),
    "gemma4_text": (None, None),
}


KEY_NOT_MODELLED = Refusal(
    "{name} {value} is not modelled for {model_type}; set it to {instead} in the config.",
    NOT_MODELLED,
)
LAYERS_OF_TWO_WIDTHS = Refusal(
    "intermediate_size must be the same in all layers of gemma3n_text, since only such are modelled; correct it in the "
    "config.",
    NOT_MODELLED,
)
HEAD_WITH_BIAS = Refusal(
    "use_bias true is not modelled for ernie4_5_moe, whose head has a bias then; set it to false in the config.",
    NOT_MODELLED,
)
TIED_HEAD_WITH_BIAS = Refusal(
    "lm_head_bias true with tie_word_embeddings true is not modelled for phimoe; set one of the two to false in the "
    "config.",
    NOT_MODELLED,
)
NO_CHUNK_SIZE = Refusal(
    "attention_chunk_size null stops transformers' chunked mask; give a whole number in the config.",
    Line("transformers", "masking_utils.py", 1426, "Could not find an `attention_chunk_size`"),
)
SHARED_WITHOUT_PER_LAYER_INPUT = Refusal(
    "num_kv_shared_layers needs hidden_size_per_layer_input, without which transformers stops; set it to 0 in the "
    "config.",
    Line(
        "transformers",
        "models/gemma4/modeling_gemma4.py",
        1841,
        "per_layer_inputs = per_layer_inputs[:, logits_to_keep, :, :]",
    ),
)
NO_LAYER_TO_SHARE = Refusal(
    "num_kv_shared_layers {shared} leaves no layer of each type before the {shared} that share; lower it in the "
    "config.",
    Line(
        "transformers",
        "models/gemma4/configuration_gemma4.py",
        241,
        "The set of layer types producing a cache is different than the set of layer types using them",
    ),
)
ONE_KIND_OF_LAYER = Refusal(
    'layer_types must hold both "full_attention" and "sliding_attention" in {model_type}, since only such are '
    "modelled; correct it in the config.",
    NOT_MODELLED,
)
LAYERS_OF_THEIR_OWN = Refusal(
    'per_layer_config must say the same of each "full_attention" layer and nothing of others, since only such models '
    "are modelled; correct it in the config.",
    NOT_MODELLED,
)
CHANGED_BY_LAYER = Refusal(
    "per_layer_config changes {name}, which is not modelled for gemma4_text; correct it in the config.",
    NOT_MODELLED,
)


class _Recorded(Mapping[str, object]):
    """A config that remembers which keys it was asked for; those of a nested object with its name before them."""

    def __init__(self, values: Mapping[str, object], asked: set[str], before: str = "") -> None:
        self.values_of, self.asked, self.before = values, asked, before

    def __getitem__(self, key: str) -> object:
        self.asked.add(self.before + key)
        value = self.values_of[key]
        if isinstance(value, Mapping):
            return _Recorded(value, self.asked, f"{self.before}{key}.")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_of)

    def __len__(self) -> int:
        return len(self.values_of)


@dataclass(frozen=True, slots=True)
class _Config:
    """Typed reading of one config: every getter refuses what it cannot use, naming the key."""

    values: Mapping[str, object]
    model_type: str

    def has(self, *names: str) -> str | None:
        return next((name for name in names if self.values.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None, most: int = MOST_ELEMENTS) -> int:
        name = self.has(*names)
        if name is None:
            if default is None:
                raise InputError(
                    f"the {self.model_type} config has no {names[0]}; add it, a whole number."
                )
            return default
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InputError(
                f"{name} must be a whole number from 1 to {most}, not {_show(value)}; "
                "correct it in the config."
            )
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(
                f"{name} must be true or false, not {_show(value)}; correct it in the config."
            )
        return value

    def share(self, name: str, *, default: float = 0.0) -> float:
        """A probability or a fraction."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InputError(
                f"{name} must be a number from 0 to 1, not {_show(value)}; "
                "correct it in the config."
            )
        return float(value)

    def text(self, *names: str, default: str) -> str:
        name = self.has(*names)
        if name is None:
            return default
        value = self.values[name]
        if not isinstance(value, str) or not value:
            raise InputError(
                f"{name} must be a name, not {_show(value)}; correct it in the config."
            )
        return value

    def cap(self, name: str, default: float | None) -> bool:
        """Whether a softcap is on; null turns it off."""
        value = self.values.get(name, default)
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
            raise InputError(
                f"{name} must be a positive number or null, not {_show(value)}; "
                "correct it in the config."
            )
        return True

    def part(self, name: str) -> _Config:
        """A nested object; absent: an empty one."""
        value = self.values.get(name)
        if value is None:
            return _Config({}, self.model_type)
        if not isinstance(value, Mapping):
            raise InputError(
                f"{name} must be an object, not {_show(value)}; correct it in the config."
            )
        return _Config(value, self.model_type)

    def items(self, name: str, layers: int) -> tuple[object, ...]:
        """A list with one item a layer; absent: empty."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or len(value) != layers:
            length = f"{len(value)} items" if isinstance(value, list | tuple) else _show(value)
            raise InputError(
                f"{name} must list one item for each of the {layers} layers, not {length}; "
                "correct it in the config."
            )
        return tuple(value)


def _show(value: object, most: int = 40) -> str:
    """A value as JSON writes it, and short; of a short list its items."""
    if isinstance(value, list | tuple) and len(value) < most:
        listed = f"[{', '.join(map(show, value))}]"
        if len(listed) <= most:
            return listed
    return show(value)


class _Sizes(TypedDict):
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


class _Biases(TypedDict):
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    lm_head_bias: bool


class _Windows(TypedDict):
    sliding_window: int
    layer_types: tuple[str, ...]
    no_rope_layers: tuple[bool, ...]


class _Experts(TypedDict):
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool
    output_router_logits: bool
    expert_groups: int
    mlp_layer_types: tuple[str, ...]


class _Latent(TypedDict):
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


class _PerLayer(TypedDict):
    global_head_dim: int
    num_global_key_value_heads: int
    attention_k_eq_v: bool
    num_kv_shared_layers: int
    use_double_wide_mlp: bool
    hidden_size_per_layer_input: int
    vocab_size_per_layer_input: int


class _Dropouts(TypedDict):
    embd_pdrop: float
    attn_pdrop: float
    resid_pdrop: float


def model_from_config(config: Mapping[str, object], hub_id: str = "") -> Model:
    """Model of a ``config.json`` object; sizes in elements, whole model.

    Of a model of text and images or sound the text part is taken. Quantisation and generation keys are ignored.

    Source: transformers 5.23 models/<model_type>/configuration_<model_type>.py, defaults and ``__post_init__``.

    >>> model_from_config({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12,
    ...                    "n_head": 12, "n_positions": 1024}).intermediate_size == 4 * 768
    True
    """
    return _model(_text_part(config), hub_id)


def ignored_keys(config: Mapping[str, object]) -> tuple[str, ...]:
    """Of each key that no figure follows and that nobody knows to be without effect, a sentence.

    Source: the tables of ``config_keys``.

    >>> ignored_keys({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
    ...               "n_positions": 1024, "use_cache": True, "n_experts": 8})
    ("The config's key n_experts is not known here and was ignored.",)
    """
    read, asked = _text_part(config), set[str]()
    _model(replace(read, values=_Recorded(read.values, asked)))
    given = dict(read.values)
    nested = given.pop(MPT_ATTENTION, None) if read.model_type == "mpt" else None
    if isinstance(nested, Mapping):
        inner = unread(
            nested, (), read.model_type
        )  # it is a config of its own, with what is common to all
        given |= {f"{MPT_ATTENTION}.{key}": nested[key] for key in inner}
    return tuple(
        f"The config's {key} is {_show(given[key])}, which {SENSITIVE[key].effect}."
        if is_sensitive(key, read.model_type)
        else f"The config's key {_named(key)} is not known here and was ignored."
        for key in unread(given, asked, read.model_type)
    )


def _named(key: object) -> str:
    """A key as it is, if it is a word; anything else in quotation marks, and short."""
    is_word = isinstance(key, str) and len(key) <= 60 and key.replace(".", "").isidentifier()
    return str(key) if is_word else show(key)


def _model(read: _Config, hub_id: str = "") -> Model:
    family = _DEFAULTS.get(read.model_type, _Defaults())
    sizes = _sizes(read, family)
    latent = _latent(read)
    if latent["kv_lora_rank"]:
        sizes["head_dim"] = latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"]
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    windows = _windows(read, family, sizes["num_hidden_layers"])
    positions = _positions(read)
    attn_cap, final_cap = _SOFTCAPPED.get(read.model_type, (None, None))
    capped = read.model_type in _SOFTCAPPED
    windows = _windows(read, family, sizes["num_hidden_layers"])
    has_states = read.model_type == "falcon_h1" or LINEAR_ATTENTION in windows["layer_types"]
    is_delta = read.model_type in _DELTA_NETS
    return Model(
        model_type=read.model_type,
        hub_id=hub_id,
        tie_word_embeddings=_is_tied(read, family),
        max_position_embeddings=positions,
        hidden_act=_hidden_act(read, family),
        qk_norm=_qk_norm(read),
        learned_positions=_learned_positions(read, positions),
        word_embed_proj_dim=_word_embed_proj_dim(read, sizes["hidden_size"]),
        do_layer_norm_before=_do_layer_norm_before(read),
        partial_rotary_factor=_partial_rotary_factor(read, family, sizes["head_dim"]),
        parallel_residual=_parallel_residual(read),
        new_decoder_architecture=_new_decoder(read),
        num_ln_in_parallel_attn=read.whole("num_ln_in_parallel_attn", default=2, most=2),
        norms_without_weight=_norms_without_weight(read),
        attn_logit_softcapping=capped and read.cap("attn_logit_softcapping", attn_cap),
        final_logit_softcapping=capped and read.cap("final_logit_softcapping", final_cap),
        clip_qkv=_clips(read),
        reorder_and_upcast_attn=read.model_type == "gpt2"
        and read.flag("reorder_and_upcast_attn", default=False),
        use_bidirectional_attention=_sees_both_ways(read),
        **sizes,
        **_biases(read, family),
        **windows,
        state_space=_state_space(read, sizes["hidden_size"])
        if has_states and not is_delta
        else None,
        delta_net=_delta_net(read) if has_states and is_delta else None,
        **latent,
        **_experts(read, sizes),
        **_dropouts(read),
        jitters_input=_jitters_input(read),
        **_streams(read, sizes["num_hidden_layers"]),
        **_per_layer(read, windows["layer_types"], sizes),
    )


def _clips(read: _Config) -> bool:
    """Whether queries, keys and values are clamped; by 0, too, except in MPT (``if self.clip_qkv``)."""
    match read.model_type:
        case "olmo" | "olmoe":
            return read.cap("clip_qkv", None)
        case "mpt":
            inner = read.part(MPT_ATTENTION)
            return inner.values.get("clip_qkv") != 0 and inner.cap("clip_qkv", None)
        case _:
            return False


def _sees_both_ways(read: _Config) -> bool:
    """Gemma 3: whether every token sees those after it (Gemma and Gemma 2 have the key, and masks all the same)."""
    return read.model_type == "gemma3_text" and read.flag(
        "use_bidirectional_attention", default=False
    )


def _is_tied(read: _Config, family: _Defaults) -> bool:
    tied = read.flag("tie_word_embeddings", default=family.tied)
    return read.flag("tie_embedding", default=tied) if read.model_type == "lfm2" else tied


def _text_part(config: Mapping[str, object]) -> _Config:
    if not isinstance(config, Mapping):
        raise InputError(f"a config must be an object of keys and values, not {_show(config)}.")
    model_type = config.get("model_type")
    if model_type is None:
        raise InputError(
            "the config has no model_type; give a whole config.json as the Hub serves it, of one of the "
            f"{len(MODELLED)} architectures that are modelled: llama, mistral, qwen3 and others."
        )
    if not isinstance(model_type, str):
        raise InputError(f"model_type must be a name, not {_show(model_type)}; correct the config.")
    if "text_config" in config:
        return _text_part(_unwrapped(config, model_type))
    if model_type in {"qwen2_vl", "qwen2_5_vl"}:  # before transformers 5 the text's keys lay beside
        model_type = TEXT_PARTS[model_type]
    model_type = _SAME_LAYERS.get(model_type, model_type)
    check_modelled(model_type)
    read = _Config(config, model_type)
    return read


def _unwrapped(config: Mapping[str, object], wrapper: str) -> Mapping[str, object]:
    """The ``text_config`` of a wrapper, with what its class fills in."""
    given = _Config(config, wrapper).part("text_config").values
    inner = {name: value for name, value in given.items() if value is not None}
    if "model_type" not in inner and wrapper not in TEXT_PARTS:
        check_modelled(wrapper)
    inner.setdefault("model_type", TEXT_PARTS.get(wrapper))
    inner.setdefault("tie_word_embeddings", config.get("tie_word_embeddings"))
    sizes = _NESTED_SIZES.get(str(inner["model_type"]), {})
    return {**sizes, **inner}


def _sizes(read: _Config, family: _Defaults) -> _Sizes:
    fallback = _GEMMA3_SIZES if read.model_type == "gemma3_text" else {}
    hidden = read.whole("hidden_size", "n_embd", "d_model", "n_embed")
    heads = read.whole(
        "num_attention_heads",
        "n_head",
        "n_heads",
        default=fallback.get("num_attention_heads"),
        most=MOST_HEADS,
    )
    return {
        "vocab_size": read.whole("vocab_size", default=fallback.get("vocab_size")),
        "hidden_size": hidden,
        "intermediate_size": _intermediate_size(read, hidden, fallback),
        "num_hidden_layers": len(_nemotron_layers(read))
        if read.model_type == "nemotron_h"
        else read.whole("num_hidden_layers", "n_layer", "n_layers", most=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(read, family, heads),
        "head_dim": _head_dim(read, family, hidden, heads),
    }


def _intermediate_size(read: _Config, hidden: int, fallback: Mapping[str, int]) -> int:
    match read.model_type:
        case "bloom":
            return 4 * hidden
        case "mpt":
            return read.whole("expansion_ratio", default=4, most=MOST_HEADS) * hidden
        case "gpt2" | "gpt_bigcode" | "gptj":
            return read.whole("n_inner", default=4 * hidden)
        case "falcon":
            return read.whole("ffn_hidden_size", default=4 * hidden)
        case "granitemoehybrid":
            return read.whole("shared_intermediate_size", default=1024)
        case "lfm2":
            return _lfm2_width(read)
        case "llama4_text":
            return read.whole("intermediate_size_mlp", default=16384)
        case "opt":
            return read.whole("ffn_dim")
        case "qwen3_5_moe_text" | "qwen3_next":  # no layer has an MLP of that width
            return read.whole("intermediate_size", "moe_intermediate_size")
        case "gemma3n_text":
            return _gemma3n_width(read)
        case _:
            return read.whole("intermediate_size", default=fallback.get("intermediate_size"))


def _gemma3n_width(read: _Config) -> int:
    """One width, or one a layer; only such are modelled that are all the same."""
    widths = read.values.get("intermediate_size")
    if not isinstance(widths, list | tuple):
        return read.whole("intermediate_size", default=16_384)
    if not widths or any(width != widths[0] for width in widths):
        raise LAYERS_OF_TWO_WIDTHS()
    return replace(read, values={"intermediate_size": widths[0]}).whole("intermediate_size")


def _lfm2_width(read: _Config) -> int:
    """LFM2 takes two thirds of what is given, rounded up to a multiple: ``Lfm2MLP.__init__``."""
    width = read.whole("block_ff_dim", "intermediate_size", default=12288)
    if not read.flag("block_auto_adjust_ff_dim", default=True):
        return width
    factor = read.values.get("block_ffn_dim_multiplier", 1.0)
    if factor is not None and factor != 1:
        raise KEY_NOT_MODELLED(
            name="block_ffn_dim_multiplier", value=_show(factor), model_type="lfm2", instead=1
        )
    width = 2 * width // 3
    if factor is None:
        return width
    multiple = read.whole("block_multiple_of", default=256)
    return ceil_div(width, multiple) * multiple


def _key_value_heads(read: _Config, family: _Defaults, heads: int) -> int:
    if read.model_type in ONE_HEAD_EACH:
        return heads
    if read.model_type == "gpt_bigcode":
        return 1 if read.flag("multi_query", default=True) else heads
    if read.model_type == "falcon":
        if _new_decoder(read):
            return read.whole("num_kv_heads", "n_head_kv", default=heads, most=MOST_HEADS)
        return 1 if read.flag("multi_query", default=True) else heads
    absent = "num_key_value_heads" not in read.values
    default = family.key_value_heads if absent and family.key_value_heads else heads
    return read.whole("num_key_value_heads", default=default, most=MOST_HEADS)


def _head_dim(read: _Config, family: _Defaults, hidden: int, heads: int) -> int:
    if not family.derived_head_dim:
        if read.has("head_dim"):
            return read.whole("head_dim")
        if family.head_dim and "head_dim" not in read.values:
            return family.head_dim
    if hidden % heads:
        raise InputError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; "
            "correct one of the two in the config"
            f"{'' if family.derived_head_dim else ', or give head_dim'}."
        )
    return hidden // heads


def _positions(read: _Config) -> int:
    default = _GEMMA3_SIZES["max_position_embeddings"] if read.model_type == "gemma3_text" else 0
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    if read.model_type in {"gpt2", "gpt_bigcode", "opt"}:  # the rows of a table: needed
        return read.whole(*reversed(names[:2]), *names[2:])
    if not (default or read.has(*names)):
        return 0
    return read.whole(*names, default=default, most=MOST_POSITIONS)


def _learned_positions(read: _Config, positions: int) -> int:
    match read.model_type:
        case "gpt2" | "gpt_bigcode":
            return positions
        case "opt":
            return positions + OPT_POSITION_OFFSET
        case _:
            return 0


def _word_embed_proj_dim(read: _Config, hidden: int) -> int:
    if read.model_type != "opt":
        return 0
    width = read.whole("word_embed_proj_dim", default=hidden)
    return 0 if width == hidden else width


def _do_layer_norm_before(read: _Config) -> bool:
    if read.model_type != "opt":
        return True
    before = read.flag("do_layer_norm_before", default=True)
    if before and read.flag("_remove_final_layer_norm", default=False):
        raise KEY_NOT_MODELLED(
            name="_remove_final_layer_norm", value="true", model_type="opt", instead="false"
        )
    return before


def _hidden_act(read: _Config, family: _Defaults) -> str:
    match read.model_type:
        case "bloom" | "mpt":  # the class has one, and no key
            return family.hidden_act
        case "gpt2" | "gpt_bigcode" | "gptj" | "opt":
            return read.text("activation_function", default=family.hidden_act)
        case "falcon":
            return read.text("activation", default=family.hidden_act)
        case "gemma2" | "gemma3_text" | "gemma3n_text" | "gemma4_text":
            return read.text("hidden_activation", default=family.hidden_act)
        case "nemotron_h":
            return read.text("mlp_hidden_act", default=family.hidden_act)
        case _:
            return read.text("hidden_act", default=family.hidden_act)


def _qk_norm(read: _Config) -> bool:
    match read.model_type:
        case "cohere" | "glm4_moe":
            return read.flag("use_qk_norm", default=False)
        case "llama4_text":
            return read.flag("use_qk_norm", default=True)
        case "phi" | "stablelm":
            return read.flag("qk_layernorm", default=False)
        case _:
            return False


def _parallel_residual(read: _Config) -> bool:
    match read.model_type:
        case "falcon":
            return read.flag("parallel_attn", default=True) or _new_decoder(read)
        case "gpt_neox":
            return read.flag("use_parallel_residual", default=True)
        case "stablelm":
            return read.flag("use_parallel_residual", default=False)
        case _:
            return False


def _new_decoder(read: _Config) -> bool:
    return read.model_type == "falcon" and read.flag("new_decoder_architecture", default=False)


def _norms_without_weight(read: _Config) -> bool:
    if read.model_type == "opt":
        return not read.flag("layer_norm_elementwise_affine", default=True)
    return read.model_type == "olmo"


def _partial_rotary_factor(read: _Config, family: _Defaults, head_dim: int) -> float:
    if read.model_type == "gptj":
        absent = "rotary_dim" not in read.values
        default_dim = min(GPTJ_ROTARY_DIM, head_dim) if absent else head_dim
        return read.whole("rotary_dim", default=default_dim, most=head_dim) / head_dim
    if read.model_type not in _PARTIAL_ROTARY:
        return 1.0
    key = "partial_rotary_factor"
    default = family.partial_rotary_factor
    if read.model_type == "gpt_neox":
        default = read.share("rotary_pct", default=default)
    nested = read.part("rope_parameters").share(key, default=default)
    return read.share(key, default=nested)


def _biases(read: _Config, family: _Defaults) -> _Biases:
    """Biases of query, key and value; of the attention's output; of the MLP; of the head."""
    match read.model_type:
        case "qwen2":
            attention, output, mlp = True, False, False
        case "phi" | "gpt2" | "gpt_bigcode" | "bloom":
            attention, output, mlp = True, True, True
        case "gptj":
            attention, output, mlp = False, False, True
        case "qwen2_moe":
            attention, output, mlp = read.flag("qkv_bias", default=True), False, False
        case "lfm2" | "ministral3" | "mistral" | "mixtral" | "mpt" | "phi3" | "exaone4":
            attention, output, mlp = False, False, False
        case "nemotron_h":
            attention, output, mlp = False, False, read.flag("mlp_bias", default=False)
        case "starcoder2" | "ernie4_5" | "ernie4_5_moe" | "falcon" | "opt":
            name, default = _USE_BIAS[read.model_type]
            attention = output = mlp = read.flag(name, default=default)
        case "stablelm":
            attention, output, mlp = read.flag("use_qkv_bias", default=False), False, False
        case "internlm3":
            # InternLM3Config.attribute_map: the names of the file, and those that transformers saves
            output = mlp = read.flag(read.has("bias", "mlp_bias") or "bias", default=False)
            attention = read.flag(read.has("qkv_bias", "attention_bias") or "bias", default=False)
        case "glm" | "glm4" | "glm4_moe":
            attention = read.flag("attention_bias", default=family.attention_bias)
            output = mlp = False
        case "gpt_neox":
            attention = output = read.flag("attention_bias", default=family.attention_bias)
            mlp = True
        case _:
            attention = output = read.flag("attention_bias", default=family.attention_bias)
            mlp = read.model_type in _MLP_BIAS and read.flag("mlp_bias", default=False)
    if read.model_type == "seed_oss":
        output = read.flag("attention_out_bias", default=False)
    return {
        "attention_bias": attention,
        "attention_output_bias": output,
        "mlp_bias": mlp,
        "lm_head_bias": read.model_type in {"gptj", "phi"}
        or (read.model_type == "phimoe" and read.flag("lm_head_bias", default=False)),
    }


def _latent(read: _Config) -> _Latent:
    """Widths of latent attention; all 0 where attention is of the ordinary kind."""
    if read.model_type not in _LATENT:
        return {
            "q_lora_rank": 0,
            "kv_lora_rank": 0,
            "qk_nope_head_dim": 0,
            "qk_rope_head_dim": 0,
            "v_head_dim": 0,
        }
    is_v2 = read.model_type == "deepseek_v2"
    if not is_v2 and not read.flag("rope_interleave", default=True):
        raise KEY_NOT_MODELLED(
            name="rope_interleave", value="false", model_type=read.model_type, instead="true"
        )
    query, key_value, plain, turned, value = _LATENT[read.model_type]
    direct = "q_lora_rank" in read.values and read.values["q_lora_rank"] is None
    return {
        "q_lora_rank": 0 if direct else read.whole("q_lora_rank", default=query),
        "kv_lora_rank": read.whole("kv_lora_rank", default=key_value),
        "qk_nope_head_dim": read.whole("qk_nope_head_dim", default=plain),
        "qk_rope_head_dim": read.whole(*_turned_names(read), default=turned),
        "v_head_dim": read.whole("v_head_dim", default=value),
    }


def _turned_names(read: _Config) -> tuple[str, ...]:
    """By which keys the turned part goes; ``Glm4MoeLiteConfig.attribute_map`` has a second, which counts before it."""
    plain = ("qk_rope_head_dim",)
    return ("head_dim", *plain) if read.model_type == "glm4_moe_lite" else plain


def _delta_net(read: _Config) -> DeltaNet:
    """Heads of gated delta-nets and their widths.

    Source: transformers 5.23, models/qwen3_5/configuration_qwen3_5.py, models/qwen3_next/configuration_qwen3_next.py.
    """
    if read.values.get("linear_conv_kernel_dim", DELTA_FILTER) != DELTA_FILTER:
        raise KEY_NOT_MODELLED(
            name="linear_conv_kernel_dim",
            value=_show(read.values["linear_conv_kernel_dim"]),
            model_type=read.model_type,
            instead=DELTA_FILTER,
        )
    return DeltaNet(
        key_heads=read.whole("linear_num_key_heads", default=16, most=MOST_HEADS),
        value_heads=read.whole("linear_num_value_heads", default=32, most=MOST_HEADS),
        key_dim=read.whole("linear_key_head_dim", default=128, most=MOST_HEADS),
        value_dim=read.whole("linear_value_head_dim", default=128, most=MOST_HEADS),
    )


def _experts(read: _Config, sizes: _Sizes) -> _Experts:
    """How many experts, how many a token, how wide; all 0 where every layer has one MLP."""
    is_dense = read.model_type not in _EXPERTS or read.values.get("num_local_experts") == 0
    if read.model_type == "gemma4_text":
        is_dense = not read.flag("enable_moe_block", default=False)
    if read.model_type == "nemotron_h":
        is_dense = EXPERTS not in _nemotron_layers(read)
    if is_dense:
        return {
            "num_experts": 0,
            "num_experts_per_tok": 0,
            "moe_intermediate_size": 0,
            "shared_expert_intermediate_size": 0,
            "norm_topk_prob": False,
            "output_router_logits": False,
            "expert_groups": 0,
            "mlp_layer_types": (),
        }
    _check_experts(read)
    own_width = read.model_type in _EXPERTS_OF_THEIR_OWN_WIDTH
    width = read.whole("moe_intermediate_size" if own_width else "intermediate_size")
    return {
        "num_experts": read.whole(
            "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"
        ),
        "num_experts_per_tok": read.whole("num_experts_per_tok", "moe_k", "top_k_experts"),
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": _shared_width(read, width),
        "norm_topk_prob": read.model_type in {"ernie4_5_moe", "mixtral", "qwen3_5_moe_text"}
        or read.flag("norm_topk_prob", default=read.model_type in _NORMED_SHARES),
        "output_router_logits": read.flag("output_router_logits", default=False),
        "expert_groups": _expert_groups(read),
        "mlp_layer_types": _mlp_layer_types(read, sizes["num_hidden_layers"]),
    }


def _shared_width(read: _Config, width: int) -> int:
    """Width of the experts that see every token, together."""
    if read.model_type == "qwen2_moe":
        return read.whole("shared_expert_intermediate_size")
    if read.model_type in _DELTA_NETS:
        return read.whole("shared_expert_intermediate_size", default=512)
    if read.model_type == "llama4_text":
        return width
    if read.model_type == "nemotron_h":
        return read.whole("moe_shared_expert_intermediate_size", default=7688)
    if read.model_type == "ernie4_5_moe":
        if read.values.get("moe_num_shared_experts") == 0:
            return 0
        return width * read.whole("moe_num_shared_experts", default=2, most=MOST_HEADS)
    if read.model_type in _PARTLY_DENSE:
        default = 2 if read.model_type == "deepseek_v2" else 1
        return width * read.whole("n_shared_experts", default=default, most=MOST_HEADS)
    return 0


def _expert_groups(read: _Config) -> int:
    """Groups of experts of which the best are chosen first; 0: no groups."""
    match read.model_type:
        case "deepseek_v2":
            grouped = read.text("topk_method", default="greedy") == "group_limited_greedy"
            return read.whole("n_group") if grouped else 0
        case "deepseek_v3" | "glm4_moe" | "glm4_moe_lite" | "nemotron_h":
            return read.whole("n_group", default=8 if read.model_type == "deepseek_v3" else 1)
        case _:
            return 0


def _mlp_layer_types(read: _Config, layers: int) -> tuple[str, ...]:
    """Which layers have one MLP, where not all have experts."""
    if read.model_type == "llama4_text":
        return _interleaved(read, layers)
    if read.model_type not in _PARTLY_DENSE:
        return ()
    if read.model_type == "glm4_moe_lite":
        return _listed_mlps(read, layers)
    if read.model_type == "ernie4_5_moe":
        return _ernie_mlps(read, layers)
    dense = read.values.get("first_k_dense_replace")
    if dense is None:
        dense = {"deepseek_v2": 0, "deepseek_v3": 3}.get(read.model_type, 1)
    if isinstance(dense, bool) or not isinstance(dense, int) or not 0 <= dense <= MOST_LAYERS:
        raise InputError(
            f"first_k_dense_replace must be a whole number from 0, not {_show(dense)}; "
            "correct it in the config."
        )
    return tuple(DENSE if layer < dense else "sparse" for layer in range(layers)) if dense else ()


def _listed_mlps(read: _Config, layers: int) -> tuple[str, ...]:
    """GLM-4.7 Flash names each; by its class's default the first has one MLP."""
    listed = read.items("mlp_layer_types", layers) or (DENSE, *["sparse"] * (layers - 1))
    for kind in listed:
        if kind not in (DENSE, "sparse"):
            raise InputError(
                f'mlp_layer_types must hold "{DENSE}" and "sparse" only, not {_show(kind)}; correct it in the config.'
            )
    return tuple(map(str, listed)) if DENSE in listed else ()


def _ernie_mlps(read: _Config, layers: int) -> tuple[str, ...]:
    """ERNIE 4.5: experts from one layer to another, every so many."""
    every = read.whole("moe_layer_interval", default=1, most=MOST_LAYERS)
    first, last = (
        read.values.get(name, default)
        for name, default in (("moe_layer_start_index", 1), ("moe_layer_end_index", -1))
    )
    for name, value in (("moe_layer_start_index", first), ("moe_layer_end_index", last)):
        if type(value) is not int or not -1 <= value <= MOST_LAYERS:
            raise InputError(
                f"{name} must be a whole number, a layer, not {_show(value)}; correct it in the config."
            )
    assert isinstance(first, int)
    assert isinstance(last, int)
    last = layers - 1 if last == -1 else last
    kinds = tuple(
        "sparse" if (layer + 1) % every == 0 and first <= layer <= last else DENSE
        for layer in range(layers)
    )
    return kinds if DENSE in kinds else ()


def _interleaved(read: _Config, layers: int) -> tuple[str, ...]:
    """Llama 4's layers with experts: those listed, or the last of every so many."""
    every = read.whole("interleave_moe_layer_step", default=1, most=MOST_LAYERS)
    listed = read.values.get("moe_layers")
    if listed is None:
        sparse = set(range(every - 1, layers, every))
    elif isinstance(listed, list | tuple) and all(type(index) is int for index in listed):
        sparse = {index for index in listed if index in range(layers)}
    else:
        raise InputError(
            f"moe_layers must list whole numbers, the layers with experts, not {_show(listed)}; "
            "correct it in the config."
        )
    if len(sparse) == layers:
        return ()
    return tuple("sparse" if layer in sparse else DENSE for layer in range(layers))


_WITHOUT_EXPERTS: dict[str, object] = {"mlp_only_layers": [], "decoder_sparse_step": 1}
_CHANGES_THE_INPUT: dict[str, object] = {"router_jitter_noise": 0}


def _check_experts(read: _Config) -> None:
    """Refuse what no published model of these families has: layers without experts, noise."""
    keys = _CHANGES_THE_INPUT
    if (
        read.model_type == "phimoe"
    ):  # its router's noise decides only which experts are near the best
        keys = {"num_experts_per_tok": 2}
        if _is_tied(read, _Defaults()) and read.flag("lm_head_bias", default=False):
            raise TIED_HEAD_WITH_BIAS()
    if read.model_type == "llama4_text":
        _check_llama4(read)
    if read.model_type == "ernie4_5_moe" and read.flag("use_bias", default=False):
        raise HEAD_WITH_BIAS()
    if read.model_type in {"qwen2_moe", "qwen3_moe", "qwen3_next"}:
        keys = _CHANGES_THE_INPUT | _WITHOUT_EXPERTS
    for name, only in keys.items():
        value = read.values.get(name)
        if value is not None and value != only:
            raise KEY_NOT_MODELLED(
                name=name,
                value=_show(value),
                model_type=read.model_type,
                instead=_show(only),
            )


def _check_llama4(read: _Config) -> None:
    """Refuse what neither Scout nor Maverick has."""
    if not read.values.get("attn_temperature_tuning", True):  # once the number 4
        raise KEY_NOT_MODELLED(
            name="attn_temperature_tuning", value="false", model_type="llama4_text", instead="true"
        )
    if read.flag("output_router_logits", default=False):
        raise KEY_NOT_MODELLED(
            name="output_router_logits", value="true", model_type="llama4_text", instead="false"
        )
    if "attention_chunk_size" in read.values and read.values["attention_chunk_size"] is None:
        # transformers 5.23, masking_utils.py, create_chunked_causal_mask
        raise NO_CHUNK_SIZE()


def _lfm2_layers(read: _Config, layers: int) -> tuple[str, ...]:
    """Which layers attend and which have a short convolution: named one by one, or those that attend by number."""
    for name, only in (("conv_bias", False), ("conv_L_cache", SHORT_FILTER)):
        if read.values.get(name, only) != only:
            raise KEY_NOT_MODELLED(
                name=name, value=_show(read.values[name]), model_type="lfm2", instead=_show(only)
            )
    listed = read.items("layer_types", layers)
    attending = read.values.get("full_attn_idxs")
    if not listed and isinstance(attending, list | tuple):
        listed = tuple(FULL if layer in attending else CONVOLUTION for layer in range(layers))
    for kind in listed:
        if kind not in (FULL, CONVOLUTION):
            raise InputError(
                f'layer_types must hold "{FULL}" and "{CONVOLUTION}" only, not {_show(kind)}; correct it in the config.'
            )
    return tuple(map(str, listed)) if CONVOLUTION in listed else ()


def _hybrid_layers(read: _Config, layers: int) -> tuple[str, ...]:
    """Which layers attend and which have a mixer; all have one where nothing is said."""
    name = "layer_types" if read.has("layer_types") else "layers_block_type"
    listed = read.items(name, layers) or (LINEAR_ATTENTION,) * layers
    # as layers were called before transformers 5 (configuration_utils.py, _LEGACY_LAYER_TYPE_REMAP)
    kinds = tuple({"mamba": LINEAR_ATTENTION, "attention": FULL}.get(str(it), it) for it in listed)
    for kind in kinds:
        if kind not in (FULL, LINEAR_ATTENTION):
            raise InputError(
                f'{name} must hold "{FULL}" and "{LINEAR_ATTENTION}" only, not {_show(kind)}; correct it in the '
                "config."
            )
    return tuple(map(str, kinds)) if LINEAR_ATTENTION in kinds else ()


def _nemotron_layers(read: _Config) -> tuple[str, ...]:
    """The mixer of every layer, by letters or by name; the list says how many layers there are.

    Source: transformers 5.23, models/nemotron_h/configuration_nemotron_h.py, ``__post_init__``.
    """
    name = read.has("layer_types", "layers_block_type")
    listed = read.values[name] if name else read.text("hybrid_override_pattern", default="")
    kinds = {"M": LINEAR_ATTENTION, "E": EXPERTS, "*": FULL, "-": MLP}
    kinds |= {"mamba": LINEAR_ATTENTION, "attention": FULL} | {it: it for it in kinds.values()}
    if not isinstance(listed, list | tuple | str) or not 0 < len(listed) <= MOST_LAYERS:
        raise InputError(
            "the nemotron_h config says nothing of its layers; add hybrid_override_pattern, a letter of M, *, - or E "
            "for each."
        )
    for kind in listed:
        if kind not in kinds:
            raise InputError(
                f'{name or "hybrid_override_pattern"} must hold "{LINEAR_ATTENTION}", "{FULL}", "{MLP}" and '
                f'"{EXPERTS}" or their letters M, *, - and E only, not {_show(kind)}; correct it in the config.'
            )
    return tuple(kinds[str(kind)] for kind in listed)


def _nemotron_state_space(read: _Config) -> StateSpace:
    """Mamba 2's sizes, by the names that Nemotron-H gives them, and those that it once gave them."""
    for name, only in (("mamba_hidden_act", "silu"), ("moe_latent_size", None)):
        if read.values.get(name, only) != only:
            raise KEY_NOT_MODELLED(
                name=name,
                value=_show(read.values[name]),
                model_type="nemotron_h",
                instead=_show(only),
            )
    bias = read.flag("use_bias", default=False)
    old_bias = read.flag("mamba_conv_bias", default=True)
    return StateSpace(
        heads=read.whole("mamba_num_heads", default=128, most=MOST_HEADS),
        head_dim=read.whole("mamba_head_dim", default=64),
        state_size=read.whole("ssm_state_size", default=128),
        groups=read.whole("mamba_n_groups", "n_groups", default=8, most=MOST_HEADS),
        chunk_size=read.whole("mamba_chunk_size", "chunk_size", default=128),
        conv_kernel=read.whole("mamba_d_conv", "conv_kernel", default=4, most=MOST_HEADS),
        conv_bias=old_bias and read.flag("use_conv_bias", default=True),
        in_bias=bias,
        out_bias=bias,
    )


def _state_space(read: _Config, hidden: int) -> StateSpace:
    """Mamba 2's sizes, by the names that Granite and Falcon-H1 give them.

    Source: transformers 5.23, models/granitemoehybrid/configuration_granitemoehybrid.py and
    models/falcon_h1/configuration_falcon_h1.py.
    """
    if read.model_type == "nemotron_h":
        return _nemotron_state_space(read)
    if read.text("hidden_act", default="silu") != "silu":
        raise KEY_NOT_MODELLED(
            name="hidden_act",
            value=_show(read.values["hidden_act"]),
            model_type=read.model_type,
            instead="silu",
        )
    is_falcon = read.model_type == "falcon_h1"
    width = read.whole("mamba_expand", default=2, most=MOST_HEADS) * hidden
    if is_falcon and read.values.get("mamba_d_ssm", 1024) is not None:
        width = read.whole("mamba_d_ssm", default=1024)
    heads = read.whole("mamba_n_heads", default=128, most=MOST_HEADS)
    if read.values.get("mamba_d_head", "auto") == "auto":
        head_dim = width // heads
    else:
        head_dim = read.whole("mamba_d_head")
    if heads * head_dim != width:
        raise InputError(
            f"mamba_n_heads {heads} heads of {head_dim} are not the {width} that "
            f"{'mamba_d_ssm' if is_falcon else 'mamba_expand'} asks for; correct one of them in the config."
        )
    bias = read.flag("mamba_proj_bias", default=False)
    return StateSpace(
        heads=heads,
        head_dim=head_dim,
        state_size=read.whole("mamba_d_state", default=256),
        groups=read.whole("mamba_n_groups", default=1, most=MOST_HEADS),
        chunk_size=read.whole("mamba_chunk_size", default=256),
        conv_kernel=read.whole("mamba_d_conv", default=4, most=MOST_HEADS),
        conv_bias=read.flag("mamba_conv_bias", default=True),
        in_bias=bias,
        out_bias=read.flag("projectors_bias", default=False) if is_falcon else bias,
        is_normed=not is_falcon or read.flag("mamba_rms_norm", default=False),
        norm_before_gate=is_falcon and read.flag("mamba_norm_before_gate", default=True),
    )


def _delta_net_layers(read: _Config, layers: int) -> tuple[str, ...]:
    """Which layers attend and which have a gated delta-net: named one by one, or every so many attends."""
    listed = read.items("layer_types", layers)
    if not listed:
        every = read.whole("full_attention_interval", default=4, most=MOST_LAYERS)
        listed = tuple(
            LINEAR_ATTENTION if layer % every else FULL for layer in range(1, layers + 1)
        )
    for kind in listed:
        if kind not in (FULL, LINEAR_ATTENTION):
            raise InputError(
                f'layer_types must hold "{FULL}" and "{LINEAR_ATTENTION}" only, not {_show(kind)}; correct it in the '
                "config."
            )
    return tuple(map(str, listed)) if LINEAR_ATTENTION in listed else ()


def _windows(read: _Config, family: _Defaults, layers: int) -> _Windows:
    """The window, and the layers that have it or have no rotary embedding."""
    if read.model_type == "nemotron_h":
        kinds = _nemotron_layers(read)
        return {"sliding_window": 0, "layer_types": kinds, "no_rope_layers": ()}
    if read.model_type == "granitemoehybrid":
        turned = read.values.get("position_embedding_type") == "rope"
        return {
            "sliding_window": 0,
            "layer_types": _hybrid_layers(read, layers),
            "no_rope_layers": () if turned else (True,) * layers,
        }
    if read.model_type == "lfm2":
        return {
            "sliding_window": 0,
            "layer_types": _lfm2_layers(read, layers),
            "no_rope_layers": (),
        }
    if read.model_type in _DELTA_NETS:
        return {
            "sliding_window": 0,
            "layer_types": _delta_net_layers(read, layers),
            "no_rope_layers": (),
        }
    window = _window_size(read, family)
    kinds = _layer_types(read, family, layers, window)
    windowed = SLIDING in kinds
    rotary = _rotary_layers(read, kinds, window)
    return {
        "sliding_window": window if windowed else 0,
        "layer_types": kinds if windowed and FULL in kinds else (),
        "no_rope_layers": () if all(rotary) else tuple(not has for has in rotary),
    }


def _window_size(read: _Config, family: _Defaults) -> int:
    if read.model_type not in _WINDOWED:
        return 0
    if read.model_type in _SWITCHED_WINDOW and not read.flag("use_sliding_window", default=False):
        return 0
    if read.model_type == "llama4_text":
        return read.whole("attention_chunk_size", default=family.sliding_window)
    default = 0 if "sliding_window" in read.values else family.sliding_window or 0
    window = read.whole("sliding_window", default=default)
    # Gemma3TextConfig.__post_init__: a token sees half of it on either side
    return window // 2 + 1 if window and _sees_both_ways(read) else window


def _layer_types(read: _Config, family: _Defaults, layers: int, window: int) -> tuple[str, ...]:
    if read.model_type not in _WINDOWED or not window:
        return (FULL,) * layers
    if read.model_type in _ALL_WINDOWED:
        return (SLIDING,) * layers
    listed = read.items("layer_types", layers)
    if read.model_type == "llama4_text":
        listed = tuple(SLIDING if kind == CHUNKED else kind for kind in listed)
    if listed:
        for kind in listed:
            if kind not in (FULL, SLIDING):
                raise InputError(
                    f'layer_types must hold "{FULL}" and "{SLIDING}" only, not {_show(kind)}; '
                    "correct it in the config."
                )
        return _with_last(read, tuple(str(kind) for kind in listed))
    if read.model_type == "smollm3":
        return tuple(FULL if rotary else SLIDING for rotary in _listed_rotary(read, layers))
    if read.model_type == "llama4_text":
        return tuple(SLIDING if rotary else FULL for rotary in _listed_rotary(read, layers))
    if family.sliding_pattern:
        return _with_last(read, _patterned(read, family.sliding_pattern, layers))
    first = read.values.get("max_window_layers", 28)  # Qwen2Config, Qwen2MoeConfig and Qwen3Config
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise InputError(
            f"max_window_layers must be a whole number from 0, not {_show(first)}; "
            "correct it in the config."
        )
    if read.model_type == "qwen2_moe":  # Qwen2MoeConfig: every other layer below that one
        return tuple(
            SLIDING if layer % 2 == 0 and layer < first else FULL for layer in range(layers)
        )
    return tuple(SLIDING if layer >= first else FULL for layer in range(layers))


def _with_last(read: _Config, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Gemma 4's last layer sees everything, whatever is listed: ``Gemma4TextConfig.__post_init__``."""
    return (*kinds[:-1], FULL) if read.model_type == "gemma4_text" else kinds


def _patterned(read: _Config, default: int, layers: int) -> tuple[str, ...]:
    pattern = read.values.get("sliding_window_pattern")
    if read.model_type == "exaone4" and isinstance(pattern, str) and set(pattern) == {"L", "G"}:
        return tuple(
            SLIDING if pattern[layer % len(pattern)] == "L" else FULL for layer in range(layers)
        )
    if read.model_type in {
        "gemma2",
        "gemma3n_text",
        "gemma4_text",
        "gpt_oss",
        "olmo3",
    }:  # the class reads no such key
        every = default
    else:
        every = read.whole("sliding_window_pattern", default=default, most=MOST_LAYERS)
    return tuple(SLIDING if layer % every else FULL for layer in range(1, layers + 1))


def _rotary_layers(read: _Config, kinds: tuple[str, ...], window: int) -> tuple[bool, ...]:
    match read.model_type:
        case "smollm3" | "llama4_text":
            return _listed_rotary(read, len(kinds))
        case "cohere2":  # modeling_cohere2.py: `if self.sliding_window is not None`
            return tuple(kind == SLIDING for kind in kinds)
        case "exaone4" if window:  # modeling_exaone4.py: `or self.is_sliding`
            return tuple(kind == SLIDING for kind in kinds)
        case "falcon":
            return (not read.flag("alibi", default=False),) * len(kinds)
        case _:
            return (True,) * len(kinds)


def _listed_rotary(read: _Config, layers: int) -> tuple[bool, ...]:
    """``no_rope_layers`` says 1 where a layer *has* rotary embeddings; an empty list says nothing."""
    listed = read.items("no_rope_layers", layers) if read.values.get("no_rope_layers") else ()
    if listed:
        for item in listed:
            if item not in (0, 1):
                raise InputError(
                    f"no_rope_layers must hold 0 and 1 only, not {_show(item)}; "
                    "correct it in the config."
                )
        return tuple(bool(item) for item in listed)
    every = read.whole("no_rope_layer_interval", default=4, most=MOST_LAYERS)
    return tuple(layer % every != 0 for layer in range(1, layers + 1))


def _per_layer(read: _Config, kinds: tuple[str, ...], sizes: _Sizes) -> _PerLayer:
    """Gemma 4: what differs between its layers; all 0 elsewhere."""
    if read.model_type not in {"gemma3n_text", "gemma4_text"}:
        return {
            "global_head_dim": 0,
            "num_global_key_value_heads": 0,
            "attention_k_eq_v": False,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        }
    _check_gemma4(read, kinds)
    if read.model_type == "gemma3n_text":
        return _of_gemma3n(read, kinds)
    same = read.flag("attention_k_eq_v", default=False)
    width = read.values.get("hidden_size_per_layer_input", 256)
    has_inputs = width is not None and width != 0
    head_dim, heads = _global_heads(read, kinds, gated=same)
    return {
        "global_head_dim": 0 if head_dim == sizes["head_dim"] else head_dim,
        "num_global_key_value_heads": 0 if heads == sizes["num_key_value_heads"] else heads,
        "attention_k_eq_v": same,
        "num_kv_shared_layers": _shared_layers(read, kinds),
        "use_double_wide_mlp": read.flag("use_double_wide_mlp", default=False),
        "hidden_size_per_layer_input": (
            read.whole("hidden_size_per_layer_input", default=256) if has_inputs else 0
        ),
        "vocab_size_per_layer_input": (
            read.whole("vocab_size_per_layer_input", default=262_144) if has_inputs else 0
        ),
    }


def _jitters_input(read: _Config) -> bool:
    return read.model_type == "phimoe" and read.share("input_jitter_noise") > 0


def _of_gemma3n(read: _Config, kinds: tuple[str, ...]) -> _PerLayer:
    return {
        "global_head_dim": 0,
        "num_global_key_value_heads": 0,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": _shared_layers(read, kinds),
        "use_double_wide_mlp": False,
        "hidden_size_per_layer_input": read.whole("hidden_size_per_layer_input", default=256),
        "vocab_size_per_layer_input": read.whole("vocab_size_per_layer_input", default=262_144),
    }


class _Streams(TypedDict):
    altup_num_inputs: int
    laurel_rank: int
    cut_layers: int


def _streams(read: _Config, layers: int) -> _Streams:
    """Gemma 3n: AltUp's streams, LAuReL's rank, and the first layers, whose gates are cut; all 0 elsewhere."""
    if read.model_type != "gemma3n_text":
        return {"altup_num_inputs": 0, "laurel_rank": 0, "cut_layers": 0}
    for name, only in (("altup_active_idx", 0), ("altup_correct_scale", True)):
        if read.values.get(name, only) != only:
            raise KEY_NOT_MODELLED(
                name=name,
                value=_show(read.values[name]),
                model_type="gemma3n_text",
                instead=_show(only),
            )
    if read.values.get("altup_coef_clip", 120.0) is None:
        raise KEY_NOT_MODELLED(
            name="altup_coef_clip", value="null", model_type="gemma3n_text", instead=120.0
        )
    # Gemma3nTextConfig.__post_init__: the first ten layers, if there are more
    cut = 10 if layers > 10 else 0
    shares = read.values.get("activation_sparsity_pattern", [0.95] * cut + [0.0] * (layers - cut))
    if not isinstance(shares, list | tuple) or len(shares) != layers:
        raise InputError(
            f"activation_sparsity_pattern must list a share for each of the {layers} layers; correct it in the config."
        )
    is_cut = [share != 0 for share in shares]
    if sorted(is_cut, reverse=True) != is_cut:
        raise InputError(
            "activation_sparsity_pattern is modelled where the first layers are cut and the others not; correct it in "
            "the config."
        )
    return {
        "altup_num_inputs": read.whole("altup_num_inputs", default=4, most=MOST_HEADS),
        "laurel_rank": read.whole("laurel_rank", default=64),
        "cut_layers": sum(is_cut),
    }


def _check_gemma4(read: _Config, kinds: tuple[str, ...]) -> None:
    if read.values.get("use_bidirectional_attention") == "all":
        raise KEY_NOT_MODELLED(
            name="use_bidirectional_attention",
            value='"all"',
            model_type="gemma4_text",
            instead="null",
        )
    if (
        read.values.get("num_kv_shared_layers")
        and read.values.get("hidden_size_per_layer_input", 256) == 0
    ):
        # modeling_gemma4.py, _maybe_slice_kv_shared_inputs slices the layers' own embeddings, which are None then
        raise SHARED_WITHOUT_PER_LAYER_INPUT()
    if not kinds:
        raise ONE_KIND_OF_LAYER(model_type=read.model_type)


def _global_heads(read: _Config, kinds: tuple[str, ...], *, gated: bool) -> tuple[int, int]:
    """Of layers without a window the width of a head, and the key-value heads; 0: as in the others.

    Configs that transformers 5.23 has saved name them layer by layer.
    """
    named = read.part("per_layer_config").values
    if not named:
        heads = read.whole("num_global_key_value_heads", default=0, most=MOST_HEADS) if gated else 0
        return read.whole("global_head_dim", default=512), heads
    # saved with leading zeros, so that the keys sort: "05" of 30 layers
    keys = {int(name): name for name in named if name.isdecimal() and len(name) <= len("4096")}
    of_global = [named.get(keys.get(layer, "")) for layer, kind in enumerate(kinds) if kind == FULL]
    first = of_global[0]
    if first is None or len(named) != len(of_global) or any(it != first for it in of_global):
        raise LAYERS_OF_THEIR_OWN()
    own = read.part("per_layer_config").part(keys[kinds.index(FULL)])
    unknown = sorted(own.values.keys() - {"head_dim", "num_key_value_heads"})
    if unknown:
        raise CHANGED_BY_LAYER(name=unknown[0])
    return (
        own.whole("head_dim", default=0),
        own.whole("num_key_value_heads", default=0, most=MOST_HEADS),
    )


def _shared_layers(read: _Config, kinds: tuple[str, ...]) -> int:
    """How many last layers share; of each type they need one before them that has keys and values."""
    default = 15 if read.model_type == "gemma3n_text" else 0
    if read.values.get("num_kv_shared_layers", default) in (None, 0):
        return 0
    shared = read.whole("num_kv_shared_layers", default=default, most=len(kinds))
    if set(kinds[: len(kinds) - shared]) != set(kinds):
        raise NO_LAYER_TO_SHARE(shared=shared)
    return shared


def _dropouts(read: _Config) -> _Dropouts:
    """Dropout of the embeddings, of the attention weights, of what joins the residual."""
    match read.model_type:
        case "gpt2" | "gpt_bigcode":
            embedding, attention, residual = _shares(read, _PDROP, default=0.1)
        case "gptj":
            embedding, attention, residual = _shares(read, _PDROP, default=0.0)
        case "phi":
            embedding, attention, residual = _shares(
                read, ("embd_pdrop", "attention_dropout", "resid_pdrop"), default=0.0
            )
        case "gpt_neox":
            embedding, attention, residual = _shares(
                read, ("hidden_dropout", "attention_dropout", "hidden_dropout"), default=0.0
            )
        case "starcoder2":
            embedding, attention, residual = _shares(
                read, ("embedding_dropout", "attention_dropout", "residual_dropout"), default=0.0
            )
        case "mpt":  # modeling_mpt.py takes the attention's for the MLP too
            attention = residual = read.part(MPT_ATTENTION).share("attn_pdrop")
            embedding = 0.0
        case "opt":
            embedding, attention = 0.0, read.share("attention_dropout")
            residual = read.share("dropout", default=0.1)
        case "seed_oss":
            embedding, attention = 0.0, read.share("attention_dropout", default=0.1)
            residual = read.share("residual_dropout", default=0.1)
        case "bloom" | "falcon" | "stablelm":
            embedding, attention = 0.0, read.share("attention_dropout")
            residual = read.share("hidden_dropout")
        case "phi3":
            embedding, attention = 0.0, read.share("attention_dropout")
            residual = read.share("resid_pdrop")
        case _:
            embedding, attention, residual = 0.0, read.share("attention_dropout"), 0.0
    return {"embd_pdrop": embedding, "attn_pdrop": attention, "resid_pdrop": residual}


def _shares(
    read: _Config, names: tuple[str, str, str], *, default: float
) -> tuple[float, float, float]:
    first, second, third = names
    return (
        read.share(first, default=default),
        read.share(second, default=default),
        read.share(third, default=default),
    )

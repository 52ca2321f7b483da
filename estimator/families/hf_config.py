"""Converts a Hugging Face ``config.json`` object to a ``Model``.

Missing keys take the default of the family's config class (transformers 5.23, ``models/*/configuration_*.py``), as in
``from_pretrained``. A config without the dimensions that set its size is refused, unless the Hub's own files omit them
(Gemma 3). No I/O and no guessing: unreadable values raise a ``ValueError`` that names the key and says what to change.
Rules specific to a family are in its ``ConfigClass``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from estimator.families.config_class import ConfigClass, ExpertKeys, WindowKeys
from estimator.families.config_keys import SENSITIVE, is_sensitive, unread
from estimator.families.config_rules import patterned
from estimator.families.layer_kinds import CHUNKED, DENSE, FULL_ATTENTION, SLIDING
from estimator.families.reader import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    Config,
    WatchedConfig,
    kinds_in,
    refuse_others,
    short,
)
from estimator.families.registry import FAMILIES, MODELLED, check_modelled
from estimator.values.refusals import InputError, show
from estimator.values.specs import Model


def text_parts() -> Mapping[str, str]:
    """Multimodal wrappers, and the model_type of their ``text_config`` if it names none.

    For these, and any other wrapper that names a modelled type, the text part is estimated and the towers left out.
    """
    return {
        wrapper: family.model_type
        for family in FAMILIES.values()
        for wrapper in family.config.wrappers
    }


def model_from_config(config: Mapping[str, object], hub_id: str = "") -> Model:
    """The model of a ``config.json`` object; sizes in elements, whole model.

    For multimodal models, the text part. Quantisation and generation keys are ignored.

    Source: transformers 5.23 models/<model_type>/configuration_<model_type>.py, defaults and ``__post_init__``.

    >>> model_from_config({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12,
    ...                    "n_head": 12, "n_positions": 1024}).intermediate_size == 4 * 768
    True
    """
    return _model(_text_part(config), hub_id)


def ignored_keys(config: Mapping[str, object]) -> tuple[str, ...]:
    """A sentence for each key that was not read and may matter.

    Source: the tables of ``config_keys``.

    >>> ignored_keys({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
    ...               "n_positions": 1024, "use_cache": True, "n_experts": 8})
    ("The config's key n_experts is not known here and was ignored.",)
    """
    read, asked = _text_part(config), set[str]()
    _model(replace(read, values=WatchedConfig(read.values, asked)))
    given = dict(read.values)
    inside = FAMILIES[read.model_type].config.nested
    nested = given.pop(inside, None) if inside else None
    if isinstance(nested, Mapping):
        inner = unread(nested, (), read.model_type)  # it is a separate config, with the common keys
        given |= {f"{inside}.{key}": nested[key] for key in inner}
    return tuple(
        f"The config's {key} is {short(given[key])}, which {SENSITIVE[key].effect}."
        if is_sensitive(key, read.model_type)
        else f"The config's key {_named(key)} is not known here and was ignored."
        for key in unread(given, asked, read.model_type)
    )


def _named(key: object) -> str:
    """A key as it is if it is a word; anything else quoted and shortened."""
    is_word = isinstance(key, str) and len(key) <= 60 and key.replace(".", "").isidentifier()
    return str(key) if is_word else show(key)


def _model(read: Config, hub_id: str = "") -> Model:
    family = FAMILIES[read.model_type].config
    fields: dict[str, Any] = _sizes(read, family)
    layers = fields["num_hidden_layers"]
    positions = _positions(read, family)
    fields |= {
        "tie_word_embeddings": family.tied is not None
        and read.flag("tie_word_embeddings", default=family.tied),
        "max_position_embeddings": positions,
        "hidden_act": (
            read.text(family.activation_key, default=family.hidden_act)
            if family.activation_key
            else family.hidden_act
        ),
        "learned_positions": (
            0 if family.position_offset is None else positions + family.position_offset
        ),
        "partial_rotary_factor": _partial_rotary_factor(read, family),
        "num_ln_in_parallel_attn": read.whole("num_ln_in_parallel_attn", default=2, most=2),
        **_biases(read, family),
        **_windows(read, family, layers),
        **_dropouts(read, family),
    }
    if family.softcaps:
        attention, final = family.softcaps
        fields["attn_logit_softcapping"] = read.cap("attn_logit_softcapping", attention)
        fields["final_logit_softcapping"] = read.cap("final_logit_softcapping", final)
    if family.experts:
        fields |= _experts(read, family.experts, layers)
    fields |= family.fixed
    fields |= {
        name: read.flag(key, default=default) for name, (key, default) in family.flags.items()
    }
    if family.own:
        fields |= family.own(read, fields)
    return Model(model_type=read.model_type, hub_id=hub_id, **fields)


def _text_part(config: Mapping[str, object]) -> Config:
    if not isinstance(config, Mapping):
        raise InputError(f"a config must be an object of keys and values, not {short(config)}.")
    model_type = config.get("model_type")
    if model_type is None:
        raise InputError(
            "the config has no model_type; give a complete config.json from the Hub, of one of the "
            f"{len(MODELLED)} modelled architectures: llama, mistral, qwen3 and others."
        )
    if not isinstance(model_type, str):
        raise InputError(f"model_type must be a name, not {short(model_type)}; correct the config.")
    if "text_config" in config:
        return _text_part(_unwrapped(config, model_type))
    same = {
        name: family.model_type
        for family in FAMILIES.values()
        for name in (*family.config.aliases, *family.config.flat_wrappers)
    }
    model_type = same.get(model_type, model_type)
    check_modelled(model_type)
    return Config(config, model_type)


def _unwrapped(config: Mapping[str, object], wrapper: str) -> Mapping[str, object]:
    """The ``text_config`` of a wrapper, with what its class fills in."""
    given = Config(config, wrapper).part("text_config").values
    inner = dict(
        given
    )  # a null is a value: Mistral Small's sliding_window is none, not the class's 4,096
    part, own = text_parts().get(wrapper), f"{wrapper}_text"
    is_alias = part is not None and own in FAMILIES[part].config.aliases
    for name, default in (
        ("model_type", own if is_alias else part),
        ("tie_word_embeddings", config.get("tie_word_embeddings")),
    ):
        if inner.get(name) is None:
            inner[name] = default
    if inner["model_type"] is None:
        check_modelled(wrapper)
    named = FAMILIES.get(str(part if inner["model_type"] == own else inner["model_type"]))
    filled = named.config.nested_sizes if named else {}
    return {**inner, **{name: size for name, size in filled.items() if inner.get(name) is None}}


def _sizes(read: Config, family: ConfigClass) -> dict[str, Any]:
    fallback = family.sizes
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
        "intermediate_size": _intermediate_size(read, family, hidden),
        "num_hidden_layers": family.layers(read)
        if family.layers
        else read.whole("num_hidden_layers", "n_layer", "n_layers", most=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(read, family, heads),
        "head_dim": _head_dim(read, family, hidden, heads),
    }


def _intermediate_size(read: Config, family: ConfigClass, hidden: int) -> int:
    if family.width:
        return family.width(read, hidden)
    if family.mlp_ratio:
        return family.mlp_ratio * hidden
    return read.whole("intermediate_size", default=family.sizes.get("intermediate_size"))


def _key_value_heads(read: Config, family: ConfigClass, heads: int) -> int:
    if family.one_head_each:
        return heads
    if family.key_value_heads_of:
        return family.key_value_heads_of(read, heads)
    absent = "num_key_value_heads" not in read.values
    default = family.key_value_heads if absent and family.key_value_heads else heads
    return read.whole("num_key_value_heads", default=default, most=MOST_HEADS)


def _head_dim(read: Config, family: ConfigClass, hidden: int, heads: int) -> int:
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


def _positions(read: Config, family: ConfigClass) -> int:
    default = family.sizes.get("max_position_embeddings", 0)
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    if family.position_offset is not None:  # the rows of a table: needed
        return read.whole(*reversed(names[:2]), *names[2:])
    if not (default or read.has(*names)):
        return 0
    return read.whole(*names, default=default, most=MOST_POSITIONS)


def _partial_rotary_factor(read: Config, family: ConfigClass) -> float:
    named = str(read.values.get("model_type"))
    default = family.alias_rotary_factors.get(named, family.partial_rotary_factor)
    if default is None:
        return 1.0
    key = "partial_rotary_factor"
    nested = read.part("rope_parameters").share(key, default=default)
    return read.share(key, default=nested)


def _biases(read: Config, family: ConfigClass) -> dict[str, bool]:
    attention, output, mlp = family.biases(read)
    return {"attention_bias": attention, "attention_output_bias": output, "mlp_bias": mlp}


def _dropouts(read: Config, family: ConfigClass) -> dict[str, float]:
    names = ("embd_pdrop", "attn_pdrop", "resid_pdrop")
    return {
        name: read.share(dropout[0], default=dropout[1]) if dropout else 0.0
        for name, dropout in zip(names, family.dropouts, strict=True)
    }


def _experts(read: Config, keys: ExpertKeys, layers: int) -> dict[str, Any]:
    """Number of experts, experts per token, and width; nothing if every layer has a dense MLP."""
    there = keys.are_there(read) if keys.are_there else read.values.get("num_local_experts") != 0
    if not there:
        return {}
    if keys.check:
        keys.check(read)
    refuse_others(read, keys.only)
    width = read.whole("moe_intermediate_size" if keys.have_own_width else "intermediate_size")
    return {
        "num_experts": read.whole(
            "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"
        ),
        "num_experts_per_tok": read.whole("num_experts_per_tok", "moe_k", "top_k_experts"),
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": keys.shared_width(read, width)
        if keys.shared_width
        else 0,
        "norm_topk_prob": keys.always_normed or read.flag("norm_topk_prob", default=keys.normed),
        "output_router_logits": read.flag("output_router_logits", default=False),
        "expert_groups": keys.groups(read) if keys.groups else 0,
        "mlp_layer_types": _mixed(keys.layer_types(read, layers)) if keys.layer_types else (),
    }


def _mixed(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """None, if all layers have experts."""
    return kinds if DENSE in kinds else ()


def _windows(read: Config, family: ConfigClass, layers: int) -> dict[str, Any]:
    """The window, and the layers that have it or have no rotary embedding."""
    if family.mixers:
        return {"layer_types": family.mixers(read, layers)}
    window = _window_size(read, family.windows)
    kinds = _layer_types(read, family.windows, layers, window)
    windowed = SLIDING in kinds
    turned = family.rotary_layers(read, kinds, window) if family.rotary_layers else (True,)
    return {
        "sliding_window": window if windowed else 0,
        "layer_types": kinds if windowed and FULL_ATTENTION in kinds else (),
        "no_rope_layers": () if all(turned) else tuple(not has for has in turned),
    }


def _window_size(read: Config, keys: WindowKeys | None) -> int:
    if keys is None:
        return 0
    if keys.is_switched and not read.flag("use_sliding_window", default=False):
        return 0
    if keys.size:
        return keys.size(read)
    default = 0 if "sliding_window" in read.values else keys.default
    window = read.whole("sliding_window", default=default)
    return keys.seen(read, window) if keys.seen else window


def _layer_types(
    read: Config, keys: WindowKeys | None, layers: int, window: int
) -> tuple[str, ...]:
    if keys is None or not window:
        return (FULL_ATTENTION,) * layers
    if keys.everywhere:
        return (SLIDING,) * layers
    listed = read.items("layer_types", layers)
    if FAMILIES[read.model_type].has_chunks:
        listed = tuple(SLIDING if kind == CHUNKED else kind for kind in listed)
    if listed:
        kinds = kinds_in(read, "layer_types", listed, (FULL_ATTENTION, SLIDING))
    elif keys.unlisted:
        return keys.unlisted(read, layers)
    else:
        every = keys.pattern
        if not keys.pattern_is_fixed:
            every = read.whole("sliding_window_pattern", default=every, most=MOST_LAYERS)
        kinds = patterned(read, every, layers)
    return (*kinds[:-1], FULL_ATTENTION) if keys.last_is_full else kinds

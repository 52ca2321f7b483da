"""Config rules that several families share; each family's file selects those that apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from estimator.families.layer_kinds import DENSE, FULL_ATTENTION, SLIDING
from estimator.families.reader import MOST_HEADS, MOST_LAYERS, Config, wrong
from estimator.values.refusals import InputError
from estimator.values.specs import StateSpace

Biases = Callable[[Config], tuple[bool, bool, bool]]
"""Biases on query, key and value; on the attention's output; on the MLP."""
LayerTypes = Callable[[Config, int], tuple[str, ...]]


def attention_biases(*, default: bool = False, has_mlp_key: bool = False) -> Biases:
    """``attention_bias`` for all of attention, and ``mlp_bias`` if the class has that key."""

    def biases(read: Config) -> tuple[bool, bool, bool]:
        attention = read.flag("attention_bias", default=default)
        return attention, attention, has_mlp_key and read.flag("mlp_bias", default=False)

    return biases


LLAMA_BIASES = attention_biases()
"""The rule of most families."""


def input_biases(key: str, *, default: bool) -> Biases:
    """A key for queries, keys and values only."""
    return lambda read: (read.flag(key, default=default), False, False)


def one_bias(key: str, *, default: bool) -> Biases:
    """One key for all biases."""
    return lambda read: (read.flag(key, default=default),) * 3


def fixed_biases(attention: bool, output: bool, mlp: bool) -> Biases:
    """Fixed by the class, without a key."""
    return lambda read: (attention, output, mlp)


def patterned(read: Config, every: int, layers: int) -> tuple[str, ...]:
    """Every n-th layer has full attention."""
    return tuple(SLIDING if layer % every else FULL_ATTENTION for layer in range(1, layers + 1))


def listed_rotary(read: Config, kinds: Sequence[str], window: int = 0) -> tuple[bool, ...]:
    """``no_rope_layers`` is 1 where a layer *has* rotary embeddings; an empty list counts as missing."""
    layers = len(kinds)
    listed = read.items("no_rope_layers", layers) if read.values.get("no_rope_layers") else ()
    if listed:
        for item in listed:
            if item not in (0, 1):
                raise wrong("no_rope_layers", "only contain 0 and 1", item)
        return tuple(bool(item) for item in listed)
    every = read.whole("no_rope_layer_interval", default=4, most=MOST_LAYERS)
    return tuple(layer % every != 0 for layer in range(1, layers + 1))


def by_rotary(turned_kind: str, other: str) -> LayerTypes:
    """Kinds of layers with rotary embeddings, and of those without."""

    def kinds(read: Config, layers: int) -> tuple[str, ...]:
        turned = listed_rotary(read, ("",) * layers)
        return tuple(turned_kind if rotary else other for rotary in turned)

    return kinds


def first_dense(default: int) -> LayerTypes:
    """``first_k_dense_replace``: the number of first layers with a dense MLP; the others have experts."""

    def kinds(read: Config, layers: int) -> tuple[str, ...]:
        dense = read.values.get("first_k_dense_replace")
        if dense is None:
            dense = default
        if isinstance(dense, bool) or not isinstance(dense, int) or not 0 <= dense <= MOST_LAYERS:
            raise wrong("first_k_dense_replace", "be a whole number from 0", dense)
        return tuple(DENSE if layer < dense else "sparse" for layer in range(layers))

    return kinds


def several_shared(key: str, default: int) -> Callable[[Config, int], int]:
    """A number of shared experts, each as wide as the routed ones."""
    return lambda read, width: width * read.whole(key, default=default, most=MOST_HEADS)


def shared_width(key: str, default: int | None = None) -> Callable[[Config, int], int]:
    """A width of their own."""
    return lambda read, width: read.whole(key, default=default)


def expert_groups(default: int) -> Callable[[Config], int]:
    """``n_group``: groups of experts, of which the best are chosen first."""
    return lambda read: read.whole("n_group", default=default)


def latent_attention(
    read: Config,
    fields: dict[str, Any],
    defaults: tuple[int, int, int, int, int],
    turned_key: str = "",
) -> dict[str, Any]:
    """Widths of latent attention: q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim.

    ``turned_key``: another name for the rotary part, which takes precedence.
    """
    query, key_value, plain, turned, value = defaults
    names = (turned_key, "qk_rope_head_dim") if turned_key else ("qk_rope_head_dim",)
    direct = "q_lora_rank" in read.values and read.values["q_lora_rank"] is None
    nope = read.whole("qk_nope_head_dim", default=plain)
    rope = read.whole(*names, default=turned)
    return {
        "q_lora_rank": 0 if direct else read.whole("q_lora_rank", default=query),
        "kv_lora_rank": read.whole("kv_lora_rank", default=key_value),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": read.whole("v_head_dim", default=value),
        "head_dim": nope + rope,
        "num_key_value_heads": fields["num_attention_heads"],
    }


def mamba_of_hidden(read: Config, width: int, asked_by: str, **rest: Any) -> StateSpace:
    """Mamba 2's sizes, by Granite's and Falcon-H1's key names; ``rest``: keys in which the two differ.

    Source: transformers 5.23, models/granitemoehybrid/configuration_granitemoehybrid.py and
    models/falcon_h1/configuration_falcon_h1.py.
    """
    heads = read.whole("mamba_n_heads", default=128, most=MOST_HEADS)
    if read.values.get("mamba_d_head", "auto") == "auto":
        head_dim = width // heads
    else:
        head_dim = read.whole("mamba_d_head")
    if heads * head_dim != width:
        raise InputError(
            f"mamba_n_heads {heads} heads of {head_dim} do not give the {width} that {asked_by} requires; correct one "
            f"of "
            "them in the config."
        )
    bias = read.flag("mamba_proj_bias", default=False)
    sizes = {
        "heads": heads,
        "head_dim": head_dim,
        "state_size": read.whole("mamba_d_state", default=256),
        "groups": read.whole("mamba_n_groups", default=1, most=MOST_HEADS),
        "chunk_size": read.whole("mamba_chunk_size", default=256),
        "conv_kernel": read.whole("mamba_d_conv", default=4, most=MOST_HEADS),
        "conv_bias": read.flag("mamba_conv_bias", default=True),
        "in_bias": bias,
        "out_bias": bias,
    }
    return StateSpace(**{**sizes, **rest})


def mamba_width(read: Config, fields: dict[str, Any]) -> int:
    """``mamba_expand`` times the hidden size; refuses activations other than silu."""
    if read.text("hidden_act", default="silu") != "silu":
        raise read.refused("hidden_act", "silu")
    hidden: int = fields["hidden_size"]
    return read.whole("mamba_expand", default=2, most=MOST_HEADS) * hidden

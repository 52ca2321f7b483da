"""Custom models: a known model with other dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from estimator.families.layer_kinds import FULL_ATTENTION
from estimator.families.reader import (
    MOST_ELEMENTS,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
)
from estimator.families.registry import family_of
from estimator.values.kinds import Flag, Kind, WholeNumber, near, one_of
from estimator.values.refusals import InputError, about
from estimator.values.specs import Model

DIMENSIONS: Mapping[str, Kind] = {
    "vocab_size": WholeNumber(MOST_ELEMENTS),
    "hidden_size": WholeNumber(MOST_ELEMENTS),
    "intermediate_size": WholeNumber(MOST_ELEMENTS),
    "num_hidden_layers": WholeNumber(MOST_LAYERS),
    "num_attention_heads": WholeNumber(MOST_HEADS),
    "num_key_value_heads": WholeNumber(MOST_HEADS),
    "head_dim": WholeNumber(MOST_ELEMENTS),
    "max_position_embeddings": WholeNumber(MOST_POSITIONS),
    "tie_word_embeddings": Flag(),
}
"""Dimensions that may differ from the known model, as named in ``config.json``."""

Item = TypeVar("Item")


def resized(known: Model, dimensions: Mapping[str, object]) -> Model:
    """The known model with these dimensions (counts, in elements); others stay unchanged.

    Dimensions that the family's class derives are derived again: a head_dim of hidden_size / num_attention_heads,
    key-value heads equal to heads where each head has its own, BLOOM's MLP of 4 · hidden_size. A pattern of layers is
    repeated or cut. ``ValueError`` names the dimension and says what to change.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> resized(TINY_LLAMA, {"hidden_size": 16}).head_dim
    8
    """
    given = {name: _read(name, value) for name, value in dimensions.items()}
    if given.get("tie_word_embeddings") and family_of(known).config.tied is None:
        raise InputError(
            f"tie_word_embeddings true has no effect on {known.model_type}, whose class never ties its head; leave it "
            "out."
        )
    heads = given.get("num_attention_heads", known.num_attention_heads)
    layers = given.get("num_hidden_layers", known.num_hidden_layers)
    made = {
        **given,
        "num_key_value_heads": _key_value_heads(known, given, heads),
        "head_dim": _head_dim(known, given, heads),
        "intermediate_size": _intermediate_size(known, given),
        "learned_positions": _learned_positions(known, given),
        "layer_types": _layer_types(known, layers),
        "no_rope_layers": _repeated(known.no_rope_layers, layers),
        "mlp_layer_types": _mlp_pattern(known, layers),
    }
    changed = ", ".join(f"{name} {value}".lower() for name, value in given.items())
    note = f"A custom model: {known.hub_id or known.model_type}" + f" with {changed}" * bool(given)
    plain = replace(known, hub_id="", config="", quantization=None, stored_width=0)
    return replace(plain, notes=(*known.notes, f"{note}."), **made)


def _read(name: str, value: object) -> Any:
    if name not in DIMENSIONS:
        meant = near(name, DIMENSIONS)
        hint = (
            f"did you mean {one_of(meant)}?" if meant else f"it is one of {', '.join(DIMENSIONS)}."
        )
        raise InputError(f"{name[:60]!r} is not a dimension of a model; {hint}")
    try:
        return DIMENSIONS[name].read(value)
    except ValueError as problem:
        raise about(name, problem) from None


def _key_value_heads(known: Model, given: Mapping[str, Any], heads: int) -> int:
    each = family_of(known).config.one_head_each
    chosen: int = given.get("num_key_value_heads", heads if each else known.num_key_value_heads)
    if each and chosen != heads:
        raise InputError(
            f"num_key_value_heads {chosen} differs from num_attention_heads {heads}, but {known.model_type} has one "
            "per attention head; leave it out."
        )
    return chosen


def _head_dim(known: Model, given: Mapping[str, Any], heads: int) -> int:
    hidden: int = given.get("hidden_size", known.hidden_size)
    derived = family_of(known).config.derived_head_dim
    if derived and given.get("head_dim", 0) * heads not in {0, hidden}:
        raise InputError(
            f"head_dim {given['head_dim']} is not hidden_size {hidden} / num_attention_heads {heads}, as "
            f"{known.model_type} computes it; leave it out."
        )
    if "head_dim" in given:
        chosen: int = given["head_dim"]
        return chosen
    if not derived and known.head_dim * known.num_attention_heads != known.hidden_size:
        return known.head_dim
    if hidden % heads:
        raise InputError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; change one of the two"
            f"{'' if derived else ', or give head_dim'}."
        )
    return hidden // heads


def _intermediate_size(known: Model, given: Mapping[str, Any]) -> int:
    chosen: int = given.get("intermediate_size", known.intermediate_size)
    given_ratio = family_of(known).config.mlp_ratio
    if given_ratio is None:
        return chosen
    hidden: int = given.get("hidden_size", known.hidden_size)
    if "intermediate_size" in given and chosen != given_ratio * hidden:
        raise InputError(
            f"intermediate_size {chosen} is not {given_ratio} times hidden_size {hidden}, as in {known.model_type}; "
            "leave it out."
        )
    return given_ratio * hidden


def _learned_positions(known: Model, given: Mapping[str, Any]) -> int:
    """Rows of the position embedding: one per position, and two more in OPT."""
    if not known.learned_positions:
        return 0
    positions: int = given.get("max_position_embeddings", known.max_position_embeddings)
    return positions + known.learned_positions - known.max_position_embeddings


def _layer_types(known: Model, layers: int) -> tuple[str, ...]:
    """The pattern repeated or cut. Gemma 4's last layer has full attention; one layer of each kind must not share."""
    kinds = _repeated(known.layer_types, layers)
    windows = family_of(known).config.windows
    if windows is not None and windows.last_is_full:
        kinds = (*kinds[:-1], FULL_ATTENTION)
    own = kinds[: max(0, layers - known.num_kv_shared_layers)]
    if known.num_kv_shared_layers and set(own) != set(known.layer_types):
        raise InputError(
            f"num_hidden_layers {layers} is too few for {known.model_type}, whose last {known.num_kv_shared_layers} "
            "layers reuse keys and values of earlier layers; raise it."
        )
    return kinds


def _mlp_pattern(known: Model, layers: int) -> tuple[str, ...]:
    resize = _repeated if family_of(known).config.mlps_in_turn else _first_kept
    return resize(known.mlp_layer_types, layers)


def _first_kept(pattern: Sequence[Item], layers: int) -> tuple[Item, ...]:
    """A list whose first layers differ from the rest, cut or extended with its last item.

    >>> _first_kept(("dense", "sparse"), 3)
    ('dense', 'sparse', 'sparse')
    """
    return tuple(pattern[min(index, len(pattern) - 1)] for index in range(layers if pattern else 0))


def _repeated(pattern: Sequence[Item], layers: int) -> tuple[Item, ...]:
    """A list with one item per layer, for another number of layers: its shortest repeating pattern, repeated.

    >>> _repeated(("s", "s", "f", "s", "s", "f"), 8)
    ('s', 's', 'f', 's', 's', 'f', 's', 's')
    """
    if not pattern or len(pattern) == layers:
        return tuple(pattern)
    run = next(
        size
        for size in range(1, len(pattern) + 1)
        if all(item == pattern[index % size] for index, item in enumerate(pattern))
    )
    return tuple(pattern[index % run] for index in range(layers))

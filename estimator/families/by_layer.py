"""PEFT's patterns over the names of modules: layers of one kind may differ in what is adapted, and in the rank.

Source: peft 0.21, tuners/tuners_utils.py, ``check_target_module_exists``; utils/other.py, ``get_pattern_key``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from estimator.families.model_tree import (
    layer_groups,
    layer_kind,
    layer_modules,
    layers_name,
    outer_modules,
)
from estimator.families.modules import Bare, Embedding, Linear, Module
from estimator.values.facets.adapters import Adapters
from estimator.values.specs import Model


def ends(name: str, target: str) -> bool:
    """Whether a module's name is a pattern's, or ends in it (a yes or no).

    Source: peft 0.21, tuners/tuners_utils.py, ``check_target_module_exists``.

    >>> ends("self_attn.q_proj", "q_proj"), ends("self_attn.q_proj", "proj")
    (True, False)
    """
    return name == target or name.endswith(f".{target}")


def key_of(module: Linear | Bare | Embedding) -> str:
    """The name that patterns are held against: with the layer's number where that matters.

    Source: derived.
    """
    return module.layer + module.name if isinstance(module, Linear) else module.name


def left_out(module: Linear | Embedding, adapters: Adapters) -> bool:
    """Whether PEFT leaves out this target (a yes or no): excluded by name, or of a layer that is not listed.

    Where layers are listed, what lies outside them is taken by its whole name alone, so of all the head.

    Source: peft 0.21, tuners/tuners_utils.py, ``check_target_module_exists``.

    >>> given = Adapters(method="lora", lora_target_modules=["q_proj"], layers_to_transform=[1])
    >>> [left_out(Linear("self_attn.q_proj", 8, 8, layer=f"model.layers.{it}."), given) for it in (0, 1)]
    [True, False]
    """
    key = key_of(module)
    if any(ends(key, name) for name in adapters.exclude_modules or ()):
        return True
    if adapters.layers_to_transform is None:
        return False
    if isinstance(module, Linear) and module.layer:
        return int(module.layer.split(".")[-2]) not in adapters.layers_to_transform
    return module.name != "lm_head"


def pattern_rank(module: Linear | Bare | Embedding, adapters: Adapters) -> int | None:
    """The rank that ``rank_pattern`` gives this module (rows of A); None: it names it not.

    Source: peft 0.21, utils/other.py, ``get_pattern_key``: the first pattern that fits.

    >>> given = Adapters(method="lora", rank_pattern={"q_proj": 4})
    >>> pattern_rank(Linear("self_attn.q_proj", 8, 8), given), pattern_rank(Linear("mlp.up_proj", 8, 8), given)
    (4, None)
    """
    key = key_of(module)
    return next((rank for name, rank in adapters.rank_pattern or () if ends(key, name)), None)


def modules_of_layer(model: Model, adapters: Adapters, index: int) -> tuple[Module, ...]:
    """Modules with weights in a decoder layer, which know their layer where adapters differ between layers.

    Source: derived, from ``layer_modules``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> modules_of_layer(TINY_LLAMA, Adapters(), 1) == layer_modules(TINY_LLAMA, 1)
    True
    """
    modules = layer_modules(model, index)
    if not adapters.by_layer:
        return modules
    layer = f"{layers_name(model)}.{index}."
    return tuple(
        replace(module, layer=layer) if isinstance(module, Linear) else module for module in modules
    )


def adapted_kinds(model: Model, adapters: Adapters) -> tuple[str, ...]:
    """Of every layer its kind, and what the patterns say of its linears, as one word; equal words, equal layers.

    Source: derived.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> adapted_kinds(TINY_LLAMA, Adapters())
    ('', '')
    """
    kinds = tuple(layer_kind(model, index) for index in range(model.num_hidden_layers))
    if not adapters.by_layer:
        return kinds
    patterns = Adapters(  # alone, since a rank that is recorded has no hash
        method=adapters.method,
        layers_to_transform=adapters.layers_to_transform,
        exclude_modules=adapters.exclude_modules,
        rank_pattern=adapters.rank_pattern,
    )
    return _adapted_kinds(model, patterns, kinds)


@lru_cache(maxsize=256)
def _adapted_kinds(model: Model, adapters: Adapters, kinds: tuple[str, ...]) -> tuple[str, ...]:
    def said(index: int) -> Iterator[str]:
        for module in modules_of_layer(model, adapters, index):
            if isinstance(module, Linear):
                yield f"{left_out(module, adapters):d}{pattern_rank(module, adapters)}"

    return tuple(" ".join((kind, *said(index))) for index, kind in enumerate(kinds))


def adapted_groups(model: Model, adapters: Adapters) -> tuple[tuple[int, int], ...]:
    """Of layers that hold the same modules and adapters the lowest, and how many there are (a count, whole model).

    Source: derived, from ``adapted_kinds``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> adapted_groups(TINY_LLAMA, Adapters(method="lora", lora_target_modules=["q_proj"], layers_to_transform=[1]))
    ((0, 1), (1, 1))
    """
    if not adapters.by_layer:
        return layer_groups(model)
    kinds = adapted_kinds(model, adapters)
    return tuple((kinds.index(kind), count) for kind, count in Counter(kinds).items())


def text_modules(model: Model, adapters: Adapters) -> Iterator[tuple[Module, int]]:
    """Every module with weights of the text, and how many alike with the same adapters there are, whole model.

    Source: derived, from ``outer_modules``, ``modules_of_layer`` and ``adapted_groups``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [count for module, count in text_modules(TINY_LLAMA, Adapters()) if module.name == "self_attn.q_proj"]
    [2]
    """
    yield from ((module, 1) for module in outer_modules(model))
    for index, count in adapted_groups(model, adapters):
        yield from ((module, count) for module in modules_of_layer(model, adapters, index))

"""The module tree of a model, with transformers' names and order, and the tensors of each module.

``counts.py`` has the modules with weights and their numbers. This adds full names, the order of definition, modules
without weights (activations, dropouts), and buffers. accelerate needs these to place a model on devices. Read in
transformers 5.23, ``models/*/modeling_*.py``; tests/verify compares every family with the real class on the meta
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from estimator.families.counts import layer_tree, layers_name, root_tree
from estimator.families.modules import LAYERS, Module, Tree, TreeTensor, Width, weight_shapes
from estimator.families.registry import family_of
from estimator.values.specs import Model


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """A module with its own tensors and children, or a single parameter of a split module."""

    name: str
    """Full name, such as ``model.layers.0.mlp``; empty: the root."""
    class_name: str = ""
    """Class of a module with children; empty for leaves, where it does not matter."""
    tensors: tuple[TreeTensor, ...] = ()
    children: tuple[ModuleNode, ...] = ()
    is_parameter: bool = False

    @property
    def parts(self) -> tuple[ModuleNode, ...]:
        """Its parts when split: its own parameters, then its children, without buffers.

        Only experts and Gemma 4's routers have both.
        """
        stacks = (
            one
            for one in self.tensors
            if self.children and one.width is Width.WEIGHT and not one.is_buffer
        )
        alone = (
            ModuleNode(f"{self.name}.{one.name}", tensors=(one,), is_parameter=True)
            for one in stacks
        )
        return (*alone, *self.children)

    def walk(self) -> Iterator[ModuleNode]:
        """Itself and all its descendants, in the order of ``named_modules``."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending += node.children[::-1]


@lru_cache(maxsize=64)
def module_tree(model: Model) -> ModuleNode:
    """The root of the model's tree, in the order of ``named_children``; tensors in elements, whole model.

    A tied head is included without a weight, which belongs to the embedding.

    Leaves out: vision towers (``vision_tree`` adds them) and audio towers; a rotary embedding's attention factor.
    Error: none; compared with the real class on the meta device in tests/verify (except InternLM3, which has no class
    in transformers). Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, each module's
    ``__init__``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [node.name for node in module_tree(TINY_LLAMA).walk()][:6]
    ['', 'model', 'model.embed_tokens', 'model.layers', 'model.layers.0', 'model.layers.0.self_attn']
    """
    return _node("", root_tree(model), model)


def _node(name: str, tree: Tree, model: Model) -> ModuleNode:
    below: Iterator[tuple[str, Tree]] = iter(tree.children)
    if tree is LAYERS:
        below = ((str(at), layer_tree(model, at)) for at in range(model.num_hidden_layers))
    return ModuleNode(
        name,
        tree.class_name.replace("@", family_of(model).prefix),
        tree.tensors,
        tuple(_node(f"{name}.{child}".lstrip("."), inside, model) for child, inside in below),
    )


Named = tuple[str, int | None, Module]
"""A module's full name, its layer if it is in one, and the module."""


def named_modules(model: Model) -> Iterator[Named]:
    """Modules with weights and parameters held directly, in the order of definition (derived)."""
    return (named for named in _all_modules(model) if weight_shapes(named[-1]))


def _all_modules(model: Model) -> Iterator[Named]:
    layers = layers_name(model)
    for name, node in root_tree(model).walk():
        if name != layers:
            yield from ((full, None, module) for full, module in node.own(name))
            continue
        for index in range(model.num_hidden_layers):
            for below, inside in layer_tree(model, index).walk(f"{layers}.{index}"):
                yield from ((full, index, module) for full, module in inside.own(below))


def splits_packed_experts(model: Model) -> bool:
    """Whether transformers replaces stacked experts by other modules before packing them.

    Source: transformers 5.23, quantizers/base.py, ``MODULES_TO_PATCH_FOR_QUANTIZATION``.
    """
    return family_of(model).splits_packed_experts


def base_model_prefix(model: Model) -> str:
    """The attribute of the causal model that holds the base model (a name).

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, ``base_model_prefix``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> base_model_prefix(TINY_LLAMA)
    'model'
    """
    return layers_name(model).partition(".")[0]


def layer_class(model: Model) -> str:
    """Class of the decoder layer, which is what ``_no_split_modules`` names in every family modelled (a name).

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, ``_no_split_modules``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layer_class(TINY_LLAMA)
    'LlamaDecoderLayer'
    """
    return layer_tree(model, 0).class_name.replace("@", family_of(model).prefix)

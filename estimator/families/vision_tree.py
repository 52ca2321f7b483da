"""The module tree of a model with a vision tower, as ``AutoModelForImageTextToText`` makes it.

The text's part is ``module_tree``'s under another name. Read in transformers 5.23, ``models/*/modeling_*.py``;
tests/verify compares every kind of tower with the real class on the meta device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod

from estimator.families.counts import layer_modules, outer_modules
from estimator.families.family import TreeTensor, Width
from estimator.families.module_tree import (
    Item,
    ModuleNode,
    layer_class,
    module_tree,
    read_items,
    tensors_of,
)
from estimator.families.modules import Module, weight_shapes
from estimator.families.registry import family_of
from estimator.families.vision_family import vision_family
from estimator.values.refusals import NOT_MODELLED, Refusal
from estimator.values.specs import Model

NO_TREE = Refusal(
    "where device_map puts the vision tower of {wrapper} is not modelled yet; take model_class text.",
    NOT_MODELLED,
)


@lru_cache(maxsize=64)
def image_text_tree(model: Model) -> ModuleNode:
    """The root of the tree with the tower, in the order of ``named_children``; tensors in elements, whole model.

    Raises ``InputError`` for Gemma 4, whose tower's tree is not known.

    Error: none; compared with the real class on the meta device in tests/verify.
    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, each module's ``__init__``.
    """
    return _Builder(model).root()


def whole_classes(model: Model, *, with_tower: bool) -> frozenset[str]:
    """Classes of modules that stay on one device: the decoder layer, and the tower's own (names).

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, ``_no_split_modules``; modeling_utils.py,
    ``PreTrainedModel.post_init``, which collects those of its parts.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> whole_classes(TINY_LLAMA, with_tower=False)
    frozenset({'LlamaDecoderLayer'})
    """
    if not with_tower:
        return frozenset({layer_class(model)})
    builder = _Builder(model)
    tower = (name.replace("@", builder.prefix) for name in builder.tree.whole)
    return frozenset({builder.text_class(layer_class(model)), *tower})


def made_tree(model: Model, *, with_tower: bool) -> ModuleNode:
    """The tree of the class that is loaded: with the tower, or of the text alone (derived)."""
    return image_text_tree(model) if with_tower else module_tree(model)


class _Builder:
    """Builds the tree from a layout, the tower's modules with weights, and the text's tree."""

    def __init__(self, model: Model) -> None:
        assert model.vision is not None
        family = vision_family(model.vision)
        if family.tree is None:
            raise NO_TREE(wrapper=model.vision.wrapper)
        self.model, self.vision, self.tree = model, model.vision, family.tree
        self.prefix = self.tree.prefixes.get(self.vision.wrapper, "")
        self.base = f"{family.prefix}."
        self.modules: dict[str, Module] = {
            **{self.base + it.name: it for it in outer_modules(self.vision.tower)},
            **{it.name: it for it in family.projector(self.vision, model)},
        }

    def root(self) -> ModuleNode:
        return ModuleNode("", children=self._children(read_items(self.tree.layout), "", ""))

    def text_class(self, name: str) -> str:
        """The name of a class of the text in this model."""
        own = family_of(self.model).tree.prefix
        if not self.tree.text or name in self.tree.shared or not name.startswith(own):
            return name
        return self.tree.text.replace("@", self.prefix) + name.removeprefix(own)

    def _children(self, items: tuple[Item, ...], above: str, key: str) -> tuple[ModuleNode, ...]:
        """``above``: the parent's full name; ``key``: its name in the tables."""
        nodes: list[ModuleNode] = []
        for item in items:
            if item.name.startswith("="):
                continue
            if item.name == "*":
                nodes += (
                    self._layer(item, index, above)
                    for index in range(self.vision.tower.num_hidden_layers)
                )
            elif item.name == "%":  # one for each projected layer
                nodes += (
                    self._node(item, f"{above}.{index}", f"{key}.{index}")
                    for index in range(len(self.vision.deepstack))
                )
            else:
                name = f"{above}.{item.name}" if above else item.name
                if item.class_name.startswith("$"):
                    nodes.append(self._text(name, item.class_name[1:].replace("@", self.prefix)))
                else:
                    inside = f"{key}.{item.name}" if key else item.name
                    nodes.append(self._node(item, name, "" if name == "model" else inside))
        return tuple(nodes)

    def _layer(self, item: Item, index: int, above: str) -> ModuleNode:
        outside = self.modules
        self.modules = {it.name: it for it in layer_modules(self.vision.tower, index)}
        node = self._node(item, f"{above}.{index}", "")
        self.modules = outside
        return node

    def _node(self, item: Item, name: str, key: str) -> ModuleNode:
        own = [it.name.removeprefix("=") for it in item.items if it.name.startswith("=")]
        tensors = _bare(own[0], key, self.modules) if own else tensors_of(self.modules.get(key))
        buffers = self.tree.buffers.get(name.rpartition(".")[2])
        return ModuleNode(
            name,
            item.class_name.replace("@", self.prefix),
            (*tensors, *(buffers(self.vision) if buffers else ())),
            self._children(item.items, name, key),
        )

    def _text(self, name: str, class_name: str) -> ModuleNode:
        base, head = module_tree(self.model).children
        return self._renamed(head if name.endswith("lm_head") else base, name, class_name)

    def _renamed(self, node: ModuleNode, name: str, class_name: str = "") -> ModuleNode:
        return replace(
            node,
            name=name,
            class_name=class_name or self.text_class(node.class_name),
            children=tuple(
                self._renamed(it, f"{name}.{it.name.rpartition('.')[2]}") for it in node.children
            ),
        )


def _bare(words: str, key: str, modules: Mapping[str, Module]) -> tuple[TreeTensor, ...]:
    """A module's own parameters, by names, under its name in the tables or one given before a slash."""
    given, _, names = words.rpartition("/")
    known = (given, f"{key}.{given}") if given else (key,)
    shapes = weight_shapes(next(modules[one] for one in known if one in modules))
    return tuple(
        TreeTensor(name, prod(shape), Width.WEIGHT)
        for name, shape in zip(names.split(","), shapes, strict=True)
    )

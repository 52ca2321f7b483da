"""The module tree of a model with a vision tower, as ``AutoModelForImageTextToText`` makes it.

The text's part is ``module_tree``'s under another name. Read in transformers 5.23, ``models/*/modeling_*.py``;
tests/verify compares every kind of tower with the real class on the meta device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from estimator.families.counts import layer_tree, layers_name
from estimator.families.module_tree import ModuleNode, layer_class, module_tree
from estimator.families.modules import LAYERS, LM_HEAD, TEXT, Tree, tree
from estimator.families.registry import family_of
from estimator.families.vision_family import joined, vision_family
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


def decoder_layers(model: Model, *, with_tower: bool) -> str:
    """Full name of the list of decoder layers in the class that is loaded (a name; derived).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> decoder_layers(TINY_LLAMA, with_tower=False)
    'model.layers'
    """
    if not with_tower:
        return layers_name(model)
    of_a_layer = _Builder(model).text_class(layer_class(model))
    nodes = image_text_tree(model).walk()
    first = next(node.name for node in nodes if node.class_name == of_a_layer)
    return first.rpartition(".")[0]


class _Builder:
    """Joins the trees of tower, projector and text."""

    def __init__(self, model: Model) -> None:
        assert model.vision is not None
        self.family = vision_family(model.vision)
        if self.family.tree is None:
            raise NO_TREE(wrapper=model.vision.wrapper)
        self.model, self.vision, self.tree = model, model.vision, self.family.tree
        self.prefix = self.tree.prefixes.get(self.vision.wrapper, "")

    def root(self) -> ModuleNode:
        parts = joined(self.vision, self.model)
        if self.tree.text_in:
            text = tree(self.tree.text_in, model=TEXT, lm_head=LM_HEAD)
            return self._node("", tree(**parts, **{self.tree.text_name: text}))
        base = tree(self.tree.class_name, **parts, **{self.tree.text_name: TEXT})
        return self._node("", tree(model=base, lm_head=LM_HEAD))

    def text_class(self, name: str) -> str:
        """The name of a class of the text in this model."""
        own = family_of(self.model).prefix
        if not self.tree.text or name in self.tree.shared or not name.startswith(own):
            return name
        return self.tree.text.replace("@", self.prefix) + name.removeprefix(own)

    def _node(self, name: str, made: Tree) -> ModuleNode:
        base, head = module_tree(self.model).children
        if made is TEXT:
            return self._renamed(base, name, self.tree.text_class.replace("@", self.prefix))
        if made is LM_HEAD:
            return self._renamed(head, name)
        below = made.children
        if made is LAYERS:
            tower = self.vision.tower
            below = tuple((str(at), layer_tree(tower, at)) for at in range(tower.num_hidden_layers))
        return ModuleNode(
            name,
            made.class_name.replace("@", self.prefix),
            made.tensors,
            tuple(self._node(f"{name}.{child}".lstrip("."), inside) for child, inside in below),
        )

    def _renamed(self, node: ModuleNode, name: str, class_name: str = "") -> ModuleNode:
        return replace(
            node,
            name=name,
            class_name=class_name or self.text_class(node.class_name),
            children=tuple(
                self._renamed(child, f"{name}.{child.name.rpartition('.')[2]}")
                for child in node.children
            ),
        )

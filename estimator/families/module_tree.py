"""The module tree of a model, with transformers' names and order, and the tensors of each module.

``counts.py`` has the modules with weights and their numbers. This adds full names, the order of definition, modules
without weights (activations, dropouts), and buffers. accelerate needs these to place a model on devices. Read in
transformers 5.23, ``models/*/modeling_*.py``; tests/verify compares every family with the real class on the meta
device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from estimator.families.counts import layer_kind, layer_modules, outer_modules
from estimator.families.family import EACH_LAYER, TreeTensor, Width
from estimator.families.modules import Bare, Linear, Module, weight_shapes
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


BARE_VECTORS = frozenset(
    {"A_log", "D", "correct_output_scale", "dt_bias", "per_expert_scale", "scale", "sinks"}
)
"""One-dimensional parameters that belong to a parent directly, without a module of their own."""


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
    return _Builder(model).root()


def splits_packed_experts(model: Model) -> bool:
    """Whether transformers replaces stacked experts by other modules before packing them.

    Source: transformers 5.23, quantizers/base.py, ``MODULES_TO_PATCH_FOR_QUANTIZATION``.
    """
    return family_of(model).tree.splits_packed_experts


def base_model_prefix(model: Model) -> str:
    """The attribute of the causal model that holds the base model (a name).

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, ``base_model_prefix``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> base_model_prefix(TINY_LLAMA)
    'model'
    """
    return family_of(model).tree.tree.partition(":")[0]


@lru_cache(maxsize=256)
def layers_name(model: Model) -> str:
    """Full name of the list of decoder layers (a name).

    Source: derived, from ``module_tree``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layers_name(TINY_LLAMA)
    'model.layers'
    """
    names = (node.name for node in module_tree(model).walk())
    return next(name for name in names if name.endswith(".0")).removesuffix(".0")


def layer_class(model: Model) -> str:
    """Class of the decoder layer, which is what ``_no_split_modules`` names in every family modelled (a name).

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, ``_no_split_modules``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layer_class(TINY_LLAMA)
    'LlamaDecoderLayer'
    """
    layout = family_of(model).tree
    _, _, layer = layout.tree.partition("*:")
    return layer.partition("(")[0].replace("@", layout.prefix)


class _Builder:
    """Builds the tree from a layout and the modules with weights."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.layout = family_of(model).tree
        self.outer = {module.name: module for module in outer_modules(model)}
        self.layer: dict[str, Module] = {}
        """Modules with weights of the current layer."""

    def root(self) -> ModuleNode:
        return ModuleNode("", children=self._children(read_items(self.layout.tree), "", None))

    def _children(
        self, items: tuple[Item, ...], above: str, in_layer: str | None
    ) -> tuple[ModuleNode, ...]:
        """``above``: the parent's full name; ``in_layer``: its name within the layer, None outside the layers."""
        nodes: list[ModuleNode] = []
        for item in items:
            if item.name == "*":
                nodes += self._layers(items, above)
            elif item.name.endswith("*"):
                continue
            elif item.name == "#":
                known = self.outer if in_layer is None else self.layer
                block = above.rpartition(".")[2] if in_layer is None else in_layer
                below = [name for name in known if name.startswith(f"{block}.")]
                nodes += (
                    ModuleNode(
                        f"{above}.{name.rpartition('.')[2]}",
                        tensors=tensors_of(known[name]),
                    )
                    for name in below
                )
            else:
                name = f"{above}.{item.name}" if above else item.name
                within = None if in_layer is None else f"{in_layer}.{item.name}".lstrip(".")
                if not item.optional or self._exists(item.name, within):
                    nodes.append(self._node(item, name, within))
        return tuple(nodes)

    def _layers(self, items: tuple[Item, ...], above: str) -> Iterator[ModuleNode]:
        kinds = {item.name.removesuffix("*"): item for item in items}
        for index in range(self.model.num_hidden_layers):
            self.layer = {module.name: module for module in layer_modules(self.model, index)}
            yield self._node(kinds[layer_kind(self.model, index)], f"{above}.{index}", "")

    def _exists(self, name: str, within: str | None) -> bool:
        if within is None:
            turns = not (self.model.no_rope_layers and all(self.model.no_rope_layers))
            return name in self.outer or (name == "rotary_emb" and turns)
        if within == "act_fn":  # of Gemma 4's layer, in addition to its MLP's
            return bool(self.model.hidden_size_per_layer_input)
        return any(known == within or known.startswith(f"{within}.") for known in self.layer)

    def _node(self, item: Item, name: str, within: str | None) -> ModuleNode:
        last = name.rpartition(".")[2]
        module = self.outer.get(last) if within is None else self.layer.get(within)
        bare = [
            (held, one.rpartition(".")[2] + suffix, shape)
            for one, held in self.layer.items()
            if one.rpartition(".")[0] == within
            for suffix, shape in zip(("", "_bias"), weight_shapes(held), strict=False)
        ]
        stacks = [
            TreeTensor(tensor, prod(shape), Width.WEIGHT)
            for held, tensor, shape in bare
            if (isinstance(held, Bare) and held.stack) or tensor in BARE_VECTORS
        ]
        return ModuleNode(
            name,
            item.class_name.replace("@", self.layout.prefix),
            (*tensors_of(module), *stacks, *_buffers(self.model, last)),
            self._children(item.items, name, within),
        )


def tensors_of(module: Module | None) -> tuple[TreeTensor, ...]:
    """A module's weight and bias, elements; nothing for a module without weights (derived, from ``weight_shapes``)."""
    if module is None:
        return ()
    # bitsandbytes quantises exactly the types nn.Linear and Conv1D, and Falcon's linears are FalconLinear:
    # transformers 5.23, integrations/bitsandbytes.py, replace_with_bnb_linear
    packed = (
        isinstance(module, Linear)
        and module.name != "lm_head"
        and not (module.own_class or module.is_last)
    )
    return tuple(
        TreeTensor(name, prod(shape), Width.MATRIX if packed and name == "weight" else Width.WEIGHT)
        for name, shape in zip(("weight", "bias"), weight_shapes(module), strict=False)
    )


def _buffers(model: Model, module: str) -> tuple[TreeTensor, ...]:
    """Buffers of the module with this name, shapes flattened.

    Source: transformers 5.23, each ``register_buffer`` of models/<model_type>/modeling_<model_type>.py.
    """
    family = family_of(model)
    given = family.tree.buffers
    if module in given:
        return given[module](model)
    if module.isdecimal() and EACH_LAYER in given:
        return given[EACH_LAYER](model)
    if module != "rotary_emb":
        return ()
    rotary = model.qk_rope_head_dim or int(model.head_dim * model.partial_rotary_factor)
    by_type = family.architecture.tables_by_kind
    copies = 2 * max(1, len(set(model.layer_types))) if by_type else 2
    return (TreeTensor("inv_freq", (rotary + 1) // 2, Width.FLOAT32),) * copies


# --- the notation ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    """A module in the notation of ``TreeLayout``."""

    name: str
    class_name: str
    optional: bool
    items: tuple[Item, ...]


@lru_cache(maxsize=64)
def read_items(text: str) -> tuple[Item, ...]:
    """The items of a layout.

    >>> [(one.name, one.class_name, len(one.items)) for one in read_items("model:@Model(a b?:C(#)) lm_head")]
    [('model', '@Model', 2), ('lm_head', '', 0)]
    """
    return _items(iter(re.findall(r"[^\s()]+|[()]", text)))


def _items(words: Iterator[str]) -> tuple[Item, ...]:
    items: list[Item] = []
    for word in words:
        if word == ")":
            break
        if word == "(":
            opened = items.pop()
            items.append(Item(opened.name, opened.class_name, opened.optional, _items(words)))
            continue
        name, _, class_name = word.partition(":")
        items.append(Item(name.removesuffix("?"), class_name, name.endswith("?"), ()))
    return tuple(items)

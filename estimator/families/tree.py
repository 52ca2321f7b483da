"""A module tree as the class's ``__init__`` makes it: children by name, in the order of definition.

A family says this once. The list of its modules with weights, their full names and their order, what PEFT and
accelerate match by name, and the buffers that accelerate places all follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from estimator.families.modules import Kernel, Linear, Module, weight_shapes


class Width(Enum):
    """What determines the bytes per element of a tensor."""

    WEIGHT = "in the model's dtype, as are buffers without a dtype of their own"
    MATRIX = "the weight of a linear layer: in the model's dtype, unless a quantiser packs it"
    FLOAT32 = "a buffer that is always float32"
    BOOL = "a mask"
    INT64 = "a buffer of whole numbers"
    COMPLEX64 = "a buffer of complex numbers"


@dataclass(frozen=True, slots=True)
class TreeTensor:
    """A parameter or a buffer."""

    name: str
    elements: int
    width: Width
    is_buffer: bool = False
    """Whether it is a buffer. When a module is split, its buffers are not placed."""


@dataclass(frozen=True, slots=True)
class OwnParameter:
    """A parameter that its module holds directly: a stack of experts, a vector."""

    module: Module


@dataclass(frozen=True, slots=True)
class Tree:
    """A module with its children. Names of modules with weights are relative to the root."""

    class_name: str = ""
    """Class of a module with children, ``@`` for the family's prefix; empty for leaves, where it does not matter."""
    weights: Module | None = None
    """The module with weight and bias that it is."""
    held: tuple[Module, ...] = ()
    """Parameters that it holds directly."""
    buffers: tuple[TreeTensor, ...] = ()
    children: tuple[tuple[str, Tree], ...] = ()

    def walk(self, name: str = "") -> Iterator[tuple[str, Tree]]:
        """Itself and all below it, by full name, in the order of ``named_modules``."""
        yield name, self
        for child, below in self.children:
            yield from below.walk(f"{name}.{child}" if name else child)

    def own(self, name: str) -> Iterator[tuple[str, Module]]:
        """The modules that this one is or holds, by full name, given its own; a norm may have no weight."""
        if self.weights:
            yield name, self.weights
        yield from ((f"{name}.{module.name.rpartition('.')[2]}", module) for module in self.held)

    @property
    def modules(self) -> Iterator[Module]:
        """Modules with weights, and parameters held directly, in the order of ``named_parameters``."""
        for name, node in self.walk():
            yield from (module for _, module in node.own(name))

    @property
    def tensors(self) -> tuple[TreeTensor, ...]:
        """Its own: weight and bias, parameters held directly, buffers."""
        held = (
            TreeTensor(name, prod(shape), Width.WEIGHT)
            for module in self.held
            for name, shape in zip(_held_names(module), weight_shapes(module), strict=False)
        )
        return (*_tensors_of(self.weights), *held, *self.buffers)


LEAF = Tree()
"""A module without weights: an activation, a dropout."""


def tree(
    class_name: str = "", /, *buffers: TreeTensor, **children: Tree | Module | OwnParameter | None
) -> Tree:
    """A module of this class with these children; those that are None do not exist.

    >>> made = tree("@MLP", up_proj=Linear("", 8, 16), act_fn=LEAF, gate=None)
    >>> [name for name, _ in made.walk()], next(made.modules).name
    (['', 'up_proj', 'act_fn'], 'up_proj')
    """
    held, below = [], []
    for name, child in children.items():
        match child:
            case None:
                continue
            case OwnParameter(module=module):
                held.append(replace(module, name=name))
            case Tree():
                below.append((name, _named(child, f"{name}.")))
            case _:
                below.append((name, Tree(weights=replace(child, name=name))))
    return Tree(class_name, held=tuple(held), buffers=buffers, children=tuple(below))


def extended(given: Tree, /, **more: Tree | Module) -> Tree:
    """The same module with more children, or others in their place."""
    added = tree(**more)
    return replace(given, children=tuple({**dict(given.children), **dict(added.children)}.items()))


def module_list(*children: Tree | Module) -> Tree:
    """``nn.ModuleList``: children by number."""
    return tree("ModuleList", **{str(at): child for at, child in enumerate(children)})


def with_buffers(module: Module | Tree, *buffers: TreeTensor) -> Tree:
    """A module that also registers buffers."""
    given = module if isinstance(module, Tree) else Tree(weights=module)
    return replace(given, buffers=(*given.buffers, *buffers))


def _named(node: Tree, above: str) -> Tree:
    """The same tree under a parent. A module with weights that is a child itself has no name yet."""

    def full(module: Module) -> Module:
        return replace(module, name=f"{above}{module.name}".removesuffix("."))

    if any(node is place for place in PLACES):
        return node
    return replace(
        node,
        weights=node.weights and full(node.weights),
        held=tuple(map(full, node.held)),
        children=tuple((name, _named(child, above)) for name, child in node.children),
    )


def _held_names(module: Module) -> tuple[str, ...]:
    last = module.name.rpartition(".")[2]
    return module.tensors if isinstance(module, Kernel) else (last, f"{last}_bias")


def _tensors_of(module: Module | None) -> tuple[TreeTensor, ...]:
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
    names = module.tensors if isinstance(module, Kernel) else ("weight", "bias")
    return tuple(
        TreeTensor(name, prod(shape), Width.MATRIX if packed and name == "weight" else Width.WEIGHT)
        for name, shape in zip(names, weight_shapes(module), strict=False)
    )


LAYERS = Tree("ModuleList")
"""Where a root has its layers."""
TEXT, HEAD = Tree(), Tree()
"""Where the tree around a vision tower has the text's model, and its head."""
PLACES = (LAYERS, TEXT, HEAD)
"""They are told by identity, so no tree around them copies them."""

"""The kinds of modules with weights, their shapes, and the tree of a model's modules.

A tree is as the class's ``__init__`` makes it: children by name, in the order of definition. A family says this once.
The list of its modules with weights, their full names and their order, what PEFT and accelerate match by name, and the
buffers that accelerate places all follow from it.

A layer's modules are named relative to the layer, the others by their last name. Weights, gradients, optimizer states,
adapters and 4-bit sizes are all sums over these. Sizes are elements, for the whole model, before any sharding.

Source: transformers 5.23, models/*/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from estimator.values.specs import Model, Part


@dataclass(frozen=True, slots=True)
class Linear:
    """``nn.Linear``, or GPT-2's ``Conv1D``, whose weight is stored transposed."""

    name: str
    in_features: int
    out_features: int
    bias: bool = False
    conv1d: bool = False
    own_class: bool = False
    """A subclass of ``nn.Linear`` with its own forward: FalconLinear, which 4-bit loading does not pack
    (transformers 5.23, integrations/bitsandbytes.py: ``type(module) is nn.Linear``)."""
    routes: bool = False
    """The router of a mixture of experts, also a subclass, with several outputs, on which PEFT's wrapper fails
    (PEFT 0.21, tuners/lora/layer.py, ``Linear.forward``: ``result.dtype``)."""
    is_last: bool = False
    """Has the model's last parameter, which transformers mistakes for the head's and does not pack
    (transformers 5.23, quantizers/base.py, ``get_keys_to_not_convert``)."""
    unadaptable: bool = False
    """PEFT refuses an adapter here, because a kernel reads the weight directly (PEFT 0.21, tuners/tuners_utils.py,
    ``_check_lora_target_modules_mamba``)."""
    shadowed: bool = False
    """Has a name that experts' linears once had: PEFT applies the name to their stack instead of this module
    (PEFT 0.21, utils/transformers_weight_conversion.py, ``_convert_peft_config_moe``)."""
    part: Part = Part.TEXT
    """The part of the model that it belongs to."""
    layer: str = ""
    """Full name of its layer with a dot behind, where adapters differ between layers of one kind; else empty."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over ``width`` elements. xIELU's two learned scalars count as one: weight and bias of width 1."""

    name: str
    width: int
    weight: bool = True
    bias: bool = False
    taps: int = 0
    """Kernel size, if this is a short convolution over ``width`` channels (LFM2, Mamba 2, delta nets) and not a norm.
    """
    part: Part = Part.TEXT
    """The part of the model that it belongs to."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """A table of ``rows`` vectors."""

    name: str
    rows: int
    width: int
    part: Part = Part.TEXT
    """The part of the model that it belongs to."""


@dataclass(frozen=True, slots=True)
class Bare:
    """A bare parameter of a mixture of experts: the router's matrix, or all experts' matrices as one stack.

    Not an ``nn.Linear``: 4-bit loading does not pack it (transformers 5.23, integrations/bitsandbytes.py,
    ``replace_with_bnb_linear``), and LoRA matches it only by the former names of its parts.
    """

    name: str
    in_features: int
    out_features: int
    stack: int = 0
    """Number of experts; 0: a single matrix."""
    former_names: tuple[str, ...] = ()
    """Names of the linears that it replaced in transformers 5, which PEFT maps to it; each adds one rank."""
    bias: bool = False
    """Has a bias: one number per output, for a stack per output and expert (GPT-OSS)."""
    transposed: bool = False
    """Stored as [experts, in, out]."""
    float32: bool = False
    """Always float32 (transformers 5.23, ``_keep_in_fp32_modules_strict``)."""
    part: Part = Part.TEXT
    """The part of the model that it belongs to."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Other parameters of a tower: convolutions with their norms, and bare tensors.

    They are neither adapted nor packed here.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    tensors: tuple[str, ...] = ("weight", "bias")
    """Names of its parameters."""
    part: Part = Part.TEXT
    """The part of the model that it belongs to."""


Module = Linear | Norm | Embedding | Bare | Kernel


TINY_LLAMA = Model(
    model_type="llama",
    vocab_size=10,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
)
"""A model small enough to count by hand; the doctests below do."""


def weight_shapes(module: Module) -> tuple[tuple[int, ...], ...]:
    """Shapes of a module's parameters in elements per axis, whole model: the weight first, then the bias.

        Linear [out, in], [out]     Conv1D [in, out], [out]     Norm [width], [width]     Embedding [rows, width]
        router [experts, in]        stacked experts [experts, out, in]

    Leaves out: buffers (rotary frequencies, causal masks), which are not trained.
    Error: none; exact. Cohere's per-head norm of shape [heads, head_dim] is given flat.
    Source: PyTorch 2.13 ``nn.Linear``, ``nn.LayerNorm``, ``nn.Embedding``; transformers 5.23 ``pytorch_utils.Conv1D``.

    >>> weight_shapes(Linear("q_proj", 8, 16, bias=True))
    ((16, 8), (16,))
    >>> weight_shapes(Norm("norm", 8))
    ((8,),)
    """
    match module:
        case Linear(in_features=rows, out_features=columns, bias=bias, conv1d=conv1d):
            weight = (rows, columns) if conv1d else (columns, rows)
            return (weight, (columns,)) if bias else (weight,)
        case Norm(width=width, weight=has_weight, bias=bias):
            filters = (width, 1, module.taps) if module.taps else (width,)
            return (filters, (width,))[1 - has_weight : 1 + bias]
        case Embedding(rows=rows, width=width):
            return ((rows, width),)
        case Bare(in_features=columns, out_features=rows, stack=stack, bias=bias):
            experts = (stack,) if stack else ()
            matrix = (columns, rows) if module.transposed else (rows, columns)
            return ((*experts, *matrix), (*experts, rows))[: 1 + bias]
        case Kernel(shapes=shapes):
            return shapes


def module_parameters(module: Module) -> int:
    """Parameters of one module in elements, whole model: the product of each shape, summed.

    Error: none; exact.
    Source: derived, from ``weight_shapes``.

    >>> module_parameters(Linear("q_proj", 8, 16, bias=True)) == 8 * 16 + 16
    True
    """
    return sum(prod(shape) for shape in weight_shapes(module))


HEADS = ("lm_head", "score")
"""Names of the head: the linear from the last hidden states to the vocabulary or to labels."""


def is_after_layers(module: Module) -> bool:
    """Whether a module outside the layers comes after them: the final norm, projections, the head.

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, the model's ``forward``.

    >>> from estimator.families.model_tree import outer_modules
    >>> [is_after_layers(module) for module in outer_modules(TINY_LLAMA)]
    [False, True, True]
    """
    if isinstance(module, Norm):
        return module.name not in ("word_embeddings_layernorm", "per_layer_projection_norm")
    return module.name.startswith((*HEADS, "project_out", "altup_unembed_projections"))


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
    return changed(
        node, lambda module: replace(module, name=f"{above}{module.name}".removesuffix("."))
    )


def changed(node: Tree, change: Callable[[Module], Module]) -> Tree:
    """The same tree with every module changed."""
    if node is LAYERS:  # it is told by identity
        return node
    return replace(
        node,
        weights=node.weights and change(node.weights),
        held=tuple(map(change, node.held)),
        children=tuple((name, changed(child, change)) for name, child in node.children),
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


ACTIVATION, ROTARY, DROPOUT = "mlp.act_fn", "rotary_emb", "dropout"
"""Modules without weights. The last is the dropout after the embedding, whose name differs between families."""

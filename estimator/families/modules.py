"""The kinds of modules with weights, their shapes, and which of them a quantiser packs.

Modules are named as in transformers' module tree (read in 5.23, ``models/*/modeling_*.py``): a layer's modules relative
to the layer, the others by their last name. Weights, gradients, optimizer states, adapters and 4-bit sizes are all sums
over these. Sizes are elements, for the whole model, before any sharding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from estimator.values.facets.adapters import Adapters
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


# rows: OPTLearnedPositionalEmbedding.offset, transformers 5.23 models/opt/modeling_opt.py
OPT_POSITION_OFFSET = 2
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

    >>> from estimator.families.counts import outer_modules
    >>> [is_after_layers(module) for module in outer_modules(TINY_LLAMA)]
    [False, True, True]
    """
    if isinstance(module, Norm):
        return module.name not in ("word_embeddings_layernorm", "per_layer_projection_norm")
    return module.name.startswith((*HEADS, "project_out", "altup_unembed_projections"))


def is_quantized(module: Module, adapters: Adapters) -> bool:
    """Whether bitsandbytes packs this module: every linear except the head (a yes or no; the same on every GPU).

    Falcon's linears have a class of their own and are not packed; neither is the last one of an OLMo with a tied head.
    Source: transformers 5.23, quantizers/base.py, ``get_keys_to_not_convert`` (output embedding and tied keys stay);
    integrations/bitsandbytes.py, ``replace_with_bnb_linear`` (``type(module) is nn.Linear``).
    """
    if not adapters.has_packed_base or not isinstance(module, Linear):
        return False
    return module.name not in HEADS and not (module.own_class or module.is_last)

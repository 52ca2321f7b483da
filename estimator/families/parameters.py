"""Every family's weight-holding modules, and the counts that follow from them.

Modules are named as in transformers' module tree (read in 5.23, ``models/*/modeling_*.py``): a layer's modules relative
to the layer, the others by their own name. Weight bytes, gradients, optimizer states, adapters and 4-bit sizes are all
sums over these tables. Counts are elements, for the whole model, before any sharding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from math import prod

from estimator.values.refusals import NOT_MODELLED, InputError, Line, Refusal, RefusedError
from estimator.values.specs import ALL_LINEAR, Method, Model, TrainingSetup


@dataclass(frozen=True, slots=True)
class Linear:
    """``nn.Linear``, or GPT-2's ``Conv1D``, whose weight is stored transposed."""

    name: str
    in_features: int
    out_features: int
    bias: bool = False
    conv1d: bool = False
    own_class: bool = False
    """A subclass of ``nn.Linear`` with a forward of its own: FalconLinear, which 4-bit loading leaves whole
    (transformers 5.23, integrations/bitsandbytes.py: ``type(module) is nn.Linear``)."""
    routes: bool = False
    """The router of a mixture of experts, a subclass too, whose output is several tensors: PEFT's wrapper stops at it
    (PEFT 0.21, tuners/lora/layer.py, ``Linear.forward``: ``result.dtype``)."""
    is_last: bool = False
    """Has the model's last parameter, which transformers takes for the head's and leaves whole when it packs
    (transformers 5.23, quantizers/base.py, ``get_keys_to_not_convert``)."""
    unadaptable: bool = False
    """PEFT refuses an adapter here, since a kernel would read the weight past it (PEFT 0.21, tuners/tuners_utils.py,
    ``_check_lora_target_modules_mamba``)."""
    shadowed: bool = False
    """Has a name that experts' linears once had: PEFT takes the name for their stack, and leaves this alone
    (PEFT 0.21, utils/transformers_weight_conversion.py, ``_convert_peft_config_moe``)."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over ``width`` elements. xIELU's two learned scalars are one too: weight and bias of width 1."""

    name: str
    width: int
    weight: bool = True
    bias: bool = False
    taps: int = 0
    """No norm but a short convolution (LFM2, Mamba 2, delta-nets): each of ``width`` channels has a filter of so many
    numbers."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """A table of ``rows`` vectors."""

    name: str
    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class Bare:
    """A bare parameter of a mixture of experts: the router's matrix, or all experts' matrices as one stack.

    No ``nn.Linear``: 4-bit loading leaves it whole (transformers 5.23, integrations/bitsandbytes.py,
    ``replace_with_bnb_linear``), and LoRA reaches it only by the names its parts once had.
    """

    name: str
    in_features: int
    out_features: int
    stack: int = 0
    """How many experts; 0: a single matrix."""
    former_names: tuple[str, ...] = ()
    """Names of the linears that it was before transformers 5, which PEFT turns into it; one rank for each."""
    bias: bool = False
    """A second parameter beside it: one number an output, of a stack one an output and expert (GPT-OSS)."""
    transposed: bool = False
    """Held as [experts, in, out]."""
    float32: bool = False
    """Made and kept in float32 whatever the model's dtype (transformers 5.23, ``_keep_in_fp32_modules_strict``)."""


Module = Linear | Norm | Embedding | Bare

# rows: OPTLearnedPositionalEmbedding.offset, transformers 5.23 models/opt/modeling_opt.py
OPT_POSITION_OFFSET = 2

DENSE = "dense"
"""A layer of a mixture of experts that has one MLP instead: ``mlp_layer_types``."""
FULL_ATTENTION = "full_attention"
"""A layer without a window: ``layer_types``."""
CONVOLUTION = "conv"
"""A layer of LFM2 with a short convolution in attention's place: ``layer_types``."""
SHORT_FILTER = 3
"""Numbers in each of its filters: ``conv_L_cache``, as all of LFM2 have it."""
LINEAR_ATTENTION = "linear_attention"
"""A layer whose states stand for what came before, in attention's place: ``layer_types``."""
MAMBA = "mamba"
"""What ``layer_kind`` calls such a layer with Mamba 2's mixer."""
DELTA = "delta"
"""What ``layer_kind`` calls such a layer with a gated delta-net (Qwen3-Next, Qwen3.5)."""
DELTA_FILTER = 4
"""Numbers in each filter of its convolution: ``linear_conv_kernel_dim``, as all of them have it."""
MLP, EXPERTS = "mlp", "moe"
"""A layer of Nemotron-H that is an MLP alone, or experts alone: ``layer_types``."""
WITHOUT_ATTENTION = (CONVOLUTION, LINEAR_ATTENTION, MLP, EXPERTS)
"""Layers that hold something else in attention's place: they read no mask of queries and keys."""
LAST = "last"
"""The last layer of an OLMo whose head is tied: its norms have no weights, so the model's last parameter is here."""
UNTURNED = "unturned"
"""A layer of Llama 4 whose queries and keys are not turned: it has no norm of these either."""

GLOBAL = "global"
"""A layer of Gemma 4 without a window, whose heads are wider."""
REUSING = "reusing"
"""A layer that takes the keys and values of a layer before it: ``num_kv_shared_layers``."""
KEEPING = "keeping"
"""The layer whose keys and values these take."""
FIRST_BACK = "reusing, first in backward"
"""The last of them, whose gradient of these keys and values is the first."""

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


def _separate_attention(
    model: Model, *, bias: bool, output_bias: bool, block: str = "self_attn", output: str = "o_proj"
) -> tuple[Linear, ...]:
    return (
        Linear(f"{block}.q_proj", model.hidden_size, model.query_size, bias),
        Linear(f"{block}.k_proj", model.hidden_size, model.key_value_size, bias),
        Linear(f"{block}.v_proj", model.hidden_size, model.key_value_size, bias),
        Linear(f"{block}.{output}", model.query_size, model.hidden_size, output_bias),
    )


def _configured_attention(model: Model) -> tuple[Linear, ...]:
    return _separate_attention(
        model, bias=model.attention_bias, output_bias=model.attention_output_bias
    )


def _fused_attention(
    model: Model, fused: str, output: str, *, bias: bool, output_bias: bool, conv1d: bool = False
) -> tuple[Linear, ...]:
    return (
        Linear(fused, model.hidden_size, model.query_size + 2 * model.key_value_size, bias, conv1d),
        Linear(output, model.query_size, model.hidden_size, output_bias, conv1d),
    )


def _gated_mlp(model: Model, *, bias: bool = False) -> tuple[Linear, ...]:
    return (
        Linear("mlp.gate_proj", model.hidden_size, model.intermediate_size, bias),
        Linear("mlp.up_proj", model.hidden_size, model.intermediate_size, bias),
        Linear("mlp.down_proj", model.intermediate_size, model.hidden_size, bias),
    )


def _fused_gated_mlp(model: Model) -> tuple[Linear, ...]:
    return (
        Linear("mlp.gate_up_proj", model.hidden_size, 2 * model.intermediate_size),
        Linear("mlp.down_proj", model.intermediate_size, model.hidden_size),
    )


def _plain_mlp(
    model: Model, up: str, down: str, *, bias: bool, conv1d: bool = False
) -> tuple[Linear, ...]:
    return (
        Linear(up, model.hidden_size, model.intermediate_size, bias, conv1d),
        Linear(down, model.intermediate_size, model.hidden_size, bias, conv1d),
    )


def _experts(
    model: Model,
    block: str,
    *,
    router: str = "gate",
    former: tuple[str, str, str, str] | None = None,
) -> tuple[Bare, Bare, Bare]:
    """A router, and the experts' gates and ups as one stack, downs as another.

    ``former``: what router, gate, up and down were called, where PEFT still takes these names.
    Source: transformers 5.23, models/mixtral/modeling_mixtral.py, ``MixtralTopKRouter`` and ``MixtralExperts``.
    """
    hidden, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    was_router, was_gate, was_up, was_down = ((name,) for name in former) if former else ((),) * 4
    return (
        Bare(f"{block}.{router}", hidden, experts, former_names=was_router),
        Bare(f"{block}.experts.gate_up_proj", hidden, 2 * width, experts, was_gate + was_up),
        Bare(f"{block}.experts.down_proj", width, hidden, experts, was_down),
    )


def _norms(model: Model, *names: str, bias: bool = False) -> tuple[Norm, ...]:
    weight = not model.norms_without_weight
    return tuple(Norm(name, model.hidden_size, weight, bias and weight) for name in names)


def _head_norms(model: Model, query: str, key: str) -> tuple[Norm, ...]:
    """Norms over one head, with one weight for all heads."""
    return (Norm(f"self_attn.{query}", model.head_dim), Norm(f"self_attn.{key}", model.head_dim))


def _wide_norms(model: Model) -> tuple[Norm, ...]:
    """Norms with a weight for every head: OLMo 2 normalises across the heads, Cohere within each."""
    return (
        Norm("self_attn.q_norm", model.query_size),
        Norm("self_attn.k_norm", model.key_value_size),
    )


def _llama(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model, bias=model.mlp_bias),
    )


def _qwen2(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_separate_attention(model, bias=True, output_bias=False),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
    )


def _qwen3(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_head_norms(model, "q_norm", "k_norm"),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
    )


# PEFT 0.21, utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING, for the model types that transformers
# 5.23, conversion_mapping.py, _MODEL_TO_CONVERSION_PATTERN, maps to "mixtral" or to "qwen2_moe" (which itself is not).
_MIXTRAL_NAMES = ("gate", "w1", "w3", "w2")
_QWEN_NAMES = ("gate", "gate_proj", "up_proj", "down_proj")


def _mixtral(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_MIXTRAL_NAMES),
    )


def _qwen3_moe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_head_norms(model, "q_norm", "k_norm"),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_QWEN_NAMES),
    )


def _phimoe(model: Model) -> tuple[Module, ...]:
    _, gates_and_ups, downs = _experts(model, "mlp")
    router = Linear("mlp.router", model.hidden_size, model.num_experts)
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm", bias=True),
        replace(router, own_class=True, routes=True),
        gates_and_ups,
        downs,
    )


def _phimoe_outer(model: Model) -> tuple[Module, ...]:
    return _outer("embed_tokens", "norm", norm_bias=True, head_bias=model.lm_head_bias)(model)


def _olmoe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_wide_norms(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_QWEN_NAMES),
    )


def _qwen2_moe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts_and_shared(model),
    )


def _experts_and_shared(
    model: Model, former: tuple[str, str, str, str] | None = None
) -> tuple[Module, ...]:
    """Experts, and one that sees every token, times a gate of its own."""
    hidden, width = model.hidden_size, model.shared_expert_intermediate_size
    shadowed = former is not None
    return (
        *_experts(model, "mlp", former=former),
        Linear("mlp.shared_expert.gate_proj", hidden, width, shadowed=shadowed),
        Linear("mlp.shared_expert.up_proj", hidden, width, shadowed=shadowed),
        Linear("mlp.shared_expert.down_proj", width, hidden, shadowed=shadowed),
        Linear("mlp.shared_expert_gate", hidden, 1),
    )


def _granitemoe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "block_sparse_moe", router="router"),
    )


def _gpt_oss(model: Model) -> tuple[Module, ...]:
    router, gates_and_ups, downs = _experts(model, "mlp", router="router")
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        Norm("self_attn.sinks", model.num_attention_heads),
        *_norms(model, "post_attention_layernorm"),
        replace(router, bias=True),
        replace(gates_and_ups, bias=True, transposed=True),
        replace(downs, bias=True, transposed=True),
    )


def _shared_experts(model: Model) -> tuple[Linear, ...]:
    hidden, width = model.hidden_size, model.shared_expert_intermediate_size
    bias = model.mlp_bias
    if not width:
        return ()
    return (
        Linear("mlp.shared_experts.gate_proj", hidden, width, bias, shadowed=True),
        Linear("mlp.shared_experts.up_proj", hidden, width, bias, shadowed=True),
        Linear("mlp.shared_experts.down_proj", width, hidden, bias, shadowed=True),
    )


def _shadowed_mlp(model: Model) -> tuple[Linear, ...]:
    """The MLP of a layer without experts."""
    return tuple(replace(it, shadowed=True) for it in _gated_mlp(model, bias=model.mlp_bias))


def _latent_attention(model: Model) -> tuple[Module, ...]:
    hidden, rank, bias = model.hidden_size, model.kv_lora_rank, model.attention_bias
    heads, rope = model.num_attention_heads, model.qk_rope_head_dim
    keys_and_values = heads * (model.qk_nope_head_dim + model.v_head_dim)
    if model.q_lora_rank:
        queries: tuple[Module, ...] = (
            Linear("self_attn.q_a_proj", hidden, model.q_lora_rank, bias),
            Norm("self_attn.q_a_layernorm", model.q_lora_rank),
            Linear("self_attn.q_b_proj", model.q_lora_rank, model.query_size),
        )
    else:
        queries = (Linear("self_attn.q_proj", hidden, model.query_size),)
    return (
        *queries,
        Linear("self_attn.kv_a_proj_with_mqa", hidden, rank + rope, bias),
        Norm("self_attn.kv_a_layernorm", rank),
        Linear("self_attn.kv_b_proj", rank, keys_and_values),
        Linear("self_attn.o_proj", model.value_size, hidden, bias),
    )


def _deepseek(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_latent_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_QWEN_NAMES),
        *_shared_experts(model),
    )


def _deepseek_dense(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_latent_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_shadowed_mlp(model),
    )


def _glm4_moe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *(_head_norms(model, "q_norm", "k_norm") if model.qk_norm else ()),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_QWEN_NAMES),
        *_shared_experts(model),
    )


def _glm4_moe_dense(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *(_head_norms(model, "q_norm", "k_norm") if model.qk_norm else ()),
        *_norms(model, "post_attention_layernorm"),
        *_shadowed_mlp(model),
    )


def _ernie_moe(model: Model) -> tuple[Module, ...]:
    """GLM-4.5's modules, with a router in float32; its correction bias is a parameter that is never trained."""
    modules = _glm4_moe(model)
    return tuple(
        replace(it, float32=True) if isinstance(it, Bare) and not it.stack else it for it in modules
    )


def _llama4_attention(model: Model, *, turned: bool = True) -> tuple[Module, ...]:
    normed = model.qk_norm and turned
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *((Norm("self_attn.qk_norm", model.head_dim, weight=False),) if normed else ()),
        *_norms(model, "post_attention_layernorm"),
    )


def _llama4(model: Model, *, turned: bool = True) -> tuple[Module, ...]:
    _, gates_and_ups, downs = _experts(model, "feed_forward")
    router = Linear("feed_forward.router", model.hidden_size, model.num_experts)
    shared = _gated(model, "feed_forward.shared_expert", model.shared_expert_intermediate_size)
    return (
        *_llama4_attention(model, turned=turned),
        replace(gates_and_ups, transposed=True),
        replace(downs, transposed=True),
        replace(router, own_class=True, routes=True),
        *shared,
    )


def _llama4_dense(model: Model, *, turned: bool = True) -> tuple[Module, ...]:
    mlp = _gated(model, "feed_forward", model.intermediate_size)
    return (*_llama4_attention(model, turned=turned), *mlp)


def _gated(model: Model, block: str, width: int) -> tuple[Linear, ...]:
    return (
        Linear(f"{block}.gate_proj", model.hidden_size, width),
        Linear(f"{block}.up_proj", model.hidden_size, width),
        Linear(f"{block}.down_proj", width, model.hidden_size),
    )


def _lfm2(model: Model) -> tuple[Module, ...]:
    return (
        *_separate_attention(model, bias=False, output_bias=False, output="out_proj"),
        *_head_norms(model, "q_layernorm", "k_layernorm"),
        *_lfm2_mlp(model),
    )


def _lfm2_convolution(model: Model) -> tuple[Module, ...]:
    hidden = model.hidden_size
    return (
        Norm("conv.conv", hidden, taps=SHORT_FILTER),
        Linear("conv.in_proj", hidden, 3 * hidden),
        Linear("conv.out_proj", hidden, hidden),
        *_lfm2_mlp(model),
    )


def _lfm2_mlp(model: Model) -> tuple[Module, ...]:
    hidden, width = model.hidden_size, model.intermediate_size
    return (
        Linear("feed_forward.w1", hidden, width),
        Linear("feed_forward.w3", hidden, width),
        Linear("feed_forward.w2", width, hidden),
        *_norms(model, "operator_norm", "ffn_norm"),
    )


def _mamba(model: Model, block: str, *, unadaptable: bool = False) -> tuple[Module, ...]:
    """Mamba 2's mixer: three numbers a head, filters, and two projections around the scan."""
    sizes = model.state_space
    assert sizes is not None
    return (
        *(Norm(f"{block}.{name}", sizes.heads) for name in ("dt_bias", "A_log", "D")),
        Norm(f"{block}.conv1d", sizes.conv_width, bias=sizes.conv_bias, taps=sizes.conv_kernel),
        Linear(f"{block}.in_proj", model.hidden_size, sizes.projected_width, sizes.in_bias),
        *([Norm(f"{block}.norm", sizes.width)] if sizes.is_normed else []),
        Linear(
            f"{block}.out_proj",
            sizes.width,
            model.hidden_size,
            sizes.out_bias,
            unadaptable=unadaptable,
        ),
    )


def _output_gated_attention(model: Model) -> tuple[Module, ...]:
    """The projection of queries makes a gate of the output beside them."""
    hidden, bias = model.hidden_size, model.attention_bias
    return (
        Linear("self_attn.q_proj", hidden, 2 * model.query_size, bias),
        Linear("self_attn.k_proj", hidden, model.key_value_size, bias),
        Linear("self_attn.v_proj", hidden, model.key_value_size, bias),
        Linear("self_attn.o_proj", model.query_size, hidden, model.attention_output_bias),
        *_head_norms(model, "q_norm", "k_norm"),
    )


def _delta_net(model: Model, *, fused: bool = False) -> tuple[Module, ...]:
    """``fused``: one projection for queries, keys, values and gates, one for learning rate and decay (Qwen3-Next)."""
    assert model.delta_net is not None
    hidden, heads = model.hidden_size, model.delta_net.value_heads
    keys, values = model.delta_net.key_width, model.delta_net.value_width
    projections = (
        (("in_proj_qkvz", 2 * (keys + values)), ("in_proj_ba", 2 * heads))
        if fused
        else (
            ("in_proj_qkv", 2 * keys + values),
            ("in_proj_z", values),
            ("in_proj_b", heads),
            ("in_proj_a", heads),
        )
    )
    return (
        Norm("linear_attn.dt_bias", heads),
        Norm("linear_attn.A_log", heads),
        Norm("linear_attn.conv1d", 2 * keys + values, taps=DELTA_FILTER),
        Norm("linear_attn.norm", model.delta_net.value_dim),
        Linear("linear_attn.out_proj", values, hidden),
        *(Linear(f"linear_attn.{name}", hidden, width) for name, width in projections),
    )


Mixer = Callable[[Model], tuple[Module, ...]]


def _qwen3_5(model: Model, *, mixer: Mixer = _output_gated_attention) -> tuple[Module, ...]:
    norms = _norms(model, "input_layernorm", "post_attention_layernorm")
    return (*mixer(model), *_gated_mlp(model), *norms)


def _qwen3_5_moe(model: Model, *, mixer: Mixer = _output_gated_attention) -> tuple[Module, ...]:
    norms = _norms(model, "input_layernorm", "post_attention_layernorm")
    return (*mixer(model), *_experts_and_shared(model), *norms)


def _qwen3_next(model: Model, *, mixer: Mixer = _output_gated_attention) -> tuple[Module, ...]:
    norms = _norms(model, "input_layernorm", "post_attention_layernorm")
    return (*mixer(model), *_experts_and_shared(model, _QWEN_NAMES), *norms)


def _granite_hybrid(model: Model) -> tuple[Module, ...]:
    """Granite 4.0: what is called shared is the only MLP where there are no experts."""
    return (*_granite_mlp(model), *_configured_attention(model))


def _granite_mamba(model: Model) -> tuple[Module, ...]:
    return (*_granite_mlp(model), *_mamba(model, "mamba"))


def _falcon_h1(model: Model) -> tuple[Module, ...]:
    """Both in every layer: a mixer and attention."""
    hidden, width, bias = model.hidden_size, model.intermediate_size, model.mlp_bias
    return (
        Linear("feed_forward.gate_proj", hidden, width, bias),
        Linear("feed_forward.up_proj", hidden, width, bias),
        Linear("feed_forward.down_proj", width, hidden, bias),
        *_mamba(model, "mamba", unadaptable=True),
        *_configured_attention(model),
        *_norms(model, "input_layernorm", "pre_ff_layernorm"),
    )


def _nemotron_h(model: Model) -> tuple[Module, ...]:
    """One mixer a layer: attention, or one of those below."""
    attention = _separate_attention(model, bias=False, output_bias=False, block="mixer")
    return (*_norms(model, "norm"), *attention)


def _nemotron_h_mamba(model: Model) -> tuple[Module, ...]:
    return (*_norms(model, "norm"), *_mamba(model, "mixer", unadaptable=True))


def _nemotron_h_mlp(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "norm"),
        *_plain_mlp(model, "mixer.up_proj", "mixer.down_proj", bias=model.mlp_bias),
    )


def _nemotron_h_experts(model: Model) -> tuple[Module, ...]:
    """Experts of two matrices each, and a shared one."""
    hidden, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    shared, bias = model.shared_expert_intermediate_size, model.mlp_bias
    return (
        *_norms(model, "norm"),
        Bare("mixer.experts.up_proj", hidden, width, experts),
        Bare("mixer.experts.down_proj", width, hidden, experts),
        Bare("mixer.gate", hidden, experts),
        Linear("mixer.shared_experts.up_proj", hidden, shared, bias),
        Linear("mixer.shared_experts.down_proj", shared, hidden, bias),
    )


def _granite_mlp(model: Model) -> tuple[Module, ...]:
    hidden, width = model.hidden_size, model.intermediate_size
    experts = _experts(model, "block_sparse_moe", router="router") if model.num_experts else ()
    return (
        *_norms(model, "input_layernorm", "post_attention_layernorm"),
        *experts,
        Linear("shared_mlp.input_linear", hidden, 2 * width),
        Linear("shared_mlp.output_linear", width, hidden),
    )


def _hunyuan(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_head_norms(model, "query_layernorm", "key_layernorm"),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
    )


def _arcee(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_plain_mlp(model, "mlp.up_proj", "mlp.down_proj", bias=model.mlp_bias),
    )


def _nemotron(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm", bias=True),
        *_plain_mlp(model, "mlp.up_proj", "mlp.down_proj", bias=model.mlp_bias),
    )


def _apertus(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "attention_layernorm"),
        *_configured_attention(model),
        *_head_norms(model, "q_norm", "k_norm"),
        *_norms(model, "feedforward_layernorm"),
        *_plain_mlp(model, "mlp.up_proj", "mlp.down_proj", bias=False),
        Norm(
            "mlp.act_fn", 1, bias=True
        ),  # xIELU's alpha_p and alpha_n, transformers 5.23 activations.py
    )


def _gemma2(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm", "pre_feedforward_layernorm"),
        *_gated_mlp(model),
        *_norms(model, "post_feedforward_layernorm"),
    )


def _gemma3(model: Model) -> tuple[Module, ...]:
    return (*_gemma2(model), *_head_norms(model, "q_norm", "k_norm"))


def _gemma4(model: Model, *, is_global: bool = False, reuses: bool = False) -> tuple[Module, ...]:
    """``model`` as this layer sees it, by ``layer_model``."""
    hidden, bias = model.hidden_size, model.attention_bias
    own = (
        Norm("self_attn.k_norm", model.head_dim),
        Norm("self_attn.v_norm", model.head_dim, weight=False),
        Linear("self_attn.k_proj", hidden, model.key_value_size, bias),
        *(
            ()
            if is_global and model.attention_k_eq_v
            else (Linear("self_attn.v_proj", hidden, model.key_value_size, bias),)
        ),
    )
    return (
        Linear("self_attn.q_proj", hidden, model.query_size, bias),
        Norm("self_attn.q_norm", model.head_dim),
        *(() if reuses else own),
        Linear("self_attn.o_proj", model.query_size, hidden, bias),
        *_gated_mlp(model),
        *_norms(model, "input_layernorm", "post_attention_layernorm"),
        *_norms(model, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        *_layer_input(model),
        *(_gemma4_experts(model) if model.num_experts else ()),
    )


def _layer_input(model: Model) -> tuple[Module, ...]:
    """What brings a layer's own embedding in."""
    hidden, width = model.hidden_size, model.hidden_size_per_layer_input
    if not width:
        return ()
    return (
        Linear("per_layer_input_gate", hidden, width),
        Linear("per_layer_projection", width, hidden),
        *_norms(model, "post_per_layer_input_norm"),
    )


def _gemma3n(model: Model, *, reuses: bool = False) -> tuple[Module, ...]:
    hidden, streams, rank = model.hidden_size, model.altup_num_inputs, model.laurel_rank
    return (
        *_gemma4(model, reuses=reuses),
        Norm("altup.correct_output_scale", hidden),
        Linear("altup.correction_coefs", streams, streams),
        Linear("altup.prediction_coefs", streams, streams**2),
        Linear("altup.modality_router", hidden, streams),
        *_norms(model, "altup.router_norm"),
        Linear("laurel.linear_left", hidden, rank),
        Linear("laurel.linear_right", rank, hidden),
        *_norms(model, "laurel.post_laurel_norm"),
    )


def _gemma3n_outer(model: Model) -> tuple[Module, ...]:
    hidden = model.hidden_size
    projections = (
        Linear(f"{block}.{index}", hidden, hidden)
        for block in ("altup_projections", "altup_unembed_projections")
        for index in range(model.altup_num_inputs - 1)
    )
    return (*_gemma4_outer(model), *projections)


def _gemma4_experts(model: Model) -> tuple[Module, ...]:
    """A mixture beside the MLP; the router scales its input and each expert's share."""
    hidden, experts = model.hidden_size, model.num_experts
    _, gates_and_ups, downs = _experts(model, "")
    return (
        Norm("router.scale", hidden),
        Norm("router.per_expert_scale", experts),
        Norm("router.norm", hidden, weight=False),
        Linear("router.proj", hidden, experts),
        replace(gates_and_ups, name="experts.gate_up_proj"),
        replace(downs, name="experts.down_proj"),
        *_norms(model, "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"),
        *_norms(model, "pre_feedforward_layernorm_2"),
    )


def _gemma4_outer(model: Model) -> tuple[Module, ...]:
    embedding, norm, *head = _LLAMA_OUTER(model)
    width = model.hidden_size_per_layer_input
    of_all_layers = model.num_hidden_layers * width
    of_layers = (
        Embedding("embed_tokens_per_layer", model.vocab_size_per_layer_input, of_all_layers),
        Linear("per_layer_model_projection", model.hidden_size, of_all_layers),
        Norm("per_layer_projection_norm", width),
    )
    return (embedding, norm, *(of_layers if width else ()), *head)


def _phi3(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_fused_attention(
            model, "self_attn.qkv_proj", "self_attn.o_proj", bias=False, output_bias=False
        ),
        *_norms(model, "post_attention_layernorm"),
        *_fused_gated_mlp(model),
    )


def _phi(model: Model) -> tuple[Module, ...]:
    head_norms = (
        Norm("self_attn.q_layernorm", model.head_dim, bias=True),
        Norm("self_attn.k_layernorm", model.head_dim, bias=True),
    )
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_separate_attention(model, bias=True, output_bias=True, output="dense"),
        *(head_norms if model.qk_norm else ()),
        *_plain_mlp(model, "mlp.fc1", "mlp.fc2", bias=True),
    )


def _olmo(model: Model) -> tuple[Module, ...]:
    return (
        Norm("input_layernorm", model.hidden_size, weight=False),
        *_configured_attention(model),
        Norm("post_attention_layernorm", model.hidden_size, weight=False),
        *_gated_mlp(model),
    )


def _olmo_last(model: Model) -> tuple[Module, ...]:
    *rest, down = _olmo(model)
    assert isinstance(down, Linear)
    return (*rest, replace(down, is_last=True))


def _olmo2(model: Model) -> tuple[Module, ...]:
    return (
        *_configured_attention(model),
        *_wide_norms(model),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
        *_norms(model, "post_feedforward_layernorm"),
    )


def _exaone4(model: Model) -> tuple[Module, ...]:
    return (
        *_separate_attention(model, bias=False, output_bias=False),
        *_head_norms(model, "q_norm", "k_norm"),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
        *_norms(model, "post_feedforward_layernorm"),
    )


def _gpt2(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "ln_1", bias=True),
        *_fused_attention(
            model, "attn.c_attn", "attn.c_proj", bias=True, output_bias=True, conv1d=True
        ),
        *_norms(model, "ln_2", bias=True),
        *_plain_mlp(model, "mlp.c_fc", "mlp.c_proj", bias=True, conv1d=True),
    )


def _gpt_bigcode(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "ln_1", bias=True),
        *_fused_attention(model, "attn.c_attn", "attn.c_proj", bias=True, output_bias=True),
        *_norms(model, "ln_2", bias=True),
        *_plain_mlp(model, "mlp.c_fc", "mlp.c_proj", bias=True),
    )


def _gptj(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "ln_1", bias=True),
        *_separate_attention(model, bias=False, output_bias=False, block="attn", output="out_proj"),
        *_plain_mlp(model, "mlp.fc_in", "mlp.fc_out", bias=True),
    )


def _gpt_neox(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_fused_attention(
            model,
            "attention.query_key_value",
            "attention.dense",
            bias=model.attention_bias,
            output_bias=model.attention_output_bias,
        ),
        *_norms(model, "post_attention_layernorm", bias=True),
        *_plain_mlp(model, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
    )


def _bloom(model: Model) -> tuple[Module, ...]:
    fused, output = "self_attention.query_key_value", "self_attention.dense"
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_fused_attention(model, fused, output, bias=True, output_bias=True),
        *_norms(model, "post_attention_layernorm", bias=True),
        *_plain_mlp(model, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
    )


def _falcon(model: Model) -> tuple[Module, ...]:
    linears = (
        *_fused_attention(
            model,
            "self_attention.query_key_value",
            "self_attention.dense",
            bias=model.attention_bias,
            output_bias=model.attention_output_bias,
        ),
        *_plain_mlp(model, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=model.mlp_bias),
    )
    return (
        *_norms(model, *falcon_norm_names(model), bias=True),
        *(replace(linear, own_class=True) for linear in linears),
    )


def falcon_norm_names(model: Model) -> tuple[str, ...]:
    """Names of one Falcon layer's norms (no unit; per layer).

    One for Falcon 7B and 11B, whose attention and MLP read the same norm; two of its own kind for 40B and 180B; the
    classic two for RefinedWeb models without a parallel residual.

    Source: transformers 5.23 models/falcon/modeling_falcon.py, FalconDecoderLayer.__init__.

    >>> from dataclasses import replace
    >>> falcon_7b = Model(model_type="falcon", vocab_size=65024, hidden_size=4544, intermediate_size=18176,
    ...                   num_hidden_layers=32, num_attention_heads=71, num_key_value_heads=1, head_dim=64,
    ...                   parallel_residual=True)
    >>> falcon_norm_names(falcon_7b)
    ('input_layernorm',)
    >>> falcon_norm_names(replace(falcon_7b, new_decoder_architecture=True))
    ('ln_attn', 'ln_mlp')
    """
    if model.new_decoder_architecture and model.num_ln_in_parallel_attn == 2:
        return ("ln_attn", "ln_mlp")
    if model.parallel_residual or model.new_decoder_architecture:
        return ("input_layernorm",)
    return ("input_layernorm", "post_attention_layernorm")


def _mpt(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "norm_1"),
        *_fused_attention(model, "attn.Wqkv", "attn.out_proj", bias=False, output_bias=False),
        *_norms(model, "norm_2"),
        *_plain_mlp(model, "ffn.up_proj", "ffn.down_proj", bias=False),
    )


def _opt(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "self_attn_layer_norm", bias=True),
        *_separate_attention(
            model,
            bias=model.attention_bias,
            output_bias=model.attention_output_bias,
            output="out_proj",
        ),
        *_norms(model, "final_layer_norm", bias=True),
        *_plain_mlp(model, "fc1", "fc2", bias=model.mlp_bias),
    )


def _starcoder2(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm", bias=True),
        *_plain_mlp(model, "mlp.c_fc", "mlp.c_proj", bias=model.mlp_bias),
    )


def _stablelm(model: Model) -> tuple[Module, ...]:
    heads = (("q", model.num_attention_heads), ("k", model.num_key_value_heads))
    head_norms = tuple(
        Norm(f"self_attn.{side}_layernorm.norms.{head}", model.head_dim)
        for side, count in heads
        for head in range(count)
    )
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_separate_attention(model, bias=model.attention_bias, output_bias=False),
        *(head_norms if model.qk_norm else ()),
        *(() if model.parallel_residual else _norms(model, "post_attention_layernorm", bias=True)),
        *_gated_mlp(model),
    )


def _cohere(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *(_wide_norms(model) if model.qk_norm else ()),
        *_gated_mlp(model),
    )


def _glm(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_separate_attention(model, bias=model.attention_bias, output_bias=False),
        *_norms(model, "post_attention_layernorm"),
        *_fused_gated_mlp(model),
    )


def _glm4(model: Model) -> tuple[Module, ...]:
    return (*_glm(model), *_norms(model, "post_self_attn_layernorm", "post_mlp_layernorm"))


def _outer(
    embedding: str,
    norm: str,
    *,
    norm_weight: bool = True,
    norm_bias: bool = False,
    head_bias: bool = False,
) -> Callable[[Model], tuple[Module, ...]]:
    def modules(model: Model) -> tuple[Module, ...]:
        return (
            Embedding(embedding, model.vocab_size, model.hidden_size),
            Norm(norm, model.hidden_size, norm_weight, norm_bias),
            *_head(model, model.hidden_size, bias=head_bias),
        )

    return modules


def _head(model: Model, width: int, *, bias: bool = False) -> tuple[Linear, ...]:
    return () if model.tie_word_embeddings else (Linear("lm_head", width, model.vocab_size, bias),)


def _learned_positions(model: Model, offset: int = 0) -> int:
    rows = model.learned_positions or (
        model.max_position_embeddings and model.max_position_embeddings + offset
    )
    if not rows:
        raise InputError(f"{model.model_type} learns its positions; give max_position_embeddings.")
    return rows


def _gpt2_outer(model: Model) -> tuple[Module, ...]:
    return (
        Embedding("wte", model.vocab_size, model.hidden_size),
        Embedding("wpe", _learned_positions(model), model.hidden_size),
        Norm("ln_f", model.hidden_size, bias=True),
        *_head(model, model.hidden_size),
    )


def _bloom_outer(model: Model) -> tuple[Module, ...]:
    embedding, *rest = _outer("word_embeddings", "ln_f", norm_bias=True)(model)
    return (embedding, Norm("word_embeddings_layernorm", model.hidden_size, bias=True), *rest)


def _opt_outer(model: Model) -> tuple[Module, ...]:
    width = model.word_embed_proj_dim or model.hidden_size
    projected = width != model.hidden_size
    return (
        Embedding("embed_tokens", model.vocab_size, width),
        Embedding(
            "embed_positions", _learned_positions(model, OPT_POSITION_OFFSET), model.hidden_size
        ),
        *((Linear("project_in", width, model.hidden_size),) if projected else ()),
        *(_norms(model, "final_layer_norm", bias=True) if model.do_layer_norm_before else ()),
        *((Linear("project_out", model.hidden_size, width),) if projected else ()),
        *_head(model, width),
    )


_LLAMA_OUTER = _outer("embed_tokens", "norm")


@dataclass(frozen=True, slots=True)
class _Family:
    layer: Callable[[Model], tuple[Module, ...]]
    outer: Callable[[Model], tuple[Module, ...]] = _LLAMA_OUTER
    others: Mapping[str, Callable[[Model], tuple[Module, ...]]] = field(default_factory=dict)
    """Layers that hold other modules, by what ``layer_kind`` calls them."""


_LLAMA = _Family(_llama)
_FAMILIES = {
    "apertus": _Family(_apertus),
    "arcee": _Family(_arcee),
    "bloom": _Family(_bloom, _bloom_outer),
    "cohere": _Family(_cohere),
    "cohere2": _Family(_cohere),
    "deepseek_v2": _Family(_deepseek, others={DENSE: _deepseek_dense}),
    "deepseek_v3": _Family(_deepseek, others={DENSE: _deepseek_dense}),
    "ernie4_5": _LLAMA,
    "ernie4_5_moe": _Family(_ernie_moe, others={DENSE: _glm4_moe_dense}),
    "exaone4": _Family(_exaone4),
    "falcon": _Family(_falcon, _outer("word_embeddings", "ln_f", norm_bias=True)),
    "falcon_h1": _Family(_falcon_h1, _outer("embed_tokens", "final_layernorm")),
    "gemma": _LLAMA,
    "gemma2": _Family(_gemma2),
    "gemma3_text": _Family(_gemma3),
    "gemma3n_text": _Family(
        _gemma3n, _gemma3n_outer, others={REUSING: partial(_gemma3n, reuses=True)}
    ),
    "gemma4_text": _Family(
        _gemma4,
        _gemma4_outer,
        others={
            GLOBAL: partial(_gemma4, is_global=True),
            REUSING: partial(_gemma4, reuses=True),
            f"{GLOBAL}-{REUSING}": partial(_gemma4, is_global=True, reuses=True),
        },
    ),
    "glm": _Family(_glm),
    "glm4": _Family(_glm4),
    "glm4_moe": _Family(_glm4_moe, others={DENSE: _glm4_moe_dense}),
    "glm4_moe_lite": _Family(_deepseek, others={DENSE: _deepseek_dense}),
    "gpt2": _Family(_gpt2, _gpt2_outer),
    "gpt_bigcode": _Family(_gpt_bigcode, _gpt2_outer),
    "gpt_oss": _Family(_gpt_oss),
    "gpt_neox": _Family(_gpt_neox, _outer("embed_in", "final_layer_norm", norm_bias=True)),
    "gptj": _Family(_gptj, _outer("wte", "ln_f", norm_bias=True, head_bias=True)),
    "granite": _LLAMA,
    "granitemoe": _Family(_granitemoe),
    "granitemoehybrid": _Family(_granite_hybrid, others={MAMBA: _granite_mamba}),
    "hunyuan_v1_dense": _Family(_hunyuan),
    "internlm3": _LLAMA,
    "lfm2": _Family(
        _lfm2, _outer("embed_tokens", "embedding_norm"), others={CONVOLUTION: _lfm2_convolution}
    ),
    "llama": _LLAMA,
    "llama4_text": _Family(
        _llama4,
        others={
            DENSE: _llama4_dense,
            UNTURNED: partial(_llama4, turned=False),
            f"{DENSE}-{UNTURNED}": partial(_llama4_dense, turned=False),
        },
    ),
    "ministral3": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _Family(_mixtral),
    "mpt": _Family(_mpt, _outer("wte", "norm_f")),
    "nemotron": _Family(_nemotron, _outer("embed_tokens", "norm", norm_bias=True)),
    "nemotron_h": _Family(
        _nemotron_h,
        _outer("embeddings", "norm_f"),
        others={MAMBA: _nemotron_h_mamba, MLP: _nemotron_h_mlp, EXPERTS: _nemotron_h_experts},
    ),
    "olmo": _Family(
        _olmo, _outer("embed_tokens", "norm", norm_weight=False), others={LAST: _olmo_last}
    ),
    "olmo2": _Family(_olmo2),
    "olmo3": _Family(_olmo2),
    "olmoe": _Family(_olmoe),
    "opt": _Family(_opt, _opt_outer),
    "phi": _Family(_phi, _outer("embed_tokens", "final_layernorm", norm_bias=True, head_bias=True)),
    "phi3": _Family(_phi3),
    "phimoe": _Family(_phimoe, _phimoe_outer),
    "qwen2": _Family(_qwen2),
    "qwen2_moe": _Family(_qwen2_moe),
    "qwen3": _Family(_qwen3),
    "qwen3_5_moe_text": _Family(
        _qwen3_5_moe, others={DELTA: partial(_qwen3_5_moe, mixer=_delta_net)}
    ),
    "qwen3_5_text": _Family(_qwen3_5, others={DELTA: partial(_qwen3_5, mixer=_delta_net)}),
    "qwen3_moe": _Family(_qwen3_moe),
    "qwen3_next": _Family(
        _qwen3_next,
        others={DELTA: partial(_qwen3_next, mixer=partial(_delta_net, fused=True))},
    ),
    "seed_oss": _LLAMA,
    "smollm3": _LLAMA,
    "stablelm": _Family(_stablelm, _outer("embed_tokens", "norm", norm_bias=True)),
    "starcoder2": _Family(_starcoder2, _outer("embed_tokens", "norm", norm_bias=True)),
}

MODELLED = frozenset(_FAMILIES)
"""The values of ``model_type`` that have a table."""


_STATE_SPACE = (
    "its state-space layers train by kernels of mamba-ssm and causal-conv1d, "
    "whose memory differs from that of the PyTorch code"
)
_LINEAR_ATTENTION = (
    "its linear attention trains by kernels of flash-linear-attention, "
    "whose memory differs from that of the PyTorch code"
)
BEYOND: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "bamba",
            "falcon_mamba",
            "jamba",
            "mamba",
            "mamba2",
            "zamba",
            "zamba2",
        ),
        _STATE_SPACE,
    ),
    **dict.fromkeys(
        (
            "kimi_linear",
            "minimax",
            "olmo_hybrid",
        ),
        _LINEAR_ATTENTION,
    ),
    "mllama": "some of its layers attend to the image",
    "mllama_text_model": "some of its layers attend to the image",
    "recurrent_gemma": "two of three layers are recurrent",
    "rwkv": "its layers are recurrent",
    "xlstm": "its layers are recurrent",
}
"""Architectures that people ask for and that have no table, each with the reason."""


UNKNOWN_ARCHITECTURE = Refusal(
    "architecture {model_type} is not modelled{hint}; modelled are: {names}; choose one of those.",
    NOT_MODELLED,
)
BEYOND_US = Refusal(
    "architecture {model_type} is not modelled: {why}; choose a model of another one.", NOT_MODELLED
)
COPIED_ROUTER = Refusal(
    "modules_to_save names {name!r}, a router or stacked experts, whose copies are not modelled yet; leave it out.",
    NOT_MODELLED,
)
COPIED_PACKED = Refusal(
    "modules_to_save names {name!r}, but {module} is packed by bitsandbytes and whole numbers have no gradient; leave "
    "it out, or take method lora on a base that is not packed.",
    Line("peft", "utils/other.py", 300, "param.requires_grad_(requires_grad)"),
)
COPIED_ADAPTER = Refusal(
    "modules_to_save names {name!r}, which also ends {module}, a layer with an adapter, and PEFT refuses to copy that; "
    "write the module's whole name.",
    Line("peft", "utils/other.py", 360, "cannot be applied to modules of type"),
)
NOTHING_TO_ADAPT = Refusal(
    "modules_to_save leaves no layer for an adapter, and PEFT refuses that; leave out some of {names}.",
    Line("peft", "tuners/tuners_utils.py", 1077, "No modules were targeted for adaptation."),
)
HALF_OF_A_MATRIX = Refusal(
    "lora_target_modules leaves out {missing}, which is one matrix with {named} in {model_type}; name both or neither.",
    Line("peft", "utils/transformers_weight_conversion.py", 467, "Cannot convert PEFT target(s)"),
)
READ_BY_KERNELS = Refusal(
    "lora_target_modules takes {module} of {model_type}, where PEFT refuses an adapter since kernels read its weight "
    "past it; name others, such as {others}.",
    Line("peft", "tuners/tuners_utils.py", 161, "is incompatible with Mamba-based models"),
)
ADAPTER_ON_ROUTER = Refusal(
    "lora_target_modules takes the router of {model_type}, at which PEFT's adapters stop ('tuple' object has no "
    "attribute 'dtype'); name others, such as {others}.",
    Line("peft", "tuners/lora/layer.py", 1089, "torch_result_dtype = result.dtype"),
)
DORA_ON_EXPERTS = Refusal(
    "use_dora cannot go with adapters on the router or the stacked experts of {model_type}, PEFT refuses it; turn it "
    "off, or name {others} in lora_target_modules.",
    Line("peft", "tuners/lora/layer.py", 2372, "does not work with use_dora=True."),
)
DROPOUT_ON_EXPERTS = Refusal(
    "lora_dropout {dropout:g} cannot go with adapters on the router or the stacked experts of {model_type}, PEFT "
    "refuses it; set lora_dropout to 0, or name {others} in lora_target_modules.",
    Line("peft", "tuners/lora/layer.py", 2366, "does not work with lora_dropout != 0."),
)


class NotModelledError(RefusedError):
    """The architecture has no table here."""


def beyond(model_type: str) -> NotModelledError:
    """The sentence that refuses one of ``BEYOND`` (no unit; per model).

    Source: BEYOND, this module.

    >>> str(beyond("rwkv"))
    "architecture 'rwkv' is not modelled: its layers are recurrent; choose a model of another one."
    """
    return NotModelledError(BEYOND_US, model_type=repr(model_type), why=BEYOND[model_type])


def check_modelled(model_type: str) -> None:
    """Refuse an architecture without a table, with the reason or the near ones (no unit; per model).

    Source: MODELLED, this module.

    >>> check_modelled("llama")
    >>> check_modelled("bert")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    estimator.families.parameters.NotModelledError: architecture 'bert' is not modelled; ...; choose one of those.
    """
    if model_type in MODELLED:
        return
    if model_type in BEYOND:
        raise beyond(model_type)
    near = get_close_matches(model_type, sorted(MODELLED))
    hint = f" (near: {', '.join(near)})" if near else ""
    names = ", ".join(sorted(MODELLED))
    raise NotModelledError(
        UNKNOWN_ARCHITECTURE, model_type=repr(model_type), hint=hint, names=names
    )


def _family(model: Model) -> _Family:
    check_modelled(model.model_type)
    return _FAMILIES[model.model_type]


def layer_kind(model: Model, index: int) -> str:
    """What tells a layer's modules from those of the family's usual layer (a name); empty: nothing.

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, the decoder layer's ``__init__``.

    >>> layer_kind(TINY_LLAMA, 0)
    ''
    """
    given = model.layer_types[index] if model.layer_types else ""
    if given in (CONVOLUTION, MLP, EXPERTS):
        return given
    if given == LINEAR_ATTENTION:
        return MAMBA if model.state_space else DELTA
    if model.model_type == "olmo" and model.tie_word_embeddings:
        return LAST if index == model.num_hidden_layers - 1 else ""
    if model.num_kv_shared_layers or model.model_type == "gemma4_text":
        may_be = model.model_type == "gemma4_text" and bool(model.layer_types)
        is_global = may_be and model.layer_types[index] == FULL_ATTENTION
        is_reusing = index >= model.num_hidden_layers - model.num_kv_shared_layers
        return "-".join([GLOBAL] * is_global + [REUSING] * is_reusing)
    is_dense = bool(model.mlp_layer_types) and model.mlp_layer_types[index] == DENSE
    has_norms = model.model_type == "llama4_text" and model.qk_norm and bool(model.no_rope_layers)
    is_unturned = has_norms and model.no_rope_layers[index]
    return "-".join([DENSE] * is_dense + [UNTURNED] * is_unturned)


@lru_cache(maxsize=1024)
def layer_groups(model: Model) -> tuple[tuple[int, int], ...]:
    """Of layers that hold the same modules the lowest, and how many there are (a count, whole model).

    Source: derived, from ``layer_kind``.

    >>> layer_groups(TINY_LLAMA)
    ((0, 2),)
    """
    kinds = [layer_kind(model, index) for index in range(model.num_hidden_layers)]
    return tuple((kinds.index(kind), count) for kind, count in Counter(kinds).items())


def layer_model(model: Model, index: int) -> Model:
    """The model as one layer sees it, with that layer's own heads and width (no unit; per layer).

    Source: transformers 5.23 models/gemma4/configuration_gemma4.py, ``per_layer_config``; models/gemma4/
    modeling_gemma4.py, ``Gemma4TextMLP.__init__`` (``use_double_wide_mlp``).

    >>> layer_model(TINY_LLAMA, 1) is TINY_LLAMA
    True
    >>> mixed = replace(TINY_LLAMA, layer_types=("sliding_attention", "full_attention"), global_head_dim=16)
    >>> [layer_model(mixed, index).head_dim for index in range(2)]
    [4, 16]
    """
    is_global = bool(model.global_head_dim) and model.layer_types[index] == FULL_ATTENTION
    first_reusing = model.num_hidden_layers - model.num_kv_shared_layers
    is_wide = model.use_double_wide_mlp and index >= first_reusing
    return _changed(model, is_global=is_global, is_wide=is_wide) if is_global or is_wide else model


@lru_cache(maxsize=256)
def _changed(model: Model, *, is_global: bool, is_wide: bool) -> Model:
    heads = model.num_global_key_value_heads or model.num_key_value_heads
    return replace(
        model,
        head_dim=model.global_head_dim if is_global else model.head_dim,
        num_key_value_heads=heads if is_global else model.num_key_value_heads,
        intermediate_size=(1 + is_wide) * model.intermediate_size,
    )


@lru_cache(maxsize=256)
def sharing_of_keys(model: Model) -> tuple[str, ...]:
    """Of every layer what it has to do with keys and values that layers share (a name each); empty: nothing.

    Source: transformers 5.23 models/gemma4/configuration_gemma4.py, ``kv_sharing_modes``.

    >>> sharing_of_keys(replace(TINY_LLAMA, num_hidden_layers=4, num_kv_shared_layers=2))
    ('', 'keeping', 'reusing', 'reusing, first in backward')
    """
    layers, shared = model.num_hidden_layers, model.num_kv_shared_layers
    if not shared:
        return ("",) * layers
    types = model.layer_types or (FULL_ATTENTION,) * layers
    modes = [""] * (layers - shared) + [REUSING] * shared
    for kind in set(types):
        own = [index for index in range(layers - shared) if types[index] == kind]
        others = [index for index in range(layers - shared, layers) if types[index] == kind]
        modes[own[-1]] = KEEPING
        if others:
            modes[others[-1]] = FIRST_BACK
    return tuple(modes)


def layer_modules(model: Model, index: int = 0) -> tuple[Module, ...]:
    """Modules with weights in decoder layer ``index``, sizes in elements, whole model.

    Leaves out: buffers.
    Error: none; compared with transformers' own module tree in tests/verify.
    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, the decoder layer's ``__init__``.

    >>> [module.name for module in layer_modules(TINY_LLAMA)][:4]
    ['input_layernorm', 'self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj']
    """
    if not 0 <= index < model.num_hidden_layers:
        raise InputError(
            f"layer {index} does not exist in a model of {model.num_hidden_layers} layers; count from 0."
        )
    family = _family(model)
    own = family.others.get(layer_kind(model, index), family.layer)
    return own(layer_model(model, index))


def modules_with_counts(model: Model) -> Iterator[tuple[Module, int]]:
    """Every module with weights, and how many alike there are, whole model.

    Source: derived, from ``outer_modules``, ``layer_modules`` and ``layer_groups``.

    >>> [count for module, count in modules_with_counts(TINY_LLAMA) if module.name == "self_attn.q_proj"]
    [2]
    """
    yield from ((module, 1) for module in outer_modules(model))
    for index, count in layer_groups(model):
        yield from ((module, count) for module in layer_modules(model, index))


def outer_modules(model: Model) -> tuple[Module, ...]:
    """Modules with weights outside the layers, sizes in elements, whole model; no ``lm_head`` where it is tied.

    Leaves out: buffers; vision and audio towers.
    Error: none; compared with transformers' own module tree in tests/verify.
    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, the model's ``__init__``.

    >>> [module.name for module in outer_modules(TINY_LLAMA)]
    ['embed_tokens', 'norm', 'lm_head']
    """
    return _family(model).outer(model)


def module_parameters(module: Module) -> int:
    """Parameters of one module in elements, whole model: the product of each shape, summed.

    Error: none; exact.
    Source: derived, from ``weight_shapes``.

    >>> module_parameters(Linear("q_proj", 8, 16, bias=True)) == 8 * 16 + 16
    True
    """
    return sum(prod(shape) for shape in weight_shapes(module))


def total_parameters(model: Model) -> int:
    """Parameters of the model in elements, whole job; a tied head counts once.

        Σ outer + Σ layers + what is never trained

    Leaves out: stored buffers and second copies of a tied head, which some Hub totals count (see data/models.csv).
    Error: none; equal to the published count of every row of data/models.csv.
    Source: Hub ``safetensors.total`` of each repository, by row in data/models.csv.

    >>> total_parameters(TINY_LLAMA) == 2 * 10 * 8 + 8 + 2 * (2 * 8 + 8 * (8 + 4 + 4 + 8) + 3 * 8 * 16)
    True
    """
    made = sum(count * module_parameters(module) for module, count in modules_with_counts(model))
    return made + untrained_parameters(model)


def untrained_parameters(model: Model) -> int:
    """Parameters that the class itself freezes, in elements, whole job: ERNIE's, one an expert in layers with experts.

    Error: none; exact. The other families keep this correction of the router's choice as a buffer.
    Source: transformers 5.23, models/ernie4_5_moe/modeling_ernie4_5_moe.py, ``Ernie4_5_MoeStatics``.

    >>> untrained_parameters(TINY_LLAMA)
    0
    """
    if model.model_type != "ernie4_5_moe":
        return 0
    kinds = model.mlp_layer_types or (EXPERTS,) * model.num_hidden_layers
    return model.num_experts * sum(kind != DENSE for kind in kinds)


def active_parameters(model: Model) -> int:
    """Parameters that one token passes through, in elements, whole job: all of them in a dense model.

        Σ outer + Σ layers, of each stack of experts k/E      k: experts a token, E: experts

    The embedding counts whole, though a token reads one row of it, and a head that is not tied counts too; so does
    every router. Cards that say "3B active" often leave the embedding out.

    Error: none; for Mixtral 8x7B it is the 12.9 B of its paper.
    Source: derived; Jiang et al. 2024, arXiv:2401.04088, section 2.1 ("active parameter count").

    >>> active_parameters(TINY_LLAMA) == total_parameters(TINY_LLAMA)
    True
    """
    idle = sum(
        count * module_parameters(it) * (it.stack - model.num_experts_per_tok) // it.stack
        for it, count in modules_with_counts(model)
        if isinstance(it, Bare) and it.stack
    )
    return total_parameters(model) - idle


def experts_run(model: Model) -> int:
    """Experts that every token is multiplied by (a count): those it is sent to, in Llama 4 all; 0 in a dense model.

    Source: transformers 5.23, integrations/moe.py, ``grouped_mm_experts_forward``; models/llama4/modeling_llama4.py,
    ``Llama4TextMoe.forward`` (``hidden_states.repeat``).

    >>> experts_run(TINY_LLAMA)
    0
    """
    return model.num_experts if model.model_type == "llama4_text" else model.num_experts_per_tok


POSITIONS_AND_LAYERS = ("wpe", "embed_positions", "embed_tokens_per_layer")
"""Embeddings beside that of the tokens, which get no adapter here."""


def is_adapted(module: Linear | Bare | Embedding, setup: TrainingSetup) -> bool:
    """Whether LoRA is put beside this layer (a yes or no; the same on every GPU).

    ``"all-linear"`` takes every Linear and Conv1D but ``lm_head``; a list takes a name that is listed or that ends
    in a dot and a listed name, so ``"c_proj"`` takes both of GPT-2's. Routers and stacked experts are taken by the
    names that they had as linears, so ``"all-linear"`` takes them too, where PEFT knows these names.

    The head and the embedding of the tokens are taken by name alone, the head also where it is tied.

    Leaves out: adapters on other embeddings; regular expressions; ``target_parameters``.
    Source: PEFT 0.21 tuners/tuners_utils.py, ``check_target_module_exists`` and ``_maybe_include_all_linear_layers``;
    utils/transformers_weight_conversion.py, ``_convert_peft_config_moe``.

    >>> setup = TrainingSetup(method=Method.LORA, lora_target_modules=("q_proj",))
    >>> is_adapted(Linear("self_attn.q_proj", 8, 8), setup), is_adapted(Linear("mlp.up_proj", 8, 8), setup)
    (True, False)
    """
    if not setup.uses_adapters or is_copied(module, setup):
        return False
    if isinstance(module, Linear) and module.shadowed:
        return False
    if isinstance(module, Embedding) and module.name in POSITIONS_AND_LAYERS:
        return False
    targets = setup.lora_target_modules
    if isinstance(targets, str):
        if targets != ALL_LINEAR:
            raise InputError(
                f'lora_target_modules {targets!r} is neither "all-linear" nor a list; give one of the two.'
            )
        if isinstance(module, Bare):
            return bool(module.former_names)
        return isinstance(module, Linear) and module.name != "lm_head"
    return any(_names(target, module) for target in targets)


def is_trained(module: Module, setup: TrainingSetup) -> bool:
    """Whether something of this module is trained: all of it, its adapter, or PEFT's copy of it (a yes or no).

    Source: derived, from ``is_adapted`` and ``is_copied``.

    >>> is_trained(Norm("norm", 8), TrainingSetup()), is_trained(Norm("norm", 8), TrainingSetup(method=Method.LORA))
    (True, False)
    """
    if not setup.uses_adapters or is_copied(module, setup):
        return True
    return isinstance(module, Linear | Bare | Embedding) and is_adapted(module, setup)


def adapted_tied_head(model: Model, setup: TrainingSetup) -> tuple[tuple[Linear, int], ...]:
    """The head that has an adapter and no weight of its own, which ``modules_with_counts`` lacks, and that it is one.

    Source: derived, from ``tied_head`` and ``is_adapted``.

    >>> adapted_tied_head(TINY_LLAMA, TrainingSetup())
    ()
    """
    return tuple((head, 1) for head in tied_head(model) if is_adapted(head, setup))


def lowest_trained(model: Model, setup: TrainingSetup) -> int | None:
    """The lowest layer with something to train, the last that backward reaches (an index, from 0; the number of layers
    where none has); None where gradients go on to the embedding.

    They do where something before the layers is trained, and under gradient checkpointing, which has the embedding's
    output require a gradient.

    Source: torch 2.13, torch/csrc/autograd/function.h, ``collect_next_edges`` (no node where no input requires a
    gradient); transformers 5.23, modeling_utils.py, ``enable_input_require_grads``.

    >>> lowest_trained(TINY_LLAMA, TrainingSetup(method=Method.LORA)), lowest_trained(TINY_LLAMA, TrainingSetup())
    (0, None)
    """
    before = (module for module in outer_modules(model) if not is_after_layers(module))
    if setup.gradient_checkpointing or any(is_trained(module, setup) for module in before):
        return None
    return min(
        (
            lowest
            for lowest, _ in layer_groups(model)
            if any(is_trained(module, setup) for module in layer_modules(model, lowest))
        ),
        default=model.num_hidden_layers,
    )


def is_after_layers(module: Module) -> bool:
    """Whether a module outside the layers works on what comes out of them: the final norm, projections, the head.

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, the model's ``forward``.

    >>> [is_after_layers(module) for module in outer_modules(TINY_LLAMA)]
    [False, True, True]
    """
    if isinstance(module, Norm):
        return module.name not in ("word_embeddings_layernorm", "per_layer_projection_norm")
    return module.name.startswith(("lm_head", "project_out", "altup_unembed_projections"))


def is_quantized(module: Module, setup: TrainingSetup) -> bool:
    """Whether bitsandbytes packs this module: every linear but the head (a yes or no; the same on every GPU).

    Falcon's linears are of a class of their own and stay as loaded; so does the last of an OLMo with a tied head.
    Source: transformers 5.23, quantizers/base.py, ``get_keys_to_not_convert`` (output embedding and tied keys stay);
    integrations/bitsandbytes.py, ``replace_with_bnb_linear`` (``type(module) is nn.Linear``).
    """
    if not setup.has_packed_base or not isinstance(module, Linear):
        return False
    return module.name != "lm_head" and not (module.own_class or module.is_last)


def is_copied(module: Module, setup: TrainingSetup) -> bool:
    """Whether PEFT trains a copy of this module whole, the original lying frozen beside it (a yes or no).

    Every module whose name ends with the letters of a listed name: ``"norm"`` takes ``input_layernorm`` too.

    Source: PEFT 0.21 utils/other.py, ``_set_trainable`` (``key.endswith(target_key)``) and ``ModulesToSaveWrapper``.

    >>> setup = TrainingSetup(method=Method.LORA, modules_to_save=("embed_tokens",))
    >>> is_copied(Embedding("embed_tokens", 10, 8), setup), is_copied(Linear("lm_head", 8, 10), setup)
    (True, False)
    """
    names = setup.modules_to_save
    return names is not None and setup.uses_adapters and module.name.endswith(names)


def tied_head(model: Model) -> tuple[Linear, ...]:
    """The head of a model whose head has no weight of its own, in the shape that it uses; nothing where it has one.

    Source: transformers 5.23, modeling_utils.py, ``tie_weights``: the head's weight is the embedding's.

    >>> tied_head(TINY_LLAMA), [it.name for it in tied_head(replace(TINY_LLAMA, tie_word_embeddings=True))]
    ((), ['lm_head'])
    """
    outer = outer_modules(model)
    if any(module.name == "lm_head" for module in outer):
        return ()
    width = next(module.width for module in outer if isinstance(module, Embedding))
    return (Linear("lm_head", width, model.vocab_size),)


def copied_modules(model: Model, setup: TrainingSetup) -> tuple[tuple[Module, int], ...]:
    """The modules that PEFT trains a copy of, and how many alike. A copy of a tied head or embedding is tied no more.

    Source: PEFT 0.21 utils/other.py, ``ModulesToSaveWrapper.update`` (``deepcopy``; ``ensure_weight_tying`` is off).

    >>> setup = TrainingSetup(method=Method.LORA, modules_to_save=("lm_head", "post_attention_layernorm"))
    >>> [(module.name, count) for module, count in copied_modules(TINY_LLAMA, setup)]
    [('lm_head', 1), ('post_attention_layernorm', 2)]
    """
    if not setup.uses_adapters or setup.modules_to_save is None:
        return ()
    heads = ((module, 1) for module in tied_head(model))
    everything = (*modules_with_counts(model), *heads)
    return tuple((module, count) for module, count in everything if is_copied(module, setup))


def _check_copies(model: Model, setup: TrainingSetup) -> None:
    if setup.modules_to_save is None:
        return
    modules = (*(module for module, _ in modules_with_counts(model)), *tied_head(model))
    blocks = {
        module.name[:place]
        for module in modules
        for place, letter in enumerate(module.name)
        if letter == "."
    }
    adapters_alone = replace(setup, modules_to_save=None)
    for name in setup.modules_to_save:
        taken = [module for module in modules if module.name.endswith(name)]
        if not taken or any(block.endswith(name) for block in blocks):
            known = ", ".join(m.name for m in modules if not isinstance(m, Bare))
            raise InputError(
                f"modules_to_save names {name!r}, which is no single module of {model.model_type}; name some of: "
                f"{known}."
            )
        for module in taken:
            if isinstance(module, Bare):
                raise COPIED_ROUTER(name=name)
            if is_quantized(module, setup):
                raise COPIED_PACKED(name=name, module=module.name)
            whole = module.name == name or module.name.endswith(f".{name}")
            if not whole and isinstance(module, Linear) and is_adapted(module, adapters_alone):
                raise COPIED_ADAPTER(name=name, module=module.name)
    if not any(is_adapted(module, setup) for module, _ in _adaptable(model)):
        raise NOTHING_TO_ADAPT(names=", ".join(setup.modules_to_save))


def _names(target: str, module: Linear | Bare | Embedding) -> bool:
    if isinstance(module, Bare):
        return target.rsplit(".", 1)[-1] in module.former_names
    return module.name == target or module.name.endswith(f".{target}")


def _adaptable(model: Model) -> Iterator[tuple[Linear | Bare | Embedding, int]]:
    """What adapters can go to, and how many alike."""
    for module, count in (*modules_with_counts(model), *((it, 1) for it in tied_head(model))):
        match module:
            case Linear(shadowed=False):
                yield module, count
            case Bare(former_names=names) if names:
                yield module, count
            case Embedding(name=name) if name not in POSITIONS_AND_LAYERS:
                yield module, count


def dropout_is_refused(model: Model, setup: TrainingSetup) -> bool:
    """Whether PEFT refuses the setup's LoRA dropout (a yes or no): it adapts a router or stacked experts.

    Source: PEFT 0.21 tuners/lora/layer.py, ``ParamWrapper.__init__``: such adapters are folded into the weight, where
    no input is left to drop.

    >>> dropout_is_refused(TINY_LLAMA, TrainingSetup(method=Method.LORA))
    False
    """
    bare = (module for module, _ in modules_with_counts(model) if isinstance(module, Bare))
    return setup.lora_dropout > 0 and any(is_adapted(module, setup) for module in bare)


def _is_stopping(module: Linear | Bare | Embedding, setup: TrainingSetup) -> bool:
    stops = isinstance(module, Linear) and (module.routes or module.unadaptable)
    return stops and is_adapted(module, setup)


def _last(module: Linear | Bare) -> str:
    return module.name.rpartition(".")[2]


def linears_peft_takes(model: Model) -> tuple[str, ...]:
    """All linears that can have an adapter (names; per model), as a list of ``lora_target_modules`` has them.

    Source: derived, from ``layer_modules``; PEFT 0.21 tuners/lora/layer.py, ``Linear.forward`` (``result.dtype``, of a
    tuple), and tuners/tuners_utils.py, ``_check_lora_target_modules_mamba``.

    >>> linears_peft_takes(TINY_LLAMA)
    ('q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj')
    """
    linears = [
        module
        for module, _ in _adaptable(model)
        if isinstance(module, Linear) and module.name != "lm_head"
    ]
    stopping = {_last(it) for it in linears if it.routes or it.unadaptable}
    return tuple(dict.fromkeys(_last(it) for it in linears if _last(it) not in stopping))


PEFTS_OWN: Mapping[str, tuple[str, ...]] = {
    "llama4_text": ("q_proj", "v_proj"),
    "mixtral": ("q_proj", "v_proj"),
    "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
}
"""What PEFT adapts where no target is named, of the families where it refuses all linears: PEFT 0.21,
utils/constants.py, ``TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING``."""


def default_targets(model: Model, setup: TrainingSetup) -> str | tuple[str, ...]:
    """What gets an adapter where nobody says (names; per model): all linears, or what PEFT takes of them.

    Of the families in PEFT's own table what stands there; of others every linear whose name no expert once had.

    Source: PEFT 0.21, utils/constants.py; the refusals as ``refused_targets``.

    >>> default_targets(TINY_LLAMA, TrainingSetup(method=Method.LORA))
    'all-linear'
    """
    every = replace(setup, lora_target_modules=ALL_LINEAR)
    return ALL_LINEAR if not refused_targets(model, every) else _accepted(model)


def _accepted(model: Model) -> tuple[str, ...]:
    of_experts = {
        name for it, _ in _adaptable(model) if isinstance(it, Bare) for name in it.former_names
    }
    plain = tuple(name for name in linears_peft_takes(model) if name not in of_experts)
    return PEFTS_OWN.get(model.model_type, plain)


def refused_targets(model: Model, setup: TrainingSetup) -> RefusedError | None:
    """Why PEFT refuses the setup's targets (an error; per model); None: it does not.

    Source: PEFT 0.21, tuners/lora/layer.py, ``Linear.forward`` (``result.dtype``, of a tuple) and
    ``ParamWrapper.__init__``; tuners/tuners_utils.py, ``_check_lora_target_modules_mamba``.

    >>> refused_targets(TINY_LLAMA, TrainingSetup(method=Method.LORA)) is None
    True
    """
    adaptable = [module for module, _ in _adaptable(model)]
    bare = [module for module in adaptable if isinstance(module, Bare)]
    accepted = ", ".join(_accepted(model))
    for module in adaptable:
        if not _is_stopping(module, setup):
            continue
        if isinstance(module, Linear) and module.unadaptable:
            return READ_BY_KERNELS(module=module.name, model_type=model.model_type, others=accepted)
        return ADAPTER_ON_ROUTER(model_type=model.model_type, others=accepted)
    if setup.use_dora and any(is_adapted(module, setup) for module in bare):
        return DORA_ON_EXPERTS(model_type=model.model_type, others=accepted)
    if dropout_is_refused(model, setup):
        return DROPOUT_ON_EXPERTS(
            dropout=setup.lora_dropout, model_type=model.model_type, others=accepted
        )
    return None


def _check_targets(model: Model, setup: TrainingSetup) -> None:
    adaptable = [module for module, _ in _adaptable(model)]
    if refused := refused_targets(model, setup):
        raise refused
    if isinstance(setup.lora_target_modules, str):
        return
    unmatched = [
        target
        for target in setup.lora_target_modules
        if not any(_names(target, module) for module in adaptable)
    ]
    if unmatched:
        every = (name for m in adaptable for name in getattr(m, "former_names", (m.name,)))
        names = dict.fromkeys(every)
        raise InputError(
            f"lora_target_modules names {', '.join(map(repr, unmatched))}, which {model.model_type} does not have as "
            f"adaptable layers; its linear layers are: {', '.join(names)}."
        )
    for module in adaptable:
        if not isinstance(module, Bare):
            continue
        named = {target.rsplit(".", 1)[-1] for target in setup.lora_target_modules}
        missing = [name for name in module.former_names if name not in named]
        if missing and len(missing) < len(module.former_names):
            raise HALF_OF_A_MATRIX(
                missing=", ".join(map(repr, missing)),
                named=" and ".join(repr(name) for name in module.former_names if name in named),
                model_type=model.model_type,
            )


def adapter_rank(module: Linear | Bare | Embedding, setup: TrainingSetup) -> int:
    """Rows of LoRA's A and columns of its B on this layer, whole model.

        Linear  r      router  r      stack of E experts  r · n · E    r: lora_r; n: linears fused into one, so gate
                                                                       and up, which were two, take 2 r

    Error: none; compared with PEFT's own count in tests/verify.
    Source: PEFT 0.21 tuners/lora/layer.py, ``ParamWrapper.update_layer``; utils/transformers_weight_conversion.py,
    ``_convert_peft_config_moe`` (rank_pattern).

    >>> adapter_rank(Bare("experts.gate_up_proj", 8, 32, 4, ("gate_proj", "up_proj")), TrainingSetup(lora_r=16))
    128
    """
    if not isinstance(module, Bare):
        return setup.lora_r
    return setup.lora_r * len(module.former_names) * (module.stack or 1)


def adapter_parameters(model: Model, setup: TrainingSetup) -> int:
    """Parameters that PEFT adds to the model, in elements, whole job; 0 for full fine-tuning.

        Σ adapted layers  r · (in + out)  (+ out where DoRA)  +  Σ copied modules  their parameters
        r: ``adapter_rank``; A is [r, in], B is [out, r]; DoRA's magnitudes are [out]; copied: ``modules_to_save``

    Error: none; compared with PEFT's own count in tests/verify.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; PEFT 0.21 tuners/lora/layer.py, ``LoraLayer.update_layer``.

    >>> setup = TrainingSetup(method=Method.LORA, lora_r=2, lora_target_modules=("q_proj", "v_proj"))
    >>> adapter_parameters(TINY_LLAMA, setup) == 2 * 2 * ((8 + 8) + (8 + 4))
    True
    """
    if not setup.uses_adapters:
        return 0
    _check_targets(model, setup)
    _check_copies(model, setup)
    copies = sum(count * module_parameters(it) for it, count in copied_modules(model, setup))
    return copies + sum(
        count * _adapter_elements(module, setup)
        for module, count in _adaptable(model)
        if is_adapted(module, setup)
    )


def _adapter_elements(module: Linear | Bare | Embedding, setup: TrainingSetup) -> int:
    rows, columns = adapted_sizes(module)
    return adapter_rank(module, setup) * (rows + columns) + (columns if setup.use_dora else 0)


def adapted_sizes(module: Linear | Bare | Embedding) -> tuple[int, int]:
    """What LoRA's A takes and its B gives, in elements: of an embedding the vocabulary and the width.

    Source: PEFT 0.21 tuners/lora/layer.py, ``Embedding.update_layer``.

    >>> adapted_sizes(Embedding("embed_tokens", 10, 8)), adapted_sizes(Linear("lm_head", 8, 10))
    ((10, 8), (8, 10))
    """
    if isinstance(module, Embedding):
        return module.rows, module.width
    return module.in_features, module.out_features


def trainable_parameters(model: Model, setup: TrainingSetup) -> int:
    """Parameters that receive gradients, in elements, whole job: all of them, or the adapters alone.

    Error: none; exact.
    Source: derived, from ``total_parameters``, ``untrained_parameters`` and ``adapter_parameters``.

    >>> trainable_parameters(TINY_LLAMA, TrainingSetup()) == total_parameters(TINY_LLAMA)
    True
    """
    if setup.method is Method.FULL:
        return total_parameters(model) - untrained_parameters(model)
    return adapter_parameters(model, setup)

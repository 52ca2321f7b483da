"""Groups of modules that several families share: attention, MLPs, experts, norms, modules outside the layers.

Source: transformers 5.23, ``models/*/modeling_*.py``, each class's ``__init__``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from estimator.families.modules import Bare, Embedding, Linear, Module, Norm
from estimator.values.refusals import InputError
from estimator.values.specs import Model


def separate_attention(
    model: Model, *, bias: bool, output_bias: bool, block: str = "self_attn", output: str = "o_proj"
) -> tuple[Linear, ...]:
    """Query, key, value and output projections."""
    return (
        Linear(f"{block}.q_proj", model.hidden_size, model.query_size, bias),
        Linear(f"{block}.k_proj", model.hidden_size, model.key_value_size, bias),
        Linear(f"{block}.v_proj", model.hidden_size, model.key_value_size, bias),
        Linear(f"{block}.{output}", model.query_size, model.hidden_size, output_bias),
    )


def configured_attention(model: Model) -> tuple[Linear, ...]:
    """The same, with biases if the config says so."""
    return separate_attention(
        model, bias=model.attention_bias, output_bias=model.attention_output_bias
    )


def fused_attention(
    model: Model, fused: str, output: str, *, bias: bool, output_bias: bool, conv1d: bool = False
) -> tuple[Linear, ...]:
    """A fused query-key-value projection, and the output projection."""
    return (
        Linear(fused, model.hidden_size, model.query_size + 2 * model.key_value_size, bias, conv1d),
        Linear(output, model.query_size, model.hidden_size, output_bias, conv1d),
    )


def gated_mlp(model: Model, *, bias: bool = False) -> tuple[Linear, ...]:
    """Llama's MLP: gate, up and down."""
    return (
        Linear("mlp.gate_proj", model.hidden_size, model.intermediate_size, bias),
        Linear("mlp.up_proj", model.hidden_size, model.intermediate_size, bias),
        Linear("mlp.down_proj", model.intermediate_size, model.hidden_size, bias),
    )


def fused_gated_mlp(model: Model) -> tuple[Linear, ...]:
    """The same with gate and up fused into one matrix."""
    return (
        Linear("mlp.gate_up_proj", model.hidden_size, 2 * model.intermediate_size),
        Linear("mlp.down_proj", model.intermediate_size, model.hidden_size),
    )


def plain_mlp(
    model: Model, up: str, down: str, *, bias: bool, conv1d: bool = False
) -> tuple[Linear, ...]:
    """An MLP of two matrices."""
    return (
        Linear(up, model.hidden_size, model.intermediate_size, bias, conv1d),
        Linear(down, model.intermediate_size, model.hidden_size, bias, conv1d),
    )


def experts(
    model: Model,
    block: str,
    *,
    router: str = "gate",
    former: tuple[str, str, str, str] | None = None,
) -> tuple[Bare, Bare, Bare]:
    """A router, and two stacks of experts: gates fused with ups, and downs.

    ``former``: former names of router, gate, up and down, if PEFT still accepts them.
    Source: transformers 5.23, models/mixtral/modeling_mixtral.py, ``MixtralTopKRouter`` and ``MixtralExperts``.
    """
    hidden, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    was_router, was_gate, was_up, was_down = ((name,) for name in former) if former else ((),) * 4
    return (
        Bare(f"{block}.{router}", hidden, experts, former_names=was_router),
        Bare(f"{block}.experts.gate_up_proj", hidden, 2 * width, experts, was_gate + was_up),
        Bare(f"{block}.experts.down_proj", width, hidden, experts, was_down),
    )


def norms(model: Model, *names: str, bias: bool = False) -> tuple[Norm, ...]:
    """Norms over the hidden states."""
    weight = not model.norms_without_weight
    return tuple(Norm(name, model.hidden_size, weight, bias and weight) for name in names)


def head_norms(model: Model, query: str, key: str) -> tuple[Norm, ...]:
    """Norms over each head, with one weight shared by all heads."""
    return (Norm(f"self_attn.{query}", model.head_dim), Norm(f"self_attn.{key}", model.head_dim))


def wide_norms(model: Model) -> tuple[Norm, ...]:
    """Norms with a weight for every head: OLMo 2 normalises across the heads, Cohere within each."""
    return (
        Norm("self_attn.q_norm", model.query_size),
        Norm("self_attn.k_norm", model.key_value_size),
    )


QWEN_NAMES = ("gate", "gate_proj", "up_proj", "down_proj")
"""Former names of router, gate, up and down as linears, which PEFT still accepts: 0.21,
utils/transformers_weight_conversion.py, ``_MOE_TARGET_MODULE_MAPPING``, for the model types that transformers 5.23,
conversion_mapping.py, ``_MODEL_TO_CONVERSION_PATTERN``, maps to "qwen2_moe" (which itself is not)."""


def experts_and_shared(
    model: Model, former: tuple[str, str, str, str] | None = None
) -> tuple[Module, ...]:
    """Experts, and a shared expert with its own gate."""
    hidden, width = model.hidden_size, model.shared_expert_intermediate_size
    shadowed = former is not None
    return (
        *experts(model, "mlp", former=former),
        Linear("mlp.shared_expert.gate_proj", hidden, width, shadowed=shadowed),
        Linear("mlp.shared_expert.up_proj", hidden, width, shadowed=shadowed),
        Linear("mlp.shared_expert.down_proj", width, hidden, shadowed=shadowed),
        Linear("mlp.shared_expert_gate", hidden, 1),
    )


def shared_experts(model: Model) -> tuple[Linear, ...]:
    """The shared experts (DeepSeek); empty if the config has none."""
    hidden, width = model.hidden_size, model.shared_expert_intermediate_size
    bias = model.mlp_bias
    if not width:
        return ()
    return (
        Linear("mlp.shared_experts.gate_proj", hidden, width, bias, shadowed=True),
        Linear("mlp.shared_experts.up_proj", hidden, width, bias, shadowed=True),
        Linear("mlp.shared_experts.down_proj", width, hidden, bias, shadowed=True),
    )


def shadowed_mlp(model: Model) -> tuple[Linear, ...]:
    """The MLP of a layer without experts."""
    return tuple(replace(it, shadowed=True) for it in gated_mlp(model, bias=model.mlp_bias))


def mamba(model: Model, block: str, *, unadaptable: bool = False) -> tuple[Module, ...]:
    """Mamba 2's mixer: three parameters per head, a convolution, and two projections around the scan."""
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


def outer(
    embedding: str,
    norm: str,
    *,
    norm_weight: bool = True,
    norm_bias: bool = False,
    head_bias: bool = False,
) -> Callable[[Model], tuple[Module, ...]]:
    """A function that returns a model's embedding, final norm and head."""

    def modules(model: Model) -> tuple[Module, ...]:
        return (
            Embedding(embedding, model.vocab_size, model.hidden_size),
            Norm(norm, model.hidden_size, norm_weight, norm_bias),
            *head(model, model.hidden_size, bias=head_bias),
        )

    return modules


def head(model: Model, width: int, *, bias: bool = False) -> tuple[Linear, ...]:
    """The head, unless it is tied."""
    return () if model.tie_word_embeddings else (Linear("lm_head", width, model.vocab_size, bias),)


def learned_positions(model: Model, offset: int = 0) -> int:
    """Rows of the position embedding."""
    rows = model.learned_positions or (
        model.max_position_embeddings and model.max_position_embeddings + offset
    )
    if not rows:
        raise InputError(f"{model.model_type} has learned positions; give max_position_embeddings.")
    return rows


LLAMA_OUTER = outer("embed_tokens", "norm")

"""Qwen3-Next and Qwen3.5: most layers hold a gated delta-net in attention's place, the others a gate of their output.

Source: transformers 5.23, models/qwen3_5_moe, models/qwen3_5, models/qwen3_next, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.delta_net import delta_net
from estimator.families.experts import mixture
from estimator.families.family import (
    Architecture,
    ConfigClass,
    ExpertKeys,
    Family,
    ModelTree,
    NormKind,
    Why,
)
from estimator.families.layer_kinds import DELTA, DELTA_FILTER, FULL_ATTENTION, LINEAR_ATTENTION
from estimator.families.layers import decoder_layer, gated_mlp
from estimator.families.modules import Module, Norm, OwnParameter, Tree, tree
from estimator.families.reader import (
    KEY_NOT_MODELLED,
    MOST_HEADS,
    MOST_LAYERS,
    Config,
    kinds_in,
    short,
)
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import DeltaNet, Model


def _attention_tree(model: Model) -> dict[str, Tree]:
    """The query projection also computes a gate for the output."""
    hidden, bias = model.hidden_size, model.attention_bias
    made = tree(
        "@Attention",
        q_proj=parts.linear(hidden, 2 * model.query_size, bias),
        k_proj=parts.linear(hidden, model.key_value_size, bias),
        v_proj=parts.linear(hidden, model.key_value_size, bias),
        o_proj=parts.linear(model.query_size, hidden, model.attention_output_bias),
        q_norm=parts.head_norm(model),
        k_norm=parts.head_norm(model),
    )
    return {"self_attn": made}


def _delta_net(model: Model, *, fused: bool = False) -> dict[str, Tree]:
    """``fused``: one projection for queries, keys, values and gates, one for learning rate and decay (Qwen3-Next)."""
    assert model.delta_net is not None
    hidden, heads = model.hidden_size, model.delta_net.value_heads
    keys, values = model.delta_net.key_width, model.delta_net.value_width
    normed: dict[str, Module] = {
        "norm": Norm("", model.delta_net.value_dim),
        "out_proj": parts.linear(values, hidden),
    }
    widths = (
        {"in_proj_qkvz": 2 * (keys + values), "in_proj_ba": 2 * heads}
        if fused
        else {
            "in_proj_qkv": 2 * keys + values,
            "in_proj_z": values,
            "in_proj_b": heads,
            "in_proj_a": heads,
        }
    )
    projections: dict[str, Module] = {
        name: parts.linear(hidden, width) for name, width in widths.items()
    }
    made = tree(
        "@GatedDeltaNet",
        dt_bias=OwnParameter(Norm("", heads)),
        A_log=OwnParameter(Norm("", heads)),
        conv1d=Norm("", 2 * keys + values, taps=DELTA_FILTER),
        **({**projections, **normed} if fused else {**normed, **projections}),
    )
    return {"linear_attn": made}


Mixer = Callable[[Model], dict[str, Tree]]


def _layer(mixer: Mixer, mlp: Callable[[Model], Tree]) -> Callable[[Model], Tree]:
    """Attention or a gated delta-net, and an MLP or experts."""
    return lambda model: tree(
        "@DecoderLayer",
        **mixer(model),
        mlp=mlp(model),
        input_layernorm=parts.norm(model),
        post_attention_layernorm=parts.norm(model),
    )


def _text_root(model: Model) -> Tree:
    return parts.decoder(model, class_name="@TextModel")


def _qwen3_next_mixture(model: Model) -> Tree:
    return parts.sparse_with_shared(model, parts.QWEN_NAMES)


def _attention(b: Block, x: Tensor) -> Tensor:
    """Attention whose output is multiplied by a gate from the query projection."""
    tape, model = b.tape, b.model
    size = b.rows * model.query_size
    q, gate = op.split(tape, b.linear("self_attn.q_proj", x), [size, size])
    gate = op.clone(tape, gate)
    q = b.norm("self_attn.q_norm", q, groups=model.num_attention_heads)
    k = b.norm(
        "self_attn.k_norm", b.linear("self_attn.k_proj", x), groups=model.num_key_value_heads
    )
    v = b.linear("self_attn.v_proj", x)
    q, k = b.rotate(q, k)
    out = b.attend(q, k, v, head_major=True)  # the rotated part is joined with the rest
    opened = op.elementwise(tape, gate, "sigmoid", saves="output")
    out = op.multiply(tape, out, opened, "gate of the output")
    del opened
    return b.linear("self_attn.o_proj", out)


def _mixer(b: Block, x: Tensor) -> Tensor:
    return delta_net(b, x) if b.has("linear_attn.out_proj") else _attention(b, x)


def _mlp_or_experts(b: Block, x: Tensor) -> Tensor:
    return mixture(b, x) if b.stacks else gated_mlp(b, x)


qwen3_5 = decoder_layer(_mixer, _mlp_or_experts)
"""Norm, delta-net or attention, add; norm, MLP or experts, add."""

_STEP = Architecture(
    qwen3_5,
    NormKind.RMS_ONE_PLUS,
    tables_by_text=True,
    fallback=("gated delta-nets", "flash-linear-attention and causal-conv1d"),
)


def _layers(read: Config, layers: int) -> tuple[str, ...]:
    """Which layers have attention and which a gated delta net: a list of kinds, or attention at a fixed interval."""
    listed = read.items("layer_types", layers)
    if not listed:
        every = read.whole("full_attention_interval", default=4, most=MOST_LAYERS)
        listed = tuple(
            LINEAR_ATTENTION if layer % every else FULL_ATTENTION for layer in range(1, layers + 1)
        )
    kinds = kinds_in(read, "layer_types", listed, (FULL_ATTENTION, LINEAR_ATTENTION))
    return kinds if LINEAR_ATTENTION in kinds else ()


def _delta_sizes(read: Config) -> DeltaNet:
    """Heads of gated delta-nets and their widths.

    Source: transformers 5.23, models/qwen3_5/configuration_qwen3_5.py, models/qwen3_next/configuration_qwen3_next.py.
    """
    if read.values.get("linear_conv_kernel_dim", DELTA_FILTER) != DELTA_FILTER:
        raise KEY_NOT_MODELLED(
            name="linear_conv_kernel_dim",
            value=short(read.values["linear_conv_kernel_dim"]),
            model_type=read.model_type,
            instead=DELTA_FILTER,
        )
    return DeltaNet(
        key_heads=read.whole("linear_num_key_heads", default=16, most=MOST_HEADS),
        value_heads=read.whole("linear_num_value_heads", default=32, most=MOST_HEADS),
        key_dim=read.whole("linear_key_head_dim", default=128, most=MOST_HEADS),
        value_dim=read.whole("linear_value_head_dim", default=128, most=MOST_HEADS),
    )


def _own(read: Config, fields: dict[str, Any]) -> dict[str, Any]:
    has_states = LINEAR_ATTENTION in fields["layer_types"]
    return {"delta_net": _delta_sizes(read)} if has_states else {}


def _width(read: Config, hidden: int) -> int:
    """No layer has an MLP of that width."""
    return read.whole("intermediate_size", "moe_intermediate_size")


def _shared_width(read: Config, width: int) -> int:
    return read.whole("shared_expert_intermediate_size", default=512)


FAMILIES = (
    Family(
        model_type="qwen3_5_moe_text",
        config=ConfigClass(
            key_value_heads=2,
            head_dim=256,
            partial_rotary_factor=0.25,
            width=_width,
            mixers=_layers,
            experts=ExpertKeys(have_own_width=True, shared_width=_shared_width, always_normed=True),
            own=_own,
            wrappers=("qwen3_5_moe",),
        ),
        tree=ModelTree(
            "Qwen3_5Moe",
            _layer(_attention_tree, parts.sparse_with_shared),
            _text_root,
            others={DELTA: _layer(_delta_net, parts.sparse_with_shared)},
        ),
        architecture=_STEP,
        unread={
            Why.OFF: "full_attention_interval intermediate_size",
            Why.UNREAD: "attn_output_gate mamba_ssm_dtype mlp_only_layers mtp_num_hidden_layers",
        },
        liger_is_later=True,
    ),
    Family(
        model_type="qwen3_5_text",
        config=ConfigClass(
            key_value_heads=4,
            head_dim=256,
            partial_rotary_factor=0.25,
            mixers=_layers,
            own=_own,
            wrappers=("qwen3_5",),
        ),
        tree=ModelTree(
            "Qwen3_5",
            _layer(_attention_tree, parts.gated_mlp),
            _text_root,
            others={DELTA: _layer(_delta_net, parts.gated_mlp)},
        ),
        architecture=_STEP,
        unread={
            Why.OFF: "full_attention_interval",
            Why.UNREAD: "attn_output_gate mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings",
        },
        liger_is_later=True,
    ),
    Family(
        model_type="qwen3_next",
        config=ConfigClass(
            key_value_heads=2,
            head_dim=256,
            partial_rotary_factor=0.25,
            width=_width,
            mixers=_layers,
            experts=ExpertKeys(
                have_own_width=True,
                shared_width=_shared_width,
                normed=True,
                only={"mlp_only_layers": [], "decoder_sparse_step": 1},
            ),
            own=_own,
        ),
        tree=ModelTree(
            "Qwen3Next",
            _layer(_attention_tree, _qwen3_next_mixture),
            others={DELTA: _layer(partial(_delta_net, fused=True), _qwen3_next_mixture)},
        ),
        architecture=replace(_STEP, tables_by_text=False),
        unread={Why.OFF: "full_attention_interval"},
        liger_is_later=True,
    ),
)

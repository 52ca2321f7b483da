"""Qwen3-Next and Qwen3.5: most layers hold a gated delta-net in attention's place, the others a gate of their output.

Source: transformers 5.23, models/qwen3_5_moe, models/qwen3_5, models/qwen3_next, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, ExpertKeys, Fields, Why
from estimator.families.config_rules import shared_width
from estimator.families.delta_net import DELTA_NET, FUSED_DELTA_NET
from estimator.families.experts import QWEN_SPARSE, SPARSE
from estimator.families.family import Family, ModuleClass, NormKind
from estimator.families.layer_kinds import DELTA, DELTA_FILTER, FULL_ATTENTION, LINEAR_ATTENTION
from estimator.families.layers import GATED_MLP, decoder_layer, normed_tree
from estimator.families.modules import Tree, extended
from estimator.families.reader import (
    MOST_HEADS,
    MOST_LAYERS,
    Config,
    kinds_in,
)
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import DeltaNet, Model


def _attention_tree(model: Model) -> Tree:
    """The query projection also computes a gate for the output."""
    queries = parts.linear(model.hidden_size, 2 * model.query_size, model.attention_bias)
    return extended(normed_tree(model), q_proj=queries)


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


_ATTENTION = ModuleClass("self_attn", _attention_tree, _attention)


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
        raise read.refused("linear_conv_kernel_dim", DELTA_FILTER)
    return DeltaNet(
        key_heads=read.whole("linear_num_key_heads", default=16, most=MOST_HEADS),
        value_heads=read.whole("linear_num_value_heads", default=32, most=MOST_HEADS),
        key_dim=read.whole("linear_key_head_dim", default=128, most=MOST_HEADS),
        value_dim=read.whole("linear_value_head_dim", default=128, most=MOST_HEADS),
    )


def _own(read: Config, fields: Fields) -> Fields:
    has_states = LINEAR_ATTENTION in fields["layer_types"]
    return {"delta_net": _delta_sizes(read)} if has_states else {}


def _width(read: Config, hidden: int) -> int:
    """No layer has an MLP of that width."""
    return read.whole("intermediate_size", "moe_intermediate_size")


_CONFIG = ConfigClass(
    key_value_heads=2, head_dim=256, partial_rotary_factor=0.25, mixers=_layers, own=_own
)
_EXPERTS = ExpertKeys(
    have_own_width=True, shared_width=shared_width("shared_expert_intermediate_size", 512)
)
_QWEN3_5 = Family(
    model_type="qwen3_5_text",
    config=replace(_CONFIG, key_value_heads=4, wrappers=("qwen3_5",)),
    prefix="Qwen3_5",
    layer=decoder_layer(_ATTENTION, GATED_MLP),
    others={DELTA: decoder_layer(DELTA_NET, GATED_MLP)},
    root=parts.decoder(class_name="@TextModel"),
    norm=NormKind.RMS_ONE_PLUS,
    tables_by_text=True,
    fallback=("gated delta-nets", "flash-linear-attention and causal-conv1d"),
    unread={
        Why.OFF: "full_attention_interval",
        Why.UNREAD: "attn_output_gate mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings",
    },
    liger_is_later=True,
)
FAMILIES = (
    _QWEN3_5,
    replace(
        _QWEN3_5,
        model_type="qwen3_5_moe_text",
        config=replace(
            _CONFIG,
            width=_width,
            experts=replace(_EXPERTS, always_normed=True),
            wrappers=("qwen3_5_moe",),
        ),
        prefix="Qwen3_5Moe",
        layer=decoder_layer(_ATTENTION, SPARSE),
        others={DELTA: decoder_layer(DELTA_NET, SPARSE)},
        unread={
            Why.OFF: "full_attention_interval intermediate_size",
            Why.UNREAD: "attn_output_gate mamba_ssm_dtype mlp_only_layers mtp_num_hidden_layers",
        },
    ),
    replace(
        _QWEN3_5,
        model_type="qwen3_next",
        config=replace(
            _CONFIG,
            width=_width,
            experts=replace(
                _EXPERTS, normed=True, only={"mlp_only_layers": [], "decoder_sparse_step": 1}
            ),
        ),
        prefix="Qwen3Next",
        layer=decoder_layer(_ATTENTION, QWEN_SPARSE),
        others={DELTA: decoder_layer(FUSED_DELTA_NET, QWEN_SPARSE)},
        root=None,
        tables_by_text=False,
        unread={Why.OFF: "full_attention_interval"},
    ),
)

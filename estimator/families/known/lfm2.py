"""LFM2: most layers mix neighbouring tokens by a short convolution between two gates, the others attend.

The convolution is PyTorch's, which runs where the kernel of causal-conv1d is not installed.

Source: transformers 5.23, models/lfm2/modeling_lfm2.py.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Fields, Why
from estimator.families.config_rules import fixed_biases
from estimator.families.family import Family, ModuleClass
from estimator.families.layer_kinds import CONVOLUTION, FULL_ATTENTION
from estimator.families.layers import unfused_gated_mlp
from estimator.families.modules import LAYERS, Norm, Tree, tree
from estimator.families.reader import (
    MOST_HEADS,
    Config,
    kinds_in,
    refuse_others,
)
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.arithmetic import ceil_div
from estimator.values.specs import Model


def _layer(
    name: str, mixer_tree: Callable[[Model], Tree], mixer: Callable[[Block, Tensor], Tensor]
) -> ModuleClass:
    """Norm, convolution or attention, add; norm, MLP, add."""

    def layer_tree(model: Model) -> Tree:
        hidden, width = model.hidden_size, model.intermediate_size
        return tree(
            "@DecoderLayer",
            **{name: mixer_tree(model)},
            feed_forward=tree(
                "@MLP",
                w1=parts.linear(hidden, width),
                w3=parts.linear(hidden, width),
                w2=parts.linear(width, hidden),
            ),
            operator_norm=parts.norm(model),
            ffn_norm=parts.norm(model),
        )

    def lfm2(b: Block, x: Tensor) -> Tensor:
        """Norm, convolution or attention, add; norm, MLP, add."""
        names = ("w1", "w3", "w2")
        residual = x
        x = op.add(b.tape, mixer(b, b.norm("operator_norm", x)), residual)
        x = op.add(b.tape, x, unfused_gated_mlp(b, b.norm("ffn_norm", x), "feed_forward", names))
        del residual
        return x

    return ModuleClass("", layer_tree, lfm2)


def _attention(b: Block, x: Tensor) -> Tensor:
    model = b.model
    q = b.norm(
        "self_attn.q_layernorm", b.linear("self_attn.q_proj", x), groups=model.num_attention_heads
    )
    k = b.norm(
        "self_attn.k_layernorm", b.linear("self_attn.k_proj", x), groups=model.num_key_value_heads
    )
    v = b.linear("self_attn.v_proj", x)
    q, k = b.rotate(q, k)
    out = b.attend(q, k, v)
    return b.linear("self_attn.out_proj", out)


def _short_convolution(b: Block, x: Tensor) -> Tensor:
    """One projection to two gates and what they gate; each channel's filter sees the token and those before it."""
    tape, setup, hidden = b.tape, b.setup, x.elements
    if setup.batch.padded:
        mask = tape.new(b.rows, 1)
        x = op.multiply(tape, x, mask, "padding masked")
        del mask
    whole = b.linear("conv.in_proj", x)
    first, second, inside = op.split(tape, whole, [hidden] * 3)
    gated = op.multiply(tape, first, inside, "first gate")
    longer = setup.batch.per_device_train_batch_size * (
        setup.batch.max_length + b.model.short_filter - 1
    )
    weight = b.norms["conv.conv"][0]
    mixed = op.convolution(tape, gated, weight, longer * b.model.hidden_size, "short convolution")
    gated = op.part(tape, mixed, hidden)
    del mixed
    y = op.multiply(tape, second, gated, "second gate")
    out = b.linear("conv.out_proj", y)
    del whole, first, inside
    return out


def _attention_tree(model: Model) -> Tree:
    norms = parts.head_norms(model, "q_layernorm", "k_layernorm")
    return tree("@Attention", **parts.projections(model, last="out_proj"), **norms)


def _convolution_tree(model: Model) -> Tree:
    hidden = model.hidden_size
    return tree(
        "@ShortConv",
        conv=Norm("", hidden, taps=model.short_filter),
        in_proj=parts.linear(hidden, 3 * hidden),
        out_proj=parts.linear(hidden, hidden),
    )


_ROOT = parts.causal_lm(
    "model",
    embed_tokens=parts.tokens,
    layers=LAYERS,
    rotary_emb=parts.rotary,
    embedding_norm=parts.norm,
)


def _width(read: Config, hidden: int) -> int:
    """LFM2 takes two thirds of what is given, rounded up to a multiple: ``Lfm2MLP.__init__``."""
    width = read.whole("block_ff_dim", "intermediate_size", default=12288)
    if not read.flag("block_auto_adjust_ff_dim", default=True):
        return width
    factor = read.values.get("block_ffn_dim_multiplier", 1.0)
    if factor is not None and factor != 1:
        raise read.refused("block_ffn_dim_multiplier", 1)
    width = 2 * width // 3
    if factor is None:
        return width
    multiple = read.whole("block_multiple_of", default=256)
    return ceil_div(width, multiple) * multiple


def _lfm2_layers(read: Config, layers: int) -> tuple[str, ...]:
    """Which layers have attention and which a short convolution: a list of kinds, or indices of attention layers."""
    refuse_others(read, {"conv_bias": False})
    listed = read.items("layer_types", layers)
    attending = read.values.get("full_attn_idxs")
    if not listed and isinstance(attending, list | tuple):
        listed = tuple(
            FULL_ATTENTION if layer in attending else CONVOLUTION for layer in range(layers)
        )
    kinds = kinds_in(read, "layer_types", listed, (FULL_ATTENTION, CONVOLUTION))
    return kinds if CONVOLUTION in kinds else ()


def _own(read: Config, fields: Fields) -> Fields:
    tied = fields["tie_word_embeddings"]
    return {
        "tie_word_embeddings": read.flag("tie_embedding", default=tied),
        "short_filter": read.whole("conv_L_cache", default=3, most=MOST_HEADS),
    }


FAMILIES = (
    Family(
        model_type="lfm2",
        config=ConfigClass(
            tied=True,
            key_value_heads=8,
            width=_width,
            biases=fixed_biases(False, False, False),
            mixers=_lfm2_layers,
            own=_own,
        ),
        prefix="Lfm2",
        layer=_layer("self_attn", _attention_tree, _attention),
        others={CONVOLUTION: _layer("conv", _convolution_tree, _short_convolution)},
        root=_ROOT,
        fallback=("short convolutions", "causal-conv1d"),
        unread={
            Why.OFF: "block_multiple_of full_attn_idxs intermediate_size",
            Why.UNREAD: """
            block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init
            conv_dim conv_dim_out conv_use_xavier_init num_heads use_pos_enc""",
        },
    ),
)

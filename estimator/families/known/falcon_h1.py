"""Falcon-H1: a mixer of Mamba 2 and attention side by side in every layer.

Source: transformers 5.23, models/falcon_h1, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Fields, Why
from estimator.families.config_rules import attention_biases, mamba_of_hidden, mamba_width
from estimator.families.family import Family, ModuleClass
from estimator.families.layers import attention_tree, gated_mlp_tree
from estimator.families.mamba import MAMBA_FALLBACK, mamba, mamba_tree
from estimator.families.modules import LAYERS, Tree, TreeTensor, Width, tree
from estimator.families.reader import Config
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _tree(model: Model) -> Tree:
    """Both in every layer: a mixer and attention."""
    assert model.state_space is not None
    width = model.state_space.projected_width
    scales = TreeTensor("mup_vector", width, Width.WEIGHT, is_buffer=True)
    return tree(
        "@DecoderLayer",
        feed_forward=gated_mlp_tree(model),
        mamba=mamba_tree(model, "@Mixer", scales, unadaptable=True),
        self_attn=attention_tree(model),
        input_layernorm=parts.norm(model),
        pre_ff_layernorm=parts.norm(model),
    )


_ROOT = parts.causal_lm(
    "model",
    embed_tokens=parts.tokens,
    layers=LAYERS,
    final_layernorm=parts.norm,
    rotary_emb=parts.rotary,
)


def falcon_h1(b: Block, x: Tensor) -> Tensor:
    """Falcon-H1: mixer and attention side by side on one norm, their sum added; norm, MLP, add; all times numbers."""
    tape = b.tape
    residual = x
    x = b.norm("input_layernorm", x)
    mixed = op.scale(tape, mamba(b, x, "mamba", multiplies=True))
    attended = op.scale(tape, _scaled_attention(b, op.scale(tape, x)))
    x = op.add(tape, mixed, attended)
    x = op.add(tape, residual, x)
    residual = x
    x = b.norm("pre_ff_layernorm", x)
    x = op.add(tape, residual, _scaled_mlp(b, x))
    del mixed, attended
    return x


def _scaled_attention(b: Block, x: Tensor) -> Tensor:
    q = b.linear("self_attn.q_proj", x)
    k = op.scale(b.tape, b.linear("self_attn.k_proj", x))
    v = b.linear("self_attn.v_proj", x)
    q, k = b.rotate(q, k)
    return b.linear("self_attn.o_proj", b.attend(q, k, v))


def _scaled_mlp(b: Block, x: Tensor) -> Tensor:
    up = b.linear("feed_forward.up_proj", x)
    y = op.multiply(
        b.tape,
        up,
        b.activation(op.scale(b.tape, b.linear("feed_forward.gate_proj", x))),
        "up × gate",
    )
    del up
    return op.scale(b.tape, b.linear("feed_forward.down_proj", y))


def _own(read: Config, fields: Fields) -> Fields:
    width = mamba_width(read, fields)
    if read.values.get("mamba_d_ssm", 1024) is not None:
        width = read.whole("mamba_d_ssm", default=1024)
    mixer = mamba_of_hidden(
        read,
        width,
        "mamba_d_ssm",
        out_bias=read.flag("projectors_bias", default=False),
        is_normed=read.flag("mamba_rms_norm", default=False),
        norm_before_gate=read.flag("mamba_norm_before_gate", default=True),
    )
    return {"state_space": mixer}


FAMILIES = (
    Family(
        model_type="falcon_h1",
        config=ConfigClass(key_value_heads=8, biases=attention_biases(has_mlp_key=True), own=_own),
        prefix="FalconH1",
        layer=ModuleClass("", _tree, falcon_h1),
        root=_ROOT,
        scales_embedding=True,
        scales_logits=True,
        fallback=MAMBA_FALLBACK,
        unread={
            Why.CACHE: "use_mamba_kernels",
            Why.NUMBERS: """
            attention_in_multiplier attention_out_multiplier embedding_multiplier key_multiplier lm_head_multiplier
            mlp_multipliers ssm_in_multiplier ssm_multipliers ssm_out_multiplier time_step_limit time_step_max
            time_step_min time_step_floor""",
            Why.OFF: "layer_types mamba_expand",
            Why.UNREAD: "attn_layer_indices mamba_use_mlp mlp_expansion_factor sliding_window",
        },
    ),
)

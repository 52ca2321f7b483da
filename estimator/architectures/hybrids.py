"""Layers of the families that mix attention with state spaces.

Source: transformers 5.23, models/granitemoehybrid/modeling_granitemoehybrid.py.
"""

from __future__ import annotations

from estimator.architectures.block import Block
from estimator.architectures.experts import mixture
from estimator.architectures.layers import late_norm_attention
from estimator.architectures.mamba import mamba
from estimator.memory import operators as op
from estimator.memory.tape import Tensor


def granite_hybrid(b: Block, x: Tensor) -> Tensor:
    """Granite 4.0: norm, mixer or attention, add; norm, MLP and perhaps experts, add; both times a number."""
    tape = b.tape
    residual = x
    x = b.norm("input_layernorm", x)
    x = mamba(b, x, "mamba") if b.has("mamba.in_proj") else late_norm_attention(b, x)
    x = op.add(tape, residual, op.scale(tape, x))
    residual = x
    x = b.norm("post_attention_layernorm", x)
    if b.model.num_experts:
        chosen = mixture(b, x)
        x = op.add(tape, chosen, _shared_mlp(b, x))
    else:
        x = _shared_mlp(b, x)
    x = op.add(tape, residual, op.scale(tape, x))
    return x


def _shared_mlp(b: Block, x: Tensor) -> Tensor:
    """Gate and up as one product."""
    both = b.linear("shared_mlp.input_linear", x)
    gate, up = op.split(b.tape, both, [both.elements // 2] * 2)
    del both
    x = op.multiply(b.tape, b.activation(gate), up, "gate × up")
    return b.linear("shared_mlp.output_linear", x)

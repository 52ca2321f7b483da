"""Layers of the families that mix attention with state spaces.

Source: transformers 5.23, models/granitemoehybrid/modeling_granitemoehybrid.py,
models/falcon_h1/modeling_falcon_h1.py and models/nemotron_h/modeling_nemotron_h.py.
"""

from __future__ import annotations

from estimator.families.block import Block
from estimator.families.deepseek import sigmoid_routing
from estimator.families.experts import grouped_experts, mixture
from estimator.families.layers import late_norm_attention
from estimator.families.mamba import mamba
from estimator.tape import operators as op
from estimator.tape.tape import Tensor


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


def nemotron_h(b: Block, x: Tensor) -> Tensor:
    """Nemotron-H: norm, one mixer, add: state spaces, attention, an MLP or experts."""
    residual = x
    x = b.norm("norm", op.cast(b.tape, x, b.norms["norm"][0].width))
    if b.has("mixer.in_proj"):
        x = mamba(b, x, "mixer")
    elif b.has("mixer.q_proj"):
        q, k, v = (b.linear(f"mixer.{name}", x) for name in ("q_proj", "k_proj", "v_proj"))
        x = b.linear("mixer.o_proj", b.attend(q, k, v))
        del q, k, v
    elif b.has("mixer.up_proj"):
        x = _plain_mlp(b, x, "mixer")
    else:
        experts = grouped_experts(b, x, sigmoid_routing(b, x, "mixer.gate"), "mixer")
        x = op.add(b.tape, experts, _plain_mlp(b, x, "mixer.shared_experts"))
        del experts
    return op.add(b.tape, residual, x)


def _plain_mlp(b: Block, x: Tensor, block: str) -> Tensor:
    return b.linear(f"{block}.down_proj", b.activation(b.linear(f"{block}.up_proj", x)))


def _shared_mlp(b: Block, x: Tensor) -> Tensor:
    """Gate and up as one product."""
    both = b.linear("shared_mlp.input_linear", x)
    gate, up = op.split(b.tape, both, [both.elements // 2] * 2)
    del both
    x = op.multiply(b.tape, b.activation(gate), up, "gate × up")
    return b.linear("shared_mlp.output_linear", x)

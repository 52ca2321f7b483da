"""GPT-OSS: attention whose softmax has one more score a head, a sink; experts with biases and a clamped gate.

Source: transformers 5.23, models/gpt_oss/modeling_gpt_oss.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, ExpertKeys, Why, WindowKeys
from estimator.families.config_rules import attention_biases
from estimator.families.experts import (
    Routing,
    grouped_experts,
    router,
    stacks,
    with_recorded_scores,
)
from estimator.families.family import Family, Kernels, ModuleClass, NormKind, Rotary
from estimator.families.layers import decoder_layer
from estimator.families.modules import Norm, OwnParameter, Tree, tree
from estimator.tape import operators as op
from estimator.tape.attention import heads_repeated
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _attention(b: Block, x: Tensor) -> Tensor:
    q = b.linear("self_attn.q_proj", x)
    k = b.linear("self_attn.k_proj", x)
    v = b.linear("self_attn.v_proj", x)
    q, k = b.rotate(q, k)
    out, weights = _attend(b, q, k, v)
    b.hold(weights)
    del weights
    return b.linear("self_attn.o_proj", out)


def _attend(b: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward``: the sinks join the scores as one more column, which is dropped after the softmax.

    The largest score of each row is taken off first; the softmax stays in the scores' dtype, under autocast too.
    """
    tape, shape = b.tape, b.attention_shape()
    several = shape.batch > 1
    rows = shape.batch * shape.heads * shape.length
    scores = rows * shape.length
    key, value = heads_repeated(tape, k, v, shape)
    single = shape.key_value_heads == 1 and shape.heads > 1
    weights = op.matmul(
        tape, q, key, scores, "attention scores", copies=(False, several and single)
    )
    weights = op.scale(tape, weights)
    if b.mask is not None:
        weights = op.add(tape, weights, b.mask)
    sinks = op.expand(tape, b.norms["self_attn.sinks"][0], rows)
    combined = op.concatenate(tape, [weights, sinks])
    combined = op.subtract(tape, combined, op.largest(tape, combined, rows))
    probabilities = op.softmax(tape, combined)
    without_sinks = op.part(tape, probabilities, scores)
    weights = op.cast(tape, op.dropout(tape, without_sinks, shape.dropout), v.width)
    whole_groups = shape.heads == shape.key_value_heads
    out = op.matmul(
        tape,
        weights,
        value,
        q.elements,
        "attention output",
        copies=(False, several and (single or whole_groups)),
    )
    return op.clone(tape, out), weights


def _routing(b: Block, x: Tensor) -> Routing:
    """The k largest scores, and a softmax over only these, in their own dtype."""
    tape, chosen = b.tape, b.rows * b.model.num_experts_per_tok
    logits = b.router("mlp.router", x)
    largest, indices = op.top_k(tape, logits, chosen)
    return with_recorded_scores(b, Routing(logits, op.softmax(tape, largest), indices))


def _experts(b: Block, x: Tensor) -> Tensor:
    """The layer's ``_`` holds the attention's weights, and then the experts' shares."""
    routing = _routing(b, x)
    x = grouped_experts(b, x, routing, "mlp", gate=_clamped_gate)
    b.hold(routing.shares)
    return x


def _clamped_gate(b: Block, both: Tensor) -> Tensor:
    """``(up + 1) · gate · sigmoid(1.702 · gate)``, gate and up clamped first; they are interleaved."""
    tape, half = b.tape, both.elements // 2
    gate, up = op.part(tape, both, half), op.part(tape, both, half)
    gate = op.clamp(tape, gate, both_sides=False)
    up = op.clamp(tape, up, both_sides=True)
    sigmoid = op.elementwise(tape, op.scale(tape, gate), "sigmoid", saves="output")
    glu = op.multiply(tape, gate, sigmoid, "gate × sigmoid")
    del sigmoid
    return op.multiply(tape, op.add_number(tape, up), glu, "gate × up")


def _attention_tree(model: Model) -> Tree:
    sinks = OwnParameter(Norm("", model.num_attention_heads))
    return tree("@Attention", **parts.projections(model), sinks=sinks)


def _mlp_tree(model: Model) -> Tree:
    held = stacks(model, transposed=True)
    return tree(
        "@MLP",
        router=replace(router(model), bias=True),
        experts=tree(
            **{name: OwnParameter(replace(stack, bias=True)) for name, stack in held.items()}
        ),
    )


FAMILIES = (
    Family(
        model_type="gpt_oss",
        config=ConfigClass(
            key_value_heads=8,
            head_dim=64,
            biases=attention_biases(default=True),
            windows=WindowKeys(default=128, pattern=2, pattern_is_fixed=True),
            experts=ExpertKeys(),
        ),
        prefix="GptOss",
        layer=decoder_layer(
            ModuleClass("self_attn", _attention_tree, _attention),
            ModuleClass("mlp", _mlp_tree, _experts),
        ),
        norm=NormKind.RMS_CAST_LAST,
        rotary=Rotary.SPLIT_HALVES,
        eager_only=True,
        flash_lacks="attention sinks",
        liger=Kernels(mlp=False, budget=8),
        unread={
            Why.NUMBERS: "swiglu_alpha swiglu_limit initial_context_length",
            Why.UNREAD: "experts_per_token",
        },
    ),
)

"""A mixture of experts instead of an MLP: the router, and the experts as stacks and grouped matrix products.

Nothing depends on how evenly tokens are distributed: every token goes to k experts and none is dropped or padded, so
there are always T · k rows.

Source: transformers 5.23, integrations/moe.py, ``grouped_mm_experts_forward`` (the default from compute
capability 8.0; below it, a fallback with the same sizes), and models/mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe,
``*TopKRouter`` and ``*SparseMoeBlock``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from estimator.families import parts
from estimator.families.block import Block, Factors
from estimator.families.family import ModuleClass
from estimator.families.layers import gated_mlp_tree, shadowed, unfused_gated_mlp
from estimator.families.modules import LEAF, Bare, OwnParameter, Tree, tree
from estimator.families.registry import family_of
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import Tape, Tensor
from estimator.values.specs import Model

Former = tuple[str, str, str, str]
"""Names of router, gate, up and down when they were linears, which PEFT maps to what replaced them."""
QWEN_NAMES: Former = ("gate", "gate_proj", "up_proj", "down_proj")
"""PEFT 0.21, utils/transformers_weight_conversion.py, ``_MOE_TARGET_MODULE_MAPPING``, for the model types that
transformers 5.23, conversion_mapping.py, ``_MODEL_TO_CONVERSION_PATTERN``, maps to "qwen2_moe" (which itself is not).
"""
MIXTRAL_NAMES: Former = ("gate", "w1", "w3", "w2")
"""The same, for those that are mapped to "mixtral"."""


def router(model: Model, former: Former | None = None) -> Bare:
    """The router's matrix."""
    names = former[:1] if former else ()
    return Bare("", model.hidden_size, model.num_experts, former_names=names)


def stacks(
    model: Model, former: Former | None = None, *, transposed: bool = False
) -> Mapping[str, Bare]:
    """Two stacks of experts: gates fused with ups, and downs.

    Source: transformers 5.23, models/mixtral/modeling_mixtral.py, ``MixtralExperts``.
    """
    hidden, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    gates, downs = (former[1:3], former[3:]) if former else ((), ())
    return {
        "gate_up_proj": Bare(
            "", hidden, 2 * width, experts, former_names=gates, transposed=transposed
        ),
        "down_proj": Bare("", width, hidden, experts, former_names=downs, transposed=transposed),
    }


def experts_tree(
    model: Model,
    former: Former | None = None,
    *,
    class_name: str = "@Experts",
    transposed: bool = False,
) -> Tree:
    """The module that holds both stacks."""
    held = stacks(model, former, transposed=transposed)
    own = {name: OwnParameter(stack) for name, stack in held.items()}
    return tree(class_name, **own, act_fn=LEAF)


def sparse_tree(model: Model, former: Former | None = None) -> Tree:
    """A mixture of experts, and the shared expert with a gate of its own, if the config has one (Qwen2-MoE)."""
    width = model.shared_expert_intermediate_size
    shared = gated_mlp_tree(model, width) if width else None
    return tree(
        "@SparseMoeBlock",
        gate=router(model, former),
        experts=experts_tree(model, former),
        shared_expert=shadowed(shared) if shared and former else shared,
        shared_expert_gate=parts.linear(model.hidden_size, 1) if shared else None,
    )


class Routing(NamedTuple):
    """What the router returns: T · E logits, and the weights and indices of the k experts chosen per token."""

    logits: Tensor
    shares: Tensor
    indices: Tensor


def mixture(b: Block, x: Tensor) -> Tensor:
    """Router and experts; Qwen2-MoE adds a shared expert, times its own gate; Mixtral multiplies noise into the input.

    Source of the noise: transformers 5.23, models/mixtral/modeling_mixtral.py, ``MixtralSparseMoeBlock.forward``.
    """
    if b.model.jitters_input:
        x = op.multiply_in_place(b.tape, x, "noise on the experts' input")
    if "block_sparse_moe.router" in b.stacks:
        return grouped_experts(b, x, _routing(b, x), "block_sparse_moe")
    if not b.model.shared_expert_intermediate_size:
        return grouped_experts(b, x, _routing(b, x), "mlp")
    shared = unfused_gated_mlp(b, x, "mlp.shared_expert")
    routing = _routing(b, x)
    out = grouped_experts(b, x, routing, "mlp")
    share = op.elementwise(b.tape, b.linear("mlp.shared_expert_gate", x), "sigmoid", saves="output")
    shared = op.multiply(b.tape, share, shared, "gate × shared expert")
    del share
    return op.add(b.tape, out, shared)


def _routing(b: Block, x: Tensor) -> Routing:
    if "block_sparse_moe.router" in b.stacks:
        routing = _softmax_of_chosen(b, x, "block_sparse_moe.router")
    else:
        routing = _chosen_of_softmax(b, x)
    return with_recorded_scores(b, routing)


def with_recorded_scores(b: Block, routing: Routing) -> Routing:
    """The same routing, with its logits recorded for the load-balancing loss, if the config enables it."""
    if b.router_logits is not None:
        b.router_logits[b.played] = routing.logits
    return routing


def _chosen_of_softmax(b: Block, x: Tensor) -> Routing:
    """Softmax over all experts in float32, then the k largest, normalised to sum to 1 if the config says so."""
    tape, chosen = b.tape, b.rows * b.model.num_experts_per_tok
    logits = b.router("mlp.gate", x)
    probabilities = op.softmax(tape, op.cast(tape, logits, 4))
    shares, indices = op.top_k(tape, probabilities, chosen)
    if b.model.norm_topk_prob:
        # divided in place, so autograd keeps a copy of the old values, as large as a new output would be
        shares = op.multiply(tape, shares, op.mean(tape, shares, b.rows, "sum of shares"), "shares")
    if not family_of(b.model).float32_shares:
        shares = op.cast(tape, shares, logits.width)
    return Routing(logits, shares, indices)


def _softmax_of_chosen(b: Block, x: Tensor, name: str) -> Routing:
    """Granite: the k largest logits first, then a softmax over only these."""
    tape, chosen = b.tape, b.rows * b.model.num_experts_per_tok
    logits = op.cast(tape, b.router(name, x), 4)
    largest, indices = op.top_k(tape, logits, chosen)
    return Routing(logits, op.cast(tape, op.softmax(tape, largest), x.width), indices)


def default_gate(b: Block, both: Tensor) -> Tensor:
    """``_default_apply_gate``: activation of the first half, times the second half."""
    half = both.elements // 2
    gate, up = op.split(b.tape, both, [half, half])
    return op.multiply(b.tape, b.activation(gate), up, "gate × up")


def _activated(b: Block, up: Tensor) -> Tensor:
    return b.activation(up)


Gate = Callable[[Block, Tensor], Tensor]


def grouped_experts(
    b: Block, x: Tensor, routing: Routing, block: str, *, gate: Gate = default_gate
) -> Tensor:
    """The experts' module. PEFT wraps it once per adapted stack; the wrapper of the down projections is outermost."""
    inside = f"{block}.experts".lstrip(".")
    up, down = f"{inside}.gate_up_proj", f"{inside}.down_proj"
    if up not in b.stacks:  # experts without a gate
        up, gate = f"{inside}.up_proj", _activated

    def experts(x: Tensor) -> Tensor:
        if b.kernels.experts:
            return _fused(b, x, routing, (b.stacks[up].weight, b.stacks[down].weight))
        down_factors = b.factors(down)
        up_factors = b.factors(up)
        return _grouped(b, x, routing, (up, up_factors), (down, down_factors), gate)

    return b.within(b.stacks[up].weight.key, x, experts)


def _fused(b: Block, x: Tensor, routing: Routing, stacks: tuple[Tensor, Tensor]) -> Tensor:
    """Liger's kernel, which does not support adapters: liger-kernel 0.8.5, transformers/swiglu.py,
    ``LigerExperts.forward``.
    """
    model = b.model
    pairs = b.rows * model.num_experts_per_tok
    b.tape.operation = "sort by expert"
    indices = b.tape.new(pairs, 4)
    out = fused.experts(
        b.tape, x, stacks, routing.shares, pairs, model.moe_intermediate_size, model.num_experts
    )
    del indices
    return out


def _grouped(
    b: Block,
    x: Tensor,
    routing: Routing,
    up: tuple[str, Factors | None],
    down: tuple[str, Factors | None],
    gate: Gate,
) -> Tensor:
    """Sorts the T · k rows by expert, multiplies each expert's rows by its matrices, sorts back, and sums over k."""
    tape, model = b.tape, b.model
    hidden, width = model.hidden_size, model.moe_intermediate_size
    pairs = b.rows * model.num_experts_per_tok
    tape.operation = "sort by expert"
    sorted_experts, order = tape.new(pairs, op.INDEX_BYTES), tape.new(pairs, op.INDEX_BYTES)
    selected = op.gather(
        tape, x, tape.new(pairs, op.INDEX_BYTES), pairs * hidden, "tokens by expert"
    )
    shares = op.gather(tape, routing.shares, order, pairs, "shares by expert")
    counted = tape.new(pairs, 4)  # int32, for the histogram
    # with adapters both stacks are new tensors, kept by parametrize.cached until the module returns
    gates_and_ups = b.folded(*up)
    inner = b.stacks[up[0]].module.out_features
    bias = b.expert_bias(up[0], sorted_experts, pairs * inner)
    out = op.grouped_matmul(tape, selected, gates_and_ups, hidden, inner, "experts' gate and up")
    if bias is not None:
        out = op.add_in_place(tape, out, bias)
    out = gate(b, out)
    downs = b.folded(*down)
    bias = b.expert_bias(down[0], sorted_experts, pairs * hidden)
    out = op.grouped_matmul(tape, out, downs, width, hidden, "experts' down")
    if bias is not None:
        out = op.add_in_place(tape, out, bias)
    weighted = op.multiply(tape, out, shares, "share × expert")
    back = tape.new(pairs, op.INDEX_BYTES)
    weighted = op.gather(tape, weighted, back, pairs * hidden, "experts by token")
    total = op.sum_of_experts(tape, weighted, b.rows * hidden)
    total = op.cast(tape, total, x.width)
    del sorted_experts, counted, gates_and_ups, downs, bias
    return total


def balancing_loss(
    tape: Tape, model: Model, rows: int, logits: Tensor, so_far: Tensor | None
) -> Tensor:
    """One layer's term of the load-balancing loss: each expert's mean weight, added to the previous layers' terms.

    Source: transformers 5.23, models/mixtral/modeling_mixtral.py, ``load_balancing_loss_func``.
    """
    shares = op.softmax(tape, op.cast(tape, logits, 4) if tape.autocast_active else logits)
    op.top_k(tape, shares, rows * model.num_experts_per_tok)  # only counts tokens
    mean = op.mean(tape, op.cast(tape, shares, 4), model.num_experts, "mean share of each expert")
    return mean if so_far is None else op.add(tape, so_far, mean)


SPARSE = ModuleClass("mlp", sparse_tree, mixture)
"""Router and experts whose former names PEFT does not know (Qwen2-MoE)."""
QWEN_SPARSE = SPARSE._replace(tree=partial(sparse_tree, former=QWEN_NAMES))
MIXTRAL_SPARSE = SPARSE._replace(tree=partial(sparse_tree, former=MIXTRAL_NAMES))

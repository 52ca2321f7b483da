"""ERNIE 4.5: Llama's layer, and GLM-4.5's modules with a router in float32.

Source: transformers 5.23, models/ernie4_5, models/ernie4_5_moe, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, ExpertKeys, Why
from estimator.families.config_rules import one_bias, several_shared
from estimator.families.experts import (
    QWEN_NAMES,
    Routing,
    experts_tree,
    grouped_experts,
    router,
    with_recorded_scores,
)
from estimator.families.family import Family, ModuleClass, Rotary
from estimator.families.known.deepseek import (
    DENSE_MLP,
    correction_bias,
    shared_experts,
    shared_experts_tree,
)
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.layer_kinds import DENSE
from estimator.families.layers import attention_tree, decoder_layer, late_norm_attention
from estimator.families.modules import LEAF, Tree, tree, with_buffers
from estimator.families.reader import MOST_LAYERS, Config, wrong
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.refusals import NOT_MODELLED, Refusal
from estimator.values.specs import Model


def _mixture_tree(model: Model) -> Tree:
    """A router in float32, whose correction bias is a parameter that is never trained."""
    gate = replace(router(model, QWEN_NAMES), float32=True)
    statics = with_buffers(LEAF, correction_bias(model))
    has_shared = model.shared_expert_intermediate_size > 0
    return tree(
        "@SparseMoeBlock",
        gate=replace(tree("@TopKRouter", moe_statics=statics), weights=gate),
        experts=experts_tree(model, QWEN_NAMES),
        shared_experts=shared_experts_tree(model) if has_shared else None,
    )


def _correction_biases(model: Model) -> int:
    """One an expert in layers with experts.

    Source: transformers 5.23, models/ernie4_5_moe/modeling_ernie4_5_moe.py, ``Ernie4_5_MoeStatics``.
    """
    kinds = model.mlp_layer_types or ("sparse",) * model.num_hidden_layers
    return model.num_experts * sum(kind != DENSE for kind in kinds)


def _mixture(b: Block, x: Tensor) -> Tensor:
    """The shared experts, if any, then the chosen ones."""
    shared = shared_experts(b, x) if b.has("mlp.shared_experts.gate_proj") else None
    out = grouped_experts(b, x, with_recorded_scores(b, _corrected_softmax(b, x)), "mlp")
    return out if shared is None else op.add(b.tape, out, shared)


def _corrected_softmax(b: Block, x: Tensor) -> Routing:
    """ERNIE 4.5: softmax over all experts in float32, and a bias that only the choice sees; then the dtype of x."""
    tape, chosen = b.tape, b.rows * b.model.num_experts_per_tok
    with tape.without_autocast():
        logits = b.router("mlp.gate", x, in_float32=True)
        scores = op.softmax(tape, logits)
        _, indices = op.top_k(tape, op.add_number(tape, scores), chosen)
        shares = op.gather(tape, scores, indices, chosen, "shares of the chosen")
        total = op.clamp(tape, op.mean(tape, shares, b.rows, "sum of shares"), both_sides=False)
        shares = op.multiply(tape, shares, total, "shares")
        del total
    return Routing(logits, op.cast(tape, shares, x.width), indices)


_ATTENTION = ModuleClass("self_attn", attention_tree, late_norm_attention)
_MIXTURE = ModuleClass("mlp", _mixture_tree, _mixture)

HEAD_WITH_BIAS = Refusal(
    "use_bias true is not modelled for ernie4_5_moe, whose head has a bias then; set it to false in the config.",
    NOT_MODELLED,
)


def _check(read: Config) -> None:
    if read.flag("use_bias", default=False):
        raise HEAD_WITH_BIAS()


def _shared_width(read: Config, width: int) -> int:
    if read.values.get("moe_num_shared_experts") == 0:
        return 0
    return several_shared("moe_num_shared_experts", 2)(read, width)


def _ernie_mlps(read: Config, layers: int) -> tuple[str, ...]:
    """ERNIE 4.5: experts at a fixed interval within a range of layers."""
    every = read.whole("moe_layer_interval", default=1, most=MOST_LAYERS)
    first, last = (
        read.values.get(name, default)
        for name, default in (("moe_layer_start_index", 1), ("moe_layer_end_index", -1))
    )
    for name, value in (("moe_layer_start_index", first), ("moe_layer_end_index", last)):
        if type(value) is not int or not -1 <= value <= MOST_LAYERS:
            raise wrong(name, "be a whole number, a layer", value)
    assert isinstance(first, int)
    assert isinstance(last, int)
    last = layers - 1 if last == -1 else last
    return tuple(
        "sparse" if (layer + 1) % every == 0 and first <= layer <= last else DENSE
        for layer in range(layers)
    )


FAMILIES = (
    Family(
        model_type="ernie4_5",
        config=ConfigClass(
            tied=True, key_value_heads=2, head_dim=128, biases=one_bias("use_bias", default=False)
        ),
        prefix="Ernie4_5",
        layer=LLAMA_LAYER,
        rotary=Rotary.FLOAT32_SPREAD_PAIRS,
    ),
    Family(
        model_type="ernie4_5_moe",
        config=ConfigClass(
            tied=True,
            key_value_heads=4,
            biases=one_bias("use_bias", default=False),
            experts=ExpertKeys(
                have_own_width=True,
                shared_width=_shared_width,
                always_normed=True,
                layer_types=_ernie_mlps,
                check=_check,
            ),
        ),
        prefix="Ernie4_5_Moe",
        layer=decoder_layer(_ATTENTION, _MIXTURE),
        others={DENSE: decoder_layer(_ATTENTION, DENSE_MLP)},
        untrained=_correction_biases,
        rotary=Rotary.FLOAT32_SPREAD_PAIRS,
        unread={
            Why.NUMBERS: "moe_norm_min",
            Why.UNREAD: "moe_aux_loss_lambda moe_capacity moe_gate moe_use_aux_free",
        },
        merges_experts=True,
    ),
)

"""PhiMoE: a router that samples two experts one after the other, and noise on the experts' input.

Source: transformers 5.23, models/phimoe/modeling_phimoe.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, ExpertKeys, Fields, Why, WindowKeys
from estimator.families.experts import (
    Routing,
    experts_tree,
    grouped_experts,
    with_recorded_scores,
)
from estimator.families.family import Family, ModuleClass, NormKind
from estimator.families.layers import attention_tree, decoder_layer, late_norm_attention
from estimator.families.modules import Tree, tree
from estimator.families.reader import Config
from estimator.tape import operators as op
from estimator.tape.tape import Tape, Tensor
from estimator.values.refusals import NOT_MODELLED, Refusal
from estimator.values.specs import Model


def _mixture(b: Block, x: Tensor) -> Tensor:
    """Noise is multiplied into the experts' input twice: as it comes, and by the router into a view of it."""
    if b.model.jitters_input:
        x = op.multiply_in_place(b.tape, x, "noise on the experts' input")
        x = op.multiply_in_place(b.tape, x, "noise on the router's input", is_of_view=True)
    logits = b.linear("mlp.router", x)
    shares, indices = _sampled(b, logits)
    routing = with_recorded_scores(b, Routing(logits, shares, indices))
    return grouped_experts(b, x, routing, "mlp")


def _sampled(b: Block, scores: Tensor) -> tuple[Tensor, Tensor]:
    """``sparsemixer``: one expert of those near the best, then one of the others near theirs."""
    tape, rows = b.tape, b.rows
    first = _expert(b, scores)
    tape.operation = "scores without the first expert"
    others = tape.new(scores.elements, scores.width)
    second = _expert(b, scores)
    shares = op.concatenate(tape, [first, second])
    indices = tape.new(2 * rows, op.INDEX_BYTES)
    del others
    return shares, indices


def _expert(b: Block, scores: Tensor) -> Tensor:
    """One sampled expert's weight per token, which keeps all weights, the choice and the masked scores.

    Of the scores only the shares' own function hands back a gradient (``PhimoeMultiplier``); what lies between them,
    of which no gradient ever comes, keeps the mask.
    """
    tape, rows, elements, width = b.tape, b.rows, scores.elements, scores.width
    tape.operation = "experts near the best"
    threshold, best = tape.new(rows, width), tape.new(rows, op.INDEX_BYTES)
    factor = _after(tape, elements, width)
    mask = _after(tape, elements, width, result=1)
    masked = tape.new(elements, width)
    tape.operation = "choice of an expert"
    raised = 4 if tape.autocast_active else width
    noise = _after(tape, elements, width, result=raised)
    difference = tape.new(elements, raised)
    del noise
    values, chosen = tape.new(rows, raised), tape.new(rows, op.INDEX_BYTES)
    del difference, values
    if raised != width:
        cast = tape.new(elements, raised)
        shares = tape.new(elements, raised)
        del cast
    else:
        shares = tape.new(elements, raised)
    del masked

    def backward(t: Tape, g: op.Gradients) -> op.Gradients:
        product, negative = t.new(rows, raised), t.new(rows, raised)
        gradient = t.new(elements, raised)
        del product, negative
        return [gradient if raised == width else t.new(elements, width)]

    share = tape.new(rows, raised)
    highest, of_highest = tape.new(rows, raised), tape.new(rows, op.INDEX_BYTES)
    node = tape.begin("sampled expert, backward", [scores], backward, [share, chosen, shares, mask])
    share = tape.finish(node, tape.new(rows, raised))
    del threshold, best, factor, highest, of_highest
    return share


def _after(tape: Tape, elements: int, width: int, *, result: int | None = None) -> Tensor:
    """A tensor made of another that goes at once."""
    before = tape.new(elements, width)
    made = tape.new(elements, width if result is None else result)
    del before
    return made


def _mixture_tree(model: Model) -> Tree:
    router = parts.linear(model.hidden_size, model.num_experts)
    return tree(
        "@SparseMoeBlock",
        router=replace(router, own_class=True, routes=True),
        experts=experts_tree(model),
    )


TIED_HEAD_WITH_BIAS = Refusal(
    "lm_head_bias true with tie_word_embeddings true is not modelled for phimoe; set one of the two to false in the "
    "config.",
    NOT_MODELLED,
)


def _check(read: Config) -> None:
    tied = read.flag("tie_word_embeddings", default=False)
    if tied and read.flag("lm_head_bias", default=False):
        raise TIED_HEAD_WITH_BIAS()


def _own(read: Config, fields: Fields) -> Fields:
    return {"jitters_input": read.share("input_jitter_noise") > 0}


# its router's noise decides only which experts are near the best
_EXPERTS = ExpertKeys(only={"num_experts_per_tok": 2}, check=_check)


FAMILIES = (
    Family(
        model_type="phimoe",
        config=ConfigClass(
            key_value_heads=8,
            windows=WindowKeys(everywhere=True),
            experts=_EXPERTS,
            flags={"lm_head_bias": ("lm_head_bias", False)},
            own=_own,
        ),
        prefix="Phimoe",
        layer=decoder_layer(
            ModuleClass("self_attn", attention_tree, late_norm_attention),
            ModuleClass("mlp", _mixture_tree, _mixture),
            bias=True,
        ),
        root=parts.decoder(final_norm=parts.biased_norm),
        norm=NormKind.LAYER_NORM,
        unread={Why.NUMBERS: "router_jitter_noise"},
    ),
)

"""Apertus: Llama's layer with an MLP of two matrices, xIELU and norms of queries and keys.

Source: transformers 5.23, models/apertus, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from estimator.families import layouts, parts
from estimator.families.block import Block
from estimator.families.family import (
    Architecture,
    ConfigClass,
    Family,
    FamilyModules,
    TreeLayout,
    TreeTensor,
    Width,
)
from estimator.families.layers import plain_mlp, separate_attention
from estimator.families.modules import Module, Norm
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _apertus_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "attention_layernorm"),
        *parts.configured_attention(model),
        *parts.head_norms(model, "q_norm", "k_norm"),
        *parts.norms(model, "feedforward_layernorm"),
        *parts.plain_mlp(model, "mlp.up_proj", "mlp.down_proj", bias=False),
        Norm(
            "mlp.act_fn", 1, bias=True
        ),  # xIELU's alpha_p and alpha_n, transformers 5.23 activations.py
    )


def _xielu_constants(model: Model) -> tuple[TreeTensor, ...]:
    return (TreeTensor("beta", 1, Width.WEIGHT), TreeTensor("eps", 1, Width.WEIGHT))


def apertus(b: Block, x: Tensor) -> Tensor:
    """Arcee with other norm names and the activation xIELU."""
    residual = x
    x = b.norm("attention_layernorm", x)
    x = separate_attention(b, x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("feedforward_layernorm", x)
    x = plain_mlp(b, x, "mlp.up_proj", "mlp.down_proj")
    return op.add(b.tape, residual, x)


FAMILIES = (
    Family(
        model_type="apertus",
        config=ConfigClass(hidden_act="xielu"),
        modules=FamilyModules(_apertus_modules),
        tree=TreeLayout(
            "Apertus",
            layouts.decoder(
                f"{layouts.ATTENTION} {layouts.PLAIN} attention_layernorm feedforward_layernorm"
            ),
            buffers={"act_fn": _xielu_constants},
        ),
        architecture=Architecture(apertus),
    ),
)

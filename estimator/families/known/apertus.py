"""Apertus: Llama's layer with an MLP of two matrices, xIELU and norms of queries and keys.

Source: transformers 5.23, models/apertus, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from functools import partial

from estimator.families import parts
from estimator.families.family import Architecture, ConfigClass, Family, ModelTree
from estimator.families.layers import decoder_layer, plain_mlp, separate_attention
from estimator.families.modules import Norm, Tree, TreeTensor, Width, tree, with_buffers
from estimator.values.specs import Model


def _layer(model: Model) -> Tree:
    # xIELU's alpha_p and alpha_n, and its constants: transformers 5.23 activations.py
    constants = (TreeTensor(name, 1, Width.WEIGHT) for name in ("beta", "eps"))
    up, down = parts.up_and_down(model, bias=False)
    return tree(
        "@DecoderLayer",
        self_attn=parts.normed_attention(model),
        mlp=tree(
            "@MLP",
            up_proj=up,
            down_proj=down,
            act_fn=with_buffers(Norm("", 1, bias=True), *constants),
        ),
        attention_layernorm=parts.norm(model),
        feedforward_layernorm=parts.norm(model),
    )


apertus = decoder_layer(
    separate_attention,
    partial(plain_mlp, up="mlp.up_proj", down="mlp.down_proj"),
    before=("attention_layernorm", "feedforward_layernorm"),
)
"""Arcee with other norm names and the activation xIELU."""


FAMILIES = (
    Family(
        model_type="apertus",
        config=ConfigClass(hidden_act="xielu"),
        tree=ModelTree("Apertus", _layer),
        architecture=Architecture(apertus),
    ),
)

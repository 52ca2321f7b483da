"""Apertus: Llama's layer with an MLP of two matrices, xIELU and norms of queries and keys.

Source: transformers 5.23, models/apertus, modeling_*.py.
"""

from __future__ import annotations

from estimator.families.config_class import ConfigClass
from estimator.families.family import Family
from estimator.families.layers import NORMED_ATTENTION, decoder_layer, plain_mlp
from estimator.families.modules import Norm, Tree, TreeTensor, Width, extended, with_buffers
from estimator.values.specs import Model

_MLP = plain_mlp()


def _mlp_tree(model: Model) -> Tree:
    """With xIELU's alpha_p and alpha_n, and its constants: transformers 5.23, activations.py."""
    constants = (TreeTensor(name, 1, Width.WEIGHT) for name in ("beta", "eps"))
    return extended(_MLP.tree(model), act_fn=with_buffers(Norm("", 1, bias=True), *constants))


FAMILIES = (
    Family(
        model_type="apertus",
        config=ConfigClass(hidden_act="xielu"),
        prefix="Apertus",
        layer=decoder_layer(
            NORMED_ATTENTION,
            _MLP._replace(tree=_mlp_tree),
            before=("attention_layernorm", "feedforward_layernorm"),
        ),
    ),
)

"""GPT-2 and GPT-BigCode: LayerNorms, one fused projection, learned positions.

Source: transformers 5.23, models/gpt2, models/gpt_bigcode, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Why
from estimator.families.config_rules import fixed_biases
from estimator.families.family import Family, LargeBuffer, ModuleClass, NormKind
from estimator.families.layers import fused_attention, plain_mlp
from estimator.families.modules import LAYERS, LEAF, Tree, TreeTensor, Width, tree
from estimator.families.reader import Config
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model

_CONV1D, _LINEAR = (
    plain_mlp("c_fc", "c_proj", "up down act dropout", conv1d=conv1d) for conv1d in (True, False)
)


def _tree(model: Model, *, mlp: ModuleClass, **dropouts: Tree) -> Tree:
    conv1d = mlp is _CONV1D
    qkv, output = parts.fused_qkv(model, conv1d=conv1d), parts.output(model, conv1d=conv1d)
    return tree(
        "@Block",
        ln_1=parts.biased_norm(model),
        attn=tree("@Attention", c_attn=qkv, c_proj=output, **dropouts, resid_dropout=LEAF),
        ln_2=parts.biased_norm(model),
        mlp=mlp.tree(model),
    )


_GPT2: dict[str, parts.Piece] = {
    "wte": parts.tokens,
    "wpe": parts.learned_positions,
    "drop": LEAF,
    "h": LAYERS,
    "ln_f": parts.biased_norm,
}
_ROOT = parts.causal_lm("transformer", **_GPT2)


def _masked_root(model: Model) -> Tree:
    mask = TreeTensor("bias", model.max_position_embeddings**2, Width.BOOL)
    return parts.causal_lm("transformer", "@Model", mask, **_GPT2)(model)


def gpt2(b: Block, x: Tensor) -> Tensor:
    """LayerNorm kernels, one fused qkv, dropouts after attention and MLP. GPT-2 and gpt_bigcode."""
    residual = x
    x = b.norm("ln_1", x)
    attended = fused_attention(b, x, "attn.c_attn", "attn.c_proj")
    attended = op.dropout(b.tape, attended, b.model.resid_pdrop)
    x = op.add(b.tape, attended, residual)
    residual = x
    x = b.norm("ln_2", x)
    hidden = _LINEAR.forward(b, x)
    hidden = op.dropout(b.tape, hidden, b.model.resid_pdrop)
    return op.add(b.tape, residual, hidden)


def _key_value_heads(read: Config, heads: int) -> int:
    return 1 if read.flag("multi_query", default=True) else heads


def _unread_mask(model: Model) -> tuple[LargeBuffer, ...]:
    return (LargeBuffer("bias", 1, model.max_position_embeddings**2),)


_CONFIG = ConfigClass(
    tied=True,
    derived_head_dim=True,
    hidden_act="gelu_new",
    activation_key="activation_function",
    width=lambda read, hidden: read.whole("n_inner", default=4 * hidden),
    position_offset=0,
    biases=fixed_biases(True, True, True),
    dropouts=(("embd_pdrop", 0.1), ("attn_pdrop", 0.1), ("resid_pdrop", 0.1)),
)
FAMILIES = (
    Family(
        model_type="gpt2",
        config=replace(
            _CONFIG,
            one_head_each=True,
            dropout_modules=(True, True, True),
            flags={"reorder_and_upcast_attn": ("reorder_and_upcast_attn", False)},
        ),
        prefix="GPT2",
        layer=ModuleClass("", partial(_tree, mlp=_CONV1D, attn_dropout=LEAF), gpt2),
        root=_ROOT,
        norm=NormKind.LAYER_NORM,
        rotary=None,
        softmax_float32=False,
        unread={
            Why.NUMBERS: "scale_attn_by_inverse_layer_idx scale_attn_weights",
            Why.UNREAD: "n_ctx",
        },
        sensitive=frozenset({"add_cross_attention"}),
    ),
    Family(
        model_type="gpt_bigcode",
        config=replace(
            _CONFIG, key_value_heads_of=_key_value_heads, hidden_act="gelu_pytorch_tanh"
        ),
        prefix="GPTBigCode",
        layer=ModuleClass("", partial(_tree, mlp=_LINEAR), gpt2),
        root=_masked_root,
        norm=NormKind.LAYER_NORM,
        rotary=None,
        unread={
            Why.NUMBERS: "scale_attn_weights",
            Why.SAME_BYTES: "attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
            Why.OFF: "num_key_value_heads",
            Why.UNREAD: """
            inference_runner max_batch_size max_sequence_length pad_key_length pre_allocate_kv_cache
            validate_runner_input""",
        },
        sensitive=frozenset({"add_cross_attention"}),
        large_buffers=_unread_mask,
    ),
)

"""GPT-2 and GPT-BigCode: LayerNorms, one fused projection, learned positions.

Source: transformers 5.23, models/gpt2, models/gpt_bigcode, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from typing import Any

from estimator.families import layouts, parts
from estimator.families.block import Block
from estimator.families.config_rules import fixed_biases
from estimator.families.family import (
    Architecture,
    ConfigClass,
    Family,
    FamilyModules,
    LargeBuffer,
    NormKind,
    TreeLayout,
    TreeTensor,
    Why,
    Width,
)
from estimator.families.layers import fused_attention, plain_mlp
from estimator.families.modules import Embedding, Module, Norm
from estimator.families.reader import Config
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _gpt2_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "ln_1", bias=True),
        *parts.fused_attention(
            model, "attn.c_attn", "attn.c_proj", bias=True, output_bias=True, conv1d=True
        ),
        *parts.norms(model, "ln_2", bias=True),
        *parts.plain_mlp(model, "mlp.c_fc", "mlp.c_proj", bias=True, conv1d=True),
    )


def _gpt_bigcode_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "ln_1", bias=True),
        *parts.fused_attention(model, "attn.c_attn", "attn.c_proj", bias=True, output_bias=True),
        *parts.norms(model, "ln_2", bias=True),
        *parts.plain_mlp(model, "mlp.c_fc", "mlp.c_proj", bias=True),
    )


def _gpt2_outer(model: Model) -> tuple[Module, ...]:
    return (
        Embedding("wte", model.vocab_size, model.hidden_size),
        Embedding("wpe", parts.learned_positions(model), model.hidden_size),
        Norm("ln_f", model.hidden_size, bias=True),
        *parts.head(model, model.hidden_size),
    )


def _causal_mask(model: Model) -> tuple[TreeTensor, ...]:
    return (TreeTensor("bias", model.max_position_embeddings**2, Width.BOOL),)


def gpt2(b: Block, x: Tensor) -> Tensor:
    """LayerNorm kernels, one fused qkv, dropouts after attention and MLP. GPT-2 and gpt_bigcode."""
    residual = x
    x = b.norm("ln_1", x)
    attended = fused_attention(b, x, "attn.c_attn", "attn.c_proj")
    attended = op.dropout(b.tape, attended, b.model.resid_pdrop)
    x = op.add(b.tape, attended, residual)
    residual = x
    x = b.norm("ln_2", x)
    hidden = plain_mlp(b, x, "mlp.c_fc", "mlp.c_proj")
    hidden = op.dropout(b.tape, hidden, b.model.resid_pdrop)
    return op.add(b.tape, residual, hidden)


def _key_value_heads(read: Config, heads: int) -> int:
    return 1 if read.flag("multi_query", default=True) else heads


def _own(read: Config, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "reorder_and_upcast_attn": read.flag("reorder_and_upcast_attn", default=False),
    }


_DROPOUTS = (("embd_pdrop", 0.1), ("attn_pdrop", 0.1), ("resid_pdrop", 0.1))


def _unread_mask(model: Model) -> tuple[LargeBuffer, ...]:
    return (LargeBuffer("bias", 1, model.max_position_embeddings**2),)


FAMILIES = (
    Family(
        model_type="gpt2",
        config=ConfigClass(
            tied=True,
            one_head_each=True,
            derived_head_dim=True,
            hidden_act="gelu_new",
            activation_key="activation_function",
            width=lambda read, hidden: read.whole("n_inner", default=4 * hidden),
            position_offset=0,
            biases=fixed_biases(True, True, True),
            dropouts=_DROPOUTS,
            dropout_modules=(True, True, True),
            own=_own,
        ),
        modules=FamilyModules(_gpt2_modules, _gpt2_outer),
        tree=TreeLayout(
            "GPT2",
            layouts.transformer(
                "wte wpe drop h:ModuleList(*:@Block(ln_1 attn:@Attention(c_attn c_proj attn_dropout resid_dropout) "
                f"ln_2 {layouts.GPT2_MLP})) ln_f"
            ),
        ),
        architecture=Architecture(gpt2, NormKind.LAYER_NORM, rotary=None, softmax_float32=False),
        unread={
            Why.NUMBERS: "scale_attn_by_inverse_layer_idx scale_attn_weights",
            Why.UNREAD: "n_ctx",
        },
        sensitive=frozenset({"add_cross_attention"}),
    ),
    Family(
        model_type="gpt_bigcode",
        config=ConfigClass(
            tied=True,
            key_value_heads_of=_key_value_heads,
            derived_head_dim=True,
            hidden_act="gelu_pytorch_tanh",
            activation_key="activation_function",
            width=lambda read, hidden: read.whole("n_inner", default=4 * hidden),
            position_offset=0,
            biases=fixed_biases(True, True, True),
            dropouts=_DROPOUTS,
        ),
        modules=FamilyModules(_gpt_bigcode_modules, _gpt2_outer),
        tree=TreeLayout(
            "GPTBigCode",
            layouts.transformer(
                "wte wpe drop h:ModuleList(*:@Block(ln_1 attn:@Attention(c_attn c_proj resid_dropout) "
                f"ln_2 {layouts.GPT2_MLP})) ln_f"
            ),
            buffers={"transformer": _causal_mask},
        ),
        architecture=Architecture(gpt2, NormKind.LAYER_NORM, rotary=None),
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

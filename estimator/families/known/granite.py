"""Granite: Llama's layer times numbers, with experts (MoE), with mixers of Mamba 2 (4.0).

Source: transformers 5.23, models/granite, models/granitemoe, models/granitemoehybrid, modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, ExpertKeys, Fields, Why
from estimator.families.config_rules import attention_biases, mamba_of_hidden, mamba_width
from estimator.families.experts import experts_tree, mixture, router
from estimator.families.family import Family, Kernels, ModuleClass
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.layer_kinds import FULL_ATTENTION, LINEAR_ATTENTION, MAMBA
from estimator.families.layers import (
    ATTENTION,
    attention_tree,
    decoder_layer,
    late_norm_attention,
)
from estimator.families.mamba import MAMBA_FALLBACK, mamba, mamba_tree
from estimator.families.modules import LEAF, Tree, tree
from estimator.families.reader import Config, kinds_in
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _experts(model: Model) -> Tree:
    return tree("@MoE", router=router(model), experts=experts_tree(model))


def _hybrid(
    name: str, mixer_tree: parts.TreeOf, mixer: Callable[[Block, Tensor], Tensor]
) -> ModuleClass:
    """Granite 4.0: the MLP called shared is the only one if there are no experts."""

    def layer_tree(model: Model) -> Tree:
        hidden, width = model.hidden_size, model.intermediate_size
        shared = tree(
            "@MLP",
            activation=LEAF,
            input_linear=parts.linear(hidden, 2 * width),
            output_linear=parts.linear(width, hidden),
        )
        return tree(
            "@DecoderLayer",
            input_layernorm=parts.norm(model),
            post_attention_layernorm=parts.norm(model),
            block_sparse_moe=_experts(model) if model.num_experts else None,
            shared_mlp=shared,
            **{name: mixer_tree(model)},
        )

    def granite_hybrid(b: Block, x: Tensor) -> Tensor:
        """Norm, mixer or attention, add; norm, MLP and perhaps experts, add; both times a number."""
        tape = b.tape
        residual = x
        x = b.norm("input_layernorm", x)
        x = mixer(b, x)
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

    return ModuleClass("", layer_tree, granite_hybrid)


def _rotary(model: Model) -> Tree | None:
    """Only if the config asks for it."""
    turns = not (model.no_rope_layers and all(model.no_rope_layers))
    return parts.rotary(model) if turns else None


def _shared_mlp(b: Block, x: Tensor) -> Tensor:
    """Gate and up as one product."""
    both = b.linear("shared_mlp.input_linear", x)
    gate, up = op.split(b.tape, both, [both.elements // 2] * 2)
    del both
    x = op.multiply(b.tape, b.activation(gate), up, "gate × up")
    return b.linear("shared_mlp.output_linear", x)


_MULTIPLIERS = "attention_multiplier embedding_multiplier logits_scaling residual_multiplier"


def _hybrid_layers(read: Config, layers: int) -> tuple[str, ...]:
    """Which layers have attention and which have a mixer; by default all have a mixer."""
    name = "layer_types" if read.has("layer_types") else "layers_block_type"
    listed = read.items(name, layers) or (LINEAR_ATTENTION,) * layers
    # as layers were called before transformers 5 (configuration_utils.py, _LEGACY_LAYER_TYPE_REMAP)
    listed = tuple(
        {"mamba": LINEAR_ATTENTION, "attention": FULL_ATTENTION}.get(str(kind), kind)
        for kind in listed
    )
    kinds = kinds_in(read, name, listed, (FULL_ATTENTION, LINEAR_ATTENTION))
    return kinds if LINEAR_ATTENTION in kinds else ()


def _own(read: Config, fields: Fields) -> Fields:
    turned = read.values.get("position_embedding_type") == "rope"
    made: dict[str, Any] = {}
    if not turned:
        made["no_rope_layers"] = (True,) * fields["num_hidden_layers"]
    if LINEAR_ATTENTION in fields["layer_types"]:
        made["state_space"] = mamba_of_hidden(read, mamba_width(read, fields), "mamba_expand")
    return made


_GRANITE = Family(
    model_type="granite",
    config=ConfigClass(biases=attention_biases(has_mlp_key=True)),
    prefix="Granite",
    layer=LLAMA_LAYER,
    scales_embedding=True,
    scales_logits=True,
    liger=Kernels(fuses_head=False, whole_logits=True),
    unread={Why.NUMBERS: _MULTIPLIERS},
    multiplies_residual=True,
)
FAMILIES = (
    _GRANITE,
    replace(
        _GRANITE,
        model_type="granitemoe",
        config=ConfigClass(experts=ExpertKeys()),
        prefix="GraniteMoe",
        layer=decoder_layer(
            ATTENTION,
            ModuleClass("block_sparse_moe", _experts, mixture),
            order="self_attn input_layernorm post_attention_layernorm block_sparse_moe",
        ),
        liger=None,
    ),
    replace(
        _GRANITE,
        model_type="granitemoehybrid",
        config=ConfigClass(
            width=lambda read, hidden: read.whole("shared_intermediate_size", default=1024),
            mixers=_hybrid_layers,
            experts=ExpertKeys(),
            own=_own,
        ),
        prefix="GraniteMoeHybrid",
        layer=_hybrid("self_attn", attention_tree, late_norm_attention),
        others={
            MAMBA: _hybrid(
                "mamba",
                partial(mamba_tree, class_name="@MambaLayer"),
                partial(mamba, block="mamba"),
            )
        },
        root=parts.decoder(rotary_emb=_rotary),
        tables_if_turned=True,
        fallback=MAMBA_FALLBACK,
        liger=None,
        unread={
            Why.NUMBERS: f"{_MULTIPLIERS} time_step_limit time_step_max time_step_min",
            Why.OFF: """
            layers_block_type intermediate_size mamba_chunk_size mamba_conv_bias mamba_d_conv mamba_d_head
            mamba_d_state mamba_expand mamba_n_groups mamba_n_heads mamba_proj_bias num_experts_per_tok
            output_router_logits""",
            Why.UNREAD: "init_method normalization_function",
        },
    ),
)

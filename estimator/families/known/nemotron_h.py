"""Nemotron-H: one mixer a layer: Mamba 2, attention, an MLP or experts.

Source: transformers 5.23, models/nemotron_h, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, ExpertKeys, Fields, Why
from estimator.families.config_keys import NEXT_TOKENS
from estimator.families.config_rules import expert_groups, shared_width
from estimator.families.experts import grouped_experts, router
from estimator.families.family import Family, ModuleClass, NormKind
from estimator.families.known.deepseek import correction_bias, sigmoid_routing
from estimator.families.layer_kinds import EXPERTS, FULL_ATTENTION, LINEAR_ATTENTION, MAMBA, MLP
from estimator.families.layers import attention_tree, plain_mlp
from estimator.families.mamba import MAMBA_FALLBACK, mamba, mamba_tree
from estimator.families.modules import LAYERS, LEAF, Bare, OwnParameter, Tree, tree, with_buffers
from estimator.families.reader import MOST_HEADS, MOST_LAYERS, Config, short
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.refusals import InputError
from estimator.values.specs import Model, StateSpace


def _layer(mixer: ModuleClass) -> ModuleClass:
    """Norm, one mixer, add."""

    def layer_tree(model: Model) -> Tree:
        return tree("@Block", norm=parts.norm(model), mixer=mixer.tree(model))

    def nemotron_h(b: Block, x: Tensor) -> Tensor:
        """Norm, one mixer, add: state spaces, attention, an MLP or experts."""
        residual = x
        x = b.norm("norm", op.cast(b.tape, x, b.norms["norm"][0].width))
        x = mixer.forward(b, x)
        return op.add(b.tape, residual, x)

    return ModuleClass("", layer_tree, nemotron_h)


def _mamba_tree(model: Model) -> Tree:
    return mamba_tree(model, "@Mamba2Mixer", unadaptable=True)


def _mamba(b: Block, x: Tensor) -> Tensor:
    return mamba(b, x, "mixer")


def _attention(b: Block, x: Tensor) -> Tensor:
    q, k, v = (b.linear(f"mixer.{name}", x) for name in ("q_proj", "k_proj", "v_proj"))
    return b.linear("mixer.o_proj", b.attend(q, k, v))


_MLP = plain_mlp(name="mixer")
_SHARED = plain_mlp(name="mixer.shared_experts")


def _experts_tree(model: Model) -> Tree:
    """Experts of two matrices each, and a shared one."""
    hidden, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    up, down = parts.up_and_down(model, model.shared_expert_intermediate_size)
    return tree(
        "@MoE",
        experts=tree(
            "@Experts",
            up_proj=OwnParameter(Bare("", hidden, width, experts)),
            down_proj=OwnParameter(Bare("", width, hidden, experts)),
            act_fn=LEAF,
        ),
        gate=with_buffers(router(model), correction_bias(model)),
        shared_experts=tree("@MLP", up_proj=up, down_proj=down, act_fn=LEAF),
        fc1_latent_proj=LEAF,
        fc2_latent_proj=LEAF,
    )


def _experts(b: Block, x: Tensor) -> Tensor:
    experts = grouped_experts(b, x, sigmoid_routing(b, x, "mixer.gate"), "mixer")
    return op.add(b.tape, experts, _SHARED.forward(b, x))


def _layers(read: Config) -> tuple[str, ...]:
    """The mixer of every layer, by letters or by name; the list says how many layers there are.

    Source: transformers 5.23, models/nemotron_h/configuration_nemotron_h.py, ``__post_init__``.
    """
    name = read.has("layer_types", "layers_block_type")
    listed = read.values[name] if name else read.text("hybrid_override_pattern", default="")
    kinds = {"M": LINEAR_ATTENTION, "E": EXPERTS, "*": FULL_ATTENTION, "-": MLP}
    kinds |= {"mamba": LINEAR_ATTENTION, "attention": FULL_ATTENTION}
    kinds |= {mixer: mixer for mixer in kinds.values()}
    if not isinstance(listed, list | tuple | str) or not 0 < len(listed) <= MOST_LAYERS:
        raise InputError(
            "the nemotron_h config says nothing of its layers; add hybrid_override_pattern, a letter of M, *, - or E "
            "for each."
        )
    for kind in listed:
        if kind not in kinds:
            raise InputError(
                f'{name or "hybrid_override_pattern"} must hold "{LINEAR_ATTENTION}", "{FULL_ATTENTION}", "{MLP}" and '
                f'"{EXPERTS}" or their letters M, *, - and E only, not {short(kind)}; correct it in the config.'
            )
    return tuple(kinds[str(kind)] for kind in listed)


def _state_space(read: Config) -> StateSpace:
    """Mamba 2's sizes, by the names that Nemotron-H gives them, and those that it once gave them."""
    for name, only in (("mamba_hidden_act", "silu"), ("moe_latent_size", None)):
        if read.values.get(name, only) != only:
            raise read.refused(name, short(only))
    bias = read.flag("use_bias", default=False)
    old_bias = read.flag("mamba_conv_bias", default=True)
    return StateSpace(
        heads=read.whole("mamba_num_heads", default=128, most=MOST_HEADS),
        head_dim=read.whole("mamba_head_dim", default=64),
        state_size=read.whole("ssm_state_size", default=128),
        groups=read.whole("mamba_n_groups", "n_groups", default=8, most=MOST_HEADS),
        chunk_size=read.whole("mamba_chunk_size", "chunk_size", default=128),
        conv_kernel=read.whole("mamba_d_conv", "conv_kernel", default=4, most=MOST_HEADS),
        conv_bias=old_bias and read.flag("use_conv_bias", default=True),
        in_bias=bias,
        out_bias=bias,
    )


def _own(read: Config, fields: Fields) -> Fields:
    has_states = LINEAR_ATTENTION in fields["layer_types"]
    return {"state_space": _state_space(read)} if has_states else {}


def _biases(read: Config) -> tuple[bool, bool, bool]:
    return False, False, read.flag("mlp_bias", default=False)


FAMILIES = (
    Family(
        model_type="nemotron_h",
        config=ConfigClass(
            tied=None,  # modeling_nemotron_h.py:1158, `_tied_weights_keys = {}`
            key_value_heads=8,
            head_dim=128,
            hidden_act="relu2",
            activation_key="mlp_hidden_act",
            layers=lambda read: len(_layers(read)),
            biases=_biases,
            mixers=lambda read, layers: _layers(read),
            experts=ExpertKeys(
                have_own_width=True,
                shared_width=shared_width("moe_shared_expert_intermediate_size", 7688),
                normed=True,
                groups=expert_groups(1),
                are_there=lambda read: EXPERTS in _layers(read),
            ),
            own=_own,
        ),
        prefix="NemotronH",
        layer=_layer(ModuleClass("mixer", attention_tree, _attention)),
        others={
            MAMBA: _layer(ModuleClass("mixer", _mamba_tree, _mamba)),
            MLP: _layer(_MLP),
            EXPERTS: _layer(ModuleClass("mixer", _experts_tree, _experts)),
        },
        root=parts.causal_lm("model", embeddings=parts.tokens, layers=LAYERS, norm_f=parts.norm),
        norm=NormKind.RMS_WEIGHT_FLOAT32,
        rotary=None,
        float32_logits=True,
        fallback=MAMBA_FALLBACK,
        unread={
            Why.CACHE: "mamba_ssm_cache_dtype use_mamba_kernels",
            Why.INITIALISATION: "rescale_prenorm_residual time_step_floor time_step_max time_step_min",
            Why.NUMBERS: "routed_scaling_factor time_step_limit topk_group",
            Why.OFF: """
            hybrid_override_pattern layers_block_type moe_intermediate_size moe_shared_expert_intermediate_size n_group
            n_routed_experts norm_topk_prob num_experts_per_tok num_hidden_layers output_router_logits
            mamba_hidden_act""",
            Why.UNREAD: f"""
            tie_word_embeddings
            attention_bias expand hidden_dropout mamba_proj_bias moe_shared_expert_overlap n_shared_experts
            residual_in_fp32 sliding_window {NEXT_TOKENS} mtp_hybrid_override_pattern""",
        },
        merges_experts=True,
        peft_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
    ),
)

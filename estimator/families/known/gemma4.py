"""Gemma 4: per-layer embeddings, keys and values shared by the last layers, an MLP parallel to experts.

Source: transformers 5.23, models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, ExpertKeys, Fields, Why, WindowKeys
from estimator.families.experts import Routing, experts_tree, grouped_experts
from estimator.families.family import NORMS_BESIDE, ModuleClass, NormKind, TowerClass
from estimator.families.known.gemma import GEMMA
from estimator.families.layer_kinds import FULL_ATTENTION, GLOBAL, KEEPING, REUSING
from estimator.families.layers import gated_mlp, gated_mlp_tree
from estimator.families.modules import (
    LAYERS,
    LEAF,
    Embedding,
    Module,
    Norm,
    OwnParameter,
    Tree,
    TreeTensor,
    Width,
    tree,
)
from estimator.families.reader import KEY_NOT_MODELLED, MOST_HEADS, Config
from estimator.families.rotary import turned
from estimator.families.towers import gemma4_tower_modules, gemma4_towers
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.refusals import NOT_MODELLED, Line, Refusal
from estimator.values.specs import Model


def gemma4(b: Block, x: Tensor) -> Tensor:
    """Gemma 3's layer; then the layer's own embedding through a gate; and all times a number that is no parameter."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = shared_attention(b, x)
    x = b.norm("post_attention_layernorm", x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("pre_feedforward_layernorm", x)
    x = gated_mlp(b, x)
    if b.stacks:
        first = b.norm("post_feedforward_layernorm_1", x)
        routing = _routing(b, residual)
        b.hold(routing.logits)
        second = b.norm("pre_feedforward_layernorm_2", residual)
        second = grouped_experts(b, second, routing, "")
        second = b.norm("post_feedforward_layernorm_2", second)
        x = op.add(b.tape, first, second)
    x = b.norm("post_feedforward_layernorm", x)
    x = op.add(b.tape, residual, x)
    if b.layer_input is not None:
        residual = x
        x = b.linear("per_layer_input_gate", x)
        x = b.activation(x)
        x = op.multiply(b.tape, x, b.layer_input, "gate × layer's embedding")
        x = b.linear("per_layer_projection", x)
        x = b.norm("post_per_layer_input_norm", x)
        x = op.add(b.tape, residual, x)
    return op.scale_in_place(b.tape, x, by_tensor=True)


def shared_attention(b: Block, x: Tensor) -> Tensor:
    """Queries are always computed; keys and values are the layer's own or those of an earlier layer."""
    tape, model, tables = b.tape, b.model, b.rotary_tables
    assert tables is not None
    key_value_heads = model.num_key_value_heads
    q = b.linear("self_attn.q_proj", x)
    q = b.norm("self_attn.q_norm", q, groups=model.num_attention_heads)
    q = turned(tape, q, tables)
    if b.has("self_attn.k_proj"):
        k = b.linear("self_attn.k_proj", x)
        v = b.linear("self_attn.v_proj", x) if b.has("self_attn.v_proj") else k
        k = b.norm("self_attn.k_norm", k, groups=key_value_heads)
        k = turned(tape, k, tables)
        v = b.norm("self_attn.v_norm", v, groups=key_value_heads)
    else:
        k, v = b.shared_states[b.is_windowed]
    if b.sharing == KEEPING:
        b.shared_states[b.is_windowed] = k, v
    out = b.attend(q, k, v)
    return b.linear("self_attn.o_proj", out)


def _routing(b: Block, x: Tensor) -> Routing:
    """Softmax of a normalised and scaled token; the k largest, divided by their sum, times a number for each expert."""
    tape, chosen = b.tape, b.rows * b.model.num_experts_per_tok
    x = b.norm("router.norm", x)
    x = op.scale(tape, op.multiply(tape, x, b.norms["router.scale"][0], "router's scale"))
    scores = b.linear("router.proj", x)
    probabilities = op.softmax(tape, op.cast(tape, scores, 4))
    shares, indices = op.top_k(tape, probabilities, chosen)
    # divided in place, so that autograd keeps a copy of what was there
    shares = op.multiply(tape, shares, op.mean(tape, shares, b.rows, "sum of shares"), "shares")
    scale = b.norms["router.per_expert_scale"][0]
    of_experts = op.gather(tape, scale, indices, chosen, "scale by expert")
    shares = op.multiply(tape, shares, of_experts, "shares")
    del scores, of_experts
    return Routing(probabilities, shares, indices)


def layer_table(outer: Block, ids: Tensor) -> Tensor:
    """All layers' embeddings of all tokens by their table, T · L · width.

    Source: ``get_per_layer_inputs``.
    """
    tape, model = outer.tape, outer.model
    layers, width = model.num_hidden_layers, model.hidden_size_per_layer_input
    table = outer.embeddings["embed_tokens_per_layer"]
    found = outer.within(
        table.key, ids, lambda ids: op.embedding(tape, ids, table, layers * width, outer.rows)
    )
    return op.scale(tape, found)


def layer_inputs(
    outer: Block, by_table: Tensor, embedded: Tensor, *, scale: Callable[..., Tensor] = op.scale
) -> Tensor:
    """The same by a projection of the tokens' own embeddings, and the sum of both.

    Source: ``project_per_layer_inputs``.
    """
    tape, layers = outer.tape, outer.model.num_hidden_layers
    projected = scale(tape, outer.linear("per_layer_model_projection", embedded))
    projected = outer.norm("per_layer_projection_norm", projected, groups=layers)
    return op.scale(tape, op.add(tape, projected, by_table))


def four_norms(model: Model) -> dict[str, Norm]:
    """Before and after attention, before and after the MLP."""
    names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    return {f"{name}_layernorm": parts.norm(model) for name in names}


def _layer(*, is_global: bool = False, reuses: bool = False) -> ModuleClass:
    def layer_tree(model: Model) -> Tree:
        """``model`` as this layer sees it, by ``layer_model``."""
        has_values = not (is_global and model.attention_k_eq_v)
        return tree(
            "@TextDecoderLayer",
            TreeTensor("layer_scalar", 1, Width.WEIGHT, is_buffer=True),
            self_attn=_attention(model, has_values=has_values, reuses=reuses),
            mlp=gated_mlp_tree(model, class_name="@TextMLP"),
            **four_norms(model),
            act_fn=LEAF if model.hidden_size_per_layer_input else None,
            **layer_input(model),
            **(_experts(model) if model.num_experts else {}),
        )

    return ModuleClass("", layer_tree, gemma4)


def _attention(model: Model, *, has_values: bool, reuses: bool) -> Tree:
    own = "" if reuses else "k_norm v_norm k_proj" + " v_proj" * has_values
    return tree("@TextAttention", **parts.attention(model, f"q_proj q_norm {own} o_proj"))


def layer_input(model: Model) -> dict[str, Tree | Module]:
    """What brings a layer's own embedding in."""
    hidden, width = model.hidden_size, model.hidden_size_per_layer_input
    if not width:
        return {}
    return {
        "per_layer_input_gate": parts.linear(hidden, width),
        "per_layer_projection": parts.linear(width, hidden),
        "post_per_layer_input_norm": parts.norm(model),
    }


def _experts(model: Model) -> dict[str, Tree | Module]:
    """A mixture of experts parallel to the MLP; the router scales its input and each expert's weight."""
    hidden, experts = model.hidden_size, model.num_experts
    return {
        "router": tree(
            "@TextRouter",
            scale=OwnParameter(Norm("", hidden)),
            per_expert_scale=OwnParameter(Norm("", experts)),
            norm=Norm("", hidden, weight=False),
            proj=parts.linear(hidden, experts),
        ),
        "experts": experts_tree(model, class_name="@TextExperts"),
        "post_feedforward_layernorm_1": parts.norm(model),
        "post_feedforward_layernorm_2": parts.norm(model),
        "pre_feedforward_layernorm_2": parts.norm(model),
    }


def text_model(model: Model, rotary_emb: Tree, *buffers: TreeTensor, **more: Tree) -> Tree:
    """Llama's root, and what makes an embedding for every layer."""
    width = model.hidden_size_per_layer_input
    of_all_layers = model.num_hidden_layers * width
    table = Embedding("", model.vocab_size_per_layer_input, of_all_layers)
    of_layers: dict[str, Tree | Module] = {
        "embed_tokens_per_layer": parts.scaled(table),
        "per_layer_model_projection": parts.linear(model.hidden_size, of_all_layers),
        "per_layer_projection_norm": Norm("", width),
    }
    whole = parts.causal_lm(
        "model",
        "@TextModel",
        *buffers,
        embed_tokens=parts.scaled_tokens,
        layers=LAYERS,
        norm=parts.norm,
        rotary_emb=rotary_emb,
        **(of_layers if width else {}),
        **more,
    )
    return whole(model)


def _root(model: Model) -> Tree:
    """Rotary frequencies of layers without a window, and of those with one."""
    widths = (model.global_head_dim or model.head_dim, model.head_dim)
    return text_model(model, parts.frequencies(*(width // 2 for width in widths)))


def shares_keys(model: Model, index: int) -> str:
    """Whether a layer has no window, and whether it takes keys and values from one before it."""
    is_global = bool(model.layer_types) and model.layer_types[index] == FULL_ATTENTION
    is_reusing = index >= model.num_hidden_layers - model.num_kv_shared_layers
    return "-".join([GLOBAL] * is_global + [REUSING] * is_reusing)


SHARED_WITHOUT_PER_LAYER_INPUT = Refusal(
    "num_kv_shared_layers needs hidden_size_per_layer_input, without which transformers stops; set it to 0 in the "
    "config.",
    Line(
        "transformers",
        "models/gemma4/modeling_gemma4.py",
        1841,
        "per_layer_inputs = per_layer_inputs[:, logits_to_keep, :, :]",
    ),
)

NO_LAYER_TO_SHARE = Refusal(
    "num_kv_shared_layers {shared} leaves no layer of each type before the {shared} that share; lower it in the "
    "config.",
    Line(
        "transformers",
        "models/gemma4/configuration_gemma4.py",
        241,
        "The set of layer types producing a cache is different than the set of layer types using them",
    ),
)

ONE_KIND_OF_LAYER = Refusal(
    'layer_types must hold both "full_attention" and "sliding_attention" in {model_type}, since only such are '
    "modelled; correct it in the config.",
    NOT_MODELLED,
)

LAYERS_OF_THEIR_OWN = Refusal(
    'per_layer_config must say the same of each "full_attention" layer and nothing of others, since only such models '
    "are modelled; correct it in the config.",
    NOT_MODELLED,
)

CHANGED_BY_LAYER = Refusal(
    "per_layer_config changes {name}, which is not modelled for gemma4_text; correct it in the config.",
    NOT_MODELLED,
)


def check_layers(read: Config, kinds: tuple[str, ...]) -> None:
    """Refuse what neither Gemma 3n nor Gemma 4 has."""
    if read.values.get("use_bidirectional_attention") == "all":
        raise KEY_NOT_MODELLED(
            name="use_bidirectional_attention",
            value='"all"',
            model_type="gemma4_text",
            instead="null",
        )
    if (
        read.values.get("num_kv_shared_layers")
        and read.values.get("hidden_size_per_layer_input", 256) == 0
    ):
        # modeling_gemma4.py, _maybe_slice_kv_shared_inputs slices the layers' own embeddings, which are None then
        raise SHARED_WITHOUT_PER_LAYER_INPUT()
    if not kinds:
        raise ONE_KIND_OF_LAYER(model_type=read.model_type)


def _global_heads(read: Config, kinds: tuple[str, ...], *, gated: bool) -> tuple[int, int]:
    """Of layers without a window the width of a head, and the key-value heads; 0: as in the others.

    Configs that transformers 5.23 has saved name them layer by layer.
    """
    named = read.part("per_layer_config").values
    if not named:
        heads = read.whole("num_global_key_value_heads", default=0, most=MOST_HEADS) if gated else 0
        return read.whole("global_head_dim", default=512), heads
    # saved with leading zeros, so that the keys sort: "05" of 30 layers
    keys = {int(name): name for name in named if name.isdecimal() and len(name) <= len("4096")}
    of_global = [
        named.get(keys.get(layer, "")) for layer, kind in enumerate(kinds) if kind == FULL_ATTENTION
    ]
    first = of_global[0]
    if first is None or len(named) != len(of_global) or any(layer != first for layer in of_global):
        raise LAYERS_OF_THEIR_OWN()
    own = read.part("per_layer_config").part(keys[kinds.index(FULL_ATTENTION)])
    unknown = sorted(own.values.keys() - {"head_dim", "num_key_value_heads"})
    if unknown:
        raise CHANGED_BY_LAYER(name=unknown[0])
    return (
        own.whole("head_dim", default=0),
        own.whole("num_key_value_heads", default=0, most=MOST_HEADS),
    )


def shared_layers(read: Config, kinds: tuple[str, ...], *, default: int = 0) -> int:
    """How many last layers share; of each type they need one before them that has keys and values."""
    if read.values.get("num_kv_shared_layers", default) in (None, 0):
        return 0
    shared = read.whole("num_kv_shared_layers", default=default, most=len(kinds))
    if set(kinds[: len(kinds) - shared]) != set(kinds):
        raise NO_LAYER_TO_SHARE(shared=shared)
    return shared


def _own(read: Config, fields: Fields) -> Fields:
    kinds = fields["layer_types"]
    check_layers(read, kinds)
    same = read.flag("attention_k_eq_v", default=False)
    width = read.values.get("hidden_size_per_layer_input", 256)
    has_inputs = width is not None and width != 0
    head_dim, heads = _global_heads(read, kinds, gated=same)
    return {
        "global_head_dim": 0 if head_dim == fields["head_dim"] else head_dim,
        "num_global_key_value_heads": 0 if heads == fields["num_key_value_heads"] else heads,
        "attention_k_eq_v": same,
        "num_kv_shared_layers": shared_layers(read, kinds),
        "use_double_wide_mlp": read.flag("use_double_wide_mlp", default=False),
        "hidden_size_per_layer_input": (
            read.whole("hidden_size_per_layer_input", default=256) if has_inputs else 0
        ),
        "vocab_size_per_layer_input": (
            read.whole("vocab_size_per_layer_input", default=262_144) if has_inputs else 0
        ),
    }


def _has_experts(read: Config) -> bool:
    return read.flag("enable_moe_block", default=False)


FAMILIES = (
    replace(
        GEMMA,
        model_type="gemma4_text",
        config=ConfigClass(
            tied=True,
            key_value_heads=4,
            head_dim=256,
            hidden_act="gelu_pytorch_tanh",
            activation_key="hidden_activation",
            windows=WindowKeys(default=512, pattern=6, pattern_is_fixed=True, last_is_full=True),
            softcaps=(None, None),
            experts=ExpertKeys(have_own_width=True, are_there=_has_experts),
            own=_own,
            wrappers=("gemma4",),
        ),
        prefix="Gemma4",
        layer=_layer(),
        others={
            GLOBAL: _layer(is_global=True),
            REUSING: _layer(reuses=True),
            f"{GLOBAL}-{REUSING}": _layer(is_global=True, reuses=True),
        },
        kind=shares_keys,
        root=_root,
        norm=NormKind.RMS_BY_POWER,
        tables_by_kind=True,
        layer_table=layer_table,
        layer_inputs=layer_inputs,
        flash_lacks="heads of more than 256 numbers",
        liger=replace(
            NORMS_BESIDE,
            rotary=False,
            mlp_beside_experts=False,
            left=frozenset(
                {
                    "post_per_layer_input_norm",
                    "per_layer_projection_norm",
                    "post_feedforward_layernorm_1",
                    "post_feedforward_layernorm_2",
                    "pre_feedforward_layernorm_2",
                }
            ),
        ),
        unread={
            Why.OFF: """
            moe_intermediate_size num_experts top_k_experts use_double_wide_mlp vocab_size_per_layer_input
            global_head_dim num_global_key_value_heads""",
        },
        with_towers=TowerClass(
            made="Gemma4ForConditionalGeneration",
            text="Gemma4ForCausalLM",
            vision_types=("gemma4_vision",),
            read=gemma4_towers,
            modules=gemma4_tower_modules,
            missing_class=lambda towers: "" if towers.audio else "Gemma4AudioLayer",
        ),
    ),
)

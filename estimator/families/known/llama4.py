"""Llama 4: queries are scaled in layers without rotary embeddings, and all experts process every token.

Each expert gets all tokens, times the router's share, which is 0 for those it was not chosen for: one batched product
of E · T rows, where other mixtures multiply the T · k chosen ones.

Source: transformers 5.23, models/llama4/modeling_llama4.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, ExpertKeys, Why, WindowKeys
from estimator.families.config_rules import by_rotary, listed_rotary
from estimator.families.experts import experts_tree
from estimator.families.family import Family, ModuleClass, Rotary
from estimator.families.layer_kinds import DENSE, FULL_ATTENTION, SLIDING, UNTURNED
from estimator.families.layers import gated_mlp_tree, unfused_gated_mlp
from estimator.families.modules import Tree, tree
from estimator.families.reader import KEY_NOT_MODELLED, MOST_LAYERS, Config, wrong
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.refusals import Line, Refusal
from estimator.values.specs import Model


def llama4(b: Block, x: Tensor) -> Tensor:
    """Llama's layer, except that it keeps the attention's output until it returns."""
    residual = x
    x = b.norm("input_layernorm", x)
    attended = _attention(b, x)
    x = op.add(b.tape, residual, attended)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = _mixture(b, x) if b.stacks else unfused_gated_mlp(b, x, "feed_forward")
    x = op.add(b.tape, residual, x)
    del attended
    return x


def _attention(b: Block, x: Tensor) -> Tensor:
    model = b.model
    q = b.linear("self_attn.q_proj", x)
    k = b.linear("self_attn.k_proj", x)
    v = b.linear("self_attn.v_proj", x)
    if b.rotary is not None:
        q, k = _turned(b, q, k)
        if model.qk_norm:
            q = op.l2_norm(b.tape, q, b.rows * model.num_attention_heads)
            k = op.l2_norm(b.tape, k, b.rows * model.num_key_value_heads)
    else:
        q = _scaled_by_position(b, q)
    out = b.attend(q, k, v, casts_weights=False)
    return b.linear("self_attn.o_proj", out)


def _turned(b: Block, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_rotary_emb``: complex numbers, each counted as the two float32 that it is."""
    tape, width = b.tape, q.width
    assert b.rotary_tables is not None
    table = b.rotary_tables.cosine
    q_complex, k_complex = op.cast(tape, q, 4), op.cast(tape, k, 4)
    q_out = op.multiply(tape, q_complex, table, "rotary")
    k_out = op.multiply(tape, k_complex, table, "rotary")
    return op.cast(tape, q_out, width), op.cast(tape, k_out, width)


def _scaled_by_position(b: Block, q: Tensor) -> Tensor:
    """Attention temperature tuning: queries times a float32 number for each position."""
    tape, length = b.tape, b.setup.batch.max_length
    tape.operation = "scale by position"
    positions, scales = tape.new(length, op.INDEX_BYTES), tape.new(length, 4)
    q = op.cast(tape, op.multiply(tape, q, scales, "scale by position"), q.width)
    del positions
    return q


def _mixture(b: Block, x: Tensor) -> Tensor:
    """All tokens once for every expert, times their shares, through all experts at once; and the shared one."""
    tape, experts = b.tape, b.model.num_experts
    scores, logits = _routing(b, x)
    routed = op.repeat(tape, x, experts)
    routed = op.multiply(tape, routed, op.clone(tape, scores), "share × token")
    routed_out = _experts(b, routed)
    out = unfused_gated_mlp(b, x, "feed_forward.shared_expert")
    total = op.sum_of_experts(tape, routed_out, x.elements)
    out = op.add_in_place(tape, out, total)
    del total
    b.hold(logits)
    return out


def _routing(b: Block, x: Tensor) -> tuple[Tensor, Tensor]:
    """The k largest scores through a sigmoid, all others 0; and the scores themselves."""
    tape, model = b.tape, b.model
    logits = b.linear("feed_forward.router", x)
    largest, indices = op.top_k(tape, logits, b.rows * model.num_experts_per_tok)
    scores = op.scattered(tape, largest, indices, logits.elements, "scores of the chosen")
    raised = op.elementwise(tape, op.cast(tape, scores, 4), "sigmoid", saves="output")
    return op.cast(tape, raised, scores.width), logits


def _experts(b: Block, x: Tensor) -> Tensor:
    key = b.stacks["feed_forward.experts.gate_up_proj"].weight.key
    return b.within(key, x, lambda x: _products(b, x))


def _products(b: Block, x: Tensor) -> Tensor:
    tape, model = b.tape, b.model
    rows = b.rows * model.num_experts
    gates_and_ups = b.stacks["feed_forward.experts.gate_up_proj"].weight
    downs = b.stacks["feed_forward.experts.down_proj"].weight
    half = rows * model.moe_intermediate_size
    both = op.matmul(tape, x, gates_and_ups, 2 * half, "experts' gate and up")
    gate, up = op.split(tape, both, [half, half])
    states = op.multiply(tape, up, b.activation(gate), "gate × up")
    return op.matmul(tape, states, downs, rows * model.hidden_size, "experts' down")


def _layer(*, is_dense: bool = False, turned: bool = True) -> ModuleClass:
    """With experts or one MLP; layers without rotary embeddings lack norms of queries and keys."""

    def layer_tree(model: Model) -> Tree:
        normed = model.qk_norm and turned
        return tree(
            "@TextDecoderLayer",
            self_attn=tree(
                "@TextAttention",
                **parts.projections(model),
                qk_norm=parts.head_norm(model, weight=False) if normed else None,
            ),
            feed_forward=(_mlp_tree if is_dense else _mixture_tree)(model),
            input_layernorm=parts.norm(model),
            post_attention_layernorm=parts.norm(model),
        )

    return ModuleClass("", layer_tree, llama4)


def _mlp_tree(model: Model, width: int = 0) -> Tree:
    return gated_mlp_tree(model, width, class_name="@TextMLP", act="activation_fn")


def _mixture_tree(model: Model) -> Tree:
    router = parts.linear(model.hidden_size, model.num_experts)
    return tree(
        "@TextMoe",
        experts=experts_tree(model, class_name="@TextExperts", transposed=True),
        router=replace(router, own_class=True, routes=True),
        shared_expert=_mlp_tree(model, model.shared_expert_intermediate_size),
    )


def _llama4_kind(model: Model, index: int) -> str:
    """Whether a layer has a dense MLP, and whether it lacks rotary embeddings and so norms of queries and keys."""
    is_dense = bool(model.mlp_layer_types) and model.mlp_layer_types[index] == DENSE
    is_unturned = model.qk_norm and bool(model.no_rope_layers) and model.no_rope_layers[index]
    return "-".join([DENSE] * is_dense + [UNTURNED] * is_unturned)


NO_CHUNK_SIZE = Refusal(
    "attention_chunk_size null stops transformers' chunked mask; give a whole number in the config.",
    Line("transformers", "masking_utils.py", 1426, "Could not find an `attention_chunk_size`"),
)


def _check(read: Config) -> None:
    """Refuse what neither Scout nor Maverick has."""
    if not read.values.get("attn_temperature_tuning", True):  # once the number 4
        raise KEY_NOT_MODELLED(
            name="attn_temperature_tuning", value="false", model_type="llama4_text", instead="true"
        )
    if read.flag("output_router_logits", default=False):
        raise read.refused("output_router_logits", "false")
    if "attention_chunk_size" in read.values and read.values["attention_chunk_size"] is None:
        # transformers 5.23, masking_utils.py, create_chunked_causal_mask
        raise NO_CHUNK_SIZE()


def _interleaved(read: Config, layers: int) -> tuple[str, ...]:
    """Llama 4's layers with experts: those listed, or the last of every group of layers."""
    every = read.whole("interleave_moe_layer_step", default=1, most=MOST_LAYERS)
    listed = read.values.get("moe_layers")
    if listed is None:
        sparse = set(range(every - 1, layers, every))
    elif isinstance(listed, list | tuple) and all(type(index) is int for index in listed):
        sparse = {index for index in listed if index in range(layers)}
    else:
        raise wrong("moe_layers", "list whole numbers, the layers with experts", listed)
    return tuple("sparse" if layer in sparse else DENSE for layer in range(layers))


def _chunk(read: Config) -> int:
    return read.whole("attention_chunk_size", default=8192)


FAMILIES = (
    Family(
        model_type="llama4_text",
        config=ConfigClass(
            key_value_heads=8,
            head_dim=128,
            width=lambda read, hidden: read.whole("intermediate_size_mlp", default=16384),
            windows=WindowKeys(size=_chunk, unlisted=by_rotary(SLIDING, FULL_ATTENTION)),
            rotary_layers=listed_rotary,
            experts=ExpertKeys(
                shared_width=lambda read, width: width, layer_types=_interleaved, check=_check
            ),
            mlps_in_turn=True,
            flags={"qk_norm": ("use_qk_norm", True)},
            wrappers=("llama4",),
        ),
        prefix="Llama4",
        layer=_layer(),
        others={
            DENSE: _layer(is_dense=True),
            UNTURNED: _layer(turned=False),
            f"{DENSE}-{UNTURNED}": _layer(is_dense=True, turned=False),
        },
        kind=_llama4_kind,
        root=parts.decoder(class_name="@TextModel"),
        splits_packed_experts=True,
        rotary=Rotary.COMPLEX,
        softmax_float32=False,
        flash_lacks="chunks",
        has_chunks=True,
        runs_every_expert=True,
        unread={
            Why.NUMBERS: "attn_scale floor_scale",
            Why.OFF: "no_rope_layer_interval interleave_moe_layer_step",
            Why.UNREAD: "for_llm_compressor router_jitter_noise",
        },
        liger_is_later=True,
        finds_final_norm=False,
        peft_targets=("q_proj", "v_proj"),
    ),
)

"""Gemma 3n: four streams, one computed and three predicted; a low-rank branch parallel to attention; sparse gates.

Source: transformers 5.23, models/gemma3n/modeling_gemma3n.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Fields, Why, WindowKeys
from estimator.families.family import ModuleClass, NormKind, TowerClass
from estimator.families.known.gemma import GEMMA
from estimator.families.known.gemma4 import (
    check_layers,
    four_norms,
    layer_input,
    layer_inputs,
    shared_attention,
    shared_layers,
    text_model,
)
from estimator.families.known.gemma4 import (
    layer_table as gemma4_table,
)
from estimator.families.layer_kinds import REUSING
from estimator.families.layers import gated_mlp_tree
from estimator.families.modules import (
    LEAF,
    Norm,
    OwnParameter,
    Tree,
    TreeTensor,
    Width,
    module_list,
    tree,
)
from estimator.families.reader import MOST_HEADS, Config, short
from estimator.families.towers import gemma3n_tower_modules, gemma3n_towers
from estimator.tape import operators as op
from estimator.tape.tape import Tape, Tensor
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal
from estimator.values.specs import Model


def gemma3n(b: Block, x: Tensor) -> Tensor:
    """AltUp predicts all streams, the layer computes the first, AltUp corrects all by what that changed."""
    tape, model = b.tape, b.model
    one = x.elements // model.altup_num_inputs
    predictions = _predicted(b, x)
    active = op.part(tape, predictions, one)
    normed = b.norm("input_layernorm", active)
    laurel = _laurel(b, normed)
    attended = shared_attention(b, normed)
    attended = b.norm("post_attention_layernorm", attended)
    gated = op.add(tape, active, attended)
    both = op.scale(tape, op.add(tape, gated, laurel))
    before_mlp = b.norm("pre_feedforward_layernorm", both)
    out = _mlp(b, before_mlp)
    out_normed = b.norm("post_feedforward_layernorm", out)
    activated = op.add(tape, both, out_normed)
    corrected = _corrected(b, predictions, activated)
    first = op.clone(tape, op.part(tape, corrected, one))
    scale = b.norms["altup.correct_output_scale"][0]
    first = op.multiply(tape, op.cast(tape, first, scale.width), scale, "scale")
    first = op.cast(tape, first, corrected.width)
    first = b.linear("per_layer_input_gate", first)
    first = b.activation(first)
    assert b.layer_input is not None
    first = op.multiply(tape, first, b.layer_input, "gate × layer's embedding")
    first = b.linear("per_layer_projection", first)
    first = b.norm("post_per_layer_input_norm", first)
    corrected = op.add_to_slice(tape, corrected, first, x.elements - one)
    del gated, before_mlp, out, out_normed, activated, laurel, attended, normed
    return corrected


def _laurel(b: Block, x: Tensor) -> Tensor:
    low = b.linear("laurel.linear_left", x)
    low = b.linear("laurel.linear_right", low)
    normed = b.norm("laurel.post_laurel_norm", low)
    return op.add(b.tape, x, normed)


def _mlp(b: Block, x: Tensor) -> Tensor:
    """Llama's MLP. The first layers keep only gate activations above a threshold of mean plus spread."""
    gate = b.linear("mlp.gate_proj", x)
    if b.cuts_gate:
        gate = _cut(b.tape, gate, b.rows)
    activated = b.activation(gate)
    up = b.linear("mlp.up_proj", x)
    down = b.linear("mlp.down_proj", op.multiply(b.tape, activated, up, "gate × up"))
    del gate
    return down


def _cut(tape: Tape, x: Tensor, rows: int) -> Tensor:
    """``_gaussian_topk``: relu(x - (mean + deviation · number))."""
    mean = op.mean(tape, x, rows, "mean of the gates")
    deviation = op.deviation(tape, x, rows)
    cutoff = op.add(tape, mean, op.scale(tape, deviation))
    return op.elementwise(tape, op.subtract(tape, x, cutoff), "relu", saves="output")


def _modalities(b: Block, x: Tensor) -> Tensor:
    """``compute_router_modalities``: a number for each stream."""
    tape = b.tape
    inputs = op.scale(tape, b.norm("altup.router_norm", x))
    routed = b.linear("altup.modality_router", inputs)
    raised = op.elementwise(tape, op.cast(tape, routed, 4), "tanh", saves="output")
    return op.cast(tape, raised, x.width)


def _predicted(b: Block, x: Tensor) -> Tensor:
    tape, streams = b.tape, b.model.altup_num_inputs
    modalities = _modalities(b, op.part(tape, x, x.elements // streams))
    coefficients = b.linear("altup.prediction_coefs", modalities)
    predictions = op.matmul(tape, x, coefficients, x.elements, "predicted streams")
    predictions = op.add_in_place(tape, predictions, x, is_of_view=True)
    return op.cast(tape, op.clone(tape, predictions), x.width)


def _corrected(b: Block, predictions: Tensor, activated: Tensor) -> Tensor:
    tape, streams = b.tape, b.model.altup_num_inputs
    modalities = _modalities(b, activated)
    innovation = op.subtract(tape, activated, op.part(tape, predictions, activated.elements))
    innovation = op.repeat(tape, innovation, streams)
    linked = b.linears["altup.correction_coefs"]
    bounded = op.clamp(tape, linked.weight, both_sides=True)
    coefficients = op.linear(tape, modalities, bounded, None, streams, streams, "correction")
    coefficients = op.add_number(tape, coefficients)
    corrected = op.multiply(tape, innovation, coefficients, "correction")
    corrected = op.add_in_place(tape, corrected, predictions)
    return op.cast(tape, corrected, activated.width)


def layer_table(outer: Block, ids: Tensor) -> Tensor:
    """Gemma 4's; ids beyond the table are taken for the first."""
    in_table = outer.tape.new(ids.elements, ids.width)
    return gemma4_table(outer, in_table)


def spread(outer: Block, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The streams that enter the first layer, and the names that the model's forward keeps of them."""
    kept = _magnitudes(outer, [x] * outer.model.altup_num_inputs, "altup_projections", x.width)
    return _stacked(outer.tape, kept), kept


def _stacked(tape: Tape, parts: list[Tensor]) -> Tensor:
    """``stack``; autocast brings all to the widest dtype first."""
    width = max(part.width for part in parts)
    return op.concatenate(tape, [op.cast(tape, part, width) for part in parts])


def gathered(outer: Block, x: Tensor) -> Tensor:
    """The mean of all streams after the last layer, each brought to the first one's magnitude."""
    tape, streams = outer.tape, outer.model.altup_num_inputs
    one = x.elements // streams
    parts = [op.part(tape, x, one)]
    width = next(iter(outer.embeddings.values())).width
    sources = [*parts, *([x] * (streams - 1))]
    kept = _magnitudes(outer, sources, "altup_unembed_projections", width)
    whole = _stacked(tape, kept)
    return op.mean(tape, whole, one, "mean of the streams")


def _magnitudes(outer: Block, sources: list[Tensor], block: str, width: int) -> list[Tensor]:
    """The first as it is, the others projected and brought to its magnitude."""
    tape, rows, first = outer.tape, outer.rows, sources[0]
    target = _power(tape, op.mean(tape, _power(tape, first), rows), 2)
    kept = [first]
    for index, source in enumerate(sources[1:]):
        own = source if source.elements == first.elements else op.part(tape, source, first.elements)
        projected = outer.linear(f"{block}.{index}", own)
        current = op.cast(tape, projected, width)
        magnitude = op.mean(tape, _power(tape, current), rows)
        magnitude = op.elementwise(
            tape, op.clamp(tape, magnitude, both_sides=False), "root", saves="output"
        )
        current = op.divide(tape, op.multiply(tape, current, target, "magnitude"), magnitude)
        kept.append(current)
        del own
    return kept


def _power(tape: Tape, x: Tensor, backward_copies: int = 3) -> Tensor:
    """``**``, which autocast takes in float32."""
    raised = op.cast(tape, x, 4) if tape.autocast_active else x
    return op.elementwise(tape, raised, "power", backward_copies=backward_copies)


def _tree(model: Model, *, reuses: bool = False) -> Tree:
    hidden, streams, rank = model.hidden_size, model.altup_num_inputs, model.laurel_rank
    return tree(
        "@TextDecoderLayer",
        self_attn=_attention(model, reuses=reuses),
        mlp=gated_mlp_tree(model, class_name="@TextMLP"),
        **four_norms(model),
        act_fn=LEAF,
        altup=tree(
            "@TextAltUp",
            TreeTensor("router_input_scale", 1, Width.WEIGHT, is_buffer=True),
            correct_output_scale=OwnParameter(Norm("", hidden)),
            correction_coefs=parts.linear(streams, streams),
            prediction_coefs=parts.linear(streams, streams**2),
            modality_router=parts.linear(hidden, streams),
            router_norm=parts.norm(model),
        ),
        laurel=tree(
            "@TextLaurelBlock",
            linear_left=parts.linear(hidden, rank),
            linear_right=parts.linear(rank, hidden),
            post_laurel_norm=parts.norm(model),
        ),
        **layer_input(model),
    )


def _attention(model: Model, *, reuses: bool) -> Tree:
    own = "" if reuses else "k_proj v_proj k_norm v_norm"
    return tree("@TextAttention", **parts.attention(model, f"q_proj q_norm {own} o_proj"))


def _root(model: Model) -> Tree:
    """Gemma 4's, and a projection to and from each other stream."""
    names = ("per_layer_projection_scale", "per_layer_input_scale")
    scales = (TreeTensor(name, 1, Width.WEIGHT, is_buffer=True) for name in names)
    hidden, streams = model.hidden_size, model.altup_num_inputs - 1
    projections = {
        name: module_list(*(parts.linear(hidden, hidden) for _ in range(streams)))
        for name in ("altup_projections", "altup_unembed_projections")
    }
    return text_model(model, parts.rotary_by_kind(model), *scales, **projections)


def _reuses_keys(model: Model, index: int) -> str:
    """Whether a layer takes keys and values from one before it."""
    return REUSING if index >= model.num_hidden_layers - model.num_kv_shared_layers else ""


LAYERS_OF_TWO_WIDTHS = Refusal(
    "intermediate_size must be the same in all layers of gemma3n_text, since only such are modelled; correct it in the "
    "config.",
    NOT_MODELLED,
)


def _width(read: Config, hidden: int) -> int:
    """One width, or one a layer; only such are modelled that are all the same."""
    widths = read.values.get("intermediate_size")
    if not isinstance(widths, list | tuple):
        return read.whole("intermediate_size", default=16_384)
    if not widths or any(width != widths[0] for width in widths):
        raise LAYERS_OF_TWO_WIDTHS()
    return replace(read, values={"intermediate_size": widths[0]}).whole("intermediate_size")


def _streams(read: Config, layers: int) -> dict[str, Any]:
    """AltUp's streams, LAuReL's rank, and the first layers, whose gates are cut."""
    for name, only in (("altup_active_idx", 0), ("altup_correct_scale", True)):
        if read.values.get(name, only) != only:
            raise read.refused(name, short(only))
    if read.values.get("altup_coef_clip", 120.0) is None:
        raise read.refused("altup_coef_clip", 120.0)
    # Gemma3nTextConfig.__post_init__: the first ten layers, if there are more
    cut = 10 if layers > 10 else 0
    shares = read.values.get("activation_sparsity_pattern", [0.95] * cut + [0.0] * (layers - cut))
    if not isinstance(shares, list | tuple) or len(shares) != layers:
        raise InputError(
            f"activation_sparsity_pattern must list a share for each of the {layers} layers; correct it in the config."
        )
    is_cut = [share != 0 for share in shares]
    if sorted(is_cut, reverse=True) != is_cut:
        raise InputError(
            "activation_sparsity_pattern is modelled where the first layers are cut and the others not; correct it in "
            "the config."
        )
    return {
        "altup_num_inputs": read.whole("altup_num_inputs", default=4, most=MOST_HEADS),
        "laurel_rank": read.whole("laurel_rank", default=64),
        "cut_layers": sum(is_cut),
    }


def _own(read: Config, fields: Fields) -> Fields:
    kinds = fields["layer_types"]
    streams = _streams(read, fields["num_hidden_layers"])
    check_layers(read, kinds)
    return {
        **streams,
        "num_kv_shared_layers": shared_layers(read, kinds, default=15),
        "hidden_size_per_layer_input": read.whole("hidden_size_per_layer_input", default=256),
        "vocab_size_per_layer_input": read.whole("vocab_size_per_layer_input", default=262_144),
    }


FAMILIES = (
    replace(
        GEMMA,
        model_type="gemma3n_text",
        config=ConfigClass(
            tied=True,
            key_value_heads=2,
            head_dim=256,
            hidden_act="gelu_pytorch_tanh",
            activation_key="hidden_activation",
            width=_width,
            windows=WindowKeys(default=512, pattern=5, pattern_is_fixed=True),
            softcaps=(None, 30.0),
            own=_own,
            wrappers=("gemma3n",),
        ),
        prefix="Gemma3n",
        layer=ModuleClass("", _tree, gemma3n),
        others={REUSING: ModuleClass("", partial(_tree, reuses=True), gemma3n)},
        kind=_reuses_keys,
        root=_root,
        norm=NormKind.RMS_BY_POWER,
        tables_by_kind=True,
        layer_table=layer_table,
        layer_inputs=partial(layer_inputs, scale=partial(op.scale_in_place, by_tensor=True)),
        spread=spread,
        gathered=gathered,
        reads_weights="altup.correction_coefs",
        liger=None,
        unread={Why.NUMBERS: "altup_lr_multiplier rope_local_base_freq"},
        with_towers=TowerClass(
            made="Gemma3nForConditionalGeneration",
            text="Gemma3nForCausalLM",
            vision_types=("gemma3n_vision",),
            read=gemma3n_towers,
            modules=gemma3n_tower_modules,
            runs_on_text=(
                "embed_vision.embedding",
                "embed_vision.hard",
                "embed_audio.embedding",
                "embed_audio.hard",
            ),
        ),
    ),
)

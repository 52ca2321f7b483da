"""Gemma 4: patches padded to a budget, a mask in every layer, pooled into tokens by their positions.

Source: transformers 5.23, models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import Family, ModuleClass, NormKind, Rotary
from estimator.families.images.gemma import Gemma4ImageProcessor
from estimator.families.images.videos import Gemma4VideoProcessor
from estimator.families.modules import LAYERS, Kernel, Linear, Norm, Tree, tree
from estimator.families.reader import MOST_HEADS, Config
from estimator.families.rotary import Tables, turned
from estimator.families.vision.block import TowerBlock
from estimator.families.vision.sizes import tower_of
from estimator.families.vision_family import (
    RequireGrad,
    Seen,
    VisionFamily,
    VisionKernels,
    patch_tables,
)
from estimator.tape import operators as op
from estimator.tape.tape import ACTIVATIONS, Tape, Tensor
from estimator.values.specs import Model, Vision


def _read(read: Config, whole: Config) -> Vision:
    heads = read.whole("num_attention_heads", default=12, most=MOST_HEADS)
    patch = read.whole("patch_size", default=16)
    tower = tower_of(
        read,
        "gemma4_vision",
        hidden=768,
        heads=12,
        layers=16,
        width=3072,
        act="",
        num_key_value_heads=read.whole("num_key_value_heads", default=heads, most=MOST_HEADS),
        head_dim=read.whole("head_dim", default=64),
        hidden_act=read.text("hidden_activation", default="gelu_pytorch_tanh"),
        attn_pdrop=read.share("attention_dropout"),
        learned_positions=read.whole("position_embedding_size", default=10 * 1024),
        word_embed_proj_dim=3 * patch**2,
        clip_qkv=read.flag("use_clipped_linears", default=False),
    )
    return Vision(
        wrapper="gemma4",
        tower=tower,
        patch_size=patch,
        merge_size=read.whole("pooling_kernel_size", default=3),
    )


def _tree(model: Model) -> Tree:
    hidden, width = model.hidden_size, model.intermediate_size
    linears = parts.projections(model)
    names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    return tree(
        self_attn=tree(
            **{name: tree(linear=linear) for name, linear in linears.items()},
            q_norm=parts.head_norm(model),
            k_norm=parts.head_norm(model),
            v_norm=parts.head_norm(model, weight=False),
        ),
        mlp=tree(
            gate_proj=tree(linear=parts.linear(hidden, width)),
            up_proj=tree(linear=parts.linear(hidden, width)),
            down_proj=tree(linear=parts.linear(width, hidden)),
        ),
        **{f"{name}_layernorm": parts.norm(model) for name in names},
    )


def _root(model: Model) -> Tree:
    hidden = model.hidden_size
    projected = tree(input_proj=parts.linear(model.word_embed_proj_dim, hidden))
    positions = Kernel("", ((2, model.learned_positions, hidden),))
    return tree(patch_embedder=replace(projected, weights=positions), encoder=tree(layers=LAYERS))


def _projector(vision: Vision, model: Model) -> Mapping[str, Tree]:
    hidden = vision.tower.hidden_size
    is_last = model.towers is None or model.towers.audio is None
    made = tree(
        embedding_projection=Linear("", hidden, model.hidden_size, is_last=is_last),
        embedding_pre_projection_norm=Norm("", hidden, weight=False),
    )
    return {"embed_vision": made}


def _clipped(b: Block, name: str, x: Tensor) -> Tensor:
    """A linear, with what goes in and comes out clamped where the config says so."""
    if not b.model.clip_qkv:
        return b.linear(f"{name}.linear", x)
    x = b.linear(f"{name}.linear", op.clamp(b.tape, x, both_sides=True))
    return op.clamp(b.tape, x, both_sides=True)


def gemma4_vision(b: Block, x: Tensor) -> Tensor:
    """``Gemma4VisionEncoderLayer``: four norms; queries and keys are turned in two halves, values normalised."""
    tape = b.tape
    residual = x
    x = b.norm("input_layernorm", x)
    q = _turned(
        b,
        b.norm(
            "self_attn.q_norm",
            _clipped(b, "self_attn.q_proj", x),
            groups=b.model.num_attention_heads,
        ),
    )
    k = _turned(
        b,
        b.norm(
            "self_attn.k_norm",
            _clipped(b, "self_attn.k_proj", x),
            groups=b.model.num_key_value_heads,
        ),
    )
    v = b.norm(
        "self_attn.v_norm", _clipped(b, "self_attn.v_proj", x), groups=b.model.num_key_value_heads
    )
    x = _clipped(b, "self_attn.o_proj", b.attend(q, k, v))
    del q, k, v
    x = b.norm("post_attention_layernorm", x)
    x = op.add(tape, residual, x)
    residual = x
    x = b.norm("pre_feedforward_layernorm", x)
    gate = b.activation(_clipped(b, "mlp.gate_proj", x))
    product = op.multiply(tape, gate, _clipped(b, "mlp.up_proj", x), "gate × up")
    del gate
    x = _clipped(b, "mlp.down_proj", product)
    del product
    x = b.norm("post_feedforward_layernorm", x)
    return op.add(tape, residual, x)


def _turned(b: Block, x: Tensor) -> Tensor:
    """Half of each head by the column of its patch, half by the row, joined into a new tensor."""
    tables = b.rotary_tables
    assert tables is not None
    halves = op.split(b.tape, x, [x.elements // 2] * 2)
    half = Tables(*(b.tape.view(table, table.elements // 2) for table in tables))
    return op.concatenate(b.tape, [turned(b.tape, part, half) for part in halves])


def _embed(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """One product of whole patches, and two looked-up positions; padding's are zero."""
    tape, hidden = b.tape, vision.tower.hidden_size
    pixels = b.receive(seen.patches * vision.tower.word_embed_proj_dim)
    b.receive(2 * seen.patches, 8)
    (table,) = b.tensors["patch_embedder"]
    x = op.scale(tape, op.add_number(tape, pixels))
    x = op.cast(tape, x, table.width)
    x = b.linear("patch_embedder.input_proj", x)
    ids = tape.new(2 * seen.patches, 8)
    positions = op.add(
        tape,
        op.embedding(tape, ids, op.part(tape, table, table.elements // 2), hidden, seen.patches),
        op.embedding(tape, ids, op.part(tape, table, table.elements // 2), hidden, seen.patches),
    )
    padding = tape.new(seen.patches, 1)
    positions = op.masked_fill(tape, positions, padding)
    return op.add(tape, x, positions)


def _mask(tape: Tape, vision: Vision, seen: Seen, width: int) -> Tensor:
    """One truth value for every pair of patches of an image."""
    tape.operation = "mask of the images"
    return tape.new(seen.patches * (seen.patches // seen.tiles), 1, ACTIVATIONS)


def _project(outer: Block, projector: Block, vision: Vision, seen: Seen, x: Tensor) -> Tensor:
    """Averages by position as a product in float32; padding is cut off; a norm without weight, and a product."""
    tape, hidden = outer.tape, vision.tower.hidden_size
    width = x.width
    padded = seen.patches // vision.merge_size**2
    x = op.masked_fill(tape, x, tape.new(seen.patches, 1))
    weights = tape.new(seen.patches * (padded // seen.tiles), 4)
    with tape.without_autocast():
        x = op.matmul(tape, weights, op.cast(tape, x, 4), padded * hidden, "pooling")
    del weights
    x = op.cast(tape, x, width)
    x = op.scale(tape, op.cast(tape, x, 4))
    kept = tape.new(2 * seen.tokens, 8)
    x = op.gather(tape, x, kept, seen.tokens * hidden, "tokens without padding")
    x = op.cast(tape, x, width)
    x = projector.norm("embed_vision.embedding_pre_projection_norm", x)
    return projector.linear("embed_vision.embedding_projection", x)


def _rows(vision: Vision, seen: Seen) -> tuple[int, int]:
    """Each image is a row of the whole budget."""
    return seen.tiles, seen.patches // seen.tiles


def _processor(vision: Vision) -> Gemma4ImageProcessor:
    return Gemma4ImageProcessor(patch_size=vision.patch_size, pooling_kernel_size=vision.merge_size)


def _videos(vision: Vision) -> Gemma4VideoProcessor:
    return Gemma4VideoProcessor(patch_size=vision.patch_size, pooling_kernel_size=vision.merge_size)


TOWERS = (
    VisionFamily(
        wrappers=("gemma4",),
        tower=Family(
            model_type="gemma4_vision",
            layer=ModuleClass("", _tree, gemma4_vision),
            root=_root,
            norm=NormKind.RMS_BY_POWER,
            rotary=Rotary.HALVES,
        ),
        read=_read,
        processor=_processor,
        videos=_videos,
        projector=_projector,
        embed=_embed,
        project=_project,
        tokens_a_row=_rows,
        tables=patch_tables,
        mask=_mask,
        hooks_embedding=False,
        liger=VisionKernels(),
    ),
)

"""InternVL: square tiles with a class token, layer scales, patches shuffled into tokens.

Source: transformers 5.23, models/internvl/modeling_internvl.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import TOWER_NORMS, Family, ModuleClass, NormKind
from estimator.families.images.tiles import InternVLImageProcessor
from estimator.families.images.videos import FrameProcessor
from estimator.families.layers import plain_mlp
from estimator.families.modules import LAYERS, LEAF, Kernel, Norm, OwnParameter, Tree, tree
from estimator.families.reader import Config
from estimator.families.vision.block import TowerBlock
from estimator.families.vision.sizes import tower_of
from estimator.families.vision_family import (
    RequireGrad,
    Seen,
    TowerTree,
    VisionFamily,
    VisionKernels,
    square_pixels,
)
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model, Vision


def _side(read: Config, key: str, default: int) -> int:
    """A size that the config may write as [height, width]."""
    value = read.values.get(key)
    if isinstance(value, list | tuple) and value and isinstance(value[0], int):
        return value[0]
    return read.whole(key, default=default)


def _read(read: Config, whole: Config) -> Vision:
    side, patch = _side(read, "image_size", 448), _side(read, "patch_size", 14)
    channels = read.whole("num_channels", default=3)
    tower = tower_of(
        read,
        "internvl_vision",
        hidden=1024,
        heads=16,
        layers=24,
        width=4096,
        act="gelu",
        attention_bias=read.flag("attention_bias", default=False),
        attention_output_bias=True,
        mlp_bias=True,
        qk_norm=read.flag("use_qk_norm", default=False),
        norms_without_weight=read.text("norm_type", default="layer_norm") == "rms_norm",
        attn_pdrop=read.share("attention_dropout"),
        learned_positions=(side // patch) ** 2 + 1,
        word_embed_proj_dim=channels * patch**2,
    )
    return Vision(
        wrapper="internvl",
        tower=tower,
        patch_size=patch,
        merge_size=round(1 / whole.share("downsample_ratio", default=0.5)),
        image_size=side,
        num_channels=channels,
    )


_MLP = plain_mlp("fc1", "fc2", "activation_fn up down", class_name="InternVLVisionMLP")


def _tree(model: Model) -> Tree:
    hidden = model.hidden_size
    bias, normed = not model.norms_without_weight, model.qk_norm
    return tree(
        "InternVLVisionLayer",
        scales=OwnParameter(Kernel("", ((hidden,), (hidden,)), ("lambda_1", "lambda_2"))),
        attention=tree(
            "InternVLVisionAttention",
            **parts.projections(model, last="projection_layer"),
            projection_dropout=LEAF,
            q_norm=Norm("", hidden) if normed else LEAF,
            k_norm=Norm("", hidden) if normed else LEAF,
        ),
        mlp=_MLP.tree(model),
        layernorm_before=Norm("", hidden, bias=bias),
        layernorm_after=Norm("", hidden, bias=bias),
        dropout=LEAF,
    )


def _root(model: Model) -> Tree:
    hidden = model.hidden_size
    patches = Kernel("", ((hidden, model.word_embed_proj_dim), (hidden,)))
    bare = Kernel(
        "",
        ((1, 1, hidden), (1, model.learned_positions, hidden)),
        ("cls_token", "position_embeddings"),
    )
    embeddings = tree(
        "InternVLVisionEmbeddings",
        patch_embeddings=tree("InternVLVisionPatchEmbeddings", projection=patches),
        dropout=LEAF,
    )
    return tree(
        "InternVLVisionModel",
        embeddings=replace(embeddings, weights=bare),
        encoder=tree("InternVLVisionEncoder", layer=LAYERS),
        layernorm=LEAF,
    )


def _projector(vision: Vision, model: Model) -> Mapping[str, Tree]:
    width = vision.tower.hidden_size * vision.merge_size**2
    made = tree(
        "InternVLMultiModalProjector",
        layer_norm=Norm("", width, bias=True),
        linear_1=parts.linear(width, model.hidden_size, bias=True),
        act=LEAF,
        linear_2=parts.linear(model.hidden_size, model.hidden_size, bias=True),
    )
    return {"multi_modal_projector": made}


def internvl(b: Block, x: Tensor) -> Tensor:
    """``InternVLVisionLayer``: what attention and the MLP add is scaled by two learned vectors."""
    tape = b.tape
    kind = NormKind.RMS if b.model.norms_without_weight else NormKind.LAYER_NORM
    attention = _attend(b, b.norm("layernorm_before", x, kind=kind))
    first, second = b.tensors["scales"]
    attention = op.multiply(tape, first, attention, "layer scale")
    x = op.add(tape, attention, x)
    hidden = _MLP.forward(b, b.norm("layernorm_after", x, kind=kind))
    hidden = op.multiply(tape, second, hidden, "layer scale")
    return op.add(tape, hidden, x)


def _attend(b: Block, x: Tensor) -> Tensor:
    q = b.linear("attention.q_proj", x)
    k = b.linear("attention.k_proj", x)
    v = b.linear("attention.v_proj", x)
    if b.model.qk_norm:
        q = b.norm("attention.q_norm", q, kind=NormKind.RMS)
        k = b.norm("attention.k_norm", k, kind=NormKind.RMS)
    return b.linear("attention.projection_layer", b.attend(q, k, v))


def _embed(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """A class token before the patches of each tile, and positions."""
    tape, hidden = b.tape, vision.tower.hidden_size
    pixels, elements = square_pixels(vision, seen), seen.patches * hidden
    name = "embeddings.patch_embeddings.projection"
    x = require_grad(b.embed_patches(name, pixels, elements, is_held=True))
    first, positions = b.tensors["embeddings"]

    def program(x: Tensor) -> Tensor:
        firsts = op.expand(tape, first, seen.tiles * hidden)
        x = op.concatenate(tape, [firsts, x])
        return op.add(tape, x, positions)

    return b.within(first.key, x, program)


def _project(outer: Block, projector: Block, vision: Vision, seen: Seen, x: Tensor) -> Tensor:
    """Without the class token; patches are shuffled by two copies."""
    tape, name = outer.tape, "multi_modal_projector"
    x = op.part(tape, x, seen.patches * vision.tower.hidden_size)
    x = op.clone(tape, x)
    x = op.clone(tape, op.clone(tape, x))
    x = projector.norm(f"{name}.layer_norm", x)
    x = projector.linear(f"{name}.linear_1", x)
    x = op.elementwise(tape, x, "gelu")
    return projector.linear(f"{name}.linear_2", x)


def _processor(vision: Vision) -> InternVLImageProcessor:
    return InternVLImageProcessor(
        tile=vision.image_size,
        patch_size=vision.patch_size,
        downsample_ratio=1 / vision.merge_size,
    )


def _videos(vision: Vision) -> FrameProcessor:
    return FrameProcessor(image=replace(_processor(vision), crop_to_patches=False))


_TREE = TowerTree(class_name="InternVLModel", whole=("InternVLVisionLayer",))
TOWERS = (
    VisionFamily(
        wrappers=("internvl",),
        tree=_TREE,
        tower=Family(
            model_type="internvl_vision",
            layer=ModuleClass("", _tree, internvl),
            root=_root,
            norm=NormKind.LAYER_NORM,
            rotary=None,
            softmax_float32=False,
        ),
        read=_read,
        processor=_processor,
        videos=_videos,
        projector=_projector,
        embed=_embed,
        project=_project,
        hooks_embedding=True,
        liger=VisionKernels(
            replace(TOWER_NORMS, left=frozenset({"multi_modal_projector.layer_norm"}))
        ),
    ),
)

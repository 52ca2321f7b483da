"""GLM-4.1V and GLM-4.6V Flash: positions sampled from a table, a convolution that merges patches, a gated projector.

Source: transformers 5.23, models/glm4v/modeling_glm4v.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import Family, ModuleClass, NormKind, Rotary
from estimator.families.images.qwen_vl import Glm4vImageProcessor
from estimator.families.images.videos import Glm4vVideoProcessor
from estimator.families.layers import gated_mlp_tree
from estimator.families.modules import LAYERS, LEAF, Embedding, Kernel, Norm, Tree, tree
from estimator.families.reader import Config
from estimator.families.vision.block import TowerBlock, attend_by_image
from estimator.families.vision.sizes import tower_of
from estimator.families.vision_family import (
    RequireGrad,
    Seen,
    TowerTree,
    VisionFamily,
    float32_tables,
    one_row,
)
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model, Vision


def _read(read: Config, whole: Config) -> Vision:
    patch, merge = (
        read.whole("patch_size", default=14),
        read.whole("spatial_merge_size", default=2),
    )
    frames, channels = (
        read.whole("temporal_patch_size", default=2),
        read.whole("in_channels", default=3),
    )
    output = read.whole("out_hidden_size", default=4096)
    tower = tower_of(
        read,
        "glm4v_vision",
        hidden=1536,
        heads=12,
        layers=24,
        width=output,
        act="silu",
        intermediate_size=output,
        attention_bias=read.flag("attention_bias", default=False),
        learned_positions=(read.whole("image_size", default=336) // patch) ** 2,
        word_embed_proj_dim=channels * frames * patch**2,
    )
    return Vision(
        wrapper="glm4v",
        tower=tower,
        patch_size=patch,
        merge_size=merge,
        temporal_patch_size=frames,
        num_channels=channels,
        projector_input=output,
        projector_width=read.whole("intermediate_size", default=13_696),
    )


def _tree(model: Model) -> Tree:
    hidden = model.hidden_size
    return tree(
        "@VisionBlock",
        norm1=Norm("", hidden),
        norm2=Norm("", hidden),
        attn=tree(
            "@VisionAttention",
            qkv=parts.linear(hidden, 3 * hidden, model.attention_bias),
            proj=parts.linear(hidden, hidden),
        ),
        mlp=gated_mlp_tree(model, class_name="Glm4VisionMlp"),
    )


def _root(model: Model) -> Tree:
    hidden, output = model.hidden_size, model.intermediate_size
    patches = Kernel("", ((hidden, model.word_embed_proj_dim), (hidden,)))
    return tree(
        "@VisionModel",
        embeddings=tree(
            "@VisionEmbeddings",
            position_embedding=Embedding("", model.learned_positions, hidden),
        ),
        patch_embed=tree("@VisionPatchEmbed", proj=patches),
        rotary_pos_emb=parts.frequencies(model.head_dim // 4),
        blocks=LAYERS,
        merger=LEAF,
        post_conv_layernorm=Norm("", hidden),
        downsample=Kernel("", ((output, 4 * hidden), (output,))),
        post_layernorm=Norm("", hidden),
    )


def _projector(vision: Vision, model: Model) -> Mapping[str, Tree]:
    hidden, width = vision.projector_input, vision.projector_width
    merger = tree(
        "@VisionPatchMerger",
        proj=parts.linear(hidden, hidden),
        post_projection_norm=Norm("", hidden, bias=True),
        gate_proj=parts.linear(hidden, width),
        up_proj=parts.linear(hidden, width),
        down_proj=parts.linear(width, hidden),
        act1=LEAF,
        act_fn=LEAF,
    )
    return {"visual.merger": merger}


def glm4v_vision(b: Block, x: Tensor) -> Tensor:
    """``Glm4vVisionBlock``: RMS norms, one product for queries, keys and values, a gated MLP."""
    tape, size = b.tape, x.elements
    normed = b.norm("norm1", x)
    q, k, v = op.split(tape, b.linear("attn.qkv", normed), [size] * 3)
    q, k = b.rotate(q, k)
    out = attend_by_image(b, q, k, v)
    del q, k, v
    x = op.add(tape, x, b.linear("attn.proj", out))
    del out, normed
    return op.add(tape, x, _gated(b, b.norm("norm2", x), "mlp"))


def _gated(b: Block, x: Tensor, name: str) -> Tensor:
    gate = b.activation(b.linear(f"{name}.gate_proj", x))
    product = op.multiply(b.tape, gate, b.linear(f"{name}.up_proj", x), "gate × up")
    del gate
    return b.linear(f"{name}.down_proj", product)


def _embed(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """The convolution over whole patches, a norm, and positions sampled from a table in float32."""
    tape, hidden = b.tape, vision.tower.hidden_size
    pixels = seen.patches * vision.tower.word_embed_proj_dim
    x = b.embed_patches("patch_embed.proj", pixels, seen.patches * hidden, is_held=True)
    x = b.norm("post_conv_layernorm", x)
    table = op.cast(tape, b.embeddings["embeddings.position_embedding"], 4)
    places = tape.new(2 * seen.patches, 4)
    sampled = op.gather(tape, table, places, x.elements, "positions")
    return op.add(tape, x, op.cast(tape, sampled, x.width))


def _project(outer: TowerBlock, merger: Block, vision: Vision, seen: Seen, x: Tensor) -> Tensor:
    """Squares of patches become one token each by a convolution; a product, a norm, and a gated MLP."""
    tape, name = outer.tape, "visual.merger"
    x = outer.norm("post_layernorm", x)
    weight, bias = outer.tensors["downsample"]
    tokens = seen.tokens * vision.projector_input
    x = op.convolution_of_patches(tape, x, weight, bias, tokens)
    x = merger.linear(f"{name}.proj", x)
    x = merger.norm(f"{name}.post_projection_norm", x, kind=NormKind.LAYER_NORM)
    x = op.elementwise(tape, x, "gelu")
    return _gated(merger, x, name)


def _processor(vision: Vision) -> Glm4vImageProcessor:
    return Glm4vImageProcessor(patch_size=vision.patch_size, merge_size=vision.merge_size)


def _videos(vision: Vision) -> Glm4vVideoProcessor:
    return Glm4vVideoProcessor(
        patch_size=vision.patch_size,
        merge_size=vision.merge_size,
        temporal_patch_size=vision.temporal_patch_size,
    )


_TREE = TowerTree(
    whole=("@VisionBlock",),
    prefixes={"glm4v": "Glm4v", "glm4v_moe": "Glm4vMoe"},
    text_class="@TextModel",
    text="@Text",
)
TOWERS = (
    VisionFamily(
        wrappers=("glm4v", "glm4v_moe"),
        tree=_TREE,
        tower=Family(
            model_type="glm4v_vision",
            layer=ModuleClass("", _tree, glm4v_vision),
            root=_root,
            norm=NormKind.RMS,
            rotary=Rotary.FLOAT32_HALVES,
        ),
        read=_read,
        processor=_processor,
        videos=_videos,
        projector=_projector,
        embed=_embed,
        project=_project,
        tables=float32_tables,
        tokens_a_row=one_row,
        attends_by_image=True,
        prefix="visual",
        hooks_embedding=False,
        liger_is_later=True,
        returns_features=False,
    ),
)

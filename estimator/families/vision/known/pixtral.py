"""Pixtral in LLaVA's class and Mistral Small 3.1: all images are one row, kept apart by a mask of its square.

Source: transformers 5.23, models/pixtral, models/mistral3, models/llava, modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import Family, Kernels, ModuleClass, NormKind, Rotary
from estimator.families.images.pixtral import PixtralImageProcessor
from estimator.families.layers import gated_mlp_tree
from estimator.families.modules import LAYERS, LEAF, Kernel, Linear, Norm, Tree, tree
from estimator.families.reader import Config
from estimator.families.vision.block import TowerBlock
from estimator.families.vision.sizes import tower_of
from estimator.families.vision_family import (
    RequireGrad,
    Seen,
    TowerTree,
    VisionFamily,
    VisionKernels,
    one_row,
    patch_tables,
)
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import ACTIVATIONS, Tape, Tensor
from estimator.values.specs import Model, Vision


def _read(read: Config, whole: Config, *, wrapper: str, merges: bool) -> Vision:
    patch = read.whole("patch_size", default=16)
    channels = read.whole("num_channels", default=3)
    tower = tower_of(
        read,
        "pixtral",
        hidden=1024,
        heads=16,
        layers=24,
        width=4096,
        act="gelu",
        attn_pdrop=read.share("attention_dropout"),
        word_embed_proj_dim=channels * patch**2,
        mlp_bias=whole.flag("multimodal_projector_bias", default=not merges),
    )
    return Vision(
        wrapper=wrapper,
        tower=tower,
        patch_size=patch,
        merge_size=whole.whole("spatial_merge_size", default=2) if merges else 1,
        image_size=read.whole("image_size", default=1024),
        num_channels=channels,
    )


def _tree(model: Model) -> Tree:
    hidden = model.hidden_size
    return tree(
        "PixtralAttentionLayer",
        attention_norm=Norm("", hidden),
        feed_forward=gated_mlp_tree(model, class_name="PixtralMLP", bias=False),
        attention=tree("PixtralAttention", **parts.projections(model, "kvqo")),
        ffn_norm=Norm("", hidden),
    )


def _root(model: Model) -> Tree:
    return tree(
        "PixtralVisionModel",
        patch_conv=Kernel("", ((model.hidden_size, model.word_embed_proj_dim),)),
        ln_pre=Norm("", model.hidden_size),
        transformer=tree("PixtralTransformer", layers=LAYERS),
        patch_positional_embedding=parts.frequencies(model.head_dim // 2),
    )


def _llava_projector(vision: Vision, model: Model) -> Mapping[str, Tree]:
    return {"multi_modal_projector": tree("@MultiModalProjector", **_two_products(vision, model))}


def _two_products(vision: Vision, model: Model) -> Mapping[str, Linear | Tree]:
    hidden, bias = vision.tower.hidden_size, vision.tower.mlp_bias
    return {
        "linear_1": parts.linear(hidden, model.hidden_size, bias),
        "act": LEAF,
        "linear_2": parts.linear(model.hidden_size, model.hidden_size, bias),
    }


def _mistral3_projector(vision: Vision, model: Model) -> Mapping[str, Tree]:
    hidden = vision.tower.hidden_size
    merging = parts.linear(hidden * vision.merge_size**2, hidden)
    made = tree(
        "@MultiModalProjector",
        norm=Norm("", hidden),
        patch_merger=tree("@PatchMerger", merging_layer=merging),
        **_two_products(vision, model),
    )
    return {"multi_modal_projector": made}


def pixtral(b: Block, x: Tensor) -> Tensor:
    """``PixtralAttentionLayer``: Llama's layer, its modules by other names."""
    residual = x
    x = b.norm("attention_norm", x)
    q = b.linear("attention.q_proj", x)
    k = b.linear("attention.k_proj", x)
    v = b.linear("attention.v_proj", x)
    q, k = b.rotate(q, k)
    x = b.linear("attention.o_proj", b.attend(q, k, v))
    del q, k, v
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("ffn_norm", x)
    gate = b.linear("feed_forward.gate_proj", x)
    if b.kernels.mlp:
        product = fused.gated(b.tape, gate, b.linear("feed_forward.up_proj", x))
    else:
        gate = b.activation(gate)
        product = op.multiply(b.tape, gate, b.linear("feed_forward.up_proj", x), "gate × up")
    del gate
    return op.add(b.tape, residual, b.linear("feed_forward.down_proj", product))


def _embed(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """Images are padded to the largest; their patches are cut out, joined into one row, and normalised."""
    tape, hidden = b.tape, vision.tower.hidden_size
    high = max(image.height for image in seen.images)
    wide = max(image.width for image in seen.images)
    padded = seen.tiles * vision.num_channels * high * wide
    patches = seen.tiles * (high // vision.patch_size) * (wide // vision.patch_size)
    x = require_grad(b.embed_patches("patch_conv", padded, patches * hidden, is_held=False))
    x = op.part(tape, x, seen.patches * hidden)
    x = op.concatenate(tape, [x])
    return b.norm("ln_pre", x)


def _mask(tape: Tape, vision: Vision, seen: Seen, width: int) -> Tensor:
    """``generate_block_attention_mask``: numbers, one for every pair of patches, shared by the layers."""
    tape.operation = "mask of the images"
    return tape.new(seen.patches**2, width, ACTIVATIONS)


def _project_llava(outer: Block, projector: Block, vision: Vision, seen: Seen, x: Tensor) -> Tensor:
    x = projector.linear("multi_modal_projector.linear_1", x)
    x = op.elementwise(outer.tape, x, "gelu")
    return projector.linear("multi_modal_projector.linear_2", x)


def _project_mistral3(
    outer: Block, projector: Block, vision: Vision, seen: Seen, x: Tensor
) -> Tensor:
    """A norm; squares of patches unfolded into tokens, image by image, and merged by one product."""
    tape, name = outer.tape, "multi_modal_projector"
    x = op.rms_norm(tape, x, projector.norms[f"{name}.norm"][0], seen.patches)
    x = op.clone(tape, x)
    x = op.concatenate(tape, [x])
    x = projector.linear(f"{name}.patch_merger.merging_layer", x)
    return _project_llava(outer, projector, vision, seen, x)


def _processor(vision: Vision) -> PixtralImageProcessor:
    return PixtralImageProcessor(
        patch_size=vision.patch_size,
        spatial_merge_size=vision.merge_size,
        longest_edge=vision.image_size,
    )


_TOWER = Family(
    model_type="pixtral",
    layer=ModuleClass("", _tree, pixtral),
    root=_root,
    norm=NormKind.RMS,
    rotary=Rotary.HALVES,
)


_TREE = TowerTree(
    whole=("PixtralAttentionLayer",), prefixes={"mistral3": "Mistral3", "llava": "Llava"}
)


TOWERS = (
    VisionFamily(
        wrappers=("mistral3",),
        tree=_TREE,
        tower=_TOWER,
        read=partial(_read, wrapper="mistral3", merges=True),
        processor=_processor,
        projector=_mistral3_projector,
        embed=_embed,
        project=_project_mistral3,
        tokens_a_row=one_row,
        tables=patch_tables,
        mask=_mask,
        hooks_embedding=True,
    ),
    VisionFamily(
        wrappers=("llava",),
        tree=_TREE,
        tower=_TOWER,
        tower_types=("pixtral",),
        read=partial(_read, wrapper="llava", merges=False),
        processor=_processor,
        projector=_llava_projector,
        embed=_embed,
        project=_project_llava,
        tokens_a_row=one_row,
        tables=patch_tables,
        mask=_mask,
        hooks_embedding=True,
        liger=VisionKernels(Kernels(fuses_head=False)),
    ),
)

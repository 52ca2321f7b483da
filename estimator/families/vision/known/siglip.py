"""SigLIP in Gemma 3, SmolVLM and Idefics 3: square images or tiles, each a row of patches with learned positions.

Source: transformers 5.23, models/siglip, models/gemma3, models/smolvlm, models/idefics3, modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import TOWER_NORMS, Family, ModuleClass, NormKind
from estimator.families.images.gemma import Gemma3ImageProcessor
from estimator.families.images.idefics3 import Idefics3ImageProcessor
from estimator.families.images.videos import FrameProcessor
from estimator.families.layers import decoder_layer, late_norm_attention, plain_mlp
from estimator.families.modules import (
    LAYERS,
    LEAF,
    Embedding,
    Kernel,
    Norm,
    Tree,
    TreeTensor,
    Width,
    tree,
)
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


def _vision(
    read: Config,
    wrapper: str,
    model_type: str,
    *,
    hidden: int,
    heads: int,
    patch: int,
    merge_size: int = 1,
    image_tokens: int = 0,
) -> Vision:
    side = read.whole("image_size", default=224)
    patch = read.whole("patch_size", default=patch)
    channels = read.whole("num_channels", default=3)
    tower = tower_of(
        read,
        model_type,
        hidden=hidden,
        heads=heads,
        layers=12,
        width=3072,
        act="gelu_pytorch_tanh",
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        attn_pdrop=read.share("attention_dropout"),
        learned_positions=(side // patch) ** 2,
        word_embed_proj_dim=channels * patch**2,
    )
    return Vision(
        wrapper=wrapper,
        tower=tower,
        patch_size=patch,
        merge_size=merge_size,
        image_size=side,
        num_channels=channels,
        image_tokens=image_tokens,
    )


def _gemma3(read: Config, whole: Config) -> Vision:
    tokens = whole.whole("mm_tokens_per_image", default=256)
    sizes = {"hidden": 768, "heads": 12, "patch": 16, "image_tokens": tokens}
    return _vision(read, "gemma3", "siglip_vision_model", **sizes)


def _idefics(read: Config, whole: Config, *, wrapper: str) -> Vision:
    merge = whole.whole("scale_factor", default=2)
    sizes = {"hidden": 1152, "heads": 16, "patch": 32, "merge_size": merge}
    return _vision(read, wrapper, f"{wrapper}_vision", **sizes)


# -- modules -----------------------------------------------------------------------------------------------------


def _layer(class_name: str, attention: str, mlp: str, order: str) -> ModuleClass:
    """A norm before attention and before the MLP; ``attention`` and ``mlp``: the names of their classes."""

    def attention_tree(model: Model) -> Tree:
        return tree(attention, **parts.projections(model, "kvqo", "out_proj"))

    forward = partial(late_norm_attention, output="out_proj")
    return decoder_layer(
        ModuleClass("self_attn", attention_tree, forward),
        plain_mlp("fc1", "fc2", "activation_fn up down", class_name=mlp),
        class_name=class_name,
        before=("layer_norm1", "layer_norm2"),
        bias=True,
        order=order,
    )


_SIGLIP = _layer(
    "SiglipEncoderLayer", "SiglipAttention", "SiglipMLP", "layer_norm1 self_attn layer_norm2 mlp"
)
_IDEFICS = _layer(
    "@EncoderLayer", "@VisionAttention", "@VisionMLP", "self_attn layer_norm1 mlp layer_norm2"
)
"""The same modules in the order of SmolVLM's and Idefics 3's own classes."""


def _root(model: Model, class_name: str, prefix: str, *buffers: TreeTensor) -> Tree:
    hidden = model.hidden_size
    return tree(
        class_name,
        embeddings=tree(
            f"{prefix}VisionEmbeddings",
            *buffers,
            patch_embedding=Kernel("", ((hidden, model.word_embed_proj_dim), (hidden,))),
            position_embedding=Embedding("", model.learned_positions, hidden),
        ),
        encoder=tree(f"{prefix}Encoder", layers=LAYERS),
        post_layernorm=parts.biased_norm(model),
    )


def _siglip_root(model: Model) -> Tree:
    ids = TreeTensor("position_ids", model.learned_positions, Width.INT64, is_buffer=True)
    return _root(model, "SiglipVisionModel", "Siglip", ids)


def _idefics_root(model: Model) -> Tree:
    return _root(model, "@VisionTransformer", "@")


def _gemma3_projector(vision: Vision, model: Model) -> Mapping[str, Tree]:
    hidden = vision.tower.hidden_size
    weight = Kernel("", ((hidden, model.hidden_size),), ("mm_input_projection_weight",))
    inside = tree("Gemma3MultiModalProjector", mm_soft_emb_norm=Norm("", hidden), avg_pool=LEAF)
    return {"multi_modal_projector": replace(inside, weights=weight)}


def _connector(vision: Vision, model: Model) -> Mapping[str, Tree]:
    width = vision.tower.hidden_size * vision.merge_size**2
    simple = tree("@SimpleMLP", proj=parts.linear(width, model.hidden_size))
    return {"connector": tree("@Connector", modality_projection=simple)}


# -- programs ----------------------------------------------------------------------------------------------------


_PATCHES = "embeddings.patch_embedding"


def _positions(b: TowerBlock, ids: Tensor, rows: int) -> Tensor:
    return b.look_up("embeddings.position_embedding", ids, rows)


def _embed_siglip(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """Positions are one row for all images; checkpointing's hook is on the convolution."""
    elements = seen.patches * vision.tower.hidden_size
    x = require_grad(
        b.embed_patches(_PATCHES, square_pixels(vision, seen), elements, is_held=False)
    )
    ids = b.tape.new(1, 8)
    return op.add(b.tape, x, _positions(b, ids, vision.tower.learned_positions))


def _embed_idefics(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """Tiles that hold an image are picked out of the batch; positions are looked up for each."""
    tape = b.tape
    pixels = b.receive(square_pixels(vision, seen))
    mask = b.receive(pixels.elements // vision.num_channels, 8)
    cast = b.cast_pixels(pixels, b.tensors[_PATCHES][0].width)
    tape.operation = "tiles that hold an image"
    empty = tape.new(cast.elements, 1)
    del empty
    picked = tape.new(cast.elements, cast.width)
    del cast
    ids = tape.new(seen.patches, 8)
    kept = tape.new(mask.elements, 8)
    x = b.convolve(_PATCHES, picked, seen.patches * vision.tower.hidden_size)
    b.pixels += (picked, kept)
    return require_grad(op.add(tape, x, _positions(b, ids, seen.patches)))


def _project_gemma3(
    outer: Block, projector: Block, vision: Vision, seen: Seen, x: Tensor
) -> Tensor:
    """Averages over squares of patches, a norm, and one product with a bare matrix."""
    tape, hidden = outer.tape, vision.tower.hidden_size
    x = outer.norm("post_layernorm", x)
    square = op.clone(tape, x)
    pooled = op.average(tape, square, seen.tokens * hidden)
    del square
    x = projector.norm("multi_modal_projector.mm_soft_emb_norm", pooled, kind=NormKind.RMS_ONE_PLUS)
    (weight,) = projector.tensors["multi_modal_projector"]
    return op.matmul(
        tape, x, weight, seen.tokens * weight.elements // hidden, "projection of the image"
    )


def _project_idefics3(
    outer: Block, projector: Block, vision: Vision, seen: Seen, x: Tensor
) -> Tensor:
    """Squares of patches are laid side by side, by two copies, and projected."""
    return _connect(outer, projector, outer.norm("post_layernorm", x))


def _project_smolvlm(
    outer: TowerBlock, projector: Block, vision: Vision, seen: Seen, x: Tensor
) -> Tensor:
    """The same; the model returns the whole output of its tower too."""
    x = outer.norm("post_layernorm", x)
    features = _connect(outer, projector, x)
    outer.outputs += (x, features)
    return features


def _connect(outer: Block, projector: Block, x: Tensor) -> Tensor:
    x = op.clone(outer.tape, op.clone(outer.tape, x))
    return projector.linear("connector.modality_projection.proj", x)


def _gemma3_processor(vision: Vision) -> Gemma3ImageProcessor:
    return Gemma3ImageProcessor(
        image_size=vision.image_size,
        patch_size=vision.patch_size,
        image_seq_length=vision.image_tokens,
    )


def _idefics3_processor(vision: Vision) -> Idefics3ImageProcessor:
    """Four tiles along the longer side, as the published files of Idefics 3 and SmolVLM say."""
    return Idefics3ImageProcessor(
        tile=vision.image_size,
        patch_size=vision.patch_size,
        scale_factor=vision.merge_size,
        longest_edge=4 * vision.image_size,
    )


def _family(
    model_type: str, layer: ModuleClass = _IDEFICS, root: parts.TreeOf = _idefics_root
) -> Family:
    return Family(
        model_type=model_type, layer=layer, root=root, norm=NormKind.LAYER_NORM, rotary=None
    )


def _frames(vision: Vision) -> FrameProcessor:
    return FrameProcessor(image=replace(_idefics3_processor(vision), do_image_splitting=False))


_SIGLIP_TREE = TowerTree(
    class_name="Gemma3Model", whole=("SiglipEncoderLayer", "SiglipVisionEmbeddings")
)


_IDEFICS_TREE = TowerTree(
    whole=("@VisionAttention",),
    prefixes={"smolvlm": "SmolVLM", "idefics3": "Idefics3"},
    text_name="text_model",
)


_IDEFICS3 = VisionFamily(
    wrappers=("idefics3",),
    tree=_IDEFICS_TREE,
    tower=_family("idefics3_vision"),
    read=partial(_idefics, wrapper="idefics3"),
    processor=_idefics3_processor,
    projector=_connector,
    embed=_embed_idefics,
    project=_project_idefics3,
    prefix="vision_model",
    hooks_embedding=True,
    wraps_layers=False,
)
TOWERS = (
    VisionFamily(
        wrappers=("gemma3",),
        tree=_SIGLIP_TREE,
        tower=_family("siglip_vision_model", _SIGLIP, _siglip_root),
        read=_gemma3,
        processor=_gemma3_processor,
        projector=_gemma3_projector,
        embed=_embed_siglip,
        project=_project_gemma3,
        hooks_embedding=True,
        masks_text=True,
        liger=VisionKernels(replace(TOWER_NORMS, in_place=False, final_in_place=False)),
    ),
    _IDEFICS3,
    replace(
        _IDEFICS3,
        wrappers=("smolvlm",),
        tower=_family("smolvlm_vision"),
        read=partial(_idefics, wrapper="smolvlm"),
        videos=_frames,
        project=_project_smolvlm,
        returns_features=False,
        liger=VisionKernels(TOWER_NORMS),
    ),
)

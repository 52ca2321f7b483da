"""SigLIP in Gemma 3, SmolVLM and Idefics 3: square images or tiles, each a row of patches with learned positions.

Source: transformers 5.23, models/siglip, models/gemma3, models/smolvlm, models/idefics3, modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import TOWER_NORMS, Architecture, Family, ModelTree, NormKind, TreeOf
from estimator.families.images.gemma import Gemma3ImageProcessor
from estimator.families.images.idefics3 import Idefics3ImageProcessor
from estimator.families.images.videos import FrameProcessor
from estimator.families.layers import plain_mlp
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
from estimator.families.reader import MOST_HEADS, MOST_LAYERS, Config
from estimator.families.vision.block import TowerBlock
from estimator.families.vision_family import (
    RequireGrad,
    Seen,
    TowerTree,
    VisionFamily,
    VisionKernels,
)
from estimator.tape import operators as op
from estimator.tape.tape import ACTIVATIONS, Tensor
from estimator.values.specs import Model, Vision


def _tower(read: Config, model_type: str, **defaults: int) -> Model:
    hidden = read.whole("hidden_size", default=defaults["hidden_size"])
    heads = read.whole("num_attention_heads", default=defaults["heads"], most=MOST_HEADS)
    side = read.whole("image_size", default=defaults["image_size"])
    patch = read.whole("patch_size", default=defaults["patch_size"])
    return Model(
        model_type=model_type,
        vocab_size=0,
        hidden_size=hidden,
        intermediate_size=read.whole("intermediate_size", default=defaults["width"]),
        num_hidden_layers=read.whole("num_hidden_layers", default=12, most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        hidden_act=read.text("hidden_act", default="gelu_pytorch_tanh"),
        attn_pdrop=read.share("attention_dropout", default=0.0),
        learned_positions=(side // patch) ** 2,
        word_embed_proj_dim=read.whole("num_channels", default=3) * patch**2,
    )


def _gemma3(read: Config, whole: Config) -> Vision:
    side = read.whole("image_size", default=224)
    return Vision(
        wrapper="gemma3",
        tower=_tower(
            read,
            "siglip_vision_model",
            hidden_size=768,
            heads=12,
            image_size=224,
            patch_size=16,
            width=3072,
        ),
        patch_size=read.whole("patch_size", default=16),
        image_size=side,
        num_channels=read.whole("num_channels", default=3),
        image_tokens=whole.whole("mm_tokens_per_image", default=256),
    )


def _smolvlm(read: Config, whole: Config, *, wrapper: str, model_type: str) -> Vision:
    defaults = dict(hidden_size=1152, heads=16, image_size=224, patch_size=32, width=3072)
    tower = _tower(read, model_type, **defaults)
    return Vision(
        wrapper=wrapper,
        tower=tower,
        patch_size=read.whole("patch_size", default=32),
        merge_size=whole.whole("scale_factor", default=2),
        image_size=read.whole("image_size", default=224),
        num_channels=read.whole("num_channels", default=3),
    )


# -- modules -----------------------------------------------------------------------------------------------------


def _siglip_layer(model: Model) -> Tree:
    attention, mlp = _attention(model, "SiglipAttention"), _mlp(model, "SiglipMLP")
    first, second = _norm(model), _norm(model)
    return tree(
        "SiglipEncoderLayer", layer_norm1=first, self_attn=attention, layer_norm2=second, mlp=mlp
    )


def _norm(model: Model) -> Norm:
    return Norm("", model.hidden_size, bias=True)


def _attention(model: Model, class_name: str) -> Tree:
    hidden = model.hidden_size
    names = ("k_proj", "v_proj", "q_proj", "out_proj")
    return tree(class_name, **{name: parts.linear(hidden, hidden, bias=True) for name in names})


def _mlp(model: Model, class_name: str) -> Tree:
    up, down = parts.up_and_down(model, bias=True)
    return tree(class_name, activation_fn=LEAF, fc1=up, fc2=down)


def _idefics_layer(model: Model) -> Tree:
    """The same modules in the order of SmolVLM's and Idefics 3's own classes."""
    attention, mlp = _attention(model, "@VisionAttention"), _mlp(model, "@VisionMLP")
    first, second = _norm(model), _norm(model)
    return tree(
        "@EncoderLayer", self_attn=attention, layer_norm1=first, mlp=mlp, layer_norm2=second
    )


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
        post_layernorm=_norm(model),
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


def siglip(b: Block, x: Tensor) -> Tensor:
    """``SiglipEncoderLayer``: a norm before attention and before the MLP."""
    residual = x
    x = b.norm("layer_norm1", x)
    q = b.linear("self_attn.q_proj", x)
    k = b.linear("self_attn.k_proj", x)
    v = b.linear("self_attn.v_proj", x)
    x = b.linear("self_attn.out_proj", b.attend(q, k, v))
    del q, k, v
    x = op.add(b.tape, residual, x)
    residual = x
    x = plain_mlp(b, b.norm("layer_norm2", x), "mlp.fc1", "mlp.fc2")
    return op.add(b.tape, residual, x)


def _patches(b: TowerBlock, vision: Vision, seen: Seen, pixels: Tensor) -> Tensor:
    elements = seen.patches * vision.tower.hidden_size
    return b.convolve("embeddings.patch_embedding", pixels, elements)


def _pixels(b: TowerBlock, vision: Vision, seen: Seen) -> Tensor:
    elements = seen.tiles * vision.num_channels * vision.image_size**2
    pixels = b.tape.new(elements, 4, ACTIVATIONS)
    b.batch.append(pixels)
    return pixels


def _positions(b: TowerBlock, ids: Tensor, rows: int) -> Tensor:
    return b.look_up("embeddings.position_embedding", ids, rows)


def _embed_siglip(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """Positions are one row for all images; checkpointing's hook is on the convolution."""
    pixels = _pixels(b, vision, seen)
    width = b.tensors["embeddings.patch_embedding"][0].width
    x = require_grad(_patches(b, vision, seen, b.cast_pixels(pixels, width)))
    ids = b.tape.new(1, 8)
    return op.add(b.tape, x, _positions(b, ids, vision.tower.learned_positions))


def _embed_smolvlm(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """Tiles that hold an image are picked out of the batch; positions are looked up for each."""
    tape = b.tape
    pixels = _pixels(b, vision, seen)
    mask = tape.new(pixels.elements // vision.num_channels, 8, ACTIVATIONS)
    b.batch.append(mask)
    cast = b.cast_pixels(pixels, b.tensors["embeddings.patch_embedding"][0].width)
    tape.operation = "tiles that hold an image"
    empty = tape.new(cast.elements, 1)
    del empty
    picked = tape.new(cast.elements, cast.width)
    del cast
    ids = tape.new(seen.patches, 8)
    kept = tape.new(mask.elements, 8)
    x = _patches(b, vision, seen, picked)
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


def _rows(vision: Vision, seen: Seen) -> tuple[int, int]:
    """Each image or tile is a row."""
    return seen.tiles, vision.tower.learned_positions


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
    model_type: str, layer: TreeOf = _idefics_layer, root: TreeOf = _idefics_root
) -> Family:
    return Family(
        model_type=model_type,
        tree=ModelTree("", layer, root),
        architecture=Architecture(siglip, NormKind.LAYER_NORM, rotary=None),
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


TOWERS = (
    VisionFamily(
        wrappers=("gemma3",),
        tree=_SIGLIP_TREE,
        tower=_family("siglip_vision_model", _siglip_layer, _siglip_root),
        read=_gemma3,
        processor=_gemma3_processor,
        projector=_gemma3_projector,
        embed=_embed_siglip,
        project=_project_gemma3,
        tokens_a_row=_rows,
        prefix="vision_tower",
        hooks_embedding=True,
        masks_text=True,
        liger=VisionKernels(replace(TOWER_NORMS, in_place=False, final_in_place=False)),
    ),
    VisionFamily(
        wrappers=("smolvlm",),
        tree=_IDEFICS_TREE,
        tower=_family("smolvlm_vision"),
        read=partial(_smolvlm, wrapper="smolvlm", model_type="smolvlm_vision"),
        processor=_idefics3_processor,
        videos=_frames,
        projector=_connector,
        embed=_embed_smolvlm,
        project=_project_smolvlm,
        tokens_a_row=_rows,
        prefix="vision_model",
        hooks_embedding=True,
        wraps_layers=False,
        returns_features=False,
        liger=VisionKernels(TOWER_NORMS),
    ),
    VisionFamily(
        wrappers=("idefics3",),
        tree=_IDEFICS_TREE,
        tower=_family("idefics3_vision"),
        read=partial(_smolvlm, wrapper="idefics3", model_type="idefics3_vision"),
        processor=_idefics3_processor,
        projector=_connector,
        embed=_embed_smolvlm,
        project=_project_idefics3,
        tokens_a_row=_rows,
        prefix="vision_model",
        hooks_embedding=True,
        wraps_layers=False,
    ),
)

"""Qwen2-VL to Qwen3.5: patches of all images as one row, attention image by image or window by window.

Source: transformers 5.23, models/qwen2_vl, models/qwen2_5_vl, models/qwen3_vl, models/qwen3_5, modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from estimator.families import parts
from estimator.families.activations import quick_gelu
from estimator.families.block import Block
from estimator.families.family import NO_KERNELS, TOWER_NORMS, Family, ModuleClass, NormKind, Rotary
from estimator.families.images.qwen_vl import Qwen2VLImageProcessor
from estimator.families.images.videos import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from estimator.families.layers import (
    GATED_MLP,
    decoder_layer,
    plain_mlp,
    unfused_gated_mlp,
)
from estimator.families.modules import (
    LAYERS,
    LEAF,
    Embedding,
    Kernel,
    Module,
    Norm,
    Tree,
    module_list,
    tree,
)
from estimator.families.reader import Config
from estimator.families.vision.block import TowerBlock, attend_by_image
from estimator.families.vision.sizes import tower_of
from estimator.families.vision_family import (
    RequireGrad,
    Seen,
    TowerTree,
    VisionFamily,
    VisionKernels,
    float32_tables,
    one_row,
)
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model, Vision

WINDOW, WHOLE_LAYERS = 112, 4
"""Pixels of a side of Qwen2.5-VL's windows, and the layers that see a whole image."""
FEATURES = 4
"""Of the merger, patches of one token: 2 × 2."""


def _vision(
    read: Config,
    wrapper: str,
    tower: Model,
    *,
    patch: int,
    positions: int = 0,
    deepstack: tuple[int, ...] = (),
) -> Vision:
    return Vision(
        wrapper=wrapper,
        tower=tower,
        patch_size=read.whole("patch_size", "spatial_patch_size", default=patch),
        merge_size=read.whole("spatial_merge_size", default=2),
        temporal_patch_size=read.whole("temporal_patch_size", default=2),
        num_channels=read.whole("in_channels", "in_chans", default=3),
        positions=positions,
        deepstack=deepstack,
    )


def _tower(
    read: Config,
    model_type: str,
    hidden: int,
    width: int,
    act: str,
    *,
    layers: int = 27,
    **more: Any,
) -> Model:
    more |= {"hidden": hidden, "heads": 16, "layers": layers, "width": width, "act": act}
    return tower_of(read, model_type, mlp_bias=True, **more)


def _qwen2(read: Config, whole: Config) -> Vision:
    """Here ``hidden_size`` is the text's."""
    width = read.whole("embed_dim", default=1280) * read.whole("mlp_ratio", default=4)
    sizes: dict[str, Any] = {"hidden_key": "embed_dim", "intermediate_size": width}
    tower = _tower(read, "qwen2_vl_vision", 1280, width, "quick_gelu", layers=32, **sizes)
    return _vision(read, "qwen2_vl", tower, patch=14)


def _qwen2_5(read: Config, whole: Config) -> Vision:
    tower = _tower(read, "qwen2_5_vl_vision", 3584, 3420, "silu")
    return _vision(read, "qwen2_5_vl", tower, patch=14)


def _qwen3(read: Config, whole: Config, *, wrapper: str = "qwen3_vl", deep: bool = True) -> Vision:
    listed = read.values.get("deepstack_visual_indexes")
    deepstack = tuple(listed) if isinstance(listed, list | tuple) else (8, 16, 24)
    positions = read.whole("num_position_embeddings", default=2304)
    tower = _tower(
        read, "qwen3_vl_vision", 1152, 4304, "gelu_pytorch_tanh", learned_positions=positions
    )
    deepstack = deepstack if deep else ()
    return _vision(read, wrapper, tower, patch=16, positions=positions, deepstack=deepstack)


# -- modules -----------------------------------------------------------------------------------------------------


def _patches(model: Model, class_name: str, pixels: int, *, bias: bool) -> Tree:
    weight = (model.hidden_size, pixels)
    shapes = (weight, (model.hidden_size,)) if bias else (weight,)
    return tree(class_name, proj=Kernel("", shapes))


def _qwen2_root(
    model: Model,
    class_name: str = "Qwen2VisionTransformerPretrainedModel",
    patches: str = "PatchEmbed",
) -> Tree:
    return tree(
        class_name,
        patch_embed=_patches(model, patches, 3 * 2 * 14 * 14, bias=False),
        rotary_pos_emb=parts.frequencies(model.head_dim // 4),
        blocks=LAYERS,
    )


_qwen2_5_root = partial(
    _qwen2_root,
    class_name="Qwen2_5_VisionTransformerPretrainedModel",
    patches="Qwen2_5_VisionPatchEmbed",
)


def _qwen3_root(model: Model) -> Tree:
    return tree(
        "@VisionModel",
        patch_embed=_patches(model, "@VisionPatchEmbed", 3 * 2 * 16 * 16, bias=True),
        pos_embed=Embedding("", model.learned_positions, model.hidden_size),
        rotary_pos_emb=parts.frequencies(model.head_dim // 4),
        blocks=LAYERS,
    )


def _merged(vision: Vision) -> int:
    return vision.tower.hidden_size * vision.merge_size**2


def _qwen2_5_merger(vision: Vision, model: Model) -> Mapping[str, Tree]:
    return _old_merger(vision, model, "@PatchMerger", bias=False)


def _old_merger(vision: Vision, model: Model, class_name: str, *, bias: bool) -> Mapping[str, Tree]:
    width = _merged(vision)
    inside: dict[str, Tree | Module] = {
        "0": parts.linear(width, width, bias=True),
        "1": LEAF,
        "2": parts.linear(width, model.hidden_size, bias=True),
    }
    norm = Norm("", vision.tower.hidden_size, bias=bias)
    return {"visual.merger": tree(class_name, ln_q=norm, mlp=tree("Sequential", **inside))}


def _qwen2_merger(vision: Vision, model: Model) -> Mapping[str, Tree]:
    return _old_merger(vision, model, "PatchMerger", bias=True)


def _qwen3_mergers(vision: Vision, model: Model) -> Mapping[str, Tree]:
    width = _merged(vision)

    def merger(normed: int) -> Tree:
        return tree(
            "@VisionPatchMerger",
            norm=Norm("", normed, bias=True),
            linear_fc1=parts.linear(width, width, bias=True),
            act_fn=LEAF,
            linear_fc2=parts.linear(width, model.hidden_size, bias=True),
        )

    made = {"visual.merger": merger(vision.tower.hidden_size)}
    if vision.deepstack:
        deep = module_list(*(merger(width) for _ in vision.deepstack))
        made["visual.deepstack_merger_list"] = deep
    return made


# -- programs ----------------------------------------------------------------------------------------------------


def _attend(b: Block, x: Tensor) -> Tensor:
    """One product for queries, keys and values; turned in float32."""
    tape, size = b.tape, x.elements
    q, k, v = op.split(tape, b.linear("attn.qkv", x), [size] * 3)
    q, k = b.rotate(q, k)
    return b.linear("attn.proj", attend_by_image(b, q, k, v))


def qwen2_vision(b: Block, x: Tensor) -> Tensor:
    """``Qwen2VLVisionBlock``: layer norms, an MLP of two products around ``QuickGELUActivation``."""
    x = op.add(b.tape, x, _attend(b, b.norm("norm1", x)))
    normed = b.norm("norm2", x)
    hidden = quick_gelu(b.tape, b.linear("mlp.fc1", normed))
    return op.add(b.tape, x, b.linear("mlp.fc2", hidden))


def _block(
    mlp: ModuleClass, *, bias: bool = True, attention: str = "@VisionAttention"
) -> ModuleClass:
    """A norm before attention and before the MLP."""

    def attention_tree(model: Model) -> Tree:
        hidden = model.hidden_size
        qkv = parts.linear(hidden, 3 * hidden, bias=True)
        return tree(attention, qkv=qkv, proj=parts.linear(hidden, hidden, bias=True))

    return decoder_layer(
        ModuleClass("attn", attention_tree, _attend),
        mlp,
        class_name="@VisionBlock",
        before=("norm1", "norm2"),
        bias=bias,
        order="norm1 norm2 attn mlp",
    )


_QWEN2_LAYER = _block(
    plain_mlp("fc1", "fc2", "up act down", class_name="VisionMlp"), attention="VisionAttention"
)._replace(forward=qwen2_vision)
_QWEN2_5_LAYER = _block(GATED_MLP._replace(forward=unfused_gated_mlp), bias=False)
"""``Qwen2_5_VLVisionBlock``: RMS norms, a gated MLP."""
_QWEN3_LAYER = _block(
    plain_mlp("linear_fc1", "linear_fc2", "up down act_fn", class_name="@VisionMLP")
)
"""``Qwen3VLVisionBlock``: layer norms, an MLP of two products."""


def _embed(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """The convolution over whole patches, and Qwen3-VL's positions, each from four rows of its table."""
    tape = b.tape
    patch = vision.num_channels * vision.temporal_patch_size * vision.patch_size**2
    elements = seen.patches * vision.tower.hidden_size
    x = b.embed_patches("patch_embed.proj", seen.patches * patch, elements, is_held=True)
    if "pos_embed" not in b.embeddings:
        return require_grad(x)
    indices = tape.new(seen.patches * FEATURES, 8)
    weights = tape.new(seen.patches * FEATURES, 4)
    found = b.look_up("pos_embed", indices, seen.patches * FEATURES)
    weighed = op.multiply(tape, found, weights, "positions")
    del found
    positions = op.cast(tape, op.mean(tape, weighed, x.elements, "sum of the positions"), x.width)
    del weighed
    return op.add(tape, x, positions)


def _embed_qwen2_5(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """The same, and the patches laid in the order of the windows."""
    x = _embed(b, vision, seen, require_grad)
    order = b.tape.new(seen.tokens, 8)
    return op.gather(b.tape, x, order, x.elements, "patches in the order of windows")


def _merge(
    merger: Block, x: Tensor, name: str, names: tuple[str, str, str] = ("ln_q", "mlp.0", "mlp.2")
) -> Tensor:
    norm, first, second = names
    x = merger.norm(f"{name}.{norm}", x)
    x = merger.linear(f"{name}.{first}", x)
    x = op.elementwise(merger.tape, x, "gelu")
    return merger.linear(f"{name}.{second}", x)


def _project_qwen2(outer: Block, merger: Block, vision: Vision, seen: Seen, x: Tensor) -> Tensor:
    return _merge(merger, x, "visual.merger")


def _project_qwen2_5(outer: Block, merger: Block, vision: Vision, seen: Seen, x: Tensor) -> Tensor:
    x = _merge(merger, x, "visual.merger")
    order = merger.tape.new(seen.tokens, 8)
    return op.gather(merger.tape, x, order, x.elements, "tokens in their order")


_QWEN3_NAMES = ("norm", "linear_fc1", "linear_fc2")


def _project_qwen3(outer: Block, merger: Block, vision: Vision, seen: Seen, x: Tensor) -> Tensor:
    return _merge(merger, x, "visual.merger", _QWEN3_NAMES)


def _project_deep(merger: Block, vision: Vision, seen: Seen, x: Tensor, name: str) -> Tensor:
    """A norm over merged patches, and the same two products."""
    return _merge(merger, x, f"visual.{name}", _QWEN3_NAMES)


def _windowed_pairs(vision: Vision, seen: Seen) -> int:
    """Windows of 112 × 112 pixels in all layers but four.

    Source: transformers 5.23, models/qwen2_5_vl/configuration_qwen2_5_vl.py, ``window_size``,
    ``fullatt_block_indexes``.
    """
    window = (WINDOW // vision.patch_size) ** 2
    layers = vision.tower.num_hidden_layers
    whole = sum(image.patches**2 for image in seen.images)
    windowed = sum(image.patches * min(window, image.patches) for image in seen.images)
    full = min(WHOLE_LAYERS, layers)
    return seen.rows * (full * whole + (layers - full) * windowed)


def _processor_2_5(vision: Vision) -> Qwen2VLImageProcessor:
    """With the settings of the published preprocessor_config.json."""
    return Qwen2VLImageProcessor(
        patch_size=vision.patch_size, merge_size=vision.merge_size, max_pixels=12_845_056
    )


def _processor_3(vision: Vision) -> Qwen2VLImageProcessor:
    """With the settings of the published preprocessor_config.json."""
    return Qwen2VLImageProcessor(
        patch_size=vision.patch_size,
        merge_size=vision.merge_size,
        min_pixels=65_536,
        max_pixels=16_777_216,
    )


def _videos_2_5(vision: Vision) -> Qwen2VLVideoProcessor:
    """With the settings of the published preprocessor_config.json, which AutoVideoProcessor reads too.

    Source: transformers 5.23, video_processing_utils.py, ``get_video_processor_dict``.
    """
    return Qwen2VLVideoProcessor(
        patch_size=vision.patch_size,
        merge_size=vision.merge_size,
        temporal_patch_size=vision.temporal_patch_size,
        min_pixels=56 * 56,
        max_pixels=12_845_056,
    )


def _videos_3(vision: Vision) -> Qwen3VLVideoProcessor:
    """With the settings of the published video_preprocessor_config.json."""
    return Qwen3VLVideoProcessor(
        patch_size=vision.patch_size,
        merge_size=vision.merge_size,
        temporal_patch_size=vision.temporal_patch_size,
        min_pixels=4096,
        max_pixels=25_165_824,
    )


_QWEN2_TREE = TowerTree(
    whole=("@VisionBlock",),
    prefixes={"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"},
    text_class="@TextModel",
    text="@",
    shared=("Qwen2MLP",),
)
_QWEN3_TREE = TowerTree(
    whole=("@VisionBlock",),
    prefixes={"qwen3_vl": "Qwen3VL", "qwen3_vl_moe": "Qwen3VLMoe"},
    text_class="@TextModel",
    text="@Text",
)
_QWEN3_5_TREE = TowerTree(
    whole=("@VisionBlock",),
    prefixes={"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe"},
    text_class="@TextModel",
)
_QWEN3 = Family(
    model_type="qwen3_vl_vision",
    layer=_QWEN3_LAYER,
    root=_qwen3_root,
    norm=NormKind.LAYER_NORM,
    rotary=Rotary.FLOAT32_HALVES,
)
_QWEN2 = VisionFamily(
    wrappers=("qwen2_vl",),
    tree=_QWEN2_TREE,
    tower=Family(
        model_type="qwen2_vl_vision",
        layer=_QWEN2_LAYER,
        root=_qwen2_root,
        norm=NormKind.LAYER_NORM,
        rotary=Rotary.FLOAT32_HALVES,
    ),
    read=_qwen2,
    processor=_processor_2_5,
    videos=_videos_2_5,
    projector=_qwen2_merger,
    embed=_embed,
    project=_project_qwen2,
    tables=float32_tables,
    tokens_a_row=one_row,
    attends_by_image=True,
    prefix="visual",
    hooks_embedding=True,
    returns_features=False,
    liger=VisionKernels(replace(TOWER_NORMS, left=frozenset({"visual.merger.ln_q"}))),
    liger_needs_older=True,
)
_QWEN3_VL = VisionFamily(
    wrappers=("qwen3_vl", "qwen3_vl_moe"),
    tree=_QWEN3_TREE,
    tower=_QWEN3,
    read=_qwen3,
    processor=_processor_3,
    videos=_videos_3,
    projector=_qwen3_mergers,
    embed=_embed,
    project=_project_qwen3,
    project_deep=_project_deep,
    tables=float32_tables,
    tokens_a_row=one_row,
    attends_by_image=True,
    prefix="visual",
    hooks_embedding=False,
    liger=VisionKernels(replace(NO_KERNELS, rotary=True), keeps_mlp=True),
    liger_needs_older=True,
    returns_features=False,
)
TOWERS = (
    _QWEN2,
    replace(
        _QWEN2,
        wrappers=("qwen2_5_vl",),
        tower=Family(
            model_type="qwen2_5_vl_vision",
            layer=_QWEN2_5_LAYER,
            root=_qwen2_5_root,
            norm=NormKind.RMS,
            rotary=Rotary.FLOAT32_HALVES,
        ),
        read=_qwen2_5,
        projector=_qwen2_5_merger,
        embed=_embed_qwen2_5,
        project=_project_qwen2_5,
        pairs=_windowed_pairs,
    ),
    _QWEN3_VL,
    replace(
        _QWEN3_VL,
        wrappers=("qwen3_5", "qwen3_5_moe"),
        tree=_QWEN3_5_TREE,
        read=partial(_qwen3, wrapper="qwen3_5", deep=False),
        project_deep=None,
        liger=None,
        liger_needs_older=False,
    ),
)

"""Llama 4: square tiles with a class token, turned as complex numbers, shuffled into tokens by an MLP.

Source: transformers 5.23, models/llama4/modeling_llama4.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import Family, ModuleClass, NormKind, Rotary
from estimator.families.images.tiles import Llama4ImageProcessor
from estimator.families.layers import decoder_layer, late_norm_attention, plain_mlp
from estimator.families.modules import (
    LAYERS,
    LEAF,
    Kernel,
    Norm,
    OwnParameter,
    Tree,
    TreeTensor,
    Width,
    tree,
    with_buffers,
)
from estimator.families.reader import Config
from estimator.families.rotary import Tables
from estimator.families.vision.block import TowerBlock
from estimator.families.vision.sizes import tower_of
from estimator.families.vision_family import (
    RequireGrad,
    Seen,
    TowerTree,
    VisionFamily,
    square_pixels,
)
from estimator.tape import operators as op
from estimator.tape.tape import Tape, Tensor
from estimator.values.specs import Model, Vision


def _read(read: Config, whole: Config) -> Vision:
    side, patch = read.whole("image_size", default=448), read.whole("patch_size", default=14)
    channels = read.whole("num_channels", default=3)
    tower = tower_of(
        read,
        "llama4_vision_model",
        hidden=768,
        heads=16,
        layers=34,
        width=5632,
        act="gelu",
        hidden_act="gelu",
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        attn_pdrop=read.share("attention_dropout"),
        learned_positions=(side // patch) ** 2 + 1,
        word_embed_proj_dim=channels * patch**2,
        q_lora_rank=read.whole("projector_input_dim", default=4096),
        kv_lora_rank=read.whole("projector_output_dim", default=4096),
    )
    return Vision(
        wrapper="llama4",
        tower=tower,
        patch_size=patch,
        merge_size=round(1 / read.share("pixel_shuffle_ratio", default=0.5)),
        image_size=side,
        num_channels=channels,
        projector_input=read.whole("vision_output_dim", default=7680),
    )


def _attention(model: Model) -> Tree:
    return tree("Llama4VisionAttention", **parts.projections(model))


_LAYER = decoder_layer(
    ModuleClass("self_attn", _attention, late_norm_attention),
    plain_mlp("fc1", "fc2", "activation_fn up down", class_name="Llama4VisionMLP"),
    class_name="Llama4VisionEncoderLayer",
    bias=True,
)


def _root(model: Model) -> Tree:
    hidden = model.hidden_size
    bare = Kernel(
        "",
        ((hidden,), (model.learned_positions, hidden)),
        ("class_embedding", "positional_embedding_vlm"),
    )
    angles = TreeTensor("freqs_ci", model.learned_positions * model.head_dim // 2, Width.COMPLEX64)
    return tree(
        "Llama4VisionModel",
        embeddings=OwnParameter(bare),
        patch_embedding=tree(
            "Llama4UnfoldConvolution",
            unfold=LEAF,
            linear=parts.linear(model.word_embed_proj_dim, hidden),
        ),
        rotary_embedding=with_buffers(LEAF, angles),
        layernorm_pre=Norm("", hidden, bias=True),
        layernorm_post=Norm("", hidden, bias=True),
        model=tree("Llama4VisionEncoder", layers=LAYERS),
        vision_adapter=tree(
            "Llama4VisionPixelShuffleMLP",
            mlp=tree(
                "Llama4VisionMLP2",
                fc1=parts.linear(model.intermediate_size, model.q_lora_rank),
                fc2=parts.linear(model.kv_lora_rank, model.kv_lora_rank),
                activation_fn=LEAF,
            ),
        ),
    )


def _projector(vision: Vision, model: Model) -> Mapping[str, Tree]:
    linear = parts.linear(vision.projector_input, model.hidden_size)
    return {"multi_modal_projector": tree("Llama4MultiModalProjector", linear_1=linear)}


def _embed(b: TowerBlock, vision: Vision, seen: Seen, require_grad: RequireGrad) -> Tensor:
    """Patches, bfloat16 already, are unfolded and projected; a class token after them, positions, a norm."""
    tape, hidden = b.tape, vision.tower.hidden_size
    # image_processing_llama4.py normalises in bfloat16
    pixels = b.receive(square_pixels(vision, seen), 2)
    cast = op.cast(tape, pixels, b.linears["patch_embedding.linear"].weight.width)
    unfolded = op.clone(tape, cast)
    del cast
    x = require_grad(b.linear("patch_embedding.linear", unfolded))
    del unfolded
    last, positions = b.tensors["embeddings"]
    x = op.concatenate(tape, [x, op.expand(tape, last, seen.tiles * hidden)])
    return b.norm("layernorm_pre", op.add(tape, x, positions))


def _tables(tape: Tape, vision: Vision, seen: Seen, width: int) -> Tables:
    """A buffer of the model: one complex number for every two channels of a position."""
    elements = vision.tower.learned_positions * vision.tower.head_dim
    table = Tensor(elements, 4, None)
    return Tables(table, table)


def _project(outer: TowerBlock, projector: Block, vision: Vision, seen: Seen, x: Tensor) -> Tensor:
    """Without the class token; shuffled by two copies; an activation after each product."""
    tape = outer.tape
    x = outer.norm("layernorm_post", x)
    x = op.part(tape, x, seen.patches * vision.tower.hidden_size)
    x = op.clone(tape, op.clone(tape, x))
    x = op.elementwise(tape, outer.linear("vision_adapter.mlp.fc1", x), "gelu")
    x = op.elementwise(tape, outer.linear("vision_adapter.mlp.fc2", x), "gelu")
    outer.outputs.append(
        x
    )  # it returns what the tower made of its images, not what the projector does
    return projector.linear("multi_modal_projector.linear_1", x)


def _processor(vision: Vision) -> Llama4ImageProcessor:
    return Llama4ImageProcessor(
        tile=vision.image_size,
        patch_size=vision.patch_size,
        pixel_shuffle_ratio=1 / vision.merge_size,
    )


_TREE = TowerTree(class_name="", text_in="Llama4ForCausalLM", whole=("Llama4VisionEncoderLayer",))
TOWERS = (
    VisionFamily(
        wrappers=("llama4",),
        tree=_TREE,
        tower=Family(
            model_type="llama4_vision_model",
            layer=_LAYER,
            root=_root,
            norm=NormKind.LAYER_NORM,
            rotary=Rotary.COMPLEX,
            softmax_float32=False,
        ),
        read=_read,
        processor=_processor,
        projector=_projector,
        embed=_embed,
        project=_project,
        tables=_tables,
        prefix="vision_model",
        hooks_embedding=True,
        returns_features=False,
        calls_head=True,
    ),
)

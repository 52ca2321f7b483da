"""Sentences about the images of a run."""

from __future__ import annotations

from dataclasses import replace

from estimator.families.images.idefics3 import Idefics3ImageProcessor
from estimator.families.vision_family import (
    images_of,
    masks_text,
    processor_of,
    sees,
    vision_family,
)
from estimator.tape.attention import MASK_ALIGNMENT
from estimator.values.arithmetic import ceil_div
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, Model, Part

LOGIT_BYTES = 12
"""Bytes per logit at the peak of the loss: three float32 tensors."""


def image_sentences(model: Model, setup: TrainingSetup) -> list[str]:
    """What images cost, and what may be unexpected (sentences; per model); empty for text only.

    Source: transformers 5.23, modeling_utils.py, ``enable_input_require_grads``; loss/loss_utils.py,
    ``ForCausalLMLoss`` (labels of -100 save no logits).
    """
    vision = model.vision
    if vision is None or not sees(model, setup.adapters):
        return []
    if not setup.images.shows_any:
        return [
            "AutoModelForImageTextToText also creates the image tower. Without an image in the batch the tower does "
            "not run: it takes memory for its weights, but not for gradients or optimizer states."
        ]
    images = images_of(model, setup.images)
    tokens = sum(image.tokens for image in images)
    markers = sum(image.markers for image in images)
    patches = sum(image.patches for image in images)
    per_token = LOGIT_BYTES * model.vocab_size / 1e6
    count = "The image" if len(images) == 1 else f"The {len(images)} images"
    fewer = "Fewer pixels make fewer tokens."
    if setup.images.videos_per_example:
        frames = setup.images.videos_per_example * setup.images.video_frames
        count = f"The {frames:,} frames of video" if frames > 1 else "The frame of video"
        fewer = "Fewer frames or pixels make fewer tokens."
    return [
        f"{count} of an example become {tokens:,} tokens and {markers:,} markers, from {patches:,} patches that the "
        f"tower computes. In the loss an image token costs as much as a word, {per_token:.1f} MB of logits with the "
        f"standard loss, though it is not scored. {fewer}",
        *image_costs(model, setup),
    ]


def image_costs(model: Model, setup: TrainingSetup) -> list[str]:
    """What images cost beyond their tokens, with a way out (sentences; per model); none for text alone.

    Source: transformers 5.23, modeling_utils.py, ``enable_input_require_grads``; models/idefics3/
    image_processing_idefics3.py, ``get_resize_output_image_size``; models/gemma3/modeling_gemma3.py,
    ``create_causal_mask_mapping``.
    """
    vision = model.vision
    if vision is None or not sees(model, setup.adapters) or not setup.images.shows_any:
        return []
    sentences = []
    if (
        setup.computation.checkpoints_vision
        and Part.VISION in setup.adapters.frozen_parts
        and vision_family(vision).hooks_embedding
    ):
        patches = sum(image.patches for image in images_of(model, setup.images))
        layers = vision.tower.num_hidden_layers
        width = 4 if setup.precision.dtype is Dtype.FLOAT32 else 2
        kept = setup.batch.per_device_train_batch_size * patches * layers * vision.tower.hidden_size
        sentences.append(
            "Gradient checkpointing's hook also catches the tower's patch embedding, so backward runs through the "
            f"frozen tower for nothing: the inputs of its {layers} layers stay, {_megabytes(width * kept)}, and each "
            "layer is computed again and differentiated. Checkpoint the language model alone to avoid this "
            "(vision_gradient_checkpointing false)."
        )
    uses_flash = setup.computation.attn_implementation.is_flash
    if masks_text(model, setup) and uses_flash:
        sentences.append(
            "FlashAttention takes no mask, so an image's tokens attend only to tokens before them. With sdpa they "
            "attend to each other too."
        )
    elif masks_text(model, setup):
        rows, length = setup.batch.per_device_train_batch_size, setup.batch.max_length
        mask = 2 * rows * length * ceil_div(length, MASK_ALIGNMENT) * MASK_ALIGNMENT
        sentences.append(
            "With an image in the batch no layer of the text uses flash attention: each repeats keys and values for "
            f"every head and keeps a mask of its own, {_megabytes(mask)} in 16 bits. In rows of half as many tokens it "
            "is a quarter."
        )
    processor = processor_of(vision, setup.images)
    if setup.images.all_image_sizes and isinstance(processor, Idefics3ImageProcessor):
        sentences += _enlarged(processor, setup.images.all_image_sizes[0])
    return sentences


def _enlarged(processor: Idefics3ImageProcessor, size: tuple[int, int]) -> list[str]:
    """That a small image is enlarged and cut into tiles, and what a shorter edge makes of it."""
    now = processor.image_tokens(*size)
    shorter = replace(processor, longest_edge=processor.tile).image_tokens(*size)
    if max(size) >= processor.longest_edge or now.tokens == shorter.tokens:
        return []
    height, width = size
    return [
        f"The processor enlarges an image of {width:,} × {height:,} pixels to a longest edge of "
        f"{processor.longest_edge:,}, hence {now.tiles} tiles and {now.tokens:,} tokens. With image_longest_edge "
        f"{processor.tile} it is {shorter.tiles} tile{'s' * (shorter.tiles > 1)} and {shorter.tokens:,} tokens."
    ]


def _megabytes(number: int) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"

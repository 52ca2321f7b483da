"""Sentences about the images of a run."""

from __future__ import annotations

from estimator.families.vision_family import images_of, sees, vision_family
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Part

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
    if not setup.images.all_image_sizes:
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
    sentences = [
        f"{count} of an example become {tokens:,} tokens and {markers:,} markers, from {patches:,} patches that the "
        f"tower computes. In the loss an image token costs as much as a word, {per_token:.1f} MB of logits with the "
        "standard loss, though it is not scored."
    ]
    frozen = setup.adapters.frozen_parts
    if setup.gradient_checkpointing and Part.VISION in frozen and vision_family(vision).dragged:
        sentences.append(
            "Gradient checkpointing's hook also catches the tower's patch embedding, so backward runs through the "
            "frozen tower for nothing: its layers are saved, computed again and differentiated. Turning "
            "checkpointing on for the language model alone avoids it."
        )
    if vision_family(vision).masks_text:
        sentences.append(
            "With an image in the batch every layer of the text has an explicit mask and leaves flash attention."
        )
    return sentences

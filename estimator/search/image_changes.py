"""Changes that lower the memory of images: fewer pixels or tiles, or a frozen tower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from estimator.families.vision_family import (
    SETTINGS,
    VIDEO_SETTINGS,
    images_of,
    processor_of,
    sees,
    video_processor_of,
    vision_family,
)
from estimator.values.facets.images import Images
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Vision

Keys = Mapping[str, Any]


class ImageChange(NamedTuple):
    """A title, its cost, and its options, smallest change first."""

    title: str
    price: str
    options: tuple[Keys, ...]


SMALLER: Mapping[str, tuple[Any, ...]] = {
    "video_frames": (64, 32, 16, 8, 4),
    "video_max_pixels": (25_165_824, 8_388_608, 2_097_152, 602_112, 200_704, 50_176),
    "max_pixels": (4_014_080, 2_007_040, 1_003_520, 501_760, 250_880),
    "image_longest_edge": (1024, 768, 512),
    "max_patches": (9, 6, 4, 2, 1),
    "max_soft_tokens": (140, 70),
    "do_pan_and_scan": (False,),
    "do_image_splitting": (False,),
}
"""Smaller values of each setting that determines the tokens per image. Our choice of round steps."""


def image_changes(model: Model, setup: TrainingSetup) -> Iterator[ImageChange]:
    """Changes to images that the setup still allows, with the resulting tokens per example."""
    vision = model.vision
    if vision is None or not sees(model, setup.adapters):
        return
    if not setup.images.shows_any:
        return
    seen_now = images_of(model, setup.images)
    before = sum(image.tokens for image in seen_now)
    text = setup.images.text_tokens
    if text is None:  # what the row has besides
        text = setup.batch.max_length - before - sum(image.markers for image in seen_now)
    shown = "videos" if setup.images.videos_per_example else "images"
    for key, smaller in SMALLER.items():
        now = _value(vision, setup.images, key)
        options = []
        for value in smaller if now is not None else ():
            images = replace(setup.images, **{key: value})
            tokens = images_of(model, images)
            seen = sum(image.tokens for image in tokens)
            if value < now and seen < before:
                row = text + seen + sum(image.markers for image in tokens)
                keys = {key: value, "max_length": min(setup.batch.max_length, row)}
                options.append(keys)
        if options:
            yield ImageChange(
                f"{key} {{{key}}}, rows of {{max_length:,}} tokens instead of {setup.batch.max_length:,}",
                f"The same {shown} and text; {shown} are now {before:,} tokens of an example. Fine detail may be lost.",
                tuple(options),
            )
    if not setup.adapters.freeze_vision:
        yield ImageChange(
            "Freeze the image tower",
            "The text model still learns to read its features. The tower needs no gradients or states.",
            ({"freeze_vision": True},),
        )


def tower_checkpoints(model: Model, setup: TrainingSetup) -> Iterator[ImageChange]:
    """Checkpoints of the tower that lower memory and leave the result as it is."""
    vision = model.vision
    if vision is None or not sees(model, setup.adapters) or not setup.images.shows_any:
        return
    computation = setup.computation
    if setup.adapters.freeze_vision:
        if computation.checkpoints_vision and vision_family(vision).hooks_embedding:
            yield ImageChange(
                "Checkpoint the language model alone",
                "Backward no longer runs through the frozen tower, which also saves time.",
                ({"vision_gradient_checkpointing": False},),
            )
    elif not computation.checkpoints_vision:
        yield ImageChange(
            "Checkpoint the image tower",
            "The tower's forward runs twice; the text is computed as before.",
            ({"vision_gradient_checkpointing": True},),
        )


def _value(vision: Vision, images: Images, key: str) -> Any:
    """The setting's present value; None if nothing of the example has it."""
    if not images.videos_per_example:
        return getattr(processor_of(vision, images), SETTINGS.get(key, ""), None)
    if key == "video_frames":
        return images.video_frames
    return getattr(video_processor_of(vision, images), VIDEO_SETTINGS.get(key, ""), None)

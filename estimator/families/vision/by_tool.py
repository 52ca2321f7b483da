"""Tokens of one image in each tool: the settings with which tools override the image processors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from estimator.families.vision_family import SETTINGS, VIDEO_SETTINGS, processor_of, vision_family
from estimator.values.facets.images import Images
from estimator.values.specs import Model, Vision


class ToolImage(NamedTuple):
    """One image in one tool."""

    tool: str
    tokens: int


PUBLISHED = "the published processor file, as TRL, axolotl and ms-swift read it"
_QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
BY_TOOL: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "transformers' class default": {
        # transformers 5.23, models/qwen2_vl/image_processing_qwen2_vl.py, Qwen2VLImageProcessor.size
        **{family: {"min_pixels": 3_136, "max_pixels": 1_003_520} for family in _QWEN},
        # transformers 5.23, models/got_ocr2/image_processing_got_ocr2.py, GotOcr2ImageProcessor.crop_to_patches
        "internvl": {"crop_to_patches": False},
    },
    # llamafactory 0.9.5, hparams/model_args.py, image_min_pixels and image_max_pixels: 32 · 32 and 768 · 768
    "LLaMA-Factory": {family: {"min_pixels": 1_024, "max_pixels": 589_824} for family in _QWEN},
}
"""Settings by tool and the checkpoint's ``model_type``."""


def settings_of(vision: Vision) -> tuple[str, ...]:
    """Keys of the contract that the model's image processor has (names; per model)."""
    processor = vision_family(vision).processor(vision)
    return tuple(key for key, name in SETTINGS.items() if hasattr(processor, name))


def video_settings_of(vision: Vision) -> tuple[str, ...]:
    """Keys of the contract that the model's video processor has (names; per model); none if it takes no videos."""
    videos = vision_family(vision).videos
    if videos is None:
        return ()
    sizes = ("videos_per_example", "video_frames", "video_height", "video_width")
    processor = videos(vision)
    own = (key for key, name in VIDEO_SETTINGS.items() if hasattr(processor, name))
    return (*sizes, *own)


def processor_setting(vision: Vision, key: str) -> int | bool | None:
    """A setting of the model's published processor, in the key's unit; None if it has none (per model)."""
    videos = vision_family(vision).videos
    if key in VIDEO_SETTINGS:
        found = getattr(videos(vision), VIDEO_SETTINGS[key], None) if videos else None
    else:
        found = getattr(vision_family(vision).processor(vision), SETTINGS[key], None)
    assert found is None or isinstance(found, int)
    return found


def image_by_tool(model: Model, height: int, width: int) -> tuple[ToolImage, ...]:
    """Tokens of one image, sides in pixels, in each tool known to override the processor; empty for text models.

    Source: the lines named in ``BY_TOOL``.
    """
    vision = model.vision
    if vision is None:
        return ()
    published = processor_of(vision, Images()).image_tokens(height, width)
    found = [ToolImage(PUBLISHED, published.tokens)]
    for tool, settings in BY_TOOL.items():
        if vision.wrapper in settings:
            images = replace(Images(), **settings[vision.wrapper])
            tokens = processor_of(vision, images).image_tokens(height, width).tokens
            found.append(ToolImage(tool, tokens))
    return tuple(found)

"""Qwen2-VL to Qwen3.5 and GLM-4V: sides are rounded to whole tokens, and the area is kept between two bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.families.images.image import ImageTokens
from estimator.values.refusals import Line, Refusal

LONGEST_RATIO = 200
_SENTENCE = (
    "an image of {height} × {width} pixels is refused: its sides may be up to 200 : 1; crop it."
)
TOO_LONG = Refusal(
    _SENTENCE,
    Line(
        "transformers",
        "models/qwen2_vl/image_processing_qwen2_vl.py",
        77,
        "absolute aspect ratio must be smaller than 200",
    ),
)
TOO_LONG_FOR_GLM = Refusal(
    _SENTENCE,
    Line(
        "transformers",
        "models/glm46v/image_processing_glm46v.py",
        67,
        "absolute aspect ratio must be smaller than 200",
    ),
)
_MARKERS = 2
"""``vision_start`` and ``vision_end``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2VLImageProcessor:
    """``Qwen2VLImageProcessor``, also used by Qwen2.5-VL, Qwen3-VL and Qwen3.5.

    Source: transformers 5.23, models/qwen2_vl/image_processing_qwen2_vl.py, ``smart_resize``, lines 63 to 89;
    models/qwen2_vl/processing_qwen2_vl.py, ``_get_num_multimodal_tokens``.

    >>> Qwen2VLImageProcessor(max_pixels=12_845_056).image_tokens(2160, 3840).tokens
    10549
    """

    patch_size: int = 14
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """One token per ``merge_size``² patches."""
        if max(height, width) / min(height, width) > LONGEST_RATIO:
            raise TOO_LONG(height=height, width=width)
        side = self.patch_size * self.merge_size
        # Python's round, half to even, as in the processor
        high, wide = round(height / side) * side, round(width / side) * side
        if high * wide > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            high = max(side, math.floor(height / shrink / side) * side)
            wide = max(side, math.floor(width / shrink / side) * side)
        elif high * wide < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            high = math.ceil(height * grow / side) * side
            wide = math.ceil(width * grow / side) * side
        patches = (high // self.patch_size) * (wide // self.patch_size)
        return ImageTokens(
            patches // self.merge_size**2, _MARKERS, patches, height=high, width=wide
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm4vImageProcessor:
    """``Glm4vImageProcessor`` and ``Glm46VImageProcessor``: the area counts two frames.

    Source: transformers 5.23, models/glm46v/image_processing_glm46v.py, ``smart_resize``, lines 48 to 82.

    >>> Glm4vImageProcessor().image_tokens(1080, 1920).tokens
    2691
    """

    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 112 * 112
    max_pixels: int = 28 * 28 * 15_000

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """One token per ``merge_size``² patches."""
        side, frames = self.patch_size * self.merge_size, self.temporal_patch_size
        shown = (height, width)
        if height < side or width < side:
            scale = max(side / height, side / width)
            height, width = int(height * scale), int(width * scale)
        if max(height, width) / min(height, width) > LONGEST_RATIO:
            raise TOO_LONG_FOR_GLM(height=shown[0], width=shown[1])
        high, wide = round(height / side) * side, round(width / side) * side
        if frames * high * wide > self.max_pixels:
            shrink = math.sqrt(frames * height * width / self.max_pixels)
            high = max(side, math.floor(height / shrink / side) * side)
            wide = max(side, math.floor(width / shrink / side) * side)
        elif frames * high * wide < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (frames * height * width))
            high = math.ceil(height * grow / side) * side
            wide = math.ceil(width * grow / side) * side
        patches = (high // self.patch_size) * (wide // self.patch_size)
        return ImageTokens(
            patches // self.merge_size**2, _MARKERS, patches, height=high, width=wide
        )

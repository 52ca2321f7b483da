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
        side = self.patch_size * self.merge_size
        high, wide = resized(height, width, side, self.min_pixels, self.max_pixels, TOO_LONG)
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
        limits = self.min_pixels, self.max_pixels
        sides = height, width
        high, wide = resized_volume(frames, sides, side, frames, *limits, TOO_LONG_FOR_GLM)
        patches = (high // self.patch_size) * (wide // self.patch_size)
        return ImageTokens(
            patches // self.merge_size**2, _MARKERS, patches, height=high, width=wide
        )


def resized(
    height: int, width: int, side: int, least: int, most: int, record: Refusal
) -> tuple[int, int]:
    """Height and width in pixels, multiples of ``side`` whose area is between two limits; ``ValueError`` if too long.

    Source: transformers 5.23, models/qwen2_vl/image_processing_qwen2_vl.py, ``smart_resize``.
    """
    if max(height, width) / min(height, width) > LONGEST_RATIO:
        raise record(height=height, width=width)
    return _between(1, 1, (height, width), side, least, most)


def resized_volume(
    frames: int,
    sides: tuple[int, int],
    side: int,
    joined: int,
    least: int,
    most: int,
    record: Refusal,
) -> tuple[int, int]:
    """The same with limits of all frames' pixels together; sides shorter than ``side`` are enlarged first.

    Source: transformers 5.23, models/glm46v/image_processing_glm46v.py, models/qwen3_vl/video_processing_qwen3_vl.py,
    ``smart_resize``.
    """
    height, width = sides
    if height < side or width < side:
        scale = max(side / height, side / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) / min(height, width) > LONGEST_RATIO:
        raise record(height=sides[0], width=sides[1])
    return _between(frames, joined, (height, width), side, least, most)


def _between(
    frames: int, joined: int, sides: tuple[int, int], side: int, least: int, most: int
) -> tuple[int, int]:
    height, width = sides
    # Python's round, half to even, as in the processor
    high, wide = round(height / side) * side, round(width / side) * side
    pixels = round(frames / joined) * joined * high * wide
    if pixels > most:
        shrink = math.sqrt(frames * height * width / most)
        high = max(side, math.floor(height / shrink / side) * side)
        wide = max(side, math.floor(width / shrink / side) * side)
    elif pixels < least:
        grow = math.sqrt(least / (frames * height * width))
        high = math.ceil(height * grow / side) * side
        wide = math.ceil(width * grow / side) * side
    return high, wide

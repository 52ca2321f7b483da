"""Gemma 3 turns every image into 256 tokens; Gemma 4 keeps the aspect ratio within a budget of patches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.families.images.image import ImageTokens
from estimator.values.refusals import Line, Refusal

NO_PATCH = Refusal(
    "an image of {height} × {width} pixels has no patch within Gemma 4's budget of {patches}; crop it or take a larger "
    "max_soft_tokens.",
    Line(
        "transformers",
        "models/gemma4/image_processing_gemma4.py",
        60,
        "Attempting to resize to a 0 x 0 image",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3ImageProcessor:
    """``Gemma3ImageProcessor``: one square image; with pan and scan also crops of elongated images.

    Leaves out: the sentence that names the crops, some 16 tokens of text.
    Source: transformers 5.23, models/gemma3/image_processing_gemma3.py, ``pan_and_scan_batched``, lines 82 to 148;
    models/gemma3/processing_gemma3.py, ``full_image_sequence``.

    >>> Gemma3ImageProcessor(do_pan_and_scan=True).image_tokens(3000, 300)
    ImageTokens(tokens=1280, markers=20, patches=20480, tiles=5, height=896, width=896)
    """

    image_size: int = 896
    patch_size: int = 14
    image_seq_length: int = 256
    do_pan_and_scan: bool = False
    min_crop_size: int = 256
    max_num_crops: int = 4
    min_ratio_to_activate: float = 1.2

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """The whole image and each crop have the same number of tokens."""
        tiles = 1 + self.crops(height, width)
        return ImageTokens(
            tiles * self.image_seq_length,
            tiles * 4,  # start and end of an image, and a double line break on both sides
            tiles * (self.image_size // self.patch_size) ** 2,
            tiles,
            self.image_size,
            self.image_size,
        )

    def crops(self, height: int, width: int) -> int:
        """Number of crops along the longer side; 0 if pan and scan does not apply."""
        longer, shorter = max(height, width), min(height, width)
        if not self.do_pan_and_scan or longer / shorter < self.min_ratio_to_activate:
            return 0
        crops = min(longer // self.min_crop_size, math.floor(longer / shorter + 0.5))
        crops = min(self.max_num_crops, max(2, crops))
        return crops if min(math.ceil(longer / crops), shorter) >= self.min_crop_size else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4ImageProcessor:
    """``Gemma4ImageProcessor``: as many patches as the budget allows, padded to the full budget.

    Source: transformers 5.23, models/gemma4/image_processing_gemma4.py, ``get_aspect_ratio_preserving_size``;
    models/gemma4/processing_gemma4.py, ``_get_num_multimodal_tokens``.

    >>> Gemma4ImageProcessor().image_tokens(1080, 1920)[:3]
    (264, 2, 2520)
    """

    patch_size: int = 16
    pooling_kernel_size: int = 3
    max_soft_tokens: int = 280

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """One token per ``pooling_kernel_size``² patches."""
        budget = self.max_soft_tokens * self.pooling_kernel_size**2
        side = self.pooling_kernel_size * self.patch_size
        pixels = budget * self.patch_size**2
        scale = math.sqrt(pixels / (height * width))
        high, wide = math.floor(scale * height / side), math.floor(scale * width / side)
        if high == 0 == wide:
            raise NO_PATCH(height=height, width=width, patches=budget)
        if high == 0:
            high, wide = 1, min(width // height, self.max_soft_tokens)
        elif wide == 0:
            high, wide = min(height // width, self.max_soft_tokens), 1
        if high * wide > self.max_soft_tokens:
            raise NO_PATCH(height=height, width=width, patches=budget)
        return ImageTokens(high * wide, 2, budget, height=high * side, width=wide * side)

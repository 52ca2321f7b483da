"""Pixtral and Mistral Small 3.1: the aspect ratio is kept, and images with a longer side are shrunk."""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.families.images.image import ImageTokens
from estimator.values.arithmetic import ceil_div
from estimator.values.refusals import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralImageProcessor:
    """``PixtralImageProcessor``: one token per ``spatial_merge_size``² patches.

    Source: transformers 5.23, models/pixtral/image_processing_pixtral.py, ``get_resize_output_image_size``;
    models/pixtral/processing_pixtral.py, ``_get_num_multimodal_tokens``.

    >>> PixtralImageProcessor(patch_size=14, spatial_merge_size=2, longest_edge=1540).image_tokens(1080, 1920)[:3]
    (1705, 31, 6820)
    """

    patch_size: int = 16
    spatial_merge_size: int = 1
    longest_edge: int = 1024

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """Every row of tokens ends with a marker."""
        side = self.patch_size * self.spatial_merge_size
        ratio = max(height / self.longest_edge, width / self.longest_edge)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        if min(height, width) == 0:
            raise InputError(
                "an image is too thin: nothing is left of its shorter side when the longer one is shrunk to "
                f"{self.longest_edge} pixels; crop it."
            )
        rows, columns = ceil_div(height, side), ceil_div(width, side)
        return ImageTokens(
            rows * columns,
            rows,
            rows * columns * self.spatial_merge_size**2,
            height=rows * side,
            width=columns * side,
        )

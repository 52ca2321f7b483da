"""Idefics 3 and SmolVLM: the longer side is resized to a fixed length, and the image is cut into tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.families.images.image import ImageTokens

MAX_IMAGE_SIZE = 4096
"""Maximum pixels per side: models/idefics3/image_processing_idefics3.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idefics3ImageProcessor:
    """``Idefics3ImageProcessor`` and ``SmolVLMImageProcessor``.

    Source: transformers 5.23, models/idefics3/image_processing_idefics3.py, ``get_number_of_image_patches``;
    models/smolvlm/processing_smolvlm.py, ``get_image_prompt_string``. A tokenizer that makes a double line break
    one token is taken for granted, as SmolVLM2's and Idefics 3's do.

    >>> Idefics3ImageProcessor(tile=512, longest_edge=2048, patch_size=16, scale_factor=4).image_tokens(448, 448)[:4]
    (1088, 39, 17408, 17)
    """

    tile: int = 364
    patch_size: int = 14
    scale_factor: int = 2
    longest_edge: int = 4 * 364
    do_image_splitting: bool = True

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """The tiles, and the overview if there are tiles."""
        rows, columns = self.splits(height, width)
        tiles = rows * columns + 1
        side = self.tile // self.patch_size
        tokens = (side // self.scale_factor) ** 2
        # each tile has a start marker and its position, each row a line break, the overview three markers
        markers = 3 + rows * (2 * columns + 1)
        return ImageTokens(tiles * tokens, markers, tiles * side**2, tiles, self.tile, self.tile)

    def splits(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles; (0, 0) if the image is not split."""
        if not self.do_image_splitting:
            return 0, 0
        high, wide = _bounded(*_resized(height, width, self.longest_edge))
        if max(high, wide) <= self.tile:
            return 0, 0
        return math.ceil(high / self.tile), math.ceil(wide / self.tile)


def _resized(height: int, width: int, longest: int) -> tuple[int, int]:
    """Resizes the longer side to ``longest``, also upwards; the other side becomes even."""
    ratio = width / height
    if width >= height:
        high = int(longest / ratio)
        return max(high + high % 2, 1), longest
    wide = int(longest * ratio)
    return longest, max(wide + wide % 2, 1)


def _bounded(height: int, width: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height and width > MAX_IMAGE_SIZE:
        return max(int(MAX_IMAGE_SIZE / ratio), 1), MAX_IMAGE_SIZE
    if height > width and height > MAX_IMAGE_SIZE:
        return MAX_IMAGE_SIZE, max(int(MAX_IMAGE_SIZE * ratio), 1)
    return height, width

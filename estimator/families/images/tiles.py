"""Llama 4 and InternVL: the image is cut into tiles of the tower's size, plus an overview."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from estimator.families.images.image import ImageTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4ImageProcessor:
    """``Llama4ImageProcessor``: the canvas that shrinks the image least; of equal ones the smallest.

    Source: transformers 5.23, models/llama4/image_processing_llama4.py, ``find_supported_resolutions`` and
    ``get_best_fit``; models/llama4/processing_llama4.py, ``_prompt_split_image``.

    >>> Llama4ImageProcessor().image_tokens(1080, 1920)[:4]
    (2304, 18, 9216, 16)
    """

    tile: int = 336
    patch_size: int = 14
    pixel_shuffle_ratio: float = 0.5
    max_patches: int = 16
    """Maximum number of tiles, despite its name."""

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """The tiles of the canvas, and the overview if there are several tiles."""
        rows, columns = self.canvas(height, width)
        cut = rows * columns
        tiles = cut + (cut > 1)
        patches = (self.tile // self.patch_size) ** 2
        tokens = int(patches * self.pixel_shuffle_ratio**2)
        # start, image and end; a separator after each tile
        markers = 3 + (cut if cut > 1 else 0)
        return ImageTokens(tiles * tokens, markers, tiles * patches, tiles, self.tile, self.tile)

    def canvas(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles."""
        scaled = [
            (min(self.tile * columns / width, self.tile * rows / height), rows, columns)
            for rows, columns in _canvases(self.max_patches)
        ]
        upscaling = [scale for scale, _, _ in scaled if scale >= 1]
        best = min(upscaling) if upscaling else max(scale for scale, _, _ in scaled)
        # among equal scales the smallest area; among equal areas the first in the processor's order
        return min(
            ((rows, columns) for scale, rows, columns in scaled if scale == best),
            key=lambda canvas: canvas[0] * canvas[1],
        )


def _canvases(most: int) -> Iterator[tuple[int, int]]:
    """Canvases of at most this many tiles, as (rows, columns), grouped by aspect ratio as in the processor."""
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for tiles in range(most, 0, -1):
        for rows in (divisor for divisor in range(1, tiles + 1) if tiles % divisor == 0):
            by_ratio.setdefault(rows / (tiles // rows), []).append((rows, tiles // rows))
    for canvases in by_ratio.values():
        yield from canvases


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVLImageProcessor:
    """``GotOcr2ImageProcessor`` as set by ``InternVLProcessor``: the grid with the aspect ratio closest to the image's.

    Source: transformers 5.23, models/got_ocr2/image_processing_got_ocr2.py, ``get_optimal_tiled_canvas``;
    models/internvl/processing_internvl.py, ``_get_num_multimodal_tokens``.

    >>> InternVLImageProcessor().image_tokens(1080, 1920)[:4]
    (2304, 2, 9216, 9)
    """

    tile: int = 448
    patch_size: int = 14
    downsample_ratio: float = 0.5
    crop_to_patches: bool = True
    min_patches: int = 1
    max_patches: int = 12
    """Maximum number of tiles, despite its name."""

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """The tiles of the grid, and the overview if there are several tiles."""
        tiles = 1
        if self.crop_to_patches and self.max_patches > 1:
            columns, rows = self.grid(height, width)
            tiles += columns * rows if columns * rows > 1 else 0
        patches = (self.tile // self.patch_size) ** 2
        tokens = int(patches * self.downsample_ratio**2)
        return ImageTokens(tiles * tokens, 2, tiles * patches, tiles, self.tile, self.tile)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Columns and rows of tiles."""
        sides = range(1, self.max_patches + 1)
        grids = sorted(
            (
                (columns, rows)
                for columns in sides
                for rows in sides
                if self.min_patches <= columns * rows <= self.max_patches
            ),
            key=lambda grid: grid[0] * grid[1],
        )
        best, least = (1, 1), float("inf")
        for columns, rows in grids:
            off = abs(width / height - columns / rows)
            if off < least:
                best, least = (columns, rows), off
            # among equal aspect ratios the larger grid, if the image covers more than half of it
            elif off == least and width * height > 0.5 * self.tile**2 * columns * rows:
                best = (columns, rows)
        return best

"""The tokens and patches of one image."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class ImageTokens(NamedTuple):
    """One image as the language model and the tower process it."""

    tokens: int
    """Tokens whose embeddings are replaced by image features."""
    markers: int
    """Further tokens that the processor adds: start, end, row breaks, tile separators."""
    patches: int
    """Patches that the tower computes, padding included."""
    tiles: int = 1
    """Tiles of the tower's image size, including the overview; 1 for towers that take any size."""
    height: int = 0
    """Height of one tile after resizing, in pixels."""
    width: int = 0


class ImageProcessor(Protocol):
    """An image processor's settings."""

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """Tokens and patches of an image of this size; ``ValueError`` if the real processor raises."""
        ...

"""What a processor makes of one image."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class ImageTokens(NamedTuple):
    """One image as the language model and the tower see it."""

    tokens: int
    """Positions in the row that image features fill."""
    markers: int
    """Further tokens that the processor writes around them: start, end, row breaks, tile separators."""
    patches: int
    """Patches that the tower computes, padding included."""
    tiles: int = 1
    """Images of the tower's own size that the image is cut into, the overview included; 1 for a tower of any size."""
    height: int = 0
    """Pixels after resizing, of one tile."""
    width: int = 0


class ImageProcessor(Protocol):
    """The settings of a processor, and the one question they answer."""

    def image_tokens(self, height: int, width: int) -> ImageTokens:
        """What one image of so many pixels becomes; ``ValueError`` where the processor itself stops."""
        ...

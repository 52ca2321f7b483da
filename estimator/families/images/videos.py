"""Videos: Qwen's and GLM's processors join two frames to a patch; the others treat each frame as an image.

Leaves out: the words that some processors write before each frame, its time or its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from estimator.families.images.gemma import Gemma4ImageProcessor
from estimator.families.images.image import ImageProcessor, ImageTokens
from estimator.families.images.qwen_vl import TOO_LONG, TOO_LONG_FOR_GLM, resized, resized_volume
from estimator.values.arithmetic import ceil_div
from estimator.values.refusals import Line, Refusal

ONE_FRAME = Refusal(
    "video_frames {frames} is refused: a patch joins {least} frames; raise it.",
    Line(
        "transformers",
        "models/qwen3_vl/video_processing_qwen3_vl.py",
        85,
        "must be larger than temporal_factor",
    ),
)
FLOOR = 1.05
"""With a cap per frame, pixels that a frame keeps at least, over ``min_pixels``."""


class VideoProcessor(Protocol):
    """A video processor's settings."""

    def video_tokens(self, frames: int, height: int, width: int) -> tuple[ImageTokens, ...]:
        """Tokens and patches of each part of a video that the tower attends to by itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2VLVideoProcessor:
    """``Qwen2VLVideoProcessor``, also used by Qwen2.5-VL: limits of one frame.

    Source: transformers 5.23, models/qwen2_vl/video_processing_qwen2_vl.py, ``resize``, ``patchify``,
    ``get_num_of_video_patches``.

    >>> [it.tokens for it in Qwen2VLVideoProcessor().video_tokens(4, 360, 640)]
    [299, 299]
    """

    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 128 * 28 * 28
    max_pixels: int = 28 * 28 * 768
    cap_pixels_per_frame: bool = False
    max_video_tokens: int = 128_000

    def video_tokens(self, frames: int, height: int, width: int) -> tuple[ImageTokens, ...]:
        """One part per two frames; one start and one end for the whole video."""
        side, most = self.patch_size * self.merge_size, self.max_pixels
        if self.cap_pixels_per_frame:
            whole = int(self.max_video_tokens * side**2 * 0.9)
            share = whole * self.temporal_patch_size // frames
            most = max(min(most, share), int(self.min_pixels * FLOOR))
        high, wide = resized(height, width, side, self.min_pixels, most, TOO_LONG)
        part = _part(high, wide, self.patch_size, self.merge_size, markers=0)
        parts = ceil_div(frames, self.temporal_patch_size)
        return (part._replace(markers=2), *(part,) * (parts - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm4vVideoProcessor:
    """``Glm4vVideoProcessor``: limits of all frames together.

    Source: transformers 5.23, models/glm4v/video_processing_glm4v.py, ``smart_resize``; models/glm4v/
    processing_glm4v.py, ``replace_frame_token_id``.

    >>> [it[:2] for it in Glm4vVideoProcessor().video_tokens(4, 360, 640)]
    [(299, 2), (299, 2)]
    """

    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 112 * 112
    max_pixels: int = 28 * 28 * 2 * 30_000
    too_long: ClassVar[Refusal] = TOO_LONG_FOR_GLM

    def video_tokens(self, frames: int, height: int, width: int) -> tuple[ImageTokens, ...]:
        """One part per two frames, each with a start and an end."""
        side, joined = self.patch_size * self.merge_size, self.temporal_patch_size
        if frames < joined:
            raise ONE_FRAME(frames=frames, least=joined)
        limits = self.min_pixels, self.most_pixels(frames)
        sides = height, width
        high, wide = resized_volume(frames, sides, side, joined, *limits, self.too_long)
        part = _part(high, wide, self.patch_size, self.merge_size, markers=2)
        return (part,) * ceil_div(frames, joined)

    def most_pixels(self, frames: int) -> int:
        """The upper limit for so many frames."""
        return self.max_pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3VLVideoProcessor(Glm4vVideoProcessor):
    """``Qwen3VLVideoProcessor``, also used by Qwen3.5: limits of all frames together.

    Source: transformers 5.23, models/qwen3_vl/video_processing_qwen3_vl.py, ``smart_resize``, ``resize``;
    models/qwen3_vl/processing_qwen3_vl.py, ``replace_video_token``.

    >>> [it[:2] for it in Qwen3VLVideoProcessor(min_pixels=4096, max_pixels=25_165_824).video_tokens(4, 360, 640)]
    [(220, 2), (220, 2)]
    """

    patch_size: int = 16
    min_pixels: int = 128 * 32 * 32
    max_pixels: int = 32 * 32 * 768
    cap_pixels_per_frame: bool = False
    max_video_tokens: int = 768
    too_long: ClassVar[Refusal] = TOO_LONG

    def most_pixels(self, frames: int) -> int:
        """With a cap the same for every frame."""
        if not self.cap_pixels_per_frame:
            return self.max_pixels
        side = self.patch_size * self.merge_size
        share = min(self.max_video_tokens * side**2, self.max_pixels // frames)
        return max(share, int(self.min_pixels * FLOOR)) * frames


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameProcessor:
    """Every frame as one image of the tower's size: SmolVLM without splitting, InternVL without crops.

    Source: transformers 5.23, models/smolvlm/video_processing_smolvlm.py, ``resize``; models/smolvlm/
    processing_smolvlm.py, ``replace_video_token``; models/internvl/processing_internvl.py, ``replace_video_token``.
    """

    image: ImageProcessor

    def video_tokens(self, frames: int, height: int, width: int) -> tuple[ImageTokens, ...]:
        """One part per frame, with the markers of an image."""
        return (self.image.image_tokens(height, width),) * frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4VideoProcessor(Gemma4ImageProcessor):
    """``Gemma4VideoProcessor``: every frame as an image of fewer tokens.

    Source: transformers 5.23, models/gemma4/video_processing_gemma4.py, ``max_soft_tokens``; models/gemma4/
    processing_gemma4.py, ``replace_video_token``.

    >>> [it[:3] for it in Gemma4VideoProcessor().video_tokens(2, 1080, 1920)]
    [(66, 2, 630), (66, 2, 630)]
    """

    max_soft_tokens: int = 70

    def video_tokens(self, frames: int, height: int, width: int) -> tuple[ImageTokens, ...]:
        """One part per frame, with a start and an end."""
        return (self.image_tokens(height, width),) * frames


def _part(high: int, wide: int, patch: int, merge: int, *, markers: int) -> ImageTokens:
    patches = (high // patch) * (wide // patch)
    return ImageTokens(patches // merge**2, markers, patches, height=high, width=wide)

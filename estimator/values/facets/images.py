"""The images and videos of an example, and how a processor sizes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Flag, ImageSizes, Kind, WholeNumber

_SIDE = WholeNumber(32_768, nullable=True)
_PIXELS = WholeNumber(10**9, nullable=True)


def _side(label: str, help: str, null: str) -> Any:
    """Declare a height or a width, whose size is ``null`` where none is given."""
    widget = Widget(Section.IMAGES, label)
    return key(None, _SIDE, help, default_from=DefaultSource.OURS, null=null, widget=widget)


def _of_processor(kind: Kind, label: str, help: str, more: str = "") -> Any:
    """Declare a setting of processors, which is the model's own where none is given."""
    return key(
        None,
        kind,
        help,
        more,
        default_from=DefaultSource.TRANSFORMERS,
        null="as the model's processor",
        widget=Widget(Section.IMAGES, label),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Images(Checked):
    """Images of each example in pixels, and the processor's settings; None: the processor's own."""

    __hash__ = Hashed.__hash__

    images_per_example: int = key(
        0,
        WholeNumber(1024, low=0),
        "images in an example, all of one size",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.IMAGES, "Images per example", ends=(0, 64)),
    )
    image_height: int | None = _side("Height", "of each image, in pixels", "1080")
    image_width: int | None = _side("Width", "of each image, in pixels", "1920")
    image_sizes: tuple[tuple[int, int], ...] | None = key(
        None,
        ImageSizes(nullable=True),
        "height and width of each image of an example, in pixels",
        default_from=DefaultSource.OURS,
        null="images_per_example of one size",
        widget="a list of sizes; the page offers one size for all images",
    )
    text_tokens: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "tokens of text in an example, beside its images; max_length cuts the whole row",
        default_from=DefaultSource.OURS,
        null="max_length is the whole row",
        widget="the page's context is the whole row, and says what is left for text",
    )
    min_pixels: int | None = _of_processor(
        _PIXELS,
        "min_pixels",
        "the least area that Qwen's and GLM's processors resize an image to",
    )
    max_pixels: int | None = _of_processor(
        _PIXELS,
        "max_pixels",
        "the largest area that Qwen's and GLM's processors leave an image",
        "A token stands for 28 × 28 or 32 × 32 of them.",
    )
    do_image_splitting: bool | None = _of_processor(
        Flag(nullable=True),
        "Split images",
        "whether Idefics 3's and SmolVLM's processors cut an image into tiles",
    )
    image_longest_edge: int | None = _of_processor(
        _SIDE,
        "Longest edge",
        "the length to which Idefics 3, SmolVLM and Pixtral bring an image's longer side",
        "size.longest_edge of the processor.",
    )
    crop_to_patches: bool | None = _of_processor(
        Flag(nullable=True),
        "Crop to tiles",
        "whether InternVL's processor cuts an image into tiles",
    )
    max_patches: int | None = _of_processor(
        WholeNumber(1024, nullable=True),
        "Tiles at most",
        "the most tiles that InternVL's and Llama 4's processors cut an image into",
    )
    do_pan_and_scan: bool | None = _of_processor(
        Flag(nullable=True),
        "Pan and scan",
        "whether Gemma 3's processor crops elongated images as well",
        "A crop has 256 tokens.",
    )
    max_soft_tokens: int | None = _of_processor(
        WholeNumber(1120, nullable=True),
        "Soft tokens at most",
        "the most tokens that Gemma 4's processor makes of an image: 70, 140, 280, 560 or 1120",
    )

    videos_per_example: int = key(
        0,
        WholeNumber(64, low=0),
        "videos in an example, all of one size and length",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.IMAGES, "Videos per example", ends=(0, 16)),
    )
    video_frames: int = key(
        16,
        WholeNumber(4096),
        "frames of each video that the processor is given, after sampling",
        "Seconds × frames per second, at most the processor's max_frames.",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.IMAGES, "Frames"),
    )
    video_height: int | None = _side("Frame height", "of each frame, in pixels", "360")
    video_width: int | None = _side("Frame width", "of each frame, in pixels", "640")
    video_min_pixels: int | None = _of_processor(
        _PIXELS,
        "video_min_pixels",
        "the least area that Qwen's and GLM's video processors resize to",
        "Of a frame for Qwen2-VL and Qwen2.5-VL, of all frames together for Qwen3-VL, Qwen3.5 and GLM.",
    )
    video_max_pixels: int | None = _of_processor(
        _PIXELS,
        "video_max_pixels",
        "the largest area that Qwen's and GLM's video processors leave",
        "Of a frame for Qwen2-VL and Qwen2.5-VL, of all frames together for Qwen3-VL, Qwen3.5 and GLM.",
    )
    cap_pixels_per_frame: bool | None = _of_processor(
        Flag(nullable=True),
        "Cap pixels per frame",
        "whether Qwen's video processors limit each frame to its share, as qwen-vl-utils does",
    )

    @property
    def all_image_sizes(self) -> tuple[tuple[int, int], ...]:
        """Height and width of every image of an example."""
        if self.image_sizes is not None:
            return self.image_sizes
        return ((self.image_height or 1080, self.image_width or 1920),) * self.images_per_example

    @property
    def video_size(self) -> tuple[int, int, int]:
        """Frames, height and width of every video."""
        return self.video_frames, self.video_height or 360, self.video_width or 640

    @property
    def shows_any(self) -> bool:
        """Whether an example has an image or a video."""
        return bool(self.all_image_sizes) or self.videos_per_example > 0

"""The images and videos of an example, and how a processor sizes them."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Flag, ImageSizes, WholeNumber

_SIDE = WholeNumber(32_768, nullable=True)
_PIXELS = WholeNumber(10**9, nullable=True)
_PROCESSORS = "as the model's processor"


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
    image_height: int | None = key(
        None,
        _SIDE,
        "of each image, in pixels",
        default_from=DefaultSource.OURS,
        null="1080",
        widget=Widget(Section.IMAGES, "Height"),
    )
    image_width: int | None = key(
        None,
        _SIDE,
        "of each image, in pixels",
        default_from=DefaultSource.OURS,
        null="1920",
        widget=Widget(Section.IMAGES, "Width"),
    )
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
    min_pixels: int | None = key(
        None,
        _PIXELS,
        "the least area that Qwen's and GLM's processors resize an image to",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "min_pixels"),
    )
    max_pixels: int | None = key(
        None,
        _PIXELS,
        "the largest area that Qwen's and GLM's processors leave an image",
        "A token stands for 28 × 28 or 32 × 32 of them.",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "max_pixels"),
    )
    do_image_splitting: bool | None = key(
        None,
        Flag(nullable=True),
        "whether Idefics 3's and SmolVLM's processors cut an image into tiles",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "Split images"),
    )
    image_longest_edge: int | None = key(
        None,
        _SIDE,
        "the length to which Idefics 3, SmolVLM and Pixtral bring an image's longer side",
        "size.longest_edge of the processor.",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "Longest edge"),
    )
    crop_to_patches: bool | None = key(
        None,
        Flag(nullable=True),
        "whether InternVL's processor cuts an image into tiles",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "Crop to tiles"),
    )
    max_patches: int | None = key(
        None,
        WholeNumber(1024, nullable=True),
        "the most tiles that InternVL's and Llama 4's processors cut an image into",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "Tiles at most"),
    )
    do_pan_and_scan: bool | None = key(
        None,
        Flag(nullable=True),
        "whether Gemma 3's processor crops elongated images as well",
        "A crop has 256 tokens.",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "Pan and scan"),
    )
    max_soft_tokens: int | None = key(
        None,
        WholeNumber(1120, nullable=True),
        "the most tokens that Gemma 4's processor makes of an image: 70, 140, 280, 560 or 1120",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "Soft tokens at most"),
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
    video_height: int | None = key(
        None,
        _SIDE,
        "of each frame, in pixels",
        default_from=DefaultSource.OURS,
        null="360",
        widget=Widget(Section.IMAGES, "Frame height"),
    )
    video_width: int | None = key(
        None,
        _SIDE,
        "of each frame, in pixels",
        default_from=DefaultSource.OURS,
        null="640",
        widget=Widget(Section.IMAGES, "Frame width"),
    )
    video_min_pixels: int | None = key(
        None,
        _PIXELS,
        "the least area that Qwen's and GLM's video processors resize to",
        "Of a frame for Qwen2-VL and Qwen2.5-VL, of all frames together for Qwen3-VL, Qwen3.5 and GLM.",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "video_min_pixels"),
    )
    video_max_pixels: int | None = key(
        None,
        _PIXELS,
        "the largest area that Qwen's and GLM's video processors leave",
        "Of a frame for Qwen2-VL and Qwen2.5-VL, of all frames together for Qwen3-VL, Qwen3.5 and GLM.",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "video_max_pixels"),
    )
    cap_pixels_per_frame: bool | None = key(
        None,
        Flag(nullable=True),
        "whether Qwen's video processors limit each frame to its share, as qwen-vl-utils does",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        widget=Widget(Section.IMAGES, "Cap pixels per frame"),
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

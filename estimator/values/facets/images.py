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
        code="in",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="Images per example",
            help="Images in each example, all of one size.",
            ends=(0, 64),
        ),
    )
    image_height: int | None = key(
        None,
        _SIDE,
        "of each image, in pixels",
        default_from=DefaultSource.OURS,
        null="1080",
        code="ih",
        widget=Widget(
            shape="number", section=Section.IMAGES, label="Height", help="Pixels of an image."
        ),
    )
    image_width: int | None = key(
        None,
        _SIDE,
        "of each image, in pixels",
        default_from=DefaultSource.OURS,
        null="1920",
        code="iw",
        widget=Widget(
            shape="number", section=Section.IMAGES, label="Width", help="Pixels of an image."
        ),
    )
    image_sizes: tuple[tuple[int, int], ...] | None = key(
        None,
        ImageSizes(nullable=True),
        "height and width of each image of an example, in pixels",
        default_from=DefaultSource.OURS,
        null="images_per_example of one size",
        code="is",
        widget="a list of sizes; the page offers one size for all images",
    )
    text_tokens: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "tokens of text in an example, beside its images; max_length cuts the whole row",
        default_from=DefaultSource.OURS,
        null="max_length is the whole row",
        code="tt",
        widget="the page's context is the whole row, and says what is left for text",
    )
    min_pixels: int | None = key(
        None,
        _PIXELS,
        "the least area that Qwen's and GLM's processors resize an image to",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="ip",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="min_pixels",
            help="Qwen and GLM enlarge an image of fewer pixels.",
        ),
    )
    max_pixels: int | None = key(
        None,
        _PIXELS,
        "the largest area that Qwen's and GLM's processors leave an image",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="xp",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="max_pixels",
            help="Qwen and GLM shrink an image of more pixels; each token stands for 28 × 28 or 32 × 32 of them.",
        ),
    )
    do_image_splitting: bool | None = key(
        None,
        Flag(nullable=True),
        "whether Idefics 3's and SmolVLM's processors cut an image into tiles",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="sp",
        widget=Widget(
            shape="select",
            section=Section.IMAGES,
            label="Split images",
            help="do_image_splitting of the processors of Idefics 3 and SmolVLM: whether an image is cut into tiles.",
        ),
    )
    image_longest_edge: int | None = key(
        None,
        _SIDE,
        "the length to which Idefics 3, SmolVLM and Pixtral bring an image's longer side",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="le",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="Longest edge",
            help="size.longest_edge of the processors of Idefics 3, SmolVLM and Pixtral.",
        ),
    )
    crop_to_patches: bool | None = key(
        None,
        Flag(nullable=True),
        "whether InternVL's processor cuts an image into tiles",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="cr",
        widget=Widget(
            shape="select",
            section=Section.IMAGES,
            label="Crop to tiles",
            help="crop_to_patches of InternVL's processor: whether an image is cut into tiles.",
        ),
    )
    max_patches: int | None = key(
        None,
        WholeNumber(1024, nullable=True),
        "the most tiles that InternVL's and Llama 4's processors cut an image into",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="xt",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="Tiles at most",
            help="max_patches of the processors of InternVL and Llama 4.",
        ),
    )
    do_pan_and_scan: bool | None = key(
        None,
        Flag(nullable=True),
        "whether Gemma 3's processor crops elongated images as well",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="ps",
        widget=Widget(
            shape="select",
            section=Section.IMAGES,
            label="Pan and scan",
            help="do_pan_and_scan of Gemma 3's processor: an elongated image is cropped as well, each crop 256 tokens.",
        ),
    )
    max_soft_tokens: int | None = key(
        None,
        WholeNumber(1120, nullable=True),
        "the most tokens that Gemma 4's processor makes of an image: 70, 140, 280, 560 or 1120",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="sf",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="Soft tokens at most",
            help="max_soft_tokens of Gemma 4's processor.",
        ),
    )

    videos_per_example: int = key(
        0,
        WholeNumber(64, low=0),
        "videos in an example, all of one size and length",
        default_from=DefaultSource.OURS,
        code="vp",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="Videos per example",
            help="Videos in each example, all of one size and length.",
            ends=(0, 16),
        ),
    )
    video_frames: int = key(
        16,
        WholeNumber(4096),
        "frames of each video that the processor is given, after sampling",
        default_from=DefaultSource.OURS,
        code="vf",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="Frames",
            help="Seconds × frames per second, at most the processor's max_frames.",
        ),
    )
    video_height: int | None = key(
        None,
        _SIDE,
        "of each frame, in pixels",
        default_from=DefaultSource.OURS,
        null="360",
        code="vh",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="Frame height",
            help="Pixels of a frame.",
        ),
    )
    video_width: int | None = key(
        None,
        _SIDE,
        "of each frame, in pixels",
        default_from=DefaultSource.OURS,
        null="640",
        code="vw",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="Frame width",
            help="Pixels of a frame.",
        ),
    )
    video_min_pixels: int | None = key(
        None,
        _PIXELS,
        "the least area that Qwen's and GLM's video processors resize to",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="vi",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="video_min_pixels",
            help="Of a frame for Qwen2-VL and Qwen2.5-VL, of all frames together for Qwen3-VL, Qwen3.5 and GLM.",
        ),
    )
    video_max_pixels: int | None = key(
        None,
        _PIXELS,
        "the largest area that Qwen's and GLM's video processors leave",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="vx",
        widget=Widget(
            shape="number",
            section=Section.IMAGES,
            label="video_max_pixels",
            help="Of a frame for Qwen2-VL and Qwen2.5-VL, of all frames together for Qwen3-VL, Qwen3.5 and GLM.",
        ),
    )
    cap_pixels_per_frame: bool | None = key(
        None,
        Flag(nullable=True),
        "whether Qwen's video processors limit each frame to its share, as qwen-vl-utils does",
        default_from=DefaultSource.TRANSFORMERS,
        null=_PROCESSORS,
        code="vc",
        widget=Widget(
            shape="select",
            section=Section.IMAGES,
            label="Cap pixels per frame",
            help="cap_pixels_per_frame of Qwen's video processors: each frame has its share of the limit.",
        ),
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

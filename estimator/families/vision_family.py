"""What defines a kind of vision tower: one record, found by the checkpoint's ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from estimator.families.family import NO_KERNELS, BlockProgram, Family, Kernels
from estimator.families.images.image import ImageProcessor, ImageTokens
from estimator.families.images.videos import VideoProcessor
from estimator.families.modules import Tree
from estimator.families.reader import Config
from estimator.families.registry import register_tower
from estimator.families.rotary import Tables
from estimator.tape.tape import ACTIVATIONS, Tape, Tensor
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.images import Images
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, ModelClass, Vision

RequireGrad = Callable[[Tensor], Tensor]
"""Makes a tensor require a gradient, as ``enable_input_require_grads`` does."""


class Seen(NamedTuple):
    """The images of a micro-batch."""

    images: tuple[ImageTokens, ...]
    """The images of one example."""
    rows: int
    """Examples in the micro-batch."""

    @property
    def tokens(self) -> int:
        """Image tokens of the micro-batch."""
        return self.rows * sum(image.tokens for image in self.images)

    @property
    def patches(self) -> int:
        """Patches of the micro-batch, padding included."""
        return self.rows * sum(image.patches for image in self.images)

    @property
    def tiles(self) -> int:
        """Images or tiles of the micro-batch."""
        return self.rows * sum(image.tiles for image in self.images)


class VisionKernels(NamedTuple):
    """What Liger replaces in a checkpoint that is loaded with its tower.

    Source: liger-kernel 0.8.5, transformers/monkey_patch.py, ``apply_liger_kernel_to_*``.
    """

    tower: Kernels = NO_KERNELS
    """In the tower and the projector."""
    keeps_mlp: bool = False
    """It leaves the text's MLP as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerTree:
    """The module tree around tower, projector and text."""

    class_name: str = "@Model"
    """Class of the module that has tower, projector and text; empty: they are children of the root."""
    whole: tuple[str, ...]
    """The tower's classes in ``_no_split_modules``."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """Prefix of class names, ``@`` in the trees, by the checkpoint's ``model_type``."""
    text_name: str = "language_model"
    text_class: str = ""
    """Class of the text's model; empty: its own."""
    text_in: str = ""
    """Class of a module between, which also has the text's head; empty: there is none."""
    text: str = ""
    """Prefix of the text's class names in place of its own; empty: its own."""
    shared: tuple[str, ...] = ()
    """Classes of the text that keep their names nevertheless."""


def tiles_as_rows(vision: Vision, seen: Seen) -> tuple[int, int]:
    """Rows of the tower's attention and the length of each: tiles, with a class token where the tower has one."""
    return seen.tiles, vision.tower.learned_positions


def one_row(vision: Vision, seen: Seen) -> tuple[int, int]:
    """The same where all patches are one row.

    Source: transformers 5.23, models/qwen2_5_vl/modeling_qwen2_5_vl.py, line 283: query_states.unsqueeze(0).
    """
    return 1, seen.patches


def square_pixels(vision: Vision, seen: Seen) -> int:
    """Numbers of a micro-batch of square tiles."""
    return seen.tiles * vision.num_channels * vision.image_size**2


def patch_tables(tape: Tape, vision: Vision, seen: Seen, width: int) -> Tables:
    """Cosine and sine of every patch, [patches, head_dim] each, in the dtype of the hidden states."""
    elements = seen.patches * vision.tower.head_dim
    return Tables(tape.new(elements, width, ACTIVATIONS), tape.new(elements, width, ACTIVATIONS))


def float32_tables(tape: Tape, vision: Vision, seen: Seen, width: int) -> Tables:
    """The same in float32.

    Source: transformers 5.23, models/qwen2_5_vl/modeling_qwen2_5_vl.py, Qwen2_5_VLVisionRotaryEmbedding.
    """
    return patch_tables(tape, vision, seen, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionFamily:
    """Everything that depends on the ``model_type`` of a checkpoint with a vision tower."""

    wrappers: tuple[str, ...]
    """``model_type`` of the checkpoints."""
    tower: Family
    """The tower's modules, norms and layer program."""
    read: Callable[[Config, Config], Vision]
    """Reads the tower's sizes, from ``vision_config`` and the whole config."""
    processor: Callable[[Vision], ImageProcessor]
    """The image processor with its published settings."""
    videos: Callable[[Vision], VideoProcessor] | None = None
    """The video processor with its published settings; None: the model's processor takes no videos."""
    projector: Callable[[Vision, Model], Mapping[str, Tree]]
    """By full name the modules of the projector, which maps the tower's output to the text's hidden size."""
    embed: BlockProgram
    """Computes the first layer's input from pixels; calls its last argument where the checkpointing hook is."""
    project: BlockProgram
    """Computes the image features from the last layer's output, given the tower's outer modules and the projector."""
    project_deep: BlockProgram | None = None
    """Computes the features of a layer whose output is projected too (deepstack), given its projector's name."""
    tables: Callable[[Tape, Vision, Seen, int], Tables] | None = None
    """The rotary tables of queries and keys; the last argument is the width of the hidden states."""
    mask: Callable[[Tape, Vision, Seen, int], Tensor] | None = None
    """The tower's attention mask, which separates images or padding."""
    tower_types: tuple[str, ...] = ()
    """``model_type`` of the modelled towers; empty: the class has only one."""
    pairs: Callable[[Vision, Seen], int] | None = None
    """Query-key pairs of patches, over all layers and images; None: every patch attends to its whole image."""
    tokens_a_row: Callable[[Vision, Seen], tuple[int, int]] = tiles_as_rows
    """Batch size and length of the tower's attention."""
    attends_by_image: bool = False
    """Attention is one call for each image or window, whose outputs are joined."""
    prefix: str = "vision_tower"
    """Name of the tower in the model."""
    returns_features: bool = True
    """The model returns the features that it puts into the embeddings, in their dtype (``image_hidden_states``).
    False: nothing, or what ``project`` appends to ``outputs``."""
    calls_head: bool = False
    """The forward that inserts the features also calls the head, so its embeddings and features live until the call
    ends."""
    wraps_layers: bool = True
    """FSDP wraps each layer of the tower (``_no_split_modules``). False: its attention alone."""
    masks_text: bool = False
    """If the batch has images, every text layer has its own mask, one per sequence (Gemma 3)."""
    tree: TowerTree | None = None
    """The module tree around it, for device maps and DeepSpeed's partitions; None: not known."""
    liger: VisionKernels | None = None
    """None: Liger has no kernels for the checkpoint's class, so it replaces nothing in the text either."""
    liger_is_later: bool = False
    """Liger's kernels for the class are not modelled yet."""
    liger_needs_older: bool = False
    """Liger 0.8.5 imports an output class that transformers 5.23 no longer has."""
    hooks_embedding: bool
    """Gradient checkpointing's hook also catches the tower's embedding, so that backward enters a frozen tower."""


def register(*families: VisionFamily) -> None:
    """Registers kinds of towers for ``vision_family``."""
    for family in families:
        register_tower(family.tower)
        for wrapper in family.wrappers:
            assert wrapper not in VISION, f"two towers are of {wrapper}"
            VISION[wrapper] = family


VISION: dict[str, VisionFamily] = {}
"""Every modelled kind of tower, by the checkpoint's ``model_type``."""


def vision_family(vision: Vision) -> VisionFamily:
    """The tower's kind (no unit; per model)."""
    return VISION[vision.wrapper]


def with_vision(model: Model, config: Mapping[str, object]) -> Model:
    """The model with the tower that its config names (sizes in elements; per model); unchanged if none is modelled."""
    wrapper = config.get("model_type")
    part = config.get("vision_config")
    if not isinstance(wrapper, str) or wrapper not in VISION or not isinstance(part, Mapping):
        return model
    types = VISION[wrapper].tower_types
    if types and part.get("model_type") not in types:
        return model
    vision = VISION[wrapper].read(Config(part, f"{wrapper} vision"), Config(config, wrapper))
    return replace(model, vision=replace(vision, wrapper=wrapper))


def sees(model: Model, adapters: Adapters) -> bool:
    """Whether the loaded class has a vision tower (a yes or no; the same on every GPU)."""
    return model.vision is not None and adapters.model_class is ModelClass.IMAGE_TEXT


def masks_text(model: Model, setup: TrainingSetup) -> bool:
    """Whether images of the batch give every text layer a mask of its own (a yes or no; the same on every GPU)."""
    if model.vision is None or not sees(model, setup.adapters) or not setup.images.shows_any:
        return False
    return vision_family(model.vision).masks_text


SETTINGS: Mapping[str, str] = {
    "min_pixels": "min_pixels",
    "max_pixels": "max_pixels",
    "do_image_splitting": "do_image_splitting",
    "image_longest_edge": "longest_edge",
    "crop_to_patches": "crop_to_patches",
    "max_patches": "max_patches",
    "do_pan_and_scan": "do_pan_and_scan",
    "max_soft_tokens": "max_soft_tokens",
}
"""Keys of the contract, and the names of the processors' fields."""


VIDEO_SETTINGS: Mapping[str, str] = {
    "video_min_pixels": "min_pixels",
    "video_max_pixels": "max_pixels",
    "cap_pixels_per_frame": "cap_pixels_per_frame",
}
"""The same of video processors."""
BOTH_LATER = Refusal(
    "images and videos in one example are not modelled yet; set images_per_example or videos_per_example to 0.",
    NOT_MODELLED,
)


def attended_patches(vision: Vision, seen: Seen) -> int:
    """Query-key pairs of patches in a micro-batch, over all layers of the tower (a count).

        layers · Σ tiles  (patches / tiles)²

    Source: derived, from each family's attention.
    """
    family = vision_family(vision)
    if family.pairs is not None:
        return family.pairs(vision, seen)
    once = sum(image.tiles * (image.patches // image.tiles) ** 2 for image in seen.images)
    return seen.rows * vision.tower.num_hidden_layers * once


def processor_of(vision: Vision, images: Images) -> ImageProcessor:
    """The model's image processor with the setup's settings; ``ValueError`` if it lacks one of them."""
    processor = vision_family(vision).processor(vision)
    return _with_settings(processor, SETTINGS, images, f"{vision.wrapper}'s image processor")


def video_processor_of(vision: Vision, images: Images) -> VideoProcessor:
    """The model's video processor with the setup's settings; ``ValueError`` if it has none, or lacks one of them."""
    videos = vision_family(vision).videos
    if videos is None:
        raise InputError(f"{vision.wrapper}'s processor takes no videos; set videos_per_example 0.")
    return _with_settings(
        videos(vision), VIDEO_SETTINGS, images, f"{vision.wrapper}'s video processor"
    )


Processor = TypeVar("Processor", ImageProcessor, VideoProcessor)


def _with_settings(
    processor: Processor, settings: Mapping[str, str], images: Images, name: str
) -> Processor:
    given = {key: getattr(images, key) for key in settings if getattr(images, key) is not None}
    for key in given:
        if not hasattr(processor, settings[key]):
            raise InputError(f"{key} is not a setting of {name}; leave it out.")
    named = {settings[key]: value for key, value in given.items()}
    changed: Processor = replace(processor, **named)  # type: ignore[type-var]  # each is a dataclass
    return changed


def row_of_images(model: Model, images: Images) -> int:
    """Tokens of a row that an example's images take, with their markers (tokens per example).

    Source: as ``images_of``.
    """
    return sum(image.tokens + image.markers for image in images_of(model, images))


def images_of(model: Model, images: Images) -> tuple[ImageTokens, ...]:
    """Tokens and patches of the images of one example, or of the parts of its videos."""
    if model.vision is None or not images.shows_any:
        return ()
    if images.videos_per_example:
        if images.all_image_sizes:
            raise BOTH_LATER()
        videos = video_processor_of(model.vision, images)
        return videos.video_tokens(*images.video_size) * images.videos_per_example
    processor = processor_of(model.vision, images)
    seen = {size: processor.image_tokens(*size) for size in set(images.all_image_sizes)}
    return tuple(seen[size] for size in images.all_image_sizes)

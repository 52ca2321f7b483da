"""How the tools say what an image processor is given, and which parts of a model with towers are frozen.

A processor's settings are those of transformers' ``AutoProcessor.from_pretrained``; LLaMA-Factory and ms-swift shrink
an image before its processor sees it, to the same effect where the processor has that limit itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from estimator.families.vision.by_tool import settings_of, video_settings_of
from estimator.families.vision_family import SETTINGS, vision_family
from estimator.tools.known.parallel import is_on, whole
from estimator.tools.rules import Entry, Rule, SoFar, Theirs, Values, row
from estimator.values.specs import Model

SWITCHES = frozenset({"do_image_splitting", "crop_to_patches", "do_pan_and_scan"})
PER_FRAME = frozenset({"qwen2_vl", "qwen2_5_vl"})
"""``model_type`` of the checkpoints whose video processor limits each frame."""
FREEZES = ("freeze_vision", "freeze_projector", "freeze_language")


def has_towers(model: Model | None) -> bool:
    """Whether a model has parts beside its text model."""
    return model is not None and (model.towers is not None or model.vision is not None)


def has_setting(model: Model | None, ours: str) -> bool:
    """Whether the model's processor has a setting, as far as the model is known."""
    if model is None:
        return True
    if model.vision is None:
        return False
    return ours in (*settings_of(model.vision), *video_settings_of(model.vision))


def setting(ours: str, *theirs: str) -> Rule:
    """A setting of the processor by the first of some keys of theirs, where the model's processor has it."""

    def read(given: Theirs, so_far: SoFar) -> Values:
        if not has_setting(so_far.model, ours) or (
            so_far.model is None and not any(map(given.is_given, theirs))
        ):
            return {}
        value = given.first(*theirs)
        value = is_on(value) if ours in SWITCHES and value is not None else value
        return {} if value is None else {ours: value}

    return Rule(
        theirs=theirs, ours=(ours,), read=read, write=lambda values: {theirs[0]: values[ours]}
    )


def _sizes(theirs: Theirs, so_far: SoFar) -> Values:
    """``size`` of a processor: an area for Qwen's and GLM's, a side for Idefics 3's, SmolVLM's and Pixtral's.

    Source: transformers 5.23, models/qwen2_vl/image_processing_qwen2_vl.py, models/smolvlm/image_processing_smolvlm.py.
    """
    most = whole(theirs["processor.size.longest_edge"])
    least = whole(theirs["processor.size.shortest_edge"])
    if has_setting(so_far.model, "image_longest_edge") and so_far.model is not None:
        return {"image_longest_edge": most} if most else {}
    found = {"max_pixels": most, "min_pixels": least}
    return {key: value for key, value in found.items() if value and has_setting(so_far.model, key)}


def from_processor(part: str) -> tuple[Rule, ...]:
    """Every setting under a prefix of theirs that means ``AutoProcessor``'s keyword arguments."""
    names = {"image_longest_edge": ()}
    rules = [setting(key, f"{part}.{key}") for key in SETTINGS if key not in names]
    if part != "processor":
        return tuple(rules)
    sizes = row(
        "processor.size.longest_edge processor.size.shortest_edge",
        "max_pixels min_pixels image_longest_edge",
        _sizes,
        lambda values: (
            {"processor.size": {"longest_edge": values["image_longest_edge"]}}
            if values.get("image_longest_edge")
            else {}
        ),
    )
    return (sizes, *rules)


def limits_frames(model: Model | None) -> bool:
    """Whether the model's video processor limits each frame's area, as the tools do before it."""
    return model is not None and model.vision is not None and model.vision.wrapper in PER_FRAME


def most_frames(*theirs: str) -> Rule:
    """The most frames of a video that the tool samples."""

    def read(given: Theirs, so_far: SoFar) -> Values:
        key = next(filter(given.is_given, theirs), None)
        frames = whole(given[key]) if key else None
        sees = so_far.model is not None and has_setting(so_far.model, "video_frames")
        return {"video_frames": frames} if frames and sees else {}

    return row(" ".join(theirs), "video_frames", read)


def area_of_frames(most: str, least: str, usual: Values, *, floor: int = 0) -> Rule:
    """Limits of each frame's area, which the tool applies before the processor; ``usual``: what it does beside them."""

    def read(given: Theirs, so_far: SoFar) -> Values:
        if not limits_frames(so_far.model) or not (given.is_given(most) or given.is_given(least)):
            return {}
        found = {**usual}
        for ours, key in (("video_max_pixels", most), ("video_min_pixels", least)):
            if given.is_given(key) and (area := whole(given[key])):
                found[ours] = max(area, floor)
        return found

    ours = "video_max_pixels video_min_pixels cap_pixels_per_frame"
    return row(f"{most} {least}", ours, read)


def frozen(vision: str, projector: str, language: str) -> Rule:
    """Three switches for the three parts of a model with a tower."""

    def read(theirs: Theirs, so_far: SoFar) -> Values:
        if not has_towers(so_far.model):
            return {}
        keys = zip(FREEZES, (vision, projector, language), strict=True)
        return {ours: is_on(theirs[key]) for ours, key in keys}

    keys = " ".join([vision, projector, language])
    says = "the tower and the projector are frozen"
    return row(keys, " ".join(FREEZES), read, keys, says=says)


def area_of_tokens(model: Model | None, tokens: int) -> int | None:
    """The pixels of so many tokens of an image: each stands for a square of merged patches."""
    if model is None or model.vision is None:
        return None
    processor = vision_family(model.vision).processor(model.vision)
    side = getattr(processor, "patch_size", 0) * getattr(processor, "merge_size", 0)
    return tokens * side**2 or None


def without_use(
    given: Mapping[str, Entry], rules: tuple[Rule, ...], model: Model | None
) -> Iterator[tuple[str, str]]:
    """Keys that shrink images before a processor that has no such setting, each with a sentence."""
    if model is None:
        return
    if model.vision is None:
        says = f"{model.model_type} is known here without a tower that sees: no image is estimated."
    else:
        says = f"Images are resized to this area before {model.vision.wrapper}'s processor; they are taken as they are."
    for rule in rules:
        if any(
            not has_setting(model, limit) for limit in {"max_pixels", "min_pixels"} & {*rule.ours}
        ):
            yield from ((key, says) for key in rule.theirs if key in given)
        if "video_max_pixels" in rule.ours and not limits_frames(model):
            frames = says.replace("Images are", "Frames are", 1).replace(
                "no image is", "no video is"
            )
            yield from ((key, frames) for key in rule.theirs if key in given)


def with_hook(
    given: Mapping[str, Entry], values: Values, model: Model | None
) -> Iterator[tuple[str, str]]:
    """ms-swift's key that leaves a frozen tower's layers without checkpoints, but its embedding's hook in place.

    Source: modelscope/ms-swift 3602360, swift/trainers/mixin.py, ``_prepare_gradient_checkpointing``;
    transformers 5.23, modeling_utils.py, ``disable_input_require_grads`` (removes a module's own hooks alone).
    """
    key = "args.vit_gradient_checkpointing"
    if key not in given or model is None or model.vision is None:
        return
    is_frozen = values.get("freeze_vision") and values.get("gradient_checkpointing")
    is_off = values.get("vision_gradient_checkpointing") is False
    if is_frozen and is_off and vision_family(model.vision).hooks_embedding:
        says = (
            "The text's checkpointing still makes the frozen tower's patches require a gradient, so that its layers "
            "keep all their tensors: more memory than estimated."
        )
        yield key, says


def stated(keys: Values, model: Model | None) -> Values:
    """A setup's keys with the settings of its model's own processor, for a tool that has others by itself."""
    if model is None or model.vision is None:
        return keys
    processor = vision_family(model.vision).processor(model.vision)
    own = {key: getattr(processor, SETTINGS[key]) for key in settings_of(model.vision)}
    return {**keys, **{key: value for key, value in own.items() if keys.get(key) is None}}

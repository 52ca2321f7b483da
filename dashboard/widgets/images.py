"""Image settings: size presets, and the tokens of an image with each tool."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from dashboard.state import question, session
from dashboard.widgets import boxes, rerun
from estimator import (
    Model,
    TrainingSetup,
    contract,
    image_by_tool,
    image_costs,
    image_settings,
    images_of,
    processor_setting,
    video_settings,
)

SIZES = {
    "Thumbnail": (224, 224),
    "Photo": (768, 1024),
    "1080p": (1080, 1920),
    "A4 page": (1754, 1240),
    "4K": (2160, 3840),
}
"""Height and width in pixels; an A4 page at 150 dots per inch."""


def sees() -> bool:
    """Whether the model has a vision tower."""
    model = question.reading().model
    return model is not None and model.vision is not None


def _as_set(setup: TrainingSetup) -> TrainingSetup:
    """The setup with the images of the widgets, which its reading leaves out while they exceed the context."""
    values = session.unbound_values()
    names = [key.name for key in contract.KEYS if key.section is contract.Section.IMAGES]
    shown: dict[str, Any] = {name: values[name] for name in names if name in values}
    return replace(setup, **shown)


def _has_setting(name: str, setup: TrainingSetup) -> bool:
    model = question.reading().model
    if model is None or model.vision is None or not _has_images(setup):
        return False
    return name in image_settings(model.vision)


def _has_images(setup: TrainingSetup) -> bool:
    return _as_set(setup).images.images_per_example > 0


def _has_video_setting(name: str, _: TrainingSetup) -> bool:
    model = question.reading().model
    return model is not None and model.vision is not None and name in video_settings(model.vision)


def _with_own(key: contract.Key) -> None:
    """The widget of a processor's setting, which says what the model's processor has."""
    reading = question.reading()
    assert reading.model is not None
    assert reading.model.vision is not None
    own = processor_setting(reading.model.vision, key.name)
    if own is None:
        boxes.widget(key)
    else:
        said = f"{boxes.SWITCH[own]}, the processor's" if isinstance(own, bool) else f"{own:,}"
        boxes.widget(key, null=said)


def _of_videos(name: str, setup: TrainingSetup) -> bool:
    return _as_set(setup).images.videos_per_example > 0 and _has_video_setting(name, setup)


def _videos() -> None:
    """Tokens of the videos of an example."""
    reading = question.reading()
    setup, model = _as_set(reading.setup), reading.model
    if model is None or model.vision is None or not setup.images.videos_per_example:
        return
    parts = images_of(model, setup.images)
    frames, height, width = setup.images.video_size
    tokens = sum(part.tokens for part in parts) // setup.images.videos_per_example
    st.caption(
        f"A video of {frames:,} frames of {width:,} × {height:,} pixels is **{tokens:,} tokens**; "
        f"the tower computes {sum(part.patches for part in parts) // setup.images.videos_per_example:,} patches."
    )
    for sentence in image_costs(model, setup):
        st.caption(sentence)


def _take_size() -> None:
    if chosen := st.session_state["image size"]:
        height, width = SIZES[chosen]
        session.put({"image_height": height, "image_width": width})
        rerun.redraw(rerun.EXPANDERS)


def _preset(model: Model, setup: TrainingSetup, name: str) -> str:
    """A preset with the tokens of one image of its size; without, if the processor refuses it."""
    height, width = SIZES[name]
    size: dict[str, Any] = {"image_sizes": None, "image_height": height, "image_width": width}
    try:
        (image, *_) = images_of(model, replace(setup, **size).images)
    except ValueError:
        return name
    return f"{name} · {image.tokens:,}"


def _sizes() -> None:
    """The presets, and the tokens of one image of the chosen size."""
    reading = question.reading()
    setup, model = _as_set(reading.setup), reading.model
    if model is None or model.vision is None or not setup.images.all_image_sizes:
        return
    height, width = setup.images.all_image_sizes[0]
    current = next((name for name, size in SIZES.items() if size == (height, width)), None)
    st.session_state["image size"] = current
    st.segmented_control(
        "Size, and its tokens",
        list(SIZES),
        key="image size",
        format_func=partial(_preset, model, setup),
        on_change=_take_size,
        width="stretch",
        help="Sizes of common images in pixels; an A4 page at 150 dots per inch is 1,240 × 1,754.",
    )
    (image, *_) = images_of(model, setup.images)
    st.caption(
        f"An image of {width:,} × {height:,} pixels is **{image.tokens:,} tokens**, from {image.patches:,} patches."
    )
    tools = image_by_tool(model, height, width)
    if len({tool.tokens for tool in tools}) > 1:
        said = "".join(f"\n- {tool.tool}: {tool.tokens:,}" for tool in tools)
        st.caption(f"Tokens with the settings of:{said}")
    for sentence in image_costs(model, setup):
        st.caption(sentence)


UNUSUAL = {
    "images_per_example": boxes.Unusual(then=_sizes),
    "image_height": boxes.Unusual(where=_has_images),
    "image_width": boxes.Unusual(where=_has_images),
    "videos_per_example": boxes.Unusual(
        where=partial(_has_video_setting, "videos_per_example"), then=_videos
    ),
    **{
        name: boxes.Unusual(where=partial(_of_videos, name))
        for name in ("video_frames", "video_height", "video_width")
    },
    **{
        name: boxes.Unusual(where=partial(_of_videos, name), draw=_with_own)
        for name in ("video_min_pixels", "video_max_pixels", "cap_pixels_per_frame")
    },
    **{
        name: boxes.Unusual(where=partial(_has_setting, name), draw=_with_own)
        for name in (
            "min_pixels",
            "max_pixels",
            "do_image_splitting",
            "image_longest_edge",
            "crop_to_patches",
            "max_patches",
            "do_pan_and_scan",
            "max_soft_tokens",
        )
    },
}

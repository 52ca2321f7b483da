"""Where the control of a key is: in sight, in the drawer, or in an expander of the drawer."""

from __future__ import annotations

import re

from estimator import contract

DRAWER = "All other settings"
"""The expander that holds every control that is not in sight from the start."""
IN_SIGHT = ("method", "optim", "per_device_train_batch_size", "max_length")
"""Keys whose widget is in sight from the start. All others are in the drawer."""
BOXES = {"model": "model box", "gpu": "gpu box", "dtype": "precision"}
"""Keys that are chosen in a widget of another name."""


def control_of(key: str) -> tuple[str, ...]:
    """CSS classes of a key's widget and of the expanders that it is in, the outer one first.

    >>> control_of("max_length"), control_of("lora_r")
    (('st-key-max_length',), ('st-key-lora_r-box', 'st-key-drawer', 'st-key-LoRA-open'))
    """
    if key in BOXES:
        return (_css_class(BOXES[key]),)
    section = contract.BY_NAME[key].section
    if section is contract.Section.ALWAYS:
        return _css_class(key), *([_css_class("drawer")] if key not in IN_SIGHT else [])
    return _css_class(f"{key} box"), _css_class("drawer"), _css_class(f"{section} open")


def _css_class(key: str) -> str:
    """The class of the container of Streamlit's widget with a key."""
    return "st-key-" + re.sub(r"[^a-zA-Z0-9_-]", "-", key)

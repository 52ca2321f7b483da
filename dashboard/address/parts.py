"""The four parts of the page below the figure, what unfolds in each, and how the URL says what is open."""

from __future__ import annotations

import re
from collections.abc import Mapping

WHY, WHAT_ELSE, TIME, TAKE_AWAY = "Why", "What else", "Time and money", "Take away"
VLLM = "vLLM's share"
"""Drawn only if vLLM shares the training GPUs."""
PARTS: Mapping[str, tuple[str, ...]] = {
    WHY: ("How computed", "Where the layers sit"),
    WHAT_ELSE: ("How many GPUs", "Best way", "How far", VLLM),
    TIME: ("Saving and loading",),
    TAKE_AWAY: (),
}
"""The parts, the first open by default, and what unfolds in each."""
PART_KEY = "section"
BEFORE = {"What fills it": WHY, "Which GPU": WHAT_ELSE}
"""Sections of earlier links that are now what a part begins with."""


def key(label: str) -> str:
    """The URL's key of what unfolds in a part.

    >>> key("How many GPUs"), key("vLLM's share")
    ('how_many_gpus', 'vllm_s_share')
    """
    return re.sub(r"\W", "_", label).lower()


KEYS = (PART_KEY, *(key(label) for labels in PARTS.values() for label in labels))
"""All keys of the URL that this module knows."""


def opened(section: str | None) -> Mapping[str, str]:
    """The keys to set for a link of when each of these was a section of its own; none for any other.

    >>> opened("How far"), opened("Why")
    ({'section': 'What else', 'how_far': 'true'}, {})
    """
    if section in BEFORE:
        return {PART_KEY: BEFORE[section]}
    for part, labels in PARTS.items():
        if section in labels:
            return {PART_KEY: part, key(section): "true"}
    return {}

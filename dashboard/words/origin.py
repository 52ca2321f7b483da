"""What every report says of itself: the version, the day, and what the ranges mean."""

from __future__ import annotations

RELEASE = "0.1.0"
"""The version in pyproject.toml; a test compares them."""
RANGE = (
    "The need is a range: the least memory on which PyTorch’s allocator brings the run through, and the CUDA context. "
    "Runs with shards have their peak and up to 3 % for the allocator instead. "
    "“Fits” means that even the high end fits. Hours and dollars are ranges that contain nine of ten "
    "published runs."
)
"""What the ranges mean."""


def line(day: str) -> str:
    """Version and day in one line.

    >>> line("2026-11-21")
    'Headroom 0.1.0, 2026-11-21'
    """
    return f"Headroom {RELEASE}, {day}"

"""Long lists of names, written as plain text."""

from __future__ import annotations


def listed(text: str) -> tuple[str, ...]:
    """Names that stand in a text, with blanks between them.

    >>> listed("seed output_dir")
    ('seed', 'output_dir')
    """
    return tuple(text.split())

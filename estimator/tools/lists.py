"""Long lists of names, written as plain text."""

from __future__ import annotations


def listed(text: str) -> tuple[str, ...]:
    """Names that stand in a text, with blanks between them.

    >>> listed("seed output_dir")
    ('seed', 'output_dir')
    """
    return tuple(text.split())


def under(part: str, text: str) -> frozenset[str]:
    """Full names of the keys of one part.

    >>> sorted(under("args", "seed output_dir"))
    ['args.output_dir', 'args.seed']
    """
    return frozenset(f"{part}.{name}" for name in listed(text))

"""Similar documents, stored as the first document and the differences of the others.

A document is JSON: a figure and its texts. The browser builds any of them by setting values at paths. The result is
identical to the document that the server would send.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Document = dict[str, Any]
"""A JSON object of texts and Plotly's values, hence ``Any``."""
Path = tuple[str | int, ...]


def row(documents: Sequence[Document]) -> Document:
    """The first document, the paths at which any other differs, and each one's values there.

    >>> row([{"x": [1, 2], "t": "a"}, {"x": [1, 3], "t": "a"}, {"x": [5], "t": "a"}])["paths"]
    [['x', 1], ['x']]
    """
    first = documents[0]
    numbers: dict[Path, int] = {}
    changes = [
        [
            [numbers.setdefault(path, len(numbers)), value]
            for path, value in _differences(first, document, ())
        ]
        for document in documents
    ]
    return {"first": first, "paths": [list(path) for path in numbers], "changes": changes}


def _differences(first: Any, other: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if first == other:
        return
    if isinstance(first, dict) and isinstance(other, dict) and list(first) == list(other):
        for key in first:
            yield from _differences(first[key], other[key], (*path, key))
    elif isinstance(first, list) and isinstance(other, list) and len(first) == len(other):
        for place, (one, two) in enumerate(zip(first, other, strict=True)):
            yield from _differences(one, two, (*path, place))
    else:
        yield path, other

"""The terms of a figure as a table, and the code that computes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from dashboard.words import markup, units
from estimator import Term

Function = Callable[..., Any]


def docstring(function: Function) -> str:
    """A function's docstring as Markdown."""
    text = inspect.getdoc(function) or ""
    return re.sub(r"``(.+?)``", r"`\1`", text.split("\n>>>")[0])


def source(function: Function) -> str:
    """A function's source code."""
    return inspect.getsource(function)


def terms_html(terms: Sequence[Term], head: str) -> str:
    """The terms of a sum as a table, with their total."""
    rows = [
        markup.row(None, escape(term.what), units.gib_or_bytes(term.bytes), "", term.how)
        for term in terms
    ]
    total = sum(term.bytes for term in terms)
    rows.append(
        markup.row(None, "Together", units.gib_or_bytes(total), "", f"{total:,} bytes", "hr-sum")
    )
    return (
        f'<table class="hr-table"><thead><tr><th scope="col">{escape(head)}</th><th scope="col" class="hr-n">Size</th>'
        '<td class="hr-n"></td><th scope="col" class="hr-what">How</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )

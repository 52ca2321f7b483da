"""Pieces of HTML and Markdown that several pages use."""

from __future__ import annotations

import re
from html import escape

from dashboard.words import terms
from estimator import Verdict


def plain(sentence: str) -> str:
    r"""Escapes a sentence for a Markdown element, so text from a URL cannot become an image or link.

    >>> print(plain("optim '![x](https://example.org/x.png)' is unknown."))
    optim '!\[x](https://example.org/x.png)' is unknown.
    """
    return sentence.replace("[", "\\[")


def row(colour: str | None, name: str, size: str, part: str, what: str, kind: str = "") -> str:
    """A table row: a swatch and a name, a size, a share, a description."""
    swatch = f'<span class="hr-swatch" style="background:{colour}"></span>' if colour else ""
    return (
        f'<tr class="{kind}"><td class="hr-name-cell">{swatch}{name}</td><td class="hr-n">{escape(size)}</td>'
        f'<td class="hr-n">{escape(part)}</td><td class="hr-what">{escape(what)}</td></tr>'
    )


def whole_prices(html: str) -> str:
    """Prevents line breaks within ranges of dollars."""
    return _DOLLARS.sub(r'<span class="hr-whole">\g<0></span>', html)


_DOLLARS = re.compile(r"\$[\d,.]*\d( to [\d,.]*\d)?")


def details(key: str, summary: str, html: str) -> str:
    """Collapsible details with a summary; ``key`` identifies them, so they stay open after a redraw."""
    return f'<details class="hr-more" data-hr="{key}"><summary>{escape(summary)}</summary>{html}</details>'


def card(name: str, verdict: Verdict | None, *lines: str) -> str:
    """A card: a name, its verdict, and lines below."""
    said = "" if verdict is None else f' <span class="hr-{verdict}">{terms.sign(verdict)}</span>'
    rest = "".join(f"<br>{whole_prices(escape(line))}" for line in lines)
    return f"<b>{escape(name)}</b>{said}{rest}"

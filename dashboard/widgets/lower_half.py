"""The parts of the page that no move of a slider computes: the browser asks for them when they are looked at.

Marks in the page's HTML name setups: the one that the top shows (``now``), and the one that each such part shows. While
they differ, ``lower_half.js`` dims the part. It takes no clicks on the lower half.
"""

from __future__ import annotations

from importlib.resources import files

from streamlit.components.v2 import component

from dashboard.state import question
from dashboard.words import marks

_component = component(
    "lower_half",
    html="",
    css=".st-key-ask-below, .st-key-ask-edge, .st-key-ask-methods { display: none; }",
    js="".join((files(__package__) / word).read_text() for word in ("alone.js", "lower_half.js")),
    isolate_styles=False,
)


def mark(which: str) -> str:
    """An invisible element that names the current setup; ``which``: ``now``, or the mark of a part."""
    now = question.reading()
    of = "" if now.model is None else marks.mark(now.model, now.gpu, now.setup)
    return f'<i class="hr-{which}" data-setup="{of}"></i>'


def listen() -> None:
    """Listens for the browser's question. Call first in the fragment of the lower half; its mark comes last."""
    _component(
        key="ask-below",
        data=[{"part": "below", "mark": "drawn", "soon": 100}],
        on_asked_change=_nothing,
    )


def listen_for_rulers() -> None:
    """Listens for the browser's question for the rulers, which always waits for a pause. Call in their fragment."""
    _listen_at_a_pause("edge", "ruled")


def listen_for_methods() -> None:
    """The same for the methods' bars and cards."""
    _listen_at_a_pause("methods", "compared")


def _listen_at_a_pause(part: str, mark: str) -> None:
    _component(
        key=f"ask-{part}",
        data=[{"part": part, "mark": mark, "soon": 1500}],
        on_asked_change=_nothing,
    )


def _nothing() -> None:
    """The question itself reruns the fragment."""

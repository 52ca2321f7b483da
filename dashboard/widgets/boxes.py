"""The widget of each key, and where its value is stored.

Every widget belongs to a key of the contract and has the contract's default. The key's declaration gives its section
and shape. Widgets that are always visible are bound to the URL. Those in an expander show the session's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import streamlit as st

from dashboard.state import heard, question, session
from dashboard.widgets import rerun
from dashboard.words import controls
from estimator import TrainingSetup, contract

BEHIND_PRECISION = ("dtype", "mixed_precision")
"""Keys that the precision box sets. It must be redrawn when one of them changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusual:
    """Behaviour of a key's widget beyond its declaration."""

    draw: Callable[[contract.Key], None] | None = None
    """Replaces ``widget`` to draw it."""
    then: Callable[[], None] | None = None
    """Draws further elements below it."""
    take: Callable[[], None] | None = None
    """Change handler that also sets other keys."""
    where: Callable[[TrainingSetup], bool] | None = None
    """Whether the widget applies to a setup and is drawn."""


def draw(section: contract.Section, unusual: Mapping[str, Unusual], in_sight: bool = False) -> None:
    """Draws the widgets of a section, in the contract's order; ``in_sight``: those outside the drawer."""
    for key in contract.KEYS:
        own = unusual.get(key.name, USUAL)
        if key.section is not section or (key.name in controls.IN_SIGHT) != in_sight:
            continue
        if own.where and not own.where(question.reading().setup):
            continue
        if own.draw:
            own.draw(key)
        elif own.take:
            widget(key, on_change=own.take, args=())
        else:
            widget(key)
        if own.then:
            own.then()


USUAL = Unusual()
SWITCH = {True: "On", False: "Off"}
"""What a switch of three states offers; emptied, it is null."""


def widget(key: contract.Key, **others: Any) -> None:
    """Draws the widget of one key with its declared shape.

    ``others``: arguments for Streamlit, another ``label`` or ``help``, or what ``null`` means.
    """
    if shape(key).shape == "slider" and key.name in session.BOUND:
        _moving_slider(key)
    else:
        _widget(key, **others)


@st.fragment
def _moving_slider(key: contract.Key) -> None:
    """A fragment: moving the slider reruns only the parts in ``redraw``, not the whole page."""
    _widget(key)


def _widget(key: contract.Key, **others: Any) -> None:
    of = shape(key)
    said = others.pop("help", "")
    described: dict[str, Any] = {
        "label": others.pop("label", of.label),
        "help": f"{said} {key.default_sentence}" if said else key.sentences,
    }
    if key.kind.nullable:
        null = others.pop("null", key.null)
        described["placeholder"] = null[:1].upper() + null[1:]
    match of.shape:
        case "slider":
            steps = st.session_state["steps"][key.name]
            st.select_slider(options=steps, **described, **_shown(key, "value") | others)
        case "segments":
            st.segmented_control(
                options=options(key),
                required=True,
                width="stretch",
                **described,
                **_shown(key, "default") | others,
            )
        case "select":
            offered = others.pop("options", None) or options(key)
            if isinstance(key.kind, contract.Flag):
                described["format_func"] = SWITCH.get
            st.selectbox(**described, **_shown(key, "index", offered) | others)
        case "toggle":
            st.toggle(**described, **_shown(key, "value") | others)
        case "number":
            st.number_input(**described, **_range(key), **_shown(key, "value") | others)
        case "options":
            raise NotImplementedError(f"what {key.name} offers follows from the model")


def shape(key: contract.Key) -> contract.Widget:
    """The declared widget of a key; the key must have one."""
    assert isinstance(key.widget, contract.Widget), key.widget
    return key.widget


def options(key: contract.Key) -> list[Any]:
    """The options of a key: its words, or its allowed numbers."""
    match key.kind:
        case contract.Choice(words=words):
            return [str(word) for word in words]
        case contract.Flag():
            return list(SWITCH)
        case contract.WholeNumber(low=low, high=high):
            return list(range(low, high + 1))
        case _:
            raise NotImplementedError(f"{key.name} has no list to choose from")


def _range(key: contract.Key) -> dict[str, Any]:
    """Minimum, maximum and step of a number input; integers if the key is an integer."""
    assert isinstance(key.kind, contract.WholeNumber | contract.Number)
    number = int if isinstance(key.kind, contract.WholeNumber) else float
    low, high = shape(key).ends or (key.kind.low, key.kind.high)
    return {
        "min_value": number(low),
        "max_value": number(high),
        "step": number(shape(key).step),
    }


def _shown(key: contract.Key, default: str, options: Sequence[str] | None = None) -> dict[str, Any]:
    """Arguments for a widget's value and its change handler; ``default``: its name for the default argument."""
    if key.name not in session.BOUND:
        return box(key, default, options)
    listed = {} if options is None else {"options": options}
    value = contract.default_of(key.name)
    value = str(value) if isinstance(key.kind, contract.Choice) else value
    shown = value if options is None else options.index(value)
    bound = {"key": key.name, default: shown, "bind": "query-params", **listed}
    if isinstance(key.kind, contract.Choice):  # a choice reruns the whole page
        return bound
    return {**bound, "on_change": rerun.redraw, "args": _also(key)}


def _also(key: contract.Key) -> tuple[str, ...]:
    return (rerun.EXPANDERS,) if shape(key).decides else ()


def box(key: contract.Key, default: str, options: Sequence[str] | None = None) -> dict[str, Any]:
    """Arguments for a widget in an expander.

    A browser shows and returns the default until it receives another value. That message is sent once, and the next
    run may overtake it. So the key's value is passed as the default. A widget with a default other than None cannot be
    emptied, so widgets that can be null receive their value in every run instead.
    """
    name, now = f"{key.name} box", session.value(key.name)
    is_nullable = key.kind.nullable
    heard.set_box(key.name, now)
    if is_nullable:
        st.session_state[name] = now
    shown = None if is_nullable else now if options is None else options.index(str(now))
    listed = {} if options is None else {"options": options}
    taken = {"on_change": _take_box, "args": (key.name, *_also(key))}
    return {"key": name, default: shown, **taken, **listed}


def _take_box(name: str, *also: str) -> None:
    if heard.is_late(name):
        also = (rerun.EXPANDERS,)
    session.put({name: session.chosen(name)})
    if name in BEHIND_PRECISION:
        st.rerun()
    rerun.redraw(*also)


def with_own(catalogued: Iterable[str], own: str | None) -> list[str]:
    """The catalogue's names, preceded by a value from the URL that is not among them."""
    names = list(catalogued)
    return names if own is None or own in names else [own, *names]


@contextmanager
def expander(label: str) -> Iterator[bool]:
    """Yields whether the expander is open; draw its widgets only then."""
    expander = st.expander(label, key=f"{label} open", on_change="rerun")
    with expander:
        yield bool(expander.open)

"""The start page: one setup, its verdict, its bars, and what its users ask next.

A number that is moved runs the fragments again and no other widget: most of the time is the browser's.
"""

from collections.abc import Sequence

import streamlit as st

from dashboard import (
    actions,
    controls,
    drawing,
    explore,
    figures,
    kept,
    models,
    more,
    navigation,
    theme,
    wording,
)
from estimator import kin


@st.fragment(key=controls.VERDICT)
def verdict() -> None:
    """What was not sound, and whether it fits."""
    kept.note(controls.reading())
    navigation.draw(navigation.ESTIMATE.path)
    for problem in controls.reading().problems:
        st.warning(wording.plain(problem), icon=":material/link_off:")
    answer = controls.answer()
    if isinstance(answer, str):
        st.error(wording.plain(answer), icon=":material/block:")
        return
    st.html(wording.verdict_html(answer, kin(answer)))


@st.fragment(key=controls.CARDS)
def cards() -> None:
    """The three methods, one click away."""
    controls.let_figure_draw()
    answer = controls.answer()
    if isinstance(answer, str):
        return
    proposals = []
    for method, other in controls.methods(answer).items():
        place = explore.smallest_place(other)
        together = {} if isinstance(place, str) else place.keys
        proposals.append(
            actions.Proposal(
                method,
                wording.card_html(method, other, place),
                {**controls.method_keys(other), **together},
                wording.METHODS[method],
            )
        )
    actions.cards("methods", "Open", proposals)


@st.fragment(key=controls.BARS)
def bars(shown: Sequence[str]) -> None:
    """The hero figure."""
    answer = controls.answer()
    if isinstance(answer, str):
        return
    methods = controls.methods(answer)
    figure = figures.hero(answer, methods, shown, dark=controls.is_dark())
    if kept.document().present is not None:
        figure = figures.enlarged(figure)
    drawing.plot(figure, "hero", figures.hero_alt(answer, methods))


@st.fragment(key=controls.MORE)
def below() -> None:
    """What to change, and one of the sections."""
    answer = controls.answer()
    if isinstance(answer, str):
        return
    more.what_if(answer)
    more.remedies(answer)
    more.section(answer)


controls.open_address()
controls.draw()
models.status()
verdict()
cards()
bars(
    st.pills(
        "Parts of the bars",
        figures.SWITCHES,
        selection_mode="multi",
        default=figures.SWITCHES,
        key="shown",
        label_visibility="collapsed",
    )
)
if kept.document().present is not None:
    st.html(theme.PRESENTATION)
    kept.say_problems()
    kept.leave_button()
else:
    kept.draw(controls.answer)
    below()

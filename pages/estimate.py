"""The start page: one setup, its verdict, its bars, and what its users ask next.

A number that is moved runs the fragments again and no other widget: most of the time is the browser's.
"""

from collections.abc import Sequence

import streamlit as st

from dashboard import theme
from dashboard.estimate import alternatives, sections
from dashboard.figures import memory_bars
from dashboard.site import navigation
from dashboard.state import actions, comparison
from dashboard.widgets import controls, drawing, model_box
from dashboard.words import wording
from estimator import kin


@st.fragment(key=controls.VERDICT)
def verdict() -> None:
    """What was not sound, and whether it fits."""
    comparison.note(controls.reading())
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
        place = alternatives.smallest_place(other)
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
    figure = memory_bars.hero(answer, methods, shown, dark=controls.is_dark())
    if comparison.document().present is not None:
        figure = memory_bars.enlarged(figure)
    drawing.plot(figure, "hero", memory_bars.hero_alt(answer, methods))


@st.fragment(key=controls.MORE)
def below() -> None:
    """What to change, and one of the sections."""
    answer = controls.answer()
    if isinstance(answer, str):
        return
    sections.what_if(answer)
    sections.remedies(answer)
    sections.section(answer)


controls.open_address()
controls.draw()
model_box.status()
verdict()
cards()
bars(
    st.pills(
        "Parts of the bars",
        memory_bars.SWITCHES,
        selection_mode="multi",
        default=memory_bars.SWITCHES,
        key="shown",
        label_visibility="collapsed",
    )
)
if comparison.document().present is not None:
    st.html(theme.PRESENTATION)
    comparison.say_problems()
    comparison.leave_button()
else:
    comparison.draw(controls.answer)
    below()

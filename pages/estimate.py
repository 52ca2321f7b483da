"""The start page: one setup, its verdict, its bars, and the sections below.

Moving a number reruns the fragments and no other widget: most of the time is the browser's.
"""

from functools import partial

import streamlit as st

from dashboard import theme
from dashboard.estimate import (
    at_a_glance,
    method_cards,
    own_error,
    rehearsed,
    sections,
    start,
    verdict_panel,
    your_config,
)
from dashboard.figures import share_card
from dashboard.site import navigation
from dashboard.state import actions, comparison, opening, question
from dashboard.widgets import (
    batch_sliders,
    drawing,
    keeping,
    lower_half,
    model_box,
    proposal_cards,
    rerun,
    sidebar,
    slider_rows,
)
from dashboard.words import marks, markup


@st.fragment(key=rerun.VERDICT)
def verdict() -> None:
    """What was invalid in the address, and the verdict."""
    now = question.reading()
    comparison.note(now)
    navigation.draw(navigation.ESTIMATE.path)
    answer = question.answer(now)
    for problem in now.problems:
        if not isinstance(answer, str) or problem not in answer:
            st.warning(markup.plain(problem), icon=":material/link_off:")
    keeping.follow(answer)
    if isinstance(answer, str):
        st.error(markup.plain(answer), icon=":material/block:")
        if not isinstance(question.answer_with(question.MEND), str):
            said = "Save the model alone (save_only_model)"
            st.button(said, on_click=actions.take, args=(question.MEND,), key="mend")
        st.html(verdict_panel.refused_html())
        return
    proposal_cards.propose("offer", {"bfloat16": verdict_panel.OFFERED})
    st.html(at_a_glance.verdict_html(answer))
    rehearsed.draw(answer)
    own_error.draw(answer)
    start.draw(answer)


@st.fragment(key=rerun.BARS)
def bars(look: at_a_glance.GlanceOptions) -> None:
    """The hero figure, and the note under the sliders."""
    answer = question.answer()
    if not isinstance(answer, str):
        of = marks.mark(answer.model, answer.gpu, answer.setup)
        seen = at_a_glance.figure(answer, look)
        follows = {"bases": slider_rows.bases(look), "at": slider_rows.positions()}
        drawing.plot(seen.figure, "hero", seen.alt, follows=follows, of=of)
    batch_sliders.draw_note(answer)


@st.fragment(key=rerun.METHODS)
def methods(look: at_a_glance.GlanceOptions) -> None:
    """The three methods at their peak, and one click away; and where an evaluation sets the sliders' limits."""
    lower_half.listen_for_methods()
    answer = question.answer()
    if not isinstance(answer, str):
        of = marks.mark(answer.model, answer.gpu, answer.setup)
        seen = at_a_glance.methods_figure(answer, look)
        drawing.plot(seen.figure, "method-peaks", seen.alt, of=of, legend="hero")
        cards = [
            proposal_cards.Proposal(card.method, card.html, card.keys, card.method.label)
            for card in method_cards.cards(answer)
        ]
        st.html(proposal_cards.cards_html("methods", "Open", cards, of))
    batch_sliders.draw_evaluation_limits()
    st.html(lower_half.mark("compared"))


@st.fragment(key=rerun.ROW)
def row(look: at_a_glance.GlanceOptions) -> None:
    """What verdict and figure are at each step of a slider."""
    slider_rows.draw(partial(at_a_glance.document, look=look), look)


@st.fragment(key=rerun.EDGE)
def edge(look: at_a_glance.GlanceOptions) -> None:
    """How far the setup goes, and how far each change takes it."""
    lower_half.listen_for_rulers()
    answer = question.answer()
    if not isinstance(answer, str):
        sections.draw_rulers(answer, look)
    st.html(lower_half.mark("ruled"))


@st.fragment(key=rerun.BELOW)
def below() -> None:
    """Memory through the run, what to change, and one of the sections."""
    lower_half.listen()
    answer = question.answer()
    if not isinstance(answer, str):
        sections.draw_run(answer)
        sections.draw_what_if(answer)
        sections.draw_remedies(answer)
        sections.draw(answer)
    st.html(lower_half.mark("drawn"))  # last: until then the browser dims what is not all drawn


opening.open_address()
proposal_cards.follow()
sidebar.draw()
if not isinstance(now := question.answer(), str):
    st.set_page_config(page_title=f"{share_card.subject(now)} · Headroom")
model_box.status()
verdict()
your_config.draw()
look = at_a_glance.GlanceOptions(
    dark=drawing.is_dark(),
    large=comparison.document().present is not None,
)
rulers = st.container(key="edge")
bars(look)
with st.container(key="methods"):
    methods(look)
row(look)
if comparison.document().present is not None:
    st.html(theme.PRESENTATION)
    keeping.say_problems()
    keeping.leave_button()
else:
    keeping.draw(question.answer)
    with rulers:
        edge(look)
    with st.container(key="below"):
        below()
proposal_cards.listen()

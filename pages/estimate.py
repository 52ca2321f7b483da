"""The start page: one setup, its verdict, its bars, its ledger.

A number that is moved runs the two fragments again and no widget: most of the time is the browser's.
"""

from collections.abc import Sequence

import streamlit as st

from dashboard import controls, drawing, figures, wording


@st.fragment(key=controls.VERDICT)
def verdict() -> None:
    """What was not sound, whether it fits, and the other methods one click away."""
    for problem in controls.reading().problems:
        st.warning(problem, icon=":material/link_off:")
    answer = controls.answer()
    if isinstance(answer, str):
        st.error(answer, icon=":material/block:")
        return
    st.html(wording.verdict_html(answer))
    with st.container(horizontal=True, key="methods", gap="small"):
        for method, other in controls.methods(answer).items():
            label = wording.proposal(other, wording.METHODS[method])
            controls.opener(label, method, {"method": method})


@st.fragment(key=controls.BARS)
def bars(shown: Sequence[str]) -> None:
    """The hero figure, and under it what it is made of."""
    answer = controls.answer()
    if isinstance(answer, str):
        return
    methods = controls.methods(answer)
    dark = st.context.theme.type == "dark"
    st.plotly_chart(
        drawing.Drawn(figures.hero(answer, methods, shown, dark=dark)),
        key="hero",
        config={"displayModeBar": False},
        alt=figures.hero_alt(answer, methods),
    )
    if controls.is_what_if(answer):
        st.html(wording.WHAT_IF_HTML)
        with st.container(horizontal=True, key="neighbours", gap="small"):
            for name, keys in controls.REAL_NEIGHBOURS.items():
                if neighbour := controls.changed(answer, keys):
                    controls.opener(wording.proposal(neighbour, name), name, keys)
    st.html(wording.details_html(answer))


verdict()
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

"""The start page: one setup, its verdict, its bars, its ledger."""

from collections.abc import Sequence

import streamlit as st

from dashboard import controls, figures, wording
from estimator import Estimate, estimate


def answer() -> Estimate | None:
    """The estimate of what the controls say; None where that is refused."""
    reading = controls.reading()
    if reading.model is None:
        return None
    try:
        return estimate(reading.model, reading.gpu, reading.setup)
    except ValueError:
        return None


@st.fragment(key=controls.VERDICT)
def verdict() -> None:
    """What was not sound, whether it fits, and the other methods one click away."""
    for problem in controls.problems():
        st.warning(problem, icon=":material/link_off:")
    now = answer()
    if now is None:
        return
    st.html(wording.verdict_html(now))
    with st.container(horizontal=True, key="methods", gap="small"):
        for method, other in controls.methods(now).items():
            controls.opener(wording.proposal(other, wording.METHODS[method]), {"method": method})


@st.fragment(key=controls.BARS)
def bars(shown: Sequence[str]) -> None:
    """The hero figure, and under it what it is made of."""
    now = answer()
    if now is None:
        return
    methods = controls.methods(now)
    st.plotly_chart(
        figures.hero(now, methods, shown, dark=st.context.theme.type == "dark"),
        key="hero",
        config={"displayModeBar": False},
        alt=figures.hero_alt(now, methods),
    )
    if controls.is_what_if(now):
        st.html(wording.WHAT_IF_HTML)
        with st.container(horizontal=True, key="neighbours", gap="small"):
            for name, keys in controls.REAL_NEIGHBOURS.items():
                if neighbour := controls.changed(now, keys):
                    controls.opener(wording.proposal(neighbour, name), keys)
    st.html(wording.details_html(now))


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

"""The start page: one setup, its verdict, its bars, its ledger."""

import streamlit as st

from dashboard import controls, figures, wording
from estimator import estimate

reading = controls.reading()
for problem in reading.problems:
    st.warning(problem, icon=":material/link_off:")
if reading.model is None:
    st.stop()
try:
    answer = estimate(reading.model, reading.gpu, reading.setup)
except ValueError as refusal:
    st.error(str(refusal), icon=":material/block:")
    st.stop()
methods = controls.methods(answer)

st.html(wording.verdict_html(answer))
with st.container(horizontal=True, key="methods", gap="small"):
    for method, other in methods.items():
        st.button(
            wording.proposal(other, wording.METHODS[method]),
            key=f"open {method}",
            on_click=controls.apply,
            args=({"method": method},),
            disabled=method is answer.setup.method,
            help="Opens this method; everything else stays.",
        )

shown = st.pills(
    "Parts of the bars",
    figures.SWITCHES,
    selection_mode="multi",
    default=figures.SWITCHES,
    key="shown",
    label_visibility="collapsed",
)
st.plotly_chart(
    figures.Drawn(figures.hero(answer, methods, shown, dark=st.context.theme.type == "dark")),
    key="hero",
    config={"displayModeBar": False},
    alt=figures.hero_alt(answer, methods),
)

if controls.is_what_if(answer):
    st.html(wording.WHAT_IF_HTML)
    with st.container(horizontal=True, key="neighbours", gap="small"):
        for name, keys in controls.REAL_NEIGHBOURS.items():
            if neighbour := controls.changed(answer, keys):
                label = wording.proposal(neighbour, name)
                st.button(label, key=f"open {name}", on_click=controls.apply, args=(keys,))

st.html(wording.ledger_html(answer))
st.html(wording.rule_of_thumb_html(answer))
st.html(wording.assumptions_html(answer))

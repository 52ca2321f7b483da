"""The start page: one setup, its verdict, its bars, its ledger."""

import streamlit as st

from dashboard import controls, figures, wording

reading = controls.reading()
for problem in reading.problems:
    st.warning(problem, icon=":material/link_off:")
try:
    estimate = controls.estimated(reading.model, reading.gpu, reading.setup)
except ValueError as refusal:
    st.error(str(refusal), icon=":material/block:")
    st.stop()
methods = controls.methods(estimate)

st.html(wording.verdict_html(estimate))
shown = st.pills(
    "Parts of the bars",
    figures.SWITCHES,
    selection_mode="multi",
    default=figures.SWITCHES,
    key="shown",
    label_visibility="collapsed",
)
st.plotly_chart(
    figures.hero(estimate, methods, shown),
    key="hero",
    config={"displayModeBar": False},
    alt=figures.hero_alt(estimate, methods),
)

st.html(wording.ledger_html(estimate))
if controls.is_what_if(estimate):
    st.markdown(wording.WHAT_IF)
    for name, keys in controls.REAL_NEIGHBOURS.items():
        if neighbour := controls.changed(estimate, keys):
            said, opened = st.columns([5, 1], vertical_alignment="center")
            said.markdown(wording.neighbour(neighbour, name))
            opened.button("Open", key=f"open {name}", on_click=controls.apply, args=(keys,))
st.markdown(wording.rule_of_thumb(estimate))
for assumption in estimate.assumptions:
    st.caption(assumption)

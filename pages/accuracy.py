"""Accuracy: every measured run beside its estimate."""

import pandas as pd
import streamlit as st

from dashboard import drawing, proof
from dashboard.controls import is_dark
from estimator import measured_peaks

st.title("Accuracy")
peaks = measured_peaks()
st.html(proof.summary_html(peaks))
st.plotly_chart(
    drawing.Drawn(proof.figure(peaks, dark=is_dark())),
    key="proof",
    config={"displayModeBar": False},
    alt=proof.figure_alt(peaks),
)
st.subheader("Every estimated run, worst first", anchor=False)
gib = st.column_config.NumberColumn(format="%.2f GiB")
st.dataframe(
    pd.DataFrame([proof.row(peak) for peak in proof.worst_first(peaks)]),
    hide_index=True,
    column_config={
        "Measured": gib,
        "Estimated": gib,
        "Open": st.column_config.LinkColumn(display_text="open the setup"),
        "Source": st.column_config.LinkColumn(display_text="source"),
    },
    alt="Measured runs with their estimates and errors, worst first",
)
st.subheader("Measured, but not modelled yet", anchor=False)
st.dataframe(
    pd.DataFrame([proof.refused_row(peak) for peak in peaks if peak.estimate is None]),
    hide_index=True,
    column_config={"Measured": gib, "Source": st.column_config.LinkColumn(display_text="source")},
    alt="Measured runs of setups that the estimator refuses, with its reason",
)

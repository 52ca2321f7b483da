"""A minimal page with one slider and one stacked bar: the floor of bench_slider.py."""

from __future__ import annotations

import streamlit as st

st.set_page_config(page_title="floor", layout="wide")
batch = st.slider("Micro-batch", 1, 200, 8, key="batch")
PARTS = ("weights", "gradients", "optimizer", "activations", "other")
traces = [
    {
        "type": "bar",
        "orientation": "h",
        "name": part,
        "y": ["GPU"],
        "x": [4 + 1.5 * index + (0.35 * batch if part == "activations" else 0)],
    }
    for index, part in enumerate(PARTS)
]
layout = {"barmode": "stack", "height": 260, "xaxis": {"range": [0, 160]}}
st.plotly_chart({"data": traces, "layout": layout}, key="chart")
st.write(f"batch {batch}")

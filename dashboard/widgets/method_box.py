"""The box for precision, behind the method: two keys under one name."""

from __future__ import annotations

import streamlit as st

from dashboard.state import question, session
from dashboard.widgets import boxes
from dashboard.words import terms


def _apply_precision() -> None:
    pair = terms.PRECISIONS.get(st.session_state["precision"])
    if pair:
        session.put({"dtype": pair[0], "mixed_precision": pair[1]})


def _precision() -> None:
    """Dtype and autocast by the name of the pair."""
    names = list(terms.PRECISIONS)
    current = terms.precision(question.reading().setup)
    st.session_state["precision"] = current
    st.selectbox(
        "Precision",
        names if current in names else [*names, current],
        key="precision",
        on_change=_apply_precision,
        help="What weights are loaded in, and whether Trainer's autocast (bf16=True) computes in 16 bits. "
        "Most guides: bfloat16 with autocast.",
    )


UNUSUAL = {"method": boxes.Unusual(then=_precision)}

"""Method, precision and optimizer."""

from __future__ import annotations

import streamlit as st

from dashboard.state import session
from dashboard.widgets import boxes
from dashboard.words import terms
from estimator import Method, Optimizer, TrainingSetup


def _apply_precision() -> None:
    pair = terms.PRECISIONS.get(st.session_state["precision"])
    if pair:
        session.put({"dtype": pair[0], "mixed_precision": pair[1]})


def draw(setup: TrainingSetup) -> None:
    """The three boxes."""
    st.segmented_control(
        "Method",
        boxes.texts_of(Method),
        default=str(session.DEFAULT.method),
        key="method",
        help="full trains every weight; lora small adapters; qlora does so beside a 4-bit base. Our default: full.",
        required=True,
        bind="query-params",
        width="stretch",
    )
    names = list(terms.PRECISIONS)
    current = terms.precision(setup)
    st.session_state["precision"] = current
    st.selectbox(
        "Precision",
        names if current in names else [*names, current],
        key="precision",
        on_change=_apply_precision,
        help="What weights are loaded in, and whether Trainer's autocast (bf16=True) computes in 16 bits. "
        "Most guides: bfloat16 with autocast.",
    )
    st.selectbox(
        "Optimizer",
        boxes.texts_of(Optimizer),
        index=boxes.texts_of(Optimizer).index(session.DEFAULT.optim),
        key="optim",
        bind="query-params",
        help="Trainer's optim, by its own names. Trainer's default: adamw_torch_fused.",
    )

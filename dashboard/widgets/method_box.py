"""The precision box, which sets two keys, and the condition for showing the model class."""

from __future__ import annotations

import streamlit as st

from dashboard.state import question, session
from dashboard.widgets import boxes
from dashboard.words import terms
from estimator import MixedPrecision, TrainingSetup


def _apply_precision() -> None:
    pair = terms.PRECISIONS.get(st.session_state["precision"])
    if pair:
        session.put({"dtype": pair[0], "mixed_precision": pair[1]})


def _precision() -> None:
    """Sets dtype and autocast together, by the pair's name."""
    names = list(terms.PRECISIONS)
    current = terms.precision(question.reading().setup)
    st.session_state["precision"] = current
    st.selectbox(
        "Precision",
        names if current in names else [*names, current],
        key="precision",
        on_change=_apply_precision,
        help="The dtype the weights are loaded in, and whether Trainer's autocast (bf16=True) computes in 16 bits, "
        "or accelerate's fp8 in 8. Most guides use bfloat16 with autocast.",
    )


def _has_towers(_: TrainingSetup) -> bool:
    """Whether the checkpoint is multimodal: then two classes can load it."""
    model = question.reading().model
    return model is not None and (model.towers is not None or model.vision is not None)


def _multiplies_in_fp8(setup: TrainingSetup) -> bool:
    return setup.precision.mixed_precision is MixedPrecision.FP8


UNUSUAL = {
    "fp8_backend": boxes.Unusual(where=_multiplies_in_fp8),
    "fp8_pad_inner_dim": boxes.Unusual(where=_multiplies_in_fp8),
    "method": boxes.Unusual(then=_precision),
    "model_class": boxes.Unusual(where=_has_towers),
}

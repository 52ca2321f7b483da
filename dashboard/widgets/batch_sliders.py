"""Micro-batch, accumulation and context, with how far each can go."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from dashboard.state import question, session
from dashboard.widgets import boxes, rerun
from dashboard.words import slider_limits
from estimator import (
    AttnImplementation,
    Gpu,
    Model,
    TrainingSetup,
    contract,
    evaluation_stops,
    largest_micro_batch,
    longest_context,
)


@st.fragment(key=rerun.BATCH)
def _effective_batch() -> None:
    now = question.reading()
    key = "per_device_train_batch_size"
    limit = _limit(now, key, largest_micro_batch, slider_limits.batch_limit)
    st.html(f'<p class="hr-limit">{limit}{slider_limits.effective_batch(now.setup)}</p>')


@st.fragment(key=rerun.CONTEXT)
def _longest_context() -> None:
    now = question.reading()
    limit = _limit(now, "max_length", longest_context, slider_limits.context_limit)
    st.html(f'<p class="hr-limit">{limit}</p>')


def _limit(
    now: contract.Reading,
    key: str,
    search: Callable[[Model, Gpu, TrainingSetup], int],
    say: Callable[[int, bool, Model, TrainingSetup], str],
) -> str:
    """How far one slider can go, in words; nothing without a GPU, or where the setup cannot be trained at all."""
    if now.model is None or now.gpu is None:
        return ""
    try:
        limit = search(now.model, now.gpu, now.setup)
        evaluating = evaluation_stops(now.model, now.gpu, now.setup, **{key: limit + 1})
        return say(limit, evaluating, now.model, now.setup)
    except ValueError:
        return ""


def draw() -> None:
    """The sliders, checkpointing and the attention kernel."""
    boxes.slider(
        "Micro-batch",
        "per_device_train_batch_size",
        "Examples that go through the model at once. Our default: 1 (Trainer's is 8).",
    )
    boxes.slider(
        "Accumulation",
        "gradient_accumulation_steps",
        "Micro-batches whose gradients are added before a step. Trainer's default: 1.",
    )
    _effective_batch()
    boxes.slider(
        "Context",
        "max_length",
        "Tokens in each example, packed or padded to it. TRL's default: 1,024.",
    )
    _longest_context()
    st.toggle(
        "Gradient checkpointing",
        session.DEFAULT.gradient_checkpointing,
        key="gradient_checkpointing",
        help="Keep only each layer's input and compute the layer again in backward. Trainer's default: off; TRL's: on.",
        bind="query-params",
        on_change=rerun.redraw,
        args=(rerun.EXPANDERS,),
    )
    kernels = boxes.texts_of(AttnImplementation)
    st.selectbox(
        "Attention",
        kernels,
        index=kernels.index(session.DEFAULT.attn_implementation),
        key="attn_implementation",
        bind="query-params",
        help="The attention kernel; eager keeps the whole table of scores. Transformers' default: sdpa.",
    )

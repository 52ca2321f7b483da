"""The notes under the sliders for batch and context: the largest values that fit."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from dashboard.state import question, session
from dashboard.widgets import boxes, lower_half, rerun
from dashboard.words import slider_limits
from estimator import (
    Gpu,
    Model,
    TrainingSetup,
    contract,
    evaluation_stops,
    largest_micro_batch,
    longest_context,
    reach,
)

PLACE = "place of the limits"
"""In the session: the container below the sliders."""


def _keep_place() -> None:
    st.session_state[PLACE] = st.container()


def draw_limits() -> None:
    """Draws the notes below the sliders. Call in the fragment that follows when a slider rests."""
    now = question.reading()
    batch = _limit(
        now, "per_device_train_batch_size", largest_micro_batch, slider_limits.batch_limit
    )
    context = _limit(now, "max_length", longest_context, _context_limit(now.gpu))
    with st.session_state[PLACE]:
        st.html(
            f'<p class="hr-limit">{batch}{slider_limits.effective_batch(now.setup)}</p>'
            + f'<p class="hr-limit">{context}</p>' * bool(context)
            + lower_half.mark("now")
        )


def _limit(
    now: contract.Reading,
    key: str,
    search: Callable[[Model, Gpu, TrainingSetup], int],
    say: Callable[[int, bool, Model, TrainingSetup], str],
) -> str:
    """Text with one slider's limit; empty without a GPU or if the setup cannot be trained."""
    if now.model is None or now.gpu is None:
        return ""
    try:
        limit = search(now.model, now.gpu, now.setup)
        evaluating = evaluation_stops(now.model, now.gpu, now.setup, **{key: limit + 1})
        return say(limit, evaluating, now.model, now.setup)
    except ValueError:
        return ""


def _context_limit(gpu: Gpu | None) -> Callable[[int, bool, Model, TrainingSetup], str]:
    """Wording of the context's limit, and of the limit after lossless changes."""

    def say(limit: int, evaluating: bool, model: Model, setup: TrainingSetup) -> str:
        said = slider_limits.context_limit(limit, evaluating, model, setup)
        return (
            said if gpu is None else said + slider_limits.further(limit, reach(model, gpu, setup))
        )

    return say


def _take_compile() -> None:
    """Turns compilation on or off; a mode that stayed would turn it on again."""
    on = st.session_state["torch_compile box"]
    session.put({"torch_compile": on} | ({} if on else {"torch_compile_mode": None}))
    rerun.redraw(rerun.EXPANDERS)


UNUSUAL = {
    "max_length": boxes.Unusual(then=_keep_place),
    "use_reentrant": boxes.Unusual(where=lambda setup: setup.gradient_checkpointing),
    "torch_compile": boxes.Unusual(take=_take_compile),
    "torch_compile_mode": boxes.Unusual(where=lambda setup: setup.torch_compile),
}

"""The notes under the sliders for batch and context: the effective batch, and where evaluation sets a limit."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from dashboard.state import question, session
from dashboard.widgets import boxes, lower_half, rerun
from dashboard.words import slider_limits
from estimator import (
    Estimate,
    Gpu,
    Model,
    TrainingSetup,
    contract,
    evaluation_stops,
    largest_micro_batch,
    longest_context,
)

PLACE = "place of the limits"
"""In the session: the container below the sliders."""


def _keep_place() -> None:
    st.session_state[PLACE] = st.container()


def draw_note(answer: Estimate | str) -> None:
    """Draws the effective batch below the sliders, with the mark of the setup that the top shows."""
    notes = [] if isinstance(answer, str) else [slider_limits.effective_batch(answer.setup)]
    _draw(notes, lower_half.mark("now"))


def draw_evaluation_limits() -> None:
    """Draws where evaluation sets a slider's limit. Call in a fragment that follows at a pause: these are searched."""
    now = question.reading()
    notes: list[str] = []
    if now.setup.run.eval_strategy != "no":
        notes += filter(None, (_evaluation_limit(now, key, of) for key, of in _LIMITS.items()))
    _draw(notes, lower_half.mark("limits-of"))


def _draw(notes: list[str], mark: str) -> None:
    said = "".join(f'<p class="hr-limit">{note}</p>' for note in notes)
    with st.session_state[PLACE]:
        st.html(f'<div class="hr-limits">{said}{mark}</div>')


_LIMITS = {
    "per_device_train_batch_size": largest_micro_batch,
    "max_length": longest_context,
}
"""How far each slider can go."""


def _evaluation_limit(
    now: contract.Reading, key: str, search: Callable[[Model, Gpu, TrainingSetup], int]
) -> str:
    """Text where evaluation sets a slider's limit; empty without a GPU or if the setup cannot be trained."""
    if now.model is None or now.gpu is None:
        return ""
    try:
        limit = search(now.model, now.gpu, now.setup)
        if evaluation_stops(now.model, now.gpu, now.setup, **{key: limit + 1}):
            return slider_limits.evaluation_limit(key, limit, now.setup)
    except ValueError:
        pass
    return ""


def _take_compile() -> None:
    """Turns compilation on or off; a mode that stayed would turn it on again."""
    on = session.chosen("torch_compile")
    session.put({"torch_compile": on} | ({} if on else {"torch_compile_mode": None}))
    rerun.redraw(rerun.EXPANDERS)


UNUSUAL = {
    "max_length": boxes.Unusual(then=_keep_place),
    "use_reentrant": boxes.Unusual(where=lambda setup: setup.computation.gradient_checkpointing),
    "torch_compile": boxes.Unusual(take=_take_compile),
    "torch_compile_mode": boxes.Unusual(where=lambda setup: setup.computation.torch_compile),
}

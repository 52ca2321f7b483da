"""The LoRA expander: rank, targets, dropout, modules trained in full."""

from __future__ import annotations

from typing import cast

import streamlit as st

from dashboard.state import question, session
from dashboard.widgets import boxes, rerun
from estimator import ALL_LINEAR, contract, linear_names, outer_names

EVERY, ATTENTION, CUSTOM = "all linear", "attention", "custom"
"""Presets of the linear layers that get an adapter."""


def _apply_targets(linears: tuple[str, ...], attention: tuple[str, ...]) -> None:
    chosen = {EVERY: ALL_LINEAR, ATTENTION: attention, CUSTOM: linears}
    session.put({"lora_target_modules": chosen[st.session_state["adapter_choice"]]})
    rerun.redraw(rerun.EXPANDERS)


def _take_modules() -> None:
    chosen = tuple(st.session_state["lora_target_modules box"])
    session.put({"lora_target_modules": ALL_LINEAR if chosen in ((), (ALL_LINEAR,)) else chosen})
    rerun.redraw(rerun.EXPANDERS)


def _targets() -> tuple[list[str], tuple[str, ...], tuple[str, ...]]:
    """Names of the adapted modules, of all linears, and of the attention's linears."""
    now = question.reading()
    linears, attention = linear_names(now.model) if now.model else ((), ())
    targets = session.value("lora_target_modules")
    if targets == ALL_LINEAR and now.setup.adapters.uses_adapters:
        targets = (
            now.setup.adapters.lora_target_modules
        )  # may be PEFT's default targets for this model
    chosen = [targets] if isinstance(targets, str) else list(cast("tuple[str, ...]", targets))
    return chosen, linears, attention


def _modules(key: contract.Key) -> None:
    """Widgets for the linears that get an adapter: a preset, and names."""
    chosen, linears, attention = _targets()
    st.session_state[f"{key.name} box"] = chosen
    st.session_state["adapter_choice"] = (
        EVERY
        if chosen == [ALL_LINEAR]
        else ATTENTION
        if sorted(chosen) == sorted(attention)
        else CUSTOM
    )
    st.segmented_control(
        "Adapters on",
        (EVERY, ATTENTION, CUSTOM),
        key="adapter_choice",
        required=True,
        on_change=_apply_targets,
        args=(linears, attention),
        width="stretch",
        help="The linear layers that get an adapter. Our default: all-linear, as in the QLoRA paper.",
    )
    of = boxes.shape(key)
    st.multiselect(
        of.label,
        [ALL_LINEAR, *linears],
        key=f"{key.name} box",
        on_change=_take_modules,
        accept_new_options=True,
        select_all=False,  # which Enter would take before the first match
        help=key.sentences,
    )


def _trained_whole(key: contract.Key) -> None:
    """Offers the head and the embedding, the modules usually trained in full."""
    model = question.reading().model
    st.session_state[f"{key.name} box"] = list(
        cast("tuple[str, ...]", session.value(key.name) or ())
    )
    of = boxes.shape(key)
    st.multiselect(
        of.label,
        outer_names(model) if model else (),
        key=f"{key.name} box",
        on_change=_take_whole,
        accept_new_options=True,
        select_all=False,  # which Enter would take before the first match
        placeholder="None",
        help=key.sentences,
    )


def _take_whole() -> None:
    session.put({"modules_to_save": tuple(st.session_state["modules_to_save box"]) or None})
    rerun.redraw()


def _left_out(key: contract.Key) -> None:
    model = question.reading().model
    st.session_state[f"{key.name} box"] = list(
        cast("tuple[str, ...]", session.value(key.name) or ())
    )
    of = boxes.shape(key)
    st.multiselect(
        of.label,
        linear_names(model)[0] if model else (),
        key=f"{key.name} box",
        on_change=_leave_out,
        accept_new_options=True,
        select_all=False,  # which Enter would take before the first match
        placeholder="None",
        help=key.sentences,
    )


def _leave_out() -> None:
    session.put({"exclude_modules": tuple(st.session_state["exclude_modules box"]) or None})
    rerun.redraw()


UNUSUAL = {
    "lora_target_modules": boxes.Unusual(draw=_modules),
    "modules_to_save": boxes.Unusual(draw=_trained_whole),
    "exclude_modules": boxes.Unusual(draw=_left_out),
}

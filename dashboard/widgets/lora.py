"""The expander for LoRA: rank, targets, dropout, modules that are trained whole."""

from __future__ import annotations

from typing import cast

import streamlit as st

from dashboard.state import question, session
from dashboard.widgets import boxes, rerun
from estimator import ALL_LINEAR, Model, linear_names, outer_names

LORA = "LoRA"
EVERY, ATTENTION, CUSTOM = "all linear", "attention", "custom"
"""Which linear layers get an adapter, by name."""


def _apply_targets(linears: tuple[str, ...], attention: tuple[str, ...]) -> None:
    chosen = {EVERY: ALL_LINEAR, ATTENTION: attention, CUSTOM: linears}
    session.put({"lora_target_modules": chosen[st.session_state["adapter_choice"]]})
    rerun.redraw(rerun.EXPANDERS)


def _take_modules() -> None:
    chosen = tuple(st.session_state["lora_target_modules box"])
    session.put({"lora_target_modules": ALL_LINEAR if chosen in ((), (ALL_LINEAR,)) else chosen})
    rerun.redraw(rerun.EXPANDERS)


def draw() -> None:
    """The expander."""
    with boxes.expander(LORA) as opened:
        if not opened:
            return
        st.caption("For LoRA and QLoRA; full fine-tuning has no adapters.")
        model = question.reading().model
        linears, attention = linear_names(model) if model else ((), ())
        targets = session.value("lora_target_modules")
        if targets == ALL_LINEAR and question.reading().setup.uses_adapters:
            targets = (
                question.reading().setup.lora_target_modules
            )  # which may be what PEFT takes instead
        chosen = [targets] if isinstance(targets, str) else list(cast("tuple[str, ...]", targets))
        st.session_state["lora_target_modules box"] = chosen
        st.session_state["adapter_choice"] = (
            EVERY
            if chosen == [ALL_LINEAR]
            else ATTENTION
            if sorted(chosen) == sorted(attention)
            else CUSTOM
        )
        st.select_slider(
            "Rank",
            st.session_state["steps"]["lora_r"],
            help="Width of the adapters; their size grows in step with it. Our default: 16 (PEFT's is 8).",
            **boxes.box("lora_r"),
        )
        st.segmented_control(
            "Adapters on",
            (EVERY, ATTENTION, CUSTOM),
            key="adapter_choice",
            required=True,
            on_change=_apply_targets,
            args=(linears, attention),
            width="stretch",
            help="The linear layers that get an adapter. Our default: all-linear, as the QLoRA paper.",
        )
        st.multiselect(
            "Modules",
            [ALL_LINEAR, *linears],
            key="lora_target_modules box",
            on_change=_take_modules,
            accept_new_options=True,
            help="The same by name, as PEFT's target_modules. Our default: all-linear.",
        )
        st.number_input(
            "Dropout",
            0.0,
            0.95,
            step=0.05,
            help="Dropout before the adapters; any at all keeps one more tensor. TRL's default: 0.05.",
            **boxes.box("lora_dropout"),
        )
        st.toggle(
            "Adapters in float32",
            help="PEFT's default: on. TRL turns it off for QLoRA: adapters then have the base's dtype.",
            **boxes.box("autocast_adapter_dtype"),
        )
        st.toggle(
            "DoRA",
            help="Trains the length of a weight's columns apart; with dropout every adapted weight is kept once more. "
            "PEFT's default: off.",
            **boxes.box("use_dora"),
        )
        _trained_whole(model)


def _trained_whole(model: Model | None) -> None:
    """PEFT's modules_to_save: of what is offered, the head and the embedding are what people train."""
    st.session_state["modules_to_save box"] = list(
        cast("tuple[str, ...]", session.value("modules_to_save") or ())
    )
    st.multiselect(
        "Trained whole",
        outer_names(model) if model else (),
        key="modules_to_save box",
        on_change=_take_whole,
        accept_new_options=True,
        placeholder="None",
        help="PEFT's modules_to_save: of each a copy is trained beside the adapters, and the frozen original stays. "
        "PEFT's default: none.",
    )


def _take_whole() -> None:
    session.put({"modules_to_save": tuple(st.session_state["modules_to_save box"]) or None})
    rerun.redraw()

"""The config box next to the model box: drop or paste a config, or apply a tool's defaults."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard.state import configs
from estimator import TOOLS

POPOVER_PIXELS = 380
"""Width in pixels. Our choice: fits a phone."""


def draw() -> None:
    """Draws the box: a description, a text field, file upload, and tools' defaults."""
    with (
        st.popover("Your config", key="your config"),
        st.container(width=POPOVER_PIXELS),
    ):
        st.caption(
            "A script, a notebook, a launch command or a config of TRL, Trainer, axolotl, LLaMA-Factory, Unsloth, "
            "ms-swift, torchtune or verl, with accelerate's YAML and DeepSpeed's JSON if you have them, or an issue "
            "in which they stand; and PyTorch's out-of-memory message. Nothing is run."
        )
        st.text_area(
            "Paste it",
            key="run text",
            height=140,
            placeholder="accelerate launch --num_processes 4 train.py --bf16 …",
            persist_state="session",
        )
        st.button("Read this text", on_click=configs.take_pasted, key="take run", width="stretch")
        st.file_uploader(
            "Or drop the files of one run",
            accept_multiple_files=True,
            key="run files",
            max_upload_size=10,
            on_change=configs.take_dropped,
        )
        if said := configs.problem():
            st.html(
                f'<p class="hr-note hr-refusal" role="alert">{escape(said)} The page keeps what it had.</p>'
            )
        st.html('<p class="hr-note">Or use a tool\'s defaults for all other keys:</p>')
        with st.container(horizontal=True, key="defaults of", gap="xsmall"):
            for name, tool in TOOLS.items():
                st.button(
                    f"As {tool.label}",
                    on_click=configs.take_defaults_of,
                    args=(name,),
                    key=f"as {name}",
                )

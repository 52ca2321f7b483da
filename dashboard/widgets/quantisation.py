"""The expander for quantisation."""

from __future__ import annotations

import streamlit as st

from dashboard.widgets import boxes

QUANTISATION = "Quantisation"


def draw() -> None:
    """The expander."""
    with boxes.expander(QUANTISATION) as opened:
        if not opened:
            return
        st.caption("For QLoRA, whose base is in 4 bits.")
        st.segmented_control(
            "4-bit format",
            ["nf4", "fp4"],
            required=True,
            width="stretch",
            help="TRL's default: nf4. Equal in size.",
            **boxes.box("bnb_4bit_quant_type", "default"),
        )
        st.toggle(
            "Double quantisation",
            help="Quantise the scales as well: 0.4 bits a parameter less. Our default: on.",
            **boxes.box("bnb_4bit_use_double_quant"),
        )
        st.toggle(
            "Prepare for k-bit training",
            help="PEFT's helper: norms, embeddings and head go to float32. TRL's default: off.",
            **boxes.box("prepare_model_for_kbit_training"),
        )
        st.selectbox(
            "Packed weights pass for",
            help="bnb_4bit_quant_storage: FSDP and ZeRO-3 divide packed weights only where they pass for floats. "
            "bitsandbytes' default: uint8.",
            **boxes.choice("bnb_4bit_quant_storage", ("uint8", "bfloat16", "float16", "float32")),
        )
        st.toggle(
            "8-bit base (LoRA only)",
            help="LLM.int8: a byte a weight; its inputs stay through backward even under checkpointing. Default: off.",
            **boxes.box("load_in_8bit"),
        )

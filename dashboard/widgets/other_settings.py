"""The expander for everything else: optimizer states, kernels, loss, dtypes, the training loop."""

from __future__ import annotations

import streamlit as st

from dashboard.state import session
from dashboard.widgets import boxes
from estimator import Dtype, Loss, MixedPrecision

OTHERS = "More"


def draw() -> None:
    """The expander."""
    with boxes.expander(OTHERS) as opened:
        if not opened:
            return
        st.selectbox(
            "Optimizer states (what-if)",
            placeholder="As the optimizer keeps them",
            help="A what-if: hold the states in this dtype. Trainer's default: none, they follow the optimizer.",
            **boxes.choice("optim_state_dtype", boxes.texts_of((Dtype.FLOAT32, Dtype.BFLOAT16))),
        )
        st.toggle(
            "Liger kernels",
            help="Trainer's use_liger_kernel: fused norm, MLP, rotation and loss. Trainer's default: off.",
            **boxes.box("use_liger_kernel"),
        )
        st.selectbox(
            "Loss",
            placeholder="Liger's with its kernels, else standard",
            help="Whether the logits are ever held whole. Trainer's default: standard; with Liger's kernels, theirs.",
            **boxes.choice("loss", boxes.texts_of(Loss)),
        )
        st.segmented_control(
            "Weights",
            boxes.texts_of(Dtype),
            required=True,
            width="stretch",
            help="The dtype behind Precision. Default as in TRL's guides: bfloat16.",
            **boxes.box("dtype", "default"),
        )
        st.segmented_control(
            "Autocast",
            boxes.texts_of(MixedPrecision),
            required=True,
            width="stretch",
            help="Trainer's bf16 or fp16 behind Precision. Default as in TRL's guides: bf16.",
            **boxes.box("mixed_precision", "default"),
        )
        _loop()


def _loop() -> None:
    """How batches are made, and what the training loop does with gradients and outputs."""
    st.toggle(
        "Rows end in padding",
        help="padded: some rows of a batch are shorter, so that a mask is built. Our default: off, as with TRL's "
        "packing.",
        **boxes.box("padded"),
    )
    st.number_input(
        "Gradients clipped to a norm of",
        0.0,
        1_000_000.0,
        step=0.1,
        help="Trainer's max_grad_norm; 0 never clips, and takes no norm. Trainer's default: 1.",
        **boxes.box("max_grad_norm"),
    )
    if session.value("gradient_checkpointing"):
        st.toggle(
            "Reentrant checkpoints",
            help="use_reentrant of gradient_checkpointing_kwargs: the older way, which holds each block's input and "
            "output while it is replayed. Default of transformers 5: off.",
            **boxes.box_of_others("use_reentrant"),
        )
    st.toggle(
        "The loop holds the outputs",
        help="hold_outputs: a loop of your own that keeps the model's outputs, and so the logits, through backward. "
        "Default: off, as Trainer.",
        **boxes.box("hold_outputs"),
    )

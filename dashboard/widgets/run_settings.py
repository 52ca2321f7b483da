"""The expander for the run: examples, evaluation, checkpoints, price."""

from __future__ import annotations

import streamlit as st

from dashboard.widgets import boxes
from estimator import LARGEST, LOWEST_MFU

RUN = "Run: examples, price"


def draw() -> None:
    """What time and money depend on, and memory does not."""
    with boxes.expander(RUN) as opened:
        if not opened:
            return
        st.number_input(
            "Examples",
            1,
            10**12,
            step=1000,
            help="Examples in the training set. Our default: 10,000.",
            **boxes.box("num_train_examples"),
        )
        st.number_input(
            "Epochs",
            0.01,
            1_000_000.0,
            step=1.0,
            help="Passes over the examples. Our default: 1 (Trainer's is 3).",
            **boxes.box("num_train_epochs"),
        )
        st.number_input(
            "Mean tokens of an example",
            1,
            LARGEST["mean_tokens_per_example"],
            step=64,
            placeholder="As many as the context",
            help="The work is examples × their mean length; the memory follows the context. Our default: the context.",
            **boxes.box("mean_tokens_per_example"),
        )
        st.selectbox(
            "Evaluation",
            help="Trainer's eval_strategy: evaluating holds its own batch. Trainer's default: no.",
            **boxes.choice("eval_strategy", ("no", "steps", "epoch")),
        )
        st.number_input(
            "Examples in an evaluation batch",
            1,
            LARGEST["per_device_eval_batch_size"],
            step=1,
            help="Trainer's per_device_eval_batch_size. Trainer's default: 8.",
            **boxes.box("per_device_eval_batch_size"),
        )
        _checkpoints()
        st.number_input(
            "US dollars a GPU-hour",
            0.0,
            1_000_000.0,
            step=0.1,
            placeholder="The cheapest listing known",
            help="Your own price. Our default: the cheapest listing in data/prices.csv, named with its date.",
            **boxes.box("usd_per_gpu_hour"),
        )
        st.number_input(
            "Model FLOPs utilisation (0 to 1)",
            LOWEST_MFU,
            1.0,
            step=0.05,
            placeholder="The bracket of published runs",
            help="What you have measured of such a run; it narrows the bracket. Our default: published runs.",
            **boxes.box("mfu"),
        )


def _checkpoints() -> None:
    """When checkpoints are saved, how many stay, and what they hold."""
    st.selectbox(
        "Save",
        help="Trainer's save_strategy: every 500 steps, every epoch, or when the metric is best. Our default: epoch.",
        **boxes.choice("save_strategy", ("no", "steps", "epoch", "best")),
    )
    st.number_input(
        "Checkpoints kept",
        1,
        LARGEST["save_total_limit"],
        step=1,
        placeholder="All",
        help="Trainer's save_total_limit; the oldest goes when the next is written. Trainer's default: all stay.",
        **boxes.box("save_total_limit"),
    )
    st.toggle(
        "Weights only",
        help="Trainer's save_only_model: no optimizer states, so no run can go on from it. Trainer's default: off.",
        **boxes.box("save_only_model"),
    )

"""The expander for several GPUs: their number, the strategy, the network, offload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import streamlit as st

from dashboard.state import actions, question, session
from dashboard.widgets import boxes, rerun
from estimator import (
    FULL_STATE_DICT,
    LARGEST,
    NETWORK,
    OFFLOADS,
    RATE_SPAN,
    SHARDED_STATE_DICT,
    Offload,
    Strategy,
    TrainingSetup,
    resting_places,
    sharing,
)

GPUS = "Several GPUs"


def draw() -> None:
    """The expander."""
    with boxes.expander(GPUS) as opened:
        if not opened:
            return
        st.select_slider(
            "GPUs",
            st.session_state["steps"]["num_gpus"],
            help="GPUs that train one model together; the sizes shown are those of the fullest. Our default: 1.",
            **boxes.box("num_gpus") | {"on_change": _take_number, "args": ()},
        )
        st.selectbox(
            "Strategy",
            help="Who keeps what: ddp all on each; zero1, zero2, zero3 divide states, gradients, weights (DeepSpeed); "
            "fsdp divides all (accelerate's FSDP2), hsdp in groups; device_map puts layers on different GPUs, "
            "which work in turn. Default: none, one GPU.",
            **boxes.choice("strategy", boxes.texts_of(Strategy))
            | {"on_change": _take_strategy, "args": ()},
        )
        st.number_input(
            "GPUs in one machine",
            1,
            LARGEST["gpus_per_node"],
            step=1,
            help="Accelerators that share a machine's links. Our default: 8.",
            **boxes.box_of_others("gpus_per_node"),
        )
        _network()
        st.number_input(
            "Groups (hsdp)",
            1,
            LARGEST["dp_replicate_size"],
            step=1,
            help="accelerate's dp_replicate_size: groups that are replicas of each other. Default: 1.",
            **boxes.box("dp_replicate_size"),
        )
        _fsdp1()
        st.selectbox(
            "Checkpoints of FSDP",
            help="fsdp_state_dict_type: the whole model through rank 0, or each GPU its shards. Trainer's default: "
            "FULL_STATE_DICT; accelerate's launcher: SHARDED_STATE_DICT.",
            **boxes.choice("fsdp_state_dict_type", (FULL_STATE_DICT, SHARDED_STATE_DICT)),
        )
        st.toggle(
            "ZeRO-3 saves 16-bit weights",
            help="zero3_save_16bit_model: gathers the model to save it, beside DeepSpeed's parts. Default: off.",
            **boxes.box("zero3_save_16bit_model"),
        )
        _offload()


def _network() -> None:
    """What machines send each other, where the job has several."""
    now = question.reading()
    if now.gpu is None or now.setup.num_gpus <= now.setup.gpus_per_node:
        return
    low, high = RATE_SPAN
    st.session_state["network box"] = now.gpu.network_gb_per_s
    st.number_input(
        "Network of a machine (GB/s)",
        low,
        high,
        None,
        1.0,
        key="network box",
        on_change=_take_network,
        placeholder="As rented",
        help="network_gb_per_s of your GPU: what one machine sends to the others, one direction; 100 Gb/s Ethernet is "
        "12.5. Our default: the slowest and the fastest network of data/machines.csv.",
    )


def _take_network() -> None:
    """The network is a figure of the card's, so that the card is one's own from now on; without it, it is not."""
    fact = question.as_fact(session.value("gpu"))
    card = {"like": fact} if isinstance(fact, str) else dict(cast("Mapping[str, object]", fact))
    card.pop(NETWORK, None)
    if (chosen := st.session_state["network box"]) is not None:
        card[NETWORK] = chosen
    option = question.as_option(card["like"] if card.keys() == {"like"} else card)
    st.session_state["own"]["gpu"] = option
    actions.take({"gpu": option})


def _fsdp1() -> None:
    """Which FSDP, where it is one; and where the older one's checkpoints lie."""
    setup = question.reading().setup
    if not setup.strategy.is_fsdp:
        return
    st.segmented_control(
        "FSDP",
        (1, 2),
        required=True,
        width="stretch",
        help="fsdp_version: 2 divides each parameter; 1, torch's FullyShardedDataParallel, flattens those of a layer "
        "into one. Default of accelerate's launcher: 1; ours: 2.",
        **boxes.box("fsdp_version", "default") | {"on_change": _take_fsdp_version, "args": ()},
    )
    if setup.uses_fsdp1 and setup.gradient_checkpointing and setup.use_reentrant:
        st.toggle(
            "Checkpoints around FSDP's modules",
            help="checkpoint_around_fsdp: as in transformers before 4.52, where frozen layers' inputs stay until "
            "backward has ended. Default: off.",
            **boxes.box("checkpoint_around_fsdp"),
        )


def _take_fsdp_version() -> None:
    """The newer one has no modules to lay checkpoints around."""
    version = st.session_state["fsdp_version box"]
    around = {} if version == 1 else {"checkpoint_around_fsdp": False}
    session.put({"fsdp_version": version, **around})
    rerun.redraw(rerun.EXPANDERS)


def _offload() -> None:
    """Where states and weights rest: what the strategy allows."""
    strategy = Strategy(str(session.value("strategy")))
    labels = (
        (
            "Optimizer rests on",
            "ZeRO-Offload: states and gradients lie in the host's memory, or on NVMe (zero3), and the CPU steps the "
            "optimizer. FSDP offloads weights with it. Default: none, the GPU.",
        ),
        (
            "Weights rest on",
            "Weights come from the host's memory, or from NVMe (zero3), whenever a layer needs them. Default: none.",
        ),
    )
    for key, (label, help_text), places in zip(
        OFFLOADS, labels, resting_places(strategy), strict=True
    ):
        box = boxes.choice(key, boxes.with_own(boxes.texts_of(places), str(session.value(key))))
        box["on_change"] = _take_offload
        st.selectbox(
            label,
            help=help_text,
            disabled=len(places) == 1,
            **box,
        )


def _take_offload(key: str) -> None:
    """FSDP takes both or none."""
    chosen = Offload(st.session_state[f"{key} box"])
    both = Strategy(str(session.value("strategy"))).is_fsdp
    session.put(dict.fromkeys(OFFLOADS, chosen) if both else {key: chosen})
    rerun.redraw(rerun.EXPANDERS)


def _take_number() -> None:
    """One GPU shares with nobody; several do so by FSDP until something else is chosen."""
    number, strategy = st.session_state["num_gpus box"], session.value("strategy")
    if number == 1:
        _share(1, Strategy.NONE)
    else:
        _share(number, Strategy.FSDP if strategy == Strategy.NONE else Strategy(str(strategy)))


def _take_strategy() -> None:
    """None is for one GPU, any other for at least two, and groups of several need four."""
    strategy = Strategy(st.session_state["strategy box"])
    least = {Strategy.NONE: 1, Strategy.HSDP: 4}.get(strategy, 2)
    number = cast("int", session.value("num_gpus"))
    _share(1 if strategy is Strategy.NONE else max(least, number), strategy)


def _share(number: int, strategy: Strategy) -> None:
    """Set both; the groups of hsdp are two where those that were set do not divide the GPUs."""
    groups = cast("int", session.value("dp_replicate_size"))
    if strategy is not Strategy.HSDP:
        groups = 1
    elif groups in (1, number) or number % groups:
        groups = 2
    session.put(sharing(_shared_now(), strategy, number, groups))
    rerun.redraw(rerun.EXPANDERS)


def _shared_now() -> TrainingSetup:
    """How the widgets say that GPUs share the work, sound or not."""
    rests = {key: Offload(str(session.value(key))) for key in OFFLOADS}
    own = {key: session.value(key) for key in ("fsdp_version", "checkpoint_around_fsdp")}
    return replace(session.DEFAULT, **cast("dict[str, Any]", rests | own))

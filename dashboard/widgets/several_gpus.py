"""What is unusual in the expander for several GPUs: a strategy sets more than itself, a network is the card's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import streamlit as st

from dashboard.state import actions, question, session
from dashboard.widgets import boxes, rerun
from estimator import (
    NETWORK,
    OFFLOADS,
    RATE_SPAN,
    Offload,
    Strategy,
    TrainingSetup,
    contract,
    offload_targets,
    sharing,
)


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


def _has_checkpoints_to_move(setup: TrainingSetup) -> bool:
    """Where the older FSDP's checkpoints can lie around its modules."""
    return setup.uses_fsdp1 and setup.gradient_checkpointing and setup.use_reentrant


def _take_fsdp_version() -> None:
    """The newer one has no modules to lay checkpoints around."""
    version = st.session_state["fsdp_version box"]
    around = {} if version == 1 else {"checkpoint_around_fsdp": False}
    session.put({"fsdp_version": version, **around})
    rerun.redraw(rerun.EXPANDERS)


def _offload(key: contract.Key) -> None:
    """Where states or weights rest: what the strategy allows."""
    strategy = Strategy(str(session.value("strategy")))
    places = dict(zip(OFFLOADS, offload_targets(strategy), strict=True))[key.name]
    offered = boxes.with_own(map(str, places), str(session.value(key.name)))
    boxes.widget(key, options=offered, disabled=len(places) == 1, on_change=_take_offload)


def _take_offload(key: str, *_: str) -> None:
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
    return replace(contract.DEFAULT, **cast("dict[str, Any]", rests | own))


UNUSUAL = {
    "num_gpus": boxes.Unusual(take=_take_number),
    "strategy": boxes.Unusual(take=_take_strategy),
    "gpus_per_node": boxes.Unusual(then=_network),
    "fsdp_version": boxes.Unusual(
        take=_take_fsdp_version, where=lambda setup: setup.strategy.is_fsdp
    ),
    "checkpoint_around_fsdp": boxes.Unusual(where=_has_checkpoints_to_move),
    "offload_optimizer": boxes.Unusual(draw=_offload),
    "offload_param": boxes.Unusual(draw=_offload),
}

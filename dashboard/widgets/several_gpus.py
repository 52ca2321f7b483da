"""Special widgets for several GPUs. A strategy also sets other keys, and the network is a property of the GPU."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Draws the network between machines, if the job has several machines."""
    now = question.reading()
    if now.gpu is None or now.setup.mesh.num_gpus <= now.setup.mesh.gpus_per_node:
        return
    low, high = RATE_SPAN
    st.session_state["network box"] = now.gpu.network_gb_per_s
    st.number_input(
        "Network per machine (GB/s)",
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
    """Sets the network, which makes the GPU a custom one. Clearing it undoes that."""
    fact = question.as_fact(session.value("gpu"))
    card = {"like": fact} if isinstance(fact, str) else dict(cast("Mapping[str, object]", fact))
    card.pop(NETWORK, None)
    if (chosen := st.session_state["network box"]) is not None:
        card[NETWORK] = chosen
    option = question.as_option(card["like"] if card.keys() == {"like"} else card)
    st.session_state["own"]["gpu"] = option
    actions.take({"gpu": option})


def _has_checkpoints_to_move(setup: TrainingSetup) -> bool:
    """Whether checkpointing can wrap FSDP modules, which only FSDP 1 allows."""
    return (
        setup.mesh.uses_fsdp1
        and setup.computation.gradient_checkpointing
        and setup.computation.use_reentrant
    )


def _take_fsdp_version() -> None:
    """Sets the FSDP version. FSDP 2 has no modules that checkpointing could wrap."""
    version = session.chosen("fsdp_version")
    around = {} if version == 1 else {"checkpoint_around_fsdp": False}
    session.put({"fsdp_version": version, **around})
    rerun.redraw(rerun.EXPANDERS)


def _offload(key: contract.Key) -> None:
    """Draws the offload targets that the strategy allows."""
    strategy = Strategy(str(session.value("strategy")))
    places = dict(zip(OFFLOADS, offload_targets(strategy), strict=True))[key.name]
    offered = boxes.with_own(map(str, places), str(session.value(key.name)))
    boxes.widget(key, options=offered, disabled=len(places) == 1, on_change=_take_offload)


def _take_offload(key: str, *_: str) -> None:
    """Sets offload. FSDP offloads both weights and states or neither."""
    chosen = Offload(str(session.chosen(key)))
    both = Strategy(str(session.value("strategy"))).is_fsdp
    session.put(dict.fromkeys(OFFLOADS, chosen) if both else {key: chosen})
    rerun.redraw(rerun.EXPANDERS)


def _steps_on_host(setup: TrainingSetup) -> bool:
    """Whether the CPU runs the optimizer."""
    return setup.mesh.offload_optimizer is not Offload.NONE


def _uses_host_link(setup: TrainingSetup) -> bool:
    """Whether tensors go to the host and back, or between GPUs that only PCIe joins."""
    away = {setup.mesh.offload_optimizer, setup.mesh.offload_param} != {Offload.NONE}
    gpu = question.reading().gpu
    joined = gpu is not None and gpu.interconnect_gpus is not None
    saved = setup.computation.activation_offloading or setup.computation.offload_checkpoints
    return away or saved or (joined and setup.mesh.num_gpus > 1)


def _take_sharing() -> None:
    """Takes the number of GPUs or the strategy, whichever changed, and sets the other to go with it.

    One GPU has no strategy; several use FSDP by default. hsdp needs at least four GPUs, any other strategy two.
    """
    had = session.value("num_gpus"), session.value("strategy")
    number = cast("int", session.chosen("num_gpus"))
    strategy = Strategy(str(session.chosen("strategy")))
    if strategy != had[1]:
        number = 1 if strategy.is_alone else max(2, strategy.fewest_gpus, number)
    else:
        strategy = _strategy_over(number)
    if (number, strategy) != had:
        _share(number, strategy)
    rerun.redraw(rerun.EXPANDERS)  # without it, a box that brings nothing new reruns the page


def _may_divide_layers(setup: TrainingSetup) -> bool:
    """Whether ranks may have parts of layers: all weights are trained."""
    return setup.mesh.tp_size > 1 or not setup.adapters.uses_adapters


def _take_tensor_parallel() -> None:
    """Sets how many ranks divide every layer, and what goes with it: FSDP over the other GPUs, or no others and no
    strategy; no saved states.
    """
    ranks, number = (
        cast("int", value) for value in (session.chosen("tp_size"), session.value("num_gpus"))
    )
    strategy = Strategy(str(session.value("strategy")))
    if ranks == 1:
        strategy = Strategy.FSDP if strategy.is_alone else strategy
        session.put(_sharing(number, strategy) | {"tp_size": 1})
    else:
        shared = _sharing(number, strategy, ranks)
        if shared["tp_size"] != ranks:
            shared = _sharing(ranks, Strategy.NONE, ranks)
        session.put(shared | {"save_only_model": True})
    rerun.redraw(rerun.EXPANDERS)


def _strategy_over(number: int) -> Strategy:
    """The strategy that goes with a number of GPUs: none for one and where ranks of a layer have none, else FSDP."""
    strategy = Strategy(str(session.value("strategy")))
    if number == 1 or (strategy.is_alone and session.value("tp_size") != 1):
        return Strategy.NONE
    return Strategy.FSDP if strategy.is_alone else strategy


def at_step(key: str, step: int) -> dict[str, object]:
    """All keys that a slider's step sets: a number of GPUs sets its strategy, too."""
    if key == "num_gpus" and step != session.value(key):
        return _sharing(step, _strategy_over(step))
    return {key: step}


def at_steps(key: str) -> list[dict[str, str]]:
    """The keys that a slider's steps set beside it, at each of them: the same wherever among them the slider stands."""
    if key != "num_gpus":
        return [{}]
    steps = [at_step(key, step) for step in st.session_state["steps"][key]]
    others = sorted({other for keys in steps for other in keys} - {key})
    return [
        {other: str(keys.get(other, session.value(other))) for other in others} for keys in steps
    ]


def _share(number: int, strategy: Strategy) -> None:
    session.put(_sharing(number, strategy))


def _sharing(number: int, strategy: Strategy, parts: int | None = None) -> dict[str, object]:
    """The keys of number and strategy; ``parts``: ranks of a layer, if they change.

    hsdp uses two groups if the chosen number does not divide the GPUs.
    """
    groups = cast("int", session.value("dp_replicate_size"))
    if not strategy.has_groups:
        groups = 1
    elif groups in (1, number) or number % groups:
        groups = 2
    now = _shared_now() if parts is None else _shared_now().replace(tp_size=parts)
    return sharing(now.mesh, strategy, number, groups)


def _shared_now() -> TrainingSetup:
    """The strategy and GPUs in the widgets, even if they are invalid."""
    rests = {key: Offload(str(session.value(key))) for key in OFFLOADS}
    names = ("tp_size", "fsdp_version", "checkpoint_around_fsdp")
    own = {key: session.value(key) for key in names}
    own["strategy"] = Strategy(str(session.value("strategy")))
    return contract.DEFAULT.replace(**cast("dict[str, Any]", rests | own))


UNUSUAL = {
    "num_gpus": boxes.Unusual(take=_take_sharing),
    "strategy": boxes.Unusual(take=_take_sharing),
    "tp_size": boxes.Unusual(take=_take_tensor_parallel, where=_may_divide_layers),
    "gpus_per_node": boxes.Unusual(then=_network),
    "fsdp_version": boxes.Unusual(
        take=_take_fsdp_version, where=lambda setup: setup.mesh.strategy.is_fsdp
    ),
    "checkpoint_around_fsdp": boxes.Unusual(where=_has_checkpoints_to_move),
    "offload_optimizer": boxes.Unusual(draw=_offload),
    "offload_param": boxes.Unusual(draw=_offload),
    "num_cpu_threads_per_process": boxes.Unusual(where=_steps_on_host),
    "host_cores": boxes.Unusual(where=_steps_on_host),
    "host_memory_bandwidth_gb_per_s": boxes.Unusual(where=_steps_on_host),
    "pcie_generation": boxes.Unusual(where=_uses_host_link),
    "pcie_lanes": boxes.Unusual(where=_uses_host_link),
}

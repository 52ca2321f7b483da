"""What lay in a rehearsal's memory at its peak, by when it was made and how long it stayed, and by line."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from estimator.rehearse.asked import AskedTensor, DeviceRequests, MadeAt
from estimator.rehearse.phases import BACKWARD, LOADING, OPTIMIZER, PhaseEnd
from estimator.values.specs import Component

WEIGHTS = "weights, and what loading left"
STATES = "optimizer states"
GRADIENTS = "gradients"
STEP = "activations, logits and temporaries"
KEPT = "kept after the backward pass"
WORKSPACES = "workspaces of cuBLAS"
KINDS: Mapping[str, tuple[Component, ...]] = {
    WEIGHTS: (
        Component.WEIGHTS,
        Component.ADAPTERS,
        Component.REFERENCE_MODEL,
        Component.INFERENCE_ENGINE,
    ),
    STATES: (Component.OPTIMIZER_STATES,),
    GRADIENTS: (Component.GRADIENTS, Component.COMMUNICATION),
    STEP: (Component.ACTIVATIONS, Component.LOGITS, Component.TEMPORARIES),
    KEPT: (),
    WORKSPACES: (Component.WORKSPACE,),
}
"""Kinds of tensors, and the components of an estimate that they are."""


class TensorKind(NamedTuple):
    """The tensors of one kind at the peak."""

    bytes: int
    lines: Sequence[tuple[MadeAt, int]]
    """Where they were made, and their bytes; the most first."""


def ledger(
    asked: DeviceRequests, ends: Sequence[PhaseEnd], *, shares: bool = False
) -> dict[str, TensorKind]:
    """Bytes by kind at the peak.

    What loading made and left are weights; what an optimizer made and left are its states; what a backward pass made
    and left are gradients; what a forward pass made and its backward pass did not free was kept; all else is of the
    step.

    ``shares``: several processes average their gradients.

    Leaves out: what a block has beyond its tensor.
    """
    times = [end.time for end in ends]
    keys = asked.peak()
    now = max((asked.tensors[key].begin for key in keys), default=0)
    found: dict[str, dict[MadeAt, int]] = defaultdict(lambda: defaultdict(int))
    for key in keys:
        tensor = asked.tensors[key]
        found[_kind(tensor, asked.workspaces, ends, times, now, shares=shares)][tensor.place] += (
            tensor.size
        )
    return {
        name: TensorKind(
            sum(found[name].values()),
            sorted(found[name].items(), key=lambda line: -line[1]),
        )
        for name in KINDS
        if name in found
    }


def _kind(
    tensor: AskedTensor,
    workspaces: int,
    ends: Sequence[PhaseEnd],
    times: Sequence[int],
    now: int,
    *,
    shares: bool,
) -> str:
    at = bisect_left(times, tensor.begin)
    if at == len(ends):
        return STEP
    phase, until = ends[at].phase, ends[at].time
    stays = tensor.end is None or tensor.end > until
    if phase == LOADING:
        return WEIGHTS if stays else STEP
    if tensor.end is not None and tensor.end >= workspaces:
        return WORKSPACES
    if phase == OPTIMIZER:
        return STATES if stays else STEP
    if phase == BACKWARD:
        return GRADIENTS if stays else STEP
    # of a forward pass: its own backward pass frees it, but DDP's buckets stay
    if shares and tensor.end is None and ends[at].step < ends[-1].step:
        return GRADIENTS
    passes = (end.time for end in ends[at:] if end.phase == BACKWARD)
    return KEPT if now > next(passes, now) else STEP


def kept(asked: DeviceRequests, kind: TensorKind) -> Iterator[tuple[str, MadeAt, int]]:
    """What was kept after its backward pass: the script's variables that hold it, where it was made, its bytes."""
    names: dict[MadeAt, list[str]] = defaultdict(list)
    for name, keys in asked.held.items():
        for key in keys:
            names[asked.tensors[key].place].append(name)
    for place, size in kind.lines:
        yield ", ".join(f"`{name}`" for name in dict.fromkeys(names[place])), place, size

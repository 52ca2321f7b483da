"""A run in order of time, moment by moment, and where it stops.

Loading; the first step, whose optimizer states appear at its end; the later steps, which begin with them; evaluating
and saving, each after the step at which Trainer first does so.

Source: transformers 5.23, trainer.py, ``_maybe_log_save_evaluate`` (after the step; evaluates, then saves); torch 2.13,
optim/adam.py, ``_init_group`` (states are made in the first ``step``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from estimator.answer.needs import runs
from estimator.resident.optimizer import RULES
from estimator.resident.overhead import workspace_bytes
from estimator.run.saving import SAVE_STEPS, saves_when
from estimator.time.lengths import lengths
from estimator.values.arithmetic import ceil_div
from estimator.values.facets.optimisation import Optimisation
from estimator.values.results import Estimate, GpuRun, Moment, Refused
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    GENERATION_PHASES,
    MORE_PASSES,
    STEP_PHASES,
    Component,
    Phase,
)

EVAL_STEPS = 500
"""Steps between evaluations: transformers 5.23, training_args.py, ``eval_steps`` (None: ``logging_steps``)."""
STEPS = 2
"""Steps followed: from the third on every step equals the second."""


class Instant(NamedTuple):
    """A moment of the run, and when it first occurs."""

    step: int
    """Optimizer steps begun: 0 before the first, 1 during it; for evaluating and saving, the step just finished."""
    micro_step: int
    """1 or 2 with accumulation, where 2 represents all micro-steps with earlier gradients; else 0."""
    moment: Moment
    device: int | None = None
    """The GPU of a device map; None where all GPUs run the same step."""


def instants(of: Estimate) -> Iterator[Instant]:
    """Every moment of the run in order of time, on the fullest GPU: each layer and stage at its highest.

    With accumulation a step has two micro-steps here: one without earlier gradients and one with. Two steps are
    listed even for a run of one.

    Error: under FSDP with accumulation, gradients of the first micro-step count as shards; they stay whole until the
    last one.
    Source: derived, from ``Estimate.moments`` and ``Estimate.phases``.
    """
    return _instants(of, of.run)


class Overflow(NamedTuple):
    """Where a run stops."""

    at: Instant
    """When, and in which operator."""
    among: Instant
    """The moment of ``instants`` that it belongs to: the highest of its layer or stage."""
    requested_bytes: int | None
    """Bytes of the tensor for which there is no room; None where the run is not replayed."""


def first_overflow(of: Estimate) -> Overflow | None:
    """Where the run stops; None unless the verdict is that it does not fit.

    A run that is replayed stops at the first request that PyTorch's allocator refuses, any other at the first moment
    whose tensors exceed the GPU. Uses the verdict's low end: the least that the CUDA context and communication take.
    Under a device map it is that of the GPU that stops first.

    Source: ``estimator.step.reserved``; else derived, from ``instants`` and ``room_bytes``.
    """
    if of.gpu is None or of.need_low_bytes <= of.gpu.memory_bytes:
        return None
    if (stop := of.needs.refused) is not None:
        return stopped_by(of, stop)
    over = _exceeding(of)
    return None if over is None else Overflow(over, over, None)


def stopped_by(of: Estimate, stop: Refused) -> Overflow:
    """Where a replayed run is that is refused this request.

    Its second micro-step and its third step stand for all later ones.

    An evaluation is played after the second step, and comes where Trainer's first one does.
    """
    found = [*instants(of)]

    def within(phase: Phase) -> list[Instant]:
        return [instant for instant in found if instant.moment.phase is phase]

    evaluation = next(iter(within(Phase.EVALUATION)), None)
    step, micro_step = stop.step, 0
    if stop.phase in (Phase.LOAD, Phase.EVALUATION):
        among = within(stop.phase)[1 if stop.makes_states else 0]
        step = among.step
    elif stop.phase is Phase.OPTIMIZER_STEP:
        shown = min(step, STEPS)
        among = next(instant for instant in within(stop.phase) if instant.step == shown)
    else:
        micro_step = _micro_step(of, stop)
        alike = [
            instant
            for instant in found
            if instant.moment.phase in (*STEP_PHASES[:-1], *MORE_PASSES)
            and (instant.step, instant.micro_step) == (min(step, STEPS), micro_step)
        ]
        among = alike[min(stop.moment, len(alike) - 1)]
    if stop.step > STEPS and evaluation is not None:
        step = max(step, 1 + evaluation.step)
    moment = Moment(stop.phase, stop.name or among.moment.name, among.moment.resident)
    return Overflow(Instant(step, micro_step, moment), among, stop.bytes)


def _micro_step(of: Estimate, stop: Refused) -> int:
    """The micro-step of a pass that stops, as ``Instant`` counts them."""
    return 1 + stop.micro_step if of.setup.batch.gradient_accumulation_steps > 1 else 0


def _exceeding(of: Estimate) -> Instant | None:
    assert of.gpu is not None
    room = room_bytes(of)
    found = (
        next((instant for instant in _instants(of, run) if instant.moment.bytes > room), None)
        for run in of.runs
    )
    return min((instant for instant in found if instant is not None), key=_when)


def room_bytes(of: Estimate) -> int:
    """Bytes available to PyTorch on one GPU: its memory minus the least that is outside.

    Source: derived, from ``beside_bytes``.
    """
    assert of.gpu is not None
    return of.gpu.memory_bytes - beside_bytes(of)


def beside_bytes(of: Estimate) -> int:
    """The least bytes outside PyTorch's allocator: the CUDA context and communication.

    Source: derived, from ``Estimate.need_low_bytes``, which adds them to what PyTorch needs.
    """
    replay = of.needs.replay
    return of.need_low_bytes - (of.decisive.bytes if replay is None else replay.least)


def starts_with_states(optimisation: Optimisation) -> bool:
    """Whether optimizer states exist before the first step: Adagrad's.

    DeepSpeed's float32 weights exist then, and its optimizer's states do not.

    Source: torch 2.13, optim/adagrad.py, ``__init__``; DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py and stage3.py,
    ``initialize_optimizer_states``.
    """
    return RULES[optimisation.optim].starts_with_states


def _instants(of: Estimate, run: GpuRun) -> Iterator[Instant]:
    device, timeline, highest = run.device, run.timeline, run.phases
    yield Instant(0, 0, highest[Phase.LOAD], device)
    at_start = timeline.states_from_start
    if at_start:
        what = (
            "optimizer states" if starts_with_states(of.setup.optimisation) else "float32 weights"
        )
        yield Instant(0, 0, _optimizer_made(timeline.moments[-1], what, at_start), device)
    first = _first_micro_step(of, device)
    after = sorted(_after_steps(of.setup, highest))
    for step in range(1, STEPS + 1):
        is_first = step == 1
        for phase in GENERATION_PHASES:  # before anything else of a step
            if phase in highest:
                made = highest[phase]
                yield Instant(
                    step,
                    0,
                    _before_states(made, at_start) if is_first else made,
                    device,
                )
        micro_steps = [first, timeline.moments] if first is not None else [timeline.moments]
        for number, moments in enumerate(micro_steps, start=0 if first is None else 1):
            for moment in moments:
                if moment.phase is not Phase.OPTIMIZER_STEP:
                    seen = _before_states(moment, at_start) if is_first else moment
                    yield Instant(step, number, seen, device)
        for moment in timeline.moments:
            if moment.phase is Phase.OPTIMIZER_STEP:
                yield Instant(step, 0, moment, device)
        for at, _, phase in after:
            if at == step or (at > step and step == STEPS):
                yield Instant(at, 0, highest[phase], device)


def _first_micro_step(of: Estimate, device: int | None) -> Sequence[Moment] | None:
    """The moments of a micro-step without earlier gradients; None without accumulation, where none has any."""
    if of.setup.batch.gradient_accumulation_steps == 1:
        return None
    setup = of.setup.replace(gradient_accumulation_steps=1)
    if setup.task.objective.generates:  # as many rows are generated at once as before
        steps = of.setup.task.steps_per_generation or of.setup.batch.gradient_accumulation_steps
        setup = setup.replace(steps_per_generation=steps)
    alone = runs(of.model, of.gpu, setup, workspace_bytes(of.gpu))
    moments = next(run.timeline.moments for run in alone if run.device == device)
    asked = Phase.SCORING in of.phases
    return [moment for moment in moments if asked or moment.phase is not Phase.SCORING]


def _optimizer_made(step: Moment, what: str, size: int) -> Moment:
    """Memory before the first step if the optimizer keeps anything then: as in its step, without gradients.

    Leaves out: a zero float32 gradient that DeepSpeed makes then.
    """
    without = _without(_before_states(step, size), Component.GRADIENTS, Component.TEMPORARIES)
    return without._replace(phase=Phase.LOAD, name=what)


def _before_states(moment: Moment, size: int) -> Moment:
    """The same in the first step, where ``size`` bytes of the states exist."""
    states = {Component.OPTIMIZER_STATES: size} if size else {}
    alive = _without(moment, Component.OPTIMIZER_STATES)
    return alive._replace(resident={**alive.resident, **states})


def _without(moment: Moment, *parts: Component) -> Moment:
    alive = dict(moment.resident)
    for part in parts:
        alive.pop(part, None)
    return Moment(moment.phase, moment.name, alive)


def _after_steps(
    setup: TrainingSetup, highest: Mapping[Phase, Moment]
) -> Iterator[tuple[int, int, Phase]]:
    """The steps after which Trainer first evaluates and saves, and the order of the two."""
    epoch = ceil_div(lengths(setup).rows_per_epoch, setup.effective_batch_size)
    last = math.ceil(epoch * setup.run.num_train_epochs)
    saves = saves_when(setup.run)
    if setup.run.eval_strategy != "no" and Phase.EVALUATION in highest:
        yield (
            min(EVAL_STEPS if setup.run.eval_strategy == "steps" else epoch, last),
            0,
            Phase.EVALUATION,
        )
    if saves != "no":
        yield min(SAVE_STEPS if saves == "steps" else epoch, last), 1, Phase.SAVE


_ORDER = (Phase.LOAD, *GENERATION_PHASES, *STEP_PHASES, *MORE_PASSES, Phase.EVALUATION, Phase.SAVE)


def _when(instant: Instant) -> tuple[int, bool, int, int, int]:
    """Sort key over the GPUs of a device map: forward runs from the first to the last, backward in reverse."""
    phase, device = instant.moment.phase, instant.device or 0
    outside = phase not in (*GENERATION_PHASES, *STEP_PHASES, *MORE_PASSES)
    optimizer = phase is Phase.OPTIMIZER_STEP
    micro_step = STEPS + 1 if optimizer or outside else instant.micro_step
    turn = -device if phase is Phase.BACKWARD else device
    return instant.step, outside, micro_step, _ORDER.index(phase), turn


# --- in words -------------------------------------------------------------------------------------

_PHASES: Mapping[Phase, str] = {
    Phase.FORWARD: "forward",
    Phase.LOSS: "loss",
    Phase.BACKWARD: "backward",
    Phase.REFERENCE: "reference pass",
    Phase.SCORING: "scoring pass",
    Phase.PUSH_WEIGHTS: "push of weights",
    Phase.GENERATION: "generation",
}
_ORDINALS = ("", "first", "second", "third")


def _the(step: int, word: str = "step") -> str:
    """A step in a sentence.

    >>> _the(2), _the(1501)
    ('the second step', 'step 1,501')
    """
    return f"the {_ORDINALS[step]} {word}" if step < len(_ORDINALS) else f"{word} {step:,}"


def where(instant: Instant, optimisation: Optimisation) -> str:
    """The time of an instant, as the end of a sentence.

    >>> where(Instant(1, 0, Moment(Phase.BACKWARD, "layer 9 of 32: linear", {})), Optimisation())
    "in the first step's backward (layer 9 of 32: linear)"
    >>> where(Instant(1, 2, Moment(Phase.LOSS, "log-softmax", {}), 3), Optimisation())
    'in the second micro-step of the first step, loss (log-softmax), on GPU 3'
    """
    moment, on = instant.moment, "" if instant.device is None else f", on GPU {instant.device}"
    match moment.phase:
        case Phase.LOAD if Component.OPTIMIZER_STATES in moment.resident:
            said = f"before the first step, when the {moment.name} are created"
        case Phase.LOAD:
            said = f"while the model loads ({moment.name})"
        case Phase.OPTIMIZER_STEP if instant.step == 1 and _makes_states(instant, optimisation):
            said = "at the first optimizer step, which creates the optimizer states"
        case Phase.OPTIMIZER_STEP:
            said = f"at {_the(instant.step, 'optimizer step')}"
        case Phase.EVALUATION:
            said = f"in the evaluation after step {instant.step:,} ({moment.name})"
        case Phase.SAVE:
            said = f"while the checkpoint after step {instant.step:,} is saved ({moment.name})"
        case phase if instant.micro_step:
            said = (
                f"in the {_ORDINALS[instant.micro_step]} micro-step of {_the(instant.step)}, "
                f"{_PHASES[phase]} ({moment.name})"
            )
        case phase:
            said = f"in {_the(instant.step)}'s {_PHASES[phase]} ({moment.name})"
    return said + on


def _makes_states(instant: Instant, optimisation: Optimisation) -> bool:
    made = instant.moment.resident.get(Component.OPTIMIZER_STATES, 0)
    return bool(made) and not starts_with_states(optimisation)


def runs_out(of: Estimate, size: Callable[[int], str]) -> str:
    """Where the run stops, in one sentence; empty unless the verdict is that it does not fit.

    ``size``: says a number of bytes.
    """
    if of.gpu is None or of.need_low_bytes <= of.gpu.memory_bytes:
        return ""
    stop = of.needs.refused
    if stop is not None and _is_told(stop):
        at = Instant(stop.step, _micro_step(of, stop), Moment(stop.phase, stop.name, {}))
        requested: int | None = stop.bytes
    else:
        over = first_overflow(of)
        if over is None:
            return ""
        at, requested = over.at, over.requested_bytes
    said = f"It runs out {where(at, of.setup.optimisation)}"
    return (
        f"{said}." if requested is None else f"{said}, where PyTorch cannot get {size(requested)}."
    )


def _is_told(stop: Refused) -> bool:
    """Whether what is refused says when that is without the run's moments: in a pass of the first steps."""
    in_pass = stop.phase in (*STEP_PHASES[:-1], *MORE_PASSES)
    return in_pass and bool(stop.name) and stop.step <= STEPS

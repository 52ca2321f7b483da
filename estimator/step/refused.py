"""Where a run stops on a card: the request that PyTorch's allocator refuses, and what asks for it."""

from __future__ import annotations

from functools import lru_cache

from estimator.step.allocations import Hardware, Trace, allocations, hardware_of
from estimator.step.blocks import EMPTY, Log, Played
from estimator.step.loading_requests import MOVED
from estimator.step.request_keys import GATHER
from estimator.step.reserved import RankRun, rank_runs
from estimator.values.results import Refused
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Phase


@lru_cache(maxsize=256)
def refused(model: Model, gpu: Gpu | None, setup: TrainingSetup, room: int) -> Refused | None:
    """The first request that is refused where PyTorch can have ``room`` bytes of a card; None if the run goes through.

    Source: as ``estimator.step.reserved.replayed``.
    """
    hardware = hardware_of(gpu)
    runs = [(run.play(room), run) for run in rank_runs(model, hardware, setup)]
    died = [(played.died, at) for at, (played, _) in enumerate(runs) if played.died is not None]
    moved = [
        (request, at) for request, at in died if runs[at][1].made is MOVED
    ]  # as Trainer loads it
    if not died:
        return None
    played, run = runs[min(moved or died)[1]]
    return _located(model, hardware, setup, room, played, run)


def _located(
    model: Model, hardware: Hardware, setup: TrainingSetup, room: int, played: Played, run: RankRun
) -> Refused:
    log, on_host = run.log(room), run.is_narrow(room)
    _, trace = allocations(model, hardware, setup, run.made, run.rank, on_host=on_host)
    assert played.died is not None
    step, piece = trace.ran[played.died]
    start, size = log.spans[0][piece.stretch], log.requests[2][played.request]
    if piece.of_pass >= 0:
        return _in_pass(trace, log, played)
    if step == 0:
        emptied = (at for at in range(start, played.request) if log.requests[0][at] == EMPTY)
        makes_states = setup.mesh.strategy.is_zero and next(emptied, None) is not None
        return Refused(Phase.LOAD, step, "", size, makes_states=makes_states)
    if piece.stretch in trace.optimizers:
        return Refused(Phase.OPTIMIZER_STEP, step, "", size)
    return Refused(Phase.FORWARD, step, "new buckets of DDP", size)


def _in_pass(trace: Trace, log: Log, played: Played) -> Refused:
    assert played.died is not None
    step, piece = trace.ran[played.died]
    found, at = trace.passes[piece.of_pass], played.request - log.spans[0][piece.stretch]
    program, runs = found.schedule.program, found.schedule.runs
    run, place = runs[piece.run], piece.place + played.repetition
    event = max(trace.events[piece.stretch][at], program.spans[run.segment][0])
    gathers = log.requests[3][played.request] == GATHER
    before = sum(earlier.length for earlier in runs[: piece.run] if earlier.has_moments)
    return Refused(
        Phase.EVALUATION if found.is_evaluation else run.phase,
        step,
        run.named("all-gather" if gathers else program.operations[event], place),
        log.requests[2][played.request],
        found.micro_step,
        max(0, before + (place if run.has_moments else -1)),
    )

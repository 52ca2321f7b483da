"""From a setup to its estimate: the one function that joins the formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator.answer.assumptions import assumptions, run_assumptions
from estimator.answer.needs import (
    PerStructure,
    as_run,
    heights,
    need_of,
    per_structure,
    runs,
)
from estimator.inference.seconds import time_of
from estimator.inference.trainer_beside import offloaded_bytes
from estimator.parallel.module_devices import module_devices
from estimator.passes.float8 import check_float8_card
from estimator.resident.model import Resident
from estimator.resident.overhead import context_bytes, workspace_bytes
from estimator.run.checkpoints import checkpoint
from estimator.run.record import Heights, RunOnGpu
from estimator.run.saving import checkpoints_at_once
from estimator.step.reserved import NeedInTheAllocator, outside
from estimator.step.timeline import structure
from estimator.time.cost import energy_kwh, run_cost
from estimator.time.offload_time import node_copies
from estimator.time.rates import missing_rate
from estimator.values.facets.generation import Generation
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.run import TrainingRun
from estimator.values.range import Range
from estimator.values.remembered import remembered
from estimator.values.results import Estimate, OnDevice
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

MOST_BYTES = 64 * 2**20
"""Bytes that remembered estimates hold: ours. The records among them are mostly those that are kept anyway."""


def _parts(of: Estimate) -> Iterator[tuple[object, int]]:
    for run in of.runs:
        yield from run.timeline.parts


@remembered(1024, MOST_BYTES, _parts)
def estimate(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Estimate:
    """Peak memory of a training step in bytes per GPU, its components, the verdict; hours and dollars of the whole run.

    Raises ``ValueError`` with one sentence if the architecture is not modelled or the setup contradicts the model.
    """
    model, setup = as_run(model, setup)
    check_float8_card(gpu, setup.precision)
    workspace = workspace_bytes(gpu)
    found = runs(model, gpu, setup, workspace)
    fixed = per_structure(model, structure(setup), workspace)
    needs = [need_of(gpu, setup, run.heights) for run in found]
    fullest, stated = max(zip(found, needs, strict=True), key=lambda run: run[1].high)
    saved = checkpoint(model, setup)
    time = cost = energy = None
    if gpu is not None and missing_rate(gpu, setup) is None:
        time = time_of(model, gpu, setup, fixed.whole)
        cost, energy = run_cost(time, gpu, setup), energy_kwh(time, gpu, setup.billed_gpus)
    return Estimate(
        model=model,
        gpu=gpu,
        setup=setup,
        run=fullest,
        runs=tuple(found),
        context_bytes=context_bytes(gpu, setup.processes_per_gpu),
        needs=_in_the_allocator(model, gpu, setup, stated, fullest.heights),
        host_bytes=_host_bytes(
            fixed,
            setup.run,
            saved.rank0_host_bytes,
            node_copies(model, setup)
            + _waiting_bytes(setup.generation, setup.mesh, fixed.resident),
        ),
        nvme_bytes=fixed.offloaded[1],
        disk_bytes=saved.disk_bytes,
        run_disk_bytes=checkpoints_at_once(setup) * saved.disk_bytes,
        total_parameters=fixed.resident.total_parameters,
        trainable_parameters=fixed.resident.trainable_parameters,
        assumptions=(*assumptions(model, gpu, setup), *run_assumptions(gpu, setup, time)),
        time=time,
        cost=cost,
        energy_kwh=energy,
        devices=_devices(model, gpu, setup, found, needs),
    )


def _devices(
    model: Model,
    gpu: Gpu | None,
    setup: TrainingSetup,
    found: Sequence[RunOnGpu],
    needs: Sequence[Range[int]],
) -> tuple[OnDevice, ...]:
    """The memory of every GPU of a device map."""
    if not setup.mesh.strategy.places_layers:
        return ()
    at = module_devices(model, gpu, setup)
    return tuple(
        OnDevice(
            number,
            at.layers_on(number),
            at.outside_on(number),
            {part: size for part, size in run.resident.sizes(0).items() if size},
            run.peak,
            need,
        )
        for number, run, need in zip(at.used, found, needs, strict=True)
    )


def fits(model: Model, gpu: Gpu, setup: TrainingSetup) -> bool:
    """Whether the verdict of ``estimate`` is that the setup fits, without computing its moments.

    Raises ``ValueError`` as ``estimate`` does.
    """
    return _needs(model, gpu, setup).fits


def bound(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> int:
    """Bytes without which a setup does not fit, whatever PyTorch's allocator makes of its tensors.

    ``need``'s high end, without the slack of published runs where the run is replayed. Raises ``ValueError`` as
    ``estimate`` does.
    """
    return _needs(model, gpu, setup).bound


def _needs(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> NeedInTheAllocator:
    """That of ``estimate``, without moments."""
    model, setup = as_run(model, setup)
    found = heights(model, gpu, setup)
    needs = [need_of(gpu, setup, of) for of in found]
    fullest, stated = max(zip(found, needs, strict=True), key=lambda run: run[1].high)
    return _in_the_allocator(model, gpu, setup, stated, fullest)


def _in_the_allocator(
    model: Model, gpu: Gpu | None, setup: TrainingSetup, stated: Range[int], of: Heights
) -> NeedInTheAllocator:
    context = context_bytes(gpu, setup.processes_per_gpu)
    beside = outside(setup.mesh, context, of.paged)
    return NeedInTheAllocator(model, gpu, setup, stated, of.highest, beside)


def _host_bytes(fixed: PerStructure, run: TrainingRun, saving: int, copies: int) -> int:
    """Bytes that the host needs at most: while loading, or for a checkpoint on top of what is offloaded."""
    offloaded = fixed.offloaded[0] + copies
    if run.save_strategy == "no":
        return max(fixed.load_host_bytes, offloaded)
    return max(fixed.load_host_bytes, offloaded + saving)


def _waiting_bytes(generation: Generation, mesh: Mesh, resident: Resident) -> int:
    """What a machine's GPUs offload while vLLM generates."""
    gpus = min(mesh.num_gpus, mesh.gpus_per_node)
    return gpus * sum(offloaded_bytes(generation, resident))

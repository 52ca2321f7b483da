"""From a setup to its estimate: the one function that joins the formulas."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from estimator.answer.assumptions import assumptions, run_assumptions
from estimator.answer.needs import (
    PerStructure,
    alone,
    highest_and_paged,
    need,
    need_of,
    per_structure,
)
from estimator.answer.refusals import check_sizes
from estimator.inference.seconds import time_of
from estimator.inference.trainer_beside import offloaded_bytes
from estimator.parallel.module_devices import module_devices
from estimator.passes.float8 import (
    check_float8_card,
)
from estimator.passes.registry import as_trained
from estimator.resident.model import Resident
from estimator.resident.overhead import (
    context_bytes,
    need_bytes,
    workspace_bytes,
)
from estimator.run.checkpoints import checkpoint, gathers_to_save
from estimator.run.device_map import Share, shares
from estimator.run.prequantized import as_loaded
from estimator.run.saving import checkpoints_at_once
from estimator.step.reserved import NeedInTheAllocator, goes_through, is_replayed, outside
from estimator.step.timeline import structure
from estimator.time.cost import energy_kwh, run_cost
from estimator.time.offload_time import node_copies
from estimator.time.rates import missing_rate
from estimator.values.facets.generation import Generation
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.run import TrainingRun
from estimator.values.remembered import remembered
from estimator.values.results import DeviceRun, Estimate, OnDevice
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    Gpu,
    Model,
    Phase,
)

MOST_BYTES = 64 * 2**20
"""Bytes that remembered estimates hold: ours. The records among them are mostly those that are kept anyway."""


def _parts(of: Estimate) -> Iterator[tuple[object, int]]:
    yield from of.timeline.parts
    for run in of.device_runs:
        yield from run.timeline.parts


@remembered(1024, MOST_BYTES, _parts)
def estimate(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Estimate:
    """Peak memory of a training step in bytes per GPU, its components, the verdict; hours and dollars of the whole run.

    Raises ``ValueError`` with one sentence if the architecture is not modelled or the setup contradicts the model.
    """
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    check_float8_card(gpu, setup.precision)
    workspace = workspace_bytes(gpu)
    fixed = per_structure(model, structure(setup), workspace)
    check_sizes(model, setup)
    devices: tuple[OnDevice, ...] = ()
    runs: tuple[DeviceRun, ...] = ()
    if setup.mesh.strategy.places_layers:
        share, devices, runs = _over_devices(model, gpu, setup, workspace)
    else:
        share = alone(model, gpu, setup, fixed, workspace)
    step, paged = share.timeline.heights(), share.resident.states.paged_bytes
    phases = {**step, **share.beside, Phase.SAVE: share.save}
    counted = phases if gathers_to_save(setup) else {**step, **share.beside}
    decisive = max(counted.values(), key=attrgetter("bytes"))
    context = context_bytes(gpu, setup.processes_per_gpu)
    stated = need_of(counted, paged, context, setup.mesh)
    saved = checkpoint(model, setup)
    time = cost = energy = None
    if gpu is not None and missing_rate(gpu, setup) is None:
        time = time_of(model, gpu, setup, fixed.whole)
        cost, energy = run_cost(time, gpu, setup), energy_kwh(time, gpu, setup.billed_gpus)
    return Estimate(
        model=model,
        gpu=gpu,
        setup=setup,
        timeline=share.timeline,
        phases=phases,
        peak=max(step.values(), key=attrgetter("bytes")),
        decisive=decisive,
        context_bytes=context,
        needs=NeedInTheAllocator(
            model, gpu, setup, stated, decisive.bytes, outside(setup.mesh, context, paged)
        ),
        paged_bytes=paged,
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
        devices=devices,
        device_runs=runs,
    )


def _over_devices(
    model: Model, gpu: Gpu | None, setup: TrainingSetup, workspace: int
) -> tuple[Share, tuple[OnDevice, ...], tuple[DeviceRun, ...]]:
    """The GPU of a device map that needs most, the memory of every GPU, and each one's part of the run."""
    at = module_devices(model, gpu, setup)
    found = {share.gpu: share for share in shares(model, setup, at, workspace)}
    devices = []
    for number, share in found.items():
        step = share.timeline.heights()
        decisive = max((*step.values(), *share.beside.values()), key=attrgetter("bytes"))
        devices.append(
            OnDevice(
                number,
                at.layers_on(number),
                at.outside_on(number),
                {part: size for part, size in share.resident.sizes(0).items() if size},
                max(step.values(), key=attrgetter("bytes")),
                need_bytes(decisive.bytes, share.resident.states.paged_bytes, context_bytes(gpu)),
            )
        )
    fullest = max(devices, key=lambda device: device.need.high).device
    runs = (
        DeviceRun(number, share.timeline, {**share.beside, Phase.SAVE: share.save})
        for number, share in found.items()
    )
    return found[fullest], tuple(devices), tuple(runs)


def fits(model: Model, gpu: Gpu, setup: TrainingSetup) -> bool:
    """Whether the verdict of ``estimate`` is that the setup fits, without computing its moments.

    Raises ``ValueError`` as ``estimate`` does.
    """
    if bound(model, gpu, setup) > gpu.memory_bytes:
        return False
    if not is_replayed(model, gpu, setup):
        return True
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    highest, paged = highest_and_paged(model, workspace_bytes(gpu), setup)
    beside = outside(setup.mesh, context_bytes(gpu), paged).high
    return goes_through(model, gpu, setup, gpu.memory_bytes - beside, highest)


def bound(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> int:
    """Bytes without which a setup does not fit, whatever PyTorch's allocator makes of its tensors.

    ``need``'s high end, without the slack of published runs where the run is replayed. Raises ``ValueError`` as
    ``estimate`` does.
    """
    if not is_replayed(model, gpu, setup):
        return need(model, gpu, setup).high
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    check_float8_card(gpu, setup.precision)
    highest, paged = highest_and_paged(model, workspace_bytes(gpu), setup)
    return highest + outside(setup.mesh, context_bytes(gpu), paged).high


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

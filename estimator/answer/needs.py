"""What a run needs of a GPU, in bytes, without its time and without its moments one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache

from estimator.answer.refusals import check_sizes, check_structure
from estimator.inference.colocation import generating
from estimator.parallel.module_devices import ModuleDevices, module_devices
from estimator.parallel.offload import node_bytes
from estimator.parallel.sharding import loads_sharded
from estimator.parallel.strategies import resident_memory
from estimator.passes.float8 import (
    check_float8_card,
)
from estimator.passes.registry import as_trained
from estimator.resident.model import Resident
from estimator.resident.overhead import (
    context_bytes,
    exchange_bytes,
    need_bytes,
    workspace_bytes,
)
from estimator.run.checkpoints import gathers_to_save, save_moment
from estimator.run.device_map import Share, peaks
from estimator.run.loading import load_host_bytes, load_moment
from estimator.run.prequantized import as_loaded
from estimator.step.evaluation import evaluation_moment, evaluation_walk
from estimator.step.timeline import Plan, StepTimeline, plan, structure
from estimator.values.facets.mesh import Mesh
from estimator.values.range import Range
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    Component,
    Gpu,
    Model,
    Phase,
)
from estimator.values.strategies import Strategy


def need_of(
    moments: Mapping[Phase, Moment], paged: int, context: Range[int], mesh: Mesh
) -> Range[int]:
    """The need of a run with these highest moments, of which two may set its ends: an engine has no slack."""
    exchange, engine = exchange_bytes(mesh), Component.INFERENCE_ENGINE
    ends = [
        need_bytes(moment.bytes, paged, context, exchange, moment.resident.get(engine, 0))
        for moment in moments.values()
    ]
    return Range(max(end.low for end in ends), max(end.high for end in ends))


def alone(
    model: Model,
    gpu: Gpu | None,
    setup: TrainingSetup,
    fixed: PerStructure,
    workspace: int,
    *,
    must_start: bool = True,
) -> Share:
    """The share of one GPU: the only one, or the fullest of several that run the same step."""
    more = generating(model, gpu, setup, fixed.resident, fixed.load, must_start=must_start)
    resident = replace(fixed.resident, engine=more.in_steps)
    beside = {Phase.LOAD: fixed.load, **more.moments}
    if setup.run.eval_strategy != "no":
        beside[Phase.EVALUATION] = _with_engine(
            evaluation_moment(model, setup, workspace), more.in_steps
        )
    timeline = StepTimeline(setup, fixed.plan, resident, workspace)
    return Share(0, resident, timeline, beside, _with_engine(fixed.save, more.in_steps))


def _with_engine(moment: Moment, engine: int) -> Moment:
    """The same moment beside an inference engine."""
    if not engine:
        return moment
    return moment._replace(resident={**moment.resident, Component.INFERENCE_ENGINE: engine})


class PerStructure:
    """Results independent of batch and length, cached per structure; those that only ``estimate`` needs are lazy.

    Raises ``ValueError`` if the architecture is not modelled or the structure contradicts itself.
    """

    def __init__(self, model: Model, structure: TrainingSetup, workspace: int) -> None:
        self._model, self._structure, self._workspace = model, structure, workspace
        self.plan, self.resident = _on_any_card(model, structure)

    @cached_property
    def whole(self) -> Resident:
        """Resident memory of one GPU without sharding, which sets the traffic."""
        same = self._structure
        if not same.mesh.strategy.shards_states:
            return self.resident
        alone = same.replace(strategy=Strategy.NONE, num_gpus=1, dp_replicate_size=1)
        return resident_memory(self._model, alone)

    @cached_property
    def load(self) -> Moment:
        """The highest moment of loading."""
        if not loads_sharded(self._structure):
            loaded = load_moment(self._model, self._structure, self._workspace)
            return _with_reference(loaded, self.resident.reference)
        parts = {
            Component.WEIGHTS: self.resident.weights,
            Component.ADAPTERS: self.resident.adapters,
            Component.REFERENCE_MODEL: self.resident.reference,
        }
        return Moment(Phase.LOAD, "the last shard arrives", parts)

    @cached_property
    def offloaded(self) -> tuple[int, int]:
        """Bytes offloaded per machine: to its memory and to its NVMe."""
        return node_bytes(self._model, self._structure)

    @cached_property
    def save(self) -> Moment:
        """The highest moment while a checkpoint is written.

        Below the step's peak unless weights are gathered: beside weights and states it holds only copies of experts,
        which are smaller than their gradients.
        """
        return save_moment(self._model, self._structure, self.resident, self._workspace)

    @cached_property
    def load_host_bytes(self) -> int:
        """Bytes on the host while loading."""
        return load_host_bytes(self._model, self._structure)


def _with_reference(loaded: Moment, reference: int) -> Moment:
    """The same after a reference model has also been loaded, in the same way."""
    if not reference:
        return loaded
    parts = {**loaded.resident, Component.REFERENCE_MODEL: reference}
    return Moment(Phase.LOAD, "the reference model arrives", parts)


@lru_cache(maxsize=1024)
def _on_any_card(model: Model, structure: TrainingSetup) -> tuple[Plan, Resident]:
    """What no card changes of a structure that is not refused."""
    check_structure(model, structure)
    return plan(model, structure), resident_memory(model, structure)


per_structure = lru_cache(maxsize=2048)(PerStructure)
"""The same, remembered."""


def need(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Range[int]:
    """Bytes needed per GPU, with the allocator's slack of published runs, without computing moments.

    Of a run that is replayed, ``estimate`` has the allocator's own least memory instead.

    Raises ``ValueError`` as ``estimate`` does, but not where vLLM does not start on this GPU: it needs more than that.
    """
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    check_float8_card(gpu, setup.precision)
    if setup.mesh.strategy.places_layers:
        found = _over_devices_sizes(
            model, workspace_bytes(gpu), setup, module_devices(model, gpu, setup)
        )
        needs = [need_bytes(*sizes, context_bytes(gpu)) for sizes in found]
        return max(needs, key=lambda ends: ends.high)
    workspace = workspace_bytes(gpu)
    if not setup.task.objective.generates:
        sizes = highest_and_paged(model, workspace, setup)
        return need_bytes(*sizes, context_bytes(gpu), exchange_bytes(setup.mesh))
    fixed = per_structure(model, structure(setup), workspace)
    check_sizes(model, setup)
    share = alone(model, gpu, setup, fixed, workspace, must_start=False)
    phases = {**share.timeline.heights(), **share.beside}
    if gathers_to_save(setup):
        phases[Phase.SAVE] = share.save
    context = context_bytes(gpu, setup.processes_per_gpu)
    return need_of(phases, share.resident.states.paged_bytes, context, setup.mesh)


@lru_cache(maxsize=8192)
def _over_devices_sizes(
    model: Model, workspace: int, setup: TrainingSetup, at: ModuleDevices
) -> tuple[tuple[int, int], ...]:
    """Peak and paged states of each GPU of a device map."""
    per_structure(model, structure(setup), workspace)
    check_sizes(model, setup)
    return tuple(
        (peak, resident.states.paged_bytes) for peak, resident in peaks(model, setup, at, workspace)
    )


@lru_cache(maxsize=8192)
def highest_and_paged(model: Model, workspace: int, setup: TrainingSetup) -> tuple[int, int]:
    """Highest moment and paged states: of the GPU only the size of its workspace matters to them."""
    fixed = per_structure(model, structure(setup), workspace)
    check_sizes(model, setup)
    timeline = StepTimeline(setup, fixed.plan, fixed.resident, workspace)
    peak = max(timeline.peak_bytes, fixed.load.bytes)
    if setup.run.eval_strategy != "no":
        peak = max(peak, evaluation_walk(model, setup, workspace).peak_bytes)
    if gathers_to_save(setup):
        peak = max(peak, fixed.save.bytes)
    return peak, fixed.resident.states.paged_bytes


def is_refused(model: Model, setup: TrainingSetup) -> bool:
    """Whether ``need`` refuses the setup on any GPU (a yes or no), told without a step."""
    try:
        model, setup = as_trained(model, setup)
        setup = as_loaded(model, setup)
        check_structure(model, structure(setup))
        check_sizes(model, setup)
    except ValueError:
        return True
    return False


def least_need(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> int:
    """Lower bound of the need in bytes per GPU for any batch, length or kernel: that of the optimizer's step."""
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    step = resident_memory(model, structure(setup)).step_bytes
    if setup.mesh.strategy.places_layers:  # the fullest GPU holds at least an even share
        step //= setup.mesh.num_gpus
    return need_bytes(step, 0, context_bytes(gpu), exchange_bytes(setup.mesh)).low

"""What a run needs of a GPU, in bytes, without its time and without its moments one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from operator import attrgetter

from estimator.answer.refusals import check_sizes, check_structure
from estimator.inference.colocation import generating
from estimator.parallel.computed import loads_sharded
from estimator.parallel.module_devices import module_devices
from estimator.parallel.offload import node_bytes
from estimator.parallel.strategies import resident_memory
from estimator.passes.float8 import (
    check_float8_card,
)
from estimator.passes.prepared import as_trained
from estimator.resident.model import Resident
from estimator.resident.overhead import (
    context_bytes,
    exchange_bytes,
    need_bytes,
    workspace_bytes,
)
from estimator.run.checkpoints import save_moment
from estimator.run.device_map import placed
from estimator.run.loading import load_host_bytes, load_moment
from estimator.run.prequantized import as_loaded
from estimator.run.record import Heights, RunOnGpu
from estimator.step.evaluation import evaluation_plan
from estimator.step.timeline import Plan, plan, structure
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


class PerStructure:
    """Results independent of batch and length, cached per structure; those that only ``estimate`` needs are lazy.

    Raises ``ValueError`` if the architecture is not modelled or the structure contradicts itself.
    """

    def __init__(self, model: Model, structure: TrainingSetup, workspace: int) -> None:
        self._model, self._structure, self._workspace = model, structure, workspace
        self.plan, self.resident = _on_any_card(model, structure)

    @property
    def evaluation_plan(self) -> Plan:
        """The plan of an evaluation batch."""
        return evaluation_plan(self._model, self._structure)

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


def as_run(model: Model, setup: TrainingSetup) -> tuple[Model, TrainingSetup]:
    """The model and the setup that the libraries run. Raises ``ValueError`` for what they refuse of them."""
    model, setup = as_trained(model, setup)
    return model, as_loaded(model, setup)


def runs(
    model: Model,
    gpu: Gpu | None,
    setup: TrainingSetup,
    workspace: int,
    *,
    must_start: bool = True,
) -> Sequence[RunOnGpu]:
    """The run on one GPU, which stands for all, or on each of a device map's that holds anything; of ``as_run``.

    Raises ``ValueError`` as ``estimate`` does; where vLLM does not start, only if it ``must_start``.
    """
    same = structure(setup)
    fixed = per_structure(model, same, workspace)
    check_sizes(model, setup)
    if setup.mesh.strategy.places_layers:
        at = module_devices(model, gpu, setup)
        parts = {number: placed(model, same, at, number, workspace) for number in at.used}
        return [
            RunOnGpu(model, setup, part, workspace, device=number) for number, part in parts.items()
        ]
    more = generating(model, gpu, setup, fixed.resident, fixed.load, must_start=must_start)
    engine = more.in_steps
    return [RunOnGpu(model, setup, fixed, workspace, generation=more.moments, engine=engine)]


def heights(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Sequence[Heights]:
    """Those of each GPU of ``runs``, without moments. Raises ``ValueError`` as ``need`` does."""
    model, setup = as_run(model, setup)
    check_float8_card(gpu, setup.precision)
    decides = setup.task.objective.generates or setup.mesh.strategy.places_layers
    return _heights(model, gpu if decides else None, setup, workspace_bytes(gpu))


@lru_cache(maxsize=8192)
def _heights(
    model: Model, gpu: Gpu | None, setup: TrainingSetup, workspace: int
) -> Sequence[Heights]:
    return tuple(run.heights for run in runs(model, gpu, setup, workspace, must_start=False))


def need(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Range[int]:
    """Bytes needed per GPU, with the allocator's slack of published runs, without computing moments.

    Of a run that is replayed, ``estimate`` has the allocator's own least memory instead.

    Raises ``ValueError`` as ``estimate`` does, but not where vLLM does not start on this GPU: it needs more than that.
    """
    needs = [need_of(gpu, setup, of) for of in heights(model, gpu, setup)]
    return max(needs, key=attrgetter("high"))


def need_of(gpu: Gpu | None, setup: TrainingSetup, of: Heights) -> Range[int]:
    """The need of a run with these highest moments, of which two may set its ends: an engine has no slack."""
    context, exchange = context_bytes(gpu, setup.processes_per_gpu), exchange_bytes(setup.mesh)
    ends = [
        need_bytes(height, of.paged, context, exchange, engine)
        for engine, height in of.by_engine.items()
    ]
    return Range(max(end.low for end in ends), max(end.high for end in ends))


def is_refused(model: Model, setup: TrainingSetup) -> bool:
    """Whether ``need`` refuses the setup on any GPU (a yes or no), told without a step."""
    try:
        model, setup = as_run(model, setup)
        check_structure(model, structure(setup))
        check_sizes(model, setup)
    except ValueError:
        return True
    return False


def least_need(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> int:
    """Lower bound of the need in bytes per GPU for any batch, length or kernel: that of the optimizer's step."""
    model, setup = as_run(model, setup)
    step = resident_memory(model, structure(setup)).step_bytes
    if setup.mesh.strategy.places_layers:  # the fullest GPU holds at least an even share
        step //= setup.mesh.num_gpus
    return need_bytes(step, 0, context_bytes(gpu), exchange_bytes(setup.mesh)).low

"""A training step under ``device_map="auto"``: what each GPU holds, and when.

One process uses the GPUs in turn. Each holds its modules' weights, gradients and optimizer states, and what its layers
save for backward. Hidden states are copied from one GPU to the next, and the logits back to the first
(``parallel.device_map_hooks``). The step is played once, on a tape that records GPUs, and evaluated for each.

Leaves out: the norms of gradient clipping, 512 bytes per trained tensor, as on one GPU.

Source: transformers 5.23, trainer.py (``is_model_parallel``); accelerate 1.15, big_modeling.py, ``dispatch_model``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from estimator.families.kernels import attention_of
from estimator.families.weights import Buffer, buffers
from estimator.parallel.module_devices import FIRST, ModuleDevices, heads_on, modules_on
from estimator.parallel.placements import whole
from estimator.parallel.tensors import tensors_of
from estimator.passes.batch import joined
from estimator.passes.causal_lm import causal_lm
from estimator.passes.dropout import without_dropout
from estimator.passes.stack import LayerKind, Stack, kinds_of
from estimator.passes.step import Step
from estimator.resident.model import Resident
from estimator.run.loading import load_moment_of
from estimator.run.saving import taken_apart_bytes
from estimator.step.evaluation import evaluated
from estimator.step.records import Records
from estimator.step.timeline import (
    Run,
    Schedule,
    Sizes,
    runs_of,
)
from estimator.tape.program import Program, Sized, written_by
from estimator.tape.symbols import Recording
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Model, Optimizer, Phase


class Placed:
    """What neither batch nor length changes of a run on one GPU of a device map."""

    def __init__(
        self, model: Model, structure: TrainingSetup, at: ModuleDevices, gpu: int, workspace: int
    ) -> None:
        self._model, self._structure, self._workspace = model, structure, workspace
        self._modules = modules_on(model, at, gpu)
        self._tied = heads_on(model, at, gpu)
        self.resident = resident_on(model, structure, at, gpu)
        self.plan = PlanOn(_plan(model, _played(structure), at, training=True), gpu)
        evaluates = without_dropout(model), evaluated(structure)
        self.evaluation_plan = PlanOn(_plan(*evaluates, at, training=False), gpu)

    @cached_property
    def load(self) -> Moment:
        """The highest moment of loading in bytes: every weight goes directly to its own GPU.

        Source: transformers 5.23, core_model_loading.py, ``convert_and_load_state_dict_in_model``.
        """
        return load_moment_of(
            self._model, self._structure, self._modules, self._tied, self._workspace
        )

    @cached_property
    def save(self) -> Moment:
        """While a checkpoint is written: as in ``run.checkpoints``, with copies of this GPU's experts only."""
        sizes = self.resident.sizes(self._workspace)
        if not self._structure.adapters.uses_adapters:
            sizes[Component.TEMPORARIES] = taken_apart_bytes(
                self._model, self._structure, self._modules
            )
        return Moment(Phase.SAVE, "saving a checkpoint", {c: n for c, n in sizes.items() if n})


placed = lru_cache(maxsize=1024)(Placed)
"""The same, remembered."""


# --- what lies there ------------------------------------------------------------------------------


def buffers_on(model: Model, at: ModuleDevices, gpu: int) -> list[Buffer]:
    """Buffers on one GPU: each layer's with its layer, the model's on the first GPU."""
    found = []
    for buffer in buffers(model):
        one_a_layer = buffer.copies == model.num_hidden_layers
        copies = len(at.layers_on(gpu)) if one_a_layer else int(gpu == FIRST)
        found.append(buffer._replace(copies=copies))
    return [buffer for buffer in found if buffer.copies]


@lru_cache(maxsize=1024)
def resident_on(model: Model, structure: TrainingSetup, at: ModuleDevices, gpu: int) -> Resident:
    """Weights, adapters, gradients and states of one GPU, in bytes; the counts of parameters are the model's.

    A foreach optimizer groups tensors by GPU, so each GPU has its own temporaries.

    Source: torch 2.13, utils/_foreach_utils.py, ``_group_tensors_by_device_and_dtype``.
    """
    modules, tied = modules_on(model, at, gpu), heads_on(model, at, gpu)
    beside = sum(buffer.copies * buffer.bytes for buffer in buffers_on(model, at, gpu))
    return whole(model, structure, tensors_of(modules, structure.adapters, tied), beside)


# --- the step -------------------------------------------------------------------------------------


class PlacedLayer(NamedTuple):
    """What determines a layer's memory: its kind, its GPU, and whether its input is copied from another GPU."""

    kind: LayerKind
    gpu: int
    is_entered: bool


def placed_kinds(kinds: Sequence[LayerKind], at: ModuleDevices) -> list[PlacedLayer]:
    """The kind of every layer with its GPU; the first layer on each GPU is a kind of its own."""
    return [
        PlacedLayer(kind, gpu, index > 0 and gpu != at.layers[index - 1])
        for index, (kind, gpu) in enumerate(zip(kinds, at.layers, strict=True))
    ]


class PlacedPlan:
    """One kind of step on several GPUs: the program of each, and the order of its segments."""

    def __init__(
        self, model: Model, setup: TrainingSetup, at: ModuleDevices, *, training: bool
    ) -> None:
        self._model, self._at, self._training = model, at, training
        self._setup = setup.replace(attn_implementation=attention_of(model, setup.computation))
        self._schedules: Records[dict[int, Schedule]] = Records()

    def step(self, sizes: Sizes, gpu: int) -> tuple[Sized, Schedule]:
        """The step at these sizes on one GPU, and its schedule."""
        for schedules in self._schedules:
            sized = schedules[gpu].program.at(sizes[:3])
            if sized is not None:
                self._schedules.use(schedules)
                return sized, schedules[gpu]
        schedules = self._played(sizes)
        self._schedules.add(schedules, sum(schedule.bytes for schedule in schedules.values()))
        sized = schedules[gpu].program.at(sizes[:3])
        assert sized is not None  # it was played at these sizes
        return sized, schedules[gpu]

    def _played(self, sizes: Sizes) -> dict[int, Schedule]:
        recording = Recording()
        batch, length, rank = (recording.symbol(size) for size in sizes[:3])
        rows = joined(self._setup.batch, batch, length)
        setup = self._setup.replace(batch=rows, lora_r=rank)
        kinds = kinds_of(self._model, self._setup, int.__add__(rows.max_length, 0))
        placed = placed_kinds(kinds, self._at)
        step = Step(self._model, setup, Stack.of(placed), training=self._training, devices=self._at)
        causal_lm(step)
        schedules = {}
        for gpu in self._at.used:
            program = Program(written_by(step.tape, gpu), recording)
            runs = [
                run
                for run in runs_of(program.marks, step.stacks, step.labels)
                if _concerns(program, run)
            ]
            schedules[gpu] = Schedule(program, runs)
        return schedules


class PlanOn(NamedTuple):
    """One GPU's part of a plan."""

    plan: PlacedPlan
    gpu: int

    def step(self, sizes: Sizes) -> tuple[Sized, Schedule]:
        """The step at these sizes, and its schedule."""
        return self.plan.step(sizes, self.gpu)


def _concerns(program: Program, run: Run) -> bool:
    """Whether a GPU allocates or frees anything in a layer's segment; segments outside the layers always count."""
    start, end = program.spans[run.segment]
    return not run.layers or end > start


def _played(same: TrainingSetup) -> TrainingSetup:
    """The part of a setup that determines the program."""
    return same.replace(lora_r=1, optim=Optimizer.SGD, optim_state_dtype=None)


@lru_cache(maxsize=256)
def _plan(
    model: Model, structure: TrainingSetup, at: ModuleDevices, *, training: bool
) -> PlacedPlan:
    return PlacedPlan(model, structure, at, training=training)

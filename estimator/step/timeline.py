"""The moments of a step in order of time, each with its ledger; the height of each phase; the peak.

Equal layers take equal memory. So the first, the last and one layer of each kind are played on the tape, and the others
repeat them in the model's order of layers. The peak is a maximum over moments, never a sum over everything allocated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import add
from typing import Any, NamedTuple, Protocol, TypeVar

from estimator.families.kernels import attention_of
from estimator.parallel.ddp import plays_as_alone
from estimator.parallel.zero import gathering
from estimator.parallel.zero3_coordinator import (
    IN_TOWER,
    OUTSIDE,
    CallTrace,
    Coordinator,
    Gathers,
    Repeated,
    Rules,
)
from estimator.parallel.zero_partitions import forgets_gradients, keeps_parts
from estimator.passes.batch import accumulates, alike, joined, scored_tokens
from estimator.passes.prepared import as_played
from estimator.passes.stack import Stack, stack_of
from estimator.passes.step import MicroStep, Step
from estimator.resident.model import (
    Resident,
)
from estimator.step.records import Records
from estimator.tape.program import Changes, Program, Reason, Sized
from estimator.tape.symbols import Recording
from estimator.tape.tape import COMPONENTS, GRADIENTS, WEIGHTS, Mark, Place
from estimator.values.declaration import rows
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.batch import Batch
from estimator.values.facets.computation import Computation
from estimator.values.facets.images import Images
from estimator.values.facets.mesh import OF_THE_MACHINE, Mesh
from estimator.values.facets.objective import Task
from estimator.values.facets.optimisation import Optimisation
from estimator.values.facets.precision import Precision
from estimator.values.facets.run import TrainingRun
from estimator.values.remembered import remembered
from estimator.values.results import HeldTensors, Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import FULL_STATE_DICT, Component, Model, Offload, Optimizer, Phase
from estimator.values.strategies import Strategy

SomeFacet = TypeVar("SomeFacet", Adapters, Optimisation, Task, Mesh, TrainingRun)


class Run(NamedTuple):
    """Consecutive parts of the real step that one segment represents."""

    segment: int
    phase: Phase
    layers: Sequence[int]
    """The layers, in order of time; empty outside the layers, where the run repeats once."""
    length: int
    """Number of repetitions."""
    has_moments: bool
    of_layers: int = 0
    """Number of layers in their stack."""
    label: str = ""
    """Label of the pass."""
    number: int = 0
    """Of the pass."""
    model: int = 0
    """Whose pass it is: the number of its stack, or of its text's for a tower."""
    in_tower: bool = False
    """Whether its layers are those of a vision tower."""

    def named(self, operation: str, place: int) -> str:
        """An operator in one of its repetitions, as a moment says it: ``layer 9 of 32: q_proj``."""
        name = operation
        if self.layers:
            name = f"layer {self.layers[place] + 1} of {self.of_layers}: {name}"
        return f"{self.label}: {name}" if self.label else name


BYTES_PER_ENTRY = 100
"""Of an event, an operation or a run of a record: 75 to 98 where it has a thousand or more (measured: tracemalloc,
Python 3.11, six models)."""
BYTES_PER_MOMENT = 800
"""Of a moment with its parts: 720 to 1,100 (measured in the same way)."""
BYTES_PER_LEVEL = 48
"""Of a gathered level: 36 to 48 (measured in the same way)."""
BYTES_PER_CALL = 800
"""Of a module call that a coordinator follows, with what it has computed (measured: 130 MB of 43 coordinators)."""
MOST_GATHERED_BYTES = 64 * 2**20
"""Bytes of gathered levels, and as many of coordinated calls, that are remembered: ours."""
MOST_CHANGES = 64
"""Moments of a record whose changes are remembered: ours; a step has some four."""


class Schedule:
    """A played program, and the order in which its segments make up the real step."""

    def __init__(
        self, program: Program, runs: Sequence[Run], rules: Sequence[Rules | None] = ()
    ) -> None:
        self.program = program
        self.runs = runs
        self.rules = rules
        """How ZeRO-3 gathers the weights of each stack's model; None where weights are on the tape or stay resident,
        and for a tower, whose model is its text's."""
        self._until_here: dict[tuple[int, int, int], Changes] = {}
        self._calls: dict[int, tuple[Repeated, ...]] = {}

    @property
    def bytes(self) -> int:
        """Memory of the record in this process, in bytes, about."""
        return BYTES_PER_ENTRY * (
            len(self.program.signs) + len(self.program.recording.steps) + len(self.runs)
        )

    def changes_until(self, index: int, place: int, top: int) -> Changes:
        """Net allocations before the event ``top`` in the ``place``-th repetition of a run."""
        found = self._until_here.get((index, place, top))
        if found is None:
            spans, run = self.program.spans, self.runs[index]
            found = self.program.change_of_all(
                [
                    *((*spans[before.segment], before.length) for before in self.runs[:index]),
                    (*spans[run.segment], place),
                    (spans[run.segment][0], top, 1),
                ]
            )
            if len(self._until_here) >= MOST_CHANGES:
                self._until_here.clear()
            self._until_here[index, place, top] = found
        return found

    def gathered(self, sized: Sized, ranks: int) -> Gathered | None:
        """Weights that ZeRO-3 holds gathered at every module call; None without ZeRO-3."""
        if not any(self.rules):
            return None
        return _gathered(self, tuple(sized.wholes.items()), ranks)

    def gathers(self, sized: Sized, ranks: int, *, records: bool = False) -> dict[int, Gathers]:
        """What ZeRO-3 gathers and lets go at every module call, by the number of the model; empty without ZeRO-3.

        ``records``: in the first step.
        """
        wholes = tuple(sized.wholes.items())
        return {
            model: _coordinator(self, model, wholes, records=records).gathers(
                ranks, is_offloaded=rules.is_offloaded
            )
            for model, rules in enumerate(self.rules)
            if rules is not None
        }

    def repeated(self, run: Run, model: int = 0) -> Repeated:
        """The module calls of this model in a run; none where the run is another model's."""
        calls = self.program.calls[run.segment] if run.model == model else ()
        first = IN_TOWER if run.in_tower else 0
        return Repeated(
            tuple(first + layer for layer in run.layers) or (OUTSIDE,),
            run.phase is Phase.BACKWARD,
            tuple(call.unplaced for call in calls),
            run.number,
        )

    def calls(self, model: int) -> tuple[Repeated, ...]:
        """The same of every run."""
        if model not in self._calls:
            self._calls[model] = tuple(self.repeated(run, model) for run in self.runs)
        return self._calls[model]


class Gathered:
    """Bytes of gathered weights by run, repetition, and part of the segment in the order of ``Height.parts``."""

    def __init__(self, levels: Iterable[Sequence[Sequence[int]]]) -> None:
        self.levels = list(levels)
        self.bytes = BYTES_PER_LEVEL * sum(
            len(repetition) for run in self.levels for repetition in run
        )
        """Memory of the levels in this process, about."""
        self.alike = [_first_and_last(run) for run in self.levels]
        """For each run: first and last repetition of each distinct gather pattern, with its maximum."""


def _bytes_of_levels(gathered: Gathered) -> list[tuple[object, int]]:
    return [(gathered, gathered.bytes)]


@remembered(64, MOST_GATHERED_BYTES, _bytes_of_levels)
def _gathered(schedule: Schedule, wholes: tuple[tuple[str, int], ...], ranks: int) -> Gathered:
    of_models = [
        _coordinator(schedule, model, wholes).levels(ranks, is_offloaded=rules.is_offloaded)
        for model, rules in enumerate(schedule.rules)
        if rules is not None
    ]
    if len(of_models) == 1:
        return Gathered(of_models[0])
    return Gathered(map(_together, zip(*of_models, strict=True)))


def _together(of_models: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """The levels of several models in one run, added up; only the one whose run it is has more than one level."""
    return [
        [
            sum(levels[at] if len(levels) > 1 else levels[0] for levels in stretch)
            for at in range(max(map(len, stretch)))
        ]
        for stretch in zip(*of_models, strict=True)
    ]


def _coordinator(
    schedule: Schedule, model: int, wholes: tuple[tuple[str, int], ...], *, records: bool = False
) -> Coordinator:
    """That of equal calls, of whichever schedule, offloaded or not; the weights' elements depend on the rank too."""
    rules = schedule.rules[model]
    assert rules is not None
    return _coordinated(schedule.calls(model), wholes, rules._replace(is_offloaded=False), records)


def _bytes_of_calls(coordinator: Coordinator) -> list[tuple[object, int]]:
    calls = sum(len(repetition) for run in coordinator.call_trace.stretches for repetition in run)
    return [(coordinator, BYTES_PER_CALL * calls)]


@remembered(64, MOST_GATHERED_BYTES, _bytes_of_calls)
def _coordinated(
    calls: tuple[Repeated, ...], wholes: tuple[tuple[str, int], ...], rules: Rules, records: bool
) -> Coordinator:
    call_trace = CallTrace([repeated.stretches for repeated in calls], dict(wholes), rules)
    return Coordinator(call_trace, rules, records=records)


def _first_and_last(run: Iterable[Sequence[int]]) -> list[tuple[int, int, int]]:
    places: dict[tuple[int, ...], tuple[int, int]] = {}
    for place, levels in enumerate(run):
        first, _ = places.get(key := tuple(levels), (place, place))
        places[key] = first, place
    return [(first, last, max(levels)) for levels, (first, last) in places.items()]


class Sizes(NamedTuple):
    """The numbers that change only the sizes in a step."""

    batch: int
    length: int
    rank: int
    gpus: int
    scored: int
    """Tokens of a row that the loss counts."""
    at_once: int
    """Rows of an embedding batch that go through the model at once."""

    @classmethod
    def of(cls, setup: TrainingSetup, batch: int | None = None, gpus: int | None = None) -> Sizes:
        """The numbers of a setup; ``batch`` and ``gpus`` where they are not those of its training."""
        examples = setup.batch.per_device_train_batch_size if batch is None else batch
        return cls(
            examples,
            setup.batch.max_length,
            setup.adapters.lora_r,
            setup.mesh.shard_ranks if gpus is None else gpus,
            scored_tokens(setup),
            min(setup.task.mini_batch_size or examples, examples),
        )


class Steps(Protocol):
    """Gives the step of a setup."""

    def step(self, sizes: Sizes) -> tuple[Sized, Schedule]:
        """The step at these sizes, and its schedule."""


class Plan:
    """One kind of step: its programs, and the order in which their segments make up the real step."""

    def __init__(
        self,
        model: Model,
        setup: TrainingSetup,
        *,
        training: bool = True,
        objective: MicroStep | None = None,
    ) -> None:
        self._objective = objective or setup.task.objective.step
        model, setup = as_played(model, setup)
        self._model = model
        self._setup = setup.replace(attn_implementation=attention_of(model, setup.computation))
        self._training = training
        self._resting = (
            _with_resting_weights(model, setup) if training and objective is None else None
        )
        self.schedules: Records[Schedule] = Records()

    def step(self, sizes: Sizes) -> tuple[Sized, Schedule]:
        """The step at these sizes, and its schedule."""
        for schedule in self.schedules:
            sized = _at(schedule.program, sizes)
            if sized is not None:
                self.schedules.use(schedule)
                return sized, schedule
        schedule = self._played(sizes)
        self.schedules.add(schedule, schedule.bytes)
        sized = _at(schedule.program, sizes)
        assert sized is not None  # it was played at these sizes
        return sized, schedule

    def _played(self, sizes: Sizes) -> Schedule:
        if self._resting is not None:
            _, same = self._resting.step(sizes)
            rules = [rule and rule._replace(is_offloaded=True) for rule in same.rules]
            return Schedule(same.program, same.runs, rules)
        recording = Recording()
        batch, length, rank, gpus, scored, at_once = (recording.symbol(size) for size in sizes)
        given = self._setup
        if keeps_parts(given.mesh):  # whose partitions lie where they lie on these GPUs
            given = given.replace(num_gpus=sizes.gpus)
        rows = joined(given.batch, batch, length)
        setup = given.replace(batch=rows, lora_r=rank)
        if rows.is_joined:
            scored = batch * scored
        stack = stack_of(self._model, given, int.__add__(rows.max_length, 0))
        step = Step(
            self._model,
            setup,
            stack,
            gpus,
            training=self._training,
            scored=scored,
            at_once=at_once,
        )
        self._objective(step)
        program = Program(step.tape, recording)
        recording.close()
        step.tape.close()
        runs = list(runs_of(program.marks, step.stacks, step.labels))
        rules = [
            gathering(of.model, of.given.adapters, of.given.mesh, trained=of.trained)
            if stack is of.stack
            else None
            for of in step.models
            for stack in of.stacks
        ]
        return Schedule(program, runs, rules)


@lru_cache(maxsize=64)
def _at(program: Program, sizes: Sizes) -> Sized | None:
    """``Program.at``, remembered for the setups beside one: other cards and what is offloaded change no size."""
    return program.at(sizes)


def _with_resting_weights(model: Model, setup: TrainingSetup) -> Plan | None:
    """The plan whose program stage 3 also runs with offloaded weights, which only come from elsewhere; None: none."""
    mesh = setup.mesh
    is_offloaded = mesh.strategy.gathers_modules and mesh.offload_param is not Offload.NONE
    if not is_offloaded or mesh.num_gpus == 1:  # which alone gathers offloaded weights only
        return None
    return plan(model, setup.replace(offload_param=Offload.NONE))


def runs_of(marks: Sequence[Mark], stacks: Sequence[Stack], labels: Sequence[str]) -> Iterator[Run]:
    """Expand the played segments to all real layers: forward in their order, backward in reverse.

    A layer that backward does not reach has no segment there. ``labels``: one per pass.
    """
    layers = [stack.stand_ins for stack in stacks]
    for (phase, stage, at), numbered in groupby(enumerate(marks), key=_stage_of):
        segments = list(numbered)
        in_tower = stacks[at.stack].is_tower
        model = at.stack - in_tower
        label = ", ".join(
            filter(None, (labels[at.forward] if labels else "", stacks[at.stack].label))
        )
        if at.layer is None:
            for segment, _ in segments:
                yield Run(segment, phase, (), 1, True, 0, label, at.forward, model, in_tower)
            continue
        by_layer = {mark.place.layer: segment for segment, mark in segments}
        order = range(len(layers[at.stack]))
        for stand_in, run in groupby(
            reversed(order) if phase is Phase.BACKWARD else order,
            key=layers[at.stack].__getitem__,
        ):
            alike = tuple(run)
            if stand_in in by_layer:
                yield Run(
                    by_layer[stand_in],
                    phase,
                    alike,
                    len(alike),
                    has_moments=stage == "layer",
                    of_layers=len(order),
                    label=label,
                    number=at.forward,
                    model=model,
                    in_tower=in_tower,
                )


def _stage_of(numbered: tuple[int, Mark]) -> tuple[Phase, str, Place]:
    """Phase, stage and place without the layer: equal for all layers of one stack in one pass."""
    _, mark = numbered
    layer = None if mark.place.layer is None else 0
    return mark.phase, mark.stage, mark.place._replace(layer=layer)


STRETCHING = frozenset(
    {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "max_length",
        "eval_strategy",
        "per_device_eval_batch_size",
        "eval_accumulation_steps",
        "save_strategy",
        "save_total_limit",
        "num_train_examples",
        "num_train_epochs",
        "mean_tokens_per_example",
        "usd_per_gpu_hour",
        "mfu",
        "pace",
        "pace_from",
        "pace_shares",
        "lora_alpha",
        "max_grad_norm",
        *OF_THE_MACHINE,
        "completion_fraction",
        "max_prompt_length",
    }
)
"""Keys that change at most the sizes of a step's tensors, and no refusal. Of accumulation only whether there is any
matters."""


@lru_cache(maxsize=1024)
def structure(setup: TrainingSetup) -> TrainingSetup:
    """The setup with every key of ``STRETCHING`` at its default: one cache key for all sizes of a step."""
    batch = setup.batch
    return _structure(
        _unstretched(setup.adapters),
        setup.precision,
        _unstretched(setup.optimisation),
        _batch(
            batch.padded, batch.packing, batch.padding_free, batch.gradient_accumulation_steps > 1
        ),
        setup.images,
        setup.computation,
        _unstretched(alike(setup)),
        _unstretched(setup.mesh),
        _unstretched(setup.run),
    )


@lru_cache(maxsize=16)
def _batch(padded: bool, packing: bool, padding_free: bool, accumulates: bool) -> Batch:
    return Batch(
        padded=padded,
        packing=packing,
        padding_free=padding_free,
        gradient_accumulation_steps=1 + accumulates,
    )


@lru_cache(maxsize=1024)
def _unstretched(facet: SomeFacet) -> SomeFacet:
    same = {row.name: row.default for row in rows(type(facet)) if row.name in STRETCHING}
    return replace(facet, **same)


@lru_cache(maxsize=1024)
def _structure(
    adapters: Adapters,
    precision: Precision,
    optimisation: Optimisation,
    batch: Batch,
    images: Images,
    computation: Computation,
    task: Task,
    mesh: Mesh,
    run: TrainingRun,
) -> TrainingSetup:
    return TrainingSetup(
        adapters=adapters,
        precision=precision,
        optimisation=optimisation,
        batch=batch,
        images=images,
        computation=computation,
        task=task,
        mesh=mesh,
        run=run,
    )


@lru_cache(maxsize=1024)
def plan(model: Model, structure: TrainingSetup) -> Plan:
    """The plan of a structure; shared by all adapter ranks, numbers of GPUs and optimizers, and by DDP."""
    mesh = structure.mesh
    replicas = 2 if mesh.strategy.has_groups else 1
    same: dict[str, Any] = {
        "lora_r": 1,
        "num_gpus": replicas * mesh.tp_size * min(2, mesh.num_gpus),
        "dp_replicate_size": replicas,
        "save_only_model": False,
        "fsdp_state_dict_type": FULL_STATE_DICT,
        "zero3_save_16bit_model": False,
    }
    if plays_as_alone(model, structure):
        same |= {"strategy": Strategy.NONE, "num_gpus": 1}
    if forgets_gradients(mesh):
        same["gradient_accumulation_steps"] = 1
    if not structure.optimisation.optimizer_in_bwd:  # its temporaries are in backward
        same |= {"optim": Optimizer.SGD, "optim_state_dtype": None}
    return _plan(model, structure.replace(**same))


@lru_cache(maxsize=256)
def _plan(model: Model, structure: TrainingSetup) -> Plan:
    return Plan(model, structure)


class Top(NamedTuple):
    """The highest moment of a phase, or of one repetition of a segment."""

    height: int
    run: int
    place: int
    before: int
    """Events of the segment before it."""
    gathered: int
    """Bytes of weights that ZeRO-3 holds gathered then."""


class Walk:
    """A program's segments in the order of the real step, on top of what is resident at its start."""

    def __init__(
        self,
        step: tuple[Sized, Schedule],
        begins: Mapping[Component, int],
        ranks: int = 1,
        to_come: int = 0,
    ) -> None:
        self._sized, self._schedule = step
        self._begins = [begins[component] for component in COMPONENTS]
        self._to_come = to_come
        """Gradients among these that do not exist yet while completions are scored, before the first micro-step."""
        self._ranks = ranks

    @cached_property
    def _gathered(self) -> Gathered | None:
        return self._schedule.gathered(self._sized, self._ranks)

    @property
    def parts(self) -> list[tuple[object, int]]:
        """What it holds in this process's memory, with its bytes: the record, and the moments that may be asked for."""
        moments = sum(run.length for run in self._schedule.runs if run.has_moments)
        return [(self._schedule, self._schedule.bytes), (self, BYTES_PER_MOMENT * moments)]

    @property
    def resident(self) -> Mapping[Component, int]:
        """Bytes resident at the start, by component."""
        return dict(zip(COMPONENTS, self._begins, strict=True))

    @property
    def peak_bytes(self) -> int:
        """Bytes at the highest moment."""
        if self._to_come:
            return max(top.height for top in self.highest().values())
        return sum(self._begins) + risen((self._sized, self._schedule), self._ranks)

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """Each layer and stage at its highest; with accumulation, those of the second micro-step."""
        running = list(self._begins)
        moments = []
        for index, run in enumerate(self._schedule.runs):
            segment = self._sized.segments[run.segment]
            for place in range(run.length):
                if run.has_moments:
                    rise = segment.rise
                    top = self._top(0, index, place)
                    if self._gathered is not None:
                        rise = self._sized.bytes_of(
                            self._schedule.program.change(*self._until(top))
                        )
                    moments.append(self._moment(top, map(add, self._there(run, running), rise)))
                running = list(map(add, running, segment.net))
        return tuple(moments)

    def heights(self) -> dict[Phase, Moment]:
        """The highest moment of each phase."""
        heights = {}
        for phase, top in self.highest().items():
            changes = self._schedule.changes_until(top.run, top.place, self._until(top)[1])
            begins = self._there(self._schedule.runs[top.run], self._begins)
            alive = map(add, begins, self._sized.bytes_of(changes))
            heights[phase] = self._moment(top, alive)
        return heights

    def _there(self, run: Run, begins: Sequence[int]) -> list[int]:
        """Bytes by component without the gradients that are to come, where completions are scored."""
        there = list(begins)
        if run.phase is Phase.SCORING:
            there[GRADIENTS] -= self._to_come
        return there

    def highest(self) -> dict[Phase, Top]:
        """The highest moment of each phase.

        In a run of equal segments it is in the last one if each adds bytes, else in the first.
        """
        alive = sum(self._begins)
        highest: dict[Phase, Top] = {}
        for index, (segment, phase, _, length, has_moments, *_) in enumerate(self._schedule.runs):
            _, rise, net, _ = self._sized.heights[segment]
            if has_moments:
                alike = [(0, length - 1, 0)]
                if self._gathered is not None:
                    alike = self._gathered.alike[index]
                for first, last, gathered in alike:
                    place = last if net > 0 else first
                    begins = alive + place * net - self._to_come * (phase is Phase.SCORING)
                    if phase in highest and begins + rise + gathered <= highest[phase].height:
                        continue
                    top = self._top(begins, index, place)
                    if phase not in highest or top.height > highest[phase].height:
                        highest[phase] = top
            alive += length * net
        return highest

    def _top(self, alive: int, index: int, place: int) -> Top:
        """The highest moment of one repetition, given the bytes alive at its start."""
        height = self._sized.heights[self._schedule.runs[index].segment]
        if self._gathered is None:
            return Top(alive + height.rise, index, place, height.before, 0)
        highest, before, gathered = max(
            (rise + level, -before, level)
            for (before, rise), level in zip(
                height.parts, self._gathered.levels[index][place], strict=True
            )
        )
        return Top(alive + highest, index, place, -before, gathered)

    def _until(self, top: Top) -> tuple[int, int]:
        """Range of the segment's events up to its highest moment."""
        start = self._schedule.program.spans[self._schedule.runs[top.run].segment][0]
        return start, start + top.before

    def _moment(self, top: Top, alive: Iterable[int]) -> Moment:
        run = self._schedule.runs[top.run]
        name = run.named(self._sized.operation(run.segment, top.before), top.place)
        sizes = list(alive)
        sizes[WEIGHTS] += top.gathered
        return Moment(
            run.phase, name or self._schedule.program.marks[run.segment].stage, _alive(sizes)
        )


NOTHING: Mapping[Component, int] = dict.fromkeys(COMPONENTS, 0)


def risen(step: tuple[Sized, Schedule], ranks: int = 1) -> int:
    """Bytes of the highest moment above those at the start, whatever these are."""
    sized, schedule = step
    key = schedule, ranks
    if key not in sized.risen:
        sized.risen[key] = max(top.height for top in Walk(step, NOTHING, ranks).highest().values())
    return sized.risen[key]


def at_begin(setup: TrainingSetup, resident: Resident, workspace: int) -> dict[Component, int]:
    """Bytes by component when a micro-step begins, with the gradients of earlier ones if any.

    Source: derived, from ``Resident``.
    """
    sizes = resident.sizes(workspace)
    if accumulates(setup) or setup.mesh.strategy.has_gradient_buffer:
        sizes[Component.GRADIENTS] = resident.accumulated
    return sizes


def at_step(begins: Mapping[Component, int], resident: Resident) -> dict[Component, int]:
    """Bytes by component in the optimizer's step, without what backward leaves over.

    Source: derived, from ``Resident``.
    """
    return {
        **begins,
        Component.GRADIENTS: resident.gradients,
        Component.TEMPORARIES: resident.transient,
    }


class StepTimeline(Walk):
    """The moments of one step after the first, in order of time; the full list is computed on demand."""

    def __init__(
        self,
        setup: TrainingSetup,
        plan: Steps,
        resident: Resident,
        workspace: int,
    ) -> None:
        begins = at_begin(setup, resident, workspace)
        to_come = 0
        if setup.task.objective.generates and not setup.mesh.strategy.has_gradient_buffer:
            to_come = begins[Component.GRADIENTS]
        super().__init__(plan.step(Sizes.of(setup)), begins, setup.mesh.shard_ranks, to_come)
        self._states_from_start = resident.states.from_start
        stepped = {**at_step(begins, resident), Component.ACTIVATIONS: self.left_over_bytes}
        self._step = Moment(
            Phase.OPTIMIZER_STEP, f"{setup.optimisation.optim.value} step", _alive(stepped.values())
        )

    @property
    def left_over_bytes(self) -> int:
        """What TRL's activation offloading holds after backward, as ``Offloading.left_over``."""
        return self._sized.left_over

    @property
    def states_from_start(self) -> int:
        """Bytes of optimizer states that exist before the first step."""
        return self._states_from_start

    @property
    def peak_bytes(self) -> int:
        """Bytes at the highest moment."""
        return max(super().peak_bytes, self._step.bytes)

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """Each layer and stage at its highest, and the optimizer's step."""
        return (*super().moments, self._step)

    def heights(self) -> dict[Phase, Moment]:
        """The highest moment of each phase of the step."""
        return {**super().heights(), Phase.OPTIMIZER_STEP: self._step}

    def held(self, phase: Phase) -> tuple[HeldTensors, ...]:
        """Tensors on the tape at the highest moment of forward, loss or backward, by operator; the most bytes first.

        Excludes weights, adapters, states, the workspace and gradients of earlier micro-steps.
        """
        top = self.highest()[phase]
        counts: Counter[Reason] = Counter()
        for run in self._schedule.runs[: top.run]:
            self._sized.add_held(counts, run.segment, run.length)
        peak = self._schedule.runs[top.run].segment
        self._sized.add_held(counts, peak, top.place)
        self._sized.add_held(counts, peak, 1, before=top.before)
        if top.gathered:
            counts[WEIGHTS, "all-gather", top.gathered] += 1
        return _by_reason(counts)

    def kept_by_a_layer(self) -> tuple[HeldTensors, ...]:
        """Tensors that one middle layer keeps from forward to backward, by operator; the most bytes first."""
        forward = [run for run in self._schedule.runs if run.layers and run.phase is Phase.FORWARD]
        middle = max(
            forward,
            key=lambda run: (run.length, -abs(run.layers[0] - run.of_layers // 2)),
            default=None,
        )
        if middle is None:  # a GPU without layers
            return ()
        counts: Counter[Reason] = Counter()
        self._sized.add_held(counts, middle.segment, 1)
        return _by_reason(counts)


def _by_reason(counts: Counter[Reason]) -> tuple[HeldTensors, ...]:
    together: dict[tuple[Component, str], HeldTensors] = {}
    for (component, operation, size), tensors in counts.items():
        key = COMPONENTS[component], operation
        before = together.get(key, HeldTensors(*key, 0, 0))
        together[key] = HeldTensors(*key, before.tensors + tensors, before.bytes + tensors * size)
    alive = [held for held in together.values() if held.bytes]
    return tuple(sorted(alive, key=lambda held: -held.bytes))


def _alive(sizes: Iterable[int]) -> dict[Component, int]:
    return {component: size for component, size in zip(COMPONENTS, sizes, strict=True) if size}

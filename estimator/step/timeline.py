"""The moments of a step in order of time, each with its ledger; the height of each phase; the peak.

Equal layers do equal things: the first, the last and one layer of each kind between them are played on the tape, and
what the others add follows by repetition, in the model's own order of layers. The peak is a maximum over moments,
never a sum of everything that ever lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import add, attrgetter
from typing import NamedTuple, Protocol

from estimator.families.parameters import (
    Embedding,
    Linear,
    Module,
    adapted_tied_head,
    adapter_parameters,
    copied_modules,
    modules_with_counts,
    total_parameters,
    trainable_parameters,
    weight_shapes,
)
from estimator.families.registry import attention_of
from estimator.families.weights import (
    adapter_tensors,
    buffers,
    module_bytes,
    tensors_bytes,
    unquantized_width,
    weight_width,
)
from estimator.parallel.fsdp1 import (
    flat_accumulated_bytes,
    flat_bytes,
    flat_gradient_bytes,
    flat_tensors,
)
from estimator.parallel.sharding import (
    bucket_bytes,
    computed,
    sharded_adapter_bytes,
    sharded_gradient_bytes,
    sharded_tensors,
    sharded_weight_bytes,
    unmoved_weight_bytes,
)
from estimator.parallel.zero import gathering, held
from estimator.parallel.zero3_coordinator import OUTSIDE, Coordinator, Rules, Script
from estimator.resident.optimizer import States, Trainable, optimizer_states, step_transient
from estimator.step.decoder import Step, has_window, layer_kinds, reached
from estimator.tape.program import Changes, Program, Reason, Sized
from estimator.tape.symbols import Recording
from estimator.tape.tape import COMPONENTS, WEIGHTS, Call, Mark
from estimator.values.results import Held, Moment
from estimator.values.specs import (
    FULL_STATE_DICT,
    Component,
    Model,
    Offload,
    Optimizer,
    Phase,
    Strategy,
    TrainingSetup,
)

Alike = Iterable[tuple[Module, int]]
"""Modules with weights, and how many alike."""


def weight_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of all weights but the adapters, and of what lies beside them untrained, per GPU.

        Σ modules  count · bytes  +  Σ buffers  count · bytes

    Source: derived, from ``module_bytes`` and ``buffers``.
    """
    weights = bytes_of(modules_with_counts(model), setup)
    return weights + sum(buffer.copies * buffer.bytes for buffer in buffers(model))


def bytes_of(modules: Alike, setup: TrainingSetup) -> int:
    """Bytes of the weights of some modules, adapters not.

    Source: derived, from ``module_bytes``.
    """
    return sum(count * module_bytes(module, setup) for module, count in modules)


def adapter_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of all that PEFT adds, per GPU: adapters, and the copies of ``modules_to_save``.

        Σ adapted linears  (r · (in + out) + out where DoRA) · p  +  Σ copied modules  elements · w
        p: bytes per element of an adapter, 4 by PEFT's default; w: of a weight, as loaded

    Source: derived, from ``adapter_tensors``; peft 0.21, tuners/tuners_utils.py, ``cast_adapter_dtype`` (adapters alone
    become float32, copies do not).
    """
    return adapters_of(_adaptable(model, setup), copied_modules(model, setup), setup)


def _adaptable(model: Model, setup: TrainingSetup) -> Iterator[tuple[Module, int]]:
    yield from modules_with_counts(model)
    yield from adapted_tied_head(model, setup)


def adapters_of(modules: Alike, copies: Alike, setup: TrainingSetup) -> int:
    """Bytes of the adapters of some modules, and of the copies of others.

    Source: derived, from ``adapter_tensors``.
    """
    adapters = sum(
        count * tensor.bytes
        for module, count in modules
        for tensor in adapter_tensors(module, setup)
    )
    return adapters + sum(
        count * tensors_bytes(weight_shapes(module), unquantized_width(setup))
        for module, count in copies
    )


def trainable_tensors(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """Every trained tensor: all weights, or the adapters and what PEFT copied whole."""
    return trained_of(_adaptable(model, setup), copied_modules(model, setup), setup)


def trained_of(modules: Alike, copies: Alike, setup: TrainingSetup) -> list[Trainable]:
    """The trained tensors of some modules, and of those that PEFT copied whole."""
    tensors = [
        _trained(module, shape, count, setup)
        for module, count in copies
        for shape in weight_shapes(module)
    ]
    for module, count in modules:
        if setup.uses_adapters:
            tensors += [
                Trainable(tensor.shape, tensor.width, count, is_linear=len(tensor.shape) == 2)
                for tensor in adapter_tensors(module, setup)
            ]
        else:
            tensors += [_trained(module, shape, count, setup) for shape in weight_shapes(module)]
    return tensors


def _trained(module: Module, shape: tuple[int, ...], count: int, setup: TrainingSetup) -> Trainable:
    linear = isinstance(module, Linear) and not module.conv1d and len(shape) == 2
    embedding = isinstance(module, Embedding)
    return Trainable(shape, weight_width(module, setup), count, embedding, linear)


def gradient_bytes(tensors: Iterable[Trainable]) -> int:
    """Bytes of all gradients, one for each trained tensor in its dtype.

    Source: torch 2.13, torch/csrc/autograd/functions/accumulate_grad.h.
    """
    return sum(tensor.alike * tensors_bytes([tensor.shape], tensor.width) for tensor in tensors)


def played_layers(kinds: Sequence[Hashable]) -> list[int]:
    """Indices of the layers to play: of each kind the lowest and one more, and the last of all.

    The lowest of a kind is the last in backward to need what its kind shares: a mask, rotary tables.
    """
    last = len(kinds) - 1
    lowest = {kinds[index]: index for index in range(last, -1, -1)}
    others = {
        kinds[index]: index for index in range(last - 1, 0, -1) if index != lowest[kinds[index]]
    }
    return sorted({last, *lowest.values(), *others.values()})


def stand_ins(kinds: Sequence[Hashable], played: Sequence[int]) -> list[int]:
    """For every real layer, the position in ``played`` of the layer that stands for it."""
    last = len(kinds) - 1
    position = {index: place for place, index in enumerate(played)}
    by_kind = {kinds[index]: position[index] for index in played if 0 < index < last}
    return [position.get(index, by_kind.get(kinds[index], 0)) for index in range(len(kinds))]


class Run(NamedTuple):
    """Stretches of the real step that one segment stands for, one after the other."""

    segment: int
    phase: Phase
    layers: Sequence[int]
    """Which layers, in order of time; empty outside the layers, where the run is one stretch."""
    length: int
    """How many stretches."""
    has_moments: bool


class Course:
    """A played program, and the order in which its stretches make up the real step."""

    def __init__(self, program: Program, runs: Sequence[Run], rules: Rules | None = None) -> None:
        self.program = program
        self.runs = runs
        self.rules = rules
        """How stage 3 gathers weights; None where weights are on the tape, or rest."""
        self._there: dict[tuple[int, int, int], Changes] = {}

    def there(self, index: int, place: int, top: int) -> Changes:
        """What came and has not gone when the event ``top`` is next, at a place of a run."""
        if (index, place, top) not in self._there:
            spans, run = self.program.spans, self.runs[index]
            self._there[index, place, top] = self.program.change_of_all(
                [
                    *((*spans[before.segment], before.length) for before in self.runs[:index]),
                    (*spans[run.segment], place),
                    (spans[run.segment][0], top, 1),
                ]
            )
        return self._there[index, place, top]

    def gathered(self, sized: Sized, ranks: int) -> Gathered | None:
        """What stage 3 has gathered at every call of a module; None without stage 3."""
        if self.rules is None:
            return None
        return _gathered(self, self.rules, tuple(sized.wholes.items()), ranks)

    def calls_of(self, run: Run) -> list[tuple[int, bool, Sequence[Call]]]:
        """The layer of each of a run's stretches, whether it is backward, and the modules that it calls."""
        calls, is_backward = self.program.calls[run.segment], run.phase is Phase.BACKWARD
        return [(layer, is_backward, calls) for layer in run.layers or (OUTSIDE,)]


class Gathered:
    """Bytes of gathered weights by run, by stretch in it, and by part of the stretch, as ``Height.parts`` has them."""

    def __init__(self, levels: Iterable[Sequence[Sequence[int]]]) -> None:
        self.levels = list(levels)
        self.alike = [_first_and_last(run) for run in self.levels]
        """For each run the first and the last place of every different course in a stretch, and the most there."""


@lru_cache(maxsize=256)
def _gathered(
    course: Course, rules: Rules, wholes: tuple[tuple[str, int], ...], ranks: int
) -> Gathered:
    return Gathered(_coordinator(course, rules, wholes).levels(ranks))


@lru_cache(maxsize=64)
def _coordinator(course: Course, rules: Rules, wholes: tuple[tuple[str, int], ...]) -> Coordinator:
    """By the elements of the weights, which a rank of adapters changes."""
    return Coordinator(Script(map(course.calls_of, course.runs), dict(wholes), rules), rules)


def _first_and_last(run: Iterable[Sequence[int]]) -> list[tuple[int, int, int]]:
    places: dict[tuple[int, ...], tuple[int, int]] = {}
    for place, levels in enumerate(run):
        first, _ = places.get(key := tuple(levels), (place, place))
        places[key] = first, place
    return [(first, last, max(levels)) for levels, (first, last) in places.items()]


class Sizes(NamedTuple):
    """The numbers that only stretch a step."""

    batch: int
    length: int
    rank: int
    gpus: int


class Steps(Protocol):
    """Where the step of a setup comes from."""

    def step(self, sizes: Sizes) -> tuple[Sized, Course]:
        """The step at these sizes, and its order."""


class Plan:
    """How one kind of step goes: its programs, and the order in which their segments make up the real step."""

    def __init__(self, model: Model, setup: TrainingSetup, *, training: bool = True) -> None:
        self._model = model
        self._setup = replace(setup, attn_implementation=attention_of(model, setup))
        self._training = training
        self._courses: list[Course] = []

    def step(self, sizes: Sizes) -> tuple[Sized, Course]:
        """The step at these sizes, and its order."""
        for course in self._courses:
            sized = course.program.at(sizes)
            if sized is not None:
                return sized, course
        self._courses.append(self._played(sizes))
        return self.step(sizes)

    def _played(self, sizes: Sizes) -> Course:
        recording = Recording()
        batch, length, rank, gpus = (recording.symbol(size) for size in sizes)
        setup = replace(
            self._setup, per_device_train_batch_size=batch, max_length=length, lora_r=rank
        )
        kinds = reached(
            layer_kinds(self._model, windowed=has_window(self._model, sizes.length)),
            self._model,
            self._setup,
        )
        played = played_layers(kinds)
        step = Step(self._model, setup, played, gpus, training=self._training)
        program = Program(step.play(), recording)
        runs = list(runs_of(program.marks, stand_ins(kinds, played)))
        return Course(program, runs, gathering(self._model, self._setup))


def runs_of(marks: Sequence[Mark], layers: Sequence[int]) -> Iterator[Run]:
    """Set every real layer in its place: forward in their order, backward in the reverse.

    A layer that backward does not reach has no stretch there.
    """
    for (phase, stage, outside), stretch in groupby(
        enumerate(marks), key=lambda pair: (pair[1].phase, pair[1].stage, pair[1].layer is None)
    ):
        segments = list(stretch)
        if outside:
            yield from (Run(segment, phase, (), 1, has_moments=True) for segment, _ in segments)
            continue
        by_layer = {mark.layer: segment for segment, mark in segments}
        order = range(len(layers))
        for stand_in, run in groupby(
            reversed(order) if phase is Phase.BACKWARD else order, key=layers.__getitem__
        ):
            alike = tuple(run)
            if stand_in not in by_layer:
                continue
            yield Run(by_layer[stand_in], phase, alike, len(alike), has_moments=stage == "layer")


STRETCHING = frozenset(
    {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "max_length",
        "eval_strategy",
        "per_device_eval_batch_size",
        "save_strategy",
        "save_total_limit",
        "num_train_examples",
        "num_train_epochs",
        "mean_tokens_per_example",
        "usd_per_gpu_hour",
        "mfu",
        "lora_alpha",
        "max_grad_norm",
        "gpus_per_node",
    }
)
"""What changes no tensor of a step but in size, and no refusal; of accumulation it matters whether there is any."""
SHAPING = tuple(field.name for field in fields(TrainingSetup) if field.name not in STRETCHING)
_shaping: Callable[[TrainingSetup], tuple[object, ...]] = attrgetter(*SHAPING)
_setup_of: Callable[..., TrainingSetup] = TrainingSetup


def structure(setup: TrainingSetup) -> TrainingSetup:
    """The setup with all that only stretches it at its default: one object for all its neighbours on the sliders."""
    return _structure(_shaping(setup), setup.gradient_accumulation_steps > 1)


@lru_cache(maxsize=1024)
def _structure(shaping: tuple[object, ...], accumulates: bool) -> TrainingSetup:
    steps = 2 if accumulates else 1
    return _setup_of(**dict(zip(SHAPING, shaping, strict=True)), gradient_accumulation_steps=steps)


@lru_cache(maxsize=1024)
def plan(model: Model, structure: TrainingSetup) -> Plan:
    """The plan of a structure; the same for every rank, every number of GPUs and every optimizer."""
    gpus, replicas = min(2, structure.num_gpus), 1
    if structure.strategy is Strategy.HSDP:
        gpus, replicas = 4, 2
    elif structure.strategy in (Strategy.ZERO1, Strategy.ZERO2):
        gpus = structure.num_gpus  # which gradients a rank keeps depends on where its part begins
    return _plan(
        model,
        replace(
            structure,
            lora_r=1,
            optim=Optimizer.SGD,
            optim_state_dtype=None,
            num_gpus=gpus,
            dp_replicate_size=replicas,
            save_only_model=False,
            fsdp_state_dict_type=FULL_STATE_DICT,
            zero3_save_16bit_model=False,
        ),
    )


@lru_cache(maxsize=256)
def _plan(model: Model, structure: TrainingSetup) -> Plan:
    return Plan(model, structure)


class Top(NamedTuple):
    """The highest moment of a phase, or of a stretch."""

    height: int
    run: int
    place: int
    before: int
    """Events of the stretch before it."""
    gathered: int
    """Bytes of weights that stage 3 has gathered then."""


class Walk:
    """The stretches of a program set in their places, on top of what lies there when it begins."""

    def __init__(
        self,
        model: Model,
        step: tuple[Sized, Course],
        begins: Mapping[Component, int],
        ranks: int = 1,
    ) -> None:
        self._layers = model.num_hidden_layers
        self._sized, self._course = step
        self._begins = [begins[component] for component in COMPONENTS]
        self._gathered = self._course.gathered(self._sized, ranks)

    @property
    def lying(self) -> Mapping[Component, int]:
        """Bytes that lie there when it begins, by component."""
        return dict(zip(COMPONENTS, self._begins, strict=True))

    @property
    def peak_bytes(self) -> int:
        """The highest moment alone."""
        return max(top.height for top in self._highest().values())

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """Each layer and stage at its highest; with accumulation those of the second micro-step."""
        running = list(self._begins)
        moments = []
        for index, run in enumerate(self._course.runs):
            segment = self._sized.segments[run.segment]
            for place in range(run.length):
                if run.has_moments:
                    rise = segment.rise
                    top = self._top(0, index, place)
                    if self._gathered is not None:
                        rise = self._sized.bytes_of(self._course.program.change(*self._until(top)))
                    moments.append(self._moment(top, map(add, running, rise)))
                running = list(map(add, running, segment.net))
        return tuple(moments)

    def heights(self) -> dict[Phase, Moment]:
        """The highest moment of each phase."""
        heights = {}
        for phase, top in self._highest().items():
            there = self._course.there(top.run, top.place, self._until(top)[1])
            alive = map(add, self._begins, self._sized.bytes_of(there))
            heights[phase] = self._moment(top, alive)
        return heights

    def _highest(self) -> dict[Phase, Top]:
        """For each phase the highest moment.

        In a run of equal stretches it is the last where each leaves something behind, else the first.
        """
        alive = sum(self._begins)
        highest: dict[Phase, Top] = {}
        for index, (segment, phase, _, length, has_moments) in enumerate(self._course.runs):
            _, rise, net, _ = self._sized.heights[segment]
            if has_moments:
                alike = [(0, length - 1, 0)]
                if self._gathered is not None:
                    alike = self._gathered.alike[index]
                for first, last, gathered in alike:
                    place = last if net > 0 else first
                    begins = alive + place * net
                    if phase in highest and begins + rise + gathered <= highest[phase].height:
                        continue
                    top = self._top(begins, index, place)
                    if phase not in highest or top.height > highest[phase].height:
                        highest[phase] = top
            alive += length * net
        return highest

    def _top(self, alive: int, index: int, place: int) -> Top:
        """The highest moment of one stretch, above what is alive when it begins."""
        height = self._sized.heights[self._course.runs[index].segment]
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
        """The stretch's events up to its highest moment."""
        start = self._course.program.spans[self._course.runs[top.run].segment][0]
        return start, start + top.before

    def _moment(self, top: Top, alive: Iterable[int]) -> Moment:
        run = self._course.runs[top.run]
        name = self._sized.operation(run.segment, top.before)
        if run.layers:
            name = f"layer {run.layers[top.place] + 1} of {self._layers}: {name}"
        there = list(alive)
        there[WEIGHTS] += top.gathered
        return Moment(
            run.phase, name or self._course.program.marks[run.segment].stage, _alive(there)
        )


class StepTimeline(Walk):
    """The moments of one step after the first, in order of time; computed in full only when they are looked at."""

    def __init__(
        self, model: Model, setup: TrainingSetup, plan: Steps, resident: Resident, workspace: int
    ) -> None:
        begins = resident.sizes(workspace)
        if setup.gradient_accumulation_steps > 1 or setup.strategy is Strategy.ZERO3:
            begins[Component.GRADIENTS] = resident.accumulated
        sizes = Sizes(
            setup.per_device_train_batch_size, setup.max_length, setup.lora_r, setup.shard_ranks
        )
        super().__init__(model, plan.step(sizes), begins, setup.shard_ranks)
        stepped = {
            **begins,
            Component.GRADIENTS: resident.gradients,
            Component.TEMPORARIES: resident.transient,
        }
        self._step = Moment(
            Phase.OPTIMIZER_STEP, f"{setup.optim.value} step", _alive(stepped.values())
        )

    @property
    def peak_bytes(self) -> int:
        """The highest moment alone."""
        return max(super().peak_bytes, self._step.bytes)

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """Each layer and stage at its highest, and the optimizer's step."""
        return (*super().moments, self._step)

    def heights(self) -> dict[Phase, Moment]:
        """The highest moment of each phase of the step."""
        return {**super().heights(), Phase.OPTIMIZER_STEP: self._step}

    def held(self, phase: Phase) -> tuple[Held, ...]:
        """What the tape holds at the highest moment of forward, loss or backward, by what made it; the most first.

        Weights, adapters, states, the workspace and gradients of earlier micro-steps lie beside it.
        """
        top = self._highest()[phase]
        counts: Counter[Reason] = Counter()
        for run in self._course.runs[: top.run]:
            self._sized.add_held(counts, run.segment, run.length)
        peak = self._course.runs[top.run].segment
        self._sized.add_held(counts, peak, top.place)
        self._sized.add_held(counts, peak, 1, before=top.before)
        if top.gathered:
            counts[WEIGHTS, "all-gather", top.gathered] += 1
        return _by_reason(counts)

    def kept_by_a_layer(self) -> tuple[Held, ...]:
        """What one layer in the middle keeps from forward to backward, by what made it; the most first."""
        forward = [run for run in self._course.runs if run.layers and run.phase is Phase.FORWARD]
        middle = max(
            forward,
            key=lambda run: (run.length, -abs(run.layers[0] - self._layers // 2)),
            default=None,
        )
        if middle is None:  # a GPU without layers
            return ()
        counts: Counter[Reason] = Counter()
        self._sized.add_held(counts, middle.segment, 1)
        return _by_reason(counts)


def _by_reason(counts: Counter[Reason]) -> tuple[Held, ...]:
    together: dict[tuple[Component, str], Held] = {}
    for (component, operation, size), tensors in counts.items():
        key = COMPONENTS[component], operation
        before = together.get(key, Held(*key, 0, 0))
        together[key] = Held(*key, before.tensors + tensors, before.bytes + tensors * size)
    there = [held for held in together.values() if held.bytes]
    return tuple(sorted(there, key=lambda held: -held.bytes))


def _alive(sizes: Iterable[int]) -> dict[Component, int]:
    return {component: size for component, size in zip(COMPONENTS, sizes, strict=True) if size}


class Resident(NamedTuple):
    """What lies on the GPU for the whole step, and what the optimizer adds. Bytes per GPU."""

    weights: int
    adapters: int
    gradients: int
    accumulated: int
    """Gradients of earlier micro-steps, as the last one finds them."""
    transient: int
    """For the moment of the step itself."""
    states: States
    total_parameters: int
    trainable_parameters: int
    communication: int = 0
    """Buffers that stay between steps."""

    @property
    def step_bytes(self) -> int:
        """All that is alive in the optimizer's step, but for the workspace."""
        step = self.weights + self.adapters + self.gradients + self.transient + self.communication
        return step + self.states.resident_bytes

    def sizes(self, workspace: int) -> dict[Component, int]:
        """By component, before the first moment, without gradients."""
        return {
            **dict.fromkeys(COMPONENTS, 0),
            Component.WEIGHTS: self.weights,
            Component.ADAPTERS: self.adapters,
            Component.OPTIMIZER_STATES: self.states.resident_bytes,
            Component.COMMUNICATION: self.communication,
            Component.WORKSPACE: workspace,
        }


@lru_cache(maxsize=1024)
def resident(model: Model, structure: TrainingSetup) -> Resident:
    """Weights, adapters, gradients and optimizer states, which no batch and no length changes."""
    if structure.uses_fsdp1:
        return _resident_units(model, structure)
    if structure.strategy.is_fsdp:
        return _resident_shards(model, structure)
    if structure.strategy.is_zero:
        return _resident_zero(model, structure)
    tensors = trainable_tensors(model, structure)
    lying = weight_bytes(model, structure), adapter_bytes(model, structure)
    bucket = bucket_bytes(tensors) if structure.strategy is Strategy.DDP else 0
    return undivided(model, structure, lying, tensors, bucket)


def undivided(
    model: Model,
    structure: TrainingSetup,
    lying: tuple[int, int],
    tensors: Sequence[Trainable],
    bucket: int = 0,
) -> Resident:
    """Of a GPU that keeps these trained tensors whole beside bytes of weights and adapters and a bucket of DDP's."""
    gradients = gradient_bytes(tensors)
    return Resident(
        *lying,
        gradients,
        gradients,
        step_transient(tensors, structure.optim, structure.optim_state_dtype),
        optimizer_states(tensors, structure.optim, structure.optim_state_dtype),
        total_parameters(model) + adapter_parameters(model, structure),
        trainable_parameters(model, structure),
        bucket,
    )


def _resident_shards(model: Model, structure: TrainingSetup) -> Resident:
    """Of FSDP2's fullest rank: shards of everything, and gradients whole until they are synchronised."""
    tensors = sharded_tensors(model, structure)
    whole = trainable_tensors(model, computed(structure))
    if structure.offload_param is not Offload.NONE:
        return _resident_elsewhere(model, structure, whole)
    return Resident(
        sharded_weight_bytes(model, structure) + sum(b.copies * b.bytes for b in buffers(model)),
        sharded_adapter_bytes(model, structure),
        sharded_gradient_bytes(model, structure),
        gradient_bytes(whole),
        step_transient(tensors, structure.optim, structure.optim_state_dtype),
        optimizer_states(tensors, structure.optim, structure.optim_state_dtype),
        total_parameters(model) + adapter_parameters(model, structure),
        trainable_parameters(model, structure),
    )


def _resident_units(model: Model, structure: TrainingSetup) -> Resident:
    """Of FSDP1's first rank: its part of every unit, and gradients whole until they are synchronised."""
    tensors = flat_tensors(model, structure)
    return Resident(
        flat_bytes(model, structure, adapters=False)
        + sum(b.copies * b.bytes for b in buffers(model)),
        flat_bytes(model, structure, adapters=True),
        flat_gradient_bytes(model, structure),
        flat_accumulated_bytes(model, structure),
        step_transient(tensors, structure.optim, structure.optim_state_dtype),
        optimizer_states(tensors, structure.optim, structure.optim_state_dtype),
        total_parameters(model) + adapter_parameters(model, structure),
        trainable_parameters(model, structure),
    )


def _resident_elsewhere(
    model: Model, structure: TrainingSetup, whole: Iterable[Trainable]
) -> Resident:
    """Of a rank whose shards, gradients and states rest on the host; gradients that wait for their sum do not."""
    return Resident(
        unmoved_weight_bytes(model, structure) + sum(b.copies * b.bytes for b in buffers(model)),
        0,
        0,
        gradient_bytes(whole),
        0,
        States(0, 0),
        total_parameters(model) + adapter_parameters(model, structure),
        trainable_parameters(model, structure),
    )


def _resident_zero(model: Model, structure: TrainingSetup) -> Resident:
    """Of DeepSpeed's fullest rank."""
    of = held(model, structure)
    return Resident(
        of.weights + sum(b.copies * b.bytes for b in buffers(model)),
        0,
        of.gradients,
        of.standing,
        of.transient,
        of.states,
        total_parameters(model) + adapter_parameters(model, structure),
        trainable_parameters(model, structure),
        of.communication,
    )

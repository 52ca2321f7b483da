"""DeepSpeed's hooks: gradients go into buckets, and stage 3 gathers weights when a module is called.

Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, stage3.py and parameter_offload.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from estimator.families.block import Block, Owned, is_packed
from estimator.families.model_tree import At, tower_layers
from estimator.families.modules import ACTIVATION, ROTARY, Bare, Linear
from estimator.families.packed import FLOAT32_BYTES, packed_bytes
from estimator.families.vision.block import TowerBlock
from estimator.families.vision_family import vision_family
from estimator.parallel.computed import computed_width
from estimator.parallel.hooks import Hooks
from estimator.parallel.placement import HEAD
from estimator.parallel.tensors import packed_width
from estimator.parallel.zero import gathering
from estimator.parallel.zero_partitions import (
    NORM_WIDTH,
    MostKept,
    PartitionPlace,
    Places,
    after_backward,
    keeps_parts,
    most_kept_of,
    partition,
    parts_of,
)
from estimator.tape.operators import call_back
from estimator.tape.tape import (
    COMMUNICATION,
    GRADIENTS,
    TEMPORARIES,
    WEIGHTS,
    Leaf,
    Parameter,
    Storage,
    Tape,
    Tensor,
    WholeWeight,
)
from estimator.values.arithmetic import allocated, ceil_div, larger, smaller
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.precision import Precision
from estimator.values.refusals import Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Offload, Part

NORM_PART = 250_000_000
"""Elements per chunk when stage 3 computes a norm: stage3.py, ``_constant_buffered_norm2``."""


SECOND_REDUCTION = Refusal(
    "use_reentrant under {strategy} stops in a step with two forward passes to go back through: each replay hands over "
    "its gradients, and DeepSpeed takes a weight's once; set use_reentrant to false.",
    Line(
        "deepspeed",
        "runtime/zero/stage_1_and_2.py",
        1226,
        "has already been reduced.",
    ),
)


ToHost = Callable[[Sequence[int]], int]
"""Extra bytes while partitions of gradients go to the host, from the elements of each gradient."""


def sent_from_stage_2(part: int) -> ToHost:
    """Bytes at stages 1 and 2 while gradients go to the host: the largest in float64, cut to this rank's partition.

    ``part``: elements of the rank's partition. The float32 copy sent over the link is half as large.
    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``set_norm_for_param_grad_in_gpu`` and
    ``async_inplace_copy_grad_to_fp32_buffer_from_gpu``.

    >>> sent_from_stage_2(1000)([10, 20]), sent_from_stage_2(15)([10, 20])
    (160, 120)
    """
    return lambda gradients: NORM_WIDTH * smaller(max(gradients), part)


def sent_from_stage_3(precision: Precision, mesh: Mesh, ranks: int) -> ToHost:
    """Bytes at stage 3 while partitions of gradients go to the host.

        p · width  +  the larger of 8 · min(p, 250 million) and 4 · p     p: elements of the largest partition

    The gradient comes back from the host into a copy on the GPU, where its norm is computed and it is cast to float32.
    With NVMe, the float32 gradients of a whole bucket are kept together: another 4 · Σ of the others.
    Source: DeepSpeed 0.19.6, runtime/zero/stage3.py, ``partition_grads``, ``_offload_grad_partition_at_boundary`` and
    ``_swap_out_offload_fp32_gradients``.

    >>> sent_from_stage_3(Precision(), Mesh(), 2)([10, 20]) == 10 * 2 + 10 * 8
    True
    """
    waits = mesh.offload_optimizer is Offload.NVME

    def beside(gradients: Sequence[int]) -> int:
        parts = [ceil_div(elements, ranks) for elements in gradients]
        largest = max(parts)
        others = FLOAT32_BYTES * (sum(parts) - largest) if waits else 0
        norm = NORM_WIDTH * smaller(largest, NORM_PART)
        return others + largest * computed_width(precision) + larger(norm, FLOAT32_BYTES * largest)

    return beside


class Bucket:
    """The reduction bucket: small gradients are copied into a buffer, large ones wait for the next reduction."""

    def __init__(
        self,
        tape: Tape,
        setup: TrainingSetup,
        hidden: int,
        kept: int,
        ranks: int,
        to_host: ToHost | None,
        most_kept: MostKept | None = None,
    ) -> None:
        self.tape = tape
        self.stage = setup.mesh.strategy
        self.ranks = ranks
        self.limit = hidden**2
        self.width = computed_width(setup.precision)
        self.size = self.limit * self.width
        self.kept_bytes = kept
        """At stage 1: extra bytes at the end of backward."""
        self.most_kept = most_kept
        """At stage 2, where gradients stay on the GPU."""
        self.accumulates = setup.batch.gradient_accumulation_steps > 1
        self.buffer: Storage | None = None
        if (
            setup.mesh.strategy.reduces_after_backward
            and setup.batch.gradient_accumulation_steps > 1
        ):
            self.buffer = Storage.existing(tape, allocated(self.size), GRADIENTS)
        self.kept: list[Storage] = []
        self.kept_so_far = 0
        self.elements = 0
        self.waiting: list[Storage] = []
        self.to_host = to_host
        """None: gradients stay on the GPU."""
        self.inside: list[int] = []
        """Elements of each gradient in the bucket."""
        self.places: list[PartitionPlace | None] = []
        """Their places."""
        self.owners: set[range] = set()
        """Ranks that own these gradients, except those of layers that represent several, where nothing may stay."""

    def take(
        self, parameter: Parameter, place: PartitionPlace | None = None, *, repeats: bool
    ) -> None:
        """Collects the gradients of a parameter; ``repeats``: its layer represents several."""
        count = parameter.elements
        if parameter.node is not None and parameter.node.leaf is not None:
            parameter.node.leaf.arrived = lambda leaf: self._arrive(
                leaf, count, place, repeats=repeats
            )

    def keep(self, ranks: Collection[range]) -> None:
        """Allocates the gradients of the fullest of these ranks; a rank does so when its first gradient is reduced.

        With accumulation, a rank also holds its earlier gradients; the fullest rank's are counted from the start.
        """
        if self.most_kept is None or not ranks:
            return
        kept = self.most_kept(ranks)
        beside = kept
        if self.accumulates:
            beside = max(0, 2 * kept - self.most_kept(()))
        if beside > self.kept_so_far:
            self.kept.append(Storage(self.tape, beside - self.kept_so_far, GRADIENTS))
            self.kept_so_far = beside

    def _arrive(
        self, leaf: Leaf, elements: int, place: PartitionPlace | None, *, repeats: bool
    ) -> None:
        tape = self.tape
        if self.buffer is None and self.stage.partitions_flat:
            tape.operation = "bucket"
            self.buffer = Storage(tape, allocated(self.size), COMMUNICATION)
        if self.stage.reduces_after_backward or leaf.grad is None:
            return
        gradient, leaf.grad = leaf.grad, None
        if self.elements + elements > self.limit:
            self.flush()
        if elements > self.limit:
            self.waiting.append(gradient)
        self.elements += elements
        self.inside.append(elements)
        self.places.append(place)
        if place is not None and not repeats:
            self.owners.add(place.ranks)

    def flush(self) -> None:
        """Reduces the bucket and empties it."""
        tape = self.tape
        tape.operation = "reduction of gradients"
        if self.stage.shards_weights:
            # reduce_scatter_coalesced concatenates several tensors by rank and pads each to the ranks; a single
            # evenly divisible one is sent without a copy: runtime/comm/coalesced_collectives.py
            padded = [ceil_div(count, self.ranks) * self.ranks for count in self.inside]
            is_whole = padded == self.inside and len(padded) == 1
            copied = None
            if padded and not is_whole:
                copied = Storage(tape, allocated(self.width * sum(padded)), TEMPORARIES)
            self._send()
            del copied
        elif self.stage.reduces_after_backward:
            Storage(tape, allocated(self.kept_bytes), TEMPORARIES)
        elif self.to_host is not None:
            self._send()
        else:
            self._average()
        self.waiting.clear()
        self.inside.clear()
        self.places.clear()
        self.owners.clear()
        self.elements = 0

    def _average(self) -> None:
        """Stage 2: slices of several ranks are concatenated, reduced and copied back; a rank keeps its own.

        Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, ``allreduce_bucket`` (``flatten``, which copies unless
        there is one slice) and ``copy_grads_in_partition`` (``grads_in_partition``).
        """
        found = [place for place in self.places if place is not None]
        if not found:
            return
        if self.waiting:
            copies = any(place.copied for place in found)
        else:  # more than one rank has some
            first = min(place.ranks.start for place in found)
            copies = max(place.ranks.stop for place in found) > first + 1
        if copies:
            self.tape.operation = "concatenate slices of several ranks"
            Storage(self.tape, allocated(self.width * sum(self.inside)), TEMPORARIES)
            self.tape.operation = "reduction of gradients"
        self.keep(self.owners)

    def _send(self) -> None:
        """Sends gradients to the host; the extra bytes are freed on return."""
        if self.to_host is not None and self.inside:
            Storage(self.tape, allocated(self.to_host(self.inside)), TEMPORARIES)

    def end(self) -> None:
        """Ends backward."""
        self.flush()
        self.buffer = None


class ZeroHooks(Hooks):
    """Buckets for all gradients; at stage 3, also a record of every module call."""

    def __init__(
        self, tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int
    ) -> None:
        super().__init__(tape, model, setup, outer, ranks)
        self._model, self._setup, self._outer = model, setup, outer
        self._parts = parts_of(model, setup) if keeps_parts(setup.mesh) else None
        kept = (
            after_backward(model, setup, ranks) if setup.mesh.strategy.reduces_after_backward else 0
        )
        most_kept = most_kept_of(model, setup, ranks) if self._parts is not None else None
        to_host = _to_host(model, setup, ranks)
        self._bucket = Bucket(tape, setup, model.hidden_size, kept, ranks, to_host, most_kept)
        self._gathers = gathering(model, setup.adapters, setup.mesh) is not None
        self._called: set[At | Part | None] = set()
        """The layers that were called, and what lies outside them: None for the text's, a part for a tower's. Their
        gradients are taken over once."""
        self._take(outer, None)

    def _take(self, block: Block, called: At | Part | None, path: str = "") -> None:
        if self._gathers:
            record_calls(self.tape, block, self._setup.adapters, path)
        setup = self._setup
        if called in self._called:
            replays = (
                setup.computation.gradient_checkpointing
                and setup.computation.use_reentrant
                and self.tape.records
            )
            if replays and setup.mesh.strategy.partitions_flat:
                raise SECOND_REDUCTION(strategy=setup.mesh.strategy)
            return
        self._called.add(called)
        places: Places = {}
        repeats = False
        if self._parts is not None:
            at = called if isinstance(called, At) else None
            places = self._parts.of(at)
            repeats = at is not None and at not in self._parts.alone
        for owned in block.owned:
            if owned.parameter.requires_grad:
                part = owned.parameter.key.rpartition(".")[2]
                place = places.get((owned.module.name, part))
                self._bucket.take(owned.parameter, place, repeats=repeats)

    def layer(self, index: int, block: Block) -> None:
        """Hooks the layer's modules individually."""
        self._take(block, At(index))

    def see(self, outer: Block, projector: Block) -> None:
        """Hooks the modules outside the tower's layers."""
        assert self._model.vision is not None
        family = vision_family(self._model.vision)
        self._take(outer, Part.VISION, f"|{family.prefix}.")
        self._take(projector, Part.PROJECTOR, "|")

    def tower_layer(self, index: int, block: Block) -> None:
        """Hooks the modules of a layer of the tower."""
        assert self._model.vision is not None
        self._take(block, At(index, in_tower=True), f"{tower_layers(self._model.vision)}|")

    def enter(self, module: str, x: Tensor) -> Tensor:
        """Hooks the call of the embedding. Other modules are hooked where their program calls them."""
        if self._gathers and module == self._outer.embedding_name:
            return self._outer.embedding_unit.enter(x)
        return x

    def leave(self, module: str, x: Tensor) -> Tensor:
        """Hooks the return of the embedding."""
        if self._gathers and module == self._outer.embedding_name:
            return self._outer.embedding_unit.leave(x)
        return x

    def gather(self, tape: Tape, weight: Parameter) -> Tensor | None:
        """The head's weight, whole; a tied one lies there already, gathered by the embedding.

        Source: trl 1.16, trainer/utils.py, ``maybe_gather_lm_head_ctx``.
        """
        if not self._gathers:
            return None
        tape.operation = "the head, gathered by the loss"
        return tape.new(weight.elements, weight.width, WEIGHTS)

    def end_backward(self) -> None:
        """Reduces what is left in the bucket."""
        self._bucket.end()


class Called:
    """A module whose weights stage 3 gathers. Records on the tape where its hooks run."""

    def __init__(self, tape: Tape, name: str, weights: Iterable[WholeWeight]) -> None:
        self.tape = tape
        self.name = name
        self.weights = tuple(weights)

    def _note(self, *, begins: bool, is_forward: bool) -> None:
        self.tape.call(self.name, self.weights, begins=begins, is_forward=is_forward)

    def enter(self, x: Tensor) -> Tensor:
        """The module's input: its weights are needed from here, and no longer once its gradient is computed."""
        self._note(begins=True, is_forward=True)
        if not x.requires_grad:
            return x
        return call_back(self.tape, x, lambda _: self._note(begins=False, is_forward=False))

    def leave(self, x: Tensor) -> Tensor:
        """The module's output: its weights are not needed again until its gradient arrives."""
        self._note(begins=False, is_forward=True)
        if not x.requires_grad:
            return x
        return call_back(self.tape, x, lambda _: self._note(begins=True, is_forward=False))


def _to_host(model: Model, setup: TrainingSetup, ranks: int) -> ToHost | None:
    if setup.mesh.offload_optimizer is Offload.NONE:
        return None
    if setup.mesh.strategy.gathers_modules:
        return sent_from_stage_3(setup.precision, setup.mesh, ranks)
    return sent_from_stage_2(partition(model, setup, ranks))


def _whole(owned: Owned, adapters: Adapters) -> WholeWeight:
    """What is gathered for a parameter: packed 4-bit weights in their storage dtype."""
    parameter = owned.parameter
    if is_packed(owned, adapters):
        stored = packed_width(adapters)
        count = ceil_div(packed_bytes(parameter.elements), stored)
        return WholeWeight(parameter.key, count, stored, trained=False)
    return WholeWeight(parameter.key, parameter.elements, parameter.width, parameter.requires_grad)


def record_calls(tape: Tape, block: Block, adapters: Adapters, path: str = "") -> None:
    """Makes a block's modules record their calls, each with its own weights after PEFT's changes.

    ``path``: before the names of a tower's modules, with "|" behind the name of its list of layers, or first.

    Activations and rotary tables have no weights. The experts of a layer are one module with all their stacks.

    Source: DeepSpeed 0.19.6, runtime/zero/parameter_offload.py, ``_register_deepspeed_module``; peft 0.21,
    tuners/lora/layer.py (``base_layer``, ``lora_A``, ``lora_B``; a dropout before A).
    """
    modules: dict[str, list[Parameter]] = {}
    wholes = {owned.parameter.key: _whole(owned, adapters) for owned in block.owned}
    for owned in block.owned:
        name, part = owned.module.name, owned.parameter.key.rsplit(".", 1)[1]
        if isinstance(owned.module, Bare):
            for stack in (".gate_up_proj", ".up_proj", ".down_proj"):
                name = name.removesuffix(stack)
        elif isinstance(owned.module, Linear) and owned.is_adapter:
            name += ".lora_dropout.lora_A" if part == "lora0" else ".lora_B"
        elif isinstance(owned.module, Linear) and block.linears[name].lora_a is not None:
            name += ".base_layer"
        modules.setdefault(name, []).append(owned.parameter)
    for name, parameters in modules.items():
        block.units[parameters[0].key] = Called(
            tape, path + name, [wholes[parameter.key] for parameter in parameters]
        )
    if isinstance(block, TowerBlock):
        weightless = ROTARY if block.index is None else ACTIVATION
        block.units[weightless] = Called(tape, path + weightless, ())
    elif block.index is None:
        head = block.linears[HEAD].weight if HEAD in block.linears else None
        tied = next(iter(block.embeddings.values()))
        block.units[HEAD] = Called(tape, HEAD, [wholes[(head or tied).key]])
        block.units[ROTARY] = Called(tape, ROTARY, ())
    else:
        block.units[ACTIVATION] = Called(tape, ACTIVATION, ())

"""DeepSpeed's hooks: gradients go into buckets, and stage 3 gathers weights when a module is called.

Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, stage3.py and parameter_offload.py.
"""

from __future__ import annotations

from estimator.families.block import Block, Owned, is_packed
from estimator.families.model_tree import tower_layers
from estimator.families.modules import ACTIVATION, ROTARY, Bare, Linear
from estimator.families.vision.block import TowerBlock
from estimator.families.vision_family import vision_family
from estimator.families.weights import buffer_bytes, packed_bytes
from estimator.parallel.hooks import Hooks
from estimator.parallel.parameter_order import At
from estimator.parallel.placement import HEAD
from estimator.parallel.sharding import packed_width
from estimator.parallel.zero import (
    Bucket,
    Called,
    Places,
    ToHost,
    after_backward,
    gathering,
    keeps_parts,
    most_kept_of,
    partition,
    parts_of,
    rank_bytes,
    sent_from_stage_2,
    sent_from_stage_3,
)
from estimator.resident.model import Resident, counts
from estimator.tape.tape import WEIGHTS, Parameter, Tape, Tensor, WholeWeight
from estimator.values.arithmetic import ceil_div
from estimator.values.facets.adapters import Adapters
from estimator.values.refusals import Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Offload, Part

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


def zero_part(model: Model, structure: TrainingSetup) -> Resident:
    """What the fullest rank keeps under DeepSpeed."""
    of = rank_bytes(model, structure)
    return Resident(
        weights=of.weights + buffer_bytes(model),
        gradients=of.gradients,
        accumulated=of.accumulated,
        transient=of.transient,
        states=of.states,
        communication=of.communication,
        **counts(model, structure.adapters),
    )

"""FSDP1: the parameters of a unit form one flat parameter, which is gathered, freed and reduced as a whole.

Units are the decoder layers, each adapter matrix, and the root, which has everything else and stays gathered from
forward to backward. Gathered weights are views of the buffer. The gradients of a unit are copied into a second flat
tensor before the weights are freed and the sum is scattered.

Source: torch 2.13, distributed/fsdp/_flat_param.py and _runtime_utils.py; accelerate 1.15, accelerator.py,
``prepare_model`` (mixed precision casts every trained flat parameter to float32, also with a 4-bit base); peft 0.21,
utils/other.py, ``fsdp_auto_wrap_policy``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from estimator.families.adapters import is_adapted
from estimator.families.model_tree import layer_groups, layer_modules, outer_modules
from estimator.families.modules import Bare, Module
from estimator.families.packed import FLOAT32_BYTES
from estimator.families.weights import adapter_width, buffer_bytes, unquantized_width
from estimator.parallel.computed import computed
from estimator.parallel.tensors import model_tensors, tensors_of
from estimator.resident.model import Resident, counts, stepped
from estimator.resident.optimizer import Trainable
from estimator.tape.operators import call_back
from estimator.tape.tape import (
    COMMUNICATION,
    GRADIENTS,
    WEIGHTS,
    Leaf,
    Place,
    Storage,
    Tape,
    Tensor,
)
from estimator.values.arithmetic import allocated, ceil_div
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.precision import Precision
from estimator.values.refusals import Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import MixedPrecision, Model, Offload

ALIGNMENT_BYTES = 16
"""Alignment of each tensor of a unit: torch 2.13, _flat_param.py, ``_get_aligned_numel`` (``use_orig_params``)."""


def trained_width(precision: Precision, loaded: int) -> int:
    """Bytes per element of a trained shard and its gradient: 4 under mixed precision, else as loaded.

    Source: accelerate 1.15, accelerator.py, ``prepare_model`` ("Upcasted low precision parameters").
    """
    return loaded if precision.mixed_precision is MixedPrecision.NO else FLOAT32_BYTES


class FlatParameter(NamedTuple):
    """One flat parameter: the elements of its tensors, in bytes per element, and the number of identical units."""

    sizes: tuple[int, ...]
    is_adapter: bool
    trained: bool
    loaded: int
    """Bytes per element as loaded."""
    stored: int
    """Of the shard and its gradient."""
    gathered: int
    """When gathered: 2 under mixed precision, else as stored."""
    ranks: int
    alike: int = 1

    @property
    def ends(self) -> list[int]:
        """Where each tensor ends, in elements; there is padding between them.

        Source: torch 2.13, distributed/fsdp/_flat_param.py, ``_init_flat_param_and_metadata``.
        """
        step = ALIGNMENT_BYTES // self.gathered
        return list(accumulate(self.sizes, lambda end, size: ceil_div(end, step) * step + size))

    @property
    def shard(self) -> int:
        """Elements of each rank's shard."""
        return ceil_div(self.ends[-1], self.ranks)

    @property
    def shard_bytes(self) -> int:
        """Bytes of one rank's shards of all that are alike."""
        return self.alike * allocated(self.shard * self.stored)

    @property
    def gathered_bytes(self) -> int:
        """Bytes of all that are alike, gathered."""
        return self.alike * allocated(self.shard * self.ranks * self.gathered)

    @property
    def pieces(self) -> list[Trainable]:
        """What the first rank's optimizer updates: the pieces of tensors in its shard.

        Other ranks hold equally many elements, in pieces of other sizes.
        Source: torch 2.13, _flat_param.py, ``_use_sharded_views``.
        """
        inside = [
            min(end, self.shard) - (end - size)
            for size, end in zip(self.sizes, self.ends, strict=True)
        ]
        return [Trainable((count,), self.stored, self.alike) for count in inside if count > 0]


def flat_parameter(
    sizes: Iterable[int],
    setup: TrainingSetup,
    *,
    is_adapter: bool,
    ranks: int | None = None,
    alike: int = 1,
) -> FlatParameter:
    """The unit of tensors of so many elements; ``ranks``: where they are not the setup's, as in a recorded step.

    Source: as above; accelerate 1.15, utils/dataclasses.py, ``set_mixed_precision`` (``param_dtype``,
    ``reduce_dtype``).

    >>> setup = TrainingSetup(strategy="fsdp", fsdp_version=1, num_gpus=4)
    >>> flat_parameter([6, 6], setup, is_adapter=False).shard  # 6, 2 of padding, 6, and 2 to divide by 4
    4
    """
    loaded, gathered = (
        adapter_width(given) if is_adapter else unquantized_width(given)
        for given in (setup, computed(setup))
    )
    trained = is_adapter or not setup.adapters.uses_adapters
    stored = trained_width(setup.precision, loaded) if trained else loaded
    ranks = setup.mesh.shard_ranks if ranks is None else ranks
    return FlatParameter(tuple(sizes), is_adapter, trained, loaded, stored, gathered, ranks, alike)


def flat_sizes(modules: Iterable[Module], adapters: Adapters) -> list[int]:
    """Elements of modules' own tensors, of packed weights in their storage dtype (derived)."""
    tensors = tensors_of(((module, 1) for module in modules), adapters)
    return [tensor.numel for tensor in tensors if not tensor.is_added]


def units(modules: Sequence[Module], setup: TrainingSetup, alike: int = 1) -> list[FlatParameter]:
    """The unit of some modules, and one of each adapter matrix on them.

    Source: as above.
    """
    adapters = tensors_of(((module, 1) for module in modules), setup.adapters)
    own = flat_sizes(modules, setup.adapters)
    return [
        flat_parameter(own, setup, is_adapter=False, alike=alike),
        *(
            flat_parameter([tensor.numel], setup, is_adapter=True, alike=alike)
            for tensor in adapters
            if tensor.is_adapter
        ),
    ]


def flat_parameters(model: Model, setup: TrainingSetup) -> list[FlatParameter]:
    """Every unit of a model: the root first, the layers, and each adapter matrix.

    Source: as above.
    """
    found = units(outer_modules(model), setup)
    for lowest, count in layer_groups(model):
        found += units(layer_modules(model, lowest), setup, count)
    return found


UNGATHERED_ADAPTERS = Refusal(
    "lora_target_modules: FSDP 1 does not gather the adapters of {name}, which PEFT reads without calling them; name "
    "only linears of the attention, or take fsdp_version 2.",
    Line("peft", "tuners/lora/layer.py", 2532, "weight_A = self.lora_A[adapter_name].weight"),
)


def check_units(model: Model, adapters: Adapters, mesh: Mesh) -> None:
    """Refuses adapters that FSDP1 never gathers: PEFT reads those of stacked experts without calling them.

    Raises ``ValueError`` with one sentence.
    Source: peft 0.21, tuners/lora/layer.py, ``ParamWrapper.get_delta_factors``.
    """
    if not mesh.uses_fsdp1:
        return
    for lowest, _ in layer_groups(model):
        for module in layer_modules(model, lowest):
            if isinstance(module, Bare) and is_adapted(module, adapters):
                raise UNGATHERED_ADAPTERS(name=module.name)


def fsdp1_shards(model: Model, structure: TrainingSetup) -> Resident:
    """What the first rank keeps under FSDP1: its shard of every unit, and unsharded gradients until synchronisation.

        Σ units  ⌈elements / ranks⌉ · p     p: 4 if trained under mixed precision, else as loaded

    Scales of packed weights are not sharded. Gradients stay until the next forward begins, since ``zero_grad`` only
    clears the views of ``use_orig_params``; before the last micro-step they lie whole, in the gathered dtype.

    Source: torch 2.13, distributed/fsdp/_flat_param.py, ``shard``; _runtime_utils.py, ``_reduce_grad``,
    ``_post_backward_hook`` (``_sync_gradients``) and ``_root_pre_forward`` (``_reset_flat_param_grad_info_if_needed``);
    transformers 5.23, trainer.py (``no_sync`` except in the last micro-step).
    """
    every = flat_parameters(model, structure)
    trained = [unit for unit in every if unit.trained]
    gradients = waiting = sum(unit.shard_bytes for unit in trained)
    if not structure.reduces_every_micro_step:
        waiting = sum(unit.gathered_bytes for unit in trained)
    return Resident(
        weights=_weight_bytes(every, model, structure.adapters),
        adapters=sum(unit.shard_bytes for unit in every if unit.is_adapter),
        gradients=gradients,
        accumulated=waiting,
        **stepped([piece for unit in trained for piece in unit.pieces], structure.optimisation),
        **counts(model, structure.adapters),
    )


def _weight_bytes(every: Iterable[FlatParameter], model: Model, adapters: Adapters) -> int:
    """Bytes of one rank's shards of all but adapters, of the scales of packed weights, and of buffers."""
    scales = sum(tensor.alike * tensor.scales for tensor in model_tensors(model, adapters))
    shards = sum(unit.shard_bytes for unit in every if not unit.is_adapter)
    return shards + scales + buffer_bytes(model)


def frozen_flat_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of a second model that stay on a GPU between the steps.

    FSDP 1 never lets the root of a model go that does not go backward; ``fsdp_grad_op`` lets nothing go once gathered.

    Source: torch 2.13, distributed/fsdp/_runtime_utils.py, ``_post_forward_reshard``.
    """
    every = flat_parameters(model, setup)
    rests = setup.mesh.offload_param is not Offload.NONE
    flat = buffer_bytes(model) if rests else _weight_bytes(every, model, setup.adapters)
    gathered = every if setup.mesh.strategy.keeps_gathered else every[:1]
    return flat + sum(unit.gathered_bytes for unit in gathered)


def largest_unit_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes on the GPU while FSDP1 gathers a full state dict: the largest unit, since units are gathered one at a time.

    Weights are gathered in the dtype of their shards and copied to the host immediately. Optimizer states of a trained
    unit are flattened into one shard first.

    Source: torch 2.13, distributed/fsdp/_unshard_param_utils.py, ``_unshard_fsdp_state_params`` (``to_cpu``),
    _flat_param.py, ``_force_full_precision``, and _optim_utils.py, ``_allgather_orig_param_states``.
    """
    state = setup.optimisation.optim_state_dtype
    wide = state.bytes if state is not None else 0
    return max(
        unit.shard * (unit.ranks + 1) * max(unit.stored, wide)
        if unit.trained
        else unit.shard * unit.ranks * unit.stored
        for unit in flat_parameters(model, setup)
    )


def nested_units_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes on the GPU while FSDP1 builds a sharded state dict: the root stays gathered while each layer is in turn.

    Leaves out: a rank's shard of each tensor, which is copied to the host immediately.
    Source: torch 2.13, distributed/fsdp/_state_dict_utils.py, ``_sharded_pre_state_dict_hook`` (no ``offload_to_cpu``)
    and ``_sharded_post_state_dict_hook``.
    """
    root, *rest = flat_parameters(model, setup)
    largest = {False: 0, True: 0}
    for unit in rest:
        whole = unit.shard * unit.ranks * unit.stored
        largest[unit.is_adapter] = max(largest[unit.is_adapter], whole)
    return root.shard * root.ranks * root.stored + sum(largest.values())


class FlatTraffic:
    """State shared by the units of one model."""

    def __init__(self, tape: Tape, ranks: int, *, holds_inputs: bool = False) -> None:
        self.tape = tape
        self.ranks = ranks
        self.holds_inputs = holds_inputs
        """Whether frozen layers keep their input and its gradient until backward ends (``FlatUnit.enter``)."""
        self.late: list[FlatUnit] = []
        """Units whose inputs need no gradient, so they are reduced or freed when backward ends."""
        self.going: FlatUnit | None = None
        """A frozen layer whose weights are freed once the layer below has gathered its own."""
        self.held: list[tuple[Place, Storage]] = []
        """Inputs of frozen layers and their gradients, by place."""

    def new(self, size: int, component: int = COMMUNICATION) -> Storage:
        """A new buffer of ``size`` bytes."""
        return Storage(self.tape, allocated(size), component)

    def let_go(self) -> None:
        """Frees the weights kept until the layer below had gathered its own."""
        if self.going is not None:
            self.going.free()
            self.going = None

    def end_backward(self) -> None:
        """Frees what lives until the end of backward."""
        self.let_go()
        for unit in self.late:
            unit.reduce()
        self.late.clear()


class FlatUnit:
    """One unit on the tape."""

    members = True
    """A unit always has parameters."""

    def __init__(
        self,
        traffic: FlatTraffic,
        flat: FlatParameter,
        leaves: Sequence[Leaf],
        *,
        stays: bool,
        accumulates: bool,
        reduces: bool = False,
    ) -> None:
        self.traffic = traffic
        self.shard = shard = flat.shard
        """Elements of each rank's shard."""
        self.stored, self.gathered = flat.stored, flat.gathered
        """Bytes per element of the shard, and when gathered."""
        self.leaves = leaves
        """Where the gradients of the first pass arrive; none if frozen."""
        self.later: list[Sequence[Leaf]] = []
        """Where those of each later pass do: every gather makes other views of the flat parameter."""
        self.passes = 0
        """Forward calls with gradients."""
        self.stays = stays
        """Whether it stays gathered from forward to backward."""
        self.is_lowest = False
        """Whether it is the lowest layer."""
        self.weights: Storage | None = None
        self.accumulated: Storage | None = None
        """Gradients of earlier micro-steps, or of later passes, whole."""
        self.reduced = 4 if reduces else self.gathered
        """Bytes per element of gradients that are reduced."""
        self.has_shard = bool(leaves) and accumulates and reduces
        """The shard's gradient is there already, from an earlier micro-step."""
        if self.has_shard:
            earlier = Storage.existing(traffic.tape, allocated(shard * self.stored), GRADIENTS)
            traffic.tape.shards.append(earlier)
        elif leaves and accumulates:
            size = allocated(shard * traffic.ranks * self.gathered)
            self.accumulated = Storage.existing(traffic.tape, size, GRADIENTS)
        self.is_leaf = flat.is_adapter
        """Whether it is a single tensor, reduced as soon as its gradient arrives."""
        if self.is_leaf:
            leaves[0].arrived = lambda _: self.reduce()

    def call_again(self, leaves: Sequence[Leaf]) -> None:
        """One more pass with gradients, which arrive at leaves of its own."""
        self.later.append(leaves)
        if self.is_leaf:
            leaves[0].arrived = lambda _: self.lay(leaves)

    def gather(self) -> None:
        """Gathers the weights unless they are present. Mixed precision casts the shard before it is sent."""
        if self.weights is not None:
            return
        traffic = self.traffic
        traffic.tape.operation = "all-gather"
        cast = traffic.new(self.shard * self.gathered) if self.stored != self.gathered else None
        self.weights = traffic.new(self.shard * traffic.ranks * self.gathered, WEIGHTS)
        del cast

    def free(self) -> None:
        """Frees the gathered weights."""
        self.weights = None

    def lay(self, leaves: Sequence[Leaf]) -> None:
        """Lay a later pass's gradients end to end; they wait, whole, for those of the first."""
        if all(leaf.grad is None for leaf in leaves):
            return
        traffic = self.traffic
        traffic.tape.operation = "flatten gradients"
        whole = traffic.new(self.shard * traffic.ranks * self.gathered, GRADIENTS)
        for leaf in leaves:
            leaf.grad = None
        if self.accumulated is None:
            self.accumulated = whole

    def reduce(self) -> None:
        """Flattens the gradients, frees the weights, reduces and scatters, and keeps the shard's gradient."""
        for leaves in reversed(self.later):  # those that no input's gradient announced
            self.lay(leaves)
        self.later.clear()
        if all(leaf.grad is None for leaf in self.leaves):
            self.free()
            return
        traffic = self.traffic
        tape = traffic.tape
        tape.operation = "flatten gradients"
        whole: Storage | None = traffic.new(self.shard * traffic.ranks * self.gathered, GRADIENTS)
        for leaf in self.leaves:
            leaf.grad = None
        if self.accumulated is not None:
            whole = None
        self.free()
        tape.operation = "reduce-scatter"
        if self.reduced != self.gathered:
            whole = traffic.new(self.shard * traffic.ranks * self.reduced, GRADIENTS)
        scattered = traffic.new(self.shard * self.reduced)
        if self.stored == self.reduced:
            scattered.become(GRADIENTS)
            kept = scattered
        else:
            kept = traffic.new(self.shard * self.stored, GRADIENTS)
        del whole, scattered
        self.accumulated = None
        if not self.has_shard:  # else it is added to that one
            tape.shards.append(kept)

    # -- around a module ----------------------------------------------------------------------------------------

    def enter(self, x: Tensor) -> Tensor:
        """The module's input: weights are gathered from here, and freed once its gradient arrives.

        The hook that frees a frozen layer's weights is on the same tensor as the older hook that gathers those of the
        layer below, so both are briefly in memory.

        The hooks are those of the first pass with gradients: what a later one gathers for its backward stays until the
        first one's, and so do its gradients. Under ``torch.no_grad`` nothing is registered.

        With ``FlatTraffic.holds_inputs``, a frozen layer's input and its gradient stay until backward ends: the hook
        is then on the input of a reentrant checkpoint's recomputation. That input is a leaf, and the hook keeps it
        alive through its autograd node.

        Source: torch 2.13, _runtime_utils.py, ``_register_post_backward_reshard_only_hook`` and
        ``_register_post_backward_hook`` (``already_registered``); autograd/graph.py, ``register_multi_grad_hook``
        (``grad_fns``).
        """
        self.gather()
        if self.is_leaf or not self.traffic.tape.records:
            return x
        number, self.passes = self.passes, self.passes + 1
        if not x.requires_grad:
            if self not in self.traffic.late:
                self.traffic.late.append(self)
            return x
        if number > 0:
            if not self.leaves:
                return x
            leaves = self.later[number - 1]
            return call_back(self.traffic.tape, x, lambda _: self.lay(leaves))
        if self.leaves:
            return call_back(self.traffic.tape, x, lambda _: self.reduce())
        if not self.traffic.holds_inputs:
            return call_back(self.traffic.tape, x, lambda _: self._go())
        storage, place = x.storage, self.traffic.tape.place

        def hold(gradient: Tensor | None) -> None:
            self.reduce()
            kept = (storage, gradient.storage if gradient is not None else None)
            self.traffic.held += [(place, storage) for storage in kept if storage is not None]

        return call_back(self.traffic.tape, x, hold)

    def leave(self, x: Tensor) -> Tensor:
        """The module's output: its gradient triggers the gather of the weights."""
        if not self.stays:
            self.free()

        def gather(_: Tensor | None) -> None:
            self.gather()
            if not self.is_leaf:
                self.traffic.let_go()

        return call_back(self.traffic.tape, x, gather)

    def _go(self) -> None:
        if self.is_lowest:
            self.free()
        else:
            self.traffic.going = self

"""FSDP1's hooks, with the units that accelerate and PEFT choose.

Source: accelerate 1.15, utils/dataclasses.py, ``set_auto_wrap_policy`` (every decoder layer); peft 0.21,
utils/other.py, ``fsdp_auto_wrap_policy`` (and every trained leaf module); torch 2.13, _runtime_utils.py,
``_post_forward_reshard`` (the root's weights stay).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from estimator.families.block import Block, Owned
from estimator.families.model_tree import outer_modules
from estimator.families.weights import adapter_width
from estimator.parallel.fsdp1 import (
    FlatTraffic,
    FlatUnit,
    flat_parameter,
    flat_sizes,
    trained_width,
)
from estimator.parallel.hooks import Hooks
from estimator.tape.tape import GRADIENTS, Leaf, Place, Tape, Tensor, leaf_node
from estimator.values.refusals import Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Phase

SECOND_REENTRANT_PASS = Refusal(
    "use_reentrant under FSDP 1 stops in a step with two forward passes to go back through: the hooks are those of the "
    "first alone, so that the second's weights are gone when it is replayed; set use_reentrant to false, or take "
    "fsdp_version 2.",
    Line(
        "torch",
        "distributed/fsdp/_runtime_utils.py",
        1454,
        'already_registered = hasattr(flat_param, "_post_backward_hook_state")',
    ),
)


class Fsdp1Hooks(Hooks):
    """The units of a model under FSDP1: the root, the layers, and each adapter matrix."""

    def __init__(
        self, tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int
    ) -> None:
        super().__init__(tape, model, setup, outer, ranks)
        self.setup = setup
        reentrant = setup.computation.gradient_checkpointing and setup.computation.use_reentrant
        self.traffic = FlatTraffic(
            tape, ranks, holds_inputs=reentrant and setup.mesh.checkpoint_around_fsdp
        )
        self.outer = outer
        self.units: dict[str, FlatUnit] = {}
        """Units of adapters by the parameter's key, and of layers by their index; the same in every pass."""
        self.calls: set[str] = set()
        """Units that were called with gradients."""
        sizes = flat_sizes(outer_modules(model), setup.adapters)
        self.root = self._unit("root", outer, sizes, stays=True)
        self._adapters(outer)

    def layer(self, index: int, block: Block) -> FlatUnit | None:
        """The unit of one layer."""
        is_lowest = not any(key.startswith("layer ") for key in self.units)
        sizes = flat_sizes(block.modules, self.setup.adapters)
        stays = self.setup.mesh.strategy.keeps_gathered
        unit = self._unit(f"layer {index}", block, sizes, stays=stays)
        unit.is_lowest = unit.is_lowest or is_lowest
        self._adapters(block)
        return unit

    def _unit(self, key: str, block: Block, sizes: Iterable[int], *, stays: bool) -> FlatUnit:
        weights = [owned for owned in block.owned if not owned.is_adapter]
        return self._called(key, weights, sizes, stays=stays, is_adapter=False)

    def _adapters(self, block: Block) -> None:
        stays = self.setup.mesh.strategy.keeps_gathered
        for owned in block.owned:
            if owned.is_adapter:
                key, sizes = owned.parameter.key, [owned.parameter.elements]
                unit = self._called(key, [owned], sizes, stays=stays, is_adapter=True)
                block.units[key] = unit
        block.adapters_seen = trained_width(self.setup.precision, adapter_width(self.setup))

    def _called(
        self,
        key: str,
        owned: Sequence[Owned],
        sizes: Iterable[int],
        *,
        stays: bool,
        is_adapter: bool,
    ) -> FlatUnit:
        """The unit of this key; a later call with gradients has leaves of its own."""
        if key not in self.units:
            self.units[key] = self._flat(owned, sizes, stays=stays, is_adapter=is_adapter)
        unit = self.units[key]
        if not self.tape.records:
            return unit
        if key in self.calls:
            if (
                self.setup.computation.gradient_checkpointing
                and self.setup.computation.use_reentrant
            ):
                raise SECOND_REENTRANT_PASS()
            renewed = [member.parameter for member in owned if _leaf(member) is not None]
            leaves = [Leaf(GRADIENTS) for _ in renewed]
            for parameter, leaf in zip(renewed, leaves, strict=True):
                parameter.node = leaf_node(leaf)
            if leaves:
                unit.call_again(leaves)
        self.calls.add(key)
        return unit

    def _flat(
        self, owned: Iterable[Owned], sizes: Iterable[int], *, stays: bool, is_adapter: bool
    ) -> FlatUnit:
        setup = self.setup
        return FlatUnit(
            self.traffic,
            flat_parameter(sizes, setup, is_adapter=is_adapter, ranks=self.traffic.ranks),
            [leaf for member in owned if (leaf := _leaf(member)) is not None],
            stays=stays,
            accumulates=setup.batch.gradient_accumulation_steps > 1,
            reduces=setup.reduces_every_micro_step,
        )

    def enter_model(self, ids: Tensor) -> None:
        """Gathers the root, which stays gathered until backward ends."""
        if self.root.passes:
            self._unit("root", self.outer, (), stays=True)
            self._adapters(self.outer)
        self.root.enter(ids)

    def end_backward(self) -> None:
        """Frees what was held, layer by layer, so that layers not simulated can be counted."""
        traffic = self.traffic
        traffic.end_backward()
        if not traffic.held:
            return
        for place in sorted({place for place, _ in traffic.held}, reverse=True):
            self.tape.go_to(Phase.BACKWARD, "held", place)
            traffic.held = [(at, held) for at, held in traffic.held if at != place]
        self.tape.go_to(Phase.BACKWARD, "end of backward", Place())


def _leaf(owned: Owned) -> Leaf | None:
    node = owned.parameter.node
    return None if node is None else node.leaf


class FrozenFsdp1Hooks(Fsdp1Hooks):
    """The units of a second model: its root is gathered from its first call on (``frozen_flat_bytes``).

    Source: trl 1.16, models/utils.py, ``prepare_fsdp``, which divides it by the policy of the trained model.
    """

    def enter_model(self, ids: Tensor) -> None:
        """The root is there."""

    def layer(self, index: int, block: Block) -> FlatUnit | None:
        """The unit of one layer, unless it is there, too."""
        if self.setup.mesh.strategy.keeps_gathered:
            return None
        return super().layer(index, block)

"""A model's parameters in the units that accelerate and PEFT hand to FSDP1.

Source: accelerate 1.15, utils/dataclasses.py, ``set_auto_wrap_policy`` (every decoder layer); peft 0.21,
utils/other.py, ``fsdp_auto_wrap_policy`` (and every trained leaf module); torch 2.13, _runtime_utils.py,
``_post_forward_reshard`` (the root's weights stay).
"""

from __future__ import annotations

from collections.abc import Iterable

from estimator.families.block import Block, Owned
from estimator.families.parameters import outer_modules
from estimator.parallel.fsdp1 import (
    Flat,
    Flow,
    gathered_width,
    module_sizes,
    shard_elements,
    stored_width,
)
from estimator.tape.tape import Leaf, Parameter, Tape, Tensor
from estimator.values.specs import Model, Phase, Strategy, TrainingSetup


class FlatUnits:
    """The units of a model under FSDP1, by the same calls as ``Sharded``."""

    def __init__(
        self, tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int
    ) -> None:
        self.setup = setup
        self.tape = tape
        reentrant = setup.gradient_checkpointing and setup.use_reentrant
        self.flow = Flow(tape, ranks, holds_inputs=reentrant and setup.checkpoint_around_fsdp)
        self.layers = 0
        """That were played."""
        sizes = [size for module in outer_modules(model) for size in module_sizes(module, setup)]
        self.root = self._unit(outer, sizes, stays=True)
        self._adapters(outer)

    def layer(self, block: Block) -> Flat:
        """The unit of one layer."""
        self.layers += 1
        sizes = [size for module in block.modules for size in module_sizes(module, self.setup)]
        unit = self._unit(block, sizes, stays=self.setup.strategy is Strategy.FSDP_GRAD_OP)
        unit.is_lowest = self.layers == 1
        self._adapters(block)
        return unit

    def _unit(self, block: Block, sizes: Iterable[int], *, stays: bool) -> Flat:
        owned = [it for it in block.owned if not it.is_adapter]
        return self._flat(owned, sizes, stays=stays, is_adapter=False)

    def _adapters(self, block: Block) -> None:
        stays = self.setup.strategy is Strategy.FSDP_GRAD_OP
        for owned in block.owned:
            if owned.is_adapter:
                sizes = [owned.parameter.elements]
                unit = self._flat([owned], sizes, stays=stays, is_adapter=True)
                block.units[owned.parameter.key] = unit
        block.adapters_seen = stored_width(self.setup, is_adapter=True)

    def _flat(
        self, owned: Iterable[Owned], sizes: Iterable[int], *, stays: bool, is_adapter: bool
    ) -> Flat:
        setup = self.setup
        widths = (
            stored_width(setup, is_adapter=is_adapter),
            gathered_width(setup, is_adapter=is_adapter),
        )
        return Flat(
            self.flow,
            shard_elements(sizes, widths[1], self.flow.ranks),
            widths,
            [leaf for it in owned if (leaf := _leaf(it)) is not None],
            stays=stays,
            accumulates=setup.gradient_accumulation_steps > 1,
            is_leaf=is_adapter,
        )

    # -- what happens around the modules ------------------------------------------------------------------------

    def before_embedding(self, ids: Tensor) -> None:
        """The root is gathered."""
        self.root.enter(ids)

    def after_embedding(self, hidden: Tensor) -> Tensor:
        """The root stays."""
        return hidden

    def before_norm(self, hidden: Tensor) -> Tensor:
        """The root is there."""
        return hidden

    def before_head(self, hidden: Tensor) -> Tensor:
        """The root is there."""
        return hidden

    def before_chunk(self, chunk: Tensor) -> Tensor:
        """The root is there."""
        return chunk

    def read_head(self, weight: Parameter) -> Tensor:
        """The root is there."""
        return weight

    def after_head(self, logits: Tensor) -> Tensor:
        """The root stays for backward."""
        return logits

    def end_forward(self, loss: Tensor) -> Tensor:
        """The model returns."""
        return loss

    def end_backward(self) -> None:
        """All gradients have arrived; layer by layer goes what was held, so that unplayed layers can be counted."""
        flow = self.flow
        flow.end_backward()
        if not flow.held:
            return
        for layer in reversed(range(self.layers)):
            self.tape.enter(Phase.BACKWARD, "held", layer)
            flow.held = [it for it in flow.held if it[0] != layer]
        self.tape.enter(Phase.BACKWARD, "end of backward")


def _leaf(owned: Owned) -> Leaf | None:
    node = owned.parameter.node
    return None if node is None else node.leaf

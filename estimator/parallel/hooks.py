"""What a strategy does around the modules of a model while they are called: a set of hooks, as PyTorch has them.

A family's program calls modules; it names no strategy. The hooks of a strategy see what goes into a module and what
comes out, and may gather weights, copy a tensor, or ask to be called when its gradient comes by.
"""

from __future__ import annotations

from estimator.families.block import Block, ModuleHook
from estimator.tape.tape import Parameter, Tape, Tensor
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


class Hooks:
    """The hooks of one model on one tape. These do nothing: one GPU alone."""

    brings_inputs = False
    """Every layer gets copies of its own of what all layers share: masks, tables, positions."""

    def __init__(
        self, tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int
    ) -> None:
        self.tape = tape

    def enter_model(self, ids: Tensor) -> None:
        """The model is called with these token ids."""

    def enter(self, module: str, x: Tensor) -> Tensor:
        """A module outside the layers is called; returns its input."""
        return x

    def leave(self, module: str, x: Tensor) -> Tensor:
        """It returns its output."""
        return x

    def layer(self, index: int, block: Block) -> ModuleHook | None:
        """What happens around a layer; None where nothing does."""
        return None

    def read(self, weight: Parameter) -> Tensor:
        """A weight that is read without calling its module."""
        return weight

    def work_at(self, module: str | None) -> None:
        """What follows happens where this module lies; None: where the batch does."""

    def returned(self, loss: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The model itself returns, before autocast ends."""
        return loss, logits

    def leave_model(self, loss: Tensor, outputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What is wrapped around the model returns loss and outputs."""
        return loss, outputs

    def end_backward(self) -> None:
        """All gradients have arrived."""

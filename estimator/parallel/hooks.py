"""A strategy's hooks around the calls of a model's modules, like PyTorch's module hooks.

A family's program calls modules and names no strategy. A strategy's hooks see a module's inputs and outputs; they may
gather weights, copy a tensor, or register a hook on its gradient.
"""

from __future__ import annotations

from estimator.families.block import Block, ModuleHook
from estimator.tape.tape import Parameter, Tape, Tensor
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


class Hooks:
    """The hooks of one model on one tape. The base class does nothing: a single GPU.

    They are kept from pass to pass of a step: ``layer`` is asked in every pass and gives the same units.
    Supported under each strategy: passes with and without gradients in any order with one backward after them, and
    other models that are frozen (``StrategyRule.frozen_hooks``). A second backward in a step is not.
    """

    brings_inputs = False
    """Every layer gets its own copies of shared inputs: masks, tables, positions."""

    casts_inputs = False
    """Every module that is wrapped gets its float inputs in 16 bits."""

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
        """A module outside the layers returns; returns its output."""
        return x

    def layer(self, index: int, block: Block) -> ModuleHook | None:
        """The hook around a layer; None if there is none."""
        return None

    def see(self, outer: Block, projector: Block) -> None:
        """A vision tower is loaded: the modules outside its layers, and its projector."""

    def hold_input(self, x: Tensor) -> None:
        """Keep an input that was cast before the model was called until the model returns."""

    def tower_layer(self, index: int, block: Block) -> ModuleHook | None:
        """The hook around a layer of the vision tower; None if there is none."""
        return None

    def read(self, weight: Parameter) -> Tensor:
        """Read a weight without calling its module."""
        return weight

    def gather(self, tape: Tape, weight: Parameter) -> Tensor | None:
        """What a loss gathers of the head's weight while it computes, and again in backward; None: nothing."""
        return None

    def work_at(self, module: str | None) -> None:
        """Continue on this module's GPU; None: on the batch's GPU."""

    def returned(self, loss: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The model's forward returns, before autocast ends."""
        return loss, logits

    def leave_model(self, loss: Tensor, outputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The outermost wrapper of the model returns loss and outputs."""
        return loss, outputs

    def end_backward(self) -> None:
        """All gradients have arrived."""

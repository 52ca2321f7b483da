"""A step on a tape, as an objective plays it: models that lie there, passes of them, and backward from a loss."""

from __future__ import annotations

from collections.abc import Callable

from estimator.objectives.forward import ID_BYTES, Forward, Loaded, Pass
from estimator.objectives.stack import Stack, stack_of
from estimator.parallel.module_devices import ModuleDevices
from estimator.parallel.sharding import computed, made_divided
from estimator.tape.tape import ACTIVATIONS, Tape, Tensor
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, MixedPrecision, Model, Phase


class Step:
    """One micro-step, as the trained model's setup has it."""

    def __init__(
        self,
        model: Model,
        setup: TrainingSetup,
        stack: Stack,
        ranks: int = 1,
        *,
        training: bool = True,
        devices: ModuleDevices | None = None,
    ) -> None:
        self.setup = computed(setup)
        self.training = training
        """False: an evaluation's forward call under ``torch.no_grad``."""
        autocast = self.setup.mixed_precision is not MixedPrecision.NO
        self.tape = Tape(
            autocast_width=2 if autocast else None,
            records=training,
            is_reentrant=setup.use_reentrant,
            is_float16=Dtype.FLOAT16 in (setup.dtype, setup.mixed_precision.value),
            is_deepspeeds=made_divided(setup),
        )
        self.labels: list[str] = []
        """What the moments of each pass are called by."""
        self.trained = Loaded(self.tape, model, setup, stack, ranks=ranks, devices=devices)
        self.models = [self.trained]

    @property
    def stacks(self) -> list[Stack]:
        """The layers of every model."""
        return [loaded.stack for loaded in self.models]

    def load(self, model: Model, setup: TrainingSetup) -> Loaded:
        """Another model beside the trained one, on the same GPU."""
        stack = stack_of(model, setup, self.setup.max_length)
        loaded = Loaded(self.tape, model, setup, stack, number=len(self.models))
        self.models.append(loaded)
        return loaded

    def ids(self, tokens: int) -> Tensor:
        """Ids, labels or a mask of so many tokens: the batch as it comes from the loader."""
        return self.tape.new(tokens, ID_BYTES, ACTIVATIONS)

    def call(self, of: Pass) -> Forward:
        """A model is called."""
        self.labels.append(of.label)
        return Forward(of)

    def without_grad(self, of: Pass, program: Callable[[Forward], Tensor | None]) -> Tensor | None:
        """A model is called under ``torch.no_grad``, and what the program makes of it is kept."""
        with self.tape.grad(enabled=False):
            forward = self.call(of)
            kept = program(forward)
            forward.end()
        return kept

    def backward(self, loss: Tensor) -> None:
        """Gradients arrive; with the loss goes the graph and what its nodes kept, layer by layer."""
        tape = self.tape
        tape.backward(loss)
        if not tape.attached:
            return
        for place in sorted({at for at, _ in tape.attached if at.layer is not None}, reverse=True):
            tape.go_to(Phase.BACKWARD, "graph", place)
            tape.attached = [kept for kept in tape.attached if kept[0] != place]
        tape.enter(Phase.BACKWARD, "end of backward")
        tape.attached.clear()

    def end(self) -> Tape:
        """The micro-step is over."""
        for loaded in self.models:
            loaded.hooks.end_backward()
        return self.tape


Objective = Callable[[Step], None]
"""Plays a micro-step: its passes in order, the loss, and backward where the step is trained."""

"""A step on a tape, as an objective plays it: resident models, their forward passes, and backward from a loss."""

from __future__ import annotations

from collections.abc import Callable

from estimator.parallel.frozen import as_frozen
from estimator.parallel.module_devices import ModuleDevices
from estimator.parallel.sharding import computed, sharded_on_init
from estimator.passes.dropout import without_dropout
from estimator.passes.forward import ID_BYTES, Forward, Loaded, Pass
from estimator.passes.stack import Stack, stack_of
from estimator.tape.offloading import Offloading
from estimator.tape.tape import ACTIVATIONS, Tape, Tensor
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, MixedPrecision, Model, Phase


class Step:
    """One micro-step, in the trained model's setup."""

    def __init__(
        self,
        model: Model,
        setup: TrainingSetup,
        stack: Stack,
        ranks: int = 1,
        *,
        training: bool = True,
        devices: ModuleDevices | None = None,
        scored: int | None = None,
        at_once: int | None = None,
    ) -> None:
        self.setup = computed(setup)
        self._given, self._ranks, self._devices = setup, ranks, devices
        self.training = training
        """False: an evaluation's forward call under ``torch.no_grad``."""
        self.scored = self.setup.batch.max_length - 1 if scored is None else scored
        """Tokens of a row that the loss counts."""
        self.at_once = self.setup.batch.per_device_train_batch_size if at_once is None else at_once
        """Rows of an embedding batch that go through the model at once."""
        autocast = self.setup.precision.mixed_precision is not MixedPrecision.NO
        self.tape = Tape(
            autocast_width=2 if autocast else None,
            records=training,
            is_reentrant=setup.computation.use_reentrant,
            offloads_checkpoints=setup.computation.offload_checkpoints,
            keeps_attention=setup.computation.selective_checkpointing,
            saved_tensor_hooks=Offloading
            if training and setup.computation.activation_offloading
            else None,
            is_float16=Dtype.FLOAT16
            in (setup.precision.dtype, setup.precision.mixed_precision.value),
            is_deepspeeds=sharded_on_init(setup),
            is_compiled=setup.computation.torch_compile,
        )
        self.labels: list[str] = []
        """Label of each pass."""
        self.trained = Loaded(self.tape, model, setup, stack, ranks=ranks, devices=devices)
        self.models = [self.trained]

    @property
    def stacks(self) -> list[Stack]:
        """The layers of every model."""
        return [stack for loaded in self.models for stack in loaded.stacks]

    def load(self, model: Model, setup: TrainingSetup | None = None) -> Loaded:
        """Load another model beside the trained one, frozen, in its setup or in one of its own.

        Every strategy holds it as its rule in ``parallel.strategies`` says. A device map places it as it placed the
        trained model.
        """
        setup = as_frozen(self._given if setup is None else setup)
        loaded = Loaded(
            self.tape,
            model,
            setup,
            stack_of(model, setup, self.setup.batch.max_length),
            number=len(self.stacks),
            ranks=self._ranks,
            devices=self._devices,
            trained=False,
        )
        self.models.append(loaded)
        return loaded

    def ids(self, tokens: int) -> Tensor:
        """Ids, labels or a mask for ``tokens`` tokens: a tensor of the batch as the loader returns it."""
        return self.tape.new(tokens, ID_BYTES, ACTIVATIONS)

    def call(self, of: Pass) -> Forward:
        """Begin a forward call of a model."""
        self.labels.append(of.label)
        return Forward(of)

    def backward(self, loss: Tensor) -> None:
        """Run backward, then free the graph with its nodes' attributes, layer by layer."""
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
        """End the micro-step."""
        for loaded in self.models:
            loaded.hooks.end_backward()
        return self.tape


MicroStep = Callable[[Step], None]
"""Plays a micro-step: its passes in order, the loss, and backward where the step is trained."""


def load_reference(step: Step) -> Loaded | None:
    """The reference model, where it is a model of its own, in eval mode as ``from_pretrained`` returns it."""
    return step.load(without_dropout(step.trained.model)) if step.setup.keeps_reference else None


def as_reference(reference: Loaded | None, step: Step, rows: int) -> Pass:
    """A forward call of the reference: of its own model, or of the policy with its adapters switched off.

    Source: trl 1.16, trainer/utils.py, ``use_adapter``.
    """
    return Pass(
        reference or step.trained,
        rows,
        step.setup.batch.max_length,
        grad=False,
        phase=Phase.REFERENCE,
        label="reference",
        adapters=reference is not None,
    )

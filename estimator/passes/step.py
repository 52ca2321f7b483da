"""A step on a tape, in whose words an objective says its own: models, their forward passes, losses, and backward."""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.liger import loss_of
from estimator.parallel.computed import as_frozen, computed, sharded_on_init
from estimator.parallel.module_devices import ModuleDevices
from estimator.passes import causal_lm, label_smoothing, losses, pairs, whole_logits
from estimator.passes.batch import passed_rows
from estimator.passes.dropout import without_dropout
from estimator.passes.forward import ID_BYTES, Forward, LoadedModel, Pass
from estimator.passes.stack import Stack, stack_of
from estimator.tape.offloading import Offloading
from estimator.tape.tape import ACTIVATIONS, Tape, Tensor
from estimator.values.losses import LossFacts
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
        self.rows = passed_rows(self.setup)
        """Rows of the trained model's forward call: two of an example that is a pair."""
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
        self.trained = LoadedModel(self.tape, model, setup, stack, ranks=ranks, devices=devices)
        self.models = [self.trained]

    @property
    def stacks(self) -> list[Stack]:
        """The layers of every model."""
        return [stack for loaded in self.models for stack in loaded.stacks]

    def load(self, model: Model, setup: TrainingSetup | None = None) -> LoadedModel:
        """Load another model beside the trained one, frozen, in its setup or in one of its own.

        Every strategy holds it as its rule in ``parallel.strategies`` says. A device map places it as it placed the
        trained model.
        """
        setup = as_frozen(self._given if setup is None else setup)
        loaded = LoadedModel(
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

    # -- what is called with what ---------------------------------------------------------------------------

    @property
    def examples(self) -> int:
        """Examples of the micro-batch (a count)."""
        return self.setup.batch.per_device_train_batch_size

    @property
    def loss(self) -> LossFacts:
        """How the trained model's loss is computed."""
        return loss_of(self.trained.model, self.setup)

    def held(self, elements: int, width: int) -> Tensor:
        """A tensor that is held as long as the micro-step holds it; ``width``: bytes an element."""
        return self.tape.new(elements, width, ACTIVATIONS)

    def ids(self, tokens: int | None = None) -> Tensor:
        """Ids, labels or a mask for ``tokens`` tokens, or for all rows, as the loader returns them."""
        return self.held(
            self.rows * self.setup.batch.max_length if tokens is None else tokens, ID_BYTES
        )

    def batch(self, count: int, rows: int | None = None) -> list[Tensor]:
        """So many tensors of the batch, each of all rows, or of ``rows``."""
        tokens = (self.rows if rows is None else rows) * self.setup.batch.max_length
        return [self.ids(tokens) for _ in range(count)]

    def policy(
        self,
        *,
        rows: int | None = None,
        grad: bool = True,
        phase: Phase = Phase.FORWARD,
        label: str = "",
    ) -> Pass:
        """A forward call of the trained model, on all rows or on ``rows``."""
        rows = self.rows if rows is None else rows
        return Pass(
            self.trained, rows, self.setup.batch.max_length, grad=grad, phase=phase, label=label
        )

    def reference(self) -> LoadedModel | None:
        """The reference model, where it is a model of its own, in eval mode as ``from_pretrained`` returns it."""
        if not self.setup.keeps_reference:
            return None
        return self.load(without_dropout(self.trained.model))

    def of_reference(self, reference: LoadedModel | None) -> Pass:
        """A forward call of the reference: of its own model, or of the policy with its adapters switched off.

        Source: trl 1.16, trainer/utils.py, ``use_adapter``.
        """
        asked = self.policy(grad=False, phase=Phase.REFERENCE, label="reference")
        return asked._replace(model=reference or self.trained, adapters=reference is not None)

    # -- calls and their losses, each with a docstring in its file -------------------------------------------

    causal_lm = causal_lm.causal_lm
    smoothed = label_smoothing.smoothed
    on_pairs = pairs.on_pairs
    ask = whole_logits.ask
    logits = whole_logits.logits
    measure = whole_logits.measure
    split = whole_logits.split
    scores = losses.scores
    vectors = losses.vectors
    contrast = losses.contrast
    cross_entropy = losses.cross_entropy
    log_sigmoid = losses.log_sigmoid
    mean = losses.mean

    # -- the step itself ------------------------------------------------------------------------------------

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

    def train(self, loss: Tensor) -> None:
        """Run backward, where the step is trained, and end the micro-step."""
        if self.training:
            self.backward(loss)
        self.end()


MicroStep = Callable[[Step], None]
"""Plays a micro-step: its passes in order, the loss, and backward where the step is trained."""

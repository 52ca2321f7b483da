"""Causal language modelling: one forward pass, the loss inside the model's call, and backward.

Source: as ``labelled_call``.
"""

from __future__ import annotations

from estimator.families.liger import loss_of
from estimator.passes.forward import Pass
from estimator.passes.labelled_call import LabelledCall
from estimator.passes.step import Step
from estimator.passes.whole_logits import whole_logits
from estimator.tape.tape import ACTIVATIONS, Tensor


def causal_lm(step: Step) -> None:
    """A batch, one call of the model with its labels, and backward."""
    setup = step.setup
    ids, labels = step.ids(setup.batch.tokens), step.ids(setup.batch.tokens)
    padding = step.ids(setup.batch.tokens) if setup.batch.padded else None
    joined = _bounds(step) if setup.batch.is_joined else None
    rows, length = setup.batch.per_device_train_batch_size, setup.batch.max_length
    forward = step.call(Pass(step.trained, rows, length))
    call = LabelledCall(forward, rows * step.scored)
    loss, outputs = call.run(ids, labels)
    if not (step.training and setup.task.hold_outputs):
        del outputs
        call.free(forward.router_logits)
        forward.drop_image_outputs()
    forward.drop_images()
    if step.training:
        step.backward(loss)
    step.end()
    forward.router_logits.clear()
    forward.drop_image_outputs()
    del ids, labels, padding, joined


def _bounds(step: Step) -> tuple[Tensor, Tensor]:
    """What tells joined examples apart: every token's position, and the number of its example as int32.

    Leaves out: where each begins, 4 bytes an example.
    Source: trl 1.16, trainer/sft_trainer.py, ``DataCollatorForLanguageModeling.torch_call``.
    """
    return step.ids(step.setup.batch.tokens), step.tape.new(step.setup.batch.tokens, 4, ACTIVATIONS)


def with_logits(step: Step) -> None:
    """An evaluation that returns its logits: TRL's fused head makes none, so that the model is called once more.

    Source: trl 1.16, trainer/sft_trainer.py, ``compute_loss`` (``return_outputs``).
    """
    setup = step.setup
    if not loss_of(step.trained.model, setup).tiles_logits:
        causal_lm(step)
        return
    rows, length = setup.batch.per_device_train_batch_size, setup.batch.max_length
    ids, labels = step.ids(setup.batch.tokens), step.ids(setup.batch.tokens)
    padding = step.ids(setup.batch.tokens) if setup.batch.padded else None
    labelled = LabelledCall(step.call(Pass(step.trained, rows, length)), rows * step.scored)
    loss, _ = labelled.run(ids, labels)
    again = Pass(step.trained, rows, length, label="for its logits")
    logits = whole_logits(step.call(again), ids)
    step.end()
    del ids, labels, padding, loss, logits

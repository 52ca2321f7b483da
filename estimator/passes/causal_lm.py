"""Causal language modelling: one forward pass, the loss inside the model's call, and backward.

Source: as ``labelled_call``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.passes.labelled_call import LabelledCall
from estimator.tape.tape import Tensor

if TYPE_CHECKING:
    from estimator.passes.step import Step


def causal_lm(step: Step) -> None:
    """A batch, one call of the model with its labels, and backward."""
    setup = step.setup
    ids, labels = step.batch(2)
    padding = step.ids() if setup.batch.padded else None
    joined = _bounds(step) if setup.batch.is_joined else None
    forward = step.call(step.policy())
    call = LabelledCall(forward, step.rows * step.scored)
    loss, outputs = call.run(ids, labels)
    if not (step.training and setup.task.hold_outputs):
        del outputs
        call.free(forward.router_logits)
        forward.drop_image_outputs()
    forward.drop_images()
    step.train(loss)
    forward.router_logits.clear()
    forward.drop_image_outputs()
    del ids, labels, padding, joined


def _bounds(step: Step) -> tuple[Tensor, Tensor]:
    """What tells joined examples apart: every token's position, and the number of its example as int32.

    Leaves out: where each begins, 4 bytes an example.
    Source: trl 1.16, trainer/sft_trainer.py, ``DataCollatorForLanguageModeling.torch_call``.
    """
    return step.ids(), step.held(step.setup.batch.tokens, 4)


def with_logits(step: Step) -> None:
    """An evaluation that returns its logits: TRL's fused head makes none, so that the model is called once more.

    Source: trl 1.16, trainer/sft_trainer.py, ``compute_loss`` (``return_outputs``).
    """
    if not step.loss.tiles_logits:
        causal_lm(step)
        return
    ids, labels = step.batch(2)
    padding = step.ids() if step.setup.batch.padded else None
    labelled = LabelledCall(step.call(step.policy()), step.rows * step.scored)
    loss, _ = labelled.run(ids, labels)
    logits = step.logits(step.call(step.policy(label="for its logits")), ids)
    step.end()
    del ids, labels, padding, loss, logits

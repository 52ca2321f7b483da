"""Preference losses from whole logits, as trainers compute them that do not use TRL's fused head.

    standard    LLaMA-Factory: the logits of every token in float32, their log-softmax, and a gather
    selective   ms-swift: the logits of the completions alone, and a gather and a log-sum-exp of each row
    selective_trl   TRL before 1.15, which axolotl pins: the same of all logits, which are held for its metrics
    selective_verl   verl: all logits in 16 bits, and flash-attn's cross-entropy, which writes their gradient over them

Source: llamafactory 0.9.5, train/dpo/trainer.py and train/kto/trainer.py, ``concatenated_forward``, and
train/trainer_utils.py, ``get_batch_logps``; ms-swift 4.6.0, swift/rlhf_trainers/dpo_trainer.py and kto_trainer.py,
rlhf_mixin.py, ``get_per_token_logps``, swift/trainers/mixin.py, ``prepare_logits_to_keep``; trl 0.29.1,
trainer/utils.py, ``selective_log_softmax``; trl 1.9.0, trainer/dpo_trainer.py and kto_trainer.py, ``_compute_loss``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.passes.forward import ID_BYTES, Forward, Pass, as_logits
from estimator.passes.labelled_call import LabelledCall
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import LOGITS, Tape, Tensor
from estimator.values.arithmetic import ceil_div

if TYPE_CHECKING:
    from estimator.passes.step import Step


def ask(step: Step, of: Pass, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """A call that returns log-probabilities, and the logits that the trainer holds for its metrics, if any.

    Without a graph too: ``of.grad`` says which.
    """
    if of.grad:
        return _ask(step, of, ids, labels)
    with step.tape.grad(enabled=False):
        return _ask(step, of, ids, labels)


def _ask(step: Step, of: Pass, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    loss, words = step.loss, step.trained.model.vocab_size
    if loss.tiles_logits:
        return LabelledCall(step.call(of), of.rows * step.scored).run(ids, labels)
    if loss.scores_completions:
        kept = step.scored + 1
        logits = step.logits(step.call(of), ids, kept)
        return _selected(step.tape, logits, of.rows, kept, words), None
    if loss.keeps_logits:
        logits = step.logits(step.call(of), ids)
        scored = op.part(step.tape, logits, of.rows * (of.length - 1) * words)
        return _selected(step.tape, scored, of.rows, of.length - 1, words), logits
    if loss.is_verls:
        logits = step.logits(step.call(of), ids, converts=False)
        found = fused.flash_cross_entropy(step.tape, logits, of.rows * of.length)
        return op.mean(step.tape, found, 1, "loss"), None
    copies = [step.ids(of.rows * of.length) for _ in range(3)]  # nested_detach(batch, clone=True)
    logits = step.logits(step.call(of), ids)
    logits = as_logits(op.cast(step.tape, logits, 4))
    found = _gathered(step.tape, logits, of.rows, of.length - 1, words)
    del copies
    return found, logits


def measure(step: Step, held: list[Tensor | None], *, splits: bool = False) -> None:
    """TRL's metrics before 1.15: the entropy of all logits, of which it makes a copy, beside those that are held.

    ``splits``, as KTO's: it then copies the logits of good and of bad answers, and once more those of good answers that
    are scored, half of the rows. 128 positions at a time have their log-softmax.

    Source: trl 1.9.0, trainer/utils.py, ``entropy_from_logits`` (``reshape``), and trainer/kto_trainer.py
    (``index_select``).
    """
    logits = held[0]
    if logits is None or not step.loss.keeps_logits:
        return
    rows = step.rows
    tape, words, width = step.tape, step.trained.model.vocab_size, logits.width
    length, kept = step.setup.batch.max_length - 1, step.scored
    tape.operation = "logits copied for their entropy"
    copied = tape.new(rows * length * words, width, LOGITS) if rows > 1 else None
    chunk = [tape.new(CHUNK * words, width, LOGITS) for _ in range(3)]
    del copied, chunk
    if splits:
        tape.operation = "logits of good and of bad answers"
        split = tape.new(rows * length * words, width, LOGITS)
        good = tape.new(ceil_div(rows, 2) * kept * words, width, LOGITS)
        del split, good


def split(step: Step, logits: Tensor) -> Tensor:
    """A copy of whole logits, those of good answers apart from those of bad ones."""
    step.tape.operation = "logits of good and of bad answers"
    return step.tape.new(logits.elements, logits.width, LOGITS)


CHUNK = 128
"""Positions whose entropy is computed at once: trl 1.9.0, trainer/utils.py, ``entropy_from_logits``."""


def logits(
    step: Step, forward: Forward, ids: Tensor, kept: int | None = None, *, converts: bool = True
) -> Tensor:
    """The logits as the outermost wrapper of the model returns them; of each row's last ``kept`` tokens, or of all.

    ``converts``: to float32, as accelerate does with what a model returns under autocast.
    """
    tape = step.tape
    every = forward.hidden(ids)  # a local of the model's forward
    hidden = every
    if kept is not None:
        width = every.elements // forward.setup.batch.tokens
        rows = forward.setup.batch.per_device_train_batch_size
        hidden = op.part(tape, every, rows * kept * width)
        if tape.autocast_width in (None, hidden.width):  # else the cast is the copy
            hidden = op.reshape_copy(tape, hidden)
    logits = forward.logits(hidden)
    del hidden, every
    tape.enter(forward.end_phase, "loss")
    forward.end()
    forward.router_logits.clear()
    if converts and tape.autocast_width is not None:
        tape.operation = "outputs to float32"
        logits = as_logits(op.cast(tape, logits, 4))
    logits, copied = forward.hooks.leave_model(logits, logits)
    if copied is None or copied is logits:
        return logits
    return tape.record(
        "outputs through DDP's sink, backward", copied, [logits], lambda t, g: [g[0]]
    )


def _gathered(tape: Tape, logits: Tensor, rows: int, scored: int, words: int) -> Tensor:
    """Log-softmax of all positions but the last, of which one word each is gathered.

    The kernel copies the slice, unless it is one row. Log-softmax and gather both keep the log-probabilities.

    Source: torch 2.13, aten/src/ATen/native/cuda/SoftMax.cu, ``host_softmax`` (``input_.contiguous()``),
    tools/autograd/derivatives.yaml (``gather`` keeps its input).
    """
    elements = rows * scored * words
    shifted = op.part(tape, logits, elements)
    tape.operation = "log-softmax"
    copied = tape.new(elements, 4, LOGITS) if rows > 1 else None
    every = tape.new(elements, 4, LOGITS)
    del copied
    every = tape.record(
        "log-softmax backward",
        every,
        [shifted],
        lambda t, g: [t.new(elements, 4, LOGITS)],
        [every],
    )
    index = tape.new(rows * scored, ID_BYTES)
    tape.operation = "log-probabilities"
    node = tape.begin(
        "log-probabilities backward",
        [every],
        lambda t, g: [t.new(elements, 4, LOGITS)],
        [every, index],
    )
    return op.mean(tape, tape.finish(node, tape.new(rows * scored, 4)), 1, "loss")


def _selected(tape: Tape, logits: Tensor, rows: int, kept: int, words: int) -> Tensor:
    """A gather and a log-sum-exp, which both keep the logits; in 16 bits a log-softmax of each row, kept instead.

    Backward makes a gradient of each row, then stacks them.

    Source: torch 2.13, aten/src/ATen/native/ReduceOps.cpp, ``logsumexp_out_impl``;
    torch/csrc/autograd/FunctionsManual.cpp, ``logsumexp_backward``, ``unbind_backward``.
    """
    elements, width, row = rows * kept * words, logits.width, kept * words
    index = tape.new(rows * kept, ID_BYTES)

    def stacked(t: Tape, _: object) -> list[Tensor | None]:
        of_rows = t.new(elements, width, LOGITS)
        whole = t.new(elements, width, LOGITS)
        del of_rows
        return [whole]

    if width != 4 and not tape.records:
        tape.operation = "log-softmax of a row"
        previous, one = (tape.new(row, width, LOGITS) for _ in range(2))
        del previous, one
        return tape.new(rows * kept, width)
    if width != 4:
        tape.operation = "log-softmax"
        every = tape.new(elements, width, LOGITS)
        # row by row: those kept go as the gradients come
        every = tape.record("log-softmax backward", every, [logits], stacked)
        node = tape.begin(
            "log-probabilities backward",
            [every],
            lambda t, g: [t.new(row, width, LOGITS)],
            [every, index],
        )
        return op.mean(tape, tape.finish(node, tape.new(rows * kept, width)), 1, "loss")
    tape.operation = "log-probabilities"
    node = tape.begin(
        "log-probabilities backward",
        [logits],
        lambda t, g: [t.new(elements, width, LOGITS)],
        [logits, index],
    )
    found = tape.finish(node, tape.new(rows * kept, 4))
    tape.operation = "log-sum-exp"
    one = tape.new(row, width, LOGITS)
    del one
    total = tape.new(rows * kept, 4)
    total = tape.record("log-sum-exp backward", total, [logits], stacked, [logits, total])
    return op.add(tape, op.mean(tape, found, 1, "loss"), op.mean(tape, total, 1, "loss"))

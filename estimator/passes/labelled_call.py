"""A call of a model with labels, whose loss is computed inside.

Source: transformers 5.23, models/llama/modeling_llama.py (``LlamaForCausalLM.forward``) and loss/loss_utils.py
(``ForCausalLMLoss``); accelerate 1.15, accelerator.py (outputs converted to float32).
"""

from __future__ import annotations

from collections.abc import Sequence

from estimator.families.experts import balancing_loss
from estimator.families.liger import kernels_of_family, loss_of
from estimator.parallel.placement import HEAD
from estimator.passes.forward import ID_BYTES, Forward, as_logits
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import ACTIVATIONS, LOGITS, Tensor
from estimator.values.arithmetic import ceil_div
from estimator.values.losses import Loss

CHUNKS = 8
"""Chunks of a sequence's logits: torchtune 0.6.1, modules/loss/ce_chunked_output_loss.py, ``num_output_chunks``."""


class LabelledCall:
    """A call of the model with labels, which returns the loss and the logits."""

    def __init__(self, forward: Forward, scored: int, loss: Loss | None = None) -> None:
        self.forward = forward
        self.scored = scored
        """Tokens of all rows that the loss counts."""
        self.phase = forward.end_phase
        self.tape, self.model, self.setup = forward.tape, forward.model, forward.setup
        self.hooks, self.router_logits = forward.hooks, forward.router_logits
        self.loss = loss or loss_of(forward.model, forward.setup)

    def run(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Loss and outputs, as the outermost wrapper of the model returns them."""
        tape, forward = self.tape, self.forward
        hidden: Tensor | None = forward.hidden(ids)
        assert hidden is not None
        logits = None
        if self.loss.takes_whole_logits:
            logits = forward.logits(hidden)
            if forward.until_end:  # the text model's call has returned
                hidden = None
            tape.enter(self.phase, "loss")
            loss = self._loss(logits, labels)
        elif self.loss.chunks_sequence:
            tape.fuse(on=False)
            chunks = self._logits_in_chunks(hidden)
            hidden = None
            tape.enter(self.phase, "loss")
            loss = self._loss_of_chunks(chunks)
            del chunks
            loss = self.hooks.leave(HEAD, loss)
        else:
            tape.fuse(on=False)
            hidden = self.hooks.enter(HEAD, hidden)
            tape.enter(self.phase, "loss")
            loss = self._loss_without_logits(hidden)
            loss = self.hooks.leave(HEAD, loss)
        loss = self._with_balance(loss)
        if self.loss.tiles_logits:
            self.free(self.router_logits)  # its outputs do not have them
        del hidden
        loss, logits = self.hooks.returned(loss, logits)
        forward.end()
        outputs = logits if tape.autocast_width is None else self._in_float32(logits)
        del logits
        tape.fuse(on=True)  # what wraps the model is compiled with it
        returned = self.hooks.leave_model(loss, outputs)
        tape.fuse(on=False)
        return returned

    def _in_float32(self, logits: Tensor | None) -> Tensor | None:
        """Accelerate's ``convert_outputs_to_fp32``: copies every 16-bit output before it frees the first."""
        tape = self.tape
        tape.operation = "outputs to float32"
        converted = logits
        if logits is not None and logits.width != 4:
            converted = tape.new(logits.elements, 4, LOGITS)
        self.forward.image_outputs_in_float32()
        scores = dict(self.router_logits)
        narrow = {index: score.elements for index, score in scores.items() if score.width != 4}
        for index, size in narrow.items():
            tape.enter(self.phase, "outputs", index)
            self.router_logits[index] = tape.new(size, 4)
        if scores:
            tape.enter(self.phase, "end of forward")
        self.free(scores)
        return converted

    def free(self, scores: dict[int, Tensor]) -> None:
        """Free the router scores layer by layer, so that unplayed layers can be counted."""
        for index in list(scores):
            self.tape.enter(self.phase, "scores", index)
            del scores[index]
            if not scores:
                self.tape.enter(self.phase, "end of forward")

    def _with_balance(self, loss: Tensor) -> Tensor:
        """Add the load-balancing loss of the router scores, layer by layer so that unplayed layers can be counted."""
        tape, balance = self.tape, None
        for index, logits in self.router_logits.items():
            tape.enter(self.phase, "balance", index)
            balance = balancing_loss(tape, self.model, self.setup.batch.tokens, logits, balance)
        if balance is None:
            return loss
        tape.enter(self.phase, "loss")
        return op.add(tape, loss, op.mean(tape, balance, 1, "sum over experts"))

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        tape = self.tape
        tape.operation = "logits to float32"
        logits = as_logits(op.cast(tape, logits, 4))
        self.hooks.work_at(None)
        padded = tape.new(labels.elements + 1, ID_BYTES)
        shifted = tape.new(labels.elements, ID_BYTES, ACTIVATIONS)
        del padded
        shifted = self.hooks.enter(HEAD, shifted)
        if self.forward.outer.kernels.whole_logits:
            return fused.cross_entropy(tape, logits)
        return op.log_softmax_loss(tape, logits, shifted)

    def _loss_without_logits(self, hidden: Tensor) -> Tensor:
        """Head and loss fused, so that the full logits never exist."""
        head = self.forward.loaded.head_weight()
        weight, vocabulary = self.hooks.read(head), self.model.vocab_size
        width = weight.elements // vocabulary
        rows = self.setup.batch.per_device_train_batch_size

        def loss(x: Tensor) -> Tensor:
            if self.loss.fuses_gradient:
                budget = kernels_of_family(self.model, self.setup.adapters).budget
                return fused.linear_cross_entropy(
                    self.tape, x, weight, width, vocabulary, budget=budget
                )
            return fused.log_probabilities(
                self.tape, x, weight, width, rows, self.scored, lambda t: self.hooks.gather(t, head)
            )

        return self.forward.outer.within(HEAD, hidden, loss)

    def _logits_in_chunks(self, hidden: Tensor) -> list[Tensor]:
        """torchtune's: each sequence in eight chunks; with several sequences each chunk is copied to be contiguous.

        Source: torchtune 0.6.1, modules/transformer.py, ``chunked_output``.
        """
        texts, length = self.setup.batch.per_device_train_batch_size, self.setup.batch.max_length
        width, size = hidden.elements // self.setup.batch.tokens, ceil_div(length, CHUNKS)
        sizes = []
        while length > 0:
            sizes.append(texts * min(size, length) * width)
            length -= size
        return [
            self.forward.logits(op.clone(self.tape, chunk) if texts > 1 else chunk)
            for chunk in op.split(self.tape, hidden, sizes)
        ]

    def _loss_of_chunks(self, chunks: Sequence[Tensor]) -> Tensor:
        """One chunk at a time is in float32, but every chunk's log-softmax is saved, and its logits live until here.

        Source: torchtune 0.6.1, modules/loss/ce_chunked_output_loss.py, ``CEWithChunkedOutputLoss``.
        """
        tape, total = self.tape, None
        shifted = tape.new(self.setup.batch.tokens, ID_BYTES)
        for chunk in chunks:
            loss = op.log_softmax_loss(tape, as_logits(op.cast(tape, chunk, 4)), shifted)
            total = loss if total is None else op.add(tape, total, loss)
        assert total is not None
        return total

"""What accelerate's hooks do around the modules of a model on several GPUs: bring the inputs, return the outputs.

The hook of a module of the map runs before the module's own forward, and so outside a checkpoint: what it brings is an
input of the checkpoint and stays until backward. It brings every tensor among the arguments, anew for every layer:
the mask and the rotary tables are copied once for each layer that is not where they were made.

Source: accelerate 1.15, hooks.py, ``AlignDevicesHook.pre_forward`` and ``post_forward``,
``attach_align_device_hook_on_blocks``; transformers 5.23, modeling_layers.py, ``GradientCheckpointingLayer``.
"""

from __future__ import annotations

from estimator.families.block import Block
from estimator.families.rotary import Tables
from estimator.parallel.module_devices import FIRST, ROTARY, Seats
from estimator.parallel.placement import HEAD
from estimator.tape.tape import ACTIVATIONS, LOGITS, TEMPORARIES, Tape, Tensor

DROPOUTS = ("drop", "emb_dropout", "embed_dropout")
"""What a family calls the dropout behind its embedding; Phi defines it after the layers: it lies on the last GPU."""


class Placed:
    """The GPUs of a model that lies on several; on one nothing happens here."""

    def __init__(self, tape: Tape, seats: Seats | None) -> None:
        self.tape = tape
        self.seats = seats

    def to(self, x: Tensor, gpu: int, component: int = TEMPORARIES) -> Tensor:
        """``x.to(gpu)``: the tensor itself, or a copy; backward copies the gradient. That GPU works from now on."""
        tape = self.tape
        tape.device = gpu
        if x.storage is None or x.storage.device == gpu:
            return x
        source, elements, width = x.storage.device, x.elements, x.width

        def backward(t: Tape, g: list[Tensor | None]) -> list[Tensor | None]:
            t.device = source
            return [t.new(elements, width)]

        tape.operation = "copy from another GPU"
        node = tape.begin("copy to another GPU, backward", [x], backward)
        return tape.finish(node, tape.new(elements, width, component))

    def module(self, name: str, x: Tensor) -> Tensor:
        """A module outside the layers is called: its input, where it lies."""
        return x if self.seats is None else self.to(x, self.seats.of(name))

    def dropout(self, x: Tensor) -> Tensor:
        """The dropout behind the embedding is called, whether it drops anything or not."""
        for name, _ in self.seats.outside if self.seats is not None else ():
            if name in DROPOUTS:
                x = self.module(name, x)
        return x

    def layer(self, index: int, block: Block, hidden: Tensor) -> Tensor:
        """A layer is called: its input where it lies, and its own copies of what all layers share."""
        if self.seats is None:
            return hidden
        gpu = self.seats.layers[index]
        hidden = self.to(hidden, gpu)
        block.mask = self._shared(block.mask, gpu)
        block.alibi = self._shared(block.alibi, gpu)
        block.positions = self._shared(block.positions, gpu)
        if block.rotary_tables is not None:
            cosine, sine = block.rotary_tables
            copied = self._shared(cosine, gpu)
            assert copied is not None
            other = copied if sine is cosine else self._shared(sine, gpu)
            assert other is not None
            block.rotary_tables = Tables(copied, other)
        return hidden

    def _shared(self, x: Tensor | None, gpu: int) -> Tensor | None:
        return None if x is None else self.to(x, gpu, ACTIVATIONS)

    def tables(self, hidden: Tensor) -> Tensor:
        """The rotary embedding is called: it takes the hidden states along, of which it reads the dtype."""
        return self.module(ROTARY, hidden)

    def before_masks(self, embedding: str) -> None:
        """Masks are made where the embeddings came out."""
        if self.seats is not None:
            self.tape.device = self.seats.of(embedding)

    def labels(self, shifted: Tensor) -> Tensor:
        """The loss brings the labels to the logits; the GPU of the head works."""
        return self.module(HEAD, shifted)

    def first(self) -> None:
        """What is outside the model happens on the first GPU."""
        self.tape.device = FIRST

    def returned(self, loss: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The model's own hook brings its outputs to where the batch came from: the loss, and all logits."""
        if self.seats is None:
            return loss, logits
        loss = self.to(loss, FIRST)
        return loss, None if logits is None else self.to(logits, FIRST, LOGITS)

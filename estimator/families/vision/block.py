"""The modules of a vision tower, with the images of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.families.block import Block
from estimator.tape import operators as op
from estimator.tape.tape import ACTIVATIONS, Tensor


class TowerBlock(Block):
    """A tower's modules on a tape."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.batch: list[Tensor] = []
        """Images and their masks, which the trainer holds until the forward call has returned."""
        self.pixels: list[Tensor] = []
        """Local names of ``get_image_features``, which it holds until the projector has returned."""
        self.outputs: list[Tensor] = []
        """Image features that the model returns with the logits."""
        self.hold_input: Callable[[Tensor], None] | None = None
        """Keeps cast images until the model returns, where a strategy casts the batch."""

    def receive(self, elements: int, width: int = 4) -> Tensor:
        """A tensor of the batch: images, which processors make in float32, or what belongs to them."""
        given = self.tape.new(elements, width, ACTIVATIONS)
        self.batch.append(given)
        return given

    def embed_patches(self, name: str, pixels: int, elements: int, *, is_held: bool) -> Tensor:
        """So many pixels in the dtype of the tower, and a convolution over whole patches.

        ``is_held``: ``get_image_features`` has a name for the cast pixels.
        """
        cast = self.cast_pixels(self.receive(pixels), self.tensors[name][0].width)
        if is_held:
            self.pixels.append(cast)
        return self.convolve(name, cast, elements)

    def convolve(self, name: str, pixels: Tensor, elements: int) -> Tensor:
        """A convolution over whole patches."""
        weight, *bias = self.tensors[name]

        def program(x: Tensor) -> Tensor:
            beside = bias[0] if bias else None
            return op.convolution_of_patches(self.tape, x, weight, beside, elements)

        return self.within(weight.key, pixels, program)

    def look_up(self, name: str, ids: Tensor, rows: int) -> Tensor:
        """Rows of a table of positions."""
        table, width = self.embeddings[name], self.embedding_widths[name]
        return self.within(
            table.key, ids, lambda ids: op.embedding(self.tape, ids, table, width, rows)
        )

    def cast_pixels(self, pixels: Tensor, width: int) -> Tensor:
        """Images in the dtype of the tower: cast by the tower itself, or by a strategy before the model is called."""
        cast = op.cast(self.tape, pixels, width)
        if self.hold_input is not None:
            self.hold_input(cast)
        return cast


def attend_by_image(b: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One call for each image or window, whose outputs are joined; FlashAttention takes all of them in one call.

    Source: transformers 5.23, models/qwen2_5_vl/modeling_qwen2_5_vl.py, ``Qwen2_5_VLVisionAttention.forward``
    (``cu_seqlens``).
    """
    out = b.attend(q, k, v)
    if b.setup.computation.attn_implementation.is_flash:
        return out
    return op.concatenate(b.tape, [out])

"""The modules of a vision tower, with the images of a call."""

from __future__ import annotations

from typing import Any

from estimator.families.block import Block
from estimator.tape.tape import Tensor


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

"""The examples of a step and their shape."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, Hashed, Section, Whose, Widget, key
from estimator.values.kinds import Flag, WholeNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Checked):
    """What goes through the model, and how often before a step. Counts are ``int``."""

    __hash__ = Hashed.__hash__

    per_device_train_batch_size: int = key(
        1,
        WholeNumber(4096),
        "examples in a micro-batch",
        whose=Whose.OURS,
        beside="Trainer's is 8",
        code="b",
        widget=Widget(
            shape="slider",
            section=Section.ALWAYS,
            label="Micro-batch",
            help="Examples that go through the model at once.",
            steps=(*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 192, 256),
        ),
    )
    gradient_accumulation_steps: int = key(
        1,
        WholeNumber(65_536),
        "micro-batches in an optimizer step",
        code="a",
        widget=Widget(
            shape="slider",
            section=Section.ALWAYS,
            label="Accumulation",
            help="Micro-batches whose gradients are added before a step.",
            steps=(*range(1, 17), 20, 24, 32, 48, 64, 96, 128, 256, 512),
        ),
    )
    max_length: int = key(
        1024,
        WholeNumber(2**24),
        "tokens in an example, packed or padded to it",
        whose=Whose.TRL,
        code="l",
        widget=Widget(
            shape="slider",
            section=Section.ALWAYS,
            label="Context",
            help="Tokens in each example, packed or padded to it.",
            steps=tuple(sorted({n << k for n in (128, 192) for k in range(11)} - {196_608})),
        ),
    )
    padded: bool = key(
        False,
        Flag(),
        "some rows end in padding, so that a mask is built",
        whose=Whose.OURS,
        beside="as with TRL's packing",
        code="pa",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Rows end in padding",
            help="padded: some rows of a batch are shorter, so that a mask is built.",
        ),
    )

    @property
    def tokens(self) -> int:
        """Tokens in one micro-batch, padding included."""
        return self.per_device_train_batch_size * self.max_length

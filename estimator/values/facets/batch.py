"""Batch size, gradient accumulation and sequence length."""

from __future__ import annotations

from dataclasses import dataclass, fields

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import WholeNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Checked):
    """Micro-batch size, sequence length, and micro-batches per optimizer step."""

    __hash__ = Hashed.__hash__

    per_device_train_batch_size: int = key(
        1,
        WholeNumber(4096),
        "examples per micro-batch",
        "They go through the model together, on each GPU.",
        default_from=DefaultSource.OURS,
        remark="Trainer's is 8",
        widget=Widget(
            Section.ALWAYS,
            "Micro-batch",
            steps=(*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 192, 256),
        ),
    )
    gradient_accumulation_steps: int = key(
        1,
        WholeNumber(65_536),
        "micro-batches per optimizer step",
        "Their gradients are summed.",
        widget=Widget(
            Section.ALWAYS,
            "Accumulation",
            steps=(*range(1, 17), 20, 24, 32, 48, 64, 96, 128, 256, 512),
        ),
    )
    max_length: int = key(
        1024,
        WholeNumber(2**24),
        "tokens per example, after packing or padding",
        default_from=DefaultSource.TRL,
        widget=Widget(
            Section.ALWAYS,
            "Context",
            steps=tuple(sorted({n << k for n in (128, 192) for k in range(11)} - {196_608})),
        ),
    )
    padded: bool = flag(
        False,
        "some rows end in padding, so an attention mask is built",
        default_from=DefaultSource.OURS,
        remark="as in TRL with packing",
        widget=Widget(Section.MORE, "Padded rows"),
    )

    packing: bool = flag(
        False,
        "TRL's: several examples to a row (bfd), and padding_free with it",
        "A micro-batch's rows are joined into one.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.MORE, "Packing"),
    )
    padding_free: bool = flag(
        False,
        "TRL's: the rows of a micro-batch are joined into one, without padding",
        "Kernels other than flash_attention_2 get a mask of all its tokens with all.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.MORE, "Padding-free"),
    )

    @property
    def is_joined(self) -> bool:
        """Whether a micro-batch's rows are joined into one, as TRL does for packing too."""
        return self.packing or self.padding_free

    def as_rows(self, rows: int, length: int) -> Batch:
        """The same as the rows of one forward call, whose count is not held to the key's bounds."""
        return self._unchecked(per_device_train_batch_size=rows, max_length=length)

    def without_accumulation(self) -> Batch:
        """The same without accumulation; its rows may be those of a forward call."""
        return self._unchecked(gradient_accumulation_steps=1)

    def _unchecked(self, **changes: int) -> Batch:
        changed = object.__new__(Batch)
        for row in fields(self):
            object.__setattr__(changed, row.name, changes.get(row.name, getattr(self, row.name)))
        return changed

    @property
    def tokens(self) -> int:
        """Tokens in one micro-batch, padding included."""
        return self.per_device_train_batch_size * self.max_length

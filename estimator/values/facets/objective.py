"""The objective of a step, and how its loss is computed."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, Hashed, Section, Widget, key
from estimator.values.kinds import Choice, Flag
from estimator.values.specs import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Checked):
    """The objective of a step and its loss."""

    __hash__ = Hashed.__hash__

    loss: Loss | None = key(
        None,
        Choice(tuple(Loss), enum=Loss, nullable=True),
        "how the loss is computed",
        null="Liger's with its kernels, else standard",
        code="lo",
        widget=Widget(
            shape="select",
            section=Section.MORE,
            label="Loss",
            help="Whether the full logits are ever in memory at once.",
        ),
    )
    hold_outputs: bool = key(
        False,
        Flag(),
        "the training loop keeps the model's outputs during backward",
        code="ho",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Loop keeps model outputs",
            help="hold_outputs: for a custom loop that keeps the model's outputs, and so the logits, during backward.",
        ),
    )

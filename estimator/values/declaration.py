"""How a key of the contract is declared: once, as a field of its facet.

The declaration gives the allowed values, the default and which library sets it, what the key means, and the widget.
Validation, the JSON contract, command-line flags, links and the page are derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Literal, TypeVar

from estimator.values.kinds import Choice, Flag, Kind, Names, not_modelled
from estimator.values.parallelisms import PARALLEL_WORDS
from estimator.values.refusals import about

Value = TypeVar("Value")


class DefaultSource(StrEnum):
    """Which library sets a default, as the first word of a sentence."""

    OURS = "Our"
    ACCELERATE = "Accelerate's"
    DEEPSPEED = "DeepSpeed's"
    PEFT = "PEFT's"
    PYTORCH = "PyTorch's"
    TRAINER = "Trainer's"
    TRANSFORMERS = "Transformers'"
    TRL = "TRL's"
    TORCHTUNE = "Torchtune's"


class Section(StrEnum):
    """Where a page shows a key: always visible, or inside the expander with this title."""

    ALWAYS = "always"
    SEVERAL_GPUS = "Several GPUs"
    OBJECTIVE = "Objective"
    GENERATION = "Generation"
    LORA = "LoRA"
    QUANTISATION = "Quantisation"
    IMAGES = "Images"
    RUN = "Run: examples, price"
    MORE = "More"


Shape = Literal["number", "options", "segments", "select", "slider", "toggle"]
"""The kind of control: number input, multi-select, segmented control, select box, slider, toggle."""


@dataclass(frozen=True, slots=True)
class Widget:
    """How a page shows a key."""

    section: Section
    label: str
    shape: Shape | None = None
    """Filled in by ``key`` where the kind of value says it."""
    steps: tuple[int, ...] = ()
    """The values that a slider offers."""
    step: float = 1
    """Increment of a number input."""
    ends: tuple[float, float] | None = None
    """Minimum and maximum of a number input, where the page offers a narrower range than the contract accepts."""
    decides: bool = False
    """Whether other widgets appear or disappear when this one changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One row of the contract."""

    name: str = ""
    kind: Kind
    default: Any
    help: str
    """What it means, in a phrase."""
    more: str = ""
    """What else a page says, in sentences."""
    default_from: DefaultSource = DefaultSource.TRAINER
    remark: str = ""
    """Another library's default, in a phrase."""
    null: str = ""
    """What null means."""
    aliases: tuple[str, ...] = ()
    modelled: tuple[object, ...] = ()
    """The only values modelled so far, default first. Empty: all allowed values."""
    widget: Widget | str
    """The widget, or the reason there is none."""
    facet: str = ""
    """The facet that has this field. Empty: the contract converts the key into another one."""

    @property
    def section(self) -> Section | None:
        """Where a page shows the key; None: nowhere."""
        return self.widget.section if isinstance(self.widget, Widget) else None

    @property
    def in_setup(self) -> bool:
        """Whether the key is a field of a setup."""
        return bool(self.facet)

    def read(self, value: object) -> object:
        """The validated value. ``ValueError`` holds one sentence that begins with the key."""
        try:
            read = self.kind.read(value)
        except ValueError as problem:
            raise about(self.name, problem) from None
        if self.modelled and read not in self.modelled:
            raise not_modelled(value, PARALLEL_WORDS[self.name], self.name)
        return read

    @property
    def sentences(self) -> str:
        """Its name, what it means, and its default, as a page says it.

        >>> from estimator.values.keys import BY_NAME
        >>> BY_NAME["lora_r"].sentences
        "lora_r: rank of the adapters. Their size is proportional to it. Our default: 16 (PEFT's is 8)."
        """
        more = f" {self.more}" * bool(self.more)
        return f"{self.name}: {self.help}.{more} {self.default_sentence}"

    @property
    def default_sentence(self) -> str:
        """The default and the library that sets it.

        >>> from estimator.values.keys import BY_NAME
        >>> BY_NAME["lora_r"].default_sentence, BY_NAME["save_total_limit"].default_sentence
        ("Our default: 16 (PEFT's is 8).", "Trainer's default: all.")
        """
        remark = f" ({self.remark})" if self.remark else ""
        return f"{self.default_from} default: {self._said()}{remark}."

    def _said(self) -> str:
        if self.default is None:
            return self.null
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return f"{self.default:,}".removesuffix(".0") if self._is_number else str(self.default)

    @property
    def _is_number(self) -> bool:
        return isinstance(self.default, int | float)


def _shape(kind: Kind) -> Shape:
    """How a kind of value is shown, where its key says nothing else."""
    match kind:
        case Flag(nullable=False):
            return "toggle"
        case Flag() | Choice():
            return "select"
        case Names():
            return "options"
        case _:
            return "number"


def key(
    default: Value,
    kind: Kind,
    help: str,
    more: str = "",
    *,
    widget: Widget | str,
    default_from: DefaultSource = DefaultSource.TRAINER,
    **others: Any,
) -> Value:
    """Declare a field of a facet as a key of the contract; ``others`` are fields of ``Key``."""
    if isinstance(widget, Widget) and widget.shape is None:
        widget = replace(widget, shape="slider" if widget.steps else _shape(kind))
    row = Key(
        default=default,
        kind=kind,
        help=help,
        more=more,
        widget=widget,
        default_from=default_from,
        **others,
    )
    declared: Value = field(default=default, metadata={"key": row})
    return declared


def flag(default: bool, help: str, more: str = "", **others: Any) -> bool:
    """Declare a key that is true or false, as ``key`` does."""
    return key(default, Flag(), help, more, **others)


_rows: dict[type, tuple[Key, ...]] = {}


def rows(facet: type[Any]) -> tuple[Key, ...]:
    """The keys that a facet declares, in order."""
    if facet not in _rows:
        _rows[facet] = tuple(replace(row.metadata["key"], name=row.name) for row in fields(facet))
    return _rows[facet]


class Hashed:
    """Caches its hash, since setups are cache keys. Dataclasses that inherit it set ``__hash__ = Hashed.__hash__``."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            found = hash(_values_of(type(self))(self))
            object.__setattr__(self, "_hash", found)
            return found


_values: dict[type, Callable[[object], object]] = {}


def _values_of(of: type[Any]) -> Callable[[object], object]:
    if of not in _values:
        _values[of] = attrgetter(*(row.name for row in fields(of)))
    return _values[of]


class Checked(Hashed):
    """A facet of a setup that validates each of its values when built."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for row in rows(type(self)):
            value = getattr(self, row.name)
            if value is not row.default and (read := row.read(value)) is not value:
                object.__setattr__(self, row.name, read)  # a string becomes a member of its enum


def attribute_owners(facets: Mapping[str, type]) -> Mapping[str, str]:
    """The facet that owns each public attribute, keys and properties alike."""
    return {
        name: facet
        for facet, of in facets.items()
        for name, value in vars(of).items()
        if not name.startswith("_") and not callable(value)
    }

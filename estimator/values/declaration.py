"""How a key of the contract is declared: once, where its facet has it as a field.

The row says what the key may be, its default and whose that is, its help, its short name in a link and how a page shows
it. The checks of a setup, the JSON contract, the flags of the command line, links and the page follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Literal, TypeVar

from estimator.values.kinds import Kind, not_modelled
from estimator.values.parallelisms import PARALLEL_WORDS
from estimator.values.refusals import about

Value = TypeVar("Value")


class Whose(StrEnum):
    """Whose default it is, as a sentence begins with it."""

    OURS = "Our"
    ACCELERATE = "Accelerate's"
    DEEPSPEED = "DeepSpeed's"
    PEFT = "PEFT's"
    TRAINER = "Trainer's"
    TRANSFORMERS = "Transformers'"
    TRL = "TRL's"


class Section(StrEnum):
    """Where on a page: the part that is always drawn, or a box that opens, by its title."""

    ALWAYS = "always"
    SEVERAL_GPUS = "Several GPUs"
    OBJECTIVE = "Objective"
    LORA = "LoRA"
    QUANTISATION = "Quantisation"
    RUN = "Run: examples, price"
    MORE = "More"


Shape = Literal["number", "options", "segments", "select", "slider", "toggle"]
"""What a page draws: a box for a number, several of many names, a row of words, a list to choose from, a scale, a
switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widget:
    """How a page shows a key."""

    shape: Shape
    section: Section
    label: str
    help: str
    """What it means, in a sentence or two; the sentence on its default is added."""
    steps: tuple[int, ...] = ()
    """What a scale offers."""
    step: float = 1
    """How far a click moves a number."""
    ends: tuple[float, float] | None = None
    """The least and the most of a number, where a page offers less than the contract takes."""
    decides: bool = False
    """Other widgets are drawn or left out by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One row of the contract."""

    name: str = ""
    kind: Kind
    default: Any
    help: str
    """A phrase, for the command line."""
    whose: Whose = Whose.TRAINER
    beside: str = ""
    """What the default of another library is, as a remark."""
    null: str = ""
    """What null stands for."""
    code: str = ""
    """The short name in a link of scenarios: never changed, never given to another key. Empty: the key itself."""
    aliases: tuple[str, ...] = ()
    modelled: tuple[object, ...] = ()
    """The only values that the physics knows so far, the default first; empty: all of its kind."""
    widget: Widget | str
    """Or why there is none."""
    facet: str = ""
    """The part of a setup that has it; empty: the contract reads it into another key."""

    @property
    def section(self) -> Section | None:
        """Where a page shows it; None: nowhere."""
        return self.widget.section if isinstance(self.widget, Widget) else None

    @property
    def in_setup(self) -> bool:
        """Is it a field of a setup?"""
        return bool(self.facet)

    def read(self, value: object) -> object:
        """The value of the setup; ``ValueError`` is one sentence that begins with the key."""
        try:
            read = self.kind.read(value)
        except ValueError as problem:
            raise about(self.name, problem) from None
        if self.modelled and read not in self.modelled:
            raise not_modelled(value, PARALLEL_WORDS[self.name], self.name)
        return read

    @property
    def default_sentence(self) -> str:
        """The default, and whose it is.

        >>> from estimator.values.keys import BY_NAME
        >>> BY_NAME["lora_r"].default_sentence, BY_NAME["save_total_limit"].default_sentence
        ("Our default: 16 (PEFT's is 8).", "Trainer's default: all.")
        """
        remark = f" ({self.beside})" if self.beside else ""
        return f"{self.whose} default: {self._said()}{remark}."

    def _said(self) -> str:
        if self.default is None:
            return self.null
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return f"{self.default:,}".removesuffix(".0") if self._is_number else str(self.default)

    @property
    def _is_number(self) -> bool:
        return isinstance(self.default, int | float)


def key(
    default: Value,
    kind: Kind,
    help: str,
    *,
    widget: Widget | str,
    whose: Whose = Whose.TRAINER,
    **others: Any,
) -> Value:
    """Declare a field of a facet as a key of the contract; ``others`` are fields of ``Key``."""
    row = Key(default=default, kind=kind, help=help, widget=widget, whose=whose, **others)
    declared: Value = field(default=default, metadata={"key": row})
    return declared


_rows: dict[type, tuple[Key, ...]] = {}


def rows(facet: type[Any]) -> tuple[Key, ...]:
    """The keys that a facet declares, by name, in order."""
    if facet not in _rows:
        _rows[facet] = tuple(replace(it.metadata["key"], name=it.name) for it in fields(facet))
    return _rows[facet]


class Hashed:
    """Hashed once, since caches are asked by it; a dataclass that inherits this says ``__hash__ = Hashed.__hash__``."""

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
        _values[of] = attrgetter(*(it.name for it in fields(of)))
    return _values[of]


class Checked(Hashed):
    """A facet of a setup: each of its values is what its key may be, or it is not built."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for row in rows(type(self)):
            value = getattr(self, row.name)
            if value is not row.default and (read := row.read(value)) is not value:
                object.__setattr__(self, row.name, read)  # a word becomes the member of its enum


def attribute_owners(facets: Mapping[str, type]) -> Mapping[str, str]:
    """What can be asked of each facet, keys and properties alike, and which facet answers."""
    return {
        name: facet
        for facet, of in facets.items()
        for name, value in vars(of).items()
        if not name.startswith("_") and not callable(value)
    }

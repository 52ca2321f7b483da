"""Words of the contract that are records: each enum member has the facts of what it names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self


class Record(StrEnum):
    """A word whose facts are attributes; those that a member leaves out are its class's defaults.

    >>> class Fruit(Record):
    ...     LEMON = "lemon"
    >>> Fruit.LEMON == "lemon", Fruit("lemon") is Fruit.LEMON
    (True, True)
    """

    _value_: str

    def __new__(cls, word: str, facts: Mapping[str, Any] | None = None, true: str = "") -> Self:
        """The member of a word, its facts, and the names of those that are true; each is an attribute."""
        facts = {**dict.fromkeys(true.split(), True), **(facts or {})}
        known = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}
        assert facts.keys() <= known, f"{word} has facts that nobody asks for"
        member = str.__new__(cls, word)
        member._value_ = word
        vars(member).update(facts)
        return member

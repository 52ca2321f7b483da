"""Kinds of values: each validates a JSON value, parses the text of a link or flag, and says what is allowed.

Strict on purpose: ``true`` is not 1, ``"8"`` is not 8, and NaN is not a number.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from estimator.values.parallelisms import TENSOR
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal, RefusedError, show

# --- words --------------------------------------------------------------------------------------


def one_of(words: Iterable[str]) -> str:
    """Joins words for a sentence: ``a, b or c``."""
    *rest, last = words
    return f"{', '.join(rest)} or {last}" if rest else last


def plain(word: str) -> str:
    """A word in lower case, its parts joined by underscores.

    >>> plain("Megatron-LM")
    'megatron_lm'
    """
    return word[:100].lower().replace("-", "_").replace(" ", "_")


OTHER_PARALLELISM = Refusal(
    "{key}{value} is not modelled yet: a run with {parallelism} cannot be estimated.", NOT_MODELLED
)


BY_TP_SIZE = Refusal(
    "{key}{value} is not modelled yet as such; for tensor parallelism, set tp_size to the number of ranks, and "
    "num_gpus as well with strategy none, or to a multiple with strategy fsdp.",
    NOT_MODELLED,
)


def not_modelled(value: object, parallelism: str, key: str = "") -> RefusedError:
    """The refusal of a value that asks for a parallelism. Ignoring it would estimate a different run.

    >>> str(not_modelled(2, "pipeline parallelism"))
    '2 is not modelled yet: a run with pipeline parallelism cannot be estimated.'
    """
    named = f"{key} " if key else ""
    if parallelism == TENSOR:
        return BY_TP_SIZE(key=named, value=show(value))
    return OTHER_PARALLELISM(key=named, value=show(value), parallelism=parallelism)


def near(word: str, known: Iterable[str]) -> list[str]:
    """The known words most similar to the given one, best match first.

    >>> near("lora_rank", ["lora_r", "lora_alpha", "optim"])
    ['lora_r', 'lora_alpha']
    """
    known = list(known)
    word = plain(word)
    alike = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    within = [one for one in known if min(len(word), len(one)) > 2 and (word in one or one in word)]
    return list(dict.fromkeys([*alike, *within]))[:3]


# --- kinds of value -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The allowed values of a key. Each subclass adds validation and, where needed, parsing from text."""

    nullable: bool = False

    takes_list: ClassVar[bool] = False
    """Whether a link may give several texts for one value."""

    def read(self, value: object) -> object:
        """The validated value of a JSON value. ``ValueError`` holds a predicate: "must be …, not …"."""
        return None if value is None and self.nullable else self._read(value)

    def from_text(self, text: str) -> object:
        """The JSON value of a text from a link or flag. Text that does not parse is returned for ``read`` to refuse."""
        return None if text == "null" and self.nullable else self._from_text(text)

    @property
    def metavar(self) -> str:
        """The placeholder for a value in the help."""
        return self._metavar()

    @property
    def _or_null(self) -> str:
        return ", or null" if self.nullable else ""

    def _metavar(self) -> str:
        return "TEXT"

    def _read(self, value: object) -> object:
        raise NotImplementedError

    def _from_text(self, text: str) -> object:
        return text


PATTERN = r"[!-~]{1,1000}"
"""What a regular expression of names may be: a string without blanks. Our choice."""
LATER_WORD = Refusal("{value} is not modelled yet; take {allowed}.", NOT_MODELLED)
RANK_PATTERN = Refusal(
    "names {value}, which PEFT reads as a regular expression; only names of modules are modelled yet: write such as "
    "q_proj.",
    NOT_MODELLED,
)


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of a fixed set of words; ``aliases`` are other names for them."""

    words: Collection[str]
    member: Callable[[str], str] = str
    """What stands for a word in a setup: the member of an enum, or a record."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    later: tuple[str, ...] = ()
    """Hugging Face's words that are not modelled yet."""
    stands_for: Callable[[str], str] = lambda _: ""
    """The unmodelled feature that an unknown word, in ``plain`` spelling, asks for; empty: none."""
    MOST_SHOWN: ClassVar[int] = 12
    """Maximum number of words that an error lists. Our choice."""

    def _metavar(self) -> str:
        return "{" + ",".join(self.words) + "}"

    def _read(self, value: object) -> object:
        word = self.aliases.get(value, value) if isinstance(value, str) else None
        if word is not None and word in self.words:
            return self.member(word)
        allowed = one_of(self._shown()) + self._or_null
        if word is None or not isinstance(value, str):
            raise InputError(f"must be {allowed}, not {show(value)}.")
        if word in self.later:
            raise LATER_WORD(value=show(value), allowed=allowed)
        if what := self.stands_for(plain(value)):
            raise not_modelled(value, what)
        meant = near(word, (*self.words, *self.aliases))
        hint = f"did you mean {one_of(meant)}? It is" if meant else "it is"
        raise InputError(f"{show(value)} is unknown; {hint} one of {', '.join(self._shown())}.")

    def _shown(self) -> tuple[str, ...]:
        """All words, or the first few of a long list."""
        words = tuple(self.words)
        if len(words) <= self.MOST_SHOWN:
            return words
        shown = words[: self.MOST_SHOWN - 1]
        return (*shown, f"{len(words) - len(shown)} more that --help lists")


@dataclass(frozen=True, slots=True)
class WholeNumber(Kind):
    """An integer from ``low`` to ``high``."""

    high: int
    low: int = 1

    def _metavar(self) -> str:
        return "N"

    def _read(self, value: object) -> object:
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and self.low <= value <= self.high
        ):
            return value  # includes symbolic sizes of a recorded program
        span = f"from {self.low} to {self.high}{self._or_null}"
        raise InputError(f"must be a whole number {span}, not {show(value)}.")

    def _from_text(self, text: str) -> object:
        return int(text) if re.fullmatch(r"-?[0-9]{1,30}", text) else text


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A finite number from ``low`` to ``high``; ``open_low`` and ``open_high`` exclude the ends."""

    high: float
    low: float = 0.0
    open_low: bool = False
    open_high: bool = False

    def _metavar(self) -> str:
        return "X"

    def _read(self, value: object) -> object:
        if type(value) in {int, float} and isinstance(value, int | float) and self._holds(value):
            return float(value)
        low = f"{'above' if self.open_low else 'from'} {self.low:.15g}"
        high = f"{'below' if self.open_high else 'up to'} {self.high:.15g}"
        raise InputError(f"must be a number {low} and {high}{self._or_null}, not {show(value)}.")

    def _holds(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def _from_text(self, text: str) -> object:
        number = r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?"
        return float(text) if re.fullmatch(number, text) else text


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    """True or false."""

    def _metavar(self) -> str:
        return "{true,false}"

    def _read(self, value: object) -> object:
        if not isinstance(value, bool):
            raise InputError(f"must be true or false, not {show(value)}.")
        return value

    def _from_text(self, text: str) -> object:
        return {"true": True, "false": False}.get(text.lower(), text)


@dataclass(frozen=True, slots=True)
class Names(Kind):
    """A list of module names, or one keyword that stands for a list."""

    word: str | None = None
    empty: bool = False
    """May it be an empty list, which means null?"""

    takes_list: ClassVar[bool] = True
    MOST: ClassVar[int] = 64
    """Our choice: no family has a tenth as many modules in a layer."""

    def _metavar(self) -> str:
        return "NAME,NAME"

    def _read(self, value: object) -> object:
        if isinstance(value, str) and value == self.word:
            return self.word
        if self.empty and value in ([], ()):
            return None
        if isinstance(value, str) and self.word and re.fullmatch(PATTERN, value):
            return value
        if not isinstance(value, list | tuple):
            word = f'"{self.word}" or ' if self.word else ""
            raise InputError(
                f"must be {word}a list of module names{self._or_null}, not {show(value)}."
            )
        for name in value:
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.]{1,100}", name):
                raise InputError(f"must list names of modules such as q_proj, not {show(name)}.")
        if not value or len(value) > self.MOST:
            raise InputError(f"must list 1 to {self.MOST} module names, not {len(value)}.")
        if twice := [name for name in value if value.count(name) > 1]:
            raise InputError(f"names {show(twice[0])} twice; name it once.")
        return tuple(value)

    def _from_text(self, text: str) -> object:
        is_pattern = self.word and any(character in text for character in "*^$()[]|\\")
        return text if text == self.word or is_pattern else text.split(",")


@dataclass(frozen=True, slots=True)
class ImageSizes(Kind):
    """Height and width of each image, in pixels."""

    takes_list: ClassVar[bool] = True
    MOST: ClassVar[int] = 1024
    LONGEST: ClassVar[int] = 32_768

    def _metavar(self) -> str:
        return "HxW,HxW"

    def _read(self, value: object) -> object:
        if not isinstance(value, list | tuple) or not 0 < len(value) <= self.MOST:
            raise InputError(
                f"must list [height, width] of 1 to {self.MOST} images{self._or_null}, not {show(value)}."
            )
        for size in value:
            if not isinstance(size, list | tuple) or [
                isinstance(side, int) and not isinstance(side, bool) and 0 < side <= self.LONGEST
                for side in size
            ] != [True, True]:
                raise InputError(
                    f"must list [height, width] from 1 to {self.LONGEST} pixels, not {show(size)}."
                )
        return tuple((height, width) for height, width in value)

    def _from_text(self, text: str) -> object:
        try:
            return json.loads(f"[{text}]") if text.startswith("[") else self._by_letters(text)
        except ValueError:
            return text

    def _by_letters(self, text: str) -> object:
        sizes = [size.split("x") for size in text.split(",")]
        if all(len(size) == 2 and all(side.isdecimal() for side in size) for size in sizes):
            return [[int(side) for side in size] for size in sizes]
        return text


@dataclass(frozen=True, slots=True)
class Indices(Kind):
    """A list of whole numbers from 0, such as layers; one alone is a list of one."""

    takes_list: ClassVar[bool] = True
    MOST: ClassVar[int] = 1000
    """Ours: more than any model has layers."""

    def _metavar(self) -> str:
        return "N,N"

    def _read(self, value: object) -> object:
        items = value if isinstance(value, list | tuple) else [value]
        if self.nullable and not items:  # PEFT's word for all layers
            return None
        for item in items:
            if type(item) is not int or not 0 <= item < self.MOST:
                raise InputError(
                    f"must list whole numbers from 0 to {self.MOST - 1}{self._or_null}, not {show(item)}."
                )
        return tuple(sorted(set(items)))

    def _from_text(self, text: str) -> object:
        items = text.split(",")
        return [int(item) if re.fullmatch(r"[0-9]{1,9}", item) else item for item in items]


@dataclass(frozen=True, slots=True)
class Ranks(Kind):
    """An object of module names with a rank each, kept as pairs."""

    takes_list: ClassVar[bool] = True
    MOST: ClassVar[int] = 64
    """Ours, as of ``Names``."""
    HIGHEST: ClassVar[int] = 8192

    def _metavar(self) -> str:
        return "NAME=N,NAME=N"

    def _read(self, value: object) -> object:
        pairs = list(value.items()) if isinstance(value, dict) else value
        if self.nullable and pairs in ([], ()):  # PEFT's default
            return None
        if not isinstance(pairs, tuple | list):
            raise InputError(
                f"must be an object of module names with a rank each{self._or_null}, not {show(value)}."
            )
        read = []
        for pair in pairs:
            name, rank = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (pair, None)
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.]{1,100}", name):
                raise RANK_PATTERN(value=show(name))
            if type(rank) is not int or not 1 <= rank <= self.HIGHEST:
                raise InputError(
                    f"must give {name} a rank from 1 to {self.HIGHEST}, not {show(rank)}."
                )
            read.append((name, rank))
        if not read or len(read) > self.MOST:
            raise InputError(f"must name 1 to {self.MOST} modules, not {len(read)}.")
        return tuple(read)

    def _from_text(self, text: str) -> object:
        if text.lstrip().startswith("{"):
            try:
                return json.loads(text)
            except ValueError:
                return text
        pairs = [item.partition("=") for item in text.split(",")]
        if not all(re.fullmatch(r"[0-9]{1,9}", rank) for _, _, rank in pairs):
            return text
        return {name: int(rank) for name, _, rank in pairs}


@dataclass(frozen=True, slots=True)
class ShortText(Kind):
    """A short line of text."""

    MOST: ClassVar[int] = 200

    def _read(self, value: object) -> object:
        if not isinstance(value, str) or len(value) > self.MOST or not value.isprintable():
            raise InputError(
                f"must be a line of at most {self.MOST} characters, not {show(value)}."
            )
        return value


WHOLE = 100
"""Per cent."""


@dataclass(frozen=True, slots=True)
class Percentages(Kind):
    """Shares of a whole in percent, as whole numbers joined by slashes: ``62/10/20/0/8``."""

    count: int = 1

    def _metavar(self) -> str:
        return "/".join(["%"] * self.count)

    def _read(self, value: object) -> object:
        shares = value.split("/") if isinstance(value, str) else []
        are_whole = all(re.fullmatch(r"[0-9]{1,3}", share) for share in shares)
        if len(shares) != self.count or not are_whole:
            raise InputError(
                f"must be {self.count} whole percentages joined by slashes, such as 62/10/20/0/8, not {show(value)}."
            )
        if abs(sum(map(int, shares)) - WHOLE) > self.count:
            raise InputError(f"must add up to 100 %, not {show(value)}.")
        return value


@dataclass(frozen=True, slots=True)
class Version(Kind):
    """The version of the contract."""

    def _metavar(self) -> str:
        return "1"

    def _read(self, value: object) -> object:
        if type(value) is not int or value != 1:
            raise InputError(f"must be 1, the only supported version, not {show(value)}.")
        return value

    def _from_text(self, text: str) -> object:
        return 1 if text == "1" else text


@dataclass(frozen=True, slots=True)
class Momentum(Kind):
    """``TrainingArguments.optim_args``. Only SGD's momentum affects memory."""

    def _metavar(self) -> str:
        return "momentum=X"

    def _read(self, value: object) -> object:
        text = value.replace(" ", "") if isinstance(value, str) else ""
        found = re.fullmatch(r"momentum=(0|0?\.[0-9]{1,20}|0\.)", text)
        if not found:
            raise InputError(
                f'must be "momentum=X" with X from 0 and below 1{self._or_null}, not {show(value)}; '
                "nothing else in it is modelled."
            )
        return float(found[1])

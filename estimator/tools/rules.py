"""The kinds of rows in a tool's table, and how a table maps the tool's keys to ours.

A key of theirs is written ``part.key``: ``args`` are the arguments of the training tool, ``peft`` those of PEFT's
``LoraConfig``, ``bnb`` of ``BitsAndBytesConfig``, ``distributed`` of transformers' ``DistributedConfig``, ``model`` of
``from_pretrained``, ``accelerate`` and ``deepspeed`` the keys of these two files, ``launch`` the flags of a launcher.
Nested keys have points, as in ``deepspeed.zero_optimization.stage``.

A table is a list of ``Rule``s. They are asked in order, and each may look at what those before it have found, so that
one table answers three questions: what a file means, what a tool sets without being asked, and what a key of ours
that is missing is under a tool. A later rule for a key replaces an earlier one: TRL's table is Trainer's and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from estimator.sources.catalog import ToolDefault, tool_defaults
from estimator.tools.later import Later
from estimator.tools.lists import listed
from estimator.tools.parsed import Unresolved
from estimator.values.keys import default_of
from estimator.values.specs import Model

Value = Any
"""A value in YAML, JSON or a Python literal: a number, string, boolean, null, or a list of them."""
Values = Mapping[str, Value]
"""Values by name: keys of theirs or of ours."""
NOTHING: Values = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a user's file."""

    key: str
    """In our spelling: ``part.key``."""
    value: Value
    file: str = ""
    line: int = 0
    written: str = ""
    """As spelled in the file; empty if the same as ``key`` without its part."""

    @property
    def shown(self) -> str:
        """The key as the user spells it."""
        return self.written or self.key.partition(".")[2]

    @property
    def at(self) -> str:
        """The key with its value and its place."""
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.shown} {value} ({self.file}, line {self.line})"

    @property
    def is_unknown(self) -> bool:
        """Whether only the run knows the value."""
        return isinstance(self.value, Unresolved)


class Theirs:
    """A user's keys on top of a tool's defaults; records which ones a rule has read."""

    def __init__(
        self,
        given: Mapping[str, Entry],
        chains: Mapping[str, tuple[tuple[str, str], ...]],
        unknown: Mapping[str, Entry] = NOTHING,
    ) -> None:
        self._given = given
        self._unknown = unknown
        self._chains = chains
        self.used: dict[str, Entry | ToolDefault] = {}
        self.missed: dict[str, Entry] = {}
        """Keys that a rule has asked for, and whose value only the run knows."""

    def __getitem__(self, key: str) -> Value:
        """The user's value, else the tool's default, else None."""
        self._miss(key)
        if key in self._given:
            self.used[key] = self._given[key]
            return self._given[key].value
        if (default := self.default(key)) is not None:
            self.used[key] = default
            return default.value
        return None

    def _miss(self, key: str) -> None:
        if key in self._unknown:
            self.missed[key] = self._unknown[key]

    def _miss_below(self, prefix: str) -> None:
        self.missed |= {
            key: entry for key, entry in self._unknown.items() if key.startswith(prefix)
        }

    def default(self, key: str) -> ToolDefault | None:
        """The tool's default."""
        part, _, name = key.partition(".")
        known = tool_defaults()
        for tool, holder in self._chains.get(part, ()):
            if (found := known.get((tool, f"{holder}.{name}"))) is not None:
                return found
        return None

    def has(self, key: str) -> bool:
        """Whether the user set this key."""
        self._miss(key)
        if key in self._given:
            self.used[key] = self._given[key]
        return key in self._given

    def is_given(self, key: str) -> bool:
        """Whether the user set this key, without reading it."""
        return key in self._given

    def has_part(self, part: str) -> bool:
        """Whether the user set any key of this part."""
        self._miss_below(f"{part}.")
        found = [entry for key, entry in self._given.items() if key.startswith(f"{part}.")]
        for entry in found[:1]:
            self.used[entry.key] = entry
        return bool(found)

    def first(self, *keys: str) -> Value:
        """The value of the first of several names that the user set, else the first default that one has."""
        for key in keys:
            self._miss(key)
        asked = [key for key in keys if key in self._given][:1] or keys
        return next((value for key in asked if (value := self[key]) is not None), None)

    def below(self, prefix: str) -> Values:
        """Everything the user set below a key."""
        self._miss_below(f"{prefix}.")
        found = {
            key.removeprefix(f"{prefix}."): entry
            for key, entry in self._given.items()
            if key.startswith(f"{prefix}.")
        }
        self.used.update({f"{prefix}.{key}": entry for key, entry in found.items()})
        return {key: entry.value for key, entry in found.items()}


@dataclass(frozen=True, slots=True)
class SoFar:
    """Our keys that the rules before have found, over the contract's defaults; and the model, where it is known."""

    values: Values
    model: Model | None = None

    def __getitem__(self, key: str) -> Value:
        return self.values.get(key, default_of(key))

    def __contains__(self, key: str) -> bool:
        return key in self.values

    @property
    def is_packed(self) -> bool:
        """Whether bitsandbytes packs the base of adapters."""
        return self["method"] == "qlora" or (
            self["method"] == "lora" and self["load_in_8bit"] is True
        )


Read = Callable[[Theirs, SoFar], Values]
Write = Callable[[Values], Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Some keys of theirs, which together are some of ours."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    read: Read
    """Our values from theirs; missing keys keep the contract's defaults."""
    write: Write | None = None
    """Theirs from ours, all of which are given; None if these keys cannot express ours."""
    says: str = ""
    """What the tool does if no key sets it."""
    source: str = ""
    """The tool's file and line that does so."""


Remark = Callable[[Mapping[str, Entry], Values], Iterable[str]]
"""Sentences about a run: of the user's keys by their full names, and of our values."""


def nothing_to_say(given: Mapping[str, Entry], values: Values) -> Iterable[str]:
    """No sentence."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool's table."""

    name: str
    """A value of the contract's key ``tool``."""
    label: str
    """Its name on buttons: "TRL's SFTTrainer"."""
    distribution: str
    """The PyPI package whose version is recorded."""
    place: int = 9
    """Its place among all: of two whose marks are as long a file is the first's, and pages list them so."""
    chains: Mapping[str, tuple[tuple[str, str], ...]]
    """Of each part, the classes that its defaults stand in, the nearest first: (package, class)."""
    rules: tuple[Rule, ...]
    later: tuple[Later, ...] = ()
    no_effect: frozenset[str] = frozenset()
    """Keys that change neither memory nor time nor cost; one that ends in ``.*`` means all below it."""
    as_run: Callable[[Values], Values] = dict
    """Our keys as the trainer gets them, where the table keeps rows apart that the tool joins."""
    is_called: bool = False
    """Whether scripts and other tools call it, so that a run whose files name both is the other's."""
    marks: tuple[str, ...] = ()
    """Names of keys: a file that has all of one of these texts is its config."""
    marks_within: frozenset[str] = frozenset()
    """Names at any depth, one of which makes a file its config."""
    programs: frozenset[str] = frozenset()
    """Its commands."""
    trains: frozenset[str] = frozenset()
    """The words after a command that train, where others serve, export, merge and evaluate; empty: all do."""
    modules: tuple[str, ...] = ()
    """How the names of its modules begin that ``python -m`` runs."""
    scripts: tuple[tuple[str, str], ...] = ()
    """Patterns of its own scripts' paths, each with the word of ``trains`` that it stands for; empty: its group."""
    for_objective: Callable[[str], Tool] | None = None
    """Its table with the defaults of an objective's own class; None: all objectives have one class."""
    word_key: str = ""
    """The key of theirs that the word after its command is."""
    variables: frozenset[str] = frozenset()
    """Variables of the environment that are keys of its own, in capitals."""
    counts_gpus: bool = False
    """Whether its own keys say how many GPUs there are, whatever a launcher's variables say."""
    launches_itself: bool = False
    """Whether its command starts a process on each GPU that it sees."""
    reads_overrides: bool = False
    """Whether its commands take Hydra's ``key=value``."""
    reads_recipes: bool = False
    """Whether its command is ``run recipe --config name key=value``."""
    hands_on: Callable[[str], bool] = lambda name: False
    """Whether it hands an argument on to accelerate's launcher."""
    shipped: Mapping[str, Values] = field(default_factory=dict)
    """Files of accelerate's that it ships, by the names that its ``--accelerate_config`` takes."""
    is_told_prompts: bool = False
    """Whether it is told the longest prompt of a generation, of which its longest row follows."""
    is_told_padding: bool = False
    """Whether it has a key for whether the rows of a micro-batch are padded."""
    stops_at: Remark = nothing_to_say
    """Contradictions of a run's keys at which it would stop, one sentence each."""
    guesses: Remark = nothing_to_say
    """What a run's keys leave open or do not do, and how it is taken."""
    notes: Remark = nothing_to_say
    """Other warnings."""


# --- rows that are written often ----------------------------------------------------------------


def row(
    theirs: str,
    ours: str,
    read: Read,
    write: Write | str | None = None,
    *,
    says: str = "",
    source: str = "",
) -> Rule:
    """A rule whose names stand in texts; a ``write`` of names takes the values of ours in their order.

    >>> twice = row("args.half", "num_gpus", lambda theirs, so_far: {"num_gpus": 2 * theirs["args.half"]})
    >>> twice.theirs, twice.ours
    (('args.half',), ('num_gpus',))
    """
    keys = listed(ours)
    if isinstance(write, str):
        told = tuple(zip(listed(write), keys, strict=False))
        by_name: Write = lambda values: {their: values[our] for their, our in told}  # noqa: E731
    return Rule(
        theirs=listed(theirs),
        ours=keys,
        read=read,
        write=by_name if isinstance(write, str) else write,
        says=says,
        source=source,
    )


def same(
    theirs: str,
    ours: str = "",
    *others: str,
    as_: Callable[[Value], Value] = lambda value: value,
    says: str = "",
) -> Rule:
    """A key of theirs that is one of ours; ``others`` are its other names, ``as_`` what a value is, None if none."""
    ours = ours or theirs.rpartition(".")[2]

    def read(given: Theirs, so_far: SoFar) -> Values:
        value = given.first(theirs, *others)
        meant = None if value is None else as_(value)
        return {} if meant is None else {ours: meant}

    return row(" ".join([theirs, *others]), ours, read, theirs, says=says)


def alike(part: str, names: str) -> tuple[Rule, ...]:
    """Keys of one part of theirs that have the names of ours."""
    return tuple(same(f"{part}.{name}") for name in listed(names))


def words(
    theirs: str,
    ours: str,
    meaning: Mapping[Value, Value],
    *,
    as_: Callable[[Value], Value] = lambda value: value,
    unlisted: Value = NOTHING,
    says: str = "",
    source: str = "",
) -> Rule:
    """A key of theirs whose values have other names here, the first of which is written.

    ``unlisted``: what others mean; without it they pass unchanged. ``as_``: what a value is.
    """

    def read(given: Theirs, so_far: SoFar) -> Values:
        value = as_(given[theirs])
        known = isinstance(value, str | bool | int | None) and value in meaning
        meant = meaning[value] if known else value if unlisted is NOTHING else unlisted
        return {} if meant is None else {ours: meant}

    def write(values: Values) -> Values:
        return {theirs: next((word for word, of in meaning.items() if of == values[ours]), None)}

    return row(theirs, ours, read, write, says=says, source=source)


def always(ours: str, value: Value, says: str, source: str) -> Rule:
    """What a tool does regardless of its keys."""
    return row("", ours, lambda theirs, so_far: {ours: value}, says=says, source=source)


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value of ours comes from."""

    rule: Rule
    used: Mapping[str, Entry | ToolDefault]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Those that the user set."""
        return tuple(entry for entry in self.used.values() if isinstance(entry, Entry))

    @property
    def defaults(self) -> tuple[ToolDefault, ...]:
        """Those that are the tool's defaults."""
        return tuple(default for default in self.used.values() if isinstance(default, ToolDefault))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """Our keys as a tool has them, and where each comes from."""

    values: Values
    origins: Mapping[str, Origin] = field(default_factory=dict)
    missed: Mapping[str, Entry] = field(default_factory=dict)
    """Our keys that depend on a value that only the run knows, and that value's key."""


PROBES: tuple[Value, ...] = (
    *(None, False, True, 3, 4, 8),
    *("bfloat16", "dpo", "qlora", "flash_attention_2", "zero3.json", "fsdp", ["q_proj"]),
)
"""Values that tell which of our keys depend on one of theirs."""


def decided(
    rule: Rule, entry: Entry, given: Mapping[str, Entry], tool: Tool, so_far: SoFar
) -> list[str]:
    """Our keys that a rule reads otherwise when one of theirs, which only the run knows, has another value."""
    first, *others = (
        rule.read(Theirs({**given, entry.key: replace(entry, value=probe)}, tool.chains), so_far)
        for probe in PROBES
    )
    return [key for key in rule.ours if any(other.get(key) != first.get(key) for other in others)]


def effective(
    tool: Tool,
    given: Mapping[str, Entry] = NOTHING,
    fixed: Values = NOTHING,
    model: Model | None = None,
) -> Effective:
    """What a run is under a tool: ``given`` are the user's keys of theirs, ``fixed`` those of ours that are settled.

    A key of theirs whose value only the run knows counts as missing; ``missed`` says what depends on it.

    >>> from estimator.tools.known import trl
    >>> found = effective(trl.TOOL, {"args.max_length": Entry("args.max_length", 4096)}).values
    >>> found["max_length"], found["gradient_checkpointing"], found["dtype"]
    (4096, True, 'float32')
    """
    values = dict(fixed)
    origins: dict[str, Origin] = {}
    missed: dict[str, Entry] = {}
    known = {key: entry for key, entry in given.items() if not entry.is_unknown}
    unknown = {key: entry for key, entry in given.items() if entry.is_unknown}
    for rule in tool.rules:
        wanted = [key for key in rule.ours if key not in fixed]
        if not wanted:
            continue
        theirs = Theirs(known, tool.chains, unknown)
        so_far = SoFar(values, model)
        found = rule.read(theirs, so_far)
        open_keys = {
            key: entry
            for entry in theirs.missed.values()
            for key in decided(rule, entry, known, tool, so_far)
            if key in wanted
        }
        for key in wanted:
            if key in found:
                missed.pop(key, None)
                values[key] = found[key]
                origins[key] = Origin(rule=rule, used=theirs.used)
        missed |= open_keys
    return Effective(values=values, origins=origins, missed=missed)


def matches(key: str, patterns: frozenset[str]) -> bool:
    """Whether a key stands in a list, or below a key that ends in ``.*``.

    >>> listed = frozenset({"args.datasets.*"})
    >>> matches("args.datasets.0.path", listed), matches("args.datasets", listed), matches("args.data", listed)
    (True, True, False)
    """
    return key in patterns or any(f"{prefix}.*" in patterns for prefix in upwards(key))


def upwards(key: str) -> Iterator[str]:
    """The key, and each that it lies below.

    >>> list(upwards("a.b.c"))
    ['a.b.c', 'a.b', 'a']
    """
    while key:
        yield key
        key = key.rpartition(".")[0]

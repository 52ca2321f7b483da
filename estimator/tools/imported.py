"""A user's own files as one run: which keys were taken over, have no effect, are not modelled yet, or are unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from typing import Any

from estimator.sources import catalog
from estimator.sources.repository import from_config
from estimator.tools import contradictions
from estimator.tools.defaults import TOOLS, SetByTool, set_by, tool_named, version_of
from estimator.tools.documents import Pool, pool_of
from estimator.tools.known import images
from estimator.tools.known.parallel import SHIPPED
from estimator.tools.known.transformers import OBJECTIVE_KEY
from estimator.tools.known.trl import objective_of
from estimator.tools.later import Direction, Later
from estimator.tools.lists import listed
from estimator.tools.no_run import refuse_what_trains_nothing
from estimator.tools.parsed import MOST_KEYS, FlagValue, Text, Unresolved, decoded
from estimator.tools.reading.detect import kind_of, read_text
from estimator.tools.rules import Effective, Entry, Theirs, Tool, effective, matches, upwards
from estimator.tools.sayable import sayable
from estimator.values.keys import BY_NAME, DEFAULT, default_of
from estimator.values.kinds import near
from estimator.values.later_keys import LATER, read_later
from estimator.values.refusals import InputError, show
from estimator.values.specs import Model

MOST_FILES = 16
"""Files of one run: ours."""
MOST_LOOKED_UP = 100
"""Unknown keys for which similar names are looked for: ours, as those of a setup."""
SHORTEST_MEANT = 4
"""Letters of a name that an unknown key may have meant: ours; a shorter one stands in too many words."""


class Fate(StrEnum):
    """What happened to a key of a user's file."""

    TAKEN = "taken over"
    NO_EFFECT = "no effect on memory, time or cost"
    NOT_MODELLED = "changes memory or time, and is not modelled yet"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRead:
    """One key of a user's file, and what happened to it."""

    key: str
    """As spelled in the file."""
    value: Any
    file: str
    line: int
    fate: Fate
    ours: tuple[str, ...] = ()
    """The contract's keys that it set."""
    says: str = ""
    """One sentence on why it is not modelled or what is unknown."""
    direction: Direction | None = None
    """The direction in which an unmodelled key moves memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A user's own files as one run."""

    tool: str
    """A value of the contract's key ``tool``."""
    version: str
    """The tool's newest version whose defaults are known."""
    setup: Mapping[str, Any]
    """An object of the contract, with every key that the tool or the user sets, as the tool runs it."""
    rows: Mapping[str, Any]
    """The same run with the rows apart that the tool joins into one, so that a change can split them."""
    keys: tuple[KeyRead, ...]
    """Every key of the files, in order."""
    set_by_tool: tuple[SetByTool, ...]
    """The tool's own defaults, those that differ from the contract's first."""
    contradictions: tuple[str, ...] = ()
    """Contradictions at which the tools would stop."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """Keys of ours that decide memory and that the files do not tell, each with one sentence."""
    guesses: tuple[str, ...] = ()
    """What the files leave open, and how it is taken: one sentence each, to be said with the verdict."""
    settled_by: Mapping[str, str] = field(default_factory=dict)
    """Of a guess, the key whose value would make it needless."""
    notes: tuple[str, ...] = ()
    """Other warnings: files that are named but missing, values of the tool that are not modelled."""
    texts: tuple[Text, ...] = ()
    """The files as read."""
    folder: str = ""
    """The folder that the files name as their model, where it is not among the models given."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Keys of ours whose value is not modelled, each with the contract's sentence; they are left out of the setup."""

    def of(self, fate: Fate) -> tuple[KeyRead, ...]:
        """One of the four lists."""
        return tuple(key for key in self.keys if key.fate is fate)


def read_files(
    files: Mapping[str, str | bytes], known: Mapping[str, Model] | None = None
) -> Imported:
    """One run from all its files, by name: configs, scripts, commands. Nothing in them is executed.

    ``known``: models by id that are not in the catalogue, as ``read_setup`` takes them. ``ValueError`` is one sentence
    where a file cannot be read.

    >>> run = read_files({"pasted": "trl sft --model_name_or_path openai-community/gpt2 --max_length 512 --seed 1"})
    >>> run.tool, run.setup["max_length"], run.setup["gradient_checkpointing"]
    ('trl', 512, True)
    >>> [(key.key, key.fate.value) for key in run.keys][-1]
    ('seed', 'no effect on memory, time or cost')
    """
    if not files:
        raise InputError("there is nothing to read; give a config, a script or a command.")
    if len(files) > MOST_FILES:
        raise InputError(
            f"{len(files)} files are more than the {MOST_FILES} that one run may have; give its own alone."
        )
    texts = _read(files)
    pool = pool_of(texts)
    if len(pool.entries) > MOST_KEYS:
        raise InputError(
            f"{next(iter(files))} has more than {MOST_KEYS:,} keys; give the config alone."
        )
    tool = _tool(pool, texts)
    refuse_what_trains_nothing(tool, pool, texts)
    return _joined(tool, pool, texts, known or {})


def _read(files: Mapping[str, str | bytes]) -> tuple[Text, ...]:
    """Each file as its keys, calls or commands; commands first, since a script reads their flags."""
    kinds = {name: kind_of(decoded(text, name), name) for name, text in files.items()}
    read = {name: read_text(files[name], name) for name, kind in kinds.items() if kind == "shell"}
    flags = {
        flag.name: flag.value
        for text in read.values()
        for command in text.commands
        if not command.tool
        for flag in command.flags
        if not isinstance(flag.value, Unresolved)
    }
    read |= {name: read_text(files[name], name, flags) for name in files if name not in read}
    return tuple(read[name] for name in files)


NAMING = frozenset(
    f"args.{name}"
    for name in ("output_dir", "hub_model_id", "run_name", "dataset_name", "dataset_splits")
)
"""Keys whose values people name after what they train."""


def _guess_objective(pool: Pool, texts: tuple[Text, ...]) -> None:
    """The trainer of a TRL config that comes without its command or script, by its keys and names."""
    named = [str(entry.value) for key, entry in pool.entries.items() if key in NAMING]
    keys = [key.removeprefix("args.") for key in pool.entries if key.startswith("args.")]
    found = objective_of(keys, [*(text.name for text in texts), *pool.references, *named])
    pool.add(Entry("trainer.objective", found.objective))
    if found.says:
        pool.guess(found.says, "objective")


def _tool(pool: Pool, texts: tuple[Text, ...]) -> Tool:
    named = [tool for tool in TOOLS.values() if tool.name in pool.tools]
    name = min(named, key=attrgetter("is_called")).name if named else ""
    if not name:
        name = "trainer"
        pool.guesses.append(
            "No file names the training tool: Trainer's defaults are taken where a key is missing."
        )
    if TOOLS[name].word_key == OBJECTIVE_KEY and OBJECTIVE_KEY not in pool.entries:
        _guess_objective(pool, texts)
    objective = pool.entries.get("trainer.objective")
    word = objective.value if objective and isinstance(objective.value, str) else None
    return tool_named(name, word)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What the files come to under their tool."""

    tool: Tool
    pool: Pool
    given: Mapping[str, Entry]
    """The user's keys whose values are known."""
    found: Effective
    values: Mapping[str, Any]
    """Our keys with their values, as far as the contract accepts them."""
    rejected: Mapping[str, str]
    """Our keys whose values it does not accept, each with its sentence."""

    def refused(self) -> dict[str, str]:
        """The user's keys that a rejected value comes from; one that the tool sets by itself is a guess."""
        refused: dict[str, str] = {}
        for key, problem in self.rejected.items():
            if entries := self.found.origins[key].entries:
                value = self.found.values[key]
                responsible = _responsible(self.tool, self.given, key, value, entries)
                refused |= dict.fromkeys(responsible, problem)
            else:
                self.pool.guesses.append(
                    f"{_version(self.tool)} sets this by itself, and it is left out: {problem}"
                )
        return refused

    def guess_what_is_open(self) -> None:
        """How many GPUs, how long the rows and the prompts are, where no key says it."""
        strategy = str(self.values.get("strategy", "none"))
        if self.values.get("num_gpus", 1) == 1 and strategy.startswith(("fsdp", "hsdp", "zero")):
            self.pool.guess(UNCOUNTED.format(strategy), "num_gpus")
        if "max_length" not in self.values:
            self.pool.guess(
                f"{self.tool.label} cuts no row here, so that rows are as long as the data has them: set max_length to "
                f"the longest; {DEFAULT.batch.max_length:,} is taken.",
                "max_length",
            )
        self.pool.guesses += self.tool.guesses(self.given, self.values)

    def asked(self, not_given: Sequence[str]) -> dict[str, str]:
        """Our keys that decide memory and that the files do not tell; a value near the default is a guess."""
        asked = {
            key: _only_the_run_knows(entry, f"set {key}")
            for key, entry in self.found.missed.items()
            if _decides_memory(key, self.values)
        }
        for key, problem in self.rejected.items():
            if key in NEAR:
                self.pool.guess(f"{problem} {default_of(key)} is taken.", key)
            elif self.found.origins[key].entries and _decides_memory(key, self.values):
                asked[key] = problem
        if self.pool.folder and self.values.get("model") == self.pool.folder:
            asked["model"] = (
                f"{self.pool.folder} is no id of the Hub, such as mistralai/Mistral-7B-v0.1: set model."
            )
        return {**asked, **_of_missing(self.given, not_given, self.pool)}


def _run(tool: Tool, pool: Pool, model: Model | None) -> _Run:
    found = effective(tool, pool.entries, model=model)
    problems = {key: problem_with(key, value) for key, value in found.values.items()}
    values = {key: value for key, value in found.values.items() if not problems[key]}
    if pool.model_config is not None:
        values.setdefault("model", dict(pool.model_config))
    return _Run(
        tool=tool,
        pool=pool,
        given={key: entry for key, entry in pool.entries.items() if not entry.is_unknown},
        found=found,
        values=values,
        rejected={key: problem for key, problem in problems.items() if problem},
    )


def _joined(
    tool: Tool, pool: Pool, texts: tuple[Text, ...], known: Mapping[str, Model]
) -> Imported:
    _resolve_flags(tool, pool)
    model = _model(tool, pool, known)
    run = _run(tool, pool, model)
    refused = run.refused()
    refused |= dict(images.without_use(run.given, tool.rules, model))
    refused |= dict(images.with_hook(run.given, run.values, model))
    run.guess_what_is_open()
    here = {text.name.rpartition("/")[2] for text in texts}
    not_given = [
        path for path in dict.fromkeys(pool.references) if path.rpartition("/")[2] not in here
    ]
    asked = run.asked(not_given)
    by_tool = [
        set_by(tool, key, run.values[key], origin)
        for key, origin in run.found.origins.items()
        if key in run.values and not origin.entries and key != "model"
    ]
    notes = [
        *pool.notes,
        *tool.notes(run.given, run.values),
        *(
            f"{path} is named and was not given: drop it here, too, where its keys matter."
            for path in not_given
        ),
    ]
    return Imported(
        tool=tool.name,
        version=version_of(tool.name),
        setup=tool.as_run(run.values),
        rows=run.values,
        keys=tuple(_said_once(map(_Judge(run, refused, asked.keys()).key, _shown(pool)))),
        set_by_tool=tuple(sorted(by_tool, key=attrgetter("differs"), reverse=True)),
        contradictions=tuple(contradictions.found(tool, run.given, run.values)),
        asked=asked,
        guesses=tuple(dict.fromkeys(pool.guesses)),
        settled_by=pool.settled_by,
        notes=tuple(dict.fromkeys(notes)),
        texts=texts,
        folder=pool.folder,
        refused=run.rejected,
    )


WITHOUT_MEMORY = frozenset(
    listed("""num_train_examples num_train_epochs mean_tokens_per_example save_strategy save_total_limit save_only_model
    max_grad_norm lora_alpha overlap_comm num_cpu_threads_per_process gpus_per_node fsdp_state_dict_type
    zero3_save_16bit_model""")
)
"""Keys of time, money, disk and the host: a step's memory on a GPU is the same whatever they are."""


NEAR = frozenset({"attn_implementation"})
"""Keys whose default is near in memory to a value that is not modelled: kernels that never hold the scores whole."""


def _decides_memory(key: str, values: Mapping[str, Any]) -> bool:
    """Whether a key matters to the memory of a run like this."""
    if key in WITHOUT_MEMORY:
        return False
    return key in ("model", "max_length") or key in sayable(
        {ours: value for ours, value in values.items() if ours != "model"}
    )


def _only_the_run_knows(entry: Entry, then: str) -> str:
    """A sentence on a value that is not in the files, and what to do."""
    if isinstance(entry.value, FlagValue):
        return f"{entry.shown} is the script's flag --{entry.value.flag}: give its command, too, or {then}."
    text = entry.value.text if isinstance(entry.value, Unresolved) else entry.value
    return f"{entry.shown} is {show(text)}, which only the run knows: {then}."


def _of_missing(
    given: Mapping[str, Entry], missing: Sequence[str], pool: Pool
) -> Mapping[str, str]:
    """What the files of DeepSpeed and accelerate decide, where they are named and were not given."""
    found: dict[str, str] = {}
    named = given.get("args.deepspeed")
    if named is not None and named.value in missing:
        stage = SHIPPED.search(str(named.value).rpartition("/")[2])
        if stage is None:
            found["strategy"] = (
                f"{named.value} says how the run is divided, and was not given: give it, too, or set strategy."
            )
        else:
            pool.guesses.append(
                f"{named.value} was not given: ZeRO-{stage[1]} is taken from its name."
            )
    launch = given.get("accelerate.config_file")
    if launch is not None and launch.value in missing:
        says = (
            f"{launch.value} says how the run is divided, and was not given: give it, too, or set"
        )
        found |= {} if "accelerate.num_processes" in given else {"num_gpus": f"{says} num_gpus."}
        found |= {} if "accelerate.distributed_type" in given else {"strategy": f"{says} strategy."}
    return found


UNCOUNTED = "{} divides the run, and no file says over how many GPUs: set num_gpus; 1 is taken."


def _responsible(
    tool: Tool, given: Mapping[str, Entry], key: str, value: Any, entries: Sequence[Entry]
) -> list[str]:
    """Of the entries that a value of ours was read from: those without which it would be another."""
    theirs = [entry.key for entry in entries]
    without = {
        left_out: effective(
            tool, {name: entry for name, entry in given.items() if name != left_out}
        ).values.get(key)
        for left_out in theirs
    }
    return [left_out for left_out in theirs if without[left_out] != value] or theirs


def _resolve_flags(tool: Tool, pool: Pool) -> None:
    """Values that a script takes from its flags: what the command says, else the default of the tool's own class."""
    theirs = Theirs(pool.entries, tool.chains)
    for key, entry in list(pool.entries.items()):
        if not isinstance(entry.value, FlagValue):
            continue
        flag = f"args.{entry.value.flag}"
        said = theirs[flag]
        if flag in pool.entries and not isinstance(said, Unresolved):
            pool.entries[key] = replace(entry, value=said)
        elif flag not in pool.entries and (default := theirs.default(flag)) is not None:
            pool.entries[key] = replace(entry, value=default.value)


def _version(tool: Tool) -> str:
    return f"{tool.distribution} {version_of(tool.name)}"


OF_THE_READER = frozenset({"launch.launcher", "model.loaded", "unsloth_peft.get_peft_model"})


def _shown(pool: Pool) -> Sequence[Entry]:
    """The keys written by the user, in file order."""
    return [
        entry for entry in pool.entries.values() if entry.file and entry.key not in OF_THE_READER
    ]


def _model(tool: Tool, pool: Pool, known: Mapping[str, Model]) -> Model | None:
    """The model of the files where it is known already."""
    if pool.model_config is not None:
        return from_config(pool.model_config).model
    found = effective(tool, pool.entries)
    named = found.values.get("model")
    if isinstance(named, str) and not HUB_ID.fullmatch(named):
        if named not in known:
            pool.folder = named
        if named not in known and (taken := catalog.model_in_folder(named)):
            pool.guess(f"{named} is taken for {taken}, whose name it has.", "model")
            for entry in found.origins["model"].entries:
                pool.entries[entry.key] = replace(entry, value=taken)
            named = taken
    return model_named(named, known)


HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
"""An owner and a name: huggingface_hub 2.1, utils/_validators.py, ``REPO_ID_REGEX``."""


def model_named(name: object, known: Mapping[str, Model]) -> Model | None:
    """A model by its id, of those given or of the catalogue; None where it is not known."""
    if not isinstance(name, str):
        return None
    if name in known:
        return known[name]
    spelled = map(str.casefold, catalog.models())  # to find near names would take 30 ms
    return catalog.model(name) if name.casefold() in spelled else None


def problem_with(key: str, value: Any) -> str:
    """Why the contract rejects a value; empty if it accepts it.

    >>> problem_with("max_length", 2048), problem_with("max_length", 0)
    ('', 'max_length must be a whole number from 1 to 16777216, not 0.')
    """
    if key in {"model", "gpu"}:
        return ""
    try:
        if key in BY_NAME:
            BY_NAME[key].read(value)
        elif key in LATER:
            read_later(key, value)
        else:
            return f"{key} is no key of a setup."
    except ValueError as problem:
        return str(problem)
    return ""


def _said_once(keys: Iterable[KeyRead]) -> Iterator[KeyRead]:
    """The keys; of a part that the tool does not have at all, such as a script's own ``dataset_mixture``, the first."""
    parts = set()
    for key in keys:
        if key.fate is Fate.UNKNOWN:
            if (key.file, key.key) in parts:
                continue
            parts.add((key.file, key.key))
        yield key


class _Judge:
    """Says what happened to each key."""

    def __init__(self, run: _Run, refused: Mapping[str, str], asked: Set[str]) -> None:
        self.tool, self.options, self.given = run.tool, run.pool.options, run.given
        self.refused = refused
        """Of a key of theirs, why the contract does not take it."""
        self.taken = frozenset(chain.from_iterable(rule.theirs for rule in run.tool.rules))
        self.later = {later.theirs: later for later in reversed(run.tool.later)}
        missed = reversed([*run.found.missed.items()])
        self.asked = {entry.key: key for key, entry in missed if key in asked}
        """Keys of theirs whose values are asked for, and the first of ours that each decides."""
        self.ours: dict[str, list[str]] = {}
        """Of a key of theirs, the contract's keys that it set."""
        for key, origin in run.found.origins.items():
            for entry in origin.entries:
                self.ours.setdefault(entry.key, []).append(key)
        self.unknown: list[str] = []
        """Keys that are not known, so far."""

    def key(self, entry: Entry) -> KeyRead:
        """What became of one key."""
        fate, says, direction = self._fate(entry)
        if fate is Fate.UNKNOWN and entry.shown in self.options and not entry.is_unknown:
            fate, says = Fate.TAKEN, ""
        is_inside = fate is Fate.UNKNOWN and "." in entry.shown and not self._has_part(entry.key)
        return KeyRead(
            key=entry.shown.partition(".")[0] if is_inside else entry.shown,
            value=entry.value.text if isinstance(entry.value, Unresolved) else entry.value,
            file=entry.file,
            line=entry.line,
            fate=fate,
            ours=tuple(self.ours.get(entry.key, ())) if fate is Fate.TAKEN else (),
            says=says,
            direction=direction,
        )

    def _fate(self, entry: Entry) -> tuple[Fate, str, Direction | None]:
        if refused := self.refused.get(entry.key):
            return Fate.NOT_MODELLED, refused, Direction.EITHER
        value, shown = entry.value, entry.shown
        later = next(filter(self._applies, map(self.later.get, upwards(entry.key))), None)
        is_named = entry.key in self.taken or later is not None
        if entry.key in self.tool.no_effect or (
            matches(entry.key, self.tool.no_effect) and not is_named
        ):
            return Fate.NO_EFFECT, "", None
        if isinstance(value, Unresolved):
            ours = self.asked.get(entry.key)
            then = f"set {ours}" if ours else "the tool's default is taken"
            return Fate.UNKNOWN, _only_the_run_knows(entry, then), None
        if later is not None and not _is_harmless(value, self._harmless(later)):
            return Fate.NOT_MODELLED, f"{later.sentence}.", later.direction
        if matches(entry.key, self.taken):
            return Fate.TAKEN, "", None
        if later is not None:
            return Fate.NO_EFFECT, "", None
        if not self._has_part(entry.key):
            shown = shown.partition(".")[0]
        self.unknown.append(shown)
        meant = []
        if len(self.unknown) <= MOST_LOOKED_UP:
            names = {key.partition(".")[2] for key in self.taken}
            meant = near(shown, sorted(name for name in names if len(name) >= SHORTEST_MEANT))
        hint = f"; did you mean {meant[0]}?" if meant else "."
        says = f"{self.tool.label} knows no {shown}, or it is not known here{hint}"
        return Fate.UNKNOWN, says, None

    def _has_part(self, key: str) -> bool:
        """Whether the tool has a key of the same first two parts, such as ``args.fsdp_config``."""
        part = ".".join(key.split(".")[:2])
        known = chain(self.taken, self.later, self.tool.no_effect)
        return any(one == part or one.startswith(f"{part}.") for one in known)

    def _applies(self, later: Later | None) -> bool:
        """Whether a key is one that is not modelled, beside the others of these files."""
        if later is None or not later.beside:
            return later is not None
        return any(not later.beside.isdisjoint(upwards(key)) for key in self.given)

    def _harmless(self, later: Later) -> tuple[Any, ...]:
        beside = [self.given[later.same_as].value] if later.same_as in self.given else []
        return (*later.harmless, *beside)


def _is_harmless(value: Any, harmless: tuple[Any, ...]) -> bool:
    return any(
        value == other and isinstance(value, bool) is isinstance(other, bool) for other in harmless
    ) or (value in ({}, [], "") and None in harmless)

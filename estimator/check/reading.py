"""Groups files into runs: each file alone, or together with its companion files.

Files of accelerate, DeepSpeed and PEFT are no runs: named beside runs they belong to each of them, found in a folder to
those that name them. A shell script's run has the files that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from estimator.check.files import FoundFile
from estimator.check.judged import Asked
from estimator.contract.setups import NONE_KNOWN
from estimator.tools.documents import document_kind
from estimator.tools.imported import Fate, Imported, read_files
from estimator.tools.reading.detect import read_text
from estimator.tools.sayable import DEFAULTS, sayable
from estimator.values.json_text import read_object
from estimator.values.keys import BY_NAME
from estimator.values.later_keys import LATER
from estimator.values.specs import Model

COMPANIONS = frozenset({"accelerate", "deepspeed", "peft", "bnb", "model"})
"""Kinds of files that belong to a run but do not describe one alone."""
OF_THE_LAUNCH = ("num_gpus", "strategy", "gpus_per_node")
"""Keys that ``--gpu "4x …"`` may set if the files do not say how many GPUs there are."""
MOST_SHOWN = 8
"""Largest number of keys listed in one sentence: ours."""

Known = Callable[[object], Mapping[str, Model]]
"""Looks up a model name that the catalogue lacks."""


def read(
    files: Sequence[FoundFile], known: Known = lambda name: NONE_KNOWN, *, together: bool = False
) -> tuple[list[Asked], list[str]]:
    """The runs in the files, and the names of files that are not runs."""
    if together:
        return [_run(files, known)], []
    runs, left_out = [], []
    companions = [file for file in files if _is_companion(file)]
    scripts = [file for file in files if file.name.endswith((".sh", ".slurm", ".sbatch"))]
    named = {file.name for script in scripts for file in files if _names(script, file)}
    for file in files:
        if file in companions or (file.name in named and file not in scripts):
            continue
        beside = [other for other in companions if not other.from_folder or _names(file, other)]
        if file in scripts:
            beside = [other for other in files if _names(file, other)]
        asked = _run([file, *(other for other in beside if other is not file)], known)
        if file.from_folder and not asked.is_run:
            left_out.append(file.name)
        else:
            runs.append(asked)
    if not runs and companions:
        return [_run(companions, known)], left_out
    return runs, left_out


def _names(file: FoundFile, other: FoundFile) -> bool:
    return other is not file and _last(other.name).encode() in file.content


def _is_companion(file: FoundFile) -> bool:
    if not file.name.endswith((".yaml", ".yml", ".json")) or _contract_keys(file) is not None:
        return False
    try:
        return document_kind(read_text(file.content, file.name)) in COMPANIONS
    except ValueError:
        return False


def _contract_keys(file: FoundFile) -> Mapping[str, object] | None:
    """A setup in our own JSON; None if the file is a tool's or cannot be read."""
    if not file.name.endswith(".json"):
        return None
    try:
        keys = read_object(file.content, file.name)
    except ValueError:
        return None
    own = {"model", "gpu", "tool", *BY_NAME, *LATER}
    return keys if "model" in keys and keys.keys() <= own else None


def _run(files: Sequence[FoundFile], known: Known) -> Asked:
    names = tuple(file.name for file in files)
    if len(files) == 1 and (keys := _contract_keys(files[0])) is not None:
        return Asked(files=names, keys=keys)
    texts = {file.name: file.content for file in files}
    try:
        found = read_files(texts)
        if models := known(found.folder or found.setup.get("model")):
            found = read_files(texts, models)
    except ValueError as problem:
        return Asked(files=names, keys={}, problems=(str(problem),))
    said_by_tool = {default.key for default in found.set_by_tool}
    keys = {
        key: value
        for key, value in found.rows.items()
        if key not in OF_THE_LAUNCH
        or "num_gpus" in found.rows
        or (
            key not in said_by_tool and value != "none"
        )  # `deepspeed:` without a value says nothing
    }
    return Asked(
        files=names,
        keys=keys,
        problems=(*found.contradictions, *_other_runs(found)),
        asked=found.asked,
        guesses=found.guesses,
        settled_by=found.settled_by,
        notes=tuple(_notes(found)),
        texts=texts,
        tool=f"{found.tool} {found.version}",
    )


ASKED = ("objective", "method")
"""Keys without which an estimate would be of another run."""


def _other_runs(found: Imported) -> Iterable[str]:
    """What is trained, and how, where it is not modelled: an estimate would be of another run."""
    yield from (found.refused[key] for key in ASKED if key in found.refused)


def _notes(found: Imported) -> Iterable[str]:
    """What qualifies the verdict, one sentence each."""
    by_tool = {default.key for default in found.set_by_tool}
    used = sayable(found.rows)
    own = [
        f"{key} {_word(value)}"
        for key, value in used.items()
        if key in by_tool and value != DEFAULTS.get(key)
    ]
    if own:
        more = f" and {len(own) - MOST_SHOWN} more" * (len(own) > MOST_SHOWN)
        yield f"Set by {found.tool} {found.version} itself: {', '.join(own[:MOST_SHOWN])}{more}."
    for key in found.of(Fate.NOT_MODELLED):
        way = f" ({key.direction.value} memory)" if key.direction else ""
        yield f"Not modelled yet: {key.key}, {_where(key.file, key.line)}: {key.says}{way}"
    for key in found.of(Fate.UNKNOWN):
        yield f"Unknown: {key.key}, {_where(key.file, key.line)}: {key.says}"
    yield from found.notes


def _word(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _where(file: str, line: int) -> str:
    return f"{_last(file)} line {line}"


def _last(path: str) -> str:
    """The file's name without its folders."""
    return path.replace("\\", "/").rpartition("/")[2]

r"""A user's own files with other values: only the characters that must change do, and what came in is read again.

>>> text = "model_name_or_path: openai-community/gpt2\nper_device_train_batch_size: 8 # ours\n"
>>> print(changed_files({"sft.yaml": text}, {"per_device_train_batch_size": 2}).diff, end="")
--- sft.yaml
+++ sft.yaml
@@ -1,2 +1,2 @@
 model_name_or_path: openai-community/gpt2
-per_device_train_batch_size: 8 # ours
+per_device_train_batch_size: 2 # ours
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from estimator.tools.defaults import tool_named
from estimator.tools.documents import Pool, pool_of
from estimator.tools.imported import Imported, model_named, read_files
from estimator.tools.known.allocator import assignment
from estimator.tools.parsed import Call, Text, decoded
from estimator.tools.rules import Entry, Tool, Value, Values, effective
from estimator.tools.sayable import sayable
from estimator.tools.writing.scripts import OF_MODEL_CONFIG
from estimator.tools.writing.spans import (
    Edit,
    applied,
    json_edit,
    python_edit,
    shell_edit,
    yaml_edit,
)
from estimator.tools.writing.theirs import theirs_of
from estimator.values.refusals import InputError
from estimator.values.specs import Model

CALLS: Mapping[str, tuple[str, ...]] = {
    "peft": ("LoraConfig",),
    "bnb": ("BitsAndBytesConfig",),
    "model": ("from_pretrained",),
    "distributed": ("DistributedConfig",),
    "call": ("get_peft_model", "prepare_model_for_kbit_training", "gradient_checkpointing_enable"),
    "data": ("tokenizer",),
}
"""The calls of a script that hold each part of a config; of the arguments, every class that ends in Config or
Arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Files as they should be, and what changes in them."""

    files: Mapping[str, str]
    """Those that changed, by name."""
    diff: str
    """Unified, of all of them."""
    also: Mapping[str, tuple[Value, Value]] = field(default_factory=dict)
    """Keys of ours that the tool makes follow, as they were and as they are: an evaluation's batch, a training's."""


def changed_files(
    files: Mapping[str, str | bytes],
    changes: Values,
    known: Mapping[str, Model] | None = None,
) -> Changed:
    """A run's own files with some keys of the contract changed; ``InputError`` says what a file cannot be told.

    ``changes``: keys of ours, as a remedy has them.
    """
    texts = {name: decoded(text, name) for name, text in files.items()}
    run = read_files(texts, known)
    pool = pool_of(run.texts)
    objective = pool.entries.get("trainer.objective")
    tool = tool_named(run.tool, objective.value if objective else None)
    model = model_named(run.setup.get("model"), known or {})
    entries = {key: entry for key, entry in pool.entries.items() if not entry.is_unknown}
    given = {key: entry.value for key, entry in entries.items()}
    wanted = effective(tool, entries, fixed=dict(changes), model=model).values
    parts = {key.partition(".")[0] for key in given}
    parts |= {"allocator"} if any(text.commands for text in run.texts) else set()
    meant = {*changes, *(["optim_args"] if "optim" in changes else [])} & {
        *sayable(wanted, tool.name)
    }
    theirs = theirs_of(tool, wanted, model, parts, given, meant)
    edits: dict[str, list[Edit]] = {}
    for key, value in theirs.items():
        if key not in given or given[key] != value:
            name, edit = _edit(key, value, tool, pool, run.texts, texts)
            edits.setdefault(name, []).append(edit)
    after = {name: applied(texts[name], those) for name, those in edits.items()}
    return Changed(
        files=after,
        diff="".join(_diff(texts, after)),
        also=_follows(run, read_files({**texts, **after}, known), changes),
    )


def changes_between(was: Values, now: Values, tool: str = "") -> dict[str, Value]:
    """The keys of one setup that another says otherwise, as far as a config of a tool can say them.

    >>> changes_between({"max_length": 512, "mfu": 0.4}, {"max_length": 1024, "mfu": 0.5})
    {'max_length': 1024}
    """
    before = sayable(was, tool)
    return {key: value for key, value in sayable(now, tool).items() if before.get(key) != value}


def _follows(before: Imported, after: Imported, changes: Values) -> dict[str, tuple[Value, Value]]:
    """What else the tool makes of it; ``InputError`` if what was asked for did not come of it."""
    was, now = (sayable(run.rows, run.tool) for run in (before, after))
    asked = sayable({**before.rows, **changes}, before.tool)
    for key in changes:
        if key in asked and now.get(key, asked[key]) != asked[key]:
            raise InputError(
                f"{key} cannot be changed in these files without more; change it by hand."
            )
    return {
        key: (was[key], now[key])
        for key in was
        if key in now and was[key] != now[key] and key not in changes
    }


def _diff(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name, text in after.items():
        old, new = before[name].splitlines(keepends=True), text.splitlines(keepends=True)
        for line in difflib.unified_diff(old, new, name, name):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


# --- one key --------------------------------------------------------------------------------------


def _edit(
    key: str, value: Value, tool: Tool, pool: Pool, read: tuple[Text, ...], texts: Mapping[str, str]
) -> tuple[str, Edit]:
    """The file that a key of theirs stands in, or should, and the edit that sets it."""
    part, _, name = key.partition(".")
    entry = pool.entries.get(key)
    if part == "allocator":
        return _before_a_command(name, value, entry, read, texts)
    text = _file(part, entry, pool, read)
    whole = texts[text.name]
    path = name.split(".")
    match text.kind:
        case "yaml":
            return text.name, yaml_edit(whole, _written(entry, path), value)
        case "json":
            return text.name, json_edit(whole, _written(entry, path), value)
        case "shell":
            beside = [entry.shown for entry in pool.entries.values() if entry.file == text.name]
            return text.name, shell_edit(whole, path, value, beside)
        case _ if text.name.endswith(".ipynb"):
            raise InputError(f"{text.name} is a notebook: set {name} to {value} in it by hand.")
        case _:
            return text.name, python_edit(whole, _call(part, path[0], entry, text), path, value)


def _before_a_command(
    name: str, value: Value, entry: Entry | None, read: tuple[Text, ...], texts: Mapping[str, str]
) -> tuple[str, Edit]:
    """The edit that sets the allocator's variable where a shell starts the run."""
    if entry is not None:
        raise InputError(f"set {name}:{value} in {entry.shown} by hand.")
    name_of, line = next(
        (text.name, command.line) for text in read for command in reversed(text.commands)
    )
    lines = texts[name_of].splitlines(keepends=True)
    own = lines[line - 1]
    at = sum(map(len, lines[: line - 1])) + len(own) - len(own.lstrip())
    return name_of, Edit(at, at, assignment({name: value}))


def _written(entry: Entry | None, path: list[str]) -> list[str]:
    """The path as the file has it, where the key is there."""
    return entry.written.split(".") if entry is not None and entry.written else path


def _file(part: str, entry: Entry | None, pool: Pool, read: tuple[Text, ...]) -> Text:
    by_name = {text.name: text for text in read}
    if entry is not None and entry.file in by_name:
        return by_name[entry.file]
    beside = [
        entry for key, entry in pool.entries.items() if key.startswith(f"{part}.") and entry.line
    ]
    names = [entry.file for entry in beside if entry.file in by_name]
    if not names:
        raise InputError(f"no file has a place for {part}; change it by hand.")
    return by_name[max(set(names), key=names.count)]


def _call(part: str, name: str, entry: Entry | None, text: Text) -> Call:
    """The call of a script that has an argument, or that should have it."""
    if entry is not None:
        for call in text.calls:
            if any(
                argument.line == entry.line and argument.path[0] == name for argument in call.found
            ):
                return call
    fits = [call for call in text.calls if _holds(part, name, call)]
    if not fits:
        raise InputError(f"{text.name} has no call that takes {name}; write it by hand.")
    return fits[-1]


def _holds(part: str, name: str, call: Call) -> bool:
    if part in CALLS:
        return call.name in CALLS[part] and not call.of.endswith("Tokenizer")
    if call.name == "ModelConfig":
        return name in OF_MODEL_CONFIG
    is_config = call.name.endswith(("Config", "Arguments")) and "ScriptArguments" not in call.name
    is_others = any(call.name in names for names in CALLS.values())
    return is_config and not is_others and name not in OF_MODEL_CONFIG

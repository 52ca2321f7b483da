"""A setup in a tool's own keys, found through the table by which they are read.

Each key of ours that the tool would otherwise set to something else is written by its row, and what is written is read
again by the same rows, until all agree. What no row can say is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from estimator.tools.lists import listed
from estimator.tools.rules import NOTHING, Entry, Tool, Value, Values, effective
from estimator.tools.sayable import DEFAULTS, sayable
from estimator.tools.writing.registry import writer_of
from estimator.tools.writing.several_gpus import SHARED
from estimator.tools.writing.writer import only_writes
from estimator.values.refusals import InputError, show
from estimator.values.specs import Model

ALWAYS_SAID = listed("""model method dtype mixed_precision lora_r lora_alpha lora_dropout lora_target_modules optim
    per_device_train_batch_size gradient_accumulation_steps max_length gradient_checkpointing
    attn_implementation num_train_epochs save_strategy""")
"""Keys that a new config states even where the tool would do the same: another version may not."""
NEEDED = frozenset(["args.use_peft"])
"""What a tool needs beside a key that implies it here: load_in_4bit trains nothing without adapters."""
ADDED_TO = frozenset(["args.plugins"])
"""Lists of a tool that keep what a config has in them."""
MOST_ROUNDS = 8
"""How often what was written is read again: ours, a round for each key that depends on another."""


def theirs_of(
    tool: Tool,
    keys: Values,
    model: Model | None = None,
    parts: Set[str] = frozenset({"args", "accelerate", "deepspeed"}),
    given: Values = NOTHING,
    meant: Set[str] = frozenset(),
) -> dict[str, Value]:
    """A setup's keys in a tool's words, by their full names; ``InputError`` names the key that it has no word for.

    Only what the tool would not do by itself is written, in the ``parts`` of a config that may be written. ``given`` is
    what a config says already: of it only that changes which must, for the keys that are ``meant``; others of the setup
    may follow, as a tool has them follow.

    >>> from estimator.tools.known import trl
    >>> keys = {"model": "openai-community/gpt2", "max_length": 512, "loss": "chunked_trl", "dtype": "float32"}
    >>> theirs_of(trl.TOOL, keys)["args.max_length"]
    512
    """
    wanted, written = sayable(keys, tool.name), dict(given)
    if not given:
        stated = (key for key in (*ALWAYS_SAID, *writer_of(tool.name).states) if key in wanted)
        written = {
            their: value
            for key in stated
            for their, value in next(_ways(tool, key, wanted, parts), {}).items()
        }
    for _ in range(MOST_ROUNDS):
        now = said(tool, written, model)
        wrong = [
            key for key in wanted if now.get(key) != wanted[key] and (not meant or key in meant)
        ]
        if not wrong:
            held = {key: now[key] for key in wanted if key in now}
            return _pruned(tool, written, held, model, given)
        more: dict[str, Value] = {}
        for key in wrong:
            ways = list(_ways(tool, key, wanted, parts))
            done = (
                way for way in ways if said(tool, {**written, **way}, model).get(key) == wanted[key]
            )
            first = ways[0] if ways else {}
            more |= next(done, first) if given else first
        for their in ADDED_TO & more.keys() & given.keys():
            more[their] = _longer(given[their], more[their])
        if more.items() <= written.items():
            break
        written |= more
    now = said(tool, written, model)
    if given:
        key = next(key for key in wanted if now.get(key) != wanted[key] and key in meant)
        raise InputError(
            f"these files cannot be told {key} {show(wanted[key])}: it stays {show(now.get(key))} there; "
            "change it by hand."
        )
    raise InputError(_cannot_say(tool, wanted, now, model))


def _longer(old: Value, new: Value) -> Value:
    kept = [*old] if isinstance(old, list | tuple) else []
    return [*kept, *(value for value in new if value not in kept)] if isinstance(new, list) else new


def _pruned(
    tool: Tool,
    written: dict[str, Value],
    wanted: Values,
    model: Model | None,
    given: Values,
) -> dict[str, Value]:
    """Without what was written on the way and changes nothing: of a part that is new, switches that are off alone."""
    known = {key.partition(".")[0] for key in given}
    needed = NEEDED | writer_of(tool.name).needed
    for key, value in [*written.items()]:
        is_new = key.partition(".")[0] not in known
        is_needed = key in needed and (value is not False or key in given)
        if given.get(key) == value or is_needed or (is_new and not _is_idle(key, value)):
            continue
        fewer = {other: kept for other, kept in written.items() if other != key}
        if key in given:
            fewer[key] = given[key]
        now = said(tool, fewer, model)
        if all(now.get(our) == held for our, held in wanted.items()):
            written = fewer
    return written


def _is_idle(key: str, value: Value) -> bool:
    return value is False or key.startswith("call.")


def said(tool: Tool, written: Values, model: Model | None) -> dict[str, Value]:
    """What the tool makes of its keys, as far as a config can say it."""
    entries = {key: Entry(key, value) for key, value in written.items()}
    return sayable(effective(tool, entries, model=model).values, tool.name)


def _ways(tool: Tool, key: str, wanted: Values, parts: Set[str]) -> Iterator[dict[str, Value]]:
    """A key of ours by each row that can write it in these parts, the last row first; others of a row as they are."""
    writer = writer_of(tool.name)
    shares = only_writes(SHARED, writer.sharing)
    for rule in reversed((*writer.rows, *tool.rules, shares)):
        if key in rule.ours and rule.write is not None:
            ours = {one: wanted.get(one, DEFAULTS.get(one)) for one in rule.ours}
            found = dict(_flat(rule.write(ours)))
            if found and all(their.partition(".")[0] in parts for their in found):
                yield found


def _flat(values: Values, before: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        elif value is not None:
            yield f"{before}{key}", value


def _cannot_say(tool: Tool, wanted: Values, now: Values, model: Model | None) -> str:
    wrong = [key for key in wanted if now.get(key) != wanted[key]]
    key = "objective" if "objective" in wrong else wrong[0]  # on which others depend
    origin = effective(tool, model=model).origins.get(key)
    because = f" ({origin.rule.says})" if origin is not None and origin.rule.says else ""
    return (
        f"{tool.label} has no word for {key} {show(wanted[key])}: there it is {show(now.get(key))}{because}; "
        "change it, or take another tool."
    )

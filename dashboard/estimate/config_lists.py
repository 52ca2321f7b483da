"""How each key of the visitor's own config was read, in four lists, and the tool's defaults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dashboard.words import markup
from estimator import Fate, Imported, KeyRead, SetByTool

MOST_SHOWN = 40
"""Maximum characters of a value in a table. Our choice."""


def title(found: Imported, label: str) -> str:
    """The config's tool, and the number of keys in each list.

    >>> from estimator import read_files
    >>> title(read_files({"a command": "trl sft --max_length 512 --seed 1"}), "TRL")
    'Your config, read as TRL ... runs it: 2 keys taken over, 1 without effect, 0 not modelled yet, 0 unknown'
    """
    counts = {fate: len(found.of(fate)) for fate in Fate}
    keys = "key" if counts[Fate.TAKEN] == 1 else "keys"
    return (
        f"Your config, read as {label} {found.version} runs it: {counts[Fate.TAKEN]} {keys} taken over, "
        f"{counts[Fate.NO_EFFECT]} without effect, {counts[Fate.NOT_MODELLED]} not modelled yet, "
        f"{counts[Fate.UNKNOWN]} unknown"
    )


def warnings(found: Imported, problems: Sequence[str]) -> tuple[str, ...]:
    """Warnings: contradictions, what is not told or guessed, missing files, and settings that the page cannot show."""
    said = (*found.contradictions, *found.asked.values(), *found.guesses, *found.notes, *problems)
    return tuple(dict.fromkeys(said))


def lists_html(found: Imported) -> str:
    """The lists as collapsible tables; those that need attention are open."""
    several = len(found.texts) > 1
    tool = f"{len(found.set_by_tool)} keys that the tool sets without being asked"
    pieces = [
        _list(
            "Changes memory or time, and is not modelled yet",
            found.of(Fate.NOT_MODELLED),
            several,
        ),
        _list("Unknown", found.of(Fate.UNKNOWN), several),
        markup.details("config by tool", tool, _by_tool(found.set_by_tool)),
        _folded("config taken", "Taken over", found.of(Fate.TAKEN), several),
        _folded(
            "config without effect",
            "No effect on memory, time or cost",
            found.of(Fate.NO_EFFECT),
            several,
        ),
    ]
    return "".join(pieces)


def _list(heading: str, keys: Sequence[KeyRead], several: bool) -> str:
    if not keys:
        return ""
    return f'<p class="hr-note"><b>{escape(heading)}</b></p>{_table(keys, several)}'


def _folded(key: str, heading: str, keys: Sequence[KeyRead], several: bool) -> str:
    return markup.details(key, f"{heading}: {len(keys)}", _table(keys, several)) if keys else ""


def _table(keys: Iterable[KeyRead], several: bool) -> str:
    return _rows((key.key, key.value, _said(key), _where(key, several)) for key in keys)


def _rows(rows: Iterable[tuple[str, object, str, str]]) -> str:
    """Table rows: key, value, note, and place in the file."""
    cells = "".join(
        f'<tr><td class="hr-name-cell"><code>{escape(key)}</code></td><td><code>{escape(_shown(value))}</code></td>'
        f'<td class="hr-what">{escape(said)} ({escape(where)})</td></tr>'
        for key, value, said, where in rows
    )
    return f'<div class="hr-scroll"><table class="hr-table">{cells}</table></div>'


def _said(key: KeyRead) -> str:
    if key.fate is Fate.TAKEN:
        same = [one for one in key.ours if one != key.key]
        return f"as {', '.join(same)}" if same else ""
    if key.direction is not None and key.fate is Fate.NOT_MODELLED:
        return f"{key.says} Likely {key.direction} memory."
    return key.says


def _where(key: KeyRead, several: bool) -> str:
    return f"{key.file}, line {key.line}" if several else f"line {key.line}"


def _shown(value: object) -> str:
    match value:
        case None | True | False:
            text = {None: "null", True: "true", False: "false"}[value]
        case _:
            text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def _by_tool(keys: Iterable[SetByTool]) -> str:
    return _rows((key.key, key.value, key.says, key.source) for key in keys)

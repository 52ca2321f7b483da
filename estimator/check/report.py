"""Results of checked runs, as text for a terminal and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from estimator.answer.overflow import runs_out
from estimator.check.judged import Judged
from estimator.contract.setups import plain_keys, write_fields
from estimator.contract.text import verdict
from estimator.contract.units import amount, gib
from estimator.values.results import Estimate
from estimator.values.specs import Verdict

TIGHT = "Tight: between the low end and the high end of what it needs; it may run out of memory, and counts as 1."
WIDEST_FILE, WIDEST_CHANGE = 48, 70
"""Width of a table column, in characters: ours."""


def one(of: Judged, diff: str = "") -> str:
    """One run: the verdict, where it runs out, and the change, as a diff of its own files if possible."""
    if of.estimate is None:
        named = of.problem.startswith(of.asked.files[0])
        return of.problem if named else f"{of.asked.name}: {of.problem}"
    said = [verdict(of.estimate), *of.asked.guesses, runs_out(of.estimate, amount)]
    lines = [f"{of.asked.name}: {' '.join(filter(None, said))}", *of.asked.notes]
    if of.change is not None:
        lines.append(f"What mends it: {of.change.text} Needs {gib(of.change.need_high_bytes)} GiB.")
        keys = plain_keys(of.change.keys)
        lines += diff.splitlines() or [f"    {key}: {_word(value)}" for key, value in keys.items()]
    elif of.status:
        lines.append("No change on this GPU mends it; a larger GPU or more of them may.")
    if of.estimate.verdict is Verdict.TIGHT:
        lines.append(TIGHT)
    return "\n".join(lines)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def table(runs: Sequence[Judged]) -> str:
    """Several runs: one line each, then a summary."""
    rows = [("file", "needs, GiB", "verdict", "what mends it"), *map(_row, runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    title, *body = (line.rstrip() for line in lines)
    guesses = [
        f"{run.asked.name}: {' '.join(run.asked.guesses)}" for run in runs if run.asked.guesses
    ]
    return "\n".join([title, "-" * len(title), *body, "", summary(runs), *guesses])


def _row(of: Judged) -> tuple[str, str, str, str]:
    name = of.asked.name
    name = name if len(name) <= WIDEST_FILE else f"…{name[1 - WIDEST_FILE :]}"
    if of.estimate is None:
        return name, "-", "no estimate", _cut(of.problem)
    needs = f"{gib(of.estimate.need_low_bytes)} to {gib(of.estimate.need_high_bytes)}"
    change = "" if of.status == 0 else of.change.title if of.change else "no change on this GPU"
    return name, needs, _said(of.estimate), _cut(change)


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST_CHANGE else f"{text[: WIDEST_CHANGE - 1]}…"


def _said(answer: Estimate) -> str:
    return str(answer.verdict.value).replace("_", " ") if answer.verdict else "-"


def summary(runs: Sequence[Judged]) -> str:
    """How many runs fit, and on which GPU."""
    counts = Counter("no estimate" if run.estimate is None else _said(run.estimate) for run in runs)
    order = ("fits", "tight", "does not fit", "no estimate")
    words = {"fits": "fit", "does not fit": "do not fit", "no estimate": "without an estimate"}
    parts = [f"{counts[word]} {words.get(word, word)}" for word in order if counts[word]]
    cards = {run.estimate.gpu.name for run in runs if run.estimate and run.estimate.gpu}
    where = f" on {cards.pop()}" if len(cards) == 1 else ""
    tight = f"\n{TIGHT}" if counts["tight"] else ""
    return f"Of {len(runs)} runs{where}: {', '.join(parts)}.{tight}"


def as_json(of: Judged) -> dict[str, object]:
    """A run as one object: memory in bytes; ``change`` holds the keys to set, null if none is needed or enough."""
    said: dict[str, object] = {"files": list(of.asked.files), "status": of.status}
    if of.estimate is None:
        return {
            **said,
            "error": of.problem,
            "guesses": list(of.asked.guesses),
            "notes": list(of.asked.notes),
        }
    answer = of.estimate
    return {
        **said,
        "verdict": answer.verdict.value if answer.verdict else None,
        "need_low_bytes": answer.need_low_bytes,
        "need_high_bytes": answer.need_high_bytes,
        "capacity_bytes": answer.gpu.memory_bytes if answer.gpu else None,
        "peak_bytes": answer.peak.bytes,
        "setup": write_fields(answer.model, answer.gpu, answer.setup),
        "change": None
        if of.change is None
        else {
            "keys": plain_keys(of.change.keys),
            "text": of.change.text,
            "need_high_bytes": of.change.need_high_bytes,
        },
        "guesses": list(of.asked.guesses),
        "notes": list(of.asked.notes),
    }

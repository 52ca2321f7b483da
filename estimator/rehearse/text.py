"""A rehearsal in words, for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from estimator.check.judged import NOT_READ
from estimator.contract.text import amount, gib
from estimator.rehearse.beside import Beside
from estimator.rehearse.rehearsed import (
    LOADING,
    ORDER,
    CodeLine,
    FailedAllocation,
    Rehearsed,
    status_of,
)
from estimator.values.results import Estimate
from estimator.values.specs import Gpu

AGREES = 0.01
"""Estimate and rehearsal agree within this share: our choice."""


def describe(run: Rehearsed, ranks: int, gpu: Gpu, usable: int, estimated: Beside) -> str:
    """The verdict, the phases beside the estimate's, and what was done otherwise than on a real card."""
    parts = [verdict(run, gpu, usable), _phases(run, estimated), compared(run, estimated)]
    if ranks > 1:
        parts.append(f"Of {ranks} processes this is rank {run.rank}, which has the most.")
    if run.failed and run.ran_out is None:
        parts.append(
            f"Memory ran out {len(run.failed)} times, which the script caught: {_where(run.failed[0])}."
        )
    if run.notes:
        parts.append("Not as on a real card:\n" + "\n".join(f"- {it}" for it in run.notes))
    return "\n\n".join(filter(None, parts))


def verdict(run: Rehearsed, gpu: Gpu, usable: int) -> str:
    """Whether it fits, and where memory ran out."""
    of = f"of {gib(usable)} GiB that {gpu.name} leaves to PyTorch"
    if (failed := run.ran_out) is not None:
        what = "Cannot say: without torch.compile" if run.is_compiled else "Does not fit:"
        return (
            f"{what} {_where(failed)} asks for {amount(failed.asked)} with {gib(failed.allocated)} GiB "
            f"allocated and {gib(failed.reserved)} GiB reserved, {of}."
        )
    if run.exception:
        return f"Cannot say: the script stopped after {_steps(run.steps)} with {run.exception}"
    if not run.steps:
        return "Cannot say: the script ended by itself without an optimizer step."
    peak = f"{gib(run.allocated)} GiB allocated and {gib(run.reserved)} GiB reserved at the peak"
    return f"Fits: {_steps(run.steps)} went through, with {peak}, {of}."


def _steps(number: int) -> str:
    return f"{number} step{'s' * (number != 1)}"


def _where(failed: FailedAllocation) -> str:
    """The phase, the line and the module of an allocation."""
    when = failed.phase if failed.phase == LOADING else f"step {failed.step}'s {failed.phase}"
    lines = [_line(it) for it in (failed.line, failed.library_line) if it is not None]
    where = ", in ".join(lines)
    module = f" (module {failed.module})" * bool(failed.module)
    return f"{when} at {where}{module}" if where else when


def _line(line: CodeLine) -> str:
    shown = line.file.split("site-packages/")[-1]
    return f"{shown}:{line.line} `{line.text}`"


def _phases(run: Rehearsed, estimated: Beside) -> str:
    """GiB allocated at the peak of each phase: in the first step, in the last, and in the estimate."""
    last = run.steps
    steps = {"loading": run.peaks(0), "step 1": run.peaks(1)}
    if last > 1:
        steps[f"step {last}"] = run.peaks(last)
    if run.ran_out is not None and run.ran_out.step > 1:
        steps[f"step {run.ran_out.step}"] = run.peaks(run.ran_out.step)
    columns = {name: peaks for name, peaks in steps.items() if name != "loading" and peaks}
    if estimated.phases:
        columns["estimate"] = estimated.phases
    first = next(iter(columns), None)
    if first is not None and LOADING in steps["loading"]:
        columns[first] = {**steps["loading"], **columns[first]}
    rows = [name for name in ORDER if any(name in it for it in columns.values())]
    if not rows:
        return ""
    lines = [f"{'GiB at the peak of':<22}" + "".join(f"{it:>12}" for it in columns)]
    for name in rows:
        cells = (gib(it[name]) if name in it else "-" for it in columns.values())
        lines.append(f"{name:<22}" + "".join(f"{it:>12}" for it in cells))
    return "\n".join(lines)


def compared(run: Rehearsed, estimated: Beside) -> str:
    """The estimate's peak beside the rehearsal's, in a sentence."""
    if estimated.estimate is None or estimated.allocated is None:
        return (
            f"No estimate beside it: {estimated.problem.rstrip('.')}." if estimated.problem else ""
        )
    said = f"The estimate of this Trainer is {gib(estimated.allocated)} GiB allocated"
    if run.ran_out is not None or not run.steps:
        return f"{said}."
    error = estimated.allocated / run.allocated - 1
    if abs(error) <= AGREES:
        return f"{said}, {100 * error:+.1f} %: they agree."
    mine, theirs = run.peaks(run.steps), estimated.phases
    apart = {name: mine[name] - theirs[name] for name in ORDER if name in mine and name in theirs}
    name = max(apart, key=lambda it: abs(apart[it]), default="")
    most = f"; most in the phase {name}, {gib(abs(apart[name]))} GiB" if name else ""
    return f"{said}, {100 * error:+.1f} %{most}."


def as_json(run: Rehearsed, ranks: int, gpu: Gpu, usable: int, estimated: Beside) -> dict[str, Any]:
    """The same as one object; sizes in bytes."""
    failed = run.ran_out
    return {
        "fits": (None if status_of(run) == NOT_READ else failed is None),
        "sentence": verdict(run, gpu, usable),
        "gpu": gpu.name,
        "usable_bytes": usable,
        "steps": run.steps,
        "rank": run.rank,
        "processes": ranks,
        "allocated_bytes": run.allocated,
        "reserved_bytes": run.reserved,
        "out_of_memory": None if failed is None else asdict(failed),
        "caught": [asdict(it) for it in run.failed] if failed is None else [],
        "exception": run.exception or None,
        "phases": [asdict(it) for it in run.phases],
        "versions": dict(run.versions),
        "notes": list(run.notes),
        "setup": None if run.keys is None else dict(run.keys),
        "estimate": _estimate(estimated.estimate, estimated),
        "estimate_problem": estimated.problem or None,
    }


def _estimate(found: Estimate | None, estimated: Beside) -> Mapping[str, Any] | None:
    if found is None:
        return None
    return {
        "allocated_bytes": estimated.allocated,
        "need_low_bytes": found.need_low_bytes,
        "need_high_bytes": found.need_high_bytes,
        "phases": estimated.phases,
    }

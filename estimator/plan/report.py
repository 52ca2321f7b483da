"""A plan as text for a terminal, as JSON for programs, and as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from estimator.plan import words
from estimator.plan.advice import Advice
from estimator.plan.reading import question_object
from estimator.plan.recipes import Candidates
from estimator.plan.teams import Timetable
from estimator.values.csv_text import csv_text

MOST_WRITTEN = 1000
"""Points of the front in JSON and CSV at most: ours."""
COLUMNS = (
    "model",
    "gpu",
    "num_gpus",
    "method",
    "strategy",
    "lora_r",
    "micro_batch",
    "accumulation",
    "gradient_checkpointing",
    "need_low_bytes",
    "need_high_bytes",
    "capacity_bytes",
    "headroom",
    "hours_low",
    "hours_high",
    "dollars_low",
    "dollars_high",
    "setup",
)
"""Of the CSV."""
TIMETABLE_COLUMNS = (
    "job",
    "gpu",
    "num_gpus",
    "start_hours",
    "end_hours",
    "late_hours",
    "dollars",
    "setup",
)
"""Of a team's CSV; hours from the beginning of the schedule, the end and the dollars by the slow end of the run."""
LATE = 0.005
"""Hours that count as late: ours, what two digits show."""


def listed(answer: Advice) -> list[int]:
    """The places that are listed by number: the stairs and the recommended one, cheapest first."""
    places = {stair.place for stair in answer.stairs}
    if answer.recommended is not None:
        places.add(answer.recommended)
    found = answer.candidates
    return sorted(
        places, key=lambda place: (found.middle_dollars[place], found.middle_hours[place])
    )


def text(answer: Advice) -> str:
    """The recommendation, the points of the front, what the next dollar buys, near misses and notes."""
    found = answer.candidates
    parts = ["\n".join([answer.sentence, *answer.reasons])]
    places = listed(answer)
    if places:
        rows: list[tuple[str, ...]] = [("", "time", "dollars", "free", "setup")]
        rows += [_row(answer, number, place) for number, place in enumerate(places, 1)]
        title = f"The front, {len(answer.front):,} points of {len(found):,} setups, in steps that can be told apart:"
        parts.append("\n".join([title, *_aligned(rows)]))
    steps = [stair.text for stair in answer.stairs[1:]]
    misses = [miss.text for miss in answer.misses]
    lists = {"What the next dollar buys": steps, "Near misses": misses, "Notes": answer.notes}
    parts += ["\n- ".join([f"{title}:", *lines]) for title, lines in lists.items() if lines]
    return "\n\n".join(parts)


def _row(answer: Advice, number: int, place: int) -> tuple[str, ...]:
    found = answer.candidates
    mark = "*" if place == answer.recommended else " "
    return (
        f"{mark}{number}",
        words.span(found.hours_of(place)),
        words.span(found.dollars_of(place), "$"),
        f"{100 * words.share_free(found, place):.0f} %",
        words.title(found, place),
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


def as_json(answer: Advice) -> dict[str, object]:
    """The whole answer as one object: bytes, hours, US dollars; each point with the keys of its setup."""
    found = answer.candidates
    best = answer.recommended
    return {
        "question": question_object(answer.question),
        "setups": len(found),
        "fit": int((found.fits & answer.kept).sum()),
        "meet": int(answer.meets.sum()),
        "may_meet": int(answer.may_meet.sum()),
        "sentence": answer.sentence,
        "reasons": list(answer.reasons),
        "recommended": None if best is None else point(found, best),
        "is_sure": answer.is_sure,
        "front": [point(found, place) for place in answer.front[:MOST_WRITTEN].tolist()],
        "stairs": [
            {
                "point": point(found, stair.place),
                "dollars_more": stair.dollars_more,
                "hours_less": stair.hours_less,
                "is_surely_faster": stair.is_surely_faster,
                "is_surely_dearer": stair.is_surely_dearer,
                "text": stair.text,
            }
            for stair in answer.stairs
        ],
        "misses": [
            {
                "point": point(found, miss.place),
                "bytes_over": miss.bytes_over,
                "hours_over": _number(miss.hours_over),
                "dollars_over": _number(miss.dollars_over),
                "may_do": miss.may_do,
                "text": miss.text,
            }
            for miss in answer.misses
        ],
        "notes": list(answer.notes),
    }


def point(found: Candidates, place: int) -> dict[str, object]:
    """One setup: its numbers and its keys."""
    return {
        "title": words.title(found, place),
        "need_low_bytes": int(found.low_bytes[place]),
        "need_high_bytes": int(found.high_bytes[place]),
        "capacity_bytes": int(found.capacity_bytes[place]),
        "headroom": words.share_free(found, place),
        "hours_low": _number(found.hours.low[place]),
        "hours_high": _number(found.hours.high[place]),
        "dollars_low": _number(found.dollars.low[place]),
        "dollars_high": _number(found.dollars.high[place]),
        "setup": found.keys(place),
    }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def plan_csv(found: Candidates, places: Iterable[int]) -> str:
    """Some candidates as CSV, one a line, with ``COLUMNS``."""
    return csv_text([COLUMNS, *(_cells(found, place) for place in places)])


def _cells(found: Candidates, place: int) -> tuple[object, ...]:
    said = found.setup(place)
    return (
        found.of(place).model.hub_id,
        found.offer(place).name,
        said.mesh.num_gpus,
        said.adapters.method.value,
        said.mesh.strategy.value,
        said.adapters.lora_r if said.adapters.uses_adapters else "",
        said.batch.per_device_train_batch_size,
        said.batch.gradient_accumulation_steps,
        str(said.computation.gradient_checkpointing).lower(),
        found.low_bytes[place],
        found.high_bytes[place],
        found.capacity_bytes[place],
        f"{words.share_free(found, place):.4f}",
        *(
            "" if np.isnan(ends[place]) else f"{ends[place]:.4g}"
            for ends in (*found.hours, *found.dollars)
        ),
        words.title(found, place),
    )


def timetable_text(found: Timetable, answers: Mapping[str, Advice]) -> str:
    """Which job runs when and where, what it costs, and what is late or left out."""
    rows: list[tuple[str, ...]] = [("job", "from", "to", "late", "dollars", "setup")]
    titles = timetable_titles(found, answers)
    for run in found.assignments:
        late = f"{run.late_hours:.1f} h" if run.late_hours else "-"
        begin, end = f"{run.start_hours:.1f} h", f"{run.end_hours:.1f} h"
        price = words.usd(run.option.dollars)
        rows.append((run.job.name, begin, end, late, price, titles[run.job.name]))
    parts = ["\n".join(_aligned(rows))] if found.assignments else []
    return "\n".join([*parts, *timetable_summary(found)])


def timetable_titles(found: Timetable, answers: Mapping[str, Advice]) -> dict[str, str]:
    """The setup of each job that runs, in a line."""
    return {
        run.job.name: words.title(answers[run.job.name].candidates, run.option.place)
        for run in found.assignments
    }


def timetable_summary(found: Timetable) -> list[str]:
    """What runs and what it costs, in a sentence; then each job that is late or left out, and by how much or why."""
    runs, jobs = len(found.assignments), len(found.assignments) + len(found.left_out)
    if not runs:
        said = ["No job runs."]
        return [*said, *(f"{name} does not run: {why}" for name, why in found.left_out.items())]
    if runs == jobs:
        count = f"All {jobs} jobs run" if jobs > 1 else "The job runs"
    else:
        count = f"{runs} of {jobs} jobs run{'s' * (runs == 1)}"
    late = [run for run in found.assignments if run.late_hours > LATE]
    due = [run for run in found.assignments if run.job.deadline_hours is not None]
    if late:
        total = words.duration(found.late_hours)
        times = f", {f'{len(late)} ' * (runs > 1)}late by {total}{' in all' * (len(late) > 1)}"
    else:
        times = f",{' each' * (runs > 1)} in time" if due else ""
    price = f"for {words.usd(found.dollars)} at most" if found.dollars else "without rent"
    said = [f"{count}{times}, {price}."]
    said += [f"{run.job.name} ends {words.duration(run.late_hours)} late." for run in late]
    said += [f"{name} does not run: {why}" for name, why in found.left_out.items()]
    if not found.is_best:
        said.append("The solver ran out of time; a better schedule may exist.")
    return said


def timetable_csv(found: Timetable, titles: Mapping[str, str]) -> str:
    """The schedule as CSV, one job a line, with ``TIMETABLE_COLUMNS``; a job that does not run says why.

    ``titles``: the setup of each job that runs.
    """
    lines: list[tuple[object, ...]] = [TIMETABLE_COLUMNS]
    for run in found.assignments:
        hours = (run.start_hours, run.end_hours, run.late_hours, run.option.dollars)
        lines.append(
            (
                run.job.name,
                run.option.pool,
                run.option.num_gpus,
                *(f"{value:.4g}" for value in hours),
                titles[run.job.name],
            )
        )
    lines += [(name, "", "", "", "", "", "", why) for name, why in found.left_out.items()]
    return csv_text(lines)


def timetable_json(found: Timetable, answers: Mapping[str, Advice]) -> dict[str, object]:
    """The same as one object: hours from the beginning of the schedule, US dollars."""
    return {
        "runs": [
            {
                "job": run.job.name,
                "pool": run.option.pool,
                "num_gpus": run.option.num_gpus,
                "start_hours": run.start_hours,
                "end_hours": run.end_hours,
                "late_hours": run.late_hours,
                "dollars": run.option.dollars,
                "point": point(answers[run.job.name].candidates, run.option.place),
            }
            for run in found.assignments
        ],
        "left_out": dict(found.left_out),
        "dollars": found.dollars,
        "late_hours": found.late_hours,
        "is_best": found.is_best,
    }

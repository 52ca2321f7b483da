"""A team's schedule as HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from urllib.parse import urlencode

from dashboard.plan import timeline_figure, words
from dashboard.plan.team_asked import TeamAnswer
from dashboard.words import markup
from estimator import TeamQuestion, Verdict, plan_words, timetable_summary


def panel_html(found: TeamAnswer, *, is_current: bool = True) -> str:
    """What runs, what it costs, and what is late or left out, in a verdict's colour; as ``words.panel_html``."""
    table = found.timetable
    late = any(assignment.late_hours for assignment in table.assignments)
    kind = Verdict.DOES_NOT_FIT if table.left_out else Verdict.TIGHT if late else Verdict.FITS
    first, *rest = timetable_summary(table)
    if not rest:
        rest = [ends(found)]
    panel = words.verdict_html(kind if is_current else None, first, "", rest)
    return f'<div class="hr-team">{panel}</div>'


def ends(found: TeamAnswer) -> str:
    """When the last job ends."""
    last = max(found.timetable.assignments, key=lambda one: one.end_hours)
    return f"The last to end is {last.job.name}: {timeline_figure.clock(last.end_hours)}."


def caption(team: TeamQuestion) -> str:
    """How to read the timeline."""
    return (
        "One lane is one GPU. Times are of the slow end of each run, so a run may end sooner. "
        f"A job can start every {_hours(team.slot_hours)} and holds its GPUs until the next such time. "
        "Dotted: a deadline. Red: beyond it."
    )


def _hours(number: float) -> str:
    return "hour" if number == 1 else f"{number:.3g} hours"


def legend_html(found: TeamAnswer) -> str:
    """The colour of each job that runs."""
    names = [assignment.job.name for assignment in found.timetable.assignments]
    said = "".join(
        f'<span><i class="hr-swatch" style="background:{timeline_figure.part_of(name, names).colour}"></i>'
        f"{escape(name)}</span>"
        for name in names
    )
    return f'<p class="hr-legend">{said}</p>'


def table_html(found: TeamAnswer) -> str:
    """The jobs that run, in the order of their starts, each with a link to its setup; then those that do not."""
    head = ("Job", "From", "To", "On", "Dollars", "Deadline", "Setup")
    cells = "".join(f'<th scope="col">{one}</th>' for one in head)
    body = "".join(_row(found, name) for name in found.titles)
    body += "".join(
        f'<tr><th scope="row">{escape(name)}</th><td colspan="6">Does not run: {escape(why)}</td></tr>'
        for name, why in found.timetable.left_out.items()
    )
    return (
        '<div class="hr-scroll" tabindex="0" role="region" aria-label="The jobs as a table">'
        f'<table class="hr-table hr-proof hr-jobs"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(found: TeamAnswer, name: str) -> str:
    bar = next(
        assignment for assignment in found.timetable.assignments if assignment.job.name == name
    )
    due = bar.job.deadline_hours
    deadline = "none" if due is None else timeline_figure.clock(due)
    if bar.late_hours:
        deadline += f", {plan_words.duration(bar.late_hours)} late"
    title = found.titles[name].partition(", ")[2]
    cells = (
        timeline_figure.clock(bar.start_hours),
        timeline_figure.clock(bar.end_hours),
        f"{timeline_figure.numbered(found.gpus[name])} of {bar.option.pool}",
        plan_words.usd(bar.option.dollars) if bar.option.dollars else "no rent",
        deadline,
    )
    said = "".join(f"<td>{markup.whole_prices(escape(cell))}</td>" for cell in cells)
    link = f'<a href="./?{escape(query(found.keys[name]))}">{escape(title)}</a>'
    return f'<tr><th scope="row">{escape(name)}</th>{said}<td>{link}</td></tr>'


def query(keys: Mapping[str, object]) -> str:
    """The contract's keys as the query of a URL."""
    return urlencode(
        [
            (key, one if isinstance(one, str) else json.dumps(one))
            for key, value in keys.items()
            for one in (value if isinstance(value, list) else [value])
        ]
    )

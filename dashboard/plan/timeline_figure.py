"""A team's schedule as a timeline: a band for each pool, a lane for each GPU, a bar for each job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from dashboard import theme
from dashboard.figures.memory_bars import Figure
from estimator import Assignment, Component, TeamQuestion, Timetable, plan_words

LANE, BAND, FOOT = 46, 34, 56
"""Pixels of a lane, of a band's title and of the axis. Our choice: letters of 20 pixels fit into a lane."""
LETTERS, LEAST_LETTERS = 20, 14
"""Pixels of a name in a bar; one that would have to be smaller is only in the legend. Our choice."""
MOST_LANES = 440
"""Pixels of all lanes at most; with more GPUs a lane is thinner."""
STEPS = (1 / 60, 1 / 12, 0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 168)
"""Hours between two ticks."""
MOST_TICKS = 8
STRIP = 0.24
"""Height in lanes of what is beyond a deadline. Our choice: below the bar's name."""
FAR = 1.3
"""Times the last end, beyond which a deadline is not drawn. Our choice."""
NAME = 0.15
"""Share of the axis that a name beside a deadline takes. Our choice."""
HOURS_OF_A_DAY = 24
COLOURS = tuple(
    theme.COMPONENTS[state]
    for state in (
        Component.WEIGHTS,
        Component.OPTIMIZER_STATES,
        Component.GRADIENTS,
        Component.ACTIVATIONS,
        Component.COMMUNICATION,
        Component.TEMPORARIES,
    )
)
"""Of the jobs, in turn; the red of the logits is for what is late."""


class JobBar(NamedTuple):
    """Neighbouring GPUs that a job holds."""

    job: Assignment
    first: int
    """The first lane, over all pools."""
    lanes: int


def bars(
    found: Timetable, pools: Mapping[str, int], gpus: Mapping[str, tuple[int, ...]]
) -> Iterator[JobBar]:
    """The bars of each job: one for each run of neighbouring GPUs.

    ``gpus``: by job, the GPUs of its pool.
    """
    names = list(pools)
    for assignment in found.assignments:
        before = sum(pools[name] for name in names[: names.index(assignment.option.pool)])
        own = gpus[assignment.job.name]
        first = own[0]
        for left, right in zip(own, [*own[1:], None], strict=True):
            if right != left + 1:
                yield JobBar(assignment, before + first, left - first + 1)
                first = -1 if right is None else right


def figure(
    found: Timetable,
    team: TeamQuestion,
    gpus: Mapping[str, tuple[int, ...]],
    titles: Mapping[str, str],
    *,
    dark: bool = False,
) -> Figure:
    """Jobs over time on each GPU, what is late in red, deadlines as dashed lines."""
    look = theme.DARK if dark else theme.LIGHT
    total = sum(team.pools.values())
    lane = min(LANE, MOST_LANES / total)
    band = BAND / lane  # a band's title in lanes
    drawn = list(bars(found, team.pools, gpus))
    tops = _tops(team.pools, band)
    end = max(
        (assignment.end_hours for assignment in found.assignments), default=team.horizon_hours
    )
    due = [
        assignment.job.deadline_hours
        for assignment in found.assignments
        if assignment.job.deadline_hours
    ]
    end = max([end, *(one for one in due if one <= FAR * end)]) * 1.02
    names = [assignment.job.name for assignment in found.assignments]
    return {
        "data": [_jobs(drawn, tops, names, titles, gpus), _late(drawn, tops, look)],
        "layout": {
            "height": round(lane * total + BAND * len(team.pools) + FOOT),
            "margin": {"l": 20, "r": 36, "t": 4, "b": FOOT - 8},
            "showlegend": False,
            "barmode": "overlay",
            "uniformtext": {"mode": "hide", "minsize": LEAST_LETTERS},
            "bargap": 0,
            "dragmode": False,
            "hovermode": "closest",
            "xaxis": {
                "range": [0, end],
                "fixedrange": True,
                "tickvals": ticks(end),
                "ticktext": [clock(tick, end) for tick in ticks(end)],
                "tickfont": {"size": 16, "color": look.ink},
                "ticklabeloverflow": "allow",
                "gridcolor": theme.GRID,
                "zeroline": False,
            },
            "yaxis": {
                "range": [total + band * len(team.pools), 0],
                "fixedrange": True,
                "visible": False,
            },
            "shapes": [
                *_lines(team.pools, tops),
                *(_deadline(bar, tops, look) for bar in drawn if bar.job.job.deadline_hours),
            ],
            "annotations": [*_titles(team, tops, look), *_due(found, drawn, tops, end, look)],
        },
    }


def _tops(pools: Mapping[str, int], band: float) -> list[float]:
    """Upper edge of each lane, below the titles of the bands."""
    found: list[float] = []
    at = 0.0
    for count in pools.values():
        at += band
        found += [at + number for number in range(count)]
        at += count
    return found


def _jobs(
    drawn: Sequence[JobBar],
    tops: Sequence[float],
    names: Sequence[str],
    titles: Mapping[str, str],
    gpus: Mapping[str, tuple[int, ...]],
) -> Figure:
    parts = [part_of(bar.job.job.name, names) for bar in drawn]
    return {
        "type": "bar",
        "orientation": "h",
        "name": "Jobs",
        "base": [bar.job.start_hours for bar in drawn],
        "x": [bar.job.option.hours for bar in drawn],
        "y": [tops[one.first] + one.lanes / 2 for one in drawn],
        "width": [one.lanes * 0.92 for one in drawn],
        "text": [_label(one) for one in drawn],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"size": LETTERS, "color": [part.ink for part in parts]},
        "hovertext": [_hover(bar.job, titles, gpus) for bar in drawn],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": [part.colour for part in parts]},
    }


def part_of(name: str, names: Sequence[str]) -> theme.DrawnPart:
    """Colours of a job among all that run."""
    return COLOURS[names.index(name) % len(COLOURS)]


def _label(bar: JobBar) -> str:
    """The job's name; below it by how long it is late, where there is room for two lines."""
    late = _lateness(bar.job)
    if bar.lanes > 1:
        late = late.replace(", ", "<br>", 1)
    return f"<b>{escape(bar.job.job.name)}</b>{late}"


def _lateness(assignment: Assignment) -> str:
    return f", {plan_words.duration(assignment.late_hours)} late" if assignment.late_hours else ""


def _hover(
    assignment: Assignment, titles: Mapping[str, str], gpus: Mapping[str, tuple[int, ...]]
) -> str:
    lines = (
        assignment.job.name,
        f"{clock(assignment.start_hours)} to {clock(assignment.end_hours)}{_lateness(assignment)}",
        f"{numbered(gpus[assignment.job.name])} of {assignment.option.pool}",
        titles[assignment.job.name],
    )
    return "<br>".join(map(escape, lines))


def _late(drawn: Sequence[JobBar], tops: Sequence[float], look: theme.Look) -> Figure:
    """What lies beyond the deadline: a red strip at the foot of the bar."""
    late = [bar for bar in drawn if bar.job.late_hours]
    begins = [max(bar.job.start_hours, bar.job.end_hours - bar.job.late_hours) for bar in late]
    return {
        "type": "bar",
        "orientation": "h",
        "name": "Beyond the deadline",
        "base": begins,
        "x": [bar.job.end_hours - begin for bar, begin in zip(late, begins, strict=True)],
        "y": [tops[one.first] + one.lanes - STRIP / 2 for one in late],
        "width": [STRIP] * len(late),
        "hoverinfo": "skip",
        "marker": {"color": look.capacity},
    }


def _deadline(bar: JobBar, tops: Sequence[float], look: theme.Look) -> Figure:
    """Across the lanes of a job in time; of a late one, whose bar it would cross, at its foot."""
    top = tops[bar.first] + (bar.lanes - 2 * STRIP if bar.job.late_hours else 0)
    return {
        "type": "line",
        "x0": bar.job.job.deadline_hours,
        "x1": bar.job.job.deadline_hours,
        "y0": top,
        "y1": tops[bar.first] + bar.lanes,
        "line": {"color": look.capacity, "width": 4, "dash": "dot"},
    }


def _due(
    found: Timetable, drawn: Sequence[JobBar], tops: Sequence[float], end: float, look: theme.Look
) -> list[Figure]:
    """The job's name beside its deadline, where there is room: to the right of it, else to the left."""
    said: list[Figure] = []
    for bar in drawn:
        due = bar.job.job.deadline_hours
        if due is None or bar.job.late_hours:
            continue
        room = NAME * end
        pool = [other for other in found.assignments if other.option.pool == bar.job.option.pool]
        sides = {"left": (due, due + room), "right": (due - room, due)}
        for anchor, (begin, until) in sides.items():
            taken = any(other.start_hours < until and other.end_hours > begin for other in pool)
            if taken or begin < 0 or until > end:
                continue
            said.append(
                {
                    "text": f" {escape(bar.job.job.name)} due ",
                    "x": due,
                    "xanchor": anchor,
                    "y": tops[bar.first] + bar.lanes / 2,
                    "yanchor": "middle",
                    "showarrow": False,
                    "font": {"size": 16, "color": look.ink},
                }
            )
            break
    return said


def _lines(pools: Mapping[str, int], tops: Sequence[float]) -> list[Figure]:
    """A line above each lane, and below the last of each band."""
    ends = [top + 1 for top in tops]
    return [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": at,
            "y1": at,
            "layer": "below",
            "line": {"color": theme.GRID, "width": 1},
        }
        for at in sorted({*tops, *ends})
    ]


def _titles(team: TeamQuestion, tops: Sequence[float], look: theme.Look) -> list[Figure]:
    first = 0
    found: list[Figure] = []
    for name, count in team.pools.items():
        found.append(
            {
                "text": f"<b>{count} × {escape(name)}</b>",
                "xref": "paper",
                "x": 0,
                "xanchor": "left",
                "y": tops[first],
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 17, "color": look.ink},
            }
        )
        first += count
    return found


def ticks(end: float) -> list[float]:
    """Round hours from 0 to an end.

    >>> ticks(20), ticks(100)
    ([0, 3, 6, 9, 12, 15, 18], [0, 24, 48, 72, 96])
    """
    step = _step(end)
    return [number * step for number in range(int(end / step) + 1)]


def _step(end: float) -> float:
    return next((step for step in STEPS if end / step <= MOST_TICKS), STEPS[-1])


def clock(hours: float, end: float = 0.0) -> str:
    """A time of the schedule: its day from 1, and the time of that day; the day alone on an axis of many.

    >>> clock(0), clock(27.5), clock(48, 168)
    ('day 1, 0:00', 'day 2, 3:30', 'day 3')
    """
    minutes = round(60 * hours)
    day, rest = minutes // (60 * HOURS_OF_A_DAY) + 1, minutes % (60 * HOURS_OF_A_DAY)
    if end and _step(end) % HOURS_OF_A_DAY == 0:
        return f"day {day}"
    time = f"{rest // 60}:{rest % 60:02d}"
    if end <= 0:
        return f"day {day}, {time}"
    return f"day {day}, {time}" if rest == 0 and day > 1 else time


def numbered(gpus: Sequence[int]) -> str:
    """GPUs by their numbers, from 1.

    >>> numbered((0, 1, 2)), numbered((3,)), numbered((0, 2))
    ('GPUs 1 to 3', 'GPU 4', 'GPUs 1, 3')
    """
    if len(gpus) == 1:
        return f"GPU {gpus[0] + 1}"
    if gpus[-1] - gpus[0] == len(gpus) - 1:
        return f"GPUs {gpus[0] + 1} to {gpus[-1] + 1}"
    return f"GPUs {', '.join(str(gpu + 1) for gpu in gpus)}"


def alt(found: Timetable, gpus: Mapping[str, tuple[int, ...]]) -> str:
    """The figure as text."""
    said = [
        f"{assignment.job.name} on {numbered(gpus[assignment.job.name])} of {assignment.option.pool}, "
        f"{clock(assignment.start_hours)} to {clock(assignment.end_hours)}{_lateness(assignment)}"
        for assignment in found.assignments
    ]
    return f"Timeline of {len(said)} jobs. {'; '.join(said)}."

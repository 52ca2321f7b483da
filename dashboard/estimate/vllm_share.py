"""vLLM's share of GPU memory: which shares fit, which hold all rows at once, and the resulting seconds of a step."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

from dashboard import theme
from dashboard.figures.memory_bars import Figure
from dashboard.words import units
from estimator import Estimate, Utilisation, UtilisationSearch, Verdict, vllm_shares


def of(answer: Estimate) -> UtilisationSearch:
    """Evaluates every share on the setup's GPU, which must be set."""
    assert answer.gpu is not None
    return vllm_shares(answer.model, answer.gpu, answer.setup)


def applies(answer: Estimate) -> bool:
    """Whether vLLM shares the training GPUs."""
    setup = answer.setup
    return (
        setup.task.objective.generates and setup.generation.is_colocated and answer.gpu is not None
    )


class Band(NamedTuple):
    """A range of neighbouring shares with the same outcome."""

    name: str
    colour: str
    first: float
    last: float


STARVED, TURNS, ALL, TIGHT, FULL = (
    "vLLM does not start",
    "Rows take turns",
    "All rows at once",
    "Tight",
    "Does not fit",
)
COLOURS = {
    STARVED: "#7F8A94",
    TURNS: "#C9B500",
    ALL: theme.VERDICTS[Verdict.FITS].colour,
    TIGHT: theme.VERDICTS[Verdict.TIGHT].colour,
    FULL: theme.VERDICTS[Verdict.DOES_NOT_FIT].colour,
}


def _kind(share: Utilisation, rows: int, largest: float) -> str:
    match share.verdict:
        case None:
            return STARVED if share.utilisation < largest or not largest else FULL
        case Verdict.DOES_NOT_FIT:
            return FULL
        case Verdict.TIGHT:
            return TIGHT
        case _ if not share.rows_low:
            return STARVED
        case _:
            return ALL if share.rows_low >= rows else TURNS


def bands(found: UtilisationSearch) -> list[Band]:
    """The shares in ascending order, split where the outcome changes."""
    largest = found.largest or 0.0
    step = found.shares[1].utilisation - found.shares[0].utilisation
    cut = []
    for name, alike in groupby(found.shares, lambda one: _kind(one, found.rows, largest)):
        run = [share.utilisation for share in alike]
        cut.append(Band(name, COLOURS[name], run[0] - step / 2, run[-1] + step / 2))
    return cut


AXIS = 2.5
"""End of the axis of seconds, as a multiple of the best share's slow end."""


def figure(found: UtilisationSearch, answer: Estimate, *, dark: bool = False) -> Figure:
    """Range of a step's seconds against the share, in front of the bands. A click chooses a share."""
    look = theme.DARK if dark else theme.LIGHT
    can_run = (Verdict.FITS, Verdict.TIGHT)
    timed = [share for share in found.shares if share.verdict in can_run]
    seconds = {share.utilisation: share.step_seconds for share in timed if share.step_seconds}
    top = AXIS * min((value.high for value in seconds.values()), default=1.0)
    line = {"width": 2.5, "color": look.ink}
    shown = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False}
    at = [*seconds]
    return {
        "data": [
            {**shown, "x": at, "y": [value.low for value in seconds.values()], "line": line},
            {
                **shown,
                "x": at,
                "y": [value.high for value in seconds.values()],
                "line": line,
                "fill": "tonexty",
                "fillcolor": theme.GRID,
            },
            {
                **shown,
                "mode": "markers",
                "x": [share.utilisation for share in found.shares],
                "y": [
                    min(top, share.step_seconds.high if share.step_seconds else 0.0)
                    for share in found.shares
                ],
                "marker": {"size": 14, "opacity": 0},
                "customdata": [share.utilisation for share in found.shares],
                "text": [_said(share, found.rows) for share in found.shares],
                "hoverinfo": "text",
                "hovertemplate": "%{text}<extra></extra>",
            },
        ],
        "layout": {
            "height": 380,
            "margin": {"l": 70, "r": 16, "t": 58, "b": 52},
            "dragmode": False,
            "hovermode": "closest",
            "clickmode": "event+select",
            "xaxis": {
                "range": [0, 1],
                "fixedrange": True,
                "dtick": 0.1,
                "title": {
                    "text": "vllm_gpu_memory_utilization",
                    "font": {"size": 14, "color": look.ink},
                },
                "showgrid": False,
                "zeroline": False,
                "tickfont": {"size": 13, "color": look.ink},
            },
            "yaxis": {
                "range": [0, top],
                "fixedrange": True,
                "ticksuffix": " s",
                "gridcolor": theme.GRID,
                "zeroline": False,
                "tickfont": {"size": 13, "color": look.ink},
            },
            "shapes": [*(_area(band) for band in bands(found)), *_marks(found, answer, look)],
            "annotations": _names(found, answer, look),
        },
    }


def _area(band: Band) -> dict[str, Any]:
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": band.first,
        "x1": band.last,
        "y0": 0,
        "y1": 1,
        "line": {"width": 0},
        "fillcolor": band.colour,
        "opacity": 0.34 if band.name == ALL else 0.2,
        "layer": "below",
    }


def _marks(found: UtilisationSearch, answer: Estimate, look: theme.Look) -> list[dict[str, Any]]:
    chosen = answer.setup.generation.vllm_gpu_memory_utilization
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": at,
            "x1": at,
            "y0": 0,
            "y1": 1,
            "line": {"width": 2, "color": look.ink, "dash": dash},
        }
        for at, dash in ((chosen, "solid"), (found.advised, "dot"))
        if at is not None
    ]


def _names(found: UtilisationSearch, answer: Estimate, look: theme.Look) -> list[dict[str, Any]]:
    """The chosen share and the recommended one, named above their lines."""
    note = {"showarrow": False, "yref": "paper"}
    chosen = answer.setup.generation.vllm_gpu_memory_utilization
    marks = [(chosen, f"set: {chosen:g}", 13)]
    if found.advised is not None:
        marks.append((found.advised, f"<b>take {found.advised:.2f}</b>", 18))
    if found.advised == chosen:
        marks = marks[1:]
    sides = ("right", "left") if len(marks) > 1 else ("center",)
    return [
        {
            **note,
            "x": at,
            "y": 1.02,
            "yanchor": "bottom",
            "xanchor": side,
            "text": text,
            "font": {"size": size, "color": look.ink},
        }
        for (at, text, size), side in zip(sorted(marks), sides, strict=True)
    ]


def _said(share: Utilisation, rows: int) -> str:
    if share.verdict is None:
        return f"{share.utilisation:.2f}: {_wrapped(share.refusal)}"
    time = (
        ""
        if share.step_seconds is None
        else f"<br>{share.step_seconds.low:,.1f} to {share.step_seconds.high:,.1f} s a step"
    )
    needs = f"{units.gib(share.need_low_bytes)} to {units.gib(share.need_high_bytes)}"
    return (
        f"{share.utilisation:.2f}: {theme.VERDICTS[share.verdict].label.lower()}, needs {needs}<br>"
        f"{_rows(share)} of {rows:,} rows at once{time}"
    )


def _rows(share: Utilisation) -> str:
    return (
        f"{share.rows_low:,}"
        if share.rows_low == share.rows_high
        else f"{share.rows_low:,} to {share.rows_high:,}"
    )


def _wrapped(text: str, width: int = 60) -> str:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "<br>".join([*lines, line])


def alt(found: UtilisationSearch) -> str:
    """The figure as text."""
    said = ", ".join(f"{band.name.lower()} from {_ends(band)}" for band in bands(found))
    return f"Shares of the GPU for vLLM: {said}."


def legend_html(found: UtilisationSearch) -> str:
    """The bands' names and ends, above the figure, in whose narrow bands and behind whose lines no name is legible."""
    said = " ".join(
        f'<span><i class="hr-swatch" style="background:{band.colour}"></i>{band.name}: {_ends(band)}</span>'
        for band in bands(found)
    )
    return f'<p class="hr-legend">{said}</p>'


def _ends(band: Band) -> str:
    return f"{band.first + 0.005:.2f} to {band.last - 0.005:.2f}"


def head_html(found: UtilisationSearch, answer: Estimate) -> str:
    """The recommended share, and the reason."""
    first, *others = (escape(sentence) for sentence in _sentences(found, answer))
    return f'<p class="hr-text"><strong>{first}</strong> {" ".join(others)}</p>'


def _sentences(found: UtilisationSearch, answer: Estimate) -> list[str]:
    setup = answer.setup
    if found.advised is None:
        return [
            "No share of this GPU lets vLLM and the training step live together.",
            _way_out(answer),
        ]
    held = found.holding()
    said = [f"Type vllm_gpu_memory_utilization {found.advised:.2f}."]
    if held is not None:
        said.append(
            f"From {held:.2f} on, all {found.rows:,} rows of a generation run at once; up to {found.largest:.2f} the "
            "training step still fits, and more than enough only takes memory."
        )
    else:
        most = next(share for share in found.shares if share.utilisation == found.largest)
        said.append(
            f"It is the largest that fits; {_rows(most)} of the {found.rows:,} rows of a generation run at once there, "
            f"so they take turns. {_way_out(answer)}"
        )
    if setup.mesh.num_gpus > 1 and setup.generation.vllm_tensor_parallel_size == 1:
        said.append(
            "Every GPU has an engine of its own with the whole model: more GPUs make the trainer's part smaller, not "
            "vLLM's; vllm_tensor_parallel_size does."
        )
    return said


def _way_out(answer: Estimate) -> str:
    ways = []
    if not answer.setup.generation.vllm_enable_sleep_mode:
        ways.append("let vLLM sleep while the step trains")
    ways.append("shorten completions, generate fewer rows at once, or give vLLM GPUs of its own")
    said = "; or ".join(ways)
    return f"{said[:1].upper()}{said[1:]}."


def rows(found: UtilisationSearch, answer: Estimate) -> Sequence[dict[str, object]]:
    """Table rows: the relevant shares, and every tenth."""
    kept = {
        found.starts,
        found.holding(),
        found.largest,
        answer.setup.generation.vllm_gpu_memory_utilization,
    }
    return [
        {
            "Share": f"{share.utilisation:.2f}",
            "Verdict": _verdict(share),
            "Needs, up to": units.gib(share.need_high_bytes) if share.verdict else "–",
            "Rows at once": _rows(share) if share.verdict else "–",
            "Seconds per step": f"{share.step_seconds.low:,.1f} to {share.step_seconds.high:,.1f}"
            if share.step_seconds is not None
            else "–",
        }
        for share in found.shares
        if share.utilisation in kept or round(100 * share.utilisation) % 10 == 0
    ]


def _verdict(share: Utilisation) -> str:
    if share.verdict is None:
        return STARVED
    return theme.VERDICTS[share.verdict].label if share.rows_low else "vLLM may not start"

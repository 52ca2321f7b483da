"""Memory, hours and dollars by strategy and number of GPUs: figure, table, and differences between ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from dashboard import theme
from dashboard.figures.memory_bars import Figure, scale
from dashboard.words import one_line, terms, units
from estimator import Curve, Estimate, Point, Rank, Strategy, Verdict, scaling


def on_more_gpus(of: Estimate) -> tuple[Curve, ...]:
    """The setup under every strategy on 1 to 64 of its GPU, and on its own number of GPUs."""
    return scaling.curves(of.model, of.gpu, of.setup, (*scaling.COUNTS, of.setup.mesh.num_gpus))


class CurveStyle(NamedTuple):
    """Line style of a strategy: a colour-blind-safe colour per family, and dashes within a family."""

    light: str
    dark: str
    dash: str
    symbol: str


LINES: Mapping[Strategy, CurveStyle] = {
    Strategy.DDP: CurveStyle("#1B2530", "#E8EDF2", "solid", "square"),
    Strategy.ZERO1: CurveStyle("#0072B2", "#56B4E9", "dot", "circle"),
    Strategy.ZERO2: CurveStyle("#0072B2", "#56B4E9", "dash", "diamond"),
    Strategy.ZERO3: CurveStyle("#0072B2", "#56B4E9", "solid", "triangle-up"),
    Strategy.FSDP: CurveStyle("#00785A", "#35C79B", "solid", "triangle-down"),
    Strategy.FSDP_GRAD_OP: CurveStyle("#00785A", "#35C79B", "dash", "cross"),
    Strategy.HSDP: CurveStyle("#D55E00", "#FF8A57", "solid", "star"),
    Strategy.DEVICE_MAP: CurveStyle("#A4447E", "#E29AC6", "dashdot", "hexagon"),
}
PANELS = ("Memory needed per GPU", "Hours of the run", "US dollars of the run")
GAP = 0.09
"""Gap between two panels, as a share of the figure's height."""
PANEL_HEIGHT = 240
TIMED = frozenset({Verdict.FITS, Verdict.TIGHT})
"""Verdicts whose hours and dollars are drawn."""


def curves_figure(curves: Sequence[Curve], chosen: Estimate, *, dark: bool = False) -> Figure:
    """Memory per GPU, hours and dollars against the number of GPUs, one line per strategy.

    A ring marks the first number of GPUs that fits.

    A point's ``customdata`` is [GPUs, strategy, hsdp groups]. A click applies it to the setup.
    """
    look = theme.DARK if dark else theme.LIGHT
    panels = len(_panels(curves))
    answers = [point.estimate for curve in curves for point in curve.points if point.estimate]
    capacity = chosen.gpu.memory_bytes if chosen.gpu is not None else 0
    top = scale(max([capacity, *(answer.need_high_bytes for answer in answers)]))
    counts = sorted({point.num_gpus for curve in curves for point in curve.points})
    traces = [
        trace
        for curve in curves
        for panel in range(panels)
        for trace in _traces(curve, panel, dark=dark)
    ]
    if capacity:
        traces.append(_capacity(capacity, counts, look))
    layout: dict[str, Any] = {
        "height": 120 + PANEL_HEIGHT * panels,
        "margin": {"l": 64, "r": 16, "t": 72, "b": 48},
        "dragmode": False,
        "hovermode": "closest",
        "clickmode": "event+select",
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1 + 44 / (PANEL_HEIGHT * panels),
            "yanchor": "bottom",
            "font": {"size": 14, "color": look.ink},
            "itemclick": "toggle",
        },
        "annotations": [_title(panel, panels, look) for panel in range(panels)],
    }
    for panel in range(panels):
        heights = [
            height
            for curve in curves
            for point in curve.points
            if (height := _height(point, panel))
        ]
        layout |= _axes(panel, panels, counts, top, heights, look)
    return {"data": traces, "layout": layout}


def _panels(curves: Sequence[Curve]) -> Sequence[str]:
    """The panels that have data."""
    answers = [point.estimate for curve in curves for point in curve.points if _is_timed(point)]
    timed = any(answer and answer.time for answer in answers)
    priced = any(answer and answer.cost and answer.cost.cost_usd.low for answer in answers)
    return PANELS[: 1 + timed + (timed and priced)]


def _is_timed(point: Point) -> bool:
    return point.estimate is not None and point.estimate.verdict in TIMED


def _traces(curve: Curve, panel: int, *, dark: bool) -> list[Figure]:
    line = LINES[curve.strategy]
    colour = line.dark if dark else line.light
    counts = [point.num_gpus for point in curve.points]
    first = curve.first_that_fits
    axis = str(panel + 1) if panel else ""
    drawn = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": curve.strategy.value,
        "legendgroup": curve.strategy.value,
        "showlegend": panel == 0,
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "x": [math.log2(count) for count in counts],
        "y": [_height(point, panel) for point in curve.points],
        "connectgaps": False,
        "line": {"color": colour, "width": 2.5, "dash": line.dash},
        "marker": {
            "color": colour,
            "size": 9,
            "symbol": [
                line.symbol + ("" if _is_timed(point) else "-open") for point in curve.points
            ],
        },
        "customdata": [_keys(point) for point in curve.points],
        "text": [_said(point) for point in curve.points],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
    }
    if panel or first is None:
        return [drawn]
    ring = {
        "type": "scatter",
        "mode": "markers",
        "legendgroup": curve.strategy.value,
        "showlegend": False,
        "x": [math.log2(first.num_gpus)],
        "y": [_height(first, 0)],
        "marker": {
            "symbol": "circle-open",
            "size": 22,
            "color": colour,
            "line": {"width": 3, "color": colour},
        },
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
    return [drawn, ring]


def _height(point: Point, panel: int) -> float | None:
    """A point's value in a panel, for hours and dollars the middle of the range; None: not drawn."""
    answer = point.estimate
    if answer is None:
        return None
    if panel == 0:
        return units.in_gib(answer.need_high_bytes)
    if not _is_timed(point):
        return None
    if panel == 1:
        time = answer.time
        return float(f"{time.total_hours.middle:.5g}") if time else None
    cost = answer.cost
    return float(f"{cost.cost_usd.middle:.5g}") if cost else None


def _keys(point: Point) -> list[object] | None:
    if point.estimate is None:
        return None
    setup = point.estimate.setup
    return [setup.mesh.num_gpus, setup.mesh.strategy.value, setup.mesh.dp_replicate_size]


def _said(point: Point) -> str:
    answer = point.estimate
    if answer is None:
        return ""
    who = (
        f"{_gpus(point.num_gpus)}, {answer.setup.mesh.strategy.value}"
        if point.num_gpus > 1
        else "1 GPU"
    )
    parts = [
        f"<b>{who}</b>",
        f"needs {units.between(answer.need_low_bytes, answer.need_high_bytes)}",
    ]
    if answer.verdict is not None:
        parts.append(theme.VERDICTS[answer.verdict].label.lower())
    if _is_timed(point) and (words := one_line.run(answer)):
        parts.append(words)
    return "<br>".join(parts) + "<br>Click to switch to it."


def _gpus(count: int) -> str:
    return f"{count:,} GPU{'s' * (count != 1)}"


def _capacity(capacity: int, counts: Sequence[int], look: theme.Look) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{units.gib(capacity)} usable",
        "x": [math.log2(counts[0]) - 0.3, math.log2(counts[-1]) + 0.3],
        "y": [units.in_gib(capacity)] * 2,
        "line": {"color": look.capacity, "width": 2.5, "dash": "longdash"},
        "hoverinfo": "skip",
    }


def _domain(panel: int, panels: int) -> list[float]:
    """A panel's vertical range, as shares of the height; the first panel is on top."""
    each = (1 - GAP * (panels - 1)) / panels
    bottom = (panels - 1 - panel) * (each + GAP)
    return [round(bottom, 4), round(bottom + each, 4)]


def _title(panel: int, panels: int, look: theme.Look) -> dict[str, Any]:
    return {
        "text": f"<b>{PANELS[panel]}</b>",
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": _domain(panel, panels)[1],
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 4,
        "showarrow": False,
        "font": {"size": 14, "color": look.ink},
    }


def _ticks(heights: Sequence[float]) -> list[float]:
    """Round numbers for a logarithmic axis; a short axis gets more of them.

    >>> _ticks([1.9, 5.2]), _ticks([0.03, 0.26])
    ([2.0, 3.0, 4.0, 5.0], [0.05, 0.1, 0.2])
    """
    low, high = min(heights), max(heights)
    steps = (1, 1.5, 2, 3, 4, 5, 7) if high < 5 * low else (1, 2, 5)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [round(step * 10.0**decade, 6) for decade in decades for step in steps]
    return [tick for tick in ticks if 0.9 * low <= tick <= 1.1 * high]


def _axes(
    panel: int,
    panels: int,
    counts: Sequence[int],
    top: float,
    heights: Sequence[float],
    look: theme.Look,
) -> dict[str, Any]:
    axis = str(panel + 1) if panel else ""
    last = panel == panels - 1
    x = {
        "anchor": f"y{axis}",
        "tickvals": [math.log2(count) for count in counts],
        "ticktext": [f"{count:,}" for count in counts],
        "range": [math.log2(counts[0]) - 0.3, math.log2(counts[-1]) + 0.3],
        "tickfont": {"size": 13, "color": look.ink},
        "title": {"text": "GPUs" if last else "", "font": {"size": 14, "color": look.ink}},
        "tickangle": 0,
        "gridcolor": theme.GRID,
        "zeroline": False,
        "fixedrange": True,
    }
    y: dict[str, Any] = {
        "anchor": f"x{axis}",
        "domain": _domain(panel, panels),
        "tickfont": {"size": 13, "color": look.ink},
        "gridcolor": theme.GRID,
        "zeroline": False,
        "fixedrange": True,
    }
    if panel == 0:
        y |= {"range": [0, top], "ticksuffix": " GiB"}
    else:
        ticks = _ticks(heights)
        y |= {
            "type": "log",
            "tickvals": ticks,
            "ticktext": [f"{'$' * (panel == 2)}{tick:,.10g}" for tick in ticks],
            "range": [math.log10(min(heights)) - 0.08, math.log10(max(heights)) + 0.08],
        }
    return {f"xaxis{axis}": x, f"yaxis{axis}": y}


def head_html(curves: Sequence[Curve], answer: Estimate) -> str:
    """Text above the figure: where each strategy first fits, what stays fixed, and what the price list contains."""
    lines = [_first_fits(curves, answer), _kept(curves)]
    if answer.gpu is not None:
        lines += _prices(curves, answer)
    lines.append(
        "Hours and dollars are the middle of their ranges, drawn only where the run fits. Open marks do not fit; a "
        "ring marks the fewest GPUs of a strategy that fit. Click a point to switch to it."
    )
    return "".join(f'<p class="hr-text">{escape(line)}</p>' for line in lines if line)


def _first_fits(curves: Sequence[Curve], answer: Estimate) -> str:
    if answer.gpu is None:
        return "Choose a GPU to see how many are needed and how long the run takes."
    by_count: dict[int, list[str]] = {}
    for curve in curves:
        if (first := curve.first_that_fits) is not None:
            by_count.setdefault(first.num_gpus, []).append(curve.strategy.value)
    if 1 in by_count:
        return f"It fits on 1 {answer.gpu.name}; more of them make the run faster."
    if not by_count:
        never = _never(curves)
        return f"It does not fit on 1 {answer.gpu.name}, nor on several{never or ', which cannot share it'}."
    said = "; ".join(
        f"on {_gpus(count)} or more under {_listed(names)}"
        for count, names in sorted(by_count.items())
    )
    return f"With {answer.gpu.name} it fits {said}{_never(curves)}."


def _never(curves: Sequence[Curve]) -> str:
    """Strategies that fit on no number of GPUs, and those that are refused."""
    up_to: dict[int, list[str]] = {}
    refused = []
    for curve in curves:
        if curve.first_that_fits is not None:
            continue
        shared = [point for point in curve.points if point.num_gpus > 1]
        if counts := [point.num_gpus for point in shared if point.estimate]:
            up_to.setdefault(max(counts), []).append(curve.strategy.value)
        elif any(not point.too_few for point in shared):
            refused.append(curve.strategy.value)
    parts = [
        f"; under {_listed(names)} not even on {most:,}" for most, names in sorted(up_to.items())
    ]
    return "".join(parts) + (f"; {_listed(refused)} cannot share it" if refused else "")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _kept(curves: Sequence[Curve]) -> str:
    answers = [point.estimate for point in curves[0].points if point.estimate]
    setup = answers[0].setup
    batch = f"{setup.batch.per_device_train_batch_size:,} × {setup.batch.max_length:,} tokens"
    accumulation = (
        f" and its {setup.batch.gradient_accumulation_steps:,} micro-steps"
        if setup.batch.gradient_accumulation_steps > 1
        else ""
    )
    said = f"Each GPU keeps its micro-batch of {batch}{accumulation}; the effective batch grows with the GPUs"
    first, last = answers[0], answers[-1]
    if first.time and last.time and first is not last:
        said += (
            f", from {first.setup.effective_batch_size:,} to {last.setup.effective_batch_size:,} examples, and an "
            f"epoch has {last.time.steps_per_epoch:,} steps instead of {first.time.steps_per_epoch:,}"
        )
    if any(point.estimate and point.estimate.devices for curve in curves for point in curve.points):
        said += "; under device_map all GPUs share one"
    return f"{said}."


def _prices(curves: Sequence[Curve], answer: Estimate) -> list[str]:
    gpu = answer.gpu
    assert gpu is not None
    if answer.setup.run.usd_per_gpu_hour is not None:
        return []
    counts = [point.num_gpus for point in curves[0].points]
    too_few = [count for count in counts if scaling.rented_in(gpu, count)]
    if not gpu.prices:
        return [f"No price of {gpu.name} is listed; set usd_per_gpu_hour to your own."]
    if not too_few:
        most = scaling.most_rented(gpu)
        said = f"No price of more than {most} {gpu.name_in_a_setup} is listed; set usd_per_gpu_hour to your own."
        return [said] if most is not None and most < max(counts) else []
    least = scaling.rented_in(gpu, too_few[0])
    return [
        f"The price list has {gpu.name} only in machines of {least}, so below {least} GPUs no dollars are "
        f"given (marked “only {least} together” in the table)."
    ]


def alt(curves: Sequence[Curve]) -> str:
    """The figure as text."""
    lines = []
    for curve in curves:
        sizes = [
            f"{units.gib(point.estimate.need_high_bytes)} on {point.num_gpus:,}"
            for point in curve.points
            if point.estimate
        ]
        first = curve.first_that_fits
        fits = f", first fits on {_gpus(first.num_gpus)}" if first else ""
        lines.append(f"{curve.strategy.value}: {', '.join(sizes)}{fits}")
    return f"Memory that each GPU needs, by strategy and number of GPUs. {'; '.join(lines)}."


def table_html(curves: Sequence[Curve], answer: Estimate) -> str:
    """One row per strategy and one column per count: the need with its verdict, hours and dollars."""
    counts = [point.num_gpus for point in curves[0].points]
    head = "".join(f'<th scope="col">{_gpus(count)}</th>' for count in counts)
    rows = "".join(
        f'<tr><th scope="row">{escape(curve.strategy.value)}</th>'
        + "".join(_cell(point, curve, answer) for point in curve.points)
        + "</tr>"
        for curve in curves
    )
    return (
        '<div class="hr-scroll" tabindex="0" role="region" aria-label="Strategies and numbers of GPUs as a table">'
        '<table class="hr-compare hr-many"><thead><tr><th scope="col">Needs up to</th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(point: Point, curve: Curve, chosen: Estimate) -> str:
    answer = point.estimate
    if answer is None:
        short = "too few" if point.too_few else "refused"
        return f'<td title="{escape(point.refusal)}">–<small>{short}</small></td>'
    need = units.gib(answer.need_high_bytes)
    mark = ""
    if answer.verdict is not None:
        said = theme.VERDICTS[answer.verdict].label
        sign = terms.SIGNS[answer.verdict]
        mark = f' <span class="hr-{answer.verdict}" role="img" aria-label="{said}">{sign}</span>'
    lines = []
    if point == curve.first_that_fits:
        need = f"<b>{need}</b>"
        lines.append("first that fits")
    if _is_timed(point) and answer.time is not None:
        time, cost = answer.time, answer.cost
        lines.append(units.duration(*time.total_hours))
        least = scaling.rented_in(answer.gpu, point.num_gpus)
        if cost is not None:
            lines.append(units.dollars(*cost.cost_usd))
        elif least is not None:
            lines.append(f"only {least} together")
    here = answer.setup.mesh.num_gpus, answer.setup.mesh.strategy
    if here == (chosen.setup.mesh.num_gpus, chosen.setup.mesh.strategy):
        lines.append("your setup")
    small = "".join(f"<small>{escape(line)}</small>" for line in lines)
    return f"<td>{need}{mark}{small}</td>"


def refusals_html(curves: Sequence[Curve]) -> str:
    """Reasons for empty cells, each reason once."""
    reasons: dict[str, list[str]] = {}
    for curve in curves:
        for point in curve.points:
            if point.refusal and not point.too_few:
                names = reasons.setdefault(point.refusal, [])
                if curve.strategy.value not in names:
                    names.append(curve.strategy.value)
    return "".join(
        f'<p class="hr-text">{escape(_listed(names))}: {escape(reason)}</p>'
        for reason, names in reasons.items()
    )


def ranks_html(found: Sequence[Rank]) -> str:
    """Differences between the GPUs of this job; empty if there are none."""
    if not found:
        return ""
    head = '<h2 class="hr-head">This job, rank by rank</h2>'
    sizes = {(rank.peak_bytes, rank.need_high_bytes, rank.host_bytes) for rank in found}
    if len(sizes) == 1:
        return f'{head}<p class="hr-text">All ranks use the same memory; rank 0 writes the model for all.</p>'
    rows = "".join(
        f'<tr><td class="hr-name-cell">{escape(rank.ranks)}{" (saves)" * rank.saves}</td>'
        + "".join(
            f'<td class="hr-n">{size / units.GIB:,.2f}</td>'
            for size in (rank.peak_bytes, rank.need_high_bytes, rank.host_bytes)
        )
        + "</tr>"
        for rank in found
    )
    spread = found[0].peak_bytes - found[-1].peak_bytes
    lead = (
        f"The fullest rank determines the need; the emptiest peaks {units.gib_or_bytes(spread)} lower."
        if spread
        else "All ranks use the same GPU memory; rank 0 writes the model for all."
    )
    return (
        f'{head}<p class="hr-text">{lead}</p>'
        '<table class="hr-table hr-stages"><thead><tr><th scope="col">GiB on ranks</th>'
        '<th scope="col" class="hr-n">Peak</th><th scope="col" class="hr-n">Need</th>'
        f'<th scope="col" class="hr-n">Host</th></tr></thead><tbody>{rows}</tbody></table>'
    )

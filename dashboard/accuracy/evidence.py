"""The page Accuracy: all measured and traced runs compared with their estimates, worst first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from types import MappingProxyType

from dashboard import theme
from dashboard.figures.memory_bars import Figure
from dashboard.words import markup, one_line, units
from estimator import Calibration, Comparison, Method, accuracy, contract, replays

METRICS: Mapping[accuracy.Metric, str] = MappingProxyType(
    {
        accuracy.Metric.ALLOCATED: "Allocated by PyTorch",
        accuracy.Metric.RESERVED: "Reserved by PyTorch",
        accuracy.Metric.DEVICE: "nvidia-smi",
        accuracy.Metric.TRACED: "Traced",
    }
)
MEANINGS: Mapping[accuracy.Metric, str] = MappingProxyType(
    {
        accuracy.Metric.ALLOCATED: "torch.cuda.max_memory_allocated(): the tensors. This is what we estimate.",
        accuracy.Metric.RESERVED: (
            "torch.cuda.max_memory_reserved(): tensors, and freed blocks that the allocator keeps."
        ),
        accuracy.Metric.DEVICE: "What the driver shows: reserved blocks, the CUDA context and communication buffers.",
        accuracy.Metric.TRACED: "One step of the real libraries, every tensor counted, without a GPU.",
    }
)
MARKS: Mapping[accuracy.Metric, tuple[str, str]] = MappingProxyType(
    {
        accuracy.Metric.ALLOCATED: ("#0072B2", "circle"),
        accuracy.Metric.RESERVED: ("#E69F00", "diamond-open"),
        accuracy.Metric.DEVICE: ("#D55E00", "square-open"),
        accuracy.Metric.TRACED: ("#7F8A94", "circle-open"),
    }
)
PLAYED: Mapping[str, str] = MappingProxyType(
    {"allocated": "Allocated", "reserved": "Reserved", "least": "Least memory"}
)
CAPACITIES = tuple(size * units.GIB for size in range(15, 142))
"""Card sizes in bytes: every whole GiB from 15 (a T4) to 141 (an H200)."""
TICKS = (0.3, 1, 3, 10, 30, 100, 300, 1000)
"""Axis ticks in GiB."""
Facet = Callable[[Comparison], str]


# --- filters ------------------------------------------------------------------------------------


def origin(of: Comparison) -> str:
    """Origin of a reading: the repository that published it, or our own run."""
    if of.metric is accuracy.Metric.TRACED:
        return "traced here"
    parts = of.source.split("/")
    return parts[4] if of.source.startswith("https://github.com/") else "measured here"


FACETS: Mapping[str, Facet] = MappingProxyType(
    {
        "Method": lambda of: of.setup.adapters.method.label,
        "Family": lambda of: of.model.model_type if of.model else "unknown",
        "What was read": lambda of: METRICS[of.metric],
        "Source": origin,
    }
)
"""The page's filters, by label."""


def choices(facet: str, comparisons: Sequence[Comparison]) -> list[str]:
    """The values of a filter, most frequent first."""
    return [value for value, _ in Counter(map(FACETS[facet], comparisons)).most_common()]


def narrowed(
    comparisons: Sequence[Comparison], chosen: Mapping[str, Sequence[str]]
) -> list[Comparison]:
    """Readings that pass every filter; an empty filter passes all."""
    return [
        comparison
        for comparison in comparisons
        if all(
            not values or FACETS[facet](comparison) in values for facet, values in chosen.items()
        )
    ]


def worst_first(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Readings with an estimate, largest error first."""
    estimated = [comparison for comparison in comparisons if comparison.error is not None]
    return sorted(estimated, key=lambda comparison: -abs(comparison.error or 0))


def refused(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Readings whose setup is refused."""
    return [comparison for comparison in comparisons if comparison.error is None]


# --- words --------------------------------------------------------------------------------------


def percent(error: float) -> str:
    """An error in percent, as text."""
    return "<0.1 %" if abs(error) < 0.0005 else f"{100 * error:.1f} %"


def summary_rows(summaries: Sequence[accuracy.Summary]) -> list[tuple[str, ...]]:
    """The summary as a table: a header, and one row per metric."""
    rows: list[tuple[str, ...]] = [
        ("What was read", "Readings", "Estimated", "Median error", "Largest", "Within 5 %")
    ]
    for summary in summaries:
        estimated = summary.readings - summary.refused
        trust = summary.trust
        rows.append(
            (
                METRICS[summary.metric] + (", phase by phase" if summary.by_phase else ""),
                f"{summary.readings:,}",
                f"{estimated:,}",
                percent(trust.median) if trust else "-",
                percent(trust.largest) if trust else "-",
                f"{summary.near:,} of {estimated:,}" if estimated else "-",
            )
        )
    return rows


def summary_html(summaries: Sequence[accuracy.Summary]) -> str:
    """The summary as HTML, with an explanation of what it compares."""
    head, *rows = summary_rows(summaries)
    cells = "".join(f'<th class="{"hr-n" if i else ""}">{one}</th>' for i, one in enumerate(head))
    body = "".join(
        f'<tr><td title="{escape(MEANINGS[summary.metric])}">{name}</td>'
        + "".join(f'<td class="hr-n">{escape(cell)}</td>' for cell in rest)
        + "</tr>"
        for summary, (name, *rest) in zip(summaries, rows, strict=True)
    )
    return (
        '<p class="hr-text">Memory that real runs used, next to our estimate of the same setup. Both are computed from '
        "the tables in data/, and no run is left out because of its error. We estimate what PyTorch allocates. What it "
        "reserves, and what nvidia-smi shows, also includes freed blocks that it keeps while there is room; we "
        "estimate those by replaying the tensors of three steps through PyTorch's caching allocator.</p>"
        f'<div class="hr-scroll"><table class="hr-table hr-proof"><tr>{cells}</tr>{body}</table></div>'
    )


def played_rows(spreads: Mapping[str, replays.Errors]) -> list[tuple[str, ...]]:
    """How near our allocator comes to PyTorch's, as a table: a header, and one row per quantity."""
    return [
        ("What PyTorch's allocator did", "Median error", "95 % within", "Largest"),
        *((PLAYED[name], *map(percent, value)) for name, value in spreads.items()),
    ]


def played_html(spreads: Mapping[str, replays.Errors], runs: int) -> str:
    """What was played, and how near our allocator comes."""
    head, *rows = played_rows(spreads)
    cells = "".join(f'<th class="{"hr-n" if i else ""}">{one}</th>' for i, one in enumerate(head))
    body = "".join(
        f"<tr><td>{name}</td>" + "".join(f'<td class="hr-n">{one}</td>' for one in rest) + "</tr>"
        for name, *rest in rows
    )
    return (
        f'<p class="hr-text">{runs} runs of real trainers on PyTorch\'s CUDA build and its own caching allocator, '
        "without a GPU: loading and three steps, on one GPU or as one rank of several. Our copy of the allocator "
        "replays the same setups. The least memory decides whether a run fits.</p>"
        f'<div class="hr-scroll"><table class="hr-table hr-proof"><tr>{cells}</tr>{body}</table></div>'
    )


def played_row(of: replays.ReplayedRun) -> dict[str, object]:
    """One played run as a row of the table."""
    model, gpu, setup = of.written
    errors = {f"{PLAYED[name]}, %": round(100 * value, 2) for name, value in of.errors.items()}
    return {
        **errors,
        PLAYED["allocated"]: units.in_gib(of.played.allocated),
        PLAYED["least"]: units.in_gib(of.played.least),
        "Run": of.row.id,
        "Open": f"/?{contract.write_link(model, gpu, setup)}",
    }


def need_html(found: accuracy.Agreement, shown: tuple[accuracy.Spread, accuracy.Spread]) -> str:
    """Verdicts compared with measured needs, and the errors of the nvidia-smi estimate."""
    more = " and ".join(
        f"{100 * one.low:.0f} to {100 * one.high:.0f} % more "
        f"({100 * one.middle:.0f} % in the median of {one.runs} runs) {where}"
        for one, where in zip(shown, ("on one GPU", "on each of several"), strict=True)
    )
    return (
        '<p class="hr-text">Each measured run was compared with GPUs of every size from 15 to 141 GiB. Of '
        f"{found.pairs:,} pairs of run and GPU with a plain yes or no, {found.agreeing:,} agree with the "
        f"measurement ({100 * found.share:.1f} %). In another {found.tight:,} the GPU's memory is within the range of "
        f"the need, and the verdict is “tight”. The range is {100 * found.width:.1f} % wide in the median.</p>"
        f'<p class="hr-text hr-next">nvidia-smi showed {more} than PyTorch allocated at its peak. The allocator keeps '
        "freed blocks while there is room, and returns before a request would fail those whose segment is free as a "
        "whole. What then still does not fit together is part of the need.</p>"
    )


def left_out_html(rows: Sequence[Mapping[str, str]]) -> str:
    """Reasons for leaving published readings out of the table, with counts."""
    counts = Counter(row["reason"] for row in rows).most_common()
    body = "".join(
        f'<tr><td>{escape(reason)}</td><td class="hr-n">{count}</td></tr>'
        for reason, count in counts
    )
    return (
        f'<p class="hr-text">Another {len(rows)} published readings were examined and left out, regardless of their '
        f'error; data/left_out.csv lists each with its source.</p><table class="hr-table hr-proof">'
        f'<tr><th>Reason</th><th class="hr-n">Readings</th></tr>{body}</table>'
    )


def speeds_html(found: Sequence[Calibration]) -> str:
    """The runs inside and outside their ranges, by class, as a table to unfold."""
    rows = "".join(
        f'<tr><td>{escape(one.kind)}</td><td>{escape(one.name)}</td><td class="hr-n">{one.runs:,}</td>'
        f'<td class="hr-n">{100 * one.inside / one.runs:.0f} %</td><td class="hr-n">{one.faster}</td>'
        f'<td class="hr-n">{one.slower}</td><td class="hr-n">{one.width:.2f}</td></tr>'
        for one in found
    )
    table = (
        '<div class="hr-scroll"><table class="hr-table hr-proof"><tr><th>Class</th><th>Kind</th>'
        '<th class="hr-n">Runs</th><th class="hr-n">Inside</th><th class="hr-n">Faster</th><th class="hr-n">Slower</th>'
        f'<th class="hr-n" title="Slow end over fast end, median">Width</th></tr>{rows}</table></div>'
    )
    return markup.details("speeds", "Every class and source as a table", table)


def speeds_head(found: Sequence[Calibration], in_fp8: Calibration) -> str:
    """What the range of seconds states, and how far it is true."""
    whole = found[0]
    return (
        f'<p class="hr-text">{100 * whole.inside / whole.runs:.0f} % of {whole.runs} published runs lie inside their '
        f"range, whose slow end is {whole.width:.2f} times its fast end in the median. The width is a statement about "
        "the world: nine in ten runs should be inside.</p>"
        f'<p class="hr-text hr-next">In FP8, to which nothing is fitted, {in_fp8.inside} of {in_fp8.runs} published '
        f"runs lie inside, at a median width of {in_fp8.width:.2f}; {in_fp8.slower} are slower and {in_fp8.faster} "
        "faster.</p>"
    )


def overestimated_html(found: Sequence[accuracy.PublishedRun], runs: int) -> str:
    """Number of published runs that ran although our estimate says they do not fit, and the reasons."""
    counts = Counter(run.beyond for run in found).most_common()
    body = "".join(
        f'<tr><td>{escape(accuracy.BEYOND.get(reason, "not explained yet"))}</td><td class="hr-n">{count}</td></tr>'
        for reason, count in counts
    )
    return (
        f'<p class="hr-text">{len(found)} of {runs} published runs ran although our estimate says they do not fit, '
        "because they used features without a key yet. Their speeds are still compared.</p>"
        f'<table class="hr-table hr-proof"><tr><th>What the run used</th><th class="hr-n">Runs</th></tr>{body}</table>'
    )


def overestimated_row(run: accuracy.PublishedRun) -> dict[str, object]:
    """One published run whose estimate does not fit, as a row of the table."""
    need = run.outcome.need_low_bytes
    return {
        "Run": run.id,
        "GPU": f"{run.setup.mesh.num_gpus} × {run.gpu.name}",
        "Estimated need": units.in_gib(need) if need else None,
        "Holds": units.in_gib(run.gpu.memory_bytes),
        "What the run used": accuracy.BEYOND.get(run.beyond, "not explained yet"),
        "Source": run.source,
    }


# --- figures ------------------------------------------------------------------------------------


def figure(
    comparisons: Sequence[Comparison], *, dark: bool = False, by_method: bool = False
) -> Figure:
    """Estimated against measured GiB on logarithmic axes, one point each, with the diagonal and a band of 5 %.

    Points are coloured by kind of reading, or by method.
    """
    look = theme.DARK if dark else theme.LIGHT
    shown = worst_first(comparisons)
    sizes = [units.in_gib(one.measured_bytes) for one in shown] or [10.0]
    low, high = min(sizes) * 0.7, max(sizes) * 1.5
    axis = {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": TICKS,
        "fixedrange": True,
        "gridcolor": theme.GRID,
        "zeroline": False,
        "tickangle": 0,
        "tickfont": {"size": 13, "color": look.ink},
    }
    across = "Traced" if by_method else "Measured"
    groups: dict[str, list[Comparison]] = {}
    for one in shown:
        group = one.setup.adapters.method.label if by_method else METRICS[one.metric]
        groups.setdefault(group, []).append(one)
    styles = (
        {method.label: style for method, style in METHOD_MARKS.items()}
        if by_method
        else {METRICS[metric]: style for metric, style in MARKS.items()}
    )
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": "within 5 %",
                "x": [low, high, high, low],
                "y": [
                    low * (1 + accuracy.NEAR),
                    high * (1 + accuracy.NEAR),
                    high * (1 - accuracy.NEAR),
                    low * (1 - accuracy.NEAR),
                ],
                "fill": "toself",
                "fillcolor": "rgba(127,138,148,0.28)",
                "line": {"width": 0},
                "hoverinfo": "skip",
            },
            {
                "type": "scatter",
                "mode": "lines",
                "name": "equal",
                "x": [low, high],
                "y": [low, high],
                "line": {"color": look.ink, "width": 1, "dash": "dot"},
                "hoverinfo": "skip",
            },
            *(_points(groups[name], name, styles[name]) for name in styles if name in groups),
        ],
        "layout": {
            "height": 440,
            "margin": {"l": 70, "r": 12, "t": 8, "b": 50},
            "hovermode": "closest",
            "dragmode": False,
            "clickmode": "event+select",
            "legend": {"x": 0.02, "y": 0.98, "font": {"size": 13, "color": look.ink}},
            "xaxis": {**axis, "title": {"text": f"{across}, GiB", "font": {"color": look.ink}}},
            "yaxis": {**axis, "title": {"text": "Estimated, GiB", "font": {"color": look.ink}}},
        },
    }


METHOD_MARKS: Mapping[Method, tuple[str, str]] = MappingProxyType(
    {
        Method.FULL: ("#0072B2", "circle-open"),
        Method.LORA: ("#E69F00", "diamond-open"),
        Method.QLORA: ("#009E73", "square-open"),
    }
)


def _points(comparisons: Sequence[Comparison], name: str, style: tuple[str, str]) -> Figure:
    colour, symbol = style
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [units.in_gib(comparison.measured_bytes) for comparison in comparisons],
        "y": [units.in_gib(comparison.estimated_bytes or 0) for comparison in comparisons],
        "text": [title(comparison) for comparison in comparisons],
        "customdata": [key(comparison) for comparison in comparisons],
        "marker": {"size": 10, "color": colour, "symbol": symbol, "line": {"width": 2}},
        "hovertemplate": "%{text}<br>measured %{x:.2f}, estimated %{y:.2f} GiB<extra></extra>",
    }


def figure_alt(comparisons: Sequence[Comparison]) -> str:
    """The figure as text: the ten worst."""
    worst = worst_first(comparisons)[:10]
    errors = ", ".join(
        f"{title(comparison)}: {100 * (comparison.error or 0):+.1f} %" for comparison in worst
    )
    return (
        f"Estimated against measured or traced memory, the worst of {len(comparisons)}: {errors}."
    )


# --- one run ------------------------------------------------------------------------------------


def key(of: Comparison) -> str:
    """Key of a point in the figure."""
    return f"{of.metric} {of.id}"


def title(of: Comparison) -> str:
    """A run in one line."""
    if of.refusal:
        return of.id
    model, _, rest = one_line.setup_words(*of.as_run).partition(" · ")
    return f"{of.name or model} · {rest}"


def _query(of: Comparison) -> str:
    model, setup = of.as_run
    return contract.write_link(model, of.reading.gpu, setup)


def picked_html(of: Comparison) -> str:
    """The clicked point: its figures, its setup, its source."""
    assert of.estimated_bytes is not None
    source = (
        f'<a href="{escape(of.source)}" target="_blank" rel="noopener">source</a>'
        if of.source.startswith("https://")
        else escape(of.source)
    )
    return (
        f'<div class="hr-picked"><p class="hr-text"><b>{escape(title(of))}</b></p>'
        f'<p class="hr-text">{METRICS[of.metric]}: {units.gib(of.measured_bytes)}; estimated '
        f"{units.gib(of.estimated_bytes)}, {100 * (of.error or 0):+.1f} %. "
        f'<a href="/?{escape(_query(of))}" target="_self">Open this setup</a> · {source}</p>'
        f'<p class="hr-small">{escape("; ".join(filter(None, (of.how, of.versions, of.note))))}</p></div>'
    )


def row(of: Comparison) -> dict[str, object]:
    """One reading as a row of the table, with plain numbers for sorting."""
    assert of.error is not None
    assert of.estimated_bytes is not None
    return {
        "Error, %": round(100 * of.error, 2),
        "Measured": units.in_gib(of.measured_bytes),
        "Estimated": units.in_gib(of.estimated_bytes),
        "What was read": METRICS[of.metric],
        "Run": title(of),
        "Open": f"/?{_query(of)}",
        "GPU": of.gpu,
        "Versions": of.versions,
        "Source": of.source,
        "Note": of.note,
    }


def refused_row(of: Comparison) -> dict[str, object]:
    """One reading without an estimate, as a row of the table, with the reason."""
    return {
        "Run": of.id,
        "What was read": METRICS[of.metric],
        "Measured": units.in_gib(of.measured_bytes),
        "Why there is no estimate": of.refusal,
        "Source": of.source,
    }

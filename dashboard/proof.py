"""The page Accuracy: measured runs beside what is estimated for them, worst first, none left out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

from dashboard import links, theme, wording
from dashboard.figures import Figure
from estimator.accuracy import MeasuredPeak
from estimator.specs import Method


def worst_first(peaks: Sequence[MeasuredPeak]) -> list[MeasuredPeak]:
    """Those that have an estimate, the largest error first."""
    estimated = [peak for peak in peaks if peak.error is not None]
    return sorted(estimated, key=lambda peak: -abs(peak.error or 0))


def summary_html(peaks: Sequence[MeasuredPeak]) -> str:
    """The table in a few sentences."""
    errors = [abs(peak.error) for peak in worst_first(peaks) if peak.error is not None]
    refused = len(peaks) - len(errors)
    lines = [
        "What real runs took, as torch.cuda.max_memory_allocated() said, beside what is estimated for the same setup. "
        "Everything here is computed from data/measurements.csv when the page is drawn."
    ]
    if errors:
        lines.append(
            f"{len(errors)} of {len(peaks)} measured runs are estimated: {100 * median(errors):.1f} % off in the "
            f"median, {100 * max(errors):.1f} % at most. {refused} are of setups "
            "that are not modelled yet; they stand below."
        )
    return "".join(f'<p class="hr-text">{escape(line)}</p>' for line in lines)


def figure(peaks: Sequence[MeasuredPeak], *, dark: bool = False) -> Figure:
    """Estimated against measured peaks in GiB, the line of equals and a band of 5 % around it."""
    look = theme.DARK if dark else theme.LIGHT
    shown = worst_first(peaks)
    most = max((wording.in_gib(peak.measured_bytes) for peak in shown), default=1.0) * 1.1
    axis = {
        "range": [0, most],
        "fixedrange": True,
        "ticksuffix": " GiB",
        "gridcolor": theme.GRID,
        "zeroline": False,
        "tickangle": 0,
        "nticks": 5,
        "tickfont": {"size": 13, "color": look.ink},
    }
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": "within 5 %",
                "x": [0, most, most, 0],
                "y": [0, 1.05 * most, 0.95 * most, 0],
                "fill": "toself",
                "fillcolor": "rgba(127,138,148,0.18)",
                "line": {"width": 0},
                "hoverinfo": "skip",
            },
            {
                "type": "scatter",
                "mode": "lines",
                "name": "equal",
                "x": [0, most],
                "y": [0, most],
                "line": {"color": look.ink, "width": 1, "dash": "dot"},
                "hoverinfo": "skip",
            },
            *(_points([it for it in shown if _method(it) is method], method) for method in Method),
        ],
        "layout": {
            "height": 440,
            "margin": {"l": 80, "r": 16, "t": 12, "b": 50},
            "hovermode": "closest",
            "dragmode": False,
            "legend": {"x": 0.02, "y": 0.98, "font": {"size": 14, "color": look.ink}},
            "xaxis": {**axis, "title": {"text": "Measured", "font": {"color": look.ink}}},
            "yaxis": {**axis, "title": {"text": "Estimated", "font": {"color": look.ink}}},
        },
    }


def _method(peak: MeasuredPeak) -> Method | None:
    return peak.estimate.setup.method if peak.estimate else None


MARKS = {
    Method.FULL: ("#0072B2", "circle"),
    Method.LORA: ("#E69F00", "diamond"),
    Method.QLORA: ("#009E73", "square"),
}


def _points(peaks: Sequence[MeasuredPeak], method: Method) -> Figure:
    colour, symbol = MARKS[method]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": wording.METHODS[method],
        "x": [wording.in_gib(peak.measured_bytes) for peak in peaks],
        "y": [wording.in_gib(peak.estimate.peak.bytes) for peak in peaks if peak.estimate],
        "text": [name(peak) for peak in peaks],
        "marker": {"size": 12, "color": colour, "symbol": symbol},
        "hovertemplate": "%{text}<br>measured %{x:.1f}, estimated %{y:.1f} GiB<extra></extra>",
        "showlegend": bool(peaks),
    }


def name(peak: MeasuredPeak) -> str:
    """A run in a few words."""
    return peak.measurement.id if peak.estimate is None else wording.setup_line(peak.estimate)


def row(peak: MeasuredPeak) -> dict[str, object]:
    """One run as a row of the table; plain numbers, so that they can be sorted."""
    answer = peak.estimate
    assert answer is not None
    assert peak.error is not None
    return {
        "Run": name(peak),
        "GPU": peak.measurement.gpu,
        "Measured": wording.in_gib(peak.measured_bytes),
        "Estimated": wording.in_gib(answer.peak.bytes),
        "Error, %": round(100 * peak.error, 2),
        "Open": f"/?{links.query(answer)}",
        "Versions": peak.measurement.versions,
        "Source": peak.measurement.source,
        "Note": peak.measurement.note,
    }


def refused_row(peak: MeasuredPeak) -> dict[str, object]:
    """One run that has no estimate, and why."""
    return {
        "Run": peak.measurement.id,
        "Measured": wording.in_gib(peak.measured_bytes),
        "Why there is no estimate": peak.refusal,
        "Source": peak.measurement.source,
    }


def figure_alt(peaks: Sequence[MeasuredPeak]) -> str:
    """The figure in words."""
    errors = ", ".join(
        f"{name(peak)}: {100 * (peak.error or 0):+.1f} %" for peak in worst_first(peaks)
    )
    return f"Estimated against measured peak memory, worst first: {errors}."

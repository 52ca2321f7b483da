"""Downloads of a comparison: a printable report, tables for programs, and a summary for a ticket.

Each includes the version, the date, the assumptions and the meaning of the ranges. Names come from links and files and
are escaped for each format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from dashboard import theme
from dashboard.compare import entry, findings, peaks_figure, results_table
from dashboard.compare.entry import ComparedEntry
from dashboard.compare.results_table import Row
from dashboard.figures.memory_bars import peak_parts, scale
from dashboard.words import origin, terms, units
from estimator import Estimate, Verdict, contract


class Subject(NamedTuple):
    """Content of a download."""

    shown: Sequence[ComparedEntry]
    day: str
    """ISO date: ``2026-11-21``."""
    link: str = ""
    within: float | None = None
    context: int | None = None

    @property
    def origin(self) -> str:
        """Version and day in one line."""
        return origin.line(self.day)


# --- tables for programs ------------------------------------------------------------------------


def write_json(of: Subject) -> str:
    """JSON: every scenario with its setup and estimate in the contract's format, memory in bytes."""
    written = {
        "headroom": origin.RELEASE,
        "date": of.day,
        "range": origin.RANGE,
        "within_hours": of.within,
        "context_of_all": of.context,
        "scenarios": [_as_object(one) for one in of.shown],
    }
    return json.dumps(written, indent=1, ensure_ascii=False) + "\n"


def _as_object(one: ComparedEntry) -> dict[str, object]:
    if one.estimate is None:
        return {"name": one.name, "error": one.problem}
    setup = contract.write_fields(one.estimate.model, one.estimate.gpu, one.estimate.setup)
    return {"name": one.name, "setup": setup, "estimate": contract.write_estimate(one.estimate)}


def write_csv(of: Subject) -> str:
    """CSV: one row per scenario with its differences and results; column names include units."""
    differs = results_table.differing(of.shown)
    differs = {
        key: [text.replace(",", "") if _is_number(text) else text for text in texts]
        for key, texts in differs.items()
    }
    head: list[object] = [
        "scenario",
        *differs,
        *_FIGURES,
        "headroom_version",
        "date",
        "assumptions",
        "range",
    ]
    rows: list[list[object]] = [head]
    for place, one in enumerate(of.shown):
        assumed = " ".join(one.estimate.assumptions) if one.estimate else one.problem
        row = [one.name, *(texts[place] for texts in differs.values()), *_figures(one.estimate)]
        rows.append([*row, origin.RELEASE, of.day, assumed, origin.RANGE])
    return contract.csv_text(rows)


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text))


_OF_A_RUN = ("total_hours_low", "total_hours_high", "cost_usd_low", "cost_usd_high")
_FIGURES = (
    "verdict",
    "peak_bytes",
    "need_low_bytes",
    "need_high_bytes",
    "capacity_bytes",
    "headroom_bytes",
    *_OF_A_RUN,
)


def _figures(of: Estimate | None) -> list[object]:
    if of is None:
        return [""] * len(_FIGURES)
    written = contract.write_estimate(of)
    written["headroom_bytes"] = of.headroom_bytes if of.gpu else None
    if not of.can_run:
        written |= dict.fromkeys(_OF_A_RUN)
    return [written[key] for key in _FIGURES]


# --- for a ticket -------------------------------------------------------------------------------


def write_markdown(of: Subject) -> str:
    """The comparison in Markdown."""
    lines = [f"## {_title(of)}", ""]
    lines += [f"- {_markdown(answer)}" for answer in _answers(of)]
    rows = [*results_table.results(of.shown, of.within), *results_table.differences(of.shown)]
    names = " | ".join(_markdown(one.name) for one in of.shown)
    lines += ["", f"| | {names} |", "|---" * (len(of.shown) + 1) + "|"]
    for row in rows:
        cells = " | ".join(
            f"**{_markdown(cell.text)}**" if cell.best else _markdown(cell.text)
            for cell in row.cells
        )
        lines.append(f"| {_markdown(row.label)} | {cells} |")
    lines += ["", "Bold is the best of its row.", "", "Assumed:", ""]
    lines += [f"- {_markdown(assumption)}" for assumption in findings.assumptions(of.shown)]
    lines += [
        "",
        origin.RANGE,
        "",
        f"{of.origin}. {f'[Open it]({of.link})' if of.link else ''}".rstrip(),
        "",
    ]
    return "\n".join(lines)


def _markdown(text: str) -> str:
    r"""Escapes a text for Markdown.

    >>> print(_markdown("a|b <i> [x](y)"))
    a\|b &lt;i> \[x\](y)
    """
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text).replace("<", "&lt;").replace("@", "&#64;")


def _title(of: Subject) -> str:
    return f"GPU memory, time and cost of {len(of.shown)} fine-tuning setups"


def _answers(of: Subject) -> list[str]:
    return findings.answers(of.shown, of.within, of.context)


# --- the report ---------------------------------------------------------------------------------


def write_html(of: Subject) -> str:
    """A self-contained HTML file that prints to two A4 pages: the results and their basis."""
    results = results_table.results(of.shown, of.within)
    differs = results_table.differences(of.shown)
    answers = "".join(f"<li>{escape(answer)}</li>" for answer in _answers(of))
    assumed = "".join(
        f"<li>{escape(assumption)}</li>" for assumption in findings.assumptions(of.shown)
    )
    refused = "".join(
        f"<li>“{escape(one.name)}” is refused: {escape(one.problem)}</li>"
        for one in of.shown
        if one.estimate is None
    )
    link = f'<p class="link">{escape(of.link)}</p>' if of.link else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(_title(of))}</title>
<meta name="viewport" content="width=device-width">
<style>{_STYLE}</style></head><body class="{"many" * (len(of.shown) > 4)}">
<section><h1>{escape(_title(of))}</h1><p class="origin">{escape(of.origin)}</p>
<ul>{answers}{refused}</ul>
<h2>At the peak, on one scale</h2>
{svg(of.shown)}
<p class="legend">{_legend(of.shown)}</p>
<h2>Results</h2>{_across(of.shown, results)}<p class="small">Green and bold: the best of its column.</p></section>
<section class="second"><h2>What differs</h2>{_down(of.shown, differs)}
<h2>Assumptions</h2><ul class="small assumed">{assumed}</ul>
<h2>What the ranges mean</h2><p class="small">{escape(origin.RANGE)}</p>
<h2>Open in Headroom</h2>{link}<p class="origin">{escape(of.origin)}</p></section>
</body></html>
"""


_STYLE = """
@page { size: A4 portrait; margin: 13mm; }
* { box-sizing: border-box; }
body { font: 10.5pt/1.4 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: #1B2530; margin: 0 auto;
  max-width: 184mm; padding: 8mm 0; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
@media print { body { padding: 0; max-width: none; } .second { break-before: page; } section { break-inside: avoid; } }
h1 { font-size: 17pt; margin: 0; line-height: 1.2; } h2 { font-size: 12pt; margin: 4mm 0 1.5mm; }
.origin { color: #4A5560; font-size: 9pt; margin: 1mm 0 3mm; }
ul { margin: 0; padding-left: 5mm; } li { margin: .6mm 0; }
.small, .small li { font-size: 8.5pt; line-height: 1.35; margin-bottom: 0; }
svg { width: 100%; height: auto; display: block; } .legend { font-size: 8.5pt; margin: 1mm 0 0; }
.legend span { white-space: nowrap; margin-right: 3.5mm; }
.legend i { display: inline-block; width: 3mm; height: 3mm; margin-right: 1mm; vertical-align: -.3mm; }
table { border-collapse: collapse; width: 100%; font-size: 8.5pt; line-height: 1.3; table-layout: fixed; }
.many { font-size: 9.5pt; } .many h2 { margin-top: 2.5mm; } .many table { font-size: 7.5pt; }
.many td, .many th { padding: .6mm 1.2mm; } .many .assumed { columns: 2; column-gap: 9mm; padding-left: 3mm; }
.assumed li { break-inside: avoid; }
.many .small, .many .small li { font-size: 7.5pt; }
th, td { text-align: left; vertical-align: top; padding: 1mm 1.5mm; border-bottom: .2mm solid #C5CCD3;
  overflow-wrap: anywhere; }
thead th { border-bottom-color: #4A5560; } tbody th { font-weight: 600; }
td.best { background: #E0F1EA; font-weight: 700; } small { display: block; color: #4A5560; font-weight: 400; }
.link { font-size: 7.5pt; overflow-wrap: anywhere; margin: 0; }
"""


def _across(shown: Sequence[ComparedEntry], rows: Sequence[Row]) -> str:
    """One line per scenario, one column per property."""
    head = "".join(f'<th scope="col">{escape(row.label)}</th>' for row in rows)
    body = "".join(
        f'<tr><th scope="row">{escape(one.name)}</th>{"".join(_cell(row.cells[at]) for row in rows)}</tr>'
        for at, one in enumerate(shown)
    )
    return f'<table><thead><tr><th scope="col">Scenario</th>{head}</tr></thead><tbody>{body}</tbody></table>'


def _down(shown: Sequence[ComparedEntry], rows: Sequence[Row]) -> str:
    """One line per property, one column per scenario."""
    if not rows:
        return '<p class="small">Nothing differs: all scenarios have the same setup.</p>'
    head = "".join(f'<th scope="col">{escape(one.name)}</th>' for one in shown)
    body = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th>{"".join(map(_cell, row.cells))}</tr>'
        for row in rows
    )
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(cell: results_table.Cell) -> str:
    beside = f"<small>{escape(cell.beside)}</small>" if cell.beside else ""
    return f'<td class="{"best" * cell.best}">{escape(cell.text)}{beside}</td>'


# --- the chart as SVG ---------------------------------------------------------------------------

WIDTH, LEFT, RIGHT = 1000, 280, 110
"""Width and margins of the drawing, in its own units. Names and totals fit in wide fonts too: a bold letter of DejaVu
Sans is on average 0.7 times its size wide."""
NAME_LETTERS, CARD_LETTERS = 23, 26
ROW, BAR, FOOT = 46, 36, 36


def svg(shown: Sequence[ComparedEntry]) -> str:
    """The stacked bars of ``peaks_figure.figure`` as an SVG without scripts."""
    found = entry.bars(shown)
    sizes = [estimate.need_high_bytes for _, estimate in found]
    sizes += [estimate.gpu.memory_bytes for _, estimate in found if estimate.gpu]
    end = scale(max(sizes, default=1))
    unit = (WIDTH - LEFT - RIGHT) / end
    height = ROW * len(found) + FOOT
    drawn = _grid(end, unit, height)
    drawn += [_svg_bar(name, one, ROW * place, unit) for place, (name, one) in enumerate(found)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(peaks_figure.figure_alt(shown), quote=True)}" font-family="system-ui, sans-serif" '
        f'font-size="15" fill="#1B2530">{"".join(drawn)}</svg>'
    )


def _grid(end: float, unit: float, height: int) -> list[str]:
    step = end / 4
    marks = []
    for number in range(5):
        x = LEFT + unit * step * number
        anchor = "end" if number == 4 else "middle"
        said = f"{step * number:,.10g}{' GiB' * (number == 4)}"
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - FOOT + 6}" stroke="#D5DAE0"/>'
            f'<text x="{x:.1f}" y="{height - 12}" text-anchor="{anchor}">{said}</text>'
        )
    return marks


def _svg_bar(name: str, estimate: Estimate, top: int, unit: float) -> str:
    y = top + (ROW - BAR) / 2
    where = terms.card(estimate.gpu) if estimate.gpu else "no GPU"
    label = f'<text x="{LEFT - 12}" text-anchor="end"'
    drawn = [
        f'{label} y="{y + 14}" font-weight="700">{escape(peaks_figure.cut(name, NAME_LETTERS))}</text>',
        f'{label} y="{y + 32}">{escape(peaks_figure.cut(where, CARD_LETTERS))}</text>',
    ]
    looks = {part.label: part for part in (*theme.COMPONENTS.values(), theme.RESERVE)}
    x = float(LEFT)
    for label, size in peak_parts(estimate).items():
        width = unit * units.in_gib(size)
        if not size:
            continue
        part = looks[label]
        fill = "#FFFFFF" if part.hollow else part.colour
        drawn.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{fill}" stroke="{part.colour}"/>'
        )
        if width > 46:
            drawn.append(
                f'<text x="{x + width / 2:.1f}" y="{y + 25}" text-anchor="middle" fill="{part.ink}">'
                f"{units.number(size)}</text>"
            )
        x += width
    if estimate.gpu:
        line = LEFT + unit * units.in_gib(estimate.gpu.memory_bytes)
        drawn.append(
            f'<line x1="{line:.1f}" x2="{line:.1f}" y1="{top + 3}" y2="{top + ROW - 3}" '
            f'stroke="{theme.VERDICTS[Verdict.DOES_NOT_FIT].colour}" stroke-width="4"/>'
        )
        x = line if line - 90 < x < line else x
    drawn.append(
        f'<text x="{x + 8:.1f}" y="{y + 26}" font-size="18" font-weight="700">{escape(_need(estimate))}</text>'
    )
    return "".join(drawn)


def _need(estimate: Estimate) -> str:
    sign = f" {terms.SIGNS[estimate.verdict]}" if estimate.verdict else ""
    return f"{units.number(estimate.need_high_bytes)}{sign}"


def _legend(shown: Sequence[ComparedEntry]) -> str:
    there = {
        label for _, one in entry.bars(shown) for label, size in peak_parts(one).items() if size
    }
    parts = [part for part in (*theme.COMPONENTS.values(), theme.RESERVE) if part.label in there]
    swatches = [
        f'<span><i style="background:{"#fff" if part.hollow else part.colour};outline:.3mm solid {part.colour}"></i>'
        f"{escape(part.label)}</span>"
        for part in parts
    ]
    line = theme.VERDICTS[Verdict.DOES_NOT_FIT].colour
    swatches.append(f'<span><i style="background:{line};width:1mm"></i>what the GPU has</span>')
    return "".join(swatches)

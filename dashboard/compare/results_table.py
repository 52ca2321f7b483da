"""Table rows: the differences between scenarios, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from dashboard.compare import entry
from dashboard.compare.entry import ComparedEntry
from dashboard.words import key_words, terms, units
from estimator import Estimate, Verdict, contract

ADAPTERS_ONLY = (
    *("lora_", "autocast_adapter", "use_dora", "modules_to_save", "bias", "rank_pattern"),
    *("layers_to_transform", "exclude_modules", "target_parameters"),
)
QLORA_ONLY = ("bnb_", "prepare_model")
NONE = "–"


class Cell(NamedTuple):
    """One scenario's value in a row."""

    text: str
    best: bool = False
    beside: str = ""
    """The value relative to the first scenario."""


class Row(NamedTuple):
    """One property, with a cell per scenario."""

    label: str
    cells: tuple[Cell, ...]


def differences(shown: Sequence[ComparedEntry]) -> list[Row]:
    """Keys whose values differ between scenarios. A dash means that a key does not apply."""
    return [
        Row(key_words.label(key), tuple(Cell(text) for text in texts))
        for key, texts in differing(shown).items()
    ]


def differing(shown: Sequence[ComparedEntry]) -> dict[str, list[str]]:
    """Keys whose values differ, each with a text per scenario."""
    written = [
        {}
        if one.estimate is None
        else contract.write_fields(one.estimate.model, one.estimate.gpu, one.estimate.setup)
        for one in shown
    ]
    default = {key.name: key.default for key in contract.KEYS}
    rows: dict[str, list[str]] = {}
    for key in ("model", "gpu", *default):
        texts = [
            _value(one.estimate, key, given.get(key, default.get(key)))
            for one, given in zip(shown, written, strict=True)
        ]
        if len({text for text in texts if text != NONE}) > 1:
            rows[key] = texts
    return rows


def _value(of: Estimate | None, key: str, value: object) -> str:
    if of is None:
        return NONE
    if key.startswith(ADAPTERS_ONLY) and not of.setup.adapters.uses_adapters:
        return NONE
    if key.startswith(QLORA_ONLY) and not of.setup.adapters.has_4bit_base:
        return NONE
    if key == "model":
        return of.model.hub_id or f"own {of.model.model_type}"
    if key == "gpu":
        return terms.card(of.gpu) if of.gpu else "none"
    if key == "method":
        return of.setup.adapters.method.label
    return key_words.value(value)


def results(shown: Sequence[ComparedEntry], within: float | None = None) -> list[Row]:
    """Verdict, need, headroom, hours and cost, and whether each meets the deadline.

    The least hours and cost are marked as best; unused memory is no virtue.
    """
    rows = [
        Row("Verdict", tuple(Cell(_verdict(one)) for one in shown)),
        Row("Need", _cells(shown, _need, _need_text, gib_more, has_best=False)),
        Row("Headroom", tuple(Cell(_headroom(one)) for one in shown)),
        Row("Hours", _cells(shown, entry.hours, _hours_text, times)),
        Row("Cost", _cells(shown, entry.dollars, _dollars_text, times)),
    ]
    if within is not None:
        rows.append(
            Row(f"Within {within:,g} h", tuple(Cell(in_time(one, within)) for one in shown))
        )
    return rows


def _cells(
    shown: Sequence[ComparedEntry],
    measure: Callable[[Estimate], float | None],
    say: Callable[[Estimate], str],
    beside: Callable[[float, float], str] | None = None,
    *,
    has_best: bool = True,
) -> tuple[Cell, ...]:
    """Cells of a row; if there are several values, the smallest is marked as best, unless ``has_best`` is False."""
    found = [None if one.estimate is None else measure(one.estimate) for one in shown]
    known = [value for value in found if value is not None]
    least = min(known) if len(known) > 1 and max(known) > min(known) else None
    first = found[0] if found else None
    return tuple(
        Cell(
            NONE if one.estimate is None else say(one.estimate),
            has_best and value is not None and value == least,
            beside(value, first)
            if beside and number and value is not None and first is not None
            else "",
        )
        for number, (one, value) in enumerate(zip(shown, found, strict=True))
    )


def _verdict(one: ComparedEntry) -> str:
    if one.estimate is None:
        return "refused"
    if one.estimate.verdict is None:
        return "no GPU"
    return terms.sign(one.estimate.verdict)


def _need(of: Estimate) -> float:
    return float(of.need_high_bytes)


def _need_text(of: Estimate) -> str:
    return units.between(of.need_low_bytes, of.need_high_bytes)


def gib_more(value: float, first: float) -> str:
    """Difference in memory from the first scenario: ``+3.2 GiB``."""
    more = round(value - first)
    return (
        "the same"
        if abs(more) < units.GIB // 20
        else f"{'+' if more > 0 else '−'}{units.gib(abs(more))}"
    )


def _headroom(one: ComparedEntry) -> str:
    of = one.estimate
    if of is None or of.gpu is None:
        return NONE
    usable = of.gpu.memory_bytes
    if of.verdict is Verdict.DOES_NOT_FIT:
        said = f"{units.between(of.need_low_bytes - usable, of.need_high_bytes - usable)} short"
    elif of.verdict is Verdict.TIGHT:
        said = f"{units.gib(usable - of.need_low_bytes)} free at best"
    else:
        said = f"{units.gib(usable - of.need_high_bytes)} free"
    return f"{said} of {units.number(usable)}"


def _hours_text(of: Estimate) -> str:
    if of.time is None or not of.can_run:
        return NONE
    return units.duration(*of.time.total_hours)


def _dollars_text(of: Estimate) -> str:
    if of.cost is None or not of.can_run:
        return NONE
    return units.dollars(*of.cost.cost_usd)


def times(value: float, first: float) -> str:
    """Ratio to the first scenario: ``1.25 ×``."""
    return units.ratio(value / first if first else 1.0)


def in_time(one: ComparedEntry, within: float) -> str:
    """Whether a run finishes within the given hours, as text."""
    of = one.estimate
    if of is None or of.time is None:
        return NONE
    if of.verdict is Verdict.DOES_NOT_FIT:
        return "✕ does not fit"
    if of.time.total_hours.high <= within:
        return "✓ yes"
    return "≈ perhaps" if of.time.total_hours.low <= within else "✕ no"


def table_html(shown: Sequence[ComparedEntry], parts: Mapping[str, Sequence[Row]]) -> str:
    """Rows of properties under headings, one column per scenario.

    The best value is marked by a word and bold type, not only by colour.
    """
    first, *_ = parts
    names = "".join(f'<th scope="col">{escape(one.name)}</th>' for one in shown)
    span = len(shown) + 1
    body = ""
    for head, rows in parts.items():
        if head != first:
            body += f'<tr class="hr-part"><th scope="rowgroup" colspan="{span}">{escape(head)}</th></tr>'
        body += "".join(
            f'<tr><th scope="row">{escape(row.label)}</th>{"".join(map(_cell_html, row.cells))}</tr>'
            for row in rows
        )
    return (
        '<div class="hr-scroll" tabindex="0" role="region" aria-label="The scenarios as a table">'
        f'<table class="hr-compare"><thead><tr><th scope="col">{escape(first)}</th>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell_html(cell: Cell) -> str:
    beside = f"<small>{escape(cell.beside)}</small>" if cell.beside else ""
    if cell.best:
        return f'<td class="hr-best"><b>{escape(cell.text)}</b> <i>best</i>{beside}</td>'
    return f"<td>{escape(cell.text)}{beside}</td>"

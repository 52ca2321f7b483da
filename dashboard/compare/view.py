"""Widgets of the page Compare: settings, table and figure, downloads, presentation mode."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from html import escape
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from dashboard import theme
from dashboard.address.example import EXAMPLE
from dashboard.compare import entry, findings, peaks_figure, presets, report, results_table
from dashboard.compare.entry import ComparedEntry
from dashboard.state import comparison, models
from dashboard.state.comparison import Document
from dashboard.widgets import drawing, keeping
from dashboard.words import markup, one_line, origin
from estimator import Estimate, contract, estimate

POLL_SECONDS = 0.5
"""Seconds between polls for the Hub's answer. Our choice."""
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Contexts that can be set for all scenarios at once."""


class ComparePage(NamedTuple):
    """Data that the page shows."""

    document: Document
    shown: list[ComparedEntry]
    waits: bool


def read_page() -> ComparePage:
    """Reads the scenarios in the URL and estimates each."""
    waits, said = comparison.ask_for_models()
    document = comparison.document()
    shown = entry.entries(document.scenarios, models.known(), document.context, said)
    return ComparePage(document, shown, waits)


def draw(page: ComparePage) -> None:
    """Draws the page."""
    st.title("Compare", anchor=False)
    keeping.say_problems()
    _wait(page)
    if not page.shown:
        _nothing_yet()
        return
    _asked(page)
    for one in page.shown:
        if one.estimate is None:
            st.html(f'<p class="hr-note hr-refusal">{findings.refusal_html(one)}</p>')
    if said := _answers(page):
        st.html(findings.answers_html(said))
    _figure(page)
    parts = {
        "Results": results_table.results(page.shown, page.document.within),
        "What differs": results_table.differences(page.shown),
    }
    st.html(
        results_table.table_html(page.shown, {head: rows for head, rows in parts.items() if rows})
    )
    _arrange(page)
    _take_away(page)
    with st.expander("Assumptions"):
        st.html(findings.assumptions_html([*findings.assumptions(page.shown), origin.RANGE]))


def _answers(page: ComparePage) -> list[str]:
    return findings.answers(page.shown, page.document.within, page.document.context)


def _wait(page: ComparePage) -> None:
    """Polls until the Hub has answered."""
    if page.waits:
        st.fragment(_look, run_every=POLL_SECONDS, key="look")()


def _look() -> None:
    if not comparison.ask_for_models()[0]:
        st.rerun(scope="app")


def _figure(page: ComparePage, *, chosen: int | None = None) -> None:
    if not entry.bars(page.shown):
        return
    large = chosen is not None
    figure = peaks_figure.figure(page.shown, dark=drawing.is_dark(), large=large, chosen=chosen)
    drawing.plot(figure, "comparison", peaks_figure.figure_alt(page.shown), menu=True)


# --- settings ------------------------------------------------------------------------------


def base() -> Estimate:
    """The setup that presets vary: the setup of the page Estimate, else the example."""
    setup = comparison.document().setup
    if setup is not None:
        reading = contract.read(setup, models.known())
        if reading.model is not None:
            try:
                return estimate(reading.model, reading.gpu, reading.setup)
            except ValueError:
                pass
    return estimate(*contract.parse(dict(EXAMPLE)))


def _nothing_yet() -> None:
    of = base()
    st.html(
        '<p class="hr-text">No setups yet. Keep one on the page Estimate, or start with one of these, based on '
        f"{escape(one_line.setup_line(of))}:</p>"
    )
    with st.container(horizontal=True, key="presets", gap="small"):
        _presets()
    _load()


def _presets() -> None:
    for name, make in presets.PRESETS.items():
        st.button(name, on_click=_preset, args=(make,), key=f"preset {name}")


def _preset(make: Callable[[Estimate], list[contract.Scenario]]) -> None:
    comparison.put(make(base()))


def _asked(page: ComparePage) -> None:
    """Context for all scenarios, deadline, presets, undo, and links."""
    state, now = st.session_state, page.document
    options = sorted({*CONTEXTS, *([now.context] if now.context else [])})
    state["context of all"] = now.context
    state["within hours"] = now.within
    with st.container(horizontal=True, key="asked", gap="small", vertical_alignment="bottom"):
        st.selectbox(
            "What if: context for all",
            options,
            key="context of all",
            format_func=lambda one: f"{one:,} tokens",
            placeholder="Its own",
            on_change=lambda: comparison.turn(context=st.session_state["context of all"]),
            help="Estimates every scenario at this context instead of its own. The kept setups do not change.",
            width=210,
        )
        st.number_input(
            "Must be done within (hours)",
            0.1,
            1_000_000.0,
            step=1.0,
            key="within hours",
            placeholder="No deadline",
            format="%g",
            on_change=lambda: comparison.turn(within=st.session_state["within hours"]),
            help="Names the cheapest scenario that fits and finishes within this time.",
            width=210,
        )
        with st.popover("Presets", key="presets"):
            st.caption("Replaces the scenarios; Undo restores them.")
            _presets()
        st.button(
            "Undo", on_click=comparison.undo, disabled=not comparison.can_undo(), key="undo kept"
        )
        keeping.copy_button()
        keeping.present_button(entry.best(page.shown) + 1)


# --- rename, reorder, duplicate, remove, open ---------------------------------------------------


def _arrange(page: ComparePage) -> None:
    """Widgets that rename, open, move, duplicate or remove one scenario."""
    count = len(page.shown)
    names = [f"{at + 1}. {one.name}" for at, one in enumerate(page.shown)]
    st.html('<h2 class="hr-head">Change the comparison</h2>')
    with st.container(horizontal=True, key="arrange", gap="small", vertical_alignment="bottom"):
        at = st.selectbox(
            "Scenario",
            range(count),
            format_func=lambda one: names[one],
            key=f"one of {count}",
            width=280,
        )
        name = st.text_input(
            "Name",
            page.shown[at].name,
            max_chars=60,
            key=f"name of {at} {page.shown[at].name}",
            width=280,
        )
        if name != page.shown[at].name:
            if refusal := comparison.rename(at, name):
                st.error(markup.plain(refusal))
            else:
                st.rerun()
        if st.button("Open in the estimator", key="to estimator"):
            open_in_estimator(at)
        st.button(
            "← Earlier", on_click=_move, args=(at, at - 1, count), disabled=at == 0, key="earlier"
        )
        st.button(
            "Later →",
            on_click=_move,
            args=(at, at + 1, count),
            disabled=at == count - 1,
            key="later",
        )
        st.button(
            "Duplicate",
            on_click=comparison.duplicate,
            args=(at,),
            disabled=count == contract.MOST_SCENARIOS,
            key="duplicate",
        )
        st.button("Remove", on_click=comparison.remove, args=(at,), key="remove")


def _move(at: int, to: int, count: int) -> None:
    comparison.move(at, to)
    st.session_state[f"one of {count}"] = to


def open_in_estimator(at: int) -> None:
    """Opens one scenario on the page Estimate. The comparison stays in the URL."""
    keys = comparison.setup_params(comparison.scenarios()[at])
    st.session_state.pop("model", None)  # makes the page read its URL
    st.switch_page("pages/estimate.py", query_params={**keys, **comparison.params(estimates=True)})


# --- downloads ----------------------------------------------------------------------------------


def _take_away(page: ComparePage) -> None:
    """Downloads, each with the version, the date, the assumptions and the meaning of the ranges."""
    day = today()
    now = page.document
    subject = report.Subject(page.shown, day, _link(), now.within, now.context)
    document = now.setup.setup if now.setup else None
    files = {
        "Report (HTML, prints to two pages)": (
            "html",
            "text/html",
            lambda: report.write_html(subject),
        ),
        "Table (CSV)": ("csv", "text/csv", lambda: "\ufeff" + report.write_csv(subject)),
        "Table (JSON)": ("json", "application/json", lambda: report.write_json(subject)),
        "Summary (Markdown)": ("md", "text/markdown", lambda: report.write_markdown(subject)),
        "Scenarios (to load again)": (
            "scenarios.json",
            "application/json",
            lambda: contract.write_file(now.scenarios, document),
        ),
    }
    st.html('<h2 class="hr-head">Download</h2>')
    with st.container(horizontal=True, key="take away", gap="small"):
        for label, (ending, mime, make) in files.items():
            st.download_button(
                label,
                make,
                f"headroom-{day}.{ending}",
                mime,
                on_click="ignore",
                key=f"download {ending}",
            )
    _load()
    too_long = [scenario.name for scenario in now.scenarios if comparison.is_too_long(scenario)]
    if too_long:
        st.warning(
            markup.plain(
                f"Too long for a link: {', '.join(too_long)}. A copied link leaves them out; the file contains all."
            )
        )


def _load() -> None:
    st.file_uploader(
        "Load scenarios (.json)",
        type=["json"],
        key="scenario file",
        max_upload_size=1,
        on_change=_take_file,
    )


def _take_file() -> None:
    dropped = st.session_state.get("scenario file")
    if dropped is not None:
        comparison.load(dropped.getvalue())


def today() -> str:
    """Today's date in the visitor's time zone."""
    try:
        zone = ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        zone = ZoneInfo("UTC")
    return datetime.now(zone).date().isoformat()


def _link() -> str:
    """URL of this comparison; empty if the server does not know its own URL."""
    url = (st.context.url or "").partition("?")[0]
    return f"{url}?{comparison.query()}" if url else ""


# --- presentation mode ------------------------------------------------------------------------------


def present(page: ComparePage) -> None:
    """Presentation mode: one large verdict with the bars below it, and buttons for previous, next and leave."""
    st.html(theme.PRESENTATION)
    keeping.say_problems()
    _wait(page)
    if not page.shown:
        _nothing_yet()
        keeping.leave_button()
        return
    count = len(page.shown)
    at = min(page.document.present or 1, count) - 1
    st.html(findings.verdict_html(page.shown[at], at == entry.best(page.shown), _answers(page)))
    _figure(page, chosen=at)
    with st.container(horizontal=True, key="presenting", gap="small"):
        for label, to, shortcut in (
            ("← Previous", (at - 1) % count, "Left"),
            ("Next →", (at + 1) % count, "Right"),
        ):
            st.button(
                label,
                on_click=comparison.turn,
                kwargs={"present": to + 1},
                shortcut=shortcut,
                key=shortcut,
            )
        keeping.leave_button()

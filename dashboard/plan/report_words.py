"""The report of a plan as HTML: what was asked, what to take, and what that rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dashboard.plan import team_words, words
from dashboard.plan.team_asked import TeamAnswer
from dashboard.words import markup, origin
from estimator import Advice, Offer, Price, Question, TeamQuestion, plan_words

MOST_ROWS = 12
"""Setups of the front at most. Our choice: a third of a page."""
STYLE = """<style>
.stApp { color-scheme: light; background: #FFFFFF !important; color: #1B2530 !important; }
[data-testid="stHeader"] { display: none !important; }
.stMainBlockContainer { max-width: 45rem !important; padding: 1.5rem 1rem !important; }
.hr-report h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; padding: 0; }
.hr-report p { margin: .3rem 0; }
.hr-report .hr-verdict { min-height: 0; --hr: inherit; }
.hr-report table { width: 100%; border-collapse: collapse; font-size: .875rem; line-height: 1.35; }
.hr-report th, .hr-report td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0;
  border-bottom: 1px solid #C5CCD3; overflow-wrap: break-word; }
.hr-report .hr-source { overflow-wrap: anywhere; }
.hr-report .hr-link { font-size: .7rem; line-height: 1.3; }
.hr-report .hr-front td:not(:nth-child(2)), .hr-report .hr-front th { white-space: nowrap; }
.hr-report .hr-jobs td:not(#all) { white-space: normal !important; min-width: 0 !important; }
.hr-report tr.hr-best td, .hr-report tr.hr-best th { font-weight: 700; }
.hr-report a { color: #00507D; overflow-wrap: anywhere; }
.hr-report ul { margin: 0; padding-left: 1.2rem; font-size: .9375rem; line-height: 1.45; }
.hr-report .hr-head { break-after: avoid; }
.hr-report tr, .hr-report li, .hr-verdict { break-inside: avoid; }
.hr-back { position: absolute; right: 1rem; top: .4rem; }
@media print {
  @page { size: A4 portrait; margin: 13mm; }
  html, body, #root, .stApp, [data-testid="stAppViewContainer"], [data-testid="stMain"], .stMainBlockContainer
    { position: static !important; overflow: visible !important; height: auto !important; min-height: 0 !important;
      display: block !important; }
  .stMainBlockContainer { padding: 0 !important; max-width: none !important; }
  .hr-back, .modebar-container { display: none !important; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
</style>"""
"""A sheet of paper in both themes, in one column."""


def head(title: str, day: str, asked: str) -> str:
    """Title, version and day, and the question in words; ``asked`` is HTML."""
    return _part(
        f'<h1>{escape(title)}</h1><p class="hr-small">{escape(origin.line(day))}</p>'
        f'<h2 class="hr-head">The question</h2>{asked}'
    )


def title(question: Question) -> str:
    """Of one run: ``Fine-tuning Qwen3-8B``."""
    return f"Fine-tuning {words.one_of(words.model_names(question))}"


def team_question(team: TeamQuestion) -> str:
    """The jobs of a team in words, one a line."""
    said: list[str] = []
    for name, own in team.jobs.items():
        due = own.deadline_hours
        limits = f", due after {plan_words.duration(due)}" if due is not None else ""
        ready = team.ready_hours[name]
        begins = f", ready after {plan_words.duration(ready)}" if ready else ""
        said.append(f"{name}: {words.work_in_words(own)}{begins}{limits}.")
    cards = words.cards_in_words(next(iter(team.jobs.values())).offers)
    return words.list_html([*said, f"{cards}, for {plan_words.duration(team.horizon_hours)}."])


def recommendation(advice: Advice) -> str:
    """What to take, with its reasons."""
    return _part(words.panel_html(advice))


def details(advice: Advice) -> str:
    """Steps, the front as a table, near misses, how sure this is, and what it leaves out."""
    found = advice.candidates
    parts = []
    if advice.stairs:
        parts.append(_section("What the next dollar buys", [stair.text for stair in advice.stairs]))
    if len(advice.front):
        parts.append(_front(advice))
    if advice.misses:
        parts.append(_section("Why the others fail", [miss.text for miss in advice.misses]))
    parts.append(_section("How sure this is", _sure(advice)))
    used = [(found.offer(place), int(found.num_gpus[place])) for place in advice.front.tolist()]
    parts.append(prices(used))
    if advice.notes:
        parts.append(_section("What this leaves out", advice.notes))
    return _part("".join(parts))


def _sure(advice: Advice) -> list[str]:
    said = []
    asked = advice.question
    if advice.recommended is not None and (
        asked.deadline_hours is not None or asked.budget_usd is not None
    ):
        said.append(
            "The recommended setup meets the deadline and the budget even at the worse ends of its ranges."
            if advice.is_sure
            else "The recommended setup meets the deadline and the budget only at the better ends of its ranges."
        )
    return [*said, words.HINT, origin.RANGE]


def _front(advice: Advice) -> str:
    """The first rows of the front, cheapest first, and all that is named above."""
    places: list[int] = advice.front.tolist()
    named = {stair.place for stair in advice.stairs} | {advice.recommended}
    shown = [one for at, one in enumerate(places) if at < MOST_ROWS or one in named]
    found = advice.candidates
    rows = []
    for place in shown:
        setup = plan_words.title(found, place).partition(", ")[2]
        cells = (
            setup,
            plan_words.span(found.hours_of(place)),
            plan_words.span(found.dollars_of(place), "$"),
            f"{100 * plan_words.share_free(found, place):.0f} %",
        )
        best = ' class="hr-best"' if place == advice.recommended else ""
        rows.append(f"<tr{best}>{_cells((plan_words.cards(found, place), *cells))}</tr>")
    left = len(places) - len(shown)
    more = f"The {left:,} others are on the page Plan, and in its table." if left else ""
    head = ("Cards", "Setup", "Time", "Dollars", "Free")
    title = f"{len(places):,} setups that no other beats in dollars, time and free memory"
    return (
        f'<h2 class="hr-head">{title}</h2>{_table(head, rows, "hr-front")}'
        f'<p class="hr-small">Bold: recommended. {more}</p>'
    )


def prices(used: Iterable[tuple[Offer, int]]) -> str:
    """The listings that the dollars come from, each with the day it was read and where."""
    rows: dict[str, None] = {}
    for offer, count in used:
        price = offer.price(count)
        if price is not None and price.usd_per_gpu_hour:
            *said, source = _listing(offer, price)
            rows.setdefault(f'<tr>{_cells(said)}<td class="hr-source">{escape(source)}</td></tr>')
    if not rows:
        return ""
    head = ("Card", "Per GPU-hour", "Listing", "Read on", "Source")
    return f'<h2 class="hr-head">Where the prices come from</h2>{_table(head, list(rows))}'


def _listing(offer: Offer, price: Price) -> tuple[str, ...]:
    whose = ", ".join(filter(None, (price.provider, price.region, price.commitment)))
    if not price.source:
        return (offer.gpu.name, plan_words.usd(price.usd_per_gpu_hour), whose, price.date, "yours")
    return (
        offer.gpu.name,
        f"${price.usd_per_gpu_hour:.2f}",
        whose,
        price.date,
        price.source.partition(";")[0],
    )


def schedule(found: TeamAnswer) -> str:
    """A team's jobs as a table, what the hours and dollars rest on, and where the prices come from."""
    offers = {offer.gpu.name: offer for offer in next(iter(found.team.jobs.values())).offers}
    used = [
        (offers[assignment.option.pool], assignment.option.num_gpus)
        for assignment in found.timetable.assignments
    ]
    sure = [
        "Hours and dollars are the slow ends of their ranges, so that a deadline is met with them.",
        "For each number of cards the fastest setup is taken.",
        origin.RANGE,
    ]
    table = team_words.table_html(found)
    return _part(
        f'<h2 class="hr-head">The jobs</h2>{table}{_section("How sure this is", sure)}{prices(used)}'
    )


def foot(link: str) -> str:
    """Where the plan can be opened again."""
    return _part(
        f'<h2 class="hr-head">Open in Headroom</h2><p class="hr-link"><a href="{escape(link)}">{escape(link)}</a></p>'
    )


def _section(title: str, sentences: Sequence[str]) -> str:
    return f'<h2 class="hr-head">{escape(title)}</h2>{words.list_html(sentences)}'


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"<td>{markup.whole_prices(escape(cell))}</td>" for cell in cells)


def _table(head: Sequence[str], rows: Sequence[str], kind: str = "") -> str:
    titles = "".join(f'<th scope="col">{one}</th>' for one in head)
    return f'<table class="{kind}"><thead><tr>{titles}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _part(html: str) -> str:
    return f'<div class="hr-report">{html}</div>'

"""A plan as HTML and as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dashboard import theme
from dashboard.words import markup, terms, units
from estimator import Advice, Candidates, Verdict, plan_words

MOST_ROWS = 200
"""Maximum rows of the front's table. Our choice."""


def panel_html(advice: Advice) -> str:
    """The recommendation with its reasons, in a colour that shows how certain it is."""
    kind = Verdict.DOES_NOT_FIT
    if advice.recommended is not None:
        kind = Verdict.FITS if advice.is_sure else Verdict.TIGHT
    first, _, rest = advice.sentence.partition(": ")
    colours = f"light-dark({theme.VERDICTS[kind].colour}, {theme.VERDICTS_ON_DARK[kind]})"
    reasons = "".join(f"<li>{markup.whole_prices(escape(it))}</li>" for it in advice.reasons)
    said = f'<p class="hr-say">{markup.whole_prices(escape(rest))}</p>' if rest else ""
    return (
        f'<div class="hr-verdict" role="status" style="--hr: {colours}"><p class="hr-word">{escape(first)}</p>'
        f'{said}<ul class="hr-run">{reasons}</ul></div>'
    )


def list_html(sentences: Sequence[str]) -> str:
    """Sentences as an HTML list."""
    items = "".join(f"<li>{markup.whole_prices(escape(it))}</li>" for it in sentences)
    return f'<ul class="hr-text">{items}</ul>'


def row(advice: Advice, place: int) -> dict[str, object]:
    """One setup of the front as a table row, with plain numbers for sorting."""
    found = advice.candidates
    setup, offer = found.setup(place), found.offer(place)
    price = offer.price(setup.num_gpus)
    return {
        "GPUs": setup.num_gpus,
        "GPU": terms.card(offer.gpu),
        "Model": found.of(place).model.hub_id,
        "Method": terms.METHODS[setup.method],
        "With": plan_words.title(found, place).split(", ", 2)[2],
        "Hours, low": round(float(found.hours_low[place]), 2),
        "Hours, high": round(float(found.hours_high[place]), 2),
        "Dollars, low": round(float(found.dollars_low[place]), 2),
        "Dollars, high": round(float(found.dollars_high[place]), 2),
        "Free": units.in_gib(int(found.capacity_bytes[place] - found.high_bytes[place])),
        "In time and budget": _meets(advice, place),
        "Provider": price.provider if price else None,
    }


def _meets(advice: Advice, place: int) -> str:
    if advice.meets[place]:
        return "yes"
    return "perhaps" if advice.may_meet[place] else "no"


def picked_html(found: Candidates, place: int) -> str:
    """The clicked setup in words."""
    said = f"{plan_words.terms(found, place)}; {plan_words.free(found, place)} stay free."
    return (
        f'<p class="hr-picked"><b>{escape(plan_words.title(found, place))}</b><br>'
        f"{markup.whole_prices(escape(said))}</p>"
    )

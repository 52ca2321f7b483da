"""A plan as HTML and as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dashboard import theme
from dashboard.words import markup, terms, units
from estimator import Advice, Candidates, Offer, Pick, Question, Verdict, plan_words

HINT = "Setups whose ranges of hours and dollars overlap count as one step."
BEFORE = "To the question before"
"""How an answer begins that is not to what the form asks."""
MOST_ROWS = 200
"""Maximum rows of the front's table. Our choice."""


def panel_html(one: Advice | Pick, *, is_current: bool = True, before: str = BEFORE) -> str:
    """The recommendation with its reasons, in a colour that shows how certain it is.

    ``is_current``: whether it answers what the form asks; ``before``: how it begins if it does not.
    """
    kind = Verdict.DOES_NOT_FIT
    first, rest = one.sentence, ""
    if (place := one.recommended) is not None:
        kind = Verdict.FITS if one.is_sure else Verdict.TIGHT
        found = one.candidates
        first = f"Take {plan_words.cards(found, place)}: {plan_words.terms(found, place)}"
        rest = plan_words.recommended_setup(found, one.question, place, is_sure=one.is_sure)
    reasons = one.reasons if isinstance(one, Advice) else ()
    return verdict_html(kind if is_current else None, first, rest, reasons, before)


def growing_html(best: Pick, each: Sequence[tuple[str, Pick]]) -> str:
    """The best of the setups that are computed already, and with each method."""
    before = f"Of {len(best.candidates):,} setups so far"
    return panel_html(best, is_current=False, before=before) + each_html(
        [(name, taken(one)) for name, one in each]
    )


def verdict_html(
    kind: Verdict | None, first: str, rest: str, reasons: Sequence[str], before: str = BEFORE
) -> str:
    """A panel in a verdict's colour: a large line, a smaller one, and a list.

    None: no answer to what the form asks, in the text's colour, after ``before``.
    """
    if kind is None:
        colours, first = "currentColor", f"{before}: {first}"
    else:
        colours = f"light-dark({theme.VERDICTS[kind].colour}, {theme.VERDICTS_ON_DARK[kind]})"
    items = "".join(f"<li>{markup.whole_prices(escape(reason))}</li>" for reason in reasons)
    said = f'<p class="hr-say">{markup.whole_prices(escape(rest))}</p>' if rest else ""
    return (
        f'<div class="hr-verdict" role="status" style="--hr: {colours}">'
        f'<p class="hr-word">{markup.whole_prices(escape(first))}</p>{said}<ul class="hr-run">{items}</ul></div>'
    )


def each_html(answers: Sequence[tuple[str, str]]) -> str:
    """What to take with each method, by its name, in one line each."""
    lines = "".join(
        f"<li><b>{escape(name)}</b>: {markup.whole_prices(escape(said))}</li>"
        for name, said in answers
    )
    return f'<h2 class="hr-head">With each method</h2><ul class="hr-text">{lines}</ul>'


def taken(one: Pick) -> str:
    """What to take and what it costs, or why nothing, in a line."""
    place, found = one.recommended, one.candidates
    if place is None:
        return one.sentence
    perhaps = "" if one.is_sure or not _limits(one.question) else "perhaps "
    return f"{perhaps}{plan_words.cards(found, place)}, {plan_words.terms(found, place)}"


def list_html(sentences: Sequence[str]) -> str:
    """Sentences as an HTML list."""
    items = "".join(f"<li>{markup.whole_prices(escape(sentence))}</li>" for sentence in sentences)
    return f'<ul class="hr-text">{items}</ul>'


def row(advice: Advice, place: int) -> dict[str, object]:
    """One setup of the front as a table row, with plain numbers for sorting."""
    found = advice.candidates
    setup, offer = found.setup(place), found.offer(place)
    price = offer.price(setup.mesh.num_gpus)
    return {
        "GPUs": setup.mesh.num_gpus,
        "GPU": terms.card(offer.gpu),
        "Model": found.of(place).model.hub_id,
        "Method": setup.adapters.method.label,
        "With": plan_words.title(found, place).split(", ", 2)[2],
        "Hours, low": round(float(found.hours.low[place]), 2),
        "Hours, high": round(float(found.hours.high[place]), 2),
        "Dollars, low": round(float(found.dollars.low[place]), 2),
        "Dollars, high": round(float(found.dollars.high[place]), 2),
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


# --- the question in words ----------------------------------------------------------------------


def asked_in_words(question: Question) -> str:
    """The question of one run in two sentences: what is trained on what, and what may be used."""
    work = work_in_words(question)
    return f"Train {work}. {cards_in_words(question.offers)}{_limits(question)}."


def work_in_words(question: Question) -> str:
    """What is trained on what, in a clause."""
    adapters = any(method.has_adapters for method in question.methods)
    methods = one_of([method.phrase for method in question.methods])
    rank = f" of rank {one_of([str(rank) for rank in question.ranks])}" if adapters else ""
    return (
        f"{one_of(model_names(question))} with {methods}{rank} on {question.num_train_examples:,} examples of "
        f"{lengths_in_words(question)}; {_epochs(question.num_train_epochs)}, {question.effective_batch:,} examples a "
        "step"
    )


def model_names(question: Question) -> list[str]:
    """The models without their owners."""
    return [
        terms.short_name(model) if isinstance(model, str) else "your own model"
        for model in question.models
    ]


def lengths_in_words(question: Question) -> str:
    """The tokens of an example: ``600 tokens on average, 1,024 at most``."""
    lengths = question.lengths
    if lengths.mean == lengths.longest:
        said = f"{lengths.longest:,} tokens"
    else:
        said = f"{lengths.mean:,.0f} tokens on average, {lengths.longest:,} at most"
    return said if question.context is None else f"{said}, in rows of {question.context:,}"


def cards_in_words(offers: Sequence[Offer]) -> str:
    """The cards that can be had, in a clause."""
    said = [
        f"up to {offer.most} × {offer.name}" if offer.most > 1 else f"1 × {offer.name}"
        for offer in offers
    ]
    return f"Cards: {'; '.join(said)}"


def _epochs(number: float) -> str:
    return "1 epoch" if number == 1 else f"{number:g} epochs"


def _limits(question: Question) -> str:
    said = []
    if question.deadline_hours is not None:
        said.append(f"within {plan_words.duration(question.deadline_hours)}")
    if question.budget_usd is not None:
        said.append(f"for at most {plan_words.usd(question.budget_usd)}")
    return f"; {' and '.join(said)}" if said else ""


def one_of(names: Sequence[str]) -> str:
    """Alternatives in a sentence.

    >>> one_of(["a"]), one_of(["a", "b", "c"])
    ('a', 'a, b or c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"

"""The verdict as a coloured panel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from dashboard import theme
from dashboard.words import controls, marks, one_line, setup_sentence, verdicts
from estimator import (
    Dtype,
    Estimate,
    Gpu,
    SimilarRuns,
    TrainingSetup,
    Verdict,
    accuracy,
    contract,
    estimate,
    offloads,
)

CLASS = "hr-verdict"
"""The panel's CSS class, also used by scripts."""


def trust_sentence(estimate: Estimate, similar: SimilarRuns) -> str:
    """Errors of measured runs of this kind, or of the most similar runs if there are none."""
    setup, trust = estimate.setup, similar.trust
    if trust is None:
        return f"No run of {_method(setup)} was measured."
    runs = f"{trust.runs} measured run{'s' * (trust.runs != 1)}"
    off = f"{_off(trust.median)} off in the median, {_off(trust.largest)} at most."
    if not similar.differs_in:
        return f"{runs} of this kind ({_measured(similar)}): {off}"
    lacks = [
        said
        for facet, said in (
            (accuracy.Facet.STRATEGY, _shared(setup)),
            (accuracy.Facet.FAMILY, f"with {estimate.model.model_type}'s layers"),
            (accuracy.Facet.CARD, f"on {_generation(estimate.gpu)}"),
        )
        if facet in similar.differs_in
    ]
    return f"No run of {_method(setup)} was measured {' '.join(lacks)}. Nearest: {runs} ({_measured(similar)}), {off}"


def _measured(similar: SimilarRuns) -> str:
    """The measured runs: method, strategy, models and cards."""
    first = similar.runs[0].setup
    families = sorted({run.model.model_type for run in similar.runs if run.model is not None})
    cards = sorted({run.reading.gpu.name for run in similar.runs if run.reading.gpu is not None})
    shared = sorted({_shared(run.setup) for run in similar.runs})
    said = f"{_method(first)} {' and '.join(shared)}, {' and '.join(families)}"
    return f"{said}, {' and '.join(cards)}" if cards else said


def _method(setup: TrainingSetup) -> str:
    """The method, for use within a sentence: ``full fine-tuning``, ``QLoRA``."""
    return setup.adapters.method.phrase


def _shared(setup: TrainingSetup) -> str:
    """The strategy in words: ``on one GPU``, ``under FSDP 1``, ``under zero2 with offload``."""
    if setup.mesh.tp_size > 1:
        return f"under {setup.mesh.way.replace('fsdp', 'FSDP 2')}"
    if setup.mesh.strategy.is_alone:
        return "on one GPU"
    way = setup.mesh.strategy.value
    if setup.mesh.strategy.is_fsdp:
        version = 1 if setup.mesh.uses_fsdp1 else 2
        is_plain = not (setup.mesh.strategy.keeps_gathered or setup.mesh.strategy.has_groups)
        way = f"FSDP {version}" if is_plain else f"{way} of FSDP {version}"
    return f"under {way}{' with offload' * offloads(setup.mesh)}"


def _generation(gpu: Gpu | None) -> str:
    return "any card" if gpu is None else f"a card of {gpu.vendor}'s {gpu.architecture} generation"


def _off(error: float) -> str:
    return "<0.1 %" if error < 0.0005 else f"{100 * error:.1f} %"


def verdict_html(estimate: Estimate, similar: SimilarRuns) -> str:
    """The verdict as a coloured panel. The words convey everything that the colour does."""
    saying = verdicts.verdict(estimate)
    colour = _colour(estimate.verdict)
    of = marks.mark(estimate.model, estimate.gpu, estimate.setup)
    beside = f"{saying.when} {saying.capacity} {trust_sentence(estimate, similar)}"
    return (
        f'<div class="{CLASS}" role="status" data-of="{kind(estimate)}" data-setup="{of}" style="--hr: {colour}">'
        f'<p class="hr-setup">{_setup_html(estimate)}</p>'
        f'<p class="hr-word">{escape(saying.word)}</p>'
        f'<p class="hr-say">{escape(saying.sentence)}</p>'
        f'<p class="hr-run">{escape(one_line.run_sentence(estimate) or saying.stops)}</p>'
        '<details class="hr-small" data-hr="verdict"><summary>The highest moment, and how sure this is</summary>'
        f"<p>{escape(beside)}</p></details></div>{compact_html(saying.word, one_line.run(estimate), colour)}"
    )


def _setup_html(of: Estimate) -> str:
    """The setup as a sentence, whose words lead to the controls that change them; its numbers are scrubbed.

    Browsers would break a line between a button and its comma.
    """
    pieces = setup_sentence.pieces(of.model, of.gpu, of.setup)
    said = "".join(_piece_html(piece, of.setup) for piece in pieces)
    kept = re.sub(r"(<button[^>]*>[^<]*</button>[,.])", r'<span class="hr-whole">\1</span>', said)
    return f"{kept}{_offer_html(of)}"


def _offer_html(of: Estimate) -> str:
    """The other precision, where TRL's default alone keeps the setup from fitting; else empty."""
    if of.gpu is None or of.verdict is Verdict.FITS or not setup_sentence.loads_float32(of.setup):
        return ""
    try:
        other = estimate(of.model, of.gpu, of.setup.replace(dtype=OFFERED["dtype"]))
    except ValueError:
        return ""
    if other.verdict is not Verdict.FITS:
        return ""
    button = '<button type="button" data-proposal="offer bfloat16">in bfloat16 it fits</button>'
    return f" TRL loads float32; {button}."


OFFERED = {"dtype": Dtype.BFLOAT16}
"""What a click on the sentence's offer sets."""


def _piece_html(piece: setup_sentence.SentencePart, setup: TrainingSetup) -> str:
    if not piece.key:
        return escape(piece.text)
    control, *around = controls.control_of(piece.key)
    leads = f'data-leads="{control}"' + (f' data-within="{" ".join(around)}"' if around else "")
    scrubs = _scrubs(piece, control, setup) if piece.key in SLIDERS else ""
    return f'<button type="button" {leads}{scrubs}>{escape(piece.text)}</button>'


def _scrubs(piece: setup_sentence.SentencePart, control: str, setup: TrainingSetup) -> str:
    """What makes a number of the sentence a slider of its own, which ``slider_rows.js`` moves."""
    widget, now = SLIDERS[piece.key], setup.value(piece.key)
    ends = min(*widget.steps, now), max(*widget.steps, now)
    return (
        f' data-scrub="{control.removeprefix("st-key-")}" role="slider" aria-label="{widget.label}, in the sentence"'
        f' aria-valuemin="{ends[0]}" aria-valuemax="{ends[1]}" aria-valuenow="{now}"'
        f' aria-valuetext="{escape(piece.text)}" title="Drag it left or right; a click opens {widget.label}"'
    )


SLIDERS: Mapping[str, contract.Widget] = {
    key.name: key.widget
    for key in contract.KEYS
    if isinstance(key.widget, contract.Widget) and key.widget.shape == "slider"
}
"""Keys that a slider sets, with it."""


def kind(of: Estimate) -> str:
    """A mark of all of a setup but its sliders' keys: a slider's row is not drawn over another model's verdict."""
    facts = marks.fields(of.model, of.gpu, of.setup).items()
    return marks.digest({key: value for key, value in facts if key not in SLIDERS})


def _colour(verdict: Verdict | None) -> str:
    light, dark = theme.NEUTRAL
    if verdict is not None:
        light, dark = theme.VERDICTS[verdict].colour, theme.VERDICTS_ON_DARK[verdict]
    return f"light-dark({light}, {dark})"


def compact_html(word: str, run: str, colour: str) -> str:
    """The verdict in one line that stays visible: in the page's header, or at the bottom on a phone.

    It is hidden from screen readers, which read the panel itself.
    """
    said = f" <span>{escape(run)}</span>" if run else ""
    return f'<div class="hr-stays" aria-hidden="true" style="--hr: {colour}"><b>{escape(word)}</b>{said}</div>'


def refused_html() -> str:
    """The one-line verdict of a refused setup."""
    return compact_html("No estimate", "see why above", _colour(None))


def no_estimate_html(sentence: str) -> str:
    """The panel of a refused setup, shown while a slider moves over it."""
    return (
        f'<div class="{CLASS}" role="status" style="--hr: {_colour(None)}">'
        f'<p class="hr-word">No estimate</p><p class="hr-say">{escape(sentence)}</p></div>'
        f"{compact_html('No estimate', '', _colour(None))}"
    )

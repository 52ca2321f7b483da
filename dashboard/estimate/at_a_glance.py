"""The top of the page: the verdict in words, the hero figure, and the methods' figure below it."""

from __future__ import annotations

import re
from typing import NamedTuple

from dashboard.estimate import hero_figure, method_cards, verdict_panel
from dashboard.estimate.computed_once import computed_once
from dashboard.figures.memory_bars import Figure
from dashboard.figures.rows import Document
from dashboard.words import marks
from estimator import Estimate, Gpu, Model, TrainingSetup, estimate, similar_runs


class GlanceOptions(NamedTuple):
    """Display options of both figures."""

    dark: bool = False
    large: bool = False
    """Enlarged, for the projector."""


class DescribedFigure(NamedTuple):
    """A figure and its text alternative."""

    figure: Figure
    alt: str


def verdict_html(answer: Estimate) -> str:
    """The verdict of an answer as HTML."""
    return _verdict(answer.model, answer.gpu, answer.setup)


def figure(answer: Estimate, look: GlanceOptions) -> DescribedFigure:
    """The hero figure of an answer. Shared by all visitors: do not change it."""
    return _figure(answer.model, answer.gpu, answer.setup, look)


def methods_figure(answer: Estimate, look: GlanceOptions) -> DescribedFigure:
    """The peaks of an answer's methods, which no move of a slider draws."""
    others = method_cards.methods(answer)
    drawn = hero_figure.methods(answer, others, dark=look.dark)
    return _described(drawn, hero_figure.methods_alt(answer, others), look)


def _described(drawn: Figure, alt: str, look: GlanceOptions) -> DescribedFigure:
    return DescribedFigure(hero_figure.enlarged(drawn) if look.large else drawn, alt)


# A slider's row computes what the page shows after its release.
@computed_once(maxsize=512)
def _verdict(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> str:
    answer = estimate(model, gpu, setup)
    return verdict_panel.verdict_html(answer, similar_runs(answer))


@computed_once(maxsize=256)
def _figure(
    model: Model, gpu: Gpu | None, setup: TrainingSetup, look: GlanceOptions
) -> DescribedFigure:
    answer = estimate(model, gpu, setup)
    drawn = hero_figure.hero(answer, dark=look.dark)
    return _described(drawn, hero_figure.hero_alt(answer), look)


def document(answer: Estimate | str, look: GlanceOptions) -> Document:
    """Verdict and figure as one document. The verdict is split into tags. A refusal has only its sentence."""
    if isinstance(answer, str):
        return _document(verdict_panel.no_estimate_html(answer), DescribedFigure({}, ""), "")
    of = marks.mark(answer.model, answer.gpu, answer.setup)
    return _document(verdict_html(answer), figure(answer, look), of)


def _document(html: str, seen: DescribedFigure, of: str) -> Document:
    return {
        "of": of,
        "html": {f".{verdict_panel.CLASS}": re.split("(?=<)", html)},
        "figure": seen.figure or None,
        "alt": seen.alt,
    }

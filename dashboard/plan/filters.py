"""Which of a question's setups the page shows: its filters, which the URL holds beside the question."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import streamlit as st

from dashboard.plan import words
from estimator import Candidates, Method

METHODS, CARDS, MOST = "show_methods", "show_cards", "most_gpus"
"""Keys in the URL."""


class Filters(NamedTuple):
    """Filters; an empty one shows everything."""

    methods: tuple[str, ...] = ()
    """By their names on the page."""
    cards: tuple[str, ...] = ()
    most: int | None = None
    """GPUs, at most."""

    def mask(self, found: Candidates) -> Any:
        """Which setups pass."""
        recipes = [
            (not self.methods or recipe.setup.adapters.method.label in self.methods)
            and (not self.cards or found.question.offers[recipe.offer].name in self.cards)
            for recipe in found.recipes
        ]
        keep = np.array(recipes, np.bool_)[found.recipe]
        return keep if self.most is None else keep & (found.num_gpus <= self.most)

    @property
    def said(self) -> str:
        """The filters in a sentence; empty if there are none.

        >>> Filters(("LoRA", "QLoRA"), ("L4",), 2).said, Filters().said
        ('Only setups with LoRA or QLoRA, on L4 and with at most 2 GPUs are shown.', '')
        """
        parts = [f"with {words.one_of(self.methods)}"] if self.methods else []
        parts += [f"on {words.one_of(self.cards)}"] if self.cards else []
        if self.most is not None:
            parts.append(f"with at most {self.most} GPU{'s' if self.most > 1 else ''}")
        *first, last = parts or [""]
        return (
            f"Only setups {' and '.join([', '.join(first), last] if first else [last])} are shown."
            if last
            else ""
        )

    @property
    def params(self) -> dict[str, list[str]]:
        """As the URL has them."""
        most = [] if self.most is None else [str(self.most)]
        of = {METHODS: [*self.methods], CARDS: [*self.cards], MOST: most}
        return {key: texts for key, texts in of.items() if texts}


def in_url(found: Candidates) -> Filters:
    """The filters in the URL, without what this question does not have."""
    params = st.query_params
    methods, cards, counts = choices(found)
    most = next((count for count in counts[:-1] if params.get(MOST) == str(count)), None)
    return Filters(
        tuple(method for method in params.get_all(METHODS) if method in methods),
        tuple(card for card in params.get_all(CARDS) if card in cards),
        most,
    )


def choices(found: Candidates) -> tuple[list[str], list[str], list[int]]:
    """Methods, cards and numbers of GPUs of a question's setups."""
    methods = sorted(
        {recipe.setup.adapters.method for recipe in found.recipes}, key=list(Method).index
    )
    cards = list(dict.fromkeys(offer.name for offer in found.question.offers))
    return (
        [method.label for method in methods],
        cards,
        [int(one) for one in np.unique(found.num_gpus)],
    )


def draw(found: Candidates) -> Filters:
    """Draws a filter for each thing that differs between the setups."""
    methods, cards, counts = choices(found)
    several = [method for method in (methods, cards, counts) if len(method) > 1]
    places = iter(st.columns(len(several) or 1))
    chosen: list[tuple[str, ...]] = []
    for label, options, key in (("Show methods", methods, METHODS), ("Show cards", cards, CARDS)):
        _forget(key, options)
        picked = len(options) > 1 and next(places).pills(
            label, options, selection_mode="multi", wrap=True, key=key, bind="query-params"
        )
        chosen.append(tuple(picked or ()))
    most = None
    if len(counts) > 1:
        _forget(MOST, counts)
        with next(places):
            most = st.select_slider(
                "GPUs, at most", counts, counts[-1], key=MOST, bind="query-params"
            )
    return Filters(chosen[0], chosen[1], None if most == counts[-1] else most)


def _forget(key: str, options: list[Any]) -> None:
    """Drops a choice that another question had."""
    state = st.session_state
    held = state.get(key)
    if isinstance(held, list):
        if any(one not in options for one in held):
            state[key] = [one for one in held if one in options]
    elif held is not None and held not in options:
        del state[key]

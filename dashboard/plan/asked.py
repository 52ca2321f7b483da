"""The question of one run: its text, its answer, and its form's rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

from dashboard.plan.held import Held, short
from dashboard.state import models
from estimator import (
    Candidates,
    Offer,
    Progress,
    Question,
    candidates,
    catalog,
    question_object,
    question_of,
    question_of_text,
)

FIRST: Mapping[str, object] = {
    "model": ["mistralai/Mistral-7B-v0.1"],
    "cards": [
        {"gpu": "A100-SXM4-80GB", "most": 8},
        {"gpu": "H100-SXM5-80GB", "most": 8},
        {"gpu": "L40S", "most": 4},
        {"gpu": "GeForce RTX 4090", "most": 2},
    ],
    "lengths": {"mean": 600, "max": 1024},
    "methods": ["lora", "qlora"],
}
"""The initial question: the example's model and training examples, on commonly rented cards."""
Row = Mapping[str, Any]
"""A row of the table of cards."""


def read(text: str) -> Question:
    """A question from its JSON text; ``ValueError`` with one sentence if the text is invalid."""
    return question_of_text(short(text), "the link")


def text_of(question: Question) -> str:
    """A question as compact JSON.

    >>> read(text_of(question_of(FIRST))) == question_of(FIRST)
    True
    """
    return json.dumps(question_object(question), separators=(",", ":"))


RUN = Held("plan", read, text_of, lambda: question_of(FIRST))
"""The question of one run."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """Who follows the progress, which is all the same to a cache."""

    progress: Progress | None = field(compare=False)


@lru_cache(maxsize=8)
def _answered(text: str, known: tuple[str, ...], by: _Watched, *, are_bounded: bool) -> Candidates:
    del known  # only a cache key: the Hub may have returned a model since
    return candidates(read(text), models.known(), by.progress, are_bounded=are_bounded)


def unlimited(question: Question) -> Question:
    """The question whose setups are computed: deadline and budget are applied to them."""
    return replace(question, deadline_hours=None, budget_usd=None)


def answered(
    question: Question, progress: Progress | None = None, *, are_bounded: bool = False
) -> Candidates | str:
    """Every setup of a question, or its refusal. Cached independently of deadline and budget.

    ``are_bounded``: for ``pick`` alone, as ``candidates`` has it.
    """
    try:
        text, known = text_of(unlimited(question)), tuple(sorted(models.known()))
        return _answered(text, known, _Watched(progress), are_bounded=are_bounded)
    except ValueError as refusal:
        return str(refusal)


def card_object(offer: Offer) -> dict[str, Any]:
    """A card as a question writes it."""
    (written,) = cast("Any", question_object(Question(models=("",), offers=(offer,)))["cards"])
    return dict(written)


def card_rows(offers: Sequence[Offer]) -> list[dict[str, object]]:
    """The cards of a question as rows of a table."""
    return [
        {
            "GPU": offer.gpu.name_in_a_setup,
            "At most": offer.most,
            "Owned": offer.is_owned,
            "Dollars per GPU-hour": offer.usd_per_gpu_hour,
            "Provider": offer.provider or None,
        }
        for offer in offers
    ]


NOT_IN_THE_TABLE = frozenset(
    {
        "region",
        "commitment",
        "gpus_per_node",
        "spot_share",
        "interruptions_per_hour",
        "checkpoint_hours",
        "restart_hours",
    }
)
"""Keys of a card without a column in the table. A row takes them from the card with its name and provider."""


def cards_of(
    rows: Sequence[Row], kept: Sequence[Mapping[str, object]] = ()
) -> list[dict[str, object]]:
    """The question's cards from the rows of the table; rows without a name are skipped.

    ``kept``: the cards from which the table was made.

    >>> cards_of([{"GPU": "L4", "At most": 2, "Owned": False, "Dollars per GPU-hour": None, "Provider": None}])
    [{'gpu': 'L4', 'most': 2}]
    """
    found = []
    for row in rows:
        if not row["GPU"]:
            continue
        card: dict[str, object] = {"gpu": row["GPU"], "most": int(row["At most"] or 8)}
        card |= {"owned": True} if row["Owned"] else {}
        price = row["Dollars per GPU-hour"]
        card |= {} if price is None else {"usd_per_gpu_hour": float(price)}
        card |= {"provider": str(row["Provider"])} if row["Provider"] else {}
        same = (
            one for one in kept if all(one.get(key) == card.get(key) for key in ("gpu", "provider"))
        )
        card |= {key: value for key, value in next(same, {}).items() if key in NOT_IN_THE_TABLE}
        found.append(card)
    return found


def model_options() -> list[str]:
    """Models that a question can name: those in the catalogue and in the session."""
    return list(dict.fromkeys([*catalog.models(), *models.known()]))

"""The report of a plan: every sentence of the answer, the prices with their days, and a link back."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from dashboard.plan import report_words, words
from estimator import Advice, advise, candidates, question_of, team_of
from tests.test_plan_page import SMALL


@pytest.fixture(scope="module")
def advice() -> Advice:
    question = question_of({**SMALL, "deadline_hours": 1, "budget_usd": 50})
    return advise(candidates(replace(question, deadline_hours=None)), question)


def test_the_report_has_steps_misses_prices_and_how_sure_it_is(advice):
    said = report_words.details(advice)
    for sentence in (*advice.stairs, *advice.misses):
        assert sentence.text.partition(" $")[0].partition(": ")[0] in said
    assert "How sure this is" in said
    price = advice.candidates.offer(advice.recommended).price(1)
    assert f"<td>{price.date}</td>" in said
    assert price.source.partition(";")[0] in said


def test_the_recommended_row_is_marked_even_beyond_the_first_rows(advice):
    with patch.object(report_words, "MOST_ROWS", 0):
        said = report_words.details(advice)
    assert said.count('<tr class="hr-best">') == 1


def test_owned_cards_without_a_price_have_no_row_of_prices():
    own = question_of({**SMALL, "cards": [{"gpu": "L4", "owned": True}]}).offers
    assert report_words.prices([(own[0], 1)]) == ""


def test_the_question_is_said_in_words():
    asked_words = words.asked_in_words(
        question_of(
            {
                "model": ["Qwen/Qwen3-8B", "Qwen/Qwen3-14B"],
                "cards": [{"gpu": "L4", "most": 2, "owned": True}],
                "lengths": {"mean": 300, "max": 2048},
                "methods": ["full", "lora"],
                "deadline_hours": 24,
                "budget_usd": 200,
            }
        )
    )
    assert asked_words == (
        "Train Qwen3-8B or Qwen3-14B with full fine-tuning or LoRA of rank 16 on 10,000 examples of 300 tokens on "
        "average, 2,048 at most; 1 epoch, 64 examples a step. Cards: up to 2 × L4 (owned); within 24 hours and for at "
        "most $200."
    )


def test_a_teams_question_says_each_job_and_its_times():
    team = team_of(
        {
            "cards": ["2x L4"],
            "jobs": [
                {"name": "<b>", "model": "Qwen/Qwen3-8B", "ready_hours": 2, "deadline_hours": 24}
            ],
        }
    )
    said = report_words.team_question(team)
    assert "&lt;b&gt;: Qwen3-8B with LoRA" in said
    assert "ready after 2.0 hours, due after 24 hours." in said

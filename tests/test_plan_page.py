"""The Plan page without a browser: its question, figure and files, and its answer to a bad link."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from dataclasses import replace
from html import escape
from pathlib import Path
from unittest.mock import patch
from urllib.parse import parse_qs

import numpy as np
import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.plan import asked, form, growing, options_figure, team_asked, words
from dashboard.state import models
from estimator import (
    Advice,
    HubModel,
    advise,
    candidates,
    plan_words,
    question_of,
    repository,
)

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "model": ["Qwen/Qwen3-0.6B"],
    "cards": [{"gpu": "L4", "most": 2}, {"gpu": "L40S", "most": 1}],
    "effective_batch": 4,
    "try": {
        "strategy": ["ddp"],
        "use_liger_kernel": [False],
        "offload_optimizer": ["none"],
        "offload_param": ["none"],
    },
}


CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
FEW = {
    "strategy": ["ddp"],
    "gradient_checkpointing": [True],
    "use_liger_kernel": [False],
    "offload_optimizer": ["none"],
    "offload_param": ["none"],
}
TEAM = {
    "cards": [{"gpu": "L4", "most": 2, "owned": True}],
    "effective_batch": 8,
    "try": FEW,
    "jobs": [
        {"name": "in time", "model": "Qwen/Qwen3-0.6B", "deadline_hours": 12},
        {"name": "late", "model": "Qwen/Qwen3-0.6B", "deadline_hours": 0.1, "ready_hours": 4},
        {"name": "too large", "model": "Qwen/Qwen3-32B"},
    ],
}


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(candidates(question_of(SMALL)))


def open_plan(link: str | None) -> AppTest:
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=240)
    page.run()
    page.switch_page("pages/plan.py").run()
    if link is not None:
        page.query_params["plan"] = link
        with patch("dashboard.address.unbound.has_been_gone_to", return_value=True):
            page.run()
    assert not page.exception
    return page


def text(page: AppTest) -> str:
    return "\n".join(
        [element.proto.body for element in page.get("html")]
        + [widget.value for widget in page.warning]
    )


@pytest.fixture(scope="module")
def small_page() -> AppTest:
    with patch.dict(asked.FIRST, SMALL, clear=True):
        return open_plan(None)


def test_the_page_shows_the_planners_sentences(small_page, advice):
    assert words.panel_html(advice) in text(small_page)
    assert all(stair.text.partition(":")[0] in text(small_page) for stair in advice.stairs)


def test_each_method_has_an_answer_beside_full_fine_tuning(small_page):
    said = text(small_page).partition("With each method")[2].partition("</ul>")[0]
    assert [name for name, _ in re.findall(r"<li><b>(\w+)</b>: (\d) × ", said)] == ["Full", "LoRA"]
    full = question_of(SMALL | {"methods": ["full"]})
    found = advise(candidates(full))
    assert escape(plan_words.terms(found.candidates, found.recommended)) in said.replace(
        '<span class="hr-whole">', ""
    ).replace("</span>", "")


def test_a_text_of_a_hundred_million_tokens_is_as_many_examples_as_it_fills(small_page):
    number = small_page.session_state["plan round"]
    (tokens,) = [widget for widget in small_page.number_input if widget.label == "M tokens"]
    tokens.set_value(100.0).run()
    mean = form.fields(question_of(SMALL).lengths)
    per_example = mean["mean"] or mean["longest"]
    assert small_page.session_state[f"plan examples {number}"] == round(1e8 / per_example)
    (examples,) = [widget for widget in small_page.number_input if widget.label == "Examples"]
    examples.set_value(10_000).run()
    assert small_page.session_state[f"plan tokens {number}"] is None


def test_a_budget_applies_without_recomputing(small_page, monkeypatch):
    monkeypatch.setattr(asked, "candidates", None)  # called if anything were recomputed
    (budget,) = [widget for widget in small_page.number_input if widget.label.startswith("Budget")]
    budget.set_value(0.0001).run()
    assert not small_page.exception
    assert "No setup that fits meets the budget of" in text(small_page)
    assert json.loads("".join(small_page.query_params["plan"]))["budget_usd"] == 0.0001
    budget.set_value(None).run()


def test_enter_takes_one_match_of_what_is_typed(small_page):
    # streamlit 1.67, st.multiselect: select_all puts "Select … matches" first in the list, which Enter takes
    (typed,) = [widget for widget in small_page.multiselect if widget.label == "Models"]
    assert typed.proto.select_all == 0
    for path in [*(ROOT / "dashboard").rglob("*.py"), *(ROOT / "pages").glob("*.py")]:
        source = path.read_text(encoding="utf-8")
        assert source.count("st.multiselect(") == source.count("select_all=False"), path


def test_an_answer_to_the_question_before_has_no_colour(small_page, advice):
    (methods,) = [
        widget for widget in small_page.button_group if widget.label.startswith("Methods")
    ]
    chosen = methods.value
    methods.set_value([]).run()
    assert "methods is empty" in text(small_page)
    # an answer to another question than the form's is in no verdict's colour
    assert words.panel_html(advice, is_current=False) in text(small_page)
    assert "light-dark" not in words.panel_html(advice, is_current=False)
    (methods,) = [
        widget for widget in small_page.button_group if widget.label.startswith("Methods")
    ]
    methods.set_value(chosen).run()
    assert words.panel_html(advice) in text(small_page)
    (batch,) = [widget for widget in small_page.number_input if widget.label == "Effective batch"]
    batch.set_value(2).run()
    assert f"{words.BEFORE}: Take" in text(small_page)
    batch.set_value(4).run()
    assert words.panel_html(advice) in text(small_page)


def test_an_invalid_link_is_refused_in_one_sentence_and_keeps_the_page(small_page):
    small_page.query_params["plan"] = '{"model": "Qwen/Qwen3-0.6B", "cards": ["L5"]}'
    small_page.run()
    assert not small_page.exception
    assert "The link's question cannot be read" in text(small_page)
    assert "L40S" in text(small_page)


def test_a_link_asks_the_hub_for_a_model_that_is_not_in_the_catalogue(small_page):
    own, asked_for = "someone/of-their-own", []
    answer: Future[HubModel] = Future()

    def ask(hub_id: str) -> Future[HubModel]:
        asked_for.append(hub_id)
        return answer

    with patch.object(models, "asked_of_the_hub", ask):
        small_page.query_params["plan"] = json.dumps({**SMALL, "model": [own]})
        small_page.run()
        assert f"The Hub is being asked for {own}." in text(small_page)
        answer.set_result(repository.from_text(json.dumps(CONFIG)))
        small_page.run()
    assert asked_for == [own]
    assert "Take 1 × L40S:" in text(small_page) or " × L4:" in text(small_page)
    refused: Future[HubModel] = Future()
    refused.set_result(repository.from_text("[]"))
    with patch.object(models, "asked_of_the_hub", lambda _: refused):
        small_page.query_params["plan"] = json.dumps({**SMALL, "model": ["none/such"]})
        small_page.run()
    assert escape(" ".join(refused.result().sentences)) in text(small_page)
    assert not small_page.exception
    small_page.query_params["plan"] = json.dumps(SMALL)
    small_page.run()


def test_the_page_turns_from_one_run_to_several_jobs_and_so_does_the_address(small_page):
    pytest.importorskip("highspy")

    def turn(view: str) -> None:
        (views,) = [
            widget for widget in small_page.segmented_control if widget.label == "What to plan"
        ]
        views.set_value(view).run()
        assert not small_page.exception

    with patch.dict(team_asked.FIRST, TEAM, clear=True):
        turn("team")
    assert "2 of 3 jobs run, 1 late" in text(small_page)
    assert "too large" in "".join(small_page.query_params["team"])
    assert "plan" not in small_page.query_params
    turn("plan")
    assert "Qwen3-0.6B" in "".join(small_page.query_params["plan"])
    assert "team" not in small_page.query_params


def test_a_report_has_the_filters_of_its_plan(small_page):
    def show(cards: list[str]) -> str:
        (filtered,) = [widget for widget in small_page.button_group if widget.label == "Show cards"]
        filtered.set_value(cards).run()
        (report,) = [
            element.proto.url
            for element in small_page.get("link_button")
            if "report?" in element.proto.url
        ]
        return report.partition("?")[2]

    assert "Take 1 × L40S:" in text(small_page)
    link = parse_qs(show(["L4"]))
    assert " × L4:" in text(small_page)
    assert link["show_cards"] == ["L4"]
    assert "show_cards" not in show([])
    small_page.switch_page("pages/report.py").run()
    small_page.query_params["most_gpus"] = "77"  # which this question does not have
    for key, value in link.items():
        small_page.query_params[key] = value
    small_page.run()
    assert "Only setups on L4 are shown." in text(small_page)
    assert " × L4:" in text(small_page)
    assert "show_cards=L4" in text(small_page)  # the way back to the plan
    for key in ("show_cards", "most_gpus"):
        del small_page.query_params[key]
    small_page.switch_page("pages/plan.py").run()


def test_the_report_is_a_document_without_widgets(small_page):
    small_page.switch_page("pages/report.py").run()
    assert not small_page.exception
    assert "Fine-tuning Qwen3-0.6B" in text(small_page)
    assert "<nav class" not in text(small_page)
    assert not [*small_page.button, *small_page.get("download_button"), *small_page.number_input]
    small_page.switch_page("pages/plan.py").run()


@pytest.mark.parametrize(
    ("link", "said"), [("[]", "object|key"), ("x" * 9000, "characters"), ("{", "the link")]
)
def test_malformed_text_is_not_a_question(link, said):
    with pytest.raises(ValueError, match=said):
        asked.read(link)


def test_cards_survive_the_table():
    cards = [
        {"gpu": "L4", "most": 2, "owned": True},
        {"gpu": "L40S", "usd_per_gpu_hour": 0.5, "region": "eu"},
    ]
    question = question_of({"model": "Qwen/Qwen3-0.6B", "cards": cards})
    written = asked.cards_of(asked.card_rows(question.offers), cards)
    assert question_of({"model": "Qwen/Qwen3-0.6B", "cards": written}) == question


def test_the_density_counts_every_setup_that_fits(advice):
    figure = options_figure.figure(advice)
    go.Figure(figure)  # raises on a property unknown to Plotly
    (density,) = [trace for trace in figure["data"] if trace["type"] == "heatmap"]
    assert np.sum(density["customdata"]) == advice.candidates.fits.sum()


def test_the_whole_front_is_drawn_and_the_recommendation_has_its_ranges(advice):
    figure = options_figure.figure(advice)
    by_name = {trace["name"]: trace for trace in figure["data"]}
    front = by_name["No other is cheaper, faster and roomier"]
    assert front["customdata"] == advice.front.tolist()
    point = by_name["Recommended"]
    (high,) = point["error_y"]["array"]
    assert point["y"][0] + high == advice.candidates.hours.high[advice.recommended]


def test_the_recommendation_is_on_the_line_that_is_drawn(advice):
    for place in advice.front.tolist():  # which of them it is depends on the limits
        figure = options_figure.figure(replace(advice, recommended=place))
        (line,) = [
            trace for trace in figure["data"] if trace["name"] == "What the next dollar buys"
        ]
        assert place in line["customdata"]
        assert line["x"] == sorted(line["x"])


class Shown:
    """What a place of the page is given."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def container(self) -> Shown:
        return self

    def empty(self) -> Shown:
        self.said.append(None)
        return self

    def progress(self, share: float, _: str) -> None:
        self.said.append(share)

    def html(self, text: str) -> None:
        self.said.append(text)


def test_while_a_question_is_computed_the_best_so_far_is_shown(monkeypatch):
    monkeypatch.setattr(growing, "EVERY_SECONDS", 0)
    button, answer = Shown(), Shown()
    watched = growing.Growing(question_of(SMALL), button, answer)
    found = candidates(question_of(SMALL), progress=watched)
    assert button.said[-1] == 1
    counts = [
        re.search(r"Of ([\d,]+) setups so far: Take", one)
        for one in answer.said
        if isinstance(one, str)
    ]
    numbers = [int(count.group(1).replace(",", "")) for count in counts]
    assert len(numbers) > 1
    assert numbers == sorted(numbers)
    assert numbers[-1] <= len(found)
    watched.end()
    assert (button.said[-1], answer.said[-1]) == (None, None)


def test_owned_cards_use_an_axis_of_gpu_hours():
    owned = {**SMALL, "cards": [{"gpu": "L4", "most": 2, "owned": True}]}
    answer = advise(candidates(question_of(owned)))
    assert options_figure.figure(answer)["layout"]["xaxis"]["title"]["text"] == "GPU-hours"


def test_setups_that_miss_the_limits_are_marked_no(advice):
    late = advise(advice.candidates, replace(advice.question, deadline_hours=1e-6))
    assert {words.row(late, place)["In time and budget"] for place in late.front.tolist()} == {"no"}
    assert "light-dark" in words.panel_html(late)


def test_a_mean_that_the_percentiles_exclude_is_refused():
    """At most 5 tokens in 90 %, and 1,024 in the rest: at most 0.9 × 5 + 0.1 × 1,024 = 107 on average."""
    lengths = {"p90": 5, "max": 1024, "mean": 600}
    with pytest.raises(ValueError, match="from 0 to 107 tokens, not 600"):
        question_of({**SMALL, "lengths": lengths})


@pytest.mark.parametrize("name", ["mean", "p50", "p90", "p99", "longest"])
def test_the_forms_fields_show_the_lengths_of_the_question(name):
    given = {"p50": 400, "p90": 1200, "p99": 3000, "max": 4096, "mean": 600}
    shown = form.fields(question_of({**SMALL, "lengths": given}).lengths)
    assert shown[name] == given[name.replace("longest", "max")]


class Dropped:
    """An uploaded file as Streamlit provides it."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = name, content

    def getvalue(self) -> bytes:
        return self.content


def test_an_uploaded_file_sets_examples_and_lengths(monkeypatch):
    rows = b'{"input_ids": [1, 2, 3]}\n{"input_ids": [1, 2, 3, 4, 5]}\n'
    state = {"plan texts 1": Dropped("a.jsonl", rows), "plan tokenizer 1": None}
    monkeypatch.setattr(form.st, "session_state", state)
    form.count(1)
    assert [state[f"plan {word} 1"] for word in ("examples", "mean", "longest")] == [2, 4, 5]


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b'{"other": 1}'])
def test_an_uncountable_file_is_refused_and_changes_nothing(monkeypatch, content):
    state = {"plan texts 1": Dropped("a.jsonl", content), "plan tokenizer 1": None}
    monkeypatch.setattr(form.st, "session_state", state)
    form.count(1)
    assert state["plan counted"].endswith(".")
    assert "plan examples 1" not in state

"""The figure of scaling over GPUs: its numbers are the estimates', and its text describes what it shows."""

from __future__ import annotations

import math
from dataclasses import replace
from html import unescape

import plotly.graph_objects as go
import pytest

from dashboard.estimate import more_gpus
from estimator import Method, Price, TrainingSetup, catalog, estimate
from estimator.answer.ranks import ranks
from estimator.search.scaling import Curve, curves
from estimator.values.results import Estimate
from estimator.values.specs import Gpu, Model
from estimator.values.strategies import Strategy
from tests.test_start_page import open_page, text

GIB = 2**30
MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
GPT2 = catalog.model("openai-community/gpt2")
A100 = catalog.gpu("A100-SXM4-40GB")
"""Mistral in full fits from 4 of them on."""
SETUP = TrainingSetup(gradient_checkpointing=True, num_gpus=12, strategy=Strategy.FSDP)


def both(
    gpu: Gpu | None = A100, setup: TrainingSetup = SETUP, model: Model = MISTRAL
) -> tuple[tuple[Curve, ...], Estimate]:
    answer = estimate(model, gpu, setup)
    return more_gpus.on_more_gpus(answer), answer


@pytest.fixture(scope="module")
def drawn() -> tuple[tuple[Curve, ...], Estimate]:
    return both()


def test_the_setup_s_own_count_is_on_the_curve(drawn):
    found, answer = drawn
    assert [point.num_gpus for point in found[0].points] == [1, 2, 4, 8, 12, 16, 32, 64]
    fsdp = next(curve for curve in found if curve.strategy is Strategy.FSDP)
    own = next(point.estimate for point in fsdp.points if point.num_gpus == 12)
    assert own == answer


@pytest.mark.parametrize(("gpu", "panels"), [(A100, 3), (None, 1)], ids=["a GPU", "none"])
def test_plotly_accepts_the_figure(gpu, panels):
    found = both(gpu, model=GPT2)
    for dark in (False, True):
        figure = more_gpus.curves_figure(*found, dark=dark)
        go.Figure(figure)
        assert len(figure["layout"]["annotations"]) == panels


@pytest.mark.parametrize(
    ("keys", "panels"),
    [({"num_train_examples": 1, "gpus_per_node": 1}, 3), ({"usd_per_gpu_hour": 0.0}, 2)],
    ids=["one example on machines of one GPU", "free"],
)
def test_extreme_runs_are_drawn(keys, panels):
    """A run of a second still gets ticks; a cost of zero has no logarithm."""
    figure = more_gpus.curves_figure(*both(A100, replace(SETUP, **keys), GPT2))
    go.Figure(figure)
    assert len(figure["layout"]["annotations"]) == panels
    shown = [figure["layout"].get(f"yaxis{panel}", {}) for panel in range(2, panels + 1)]
    assert all(len(axis["tickvals"]) > 1 for axis in shown)


def test_every_point_is_its_setup_s_need_and_a_click_passes_it(drawn):
    figure = more_gpus.curves_figure(*drawn)
    lines = [t for t in figure["data"] if t.get("showlegend") and "customdata" in t]
    assert [line["name"] for line in lines] == [curve.strategy.value for curve in drawn[0]]
    for line in lines:
        for x, y, keys in zip(line["x"], line["y"], line["customdata"], strict=True):
            if keys is None:
                assert y is None
                continue
            number, strategy, groups = keys
            assert x == math.log2(number)
            there = replace(
                SETUP, num_gpus=number, strategy=Strategy(strategy), dp_replicate_size=groups
            )
            need = estimate(MISTRAL, A100, there).need_high_bytes
            assert y == pytest.approx(need / GIB, abs=0.001)


def test_a_ring_marks_the_first_count_that_fits_and_no_other(drawn):
    figure = more_gpus.curves_figure(*drawn)
    rings = [t for t in figure["data"] if t.get("marker", {}).get("symbol") == "circle-open"]
    firsts = [curve.first_that_fits for curve in drawn[0]]
    assert [ring["x"] for ring in rings] == [[math.log2(p.num_gpus)] for p in firsts if p]


def test_hours_are_drawn_only_for_counts_that_fit(drawn):
    figure = more_gpus.curves_figure(*drawn)
    hours = [t for t in figure["data"] if t.get("yaxis") == "y2"]
    ddp = next(line for line in hours if line["name"] == "ddp")
    assert set(ddp["y"]) == {None}
    assert any(y for line in hours for y in line["y"])


def test_text_states_the_smallest_fitting_count_and_what_stays_fixed(drawn):
    said = unescape(more_gpus.head_html(*drawn))
    assert "it fits on 2 GPUs or more under device_map" in said, "two halves of its layers"
    assert "on 4 GPUs or more under zero3, fsdp and fsdp_grad_op" in said
    assert "under ddp not even on 64" in said
    assert "Each GPU keeps its micro-batch of 1 × 1,024 tokens" in said
    assert "an epoch has 157 steps instead of 10,000" in said


def test_text_says_when_one_gpu_is_enough():
    said = more_gpus.head_html(*both(A100, TrainingSetup(method=Method.LORA)))
    assert "It fits on 1 A100-SXM4-40GB" in said
    assert "Choose a GPU" in more_gpus.head_html(*both(None))


def test_counts_rented_only_as_whole_machines_are_marked():
    by_eight = Price(provider="by the node", usd_per_gpu_hour=1.0, date="2026-11-21", min_gpus=8)
    found, answer = both(replace(A100, prices=(by_eight,)))
    assert "below 8 GPUs no dollars are given" in more_gpus.head_html(found, answer)
    table = more_gpus.table_html(found, answer)
    assert "only 8 together" in table
    own = replace(SETUP, usd_per_gpu_hour=2.0)
    assert "together" not in more_gpus.table_html(*both(replace(A100, prices=(by_eight,)), own))


def test_table_has_row_and_column_headers_and_marks_the_first_count_that_fits(drawn):
    table = more_gpus.table_html(*drawn)
    assert table.count('<th scope="row">') == len(drawn[0]) == 8
    assert table.count('<th scope="col">') == 9
    fitting = [curve for curve in drawn[0] if curve.first_that_fits]
    assert table.count("first that fits") == len(fitting)
    assert table.count("your setup") == 1


def test_refusal_reasons_appear_once_below_the_table():
    found = curves(MISTRAL, A100, TrainingSetup(method=Method.QLORA))
    said = unescape(more_gpus.refusals_html(found))
    assert said.count("set bnb_4bit_quant_storage to bfloat16") == 1
    assert said.startswith('<p class="hr-text">zero3:')


def test_text_alternative_names_every_strategy(drawn):
    said = more_gpus.alt(drawn[0])
    assert all(f"{curve.strategy.value}: " in said for curve in drawn[0])
    assert "first fits on 4 GPUs" in said


def test_ranks_are_described_only_for_several_gpus():
    gpt2 = catalog.model("openai-community/gpt2")
    several = TrainingSetup(num_gpus=8, strategy=Strategy.FSDP)
    shown = more_gpus.ranks_html(ranks(estimate(gpt2, A100, several)))
    assert "0 (saves)" in shown
    assert "the emptiest peaks 43,008 bytes lower" in shown
    mistral = estimate(MISTRAL, A100, several)
    assert "rank 0 writes the model for all" in more_gpus.ranks_html(ranks(mistral))
    assert more_gpus.ranks_html(ranks(estimate(gpt2, A100, TrainingSetup()))) == ""


def test_page_shows_the_section_with_its_table_and_ranks():
    page = open_page(
        model="openai-community/gpt2",
        gpu="L4",
        num_gpus="8",
        strategy="fsdp",
        section="How many GPUs",
    )
    assert not page.exception
    said = text(page)
    assert "This job, rank by rank" in said
    assert "first that fits" in said

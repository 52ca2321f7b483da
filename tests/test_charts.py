"""The charts below the hero figure: their numbers are the estimate's, and Plotly accepts them unchanged."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html import unescape
from itertools import combinations

import plotly.graph_objects as go
import pytest

from dashboard import theme
from dashboard.estimate import (
    headroom_map,
    rulers,
    through_the_run,
    time_and_money,
    which_gpu,
)
from dashboard.words import terms, units
from estimator import (
    Dtype,
    Method,
    MixedPrecision,
    Rung,
    TrainingSetup,
    catalog,
    estimate,
    need,
    overflow,
)
from estimator.search.ranking import pareto
from estimator.values.specs import Component, Phase, Verdict

GIB = 2**30
MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
A100 = catalog.gpu("A100-SXM4-80GB")
WHAT_IF = TrainingSetup(mixed_precision=MixedPrecision.NO, optim_state_dtype=Dtype.FLOAT32)
LORA = TrainingSetup(method=Method.LORA, per_device_train_batch_size=3, max_length=1500)


@pytest.fixture(scope="module")
def around():
    answer = estimate(MISTRAL, A100, LORA)
    return answer, headroom_map.around(answer)


def test_every_cell_of_the_map_shows_the_headroom_of_its_setup(around):
    answer, grid = around
    for row, batch in enumerate(grid.batches):
        for column, length in enumerate(grid.lengths):
            there = replace(LORA, per_device_train_batch_size=batch, max_length=length)
            high = need(answer.model, A100, there).high
            assert grid.headroom[row][column] == A100.memory_bytes - high


def test_map_contains_the_setup_and_both_sides_of_the_limit(around):
    _, grid = around
    assert 3 in grid.batches
    assert 1500 in grid.lengths
    sizes = [size for row in grid.headroom for size in row]
    assert min(sizes) < 0 < max(sizes)


def test_border_of_the_map_is_above_the_largest_batch_that_fits(around):
    _, grid = around
    figure = headroom_map.headroom_map(grid.batches, grid.lengths, grid.headroom, (3, 1500))
    line = next(trace for trace in figure["data"] if trace.get("mode") == "lines")
    for column in range(len(grid.lengths)):
        fitting = sum(row[column] >= 0 for row in grid.headroom)
        assert line["y"][2 * column] == fitting - 0.5


def test_click_on_a_cell_passes_its_batch_and_length(around):
    _, grid = around
    figure = headroom_map.headroom_map(grid.batches, grid.lengths, grid.headroom, (3, 1500))
    clicks = figure["data"][-1]
    for x, y, (batch, length) in zip(clicks["x"], clicks["y"], clicks["customdata"], strict=True):
        assert (grid.batches[y], grid.lengths[x]) == (batch, length)


def test_learned_positions_bound_the_columns_of_the_map():
    gpt2 = catalog.model("openai-community/gpt2")
    grid = headroom_map.around(estimate(gpt2, A100, TrainingSetup(max_length=512)))
    assert max(grid.lengths) == 1024


def allocated(figure):
    """The silhouette's height in each column, without what is outside PyTorch."""
    tensors = [t["y"] for t in figure["data"] if t["name"] != theme.RESERVE.label]
    return [sum(sizes) for sizes in zip(*tensors, strict=True)]


def begin(figure):
    """The first column of each of the two steps."""
    return [shape["x0"] for shape in figure["layout"]["shapes"] if shape["name"] == "step"]


def test_first_step_has_no_optimizer_states_and_second_reaches_the_peak():
    answer = estimate(MISTRAL, A100, WHAT_IF)
    figure = through_the_run.silhouette(answer)
    height, (first, second) = allocated(figure), sorted(begin(figure))
    states = answer.moments[0].resident[Component.OPTIMIZER_STATES] / GIB
    assert height[second] - height[first] == pytest.approx(states, abs=0.01)
    assert max(height) == pytest.approx(answer.peak.bytes / GIB, abs=0.01)
    assert "Runs out here<" in figure["layout"]["annotations"][-1]["text"]
    assert "optimizer step" in figure["layout"]["annotations"][-1]["text"]
    without_a_card = through_the_run.silhouette(estimate(MISTRAL, None, WHAT_IF))
    peak = without_a_card["layout"]["annotations"][-1]
    assert answer.peak.name in peak["text"].replace("<br>", " ")
    assert peak["x"] > second
    assert height[int(peak["x"])] == pytest.approx(max(height), abs=0.01)


def test_the_capacitys_name_stands_where_memory_is_lower():
    """A first step of adapters climbs at once and its end is low; full fine-tuning begins without states."""
    adapters = replace(LORA, max_length=4096, gradient_checkpointing=False)
    anchors = [
        through_the_run.silhouette(estimate(MISTRAL, A100, setup))["layout"]["annotations"][0]
        for setup in (WHAT_IF, adapters)
    ]
    assert [(anchor["xanchor"], "usable" in anchor["text"]) for anchor in anchors] == [
        ("left", True),
        ("right", True),
    ]


def test_the_silhouette_goes_from_loading_to_saving_in_the_runs_order():
    saved = replace(LORA, eval_strategy="steps", save_strategy="steps")
    answer = estimate(MISTRAL, A100, saved)
    figure = through_the_run.silhouette(answer)
    height, ticks = allocated(figure), figure["layout"]["xaxis"]
    step = ["Forward", "Loss", "Backward", "Step"]
    said = [text.replace("<br>", "") for text in ticks["ticktext"]]
    assert said == ["Load", *step, *step, "Eval", "Save"]
    at = dict(zip(said, map(int, ticks["tickvals"]), strict=True))
    for name, phase in (("Load", Phase.LOAD), ("Eval", Phase.EVALUATION), ("Save", Phase.SAVE)):
        assert height[at[name]] == pytest.approx(answer.phases[phase].bytes / GIB, abs=0.01)


def test_accumulation_shows_the_first_and_a_later_micro_step():
    accumulated = replace(WHAT_IF, gradient_accumulation_steps=4)
    figure = through_the_run.silhouette(estimate(MISTRAL, A100, accumulated))
    said = [text.replace("<br>", "") for text in figure["layout"]["xaxis"]["ticktext"]]
    assert said == ["Load", *["Micro 1", "Micro 2+", "Step"] * 2, "Save"]
    gradients = next(t["y"] for t in figure["data"] if t["name"] == "Gradients")
    at = [int(x) for x in figure["layout"]["xaxis"]["tickvals"]]
    assert gradients[at[0]] == 0
    # in the second micro-step, gradients take 2 bytes for each of 7.24e9 parameters
    assert gradients[at[2]] == pytest.approx(2 * 7_241_732_096 / GIB, abs=0.01)


def test_a_ruler_has_a_band_from_the_context_before_to_the_one_that_a_change_reaches():
    answer = estimate(MISTRAL, A100, LORA)
    rungs = [
        Rung("", (), {}, 4_096),
        Rung("Micro-batch 1", (), {"per_device_train_batch_size": 1}, 4_100),
        Rung("", ("Liger's fused kernels and loss",), {"use_liger_kernel": True}, 32_768),
        Rung("QLoRA", (), {"method": "qlora"}, 3_000_000),
    ]
    assert [rulers.name(one) for one in rulers.kept(rungs)] == ["as it is", "Liger", "QLoRA"], (
        "a change that gains less than a tenth is left out"
    )
    drawn = rulers.ruler_html("max_length", rungs, answer, "base", is_done=True)
    # from 512 to 2 ** 20 tokens the ruler has 11 octaves, 3 of them up to 4,096 and 6 up to 32,768
    octave = 100 / 11
    places = [float(found) for found in re.findall(r"(?:left|width):([\d.]+)%", drawn)]
    bands, (untold, made_for, flag) = places[:6], places[6:]
    assert untold == 100, "names of narrow bands stand beyond the last"
    expected = [0, 3 * octave, 3 * octave, 3 * octave, 6 * octave, 5 * octave]
    assert bands == pytest.approx(expected, abs=0.02)
    assert made_for == pytest.approx(6 * octave, abs=0.01)
    assert flag == rulers.place(LORA.batch.max_length, rulers.RULERS["max_length"])
    assert "as it is <small>4,096</small>" in drawn, "the setup's own limit is exact"
    assert "Liger <small>32k</small>" in drawn
    assert list(rulers.proposals(rungs)) == re.findall(r'data-proposal="max_length (\d)"', drawn)


def test_a_setup_that_never_fits_has_no_band_of_its_own():
    answer = estimate(MISTRAL, A100, LORA)
    drawn = rulers.ruler_html("max_length", [Rung("", (), {}, 0)], answer, "", is_done=True)
    assert "hr-band" not in drawn
    assert "hr-flag" in drawn


def test_cards_are_listed_from_the_smallest_that_holds_the_setup():
    rows, _ = which_gpu.every_gpu(estimate(MISTRAL, A100, WHAT_IF))
    fitting = [row.gpu.memory_bytes for row in rows if row.verdict is Verdict.FITS]
    others = [row.gpu.memory_bytes for row in rows if row.verdict is Verdict.DOES_NOT_FIT]
    assert fitting
    assert rows[0].gpu.memory_bytes == min(fitting)
    assert fitting == sorted(fitting)
    assert others == sorted(others, reverse=True)
    assert rows[-1].gpu.memory_bytes == min(others)


def test_cost_chart_connects_the_pareto_front():
    rows, _ = which_gpu.every_gpu(estimate(MISTRAL, A100, LORA))
    fitting = [row for row in rows if row.verdict is Verdict.FITS]
    front = pareto(fitting)
    figure = time_and_money.cost_against_time(fitting, front, estimate(MISTRAL, A100, LORA))
    joined = figure["data"][1]
    assert [one.partition(":")[0] for one in joined["customdata"]] == [
        one.gpu.name for one in front
    ]
    assert joined["x"] == sorted(joined["x"])
    assert joined["y"] == sorted(joined["y"], reverse=True)
    assert figure["data"][2]["customdata"][0].startswith("A100-SXM4-80GB:"), "the ring's card"


def test_no_name_in_the_cost_chart_covers_another():
    rows, _ = which_gpu.every_gpu(estimate(MISTRAL, A100, LORA))
    front = pareto([row for row in rows if row.verdict is Verdict.FITS])
    figure = time_and_money.cost_against_time(front, front, estimate(MISTRAL, A100, LORA))
    layout, joined = figure["layout"], figure["data"][1]
    places = [
        [
            (math.log10(value) - layout[axis]["range"][0])
            / (layout[axis]["range"][1] - layout[axis]["range"][0])
            for axis, value in (("xaxis", x), ("yaxis", y))
        ]
        for x, y, name in zip(joined["x"], joined["y"], joined["text"], strict=True)
        if name
    ]
    assert joined["text"][0], "the fastest is named"
    assert joined["text"][-1], "the cheapest is named"
    # a line of 13 pixels is 0.05 of the figure's height, and a name of 30 letters 0.35 of a desktop's width
    for one, other in combinations(places, 2):
        assert abs(one[0] - other[0]) > 0.35 or abs(one[1] - other[1]) > 0.05


@pytest.mark.parametrize("dark", [False, True])
def test_plotly_accepts_every_figure(around, dark):
    answer, grid = around
    rows, _ = which_gpu.every_gpu(answer)
    fitting = [row for row in rows if row.verdict is Verdict.FITS]
    for figure in (
        headroom_map.headroom_map(grid.batches, grid.lengths, grid.headroom, (3, 1500), dark=dark),
        through_the_run.silhouette(answer, dark=dark),
        through_the_run.silhouette(estimate(MISTRAL, None, LORA), dark=dark),
        time_and_money.cost_against_time(fitting, pareto(fitting), answer, dark=dark),
    ):
        assert go.Figure(figure).to_plotly_json()["data"]


def test_a_change_leaves_the_outline_of_what_was_there_before():
    before = estimate(MISTRAL, A100, replace(LORA, max_length=6000))
    after = estimate(MISTRAL, A100, LORA)
    figure = through_the_run.silhouette(after, before)
    *areas, ghost = figure["data"]
    top = max(
        map(
            sum,
            zip(*(trace["y"] for trace in through_the_run.silhouette(before)["data"]), strict=True),
        )
    )
    assert ghost["name"] == "Before"
    assert max(ghost["y"]) == pytest.approx(top, abs=0.01)
    assert top > max(map(sum, zip(*(area["y"] for area in areas), strict=True)))
    assert ghost["x"][-1] == pytest.approx(figure["layout"]["xaxis"]["range"][1])
    assert figure["layout"]["yaxis"]["range"][1] > top
    assert "Dotted: what it was before. LoRA" in through_the_run.run_html(after, before)
    assert len(through_the_run.silhouette(after)["data"]) == len(areas)


def test_a_click_on_a_moment_of_the_silhouette_lists_what_is_alive_in_it():
    answer = estimate(MISTRAL, A100, LORA)
    figure = through_the_run.silhouette(answer)
    instants = [*overflow.instants(answer)]
    for trace in figure["data"]:
        assert len(trace["customdata"]) == len(trace["y"])
        assert sorted({*trace["customdata"]}) == [*range(len(instants))]
    weights = figure["data"][0]
    at = weights["text"].index(terms.moment(answer.peak))
    shown = through_the_run.picked_html(answer, weights["customdata"][at])
    assert f"In {terms.moment(answer.peak)}" in unescape(shown)
    assert re.findall(r">([\d.]+)</td>", shown)[-1] == units.number(
        instants[weights["customdata"][at]].moment.bytes
    )
    assert through_the_run.picked_html(answer, len(instants)) == ""
    assert through_the_run.picked_html(answer, "peak") == ""

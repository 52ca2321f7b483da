"""The hero figure and the methods' figure draw the estimates on one scale."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from dashboard import theme
from dashboard.estimate import hero_figure
from dashboard.words import terms, units
from estimator import (
    STEP_PHASES,
    Component,
    Method,
    MixedPrecision,
    Phase,
    TrainingSetup,
    catalog,
    estimate,
)

MODEL, GPU = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
SETUP = TrainingSetup(mixed_precision=MixedPrecision.NO)


def by_method(setup: TrainingSetup = SETUP, gpu=GPU):
    return {m: estimate(MODEL, gpu, replace(setup, method=m)) for m in Method}


def hero(method: Method = Method.FULL, setup: TrainingSetup = SETUP, gpu=GPU, **how):
    return hero_figure.hero(by_method(setup, gpu)[method], **how)


def methods(method: Method = Method.FULL, setup: TrainingSetup = SETUP, gpu=GPU):
    others = by_method(setup, gpu)
    return hero_figure.methods(others[method], others)


def stacked(figure, place) -> float:
    """The length of the bar at a position, in GiB."""
    end = 0.0
    for piece in pieces(figure):
        if piece.place == hero_figure.PLACES[place]:
            assert piece.base == pytest.approx(end, abs=0.002), (
                "each part begins where the last ends"
            )
            end = piece.base + piece.length
    return end


class Piece(NamedTuple):
    label: str
    place: float
    base: float
    length: float
    colour: str


def pieces(figure) -> list[Piece]:
    bars = figure["data"][0]
    labels = [text.partition(":")[0] for text in bars["hovertext"]]
    lists = (labels, bars["y"], bars["base"], bars["x"], bars["marker"]["color"])
    return [Piece(*values) for values in zip(*lists, strict=True)]


@pytest.mark.parametrize("method", Method)
def test_the_peak_bar_reaches_the_high_end_of_the_need(method):
    answer = by_method()[method]
    need = pytest.approx(units.in_gib(answer.need_high_bytes), abs=0.01)
    assert stacked(hero(method), answer.peak.phase) == need
    assert stacked(methods(method), method) == need
    assert methods(method)["layout"]["xaxis"] == hero(method)["layout"]["xaxis"], "one scale"


@pytest.mark.parametrize("phase", [*STEP_PHASES, Phase.SAVE])
def test_each_phase_is_drawn_at_its_height_plus_the_reserve(phase):
    answer = by_method()[Method.FULL]
    reserve = answer.need_high_bytes - answer.peak.bytes
    expected = units.in_gib(answer.phases[phase].bytes + reserve)
    assert stacked(hero(), phase) == pytest.approx(expected, abs=0.01)


def test_evaluation_replaces_saving_when_it_is_the_largest_phase():
    setup = replace(SETUP, eval_strategy="epoch", per_device_eval_batch_size=64)
    answer, drawn = by_method(setup)[Method.FULL], hero(setup=setup)
    need = pytest.approx(units.in_gib(answer.need_high_bytes), abs=0.01)
    assert stacked(drawn, Phase.SAVE) == need
    assert "<b>▸ Evaluation</b>" in drawn["layout"]["yaxis"]["ticktext"]


def test_only_the_highest_phase_and_the_selected_method_are_marked():
    drawn = hero(Method.LORA), methods(Method.LORA)
    ticks = [tick for one in drawn for tick in one["layout"]["yaxis"]["ticktext"]]
    answer = by_method()[Method.LORA]
    marked = [tick for tick in ticks if "▸" in tick]
    assert marked == [f"<b>▸ {terms.PHASES[answer.peak.phase]}</b>", "<b>▸ LoRA</b>"]


def test_the_capacity_is_a_line_through_all_bars():
    for drawn in (hero(), methods()):
        (line,) = (shape for shape in drawn["layout"]["shapes"] if shape.get("name") == "capacity")
        assert line["x0"] == units.in_gib(GPU.memory_bytes)
        for place in drawn["layout"]["yaxis"]["tickvals"]:
            assert line["y0"] < place < line["y1"]


def test_the_capacity_line_does_not_cross_a_heading():
    for drawn, part in ((hero(), hero_figure.PHASES), (methods(), hero_figure.METHODS)):
        (line,) = (shape for shape in drawn["layout"]["shapes"] if shape.get("name") == "capacity")
        assert part.at + 0.3 <= line["y0"]


def test_scale_follows_the_selected_setup_and_longer_bars_are_cut_and_labelled():
    small = methods(Method.QLORA, gpu=catalog.gpu("L4"))
    assert small["layout"]["xaxis"] == hero(Method.QLORA, gpu=catalog.gpu("L4"))["layout"]["xaxis"]
    end = small["layout"]["xaxis"]["range"][1]
    full = by_method(gpu=catalog.gpu("L4"))[Method.FULL]
    assert end < units.in_gib(full.need_high_bytes), "full fine-tuning needs more than the scale"
    assert stacked(small, Method.FULL) == pytest.approx(end)
    totals = small["data"][1]
    at = totals["y"].index(hero_figure.PLACES[Method.FULL])
    assert totals["text"][at].strip() == f"{units.number(full.need_high_bytes)} →"
    assert (totals["x"][at], totals["textposition"][at]) == (end, "middle left")


def test_a_total_is_drawn_inside_the_bar_if_there_is_no_room_beside_it():
    needed = by_method()[Method.LORA].need_high_bytes
    card = replace(GPU, memory_bytes=needed + units.GIB // 2)
    drawn = methods(Method.LORA, gpu=card)
    totals = drawn["data"][1]
    at = totals["y"].index(hero_figure.PLACES[Method.LORA])
    assert totals["x"][at] <= units.in_gib(card.memory_bytes)
    assert totals["textposition"][at] == "middle left"
    assert totals["textfont"]["shadow"], "on top of a bar it needs a ground"


def test_each_part_offers_its_number_once_and_off_the_capacity_line():
    """``drawing.js`` writes it, and the part's name, where they have room."""
    several = replace(SETUP, strategy="fsdp", num_gpus=4)
    for drawn in (hero(), hero(setup=several)):
        found = [one for one in zip(pieces(drawn), drawn["data"][0]["text"], strict=True) if one[1]]
        parts = [(piece.place, piece.label) for piece, _ in found]
        assert len(parts) == len(set(parts))
        assert {label for _, label in parts} == {piece.label for piece in pieces(drawn)}
        line = units.in_gib(GPU.memory_bytes)
        assert not [bar for bar, _ in found if bar.base < line < bar.base + bar.length]
    assert "Communication" in {label for _, label in parts}


def test_without_a_gpu_there_is_no_line():
    assert hero(gpu=None)["layout"]["shapes"] == methods(gpu=None)["layout"]["shapes"] == []


def test_a_small_change_keeps_the_scale():
    longer = replace(SETUP, max_length=1536)
    assert hero(setup=longer)["layout"]["xaxis"] == hero()["layout"]["xaxis"]


def test_the_same_setup_draws_the_same_figure():
    assert hero() == hero()


def test_colours_are_fixed_and_distinct():
    colours = [part.colour for part in theme.COMPONENTS.values()]
    assert len(set(colours)) == len(colours) == len(Component)
    fills = {part.label: part.fill for part in (*theme.COMPONENTS.values(), theme.RESERVE)}
    drawn = pieces(hero())
    assert len({one.label for one in drawn}) > 5
    assert all(one.colour == fills[one.label] for one in drawn)


def test_a_reference_pass_higher_than_the_loss_replaces_it():
    """LoRA without checkpointing holds the policy's graph during the reference pass, which is the peak."""
    setup = replace(SETUP, objective="dpo", per_device_train_batch_size=2)
    answer, drawn = by_method(setup)[Method.LORA], hero(Method.LORA, setup)
    assert answer.peak.phase is Phase.REFERENCE
    need = pytest.approx(units.in_gib(answer.need_high_bytes), abs=0.01)
    assert stacked(drawn, Phase.LOSS) == need
    assert "<b>▸ Reference</b>" in drawn["layout"]["yaxis"]["ticktext"]

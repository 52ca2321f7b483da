"""The figure of layer placement: every layer once, every GPU's own peak, accepted by Plotly unchanged."""

from __future__ import annotations

from dataclasses import replace

import plotly.graph_objects as go
import pytest

from dashboard.estimate import layer_placement
from estimator import TrainingSetup, catalog, estimate, placed_with_tower
from estimator.families.model_tree import total_parameters, vision_modules
from estimator.families.modules import module_parameters
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.precision import Precision
from estimator.values.specs import Component
from estimator.values.strategies import Strategy
from tests.test_start_page import open_page, text

MISTRAL, A100 = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
FOUR = TrainingSetup(strategy=Strategy.DEVICE_MAP, num_gpus=4)
GIB = 2**30


@pytest.fixture(scope="module")
def answer():
    return estimate(MISTRAL, A100, FOUR)


@pytest.mark.parametrize("name", ["mistralai/Mistral-7B-v0.1", "facebook/opt-1.3b"])
@pytest.mark.parametrize("gpus", [2, 8])
def test_the_strip_shows_every_layer_once_in_order(name, gpus):
    model = catalog.model(name)
    placed = estimate(model, None, replace(FOUR, num_gpus=gpus))
    strip = layer_placement.pieces(placed)
    assert [layer for piece in strip for layer in piece.layers] == [*range(model.num_hidden_layers)]
    assert "embed_tokens" in strip[0].names
    named = sorted(name for piece in strip for name in piece.names)
    assert named == sorted(name for device in placed.devices for name in device.outside)


@pytest.mark.parametrize("dark", [False, True])
def test_plotly_accepts_the_figure(answer, dark):
    for of in (answer, estimate(MISTRAL, None, FOUR)):
        drawn = layer_placement.figure(of, dark=dark)
        assert len(go.Figure(drawn).data) == len(drawn["data"]) > 0


def test_a_bar_adds_up_to_its_gpu_s_need(answer):
    drawn = [
        trace for trace in layer_placement.figure(answer)["data"] if trace.get("xaxis") is None
    ]
    bars = [trace for trace in drawn if trace["type"] == "bar"]
    for place, held in enumerate(answer.devices):
        there = sum(
            x for trace in bars for y, x in zip(trace["y"], trace["x"], strict=True) if y == place
        )
        assert there == pytest.approx(held.need.high / GIB, abs=0.01)


def test_table_shows_what_training_adds_and_the_headroom(answer):
    said = layer_placement.table_html(answer)
    for device in answer.devices:
        weights = device.peak.resident[Component.WEIGHTS]
        assert f"+{(device.peak.bytes - weights) / GIB:.1f}" in said
        assert f"{(A100.memory_bytes - device.need.high) / GIB:.1f}" in said


def test_any_setup_is_shown_over_two_gpus_or_refused_with_a_reason():
    alone = estimate(MISTRAL, A100, TrainingSetup())
    placed = layer_placement.over_devices(alone)
    assert placed == estimate(MISTRAL, A100, replace(FOUR, num_gpus=2))
    refused = layer_placement.over_devices(
        estimate(MISTRAL, A100, TrainingSetup(use_liger_kernel=True))
    )
    assert isinstance(refused, str)
    assert refused.startswith("Liger's kernels")


SEEING = [
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "google/gemma-3-12b-it",
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
]


@pytest.mark.parametrize("name", SEEING)
def test_a_tower_s_layers_and_the_text_s_are_drawn_once_in_order(name):
    model = catalog.model(name)
    placed = placed_with_tower(model, None, Adapters(), Precision(), 4)
    strip = layer_placement.tower_pieces(placed)
    drawn = [
        [i for unit in strip if unit.in_tower == tower for i in unit.layers] for tower in (0, 1)
    ]
    assert drawn == [
        [*range(model.num_hidden_layers)],
        [*range(model.vision.tower.num_hidden_layers)],
    ]
    assert "embed_tokens" in {name for one in strip for name in one.names}
    assert len(go.Figure(layer_placement.tower_figure(placed, A100)).data) > 0
    # every parameter lies on one GPU, in bfloat16; buffers are under a megabyte
    parameters = total_parameters(model) + sum(
        count * module_parameters(module) for module, count in vision_modules(model)
    )
    assert 0 <= sum(placed.weights) - 2 * parameters < 2**20


def test_the_page_draws_a_tower_and_says_that_a_step_is_not_modelled():
    of = estimate(
        catalog.model(SEEING[0]),
        A100,
        TrainingSetup(model_class="image_text", max_length=8192, image_sizes=((448, 448),)),
    )
    refused = layer_placement.over_devices(of)
    assert "strategy device_map is not modelled yet for a model with a vision tower" in refused
    placed = layer_placement.with_tower(of)
    assert "vision layers 1–32" in layer_placement.tower_table_html(placed)
    small = placed_with_tower(
        of.model, catalog.gpus()["T4"], of.setup.adapters, of.setup.precision, 1
    )
    assert small.startswith("device_map leaves part of the model on the CPU")


def test_page_draws_the_placement_and_applies_it_on_click():
    page = open_page(model="openai-community/gpt2", section="Where the layers sit")
    assert "If 2 such GPUs shared the model by layers" in text(page)
    page.button(key="take map").click().run()
    page.run()
    assert not page.exception
    assert "Each layer is where from_pretrained" in text(page)

"""The GPU box: common names of cards, and custom cards."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.compare.entry import ComparedEntry
from dashboard.compare.results_table import differing
from dashboard.state import session
from estimator import catalog, estimate
from estimator.contract.setups import parse
from tests.test_page_remedies_and_cards import click, open_page, text


def type_card(page: AppTest, typed: str) -> None:
    """Types text that is not in the list, as a browser sends it."""
    box = page.selectbox(key="gpu box")
    box.options.append(typed)
    box.set_value(typed).run()
    assert not page.exception
    page.run()


def own(page: AppTest, memory: float, like: str | None, price: float | None) -> None:
    """Describes a custom card and selects it."""
    next(widget for widget in page.number_input if widget.label == "Usable memory, GiB").set_value(
        memory
    )
    next(widget for widget in page.selectbox if widget.label == "As fast as").set_value(like)
    next(widget for widget in page.number_input if widget.label == "US dollars per hour").set_value(
        price
    )
    click(page, "take own card")


def test_custom_card_is_compared_like_any_other():
    page = open_page(model="Qwen/Qwen3-8B", method="qlora")
    own(page, 9.75, None, None)
    assert "own GPU has 9.8 GiB usable" in text(page)
    assert json.loads(page.session_state["gpu"]) == {"memory_bytes": round(9.75 * 2**30)}
    assert page.selectbox(key="gpu box").options[0] == "own GPU, 9.8 GiB"


def test_card_like_another_has_hours_dollars_and_a_working_link():
    page = open_page(model="Qwen/Qwen3-8B", method="qlora")
    own(page, 47.5, "GeForce RTX 4090", 0.25)
    card = json.loads(page.session_state["gpu"])
    assert card == {"like": "GeForce RTX 4090", "memory_bytes": round(47.5 * 2**30)}
    said = text(page)
    assert "own GPU like GeForce RTX 4090" in said
    assert "your $0.25 per GPU-hour" in said
    again = open_page(
        model="Qwen/Qwen3-8B",
        method="qlora",
        gpu=page.session_state["gpu"],
        usd_per_gpu_hour="0.25",
    )
    assert "your $0.25 per GPU-hour" in text(again)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("4090", "GeForce RTX 4090"),
        ("H100 NVL MIG 1g.12gb", "H100-NVL-94GB MIG 1g.12gb"),
        ("p5.48xlarge", "p5.48xlarge"),  # whose price is its own
    ],
)
def test_unambiguous_words_select_their_card(typed, name):
    page = open_page(model="Qwen/Qwen3-8B", method="qlora")
    type_card(page, typed)
    assert page.session_state["gpu"] == name
    assert name in text(page)


def test_a_default_that_a_machines_name_would_change_is_in_the_address(monkeypatch):
    # p5.48xlarge has 8 GPUs: without num_gpus the address of one GPU would open eight
    monkeypatch.setattr(session.st, "session_state", {"gpu": "p5.48xlarge"})
    assert session.spelled({"num_gpus": 1, "lora_r": 16}) == {"num_gpus": ["1"], "lora_r": []}
    assert session.spelled({"gpu": "L4", "num_gpus": 1})["num_gpus"] == []


def test_ambiguous_words_offer_a_choice():
    page = open_page(model="Qwen/Qwen3-8B", method="qlora", gpu="L4")
    type_card(page, "A100 40GB")
    assert page.session_state["gpu"] == "L4"
    assert "“A100 40GB” may be:" in text(page)
    click(page, "take A100-SXM4-40GB")
    assert page.session_state["gpu"] == "A100-SXM4-40GB"
    assert "may be:" not in text(page)


def test_unknown_words_keep_the_card_and_say_so():
    page = open_page(model="Qwen/Qwen3-8B", method="qlora", gpu="L4")
    type_card(page, "<b>no card</b>")
    assert page.session_state["gpu"] == "L4"
    assert "No GPU in the catalogue is called “&lt;b&gt;no card&lt;/b&gt;”" in text(page)
    type_card(page, "Titan")
    assert page.session_state["gpu"] == "L4"
    click(page, "take Titan V")
    assert page.session_state["gpu"] == "Titan V"


def test_slice_from_a_link_is_an_option():
    page = open_page(model="Qwen/Qwen3-8B", method="qlora", gpu="A100-SXM4-80GB MIG 3g.40gb")
    options = page.selectbox(key="gpu box").options
    assert options == ["A100-SXM4-80GB MIG 3g.40gb", *catalog.gpus()]


def test_verdict_says_that_marketplace_prices_start_there():
    """The cheapest A10 is on a marketplace, the cheapest A100 80GB is not."""
    assert "(starting at $0.24 per GPU-hour at Vast.ai, 2026-10-02)" in text(
        open_page(model="Qwen/Qwen3-8B", method="qlora", gpu="A10")
    )
    assert "($1.60 per GPU-hour at Hyperstack, 2026-08-26)" in text(
        open_page(model="Qwen/Qwen3-8B", method="qlora", gpu="A100-SXM4-80GB")
    )


def test_custom_cards_are_distinguished_wherever_they_are_named():
    page = open_page(model="Qwen/Qwen3-8B", method="qlora")
    read = []
    for memory in (10.0, 12.0):
        own(page, memory, "GeForce RTX 4090", None)
        read.append(page.selectbox(key="gpu box").options[0])
        assert "{" not in read[-1]
    assert read == [f"own GPU, {memory} GiB like GeForce RTX 4090" for memory in ("10.0", "12.0")]
    cards = [{"like": "L4", "memory_bytes": size * 2**30} for size in (20, 22)]
    model, _, setup = parse({"model": "Qwen/Qwen3-8B"})
    shown = [
        ComparedEntry(
            "a", estimate(model, parse({"model": "Qwen/Qwen3-8B", "gpu": card})[1], setup)
        )
        for card in cards
    ]
    assert differing(shown)["gpu"] == [f"own GPU, {size}.0 GiB like L4" for size in (20, 22)]


def test_typed_count_sets_the_number_of_gpus():
    page = open_page(model="openai-community/gpt2", method="lora")
    type_card(page, "2x RTX 4090")
    assert page.session_state["gpu"] == "GeForce RTX 4090"
    assert page.query_params["num_gpus"] == "2"
    assert page.query_params["strategy"] == "ddp"


def test_card_chosen_from_several_keeps_the_typed_count():
    page = open_page(model="openai-community/gpt2", method="lora")
    type_card(page, "4x A100-80GB")
    click(page, "take A100-SXM4-80GB")
    assert page.session_state["gpu"] == "A100-SXM4-80GB"
    assert page.query_params["num_gpus"] == "4"

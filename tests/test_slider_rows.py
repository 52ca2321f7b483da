"""Precomputed answers along a slider: each step of a row equals the server's answer there."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from dashboard.estimate import at_a_glance, method_cards, sections
from dashboard.figures.rows import row
from dashboard.state import question
from dashboard.widgets.slider_rows import SLIDERS
from estimator import contract, estimate

ROOT = Path(__file__).resolve().parent.parent
LEAVES = st.none() | st.integers() | st.text(max_size=3)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner)
)
DOCUMENTS = st.lists(st.dictionaries(st.sampled_from("ab"), VALUES), min_size=1, max_size=4)


def document_at(made, place):
    """The document that slider_rows.js's ``documentAt`` builds from a row."""
    document = deepcopy(made["first"])
    for number, value in made["changes"][place]:
        *way, last = made["paths"][number]
        inner = document
        for key in way:
            inner = inner[key]
        inner[last] = value
    return document


@given(DOCUMENTS)
def test_a_row_reproduces_each_of_its_documents(documents):
    whole = [{"whole": document} for document in documents]
    made = row(whole)
    assert [document_at(made, place) for place in range(len(whole))] == whole


def test_a_row_stores_only_differences():
    alike = {"figure": {"x": list(range(100))}, "title": "same"}
    other = {"figure": {"x": [*range(99), 5]}, "title": "same"}
    assert row([alike, other])["changes"] == [[], [[0, 5]]]


SETUP = {"model": "mistralai/Mistral-7B-v0.1", "gpu": "A100-SXM4-80GB", "method": "lora"}


def page_with_a_row(slider, **address):
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    for key, value in {**SETUP, **address}.items():
        page.query_params[key] = value
    page.run()
    page.session_state["row asked"] = slider
    page.run()
    assert not page.exception
    return page


def hero(page):
    """The hero figure, its text and the verdict, as the server sent them."""
    (sent,) = [
        data
        for element in page.get("bidi_component")
        if element.proto.json and (data := json.loads(element.proto.json)[0]).get("name") == "hero"
    ]
    html = next(
        element.proto.body for element in page.get("html") if "hr-verdict" in element.proto.body
    )
    return sent["figure"], sent["alt"], html


@pytest.mark.parametrize(
    ("slider", "key", "places", "also"),
    [
        ("per_device_train_batch_size", "per_device_train_batch_size", (0, 7, 25), {}),
        ("max_length", "max_length", (0, 20), {}),
        ("num_gpus-box", "num_gpus", (1,), {"strategy": "fsdp"}),
    ],
)
def test_each_step_of_a_row_is_the_servers_answer(slider, key, places, also):
    """``also``: what goes with each step, such as a strategy with several GPUs."""
    page = page_with_a_row(slider)
    made = page.session_state["row"]
    for place in places:
        document = document_at(made, place)
        other = page_with_a_row(slider, **{key: made["texts"][place]}, **also)
        # through JSON, which turns tuples into lists as the page does
        figure, alt, html = hero(other)
        assert json.loads(json.dumps(document["figure"])) == figure
        assert (document["alt"], "".join(*document["html"].values())) == (alt, html)


def test_a_row_is_kept_while_only_its_slider_moves():
    page = page_with_a_row("max_length")
    made = page.session_state["row"]
    page.select_slider(key="max_length").set_value(512).run().run()  # a move reruns only fragments
    assert page.session_state["row"] is made
    page.select_slider(key="per_device_train_batch_size").set_value(2).run().run()
    assert page.session_state["row"] is None


@pytest.mark.parametrize(("strategy", "is_kept"), [("fsdp", True), ("zero3", False)])
def test_the_row_of_gpus_is_kept_where_one_gpu_and_several_are_its_own_steps(strategy, is_kept):
    """A step sets the strategy, too: none on one GPU, FSDP on several after that, whatever it was before."""
    page = page_with_a_row("num_gpus-box", num_gpus="8", strategy=strategy)
    page.session_state["Several GPUs open"] = True
    page.run()
    made = page.session_state["row"]
    page.select_slider(key="num_gpus box").set_value(1).run().run()
    assert page.session_state["unbound"].get("strategy", "none") == "none"
    assert (page.session_state["row"] is made) == is_kept


def test_a_move_reads_the_session_once():
    page = page_with_a_row("max_length")
    with patch.object(question, "_asked", wraps=question._asked) as asked:
        page.select_slider(key="max_length").set_value(512).run()
    assert asked.call_count == 1


def test_a_move_computes_no_other_method_nor_the_lower_half_and_names_the_new_setup():
    page = page_with_a_row("max_length")
    before = marks(page)
    assert len(before) == 3
    assert len(set(before.values())) == 1
    with (
        patch.object(sections, "draw_remedies") as below,
        patch.object(method_cards, "methods", return_value={}) as others,
    ):
        page.select_slider(key="max_length").set_value(512).run()
        assert below.call_count == others.call_count == 0
        moved = marks(page)
        assert moved["now"] != before["drawn"], "the browser dims what it has of another setup"
        page.run()
    assert below.call_count == 1
    assert others.call_count >= 1
    assert marks(page) == dict.fromkeys(before, moved["now"])


def marks(page):
    """The setups that the top and the lower half name, of what the last run has drawn."""
    bodies = " ".join(element.proto.body for element in page.get("html"))
    return dict(re.findall(r'class="hr-(now|drawn|compared)" data-setup="([^"]+)"', bodies))


def test_a_refused_step_says_why():
    look = at_a_glance.GlanceOptions()
    refused = at_a_glance.document("max_length 2048 exceeds <it>", look)
    assert refused["figure"] is None
    assert "max_length 2048 exceeds &lt;it&gt;" in "".join(*refused["html"].values())


def test_every_slider_has_a_row():
    assert set(SLIDERS.values()) == {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "max_length",
        "lora_r",
        "num_gpus",
    }


def test_a_verdict_is_marked_by_all_but_its_sliders_so_that_no_row_covers_another_models():
    def mark(**keys: object) -> str:
        found = estimate(*contract.parse({"model": "Qwen/Qwen3-8B", "gpu": "L4", **keys}))
        (of,) = re.findall(r'data-of="(\w+)"', at_a_glance.verdict_html(found))
        return of

    assert mark() == mark(max_length=512) == mark(per_device_train_batch_size=2)
    assert len({mark(), mark(model="Qwen/Qwen3-4B"), mark(gpu="T4"), mark(method="lora")}) == 4

"""The model box as a visitor uses it, without a browser and without a Hub: ``hub.fetch`` is replaced.

Counts are the Hub's ``safetensors.total`` of the named models, as in data/models.csv.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.state import models
from estimator import catalog, hub
from estimator.sources.repository import About, HubModel, Trouble, from_config
from tests.test_hub import LLAMA, LLAMA_PARAMETERS
from tests.test_start_page import figure, move, open_page, setting, text

MISTRAL = "mistralai/Mistral-7B-v0.1"
SENTENCE = "It is not there; look <b>elsewhere</b>."


class Hub:
    """Replaces ``hub.fetch``: answers by id, and records the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, HubModel] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def fetch(self, asked: str, *, token: str | None = None) -> HubModel:
        self.asked.append((asked, token))
        self.may_answer.wait(10)
        return self.answers.get(asked) or refused(Trouble.NOT_FOUND, asked)

    def has(self, hub_id: str, config: dict[str, Any], **about: Any) -> None:
        self.answers[hub_id] = from_config(config, About(hub_id=hub_id, **about))


def refused(trouble: Trouble, hub_id: str) -> HubModel:
    return HubModel(about=About(hub_id=hub_id), trouble=trouble, problem=SENTENCE)


@pytest.fixture(autouse=True)
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    fake = Hub()
    fake.has("me/llama", LLAMA, published_parameters=LLAMA_PARAMETERS, license="mit", gated="yes")
    monkeypatch.setattr(hub, "fetch", fake.fetch)
    return fake


def answered(page: AppTest) -> AppTest:
    """The page as its poll redraws it once the Hub has answered."""
    until = time.monotonic() + 10
    while page.session_state["asking"] is not None:
        assert time.monotonic() < until
        time.sleep(0.02)
        page.run()
        assert not page.exception
    return page


def type_model(page: AppTest, typed: str) -> AppTest:
    box = page.selectbox(key="model box")
    box.options.append(typed)  # AppTest accepts only the offered options
    box.set_value(typed).run()
    assert not page.exception
    return page


def open_at(**address: str) -> AppTest:
    return open_page(**{"gpu": "L4", "method": "lora", **address})


def press(page: AppTest, key: str) -> AppTest:
    page.button(key=key).click().run()
    assert not page.exception
    return page


# --- searching ----------------------------------------------------------------------------------


def test_options_show_size_licence_and_gate():
    options = open_page().selectbox(key="model box").options
    assert len(options) == len(catalog.models())
    assert "meta-llama/Llama-3.1-8B · 8.03B · llama3.1 · gated" in options
    assert "Qwen/Qwen2.5-0.5B · 494M · apache-2.0" in options


def test_catalogued_id_is_accepted_in_any_case_without_a_request(fake_hub):
    page = type_model(open_at(), " qwen/qwen3-8b ")
    assert page.session_state["model"] == "Qwen/Qwen3-8B"
    assert "LoRA of Qwen3-8B" in text(page)
    assert fake_hub.asked == []


def test_words_propose_models_and_a_click_selects_one(fake_hub):
    page = type_model(open_at(), "qwen 7b")
    assert page.session_state["model"] == MISTRAL
    assert "Found in the catalogue for “qwen 7b”" in text(page)
    press(page, "take Qwen/Qwen2.5-7B")
    assert page.session_state["model"] == "Qwen/Qwen2.5-7B"
    assert "Found in the catalogue" not in text(page)
    assert fake_hub.asked == []


def test_a_name_without_owner_is_accepted_if_one_id_ends_in_it(fake_hub):
    page = type_model(open_at(), "qwen3-8b")
    assert page.session_state["model"] == "Qwen/Qwen3-8B"
    assert fake_hub.asked == []


def test_words_may_be_a_hub_id_without_an_owner(fake_hub):
    fake_hub.has("mistral", LLAMA)
    page = type_model(open_at(), "mistral")
    press(page, "ask the Hub")
    assert answered(page).session_state["model"] == "mistral"


# --- fetching -----------------------------------------------------------------------------------


def test_typed_id_is_fetched_and_used_with_its_facts(fake_hub):
    page = answered(type_model(open_at(), "me/llama"))
    assert page.session_state["model"] == "me/llama"
    assert "LoRA of llama needs" in text(page)
    assert "me/llama · 8.03B · mit · gated" in page.selectbox(key="model box").options
    assert fake_hub.asked == [("me/llama", None)]


def test_page_stays_usable_during_the_request(fake_hub):
    fake_hub.may_answer.clear()
    page = type_model(open_at(), "me/llama")
    assert "Asking the Hub for <b>me/llama</b>" in text(page)
    assert "LoRA of Mistral-7B-v0.1" in text(page)
    before = figure(page)
    move(page, "max_length", 2048)
    assert figure(page) != before
    assert page.session_state["model"] == MISTRAL
    fake_hub.may_answer.set()
    assert answered(page).session_state["model"] == "me/llama"
    assert page.session_state["max_length"] == 2048
    assert "Asking" not in text(page)


@pytest.mark.parametrize("trouble", Trouble)
def test_every_error_shows_its_sentence_and_the_model_stays(fake_hub, trouble):
    fake_hub.answers["me/none"] = refused(trouble, "me/none")
    page = open_at(model="Qwen/Qwen3-8B")
    before = figure(page)
    answered(type_model(page, "me/none"))
    assert "It is not there; look &lt;b&gt;elsewhere&lt;/b&gt;." in text(page)
    assert page.session_state["model"] == page.selectbox(key="model box").value == "Qwen/Qwen3-8B"
    assert figure(page) == before
    again = [button for button in page.button if button.key == "ask again"]
    assert bool(again) == (trouble in models.ASK_AGAIN)


def test_retry_can_succeed(fake_hub):
    fake_hub.answers["me/late"] = refused(Trouble.DOWN, "me/late")
    page = answered(type_model(open_at(), "me/late"))
    fake_hub.has("me/late", LLAMA)
    answered(press(page, "ask again"))
    assert page.session_state["model"] == "me/late"
    assert "elsewhere" not in text(page)


def test_choosing_another_model_clears_the_error():
    page = answered(type_model(open_at(), "me/none"))
    assert "elsewhere" in text(page)
    type_model(page, "Qwen/Qwen3-8B")
    assert "elsewhere" not in text(page)


def test_typed_token_is_sent_and_never_in_the_address(fake_hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_server")
    fake_hub.answers["me/secret"] = refused(Trouble.GATED, "me/secret")
    page = answered(type_model(open_at(), "me/secret"))
    fake_hub.has("me/secret", LLAMA)
    field = page.text_input(key="hub token")
    assert field.proto.type == field.proto.PASSWORD
    assert field.proto.query_param_key == ""
    field.set_value("hf_of_the_visitor").run()
    assert answered(page).session_state["model"] == "me/secret"
    assert fake_hub.asked == [("me/secret", None), ("me/secret", "hf_of_the_visitor")]
    assert "hf_of_the_visitor" not in json.dumps(dict(page.query_params))


def test_quantised_checkpoint_shows_its_format_and_reason_for_refusal(fake_hub):
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    fake_hub.has("me/gptq", {**LLAMA, "quantization_config": gptq}, origin="me/llama")
    page = answered(type_model(open_at(), "me/gptq"))
    assert "The weights are stored as GPTQ" in text(page)
    assert "made from me/llama" in text(page)
    (refused,) = page.error
    assert "method lora on weights stored as GPTQ 4-bit is not modelled yet" in refused.value


def test_base_of_an_adapter_is_stated_until_chosen_by_hand(fake_hub):
    note = "me/adapter is an adapter; this is its base, Qwen/Qwen3-8B."
    base = HubModel(
        about=About(hub_id="Qwen/Qwen3-8B"), model=catalog.model("Qwen/Qwen3-8B"), notes=(note,)
    )
    fake_hub.answers["me/adapter"] = base
    page = answered(type_model(open_at(), "me/adapter"))
    assert page.session_state["model"] == "Qwen/Qwen3-8B"
    assert note in text(page)
    type_model(type_model(page, MISTRAL), "Qwen/Qwen3-8B")
    assert note not in text(page)


# --- links --------------------------------------------------------------------------------------

LINK = {"model": "me/llama", "max_length": "2048", "lora_r": "64", "lora_target_modules": "q_proj"}


def test_link_with_a_hub_id_fetches_it_and_keeps_the_rest(fake_hub):
    fake_hub.may_answer.clear()
    page = open_at(**LINK)
    assert "Asking the Hub for <b>me/llama</b>" in text(page)
    assert f"until then the page shows {MISTRAL}" in text(page)
    assert [warning.value for warning in page.warning] == []
    fake_hub.may_answer.set()
    answered(page)
    kept = {key: setting(page, key) for key in LINK}
    assert kept == {
        "model": "me/llama",
        "max_length": 2048,
        "lora_r": 64,
        "lora_target_modules": ("q_proj",),
    }


def test_link_uses_the_example_model_and_keeps_the_rest_when_the_hub_is_down(fake_hub):
    fake_hub.answers["me/llama"] = refused(Trouble.DOWN, "me/llama")
    page = answered(open_at(**LINK))
    assert "elsewhere" in text(page)
    assert f"The page shows {MISTRAL}." in text(page)
    assert page.session_state["model"] == MISTRAL
    assert setting(page, "lora_target_modules") == ("q_proj",)
    assert page.session_state["max_length"] == 2048


def test_link_keeps_target_modules_that_only_the_fetched_model_has(fake_hub):
    """GPT-NeoX has query_key_value, Mistral has not."""
    neox = replace(catalog.model("EleutherAI/pythia-160m"), hub_id="me/neox", config="{}")
    fake_hub.answers["me/neox"] = HubModel(about=About(hub_id="me/neox"), model=neox)
    page = answered(open_at(model="me/neox", lora_target_modules="query_key_value"))
    assert setting(page, "lora_target_modules") == ("query_key_value",)
    assert [warning.value for warning in page.warning] == []


def test_link_of_a_model_like_a_hub_model_fetches_that_model(fake_hub):
    own = '{"like":"me/llama","num_hidden_layers":16}'
    page = answered(open_at(model=own))
    assert page.session_state["model"] == own
    assert "A custom model: me/llama with num_hidden_layers 16." in text(page)
    assert fake_hub.asked == [("me/llama", None)]


@pytest.mark.parametrize(
    "nasty", ["no owner", "a/b/c", "../../etc/passwd", '{"like":"a/b/c"}', '{"like":3}', "{"]
)
def test_invalid_id_in_a_link_is_not_fetched(fake_hub, nasty):
    page = open_at(model=nasty)
    assert page.warning
    assert page.session_state["model"] == MISTRAL
    assert fake_hub.asked == []


def test_typed_text_is_never_rendered_as_html():
    page = answered(type_model(open_at(), "<script>/alert(1)"))
    assert "<script>" not in text(page)
    assert page.get("bidi_component")


def test_an_image_in_a_link_is_shown_as_text():
    """A browser would fetch it from another host."""
    page = open_at(optim="![x](https://example.org/x.png)")
    assert r"!\[x]" in page.warning[0].value


# --- custom models ------------------------------------------------------------------------------


def paste(page: AppTest, config: str) -> AppTest:
    page.text_area(key="config text").set_value(config).run()
    return press(page, "take config")


def test_pasted_config_is_used_and_its_link_reproduces_it(fake_hub):
    page = paste(open_at(), json.dumps(LLAMA, indent=2))
    assert "LoRA of this model needs" in text(page)
    assert "Own model 1: llama · 8.03B" in page.selectbox(key="model box").options
    assert json.loads(page.session_state["model"]) == LLAMA
    other = open_at(model=page.session_state["model"])
    assert figure(other) == figure(page)
    assert [warning.value for warning in other.warning] == []
    assert fake_hub.asked == []


def test_dropped_config_works_like_a_pasted_one():
    page = open_at()
    dropped = ("config.json", json.dumps(LLAMA).encode(), "application/json")
    page.file_uploader(key="config file").set_value(dropped).run()
    assert not page.exception
    assert json.loads(page.session_state["model"]) == LLAMA


def test_long_config_is_used_and_the_page_says_that_no_link_contains_it():
    page = paste(open_at(), json.dumps({**LLAMA, "id2label": ["x"] * 500}))
    assert page.session_state["model"] == "own config 1"
    assert "too long for a link" in text(page)
    assert "LoRA of this model needs" in text(page)
    other = open_at(model="own config 1", max_length="2048")
    assert [warning.value for warning in other.warning] == [models.LOST]
    assert other.session_state["model"] == MISTRAL
    assert other.session_state["max_length"] == 2048


@pytest.mark.parametrize(
    ("pasted", "sentence"),
    [
        ("", "The config.json is empty"),
        ("<!DOCTYPE html>", "The config.json is a web page"),
        ('{"model_type": "bert"}', "This config is an encoder (bert)"),
    ],
)
def test_invalid_config_gets_one_sentence_and_the_model_stays(pasted, sentence):
    page = paste(open_at(), pasted)
    assert sentence in text(page)
    assert page.session_state["model"] == MISTRAL


def dimension(page: AppTest, title: str):
    return next(field for field in page.number_input if field.label == title)


def test_dimensions_start_from_the_current_model_and_make_a_new_one():
    page = open_at(model="Qwen/Qwen3-8B")
    assert dimension(page, "Layers").value == 36
    dimension(page, "Layers").set_value(18).run()
    press(page, "take dimensions")
    assert page.session_state["model"] == '{"like":"Qwen/Qwen3-8B","num_hidden_layers":18}'
    assert dimension(page, "Layers").value == 18
    dimension(page, "Vocabulary").set_value(32000).run()
    press(page, "take dimensions")
    assert json.loads(page.session_state["model"]) == {
        "like": "Qwen/Qwen3-8B",
        "num_hidden_layers": 18,
        "vocab_size": 32000,
    }
    assert figure(open_at(model=page.session_state["model"])) == figure(page)


def test_conflicting_dimensions_get_one_sentence():
    page = open_at()
    dimension(page, "Heads").set_value(7).run()
    press(page, "take dimensions")
    assert "Hidden_size 4096 is not a multiple of num_attention_heads 7" in text(page)
    assert page.session_state["model"] == MISTRAL


def test_custom_model_stays_when_another_control_changes():
    page = open_at(model=json.dumps(LLAMA))
    move(page, "max_length", 4096)
    assert json.loads(page.session_state["model"]) == LLAMA
    assert [warning.value for warning in page.warning] == []

"""The model box in a real browser with a small Hub on loopback: typed ids, their links, custom models."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.test_in_chromium import (
    WAIT,
    addressed,
    alike,
    bars,
    becomes,
    changed,
    settled,
    visitor,
)
from tests.fake_hub import MEMBER
from tests.test_hub import LLAMA

pytestmark = pytest.mark.browser


def type_model(page, typed: str) -> None:
    page.get_by_role("combobox", name="Model").click()
    page.keyboard.type(typed)
    page.get_by_role("option", name=f"Add: {typed}").wait_for(timeout=WAIT)
    page.keyboard.press("Enter")


def test_an_unknown_id_loads_in_the_background_and_its_link_opens_elsewhere(browser, address):
    with visitor(browser, f"{address}/?gpu=L4&method=lora&model=Qwen/Qwen3-8B") as page:
        before = bars(page)
        type_model(page, "me/slow")
        page.get_by_role("status").filter(has_text="Asking the Hub for me/slow").wait_for()
        page.get_by_role("slider", name="Micro-batch").first.focus()
        page.keyboard.press("ArrowRight")
        changed(page, before)
        page.get_by_text("LoRA of llama needs").first.wait_for(timeout=WAIT)
        page.wait_for_url("**model=me%2Fllama**", timeout=WAIT)
        addressed(page, "per_device_train_batch_size=2")
        with visitor(browser, page.url) as other:
            other.get_by_text("LoRA of llama needs").first.wait_for(timeout=WAIT)
            other.wait_for_url("**model=me%2Fllama**", timeout=WAIT)
            alike(page, other)


def test_a_link_with_a_hub_id_keeps_every_key_when_a_slider_moves(browser, address):
    """The answer is cached: the test before has asked."""
    link = {
        "model": "me/slow",
        "gpu": "L4",
        "method": "qlora",
        "gradient_accumulation_steps": "4",
        "max_length": "2048",
        "gradient_checkpointing": "true",
        "attn_implementation": "eager",
        "lora_r": "64",
        "lora_target_modules": "q_proj",
        "loss": "chunked_trl",
    }
    with visitor(browser, f"{address}/?{urlencode(link)}") as page:
        page.get_by_text("QLoRA of llama needs").first.wait_for(timeout=WAIT)
        page.wait_for_url("**model=me%2Fllama**", timeout=WAIT)
        settled(page)
        before = bars(page)
        page.get_by_role("slider", name="Micro-batch").first.focus()
        page.keyboard.press("ArrowRight")
        changed(page, before)
        addressed(page, "per_device_train_batch_size=2")
        now = dict(parse_qsl(urlsplit(page.url).query))
        assert now == {**link, "model": "me/llama", "per_device_train_batch_size": "2"}


def test_a_gated_model_gives_a_sentence_until_a_token_is_given(browser, address, hub):
    """The server's own token has access but is not used."""
    with visitor(browser, address) as page:
        before = bars(page)
        type_model(page, "me/gated")
        said = page.get_by_role("alert").filter(has_text="me/gated is gated; accept its terms at")
        said.wait_for(timeout=WAIT)
        becomes(page, before)
        addressed(page, "model=mistralai")
        settled(page)  # an answer that is under way closes what is opened before it arrives
        page.get_by_text("All other settings").click()
        settled(page)
        page.get_by_text("Hub token", exact=True).click()
        page.get_by_label("Hugging Face token").fill(MEMBER)
        page.keyboard.press("Enter")
        page.wait_for_url("**model=me%2Fgated**", timeout=WAIT)
        said.wait_for(state="hidden", timeout=WAIT)
        assert MEMBER not in page.url


def test_a_hub_that_never_answers_gives_a_sentence_in_five_seconds(browser, address):
    link = f"{address}/?model=me/silent&gpu=L4&method=lora&lora_r=64"
    with visitor(browser, link) as page:
        said = page.get_by_role("alert").filter(has_text="The Hub has not answered within 5 s")
        expect(said).to_contain_text("The page shows mistralai/Mistral-7B-v0.1.")
        addressed(page, "lora_r=64")
        expect(page.get_by_role("button", name="Ask again")).to_be_visible()


def test_typed_words_suggest_models(browser, address):
    with visitor(browser, address) as page:
        type_model(page, "qwen 7b")
        page.get_by_role("button", name="Qwen/Qwen2.5-7B · 7.62B", exact=True).click()
        page.wait_for_url("**model=Qwen%2FQwen2.5-7B**", timeout=WAIT)


def test_a_pasted_config_is_part_of_the_link(browser, address):
    with visitor(browser, f"{address}/?gpu=L4&method=lora&model=Qwen/Qwen3-8B") as page:
        before = bars(page)
        settled(page)  # as above
        page.get_by_text("All other settings").click()
        settled(page)
        page.get_by_text("Own model", exact=True).click()
        page.get_by_label("Paste a config.json").fill(json.dumps(LLAMA))
        page.get_by_role("button", name="Use this config").click()
        changed(page, before)
        expect(page.get_by_label("Layers")).to_have_value("32")
        before = bars(page)
        page.get_by_label("Layers").fill("16")
        page.get_by_role("button", name="Use these dimensions").click()
        changed(page, before)
        with visitor(browser, page.url) as other:
            alike(page, other)
            assert other.locator('[data-testid="stAlert"]').count() == 0

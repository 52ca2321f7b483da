"""The comparison in a real browser: shared links, a server restart, printing, presenting, the keyboard."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import expect

from dashboard.compare import report, results_table
from dashboard.compare.entry import ComparedEntry
from estimator import Method, TrainingSetup, catalog, estimate
from estimator.contract.scenarios import Scenario, write_text
from tests.browser.conftest import free_port, serving
from tests.browser.test_in_chromium import (
    AT_REST,
    WAIT,
    addressed,
    alike,
    bars,
    settled,
    visitor,
)

pytestmark = pytest.mark.browser
MISTRAL = {"model": "mistralai/Mistral-7B-v0.1", "gpu": "A100-SXM4-80GB"}
THREE = [
    Scenario("All weights", MISTRAL),
    Scenario("LoRA", {**MISTRAL, "method": "lora"}),
    Scenario("QLoRA", {**MISTRAL, "method": "qlora"}),
]
LATE = "() => { const was = history.length; history.pushState({}, '', location.href); return history.length - was; }"
KEEP_WHILE_A_SLIDER_ASKS = """() => {
  const slider = document.querySelector('.st-key-per_device_train_batch_size input[type="range"]');
  slider.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }));
  document.querySelector('.st-key-keep button').click();
}"""
"""Both in one moment, of which Streamlit's client makes one message."""
CONNECTED = '.stApp[data-test-connection-state="CONNECTED"]'
METRES, PIXELS = 2.0, 1920
"""A projected picture two metres wide, the least in a meeting room, and its pixels."""
MILLIMETRES_FROM_FOUR_METRES = 4000 / 200
"""DIN 1450 and ISO 9241-303 require at least 0.3 degrees: a 200th of the distance."""


def link(address: str, scenarios=THREE, **more: object) -> str:
    return f"{address}/compare?" + urlencode(
        {"s": [write_text(scenario) for scenario in scenarios], "v": 1, **more}, doseq=True
    )


def table(page):
    return page.locator(".hr-compare")


def test_an_open_page_and_a_link_survive_a_server_restart(browser):
    """The first server's first visit is to another page than the start page."""
    port = free_port()
    with ExitStack() as first:
        url = first.enter_context(serving(port))
        with browser.visit() as page:
            page.goto(f"{url}/how")
            page.get_by_role("heading", name="How it works", exact=True).wait_for(timeout=WAIT)
            assert page.get_by_text("Page not found").count() == 0
        with visitor(browser, link(url)) as page:
            before, query = table(page).inner_text(), urlsplit(page.url).query
            with visitor(browser, page.url) as other:
                expect(table(other)).to_have_text(before, use_inner_text=True)
        setup = "model=Qwen/Qwen3-8B&gpu=L4&method=lora&lora_r=64&max_length=2048"
        with visitor(browser, f"{url}/?{setup}") as page:
            drawn = bars(page)
            first.close()
            page.wait_for_selector(CONNECTED, timeout=WAIT, state="detached")
            with serving(port):
                page.wait_for_selector(CONNECTED, timeout=WAIT, state="attached")
                settled(
                    page
                )  # a press while a new server runs a page for the first time may be lost
                page.get_by_role("slider", name="Micro-batch").first.focus()
                page.keyboard.press("ArrowRight")
                addressed(page, "per_device_train_batch_size=2", "lora_r=64")
                with visitor(browser, page.url) as other:
                    alike(page, other)
                    assert bars(other) != drawn
                with visitor(browser, f"{url}/compare?{query}") as again:
                    expect(table(again)).to_have_text(before, use_inner_text=True)


def test_a_chart_is_saved_the_link_copied_and_a_phone_scrolls_the_table_alone(browser, address):
    with visitor(browser, link(address)) as page:
        for kind, begins in {"PNG": b"\x89PNG", "SVG": b"<svg "}.items():
            with page.expect_download(timeout=WAIT) as saving:
                page.locator(f'.st-key-comparison [data-title="Save as {kind}"]').click()
            assert saving.value.suggested_filename == f"headroom-comparison.{kind.lower()}"
            assert Path(saving.value.path()).read_bytes().startswith(begins)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy the link").click()
        page.get_by_role("button", name="Copied").wait_for(timeout=WAIT)
        assert page.evaluate("navigator.clipboard.readText()") == page.url
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_function(AT_REST)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_a_setup_can_be_kept_compared_opened_and_returned_to(browser, address):
    with visitor(browser, f"{address}/?model=Qwen/Qwen3-8B&gpu=L40S&method=lora") as page:
        page.get_by_role("button", name="Keep for comparison").wait_for()
        page.evaluate(KEEP_WHILE_A_SLIDER_ASKS)
        name = page.get_by_role("dialog").get_by_label("Name")
        expect(name).to_have_value("Qwen3-8B, LoRA on L40S")
        page.get_by_role("button", name="Keep", exact=True).click()
        page.get_by_role("link", name="Compare, 1 kept").click()
        page.wait_for_url("**/compare?**")
        expect(table(page)).to_contain_text("Qwen3-8B, LoRA on L40S")
        page.reload()
        expect(table(page)).to_contain_text("Qwen3-8B, LoRA on L40S")
        page.get_by_role("button", name="Open in the estimator").click()
        page.get_by_text("LoRA of Qwen3-8B needs").first.wait_for()
        addressed(page, "gpu=L40S")
        page.get_by_role("link", name="Compare, 1 kept").click()
        table(page).wait_for()


def test_two_tabs_do_not_disturb_each_other(browser, address):
    with visitor(browser, link(address)) as one, visitor(browser, link(address)) as two:
        one.get_by_role("button", name="Remove", exact=True).click()
        one.get_by_role("columnheader", name="All weights").wait_for(state="detached", timeout=WAIT)
        two.get_by_role("button", name="Duplicate").click()
        two.get_by_role("columnheader", name="All weights 2").wait_for(timeout=WAIT)
        expect(table(one)).not_to_contain_text("All weights")


def test_a_presented_verdict_is_legible_at_four_metres_and_arrow_keys_advance(browser, address):
    with visitor(browser, link(address, present=1), 1920, 1080, "dark") as page:
        pixels = page.evaluate(
            "() => parseFloat(getComputedStyle(document.querySelector('.hr-big')).fontSize)"
        )
        capitals = 0.66 * pixels * METRES * 1000 / PIXELS  # the typeface's cap height
        assert capitals >= MILLIMETRES_FROM_FOUR_METRES
        expect(page.locator(".hr-stage")).to_contain_text("All weights")
        page.keyboard.press("ArrowRight")
        page.locator(".hr-who", has_text="LoRA").wait_for(timeout=WAIT)
        assert page.evaluate("() => document.documentElement.scrollHeight") <= 1080
        page.keyboard.press("Escape")
        page.get_by_role("heading", name="Compare").wait_for(timeout=WAIT)
        page.wait_for_url(lambda url: "present" not in url, timeout=WAIT)


@pytest.mark.parametrize("count", [2, 8])
def test_the_report_prints_on_two_pages_of_a4_and_of_letter(browser, tmp_path, count):
    names = ["The smallest card that could hold it, rented for a week in May"[:60], *"abcdefg"]
    methods = [Method.FULL, Method.LORA, Method.QLORA]
    cards = [card for card in catalog.gpus().values() if card.prices and card.supports_bf16]
    shown = [
        ComparedEntry(
            name,
            estimate(
                catalog.model("mistralai/Mistral-7B-v0.1"),
                cards[place],
                TrainingSetup(
                    method=methods[place % 3],
                    lora_r=8 << place,
                    max_length=512 << place,
                    per_device_train_batch_size=1 + place,
                    gradient_checkpointing=bool(place % 2),
                ),
            ),
        )
        for place, name in enumerate(names[:count])
    ]
    assert len(results_table.differing(shown)) >= 4
    file = tmp_path / "report.html"
    long = "http://localhost:8501/compare?" + "x" * 1900
    file.write_text(report.write_html(report.Subject(shown, "2026-11-21", long, 24.0)), "utf-8")
    with browser.visit() as page:
        page.goto(file.as_uri())
        for font in ("", "DejaVu Sans", "serif"):
            page.add_style_tag(
                content=f"body, svg {{ font-family: {font!r}, sans-serif !important; }}"
            )
            for paper in ("A4", "Letter"):
                printed = page.pdf(format=paper, prefer_css_page_size=paper == "A4")
                assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == 2
            cut = page.locator("svg text").evaluate_all(
                "texts => texts.filter(it => { const box = it.getBBox();"
                " return box.x < 0 || box.x + box.width > it.ownerSVGElement.viewBox.baseVal.width })"
                ".map(it => it.textContent)"
            )
            assert cut == []


def test_back_steps_through_pages_and_changes_one_by_one(browser, address):
    first = "/?model=Qwen%2FQwen3-8B&gpu=L40S&method=lora&lora_r=64&max_length=2048"
    with visitor(browser, address + first) as page:
        estimate = page.get_by_text("LoRA of Qwen3-8B needs").first
        how, compare = (
            page.get_by_role("heading", name=title, exact=True)
            for title in ("How it works", "Compare")
        )
        seen = []

        def arrive(shown) -> str:
            """The address, once the page that it leads to is shown."""
            shown.wait_for()
            page.wait_for_function(AT_REST)
            page.wait_for_timeout(700)  # as a person: changes within half a second are one step
            return page.url.removeprefix(address)

        seen.append((arrive(estimate), estimate))
        assert page.evaluate(LATE) == 0, "an update without a click is no step"
        for name, shown in (
            ("How it works", how),
            ("Estimate", estimate),
            ("Compare", compare),
            ("Estimate", estimate),
        ):
            page.get_by_role("link", name=name).click()
            seen.append((arrive(shown), shown))
        page.get_by_role("button", name="Reset").click()
        reset = arrive(page.get_by_text("Full fine-tuning of Mistral-7B").first)
        assert "gpu=A100-SXM4-80GB" in reset
        assert "lora_r=64" not in reset
        assert [url for url, shown in seen if shown is estimate] == [first] * 3
        for before, shown in reversed(seen):
            page.go_back()
            page.wait_for_url(address + before)
            assert arrive(shown) == before

"""Interactions that need a real browser: a cell of the map, a remedy and its undo, a phone, and a link's preview."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import expect

from dashboard.widgets import drawing, in_order
from tests.browser.test_in_chromium import WAIT, addressed, bars, becomes, changed, visitor

pytestmark = pytest.mark.browser
LORA = "?model=Qwen/Qwen3-8B&gpu=L40S&method=lora&max_length=2048&per_device_train_batch_size=4"
STAYS = ".hr-stays"
"""The verdict that stays in sight."""


def test_a_click_on_the_map_sets_both_sliders(browser, address):
    with visitor(browser, f"{address}/{LORA}&section=How+far") as page:
        plot = page.locator(".st-key-map .js-plotly-plot")
        plot.locator(".main-svg").first.wait_for(timeout=WAIT)
        plot.scroll_into_view_if_needed()
        before = bars(page)
        cells = plot.evaluate(
            "plot => plot._fullData.at(-1).customdata.map(pair => Array.from(pair))"
        )
        at = cells.index([2, 1024])
        place = plot.evaluate(
            "(plot, at) => { const trace = plot._fullData.at(-1), layout = plot._fullLayout;"
            " return { x: layout._size.l + layout.xaxis.d2p(trace.x[at]),"
            " y: layout._size.t + layout.yaxis.d2p(trace.y[at]) } }",
            at,
        )
        plot.hover(position=place)  # both wait until the plot stands still
        plot.click(position=place)
        changed(page, before)
        addressed(page, "per_device_train_batch_size=2")
        page.wait_for_url(lambda url: "max_length=" not in url)  # the default is not written
        page.get_by_text("Effective batch 2 = 2 × 1 on 1 GPU").wait_for(timeout=WAIT)


def test_a_remedy_scrolls_back_to_the_verdict_and_its_undo_survives_another_page(browser, address):
    with visitor(browser, f"{address}/{LORA}") as page:
        before, stays = bars(page), page.locator(STAYS)
        page.get_by_text("✕ Does not fit").first.wait_for(timeout=WAIT)
        expect(stays).to_have_css("opacity", "0")  # the panel itself is in sight
        icon = page.locator('link[rel~="icon"]').first.get_attribute("href")
        assert icon.startswith("data:image/svg+xml,%3Csvg")
        remedy = page.get_by_role("button", name="Apply Gradient checkpointing").first
        remedy.scroll_into_view_if_needed()
        page.locator('[data-testid="stMain"]').evaluate("it => it.scrollTo(0, 900)")
        expect(stays).to_have_css("opacity", "1")
        expect(stays).to_contain_text("Does not fit")
        remedy.click()
        page.wait_for_function(
            "() => document.querySelector('[data-testid=\"stMain\"]').scrollTop === 0", timeout=WAIT
        )
        page.get_by_text("✓ Fits").first.wait_for(timeout=WAIT)
        page.wait_for_url("**gradient_checkpointing=true**", timeout=WAIT)
        page.get_by_role("button", name="Undo").click()
        page.wait_for_url(lambda url: "gradient_checkpointing" not in url, timeout=WAIT)
        becomes(page, before)
        link = page.get_by_role("link", name="How it works")
        place = link.bounding_box()
        link.click()
        page.get_by_text("A peak is a moment, not a sum").wait_for(timeout=WAIT)
        after = page.get_by_role("link", name="How it works").bounding_box()
        assert (after["x"], after["y"]) == pytest.approx((place["x"], place["y"]), abs=1)
        name = page.locator(".hr-pages b")
        name.wait_for(timeout=WAIT)
        page.set_viewport_size({"width": 390, "height": 844})
        name.wait_for(timeout=WAIT, state="hidden")
        page.set_viewport_size({"width": 1440, "height": 900})
        page.get_by_role("link", name="Estimate").click()
        becomes(page, before)


def test_a_remedy_may_set_a_slider_to_a_value_between_its_steps(browser, address):
    link = f"{address}/?model=Qwen/Qwen3-8B&gpu=L40S&method=lora&max_length=256&per_device_train_batch_size=14"
    with visitor(browser, link) as page:
        page.get_by_role("button", name="Apply Micro-batch 7").first.click()
        page.get_by_text("✓ Fits").first.wait_for(timeout=WAIT)
        page.get_by_text("Effective batch 14 = 7 × 2").wait_for(timeout=WAIT)
        thumb = page.locator(".st-key-per_device_train_batch_size input")
        assert thumb.get_attribute("aria-valuetext") == "7"


def test_a_card_opens_by_a_click_anywhere_and_by_keyboard(browser, address):
    with visitor(browser, address) as page:
        before = bars(page)
        corner = page.get_by_text("smallest:").last.bounding_box()
        page.mouse.click(corner["x"] + 5, corner["y"] + 5)  # an invisible button covers the text
        changed(page, before)
        page.wait_for_url("**method=qlora**", timeout=WAIT)
        page.get_by_text("✓ Fits").first.wait_for(timeout=WAIT)
        expect(page.get_by_role("radio", name="qlora")).to_be_checked()
        before = bars(page)
        page.get_by_role("button", name="Open LoRA").focus()
        page.keyboard.press("Enter")
        changed(page, before)
        page.wait_for_url("**method=lora**", timeout=WAIT)


def test_what_is_open_is_part_of_the_link_and_a_figure_never_goes_back(browser, address):
    """Streamlit awaits the script's import for each data, and may call it with an older one last."""
    with visitor(browser, address) as page:
        page.get_by_role("radio", name="Time and money").click()
        page.get_by_text("Saving and loading", exact=True).click()
        page.get_by_role("spinbutton", name="Disk write speed, GB/s").wait_for(timeout=WAIT)
        addressed(page, "section=Time", "saving_and_loading=true")
        with visitor(browser, page.url) as other:
            speed = other.get_by_role("spinbutton", name="Disk write speed, GB/s")
            speed.wait_for(timeout=WAIT)
            assert other.get_by_role("radio", name="Time and money").is_checked()
        shown = bars(page)
        script = in_order.SCRIPT + DRAWING.read_text()
        for earlier, expected in ((1, "older"), (-1, "newer")):
            page.evaluate(CALL, [script, earlier])
            page.wait_for_timeout(200)  # longer than a figure rests
            assert (bars(page) == shown) == (expected == "older"), expected


DRAWING = Path(drawing.__file__).with_suffix(".js")
CALL = """async ([script, earlier]) => {
  const { default: call } = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  const box = document.querySelector(".st-key-hero .hr-plot"), [session, number] = box.wanted.order;
  const data = structuredClone({ ...box.wanted, order: [session, number - earlier], follows: null });
  data.figure.data[0].x = data.figure.data[0].x.map((it) => it / 2);
  call({ data: [data], parentElement: box.parentElement, setTriggerValue: () => {} });
}"""


def test_a_phone_shows_the_verdict_at_the_bottom_and_a_choice_closes_the_sidebar(browser, address):
    link = f"{address}/?model=Qwen/Qwen3-8B&gpu=L4&method=full"
    with visitor(browser, link, width=390, height=844) as page:
        bar = page.locator(STAYS).bounding_box()
        assert bar["y"] + bar["height"] == pytest.approx(844, abs=1)
        page.get_by_test_id("stExpandSidebarButton").click()
        page.get_by_role("radio", name="qlora", exact=True).click()
        page.wait_for_url("**method=qlora**", timeout=WAIT)
        page.get_by_test_id("stExpandSidebarButton").wait_for(
            timeout=WAIT
        )  # present while the sidebar is closed
        page.locator(STAYS).get_by_text("✓ Fits").wait_for(timeout=WAIT)


def test_a_pasted_link_unfolds(address):
    """Read as a link preview does: one request, no script."""
    link = f"{address}/?model=Qwen/Qwen3-8B&gpu=L4&method=qlora"
    with urllib.request.urlopen(link, timeout=30) as answer:
        page = answer.read().decode()
    assert 'property="og:title" content="QLoRA of Qwen3-8B on L4: fits,' in page
    picture = link.replace("/?", "/share/card.png?")
    with urllib.request.urlopen(picture, timeout=30) as answer:
        assert answer.headers["content-type"] == "image/png"
        assert answer.read(8) == b"\x89PNG\r\n\x1a\n"

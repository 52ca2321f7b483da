"""The verdict stays visible, a phone's sidebar closes, and a pasted link unfolds."""

from __future__ import annotations

import urllib.request

import pytest
from playwright.sync_api import expect

from tests.browser.test_in_chromium import WAIT, visitor

pytestmark = pytest.mark.browser
TIGHT = "?model=Qwen/Qwen3-8B&gpu=L40S&method=lora&max_length=2048&per_device_train_batch_size=4"
STAYS = ".hr-stays"


def test_the_verdict_stays_visible_and_a_remedy_scrolls_back_to_it(browser, address):
    with visitor(browser, f"{address}/{TIGHT}") as page:
        stays = page.locator(STAYS)
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


def test_the_navigation_stays_in_place_and_shows_the_name_if_there_is_room(browser, address):
    with visitor(browser, address) as page:
        link = page.get_by_role("link", name="How it works")
        before = link.bounding_box()
        link.click()
        page.get_by_role("heading", name="How it works", exact=True).wait_for(timeout=WAIT)
        after = page.get_by_role("link", name="How it works").bounding_box()
        assert (after["x"], after["y"]) == pytest.approx((before["x"], before["y"]), abs=1)
        name = page.locator(".hr-pages b")
        name.wait_for(timeout=WAIT)
        page.set_viewport_size({"width": 390, "height": 844})
        name.wait_for(timeout=WAIT, state="hidden")


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

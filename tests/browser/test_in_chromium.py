"""The start page in a real browser: its link, its keyboard, its width, and what it asks of the network."""

from __future__ import annotations

from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.browser
WAIT = 60_000


@contextmanager
def visitor(browser, url, width=1440, height=900, theme="light"):
    """A page of a new visitor, with what went wrong on it."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = context.new_page()
    page.wrong, page.asked = [], []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("request", lambda request: page.asked.append(urlsplit(request.url).hostname))
    page.goto(url)
    settled(page)
    try:
        yield page
        assert page.wrong == []
        assert page.locator('[data-testid="stException"]').count() == 0
    finally:
        context.close()


def settled(page):
    page.wait_for_selector(".js-plotly-plot .main-svg", timeout=WAIT)
    page.wait_for_selector('[data-test-script-state="notRunning"]', timeout=WAIT, state="attached")


def bars(page):
    return page.evaluate(
        "() => document.querySelector('.js-plotly-plot')._fullData.filter(t => t.type === 'bar')"
        ".map(t => [t.name, ...Array.from(t.x)])"
    )


def changed(page, before):
    page.wait_for_function(
        "before => { const plot = document.querySelector('.js-plotly-plot'); return plot && plot._fullData &&"
        " JSON.stringify(plot._fullData.filter(t => t.type === 'bar').map(t => [t.name, ...Array.from(t.x)]))"
        " !== before }",
        arg=page.evaluate("bars => JSON.stringify(bars)", before),
        timeout=WAIT,
    )
    settled(page)


def test_the_keyboard_moves_a_slider_and_reload_and_a_copied_link_keep_it(browser, address):
    with visitor(browser, address) as page:
        before = bars(page)
        page.get_by_role("slider", name="Micro-batch").first.focus()
        page.keyboard.press("ArrowRight")
        changed(page, before)
        moved = bars(page)
        assert "per_device_train_batch_size=2" in page.url
        page.reload()
        settled(page)
        assert bars(page) == moved
        with visitor(browser, page.url) as other:
            assert bars(other) == moved


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_verdict_and_the_figure_are_seen_without_scrolling(browser, address, theme):
    with visitor(browser, address, theme=theme) as page:
        verdict = page.get_by_text("Does not fit").first.bounding_box()
        figure = page.locator(".js-plotly-plot").first.bounding_box()
        assert verdict["y"] > 0
        assert figure["y"] + figure["height"] <= 900


def test_a_phone_scrolls_in_one_direction_only(browser, address):
    with visitor(browser, address, width=390, height=844) as page:
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        assert page.get_by_text("Does not fit").first.is_visible()


def test_the_page_asks_nothing_of_anyone_but_its_own_server(browser, address):
    with visitor(browser, address) as page:
        assert set(page.asked) <= {"127.0.0.1", "localhost", "", None}

"""The start page in a real browser: its link, keyboard control, width and network requests."""

from __future__ import annotations

import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
WAIT = 60_000
expect.set_options(timeout=WAIT)
AT_REST = """() => {
  const app = document.querySelector('.stApp');
  return app?.dataset.testScriptState === 'notRunning' && app.dataset.testConnectionState === 'CONNECTED'
    && !document.querySelector('[data-stale="true"]')
    && document.getAnimations().every(it => it.timeline !== document.timeline || it.playState !== 'running');
}"""
"""Whether no script runs, no text is dimmed and nothing moves but what is scrolled. A click's run may not have begun
yet: first wait for what it changes."""


LOWER_HALF_FOLLOWS = """() => {
  const of = (which) => document.querySelector(`.hr-${which}`)?.dataset.setup;
  const half = document.querySelector('.st-key-below');
  return of('now') && of('now') === of('drawn') && of('now') === of('compared')
    && !half.inert && !half.hasAttribute('data-late');
}"""
"""Whether the browser has asked for all parts of the page's setup, and shows them at full ink."""


@contextmanager
def visitor(browser, url, width=1440, height=900, theme="light", first=""):
    """A new visitor's page: no script fails, and all requests go to its own server.

    ``first``: a script that runs before the page's.
    """
    with browser.visit(width, height, theme) as page:
        page.set_default_timeout(WAIT)
        page.add_init_script(first)
        page.wrong, page.asked = [], []
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("request", lambda request: page.asked.append(urlsplit(request.url).hostname))
        page.goto(url)
        settled(page)
        yield page
        assert page.wrong == []
        assert set(page.asked) <= {"127.0.0.1", "localhost", "", None}
        assert page.locator('[data-testid="stException"]').count() == 0


def settled(page):
    """Wait until there is a figure and the page is at rest."""
    page.wait_for_selector(".js-plotly-plot .main-svg")
    page.wait_for_function(AT_REST)


def addressed(page, *parts):
    """Wait until the address has each of these parts."""
    page.wait_for_url(lambda url: all(part in url for part in parts))


BARS = """JSON.stringify(document.querySelector('.js-plotly-plot')?._fullData?.filter(t => t.type === 'bar')
  .map(t => [t.name, ...Array.from(t.x)]))"""


def bars(page):
    """What the bars show now."""
    return page.evaluate(BARS)


def changed(page, before):
    """Wait until the bars differ from these."""
    _await_bars(page, "!==", before)


def becomes(page, wanted):
    """Wait until the bars equal these."""
    _await_bars(page, "===", wanted)


def _await_bars(page, compared, others):
    page.wait_for_function(
        f"others => {{ const now = {BARS}; return now && now {compared} others; }}", arg=others
    )
    settled(page)


def alike(page, other):
    """Wait until two pages' bars are equal, as both come to rest."""
    deadline = time.monotonic() + WAIT / 1000
    while bars(page) != bars(other) and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    assert bars(page) == bars(other)


def test_a_slider_moved_by_keyboard_survives_reload_and_a_copied_link(browser, address):
    with visitor(browser, f"{address}/?model=mistralai/Mistral-7B-v0.1&gpu=L4") as page:
        before = bars(page)
        page.get_by_role("slider", name="Micro-batch").first.focus()
        page.keyboard.press("ArrowRight")
        changed(page, before)
        page.get_by_text("Effective batch 2 = 2 × 1 on 1 GPU").wait_for(timeout=WAIT)
        moved = bars(page)
        page.wait_for_function(LOWER_HALF_FOLLOWS)
        addressed(page, "per_device_train_batch_size=2")
        page.reload()
        becomes(page, moved)
        with visitor(browser, page.url) as other:
            becomes(other, moved)


DRAWN = """() => [...document.querySelectorAll(':is(.st-key-hero, .st-key-method-peaks) .hr-plot')]
  .every((it) => it.drawn)"""
LABELS = """() => {
  const all = (what) => [...document.querySelectorAll(`:is(.st-key-hero, .st-key-method-peaks) ${what}`)];
  const name = (it) => it.split(':')[0];
  const parts = [...new Set(all('.hr-plot').flatMap((it) => JSON.parse(it.drawn).data[0].hovertext.map(name)))].sort();
  const points = all('.barlayer .point');
  const texts = points.map((it) => it.querySelector('text')?.textContent ?? '');
  const wide = (it, of) => it.querySelector(of)?.getBoundingClientRect().width ?? 0;
  const out = points.filter((it) => wide(it, 'text') > wide(it, 'path')).map((it) => it.textContent);
  return { parts, out, named: parts.filter((part) => texts.some((it) => it.startsWith(part))),
    legend: all('.hr-legend span').map((it) => it.textContent) };
}"""
"""The parts of both figures, those that a bar names, those of the legend, and labels that are wider than their part."""


def test_the_bare_address_shows_verdict_and_figure_without_scrolling(browser, address):
    """And on a phone; going back to it opens the example again."""
    with visitor(browser, address) as page:
        verdict = page.get_by_text("Does not fit").first.bounding_box()
        figure = page.locator(".js-plotly-plot").first.bounding_box()
        assert verdict["y"] > 0
        assert figure["y"] + figure["height"] <= 900
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            settled(page)
            page.wait_for_function(DRAWN)
            said = page.evaluate(LABELS)
            assert said["parts"] == sorted({*said["named"], *said["legend"]}), "each is told"
            assert not {*said["named"]} & {*said["legend"]}, "and once"
            assert said["out"] == [], "no label leaves its part"
            assert ("Weights" in said["named"]) == (width > 1000)
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert page.get_by_text("Does not fit").first.is_visible()
        addressed(page, "model=mistralai")
        page.go_back()
        page.wait_for_url("**model=mistralai**", timeout=WAIT)
        expect(page.get_by_text("Does not fit").first).to_be_visible()


def test_cards_are_equally_wide_and_show_all_their_text_under_a_button_without_one(
    browser, address
):
    """960 × 600 is a laptop's window at 150 %."""
    link = f"{address}/?model=Qwen/Qwen3-8B&gpu=A100-SXM4-80GB&num_gpus=16&strategy=fsdp"
    with visitor(browser, link) as page:
        cards = page.locator(".hr-cards-methods")
        button = page.get_by_role("button", name="Open LoRA")
        for width, height in ((1440, 900), (1024, 768), (960, 600)):
            page.set_viewport_size({"width": width, "height": height})
            cut = cards.locator(".hr-card").evaluate_all(
                "cards => cards.filter(it => it.scrollWidth > it.clientWidth || it.scrollHeight > it.clientHeight)"
                ".map(it => it.textContent)"
            )
            assert cut == [], width
            card, over = cards.locator(".hr-card").nth(1).bounding_box(), button.bounding_box()
            assert over["width"] >= card["width"] - 2
            assert over["height"] >= card["height"] - 2
        assert button.inner_text() == ""
        # proposals beside a setup that fits: the first was once 20 pixels wide
        fits = "model=mistralai/Mistral-7B-v0.1&method=qlora&gradient_checkpointing=true"
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(f"{address}/?{fits}&gpu=A100-SXM4-80GB&per_device_train_batch_size=8")
        settled(page)
        for group, number in (("methods", 3), ("others", 2)):
            cards = page.locator(f".hr-cards-{group} .hr-card")
            expect(cards).to_have_count(number)
            settled(page)
            widths = cards.evaluate_all(
                "all => all.map(card => card.getBoundingClientRect().width)"
            )
            assert max(widths) - min(widths) < 1


def test_a_misspelled_link_is_corrected_in_the_address(browser, address):
    link = f"{address}/?model=qwen/qwen3-8b&optim=adamw_8bit&max_length=2000&lora_r=many"
    with visitor(browser, link) as page:
        addressed(page, "model=Qwen", "optim=adamw_bnb_8bit", "max_length=2000")
        page.wait_for_url(lambda url: "lora_r" not in url)
        expect(page.get_by_text("lora_r must be a whole number")).to_have_count(1)
        with visitor(browser, page.url) as other:
            alike(page, other)
            assert other.locator('[data-testid="stAlert"]').count() == 0

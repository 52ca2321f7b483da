"""Verdict and figure follow a slider while it is dragged and match the server's later answer to the last digit."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.browser.test_in_chromium import visitor

pytestmark = pytest.mark.browser
WAIT = 60_000
LORA = {"model": "mistralai/Mistral-7B-v0.1", "gpu": "A100-SXM4-80GB", "method": "lora"}
SHARED = {**LORA, "strategy": "fsdp", "num_gpus": 2}
SLIDERS = {
    "max_length": "Context",
    "gradient_accumulation_steps": "Accumulation",
    "lora_r-box": "Rank",
}
"""One in sight, and two in the drawer."""
WITHOUT_ROWS = "window.headroomRows = { take() {}, answered() { return false; } };"
SHOWN = """() => {
  const box = document.querySelector('.st-key-hero .hr-plot');
  return [JSON.parse(box.drawn), box.wanted.alt, document.querySelector('.hr-verdict').parentElement.innerHTML];
}"""
DRAWN = """() => {
  const all = (part) => [...document.querySelectorAll(`.st-key-hero ${part}`)];
  const rounded = (number) => Math.round(10 * number) / 10;
  return [
    all('.barlayer path').map((it) => [it.getAttribute('d'), it.getAttribute('style')]),
    all('.ytick text').map((it) => it.innerHTML),
    all('.barlayer text').map((it) => [it.textContent, it.style.fill,
      it.getAttribute('transform').match(/[\\d.]+/g).map(rounded)]),
    all('.textpoint text').map((it) => [it.innerHTML, it.getAttribute('text-anchor'),
      rounded(it.getAttribute('x'))]),
  ];
}"""
IN_THE_ROW = """([slider, place]) => {
  const { rows, documentAt } = window.headroomRows;
  const { figure, alt, html } = documentAt(rows[slider], place);
  const made = document.createElement('div');
  made.innerHTML = Object.values(html)[0].join('');
  return [figure, alt, made.innerHTML];
}"""


FOLLOWS = f"""(slider) => {{
  const place = Number(document.querySelector(`.st-key-${{slider}} input[type="range"]`).value);
  return JSON.stringify(({SHOWN})()) === JSON.stringify(({IN_THE_ROW})([slider, place]));
}}"""
"""Whether the page shows what the row has for the thumb's place."""
WITHOUT_ROW_OR_BASE = """() => {
  const { rows } = window.headroomRows;
  Object.keys(rows).forEach((slider) => delete rows[slider]);
  document.querySelector('.st-key-hero .hr-plot').follows = { bases: {}, at: {} };
  return window.headroomRows.answered();
}"""
"""Whether a moved slider is drawn while neither a row nor the figure knows it, as when dropped files set it."""


def thumb(page, label):
    drawer = page.locator(".st-key-drawer > .stExpander > details:not([open]) > summary")
    if label in ("Accumulation", "Rank", "GPUs") and drawer.count():
        drawer.click()
    sidebar = page.get_by_test_id("stSidebar")
    if label == "GPUs" and not sidebar.get_by_role("slider", name=label).count():
        page.get_by_text("Several GPUs", exact=True).first.click()
    slider = sidebar.get_by_role("slider", name=re.compile(label)).first
    slider.wait_for(timeout=WAIT)
    return slider


def row_of(page, name, slider):
    """Focus a slider and wait for its row."""
    slider.focus()
    page.wait_for_function("(name) => window.headroomRows?.rows[name]", arg=name, timeout=WAIT)


@pytest.mark.parametrize(
    ("setup", "sliders"), [(LORA, SLIDERS), (SHARED, {"num_gpus-box": "GPUs"})]
)
def test_the_steps_of_a_slider_match_the_servers_answer(browser, address, setup, sliders):
    """The ends and the step after the first; ``tests/test_slider_rows.py`` compares others without a browser."""
    url = f"{address}/?{urlencode(setup)}"
    with visitor(browser, url) as page, visitor(browser, url, first=WITHOUT_ROWS) as plain:
        for name, label in sliders.items():
            row_of(page, name, thumb(page, label))
            slider = thumb(plain, label)
            slider.focus()
            start = int(slider.get_attribute("value"))
            ends = (("Home", 0), ("ArrowRight", 1), ("End", int(slider.get_attribute("max"))))
            for key, place in ends:
                slider.press(key)
                expect(slider).to_have_attribute("value", str(place), timeout=WAIT)
                said = slider.get_attribute("aria-valuetext")
                assert told(page, name, place) == answered(plain, name, said), (label, said)
            slider.press("Home")
            expect(slider).to_have_attribute("value", "0", timeout=WAIT)
            answered(plain, name, slider.get_attribute("aria-valuetext"))
            for _ in range(start):
                slider.press("ArrowRight")
            expect(slider).to_have_attribute("value", str(start), timeout=WAIT)
            answered(plain, name, slider.get_attribute("aria-valuetext"))


def told(page, name, place):
    """The row's content for a step."""
    return page.evaluate(IN_THE_ROW, [name, place])


def answered(plain, name, said):
    """What the server sends for the slider's current value."""
    plain.wait_for_function(
        "([name, said]) => document.querySelector('.st-key-hero .hr-plot').follows.at[name] === said",
        arg=[name, said],
        timeout=WAIT,
    )
    # the verdict was sent before the figure and is rendered by the next frame
    plain.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return plain.evaluate(SHOWN)


def assert_alike(drawn, expected):
    """Equal, with texts within half a pixel: Plotly centres a text by its measured box."""
    if isinstance(expected, list):
        assert len(drawn) == len(expected)
        for one, other in zip(drawn, expected, strict=True):
            assert_alike(one, other)
    elif isinstance(expected, str):
        assert drawn == expected
    else:
        assert drawn == pytest.approx(expected, abs=0.5)


def test_figure_and_verdict_move_while_the_thumb_is_dragged(browser, address):
    with visitor(browser, f"{address}/?{urlencode(LORA)}") as page:
        slider = thumb(page, "Context")
        row_of(page, "max_length", slider)
        place = slider.evaluate(
            "(it) => { const box = it.parentElement.getBoundingClientRect();"
            " return [box.left + box.width / 2, box.top + box.height / 2]; }"
        )
        page.mouse.move(*place)
        page.mouse.down()
        seen = set()
        for step in range(1, 9):
            page.mouse.move(place[0] + 12 * step, place[1])
            page.wait_for_function(FOLLOWS, arg="max_length")
            drawn = page.evaluate(DRAWN)
            seen.add(str(drawn))
            page.wait_for_timeout(250)  # by now Plotly has redrawn what the script moved itself
            assert_alike(page.evaluate(DRAWN), drawn)
        assert len(seen) > 4
        before = page.evaluate(DRAWN)
        page.mouse.up()
        page.wait_for_timeout(1000)
        page.wait_for_selector('[data-test-script-state="notRunning"]', state="attached")
        assert_alike(page.evaluate(DRAWN), before)


def test_a_row_is_not_used_after_another_slider_has_moved(browser, address):
    with visitor(browser, f"{address}/?{urlencode(LORA)}") as page:
        context, batch = thumb(page, "Context"), thumb(page, "Micro-batch")
        row_of(page, "max_length", context)
        base = page.evaluate("() => window.headroomRows.rows.max_length.base")
        row_of(page, "per_device_train_batch_size", batch)
        batch.press("ArrowRight")
        page.wait_for_function(
            "(base) => document.querySelector('.st-key-hero .hr-plot').follows.bases.max_length !== base",
            arg=base,
            timeout=WAIT,
        )
        context.focus()
        page.wait_for_function(
            "(base) => window.headroomRows.rows.max_length.base !== base", arg=base, timeout=WAIT
        )
        assert page.evaluate(WITHOUT_ROW_OR_BASE) is False


ANSWERS_ARE_LATE = """window.WebSocket = class extends WebSocket {
  addEventListener(kind, heard, how) {
    const late = kind === 'message' ? (it) => setTimeout(() => heard.call(this, it), 300) : heard;
    super.addEventListener(kind, late, how);
  }
  set onmessage(heard) { super.onmessage = (it) => setTimeout(() => heard.call(this, it), 300); }
};"""
"""A server that is 300 ms away."""


def test_no_press_on_the_number_of_gpus_is_lost_while_the_answers_to_others_are_under_way(
    browser, address
):
    """One GPU has no strategy, so both directions set the box of the strategy, which each press sends as it was."""
    url = f"{address}/?{urlencode(LORA)}"
    with visitor(browser, url, first=ANSWERS_ARE_LATE) as page:
        slider = thumb(page, "GPUs")
        slider.wait_for(timeout=WAIT)
        shown = "() => document.querySelector('.st-key-hero .hr-plot').follows.at['num_gpus-box']"
        for pause in (20, 100, 250, 100):
            for keys in (["Home"], ["ArrowRight"] * 3):
                for key in keys:
                    slider.press(key)
                    page.wait_for_timeout(pause)
                page.wait_for_timeout(2500)
                assert slider.get_attribute("value") == ("0" if keys == ["Home"] else "3"), pause
                assert page.evaluate(shown) == slider.get_attribute("aria-valuetext")


LOSES = """window.WebSocket = class extends WebSocket {
  send(message) { if (window.loses) window.loses = false; else super.send(message); }
};"""
"""A connection that loses the next message when it is told to."""


def test_a_press_whose_message_is_lost_is_sent_again(browser, address):
    with visitor(browser, f"{address}/?{urlencode(LORA)}", first=LOSES) as page:
        slider = thumb(page, "Context")
        row_of(page, "max_length", slider)
        page.wait_for_timeout(1000)
        page.evaluate("() => { window.loses = true; }")
        slider.press("ArrowRight")
        page.wait_for_function("() => window.loses === false")
        said = slider.get_attribute("aria-valuetext")
        answered(page, "max_length", said)
        assert f"{int(said):,} tokens" in page.locator(".hr-setup").inner_text()
        slider.press("ArrowRight")
        answered(page, "max_length", slider.get_attribute("aria-valuetext"))

"""No frame shows two setups at full ink, whatever the visitor does."""

from __future__ import annotations

import pytest

from tests.browser.test_in_chromium import AT_REST, LOWER_HALF_FOLLOWS, WAIT, visitor

pytestmark = pytest.mark.browser
LORA = "?model=Qwen/Qwen3-8B&gpu=A100-SXM4-80GB&method=lora&gradient_checkpointing=true"
SAMPLE = """() => {
  const PARTS = { '.hr-verdict': '', '.hr-cards-methods': '', '.hr-limits': '.hr-now', '.st-key-hero': '.hr-plot',
    '.st-key-method-peaks': '.hr-plot', '.st-key-below': '.hr-drawn' };
  const isFull = (part) => [...part.children].some((it) => Number(getComputedStyle(it).opacity) > 0.36);
  window.seen = [];
  const step = () => {
    const setups = {};
    for (const [name, mark] of Object.entries(PARTS)) {
      const part = document.querySelector(name), of = mark ? part?.querySelector(mark) : part;
      if (of?.dataset.setup && isFull(part)) setups[name] = of.dataset.setup;
    }
    const tab = document.querySelector('.st-key-section [aria-checked="true"]')?.innerText;
    const shown = [...document.querySelectorAll('[class*="st-key-part-"] p, [class*="st-key-part-"] th')]
      .filter((it) => it.checkVisibility({ visibilityProperty: true })).map((it) => it.innerText).join(' ');
    const verdict = document.querySelector('.hr-verdict'), kind = verdict && isFull(verdict) && verdict.dataset.of;
    const others = [...document.querySelectorAll('.hr-ruler')].filter((it) => kind && it.dataset.kind !== kind
      && [...it.querySelectorAll('.hr-band')].some((band) => Number(getComputedStyle(band).opacity) > 0.36)).length;
    window.seen.push([setups, others, tab, shown]);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}"""
"""Samples every frame: the setup of each part at full ink, how many rulers show another model, GPU or method so, and
the part below whose text is visible."""


def frames(page) -> list:
    """The frames since the last call and that call's last one, after the page has come to rest."""
    page.wait_for_function(
        "() => { const of = (it) => document.querySelector(it)?.dataset.setup;"
        f" return of('.hr-verdict') === of('.hr-now') && ({LOWER_HALF_FOLLOWS})() && ({AT_REST})(); }}",
        timeout=WAIT,
    )
    return list(
        page.evaluate(
            "() => { const seen = window.seen; window.seen = seen.slice(-1); return seen; }"
        )
    )


def scrub(page, slider: str, by: int) -> None:
    """Drag a number of the sentence sideways, by this many pixels."""
    box = page.locator(f'[data-scrub="{slider}"]').bounding_box()
    middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    page.mouse.move(*middle)
    page.mouse.down()
    for share in (0.3, 0.6, 1):
        page.mouse.move(middle[0] + share * by, middle[1])
        page.wait_for_timeout(40)
    page.mouse.up()


def assert_one_setup(seen: list) -> None:
    both = [setups for setups, *_ in seen if len(set(setups.values())) > 1]
    assert both == []
    assert {others for _, others, *_ in seen} == {0}
    assert len({setup for setups, *_ in seen for setup in setups.values()}) > 1, "the setup changed"


def test_no_frame_shows_two_setups_at_full_ink(browser, address):
    with visitor(browser, f"{address}/{LORA}", height=1800) as page:
        page.evaluate(SAMPLE)
        frames(page)
        flag = page.locator('.hr-ruler[data-slider="max_length"] .hr-flag')
        flag.wait_for(timeout=WAIT)
        box = flag.bounding_box()
        page.mouse.move(box["x"] + 1, box["y"] + 12)
        page.mouse.down()
        for step in range(1, 7):
            page.mouse.move(box["x"] + 25 * step, box["y"] + 12)
            page.wait_for_timeout(40)
        page.mouse.up()
        page.wait_for_url("**max_length=**", timeout=WAIT)
        assert_one_setup(frames(page))
        sentence = page.locator(".hr-setup")
        scrub(page, "per_device_train_batch_size", 30)  # has a slider in sight
        sentence.filter(has_text=", 3 × ").wait_for(timeout=WAIT)
        assert_one_setup(frames(page))
        scrub(page, "num_gpus-box", 14)  # its slider is in a closed expander
        sentence.filter(has_text="on 2 × A100-SXM4-80GB under FSDP").wait_for(timeout=WAIT)
        assert_one_setup(frames(page))
        page.keyboard.press("ArrowLeft")  # the number keeps the focus though it was drawn anew
        sentence.filter(has_text="on one A100-SXM4-80GB, ").wait_for(timeout=WAIT)
        assert_one_setup(frames(page))
        page.wait_for_url(lambda url: "batch_size=3" in url and "num_gpus" not in url, timeout=WAIT)
        page.get_by_role("combobox", name="Model").click()
        page.keyboard.type("Qwen3-4B")
        page.get_by_role("option", name="Qwen/Qwen3-4B ·").click()
        page.get_by_text("LoRA of Qwen3-4B needs").first.wait_for(timeout=WAIT)
        assert_one_setup(frames(page))
        page.go_back()
        page.get_by_text("LoRA of Qwen3-8B needs").first.wait_for(timeout=WAIT)
        assert_one_setup(frames(page))
        page.get_by_role("radio", name="Take away").click()
        page.get_by_role("button", name="Download all (zip)").wait_for(timeout=WAIT)
        chosen = [shown for *_, tab, shown in frames(page) if tab == "Take away"]
        assert not [one for one in chosen if "At the peak" in one], "the ledger of the part before"

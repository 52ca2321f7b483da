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
    window.seen.push([setups, document.querySelector('.st-key-model-box input')?.value, tab, shown]);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}"""
"""Samples every frame: the setup of each part at full ink, and the part below whose text is visible."""


def frames(page) -> list:
    """The frames since the last call, after the page has come to rest."""
    page.wait_for_function(LOWER_HALF_FOLLOWS, timeout=WAIT)
    page.wait_for_function(AT_REST, timeout=WAIT)
    return list(page.evaluate("window.seen.splice(0)"))


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
    assert len({it for setups, *_ in seen for it in setups.values()}) > 1, "the setup changed"


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
        scrub(page, "per_device_train_batch_size", 30)  # has a slider in sight
        page.wait_for_url("**per_device_train_batch_size=3**", timeout=WAIT)
        assert_one_setup(frames(page))
        scrub(page, "num_gpus-box", 14)  # its slider is in a closed expander
        page.wait_for_url("**num_gpus=2&strategy=fsdp**", timeout=WAIT)
        page.locator(".hr-verdict:not([data-late])", has_text="2 × A100").wait_for(timeout=WAIT)
        page.keyboard.press("ArrowLeft")  # the number keeps the focus though it was drawn anew
        page.wait_for_url(lambda url: "num_gpus" not in url, timeout=WAIT)
        assert_one_setup(frames(page))
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
        assert not [it for it in chosen if "At the peak" in it], "the ledger of the part before"

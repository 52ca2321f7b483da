"""Axe finds no violation of ours on any page in either theme, and the keyboard alone does the whole job."""

from __future__ import annotations

import json
import time
from importlib.resources import files
from urllib.parse import urlencode

import pytest

from tests.browser.test_in_chromium import AT_REST, WAIT, bars, changed, settled, visitor
from tests.test_plan_page import SMALL, TEAM

pytestmark = pytest.mark.browser
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
LORA = "model=Qwen/Qwen3-8B&gpu=L4&method=lora"
PAGES = (
    "",
    f"?{LORA}&section=Why&how_computed=true&where_the_layers_sit=true",
    f"?{LORA}&section=What+else&num_gpus=4&strategy=fsdp&how_many_gpus=true&best_way=true&how_far=true",
    f"?{LORA}&section=Time+and+money&saving_and_loading=true",
    "?model=Qwen/Qwen3-8B&tp_size=2",
    "compare",
    f"plan?{urlencode({'plan': json.dumps(SMALL)})}",
    f"plan?{urlencode({'team': json.dumps(TEAM)})}",
    f"report?{urlencode({'plan': json.dumps(SMALL)})}",
    "proof",
    "how",
)
STREAMLIT_S = '[data-testid="stFileUploaderDropzone"]'
"""Violations of Streamlit 1.67: its drop zone has the role presentation and a name."""

IN_THEME = """(theme) => {
  const app = document.querySelector('.stApp');
  return app && (theme === 'dark') === (Number(getComputedStyle(app).backgroundColor.match(/\\d+/)[0]) < 128);
}"""


OPTIONS = {
    "light": {"resultTypes": ["violations"]},
    "dark": {
        "resultTypes": ["violations"],
        "runOnly": ["color-contrast"],
    },  # a theme changes colours alone
}


def violations(page, theme, within) -> list[str]:
    found = page.evaluate(
        "async ([within, not, options]) => (await axe.run({ ...within, exclude: [[not]] }, options))"
        ".violations.map(it => `${it.id}: ${it.nodes.map(node => node.html.slice(0, 120)).join(' | ')}`)",
        [within, STREAMLIT_S, OPTIONS[theme]],
    )
    return list(found)


def test_axe_finds_no_violation_of_ours_in_either_theme(browser, address):
    """Each page opens in the light theme, then follows the system to the dark one."""
    found = {}
    for path in PAGES:
        with browser.visit() as page:
            page.set_default_timeout(3 * WAIT)  # a first visit fills caches that later visits use
            page.emulate_media(reduced_motion="reduce")
            page.goto(f"{address}/{path}")
            page.wait_for_selector(".hr-verdict, h1, [data-testid='stAlert']")
            page.evaluate(AXE)
            # what stands above a section is the start page's
            within = {"include": [[".st-key-below"]]} if "section=" in path else {}
            for theme in ("light",) if path.startswith("report") else ("light", "dark"):  # paper
                page.emulate_media(color_scheme=theme)
                page.wait_for_function(IN_THEME, arg=theme)
                page.wait_for_function(AT_REST)
                found[path, theme] = violations(page, theme, within)
    assert {at: said for at, said in found.items() if said} == {}


def tab_to(page, name: str) -> None:
    """Press Tab until an element with this accessible name has the focus; it may be drawn meanwhile."""
    deadline = time.monotonic() + WAIT / 1000
    while time.monotonic() < deadline:
        page.keyboard.press("Tab")
        here = page.evaluate(
            "() => { const it = document.activeElement; return it.getAttribute('aria-label') || it.innerText || '' }"
        )
        if here.strip().startswith(name):
            return
    pytest.fail(f"Tab never reaches {name!r}")


def test_the_keyboard_alone_can_do_the_whole_job(browser, address):
    """Choose a model, a GPU and a method, move a slider, apply a change that makes it fit, keep it, compare."""
    with visitor(browser, f"{address}/?gpu=A100-SXM4-80GB&method=full") as page:
        tab_to(page, "Model")
        page.keyboard.press("Control+a")
        page.keyboard.type("Qwen3-8B")
        page.get_by_role("option", name="Qwen/Qwen3-8B ·").wait_for(timeout=WAIT)
        page.keyboard.press("Enter")
        page.wait_for_url("**Qwen3-8B**", timeout=WAIT)
        settled(page)
        tab_to(page, "GPU")
        page.keyboard.press("Control+a")
        page.keyboard.type("L4")
        page.get_by_role("option", name="L4", exact=True).wait_for(timeout=WAIT)
        page.keyboard.press("Enter")
        page.wait_for_url("**gpu=L4**", timeout=WAIT)
        settled(page)
        tab_to(page, "full")
        before = bars(page)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Space")
        page.wait_for_url("**method=lora**", timeout=WAIT)
        changed(page, before)
        before = bars(page)
        tab_to(page, "Micro-batch, in the sentence")
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**per_device_train_batch_size=2**", timeout=WAIT)
        changed(page, before)
        page.get_by_text("✕ Does not fit").first.wait_for(timeout=WAIT)
        tab_to(page, "Apply ")
        page.keyboard.press("Enter")
        page.get_by_text("✓ Fits").first.wait_for(timeout=WAIT)
        settled(page)
        tab_to(page, "Memory through the run")
        for key in ("ArrowRight", "ArrowRight", "Enter"):
            page.keyboard.press(key)
        page.get_by_role("columnheader", name="In forward").wait_for(timeout=WAIT)
        settled(page)
        page.get_by_role("link", name="Estimate").focus()
        tab_to(page, "Keep for comparison")
        page.keyboard.press("Enter")
        page.get_by_role("dialog").wait_for(timeout=WAIT)
        tab_to(page, "Keep")
        page.keyboard.press("Enter")
        page.get_by_role("dialog").wait_for(timeout=WAIT, state="detached")
        tab_to(page, "Compare, 1 kept")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Compare", exact=True).wait_for(timeout=WAIT)
        page.get_by_role("region", name="The scenarios as a table").wait_for(timeout=WAIT)

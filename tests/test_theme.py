"""Text is legible: WCAG 2.2's contrast of 4.5 to 1 (level AA), by its own formula."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dashboard import theme
from estimator.values.specs import Verdict

CONFIG = tomllib.loads(
    (Path(__file__).resolve().parent.parent / ".streamlit" / "config.toml").read_text("utf-8")
)
LIGHT, DARK = (CONFIG["theme"][name]["backgroundColor"] for name in ("light", "dark"))


def channels(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def luminance(rgb: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(text: str, ground: str, tint: float = 0) -> float:
    """Contrast of text on a background tinted with the text's own colour."""
    front, back = channels(text), channels(ground)
    mixed = [tint * f + (1 - tint) * b for f, b in zip(front, back, strict=True)]
    high, low = sorted((luminance(front), luminance(mixed)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_has_the_standards_contrast():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("tint", [0, 0.11])
def test_a_verdict_is_legible_on_page_and_panel(verdict, tint):
    assert contrast(theme.VERDICTS[verdict].colour, LIGHT, tint) >= 4.5
    assert contrast(theme.VERDICTS_ON_DARK[verdict], DARK, tint) >= 4.5


def test_a_need_without_a_verdict_is_legible():
    on_light, on_dark = theme.NEUTRAL
    assert contrast(on_light, LIGHT, 0.11) >= 4.5
    assert contrast(on_dark, DARK, 0.11) >= 4.5


@pytest.mark.parametrize("part", theme.COMPONENTS.values(), ids=lambda part: part.label)
def test_a_number_in_a_bar_is_legible(part):
    assert contrast(part.ink, part.colour) >= 4.5


@pytest.mark.parametrize(("look", "ground"), [(theme.LIGHT, LIGHT), (theme.DARK, DARK)])
def test_a_number_in_a_hollow_part_is_legible(look, ground):
    """Its fill is a fifth of its colour on the page's."""
    fill = [
        0.2 * front + 0.8 * back
        for front, back in zip(channels(theme.RESERVE.colour), channels(ground), strict=True)
    ]
    mixed = "#" + "".join(f"{round(255 * one):02x}" for one in fill)
    assert theme.RESERVE.fill.endswith("33"), "33 of 255"
    assert contrast(look.ink, mixed) >= 4.5

"""One self-contained picture of a setup, 1,200 × 630, as SVG text and as PNG.

The layout is a list of rectangles and texts, which both formats render. The PNG uses Pillow's own font, so servers need
no font. That font lacks a few characters, which the picture avoids.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from PIL import Image, ImageDraw, ImageFont

from dashboard import theme
from dashboard.figures.memory_bars import peak_parts, scale
from dashboard.words import one_line, terms, units, verdicts
from estimator import Estimate, overflow

WIDTH, HEIGHT = 1200, 630
"""Size in pixels that link previews show uncropped (ogp.me gives no size; 1.91 to 1 is the common ratio)."""
LEFT, RIGHT, TOP, BAR = 56, 1144, 330, 92
NEUTRAL = theme.NEUTRAL[0]
INK, QUIET, GROUND = theme.LIGHT.ink, "#4A5560", theme.LIGHT.ground


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    line: str = ""


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text, positioned by the left or right end of its baseline."""

    x: float
    y: float
    text: str
    size: int
    colour: str = INK
    bold: bool = False
    at_right: bool = False


def svg(of: Estimate, day: str, link: str) -> str:
    """The picture as a self-contained SVG."""
    drawn = "".join(map(_svg, _laid_out(of, day, link)))
    said = escape(f"{title(of)}. {_run(of)}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{said}" font-family="system-ui, sans-serif"><rect width="{WIDTH}" '
        f'height="{HEIGHT}" fill="{GROUND}"/>{drawn}</svg>'
    )


def png(of: Estimate, day: str, link: str) -> bytes:
    """The picture as PNG."""
    image = Image.new("RGB", (WIDTH, HEIGHT), GROUND)
    brush = ImageDraw.Draw(image)
    for one in _laid_out(of, day, link):
        if isinstance(one, Box):
            ends = (one.x, one.y, one.x + one.width, one.y + one.height)
            brush.rectangle(ends, fill=one.fill, outline=one.line or None)
        else:
            font = ImageFont.load_default(one.size)
            anchor = "rs" if one.at_right else "ls"
            width = 1 if one.bold else 0
            text = _plain(one.text)
            brush.text(
                (one.x, one.y),
                text,
                one.colour,
                font,
                anchor,
                stroke_width=width,
                stroke_fill=one.colour,
            )
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def title(of: Estimate) -> str:
    """The picture's content in one line: ``QLoRA of Mistral-7B-v0.1 on A100-SXM4-80GB: fits, 65.4 GiB free``."""
    return f"{subject(of)}: {_verdict(of).replace(': ', ', ')}"


def subject(of: Estimate) -> str:
    """Method, model and GPUs."""
    number = f"{of.setup.mesh.num_gpus} × " if of.setup.mesh.num_gpus > 1 else ""
    where = f" on {number}{terms.card(of.gpu)}" if of.gpu else ""
    return f"{of.setup.adapters.method.noun} of {terms.short_name(of.model.hub_id)}{where}"


def description(of: Estimate) -> str:
    """The need, the run's time and cost, and the setup."""
    need = units.between(of.need_low_bytes, of.need_high_bytes)
    parts = (f"Needs {need}.", _run(of), f"{one_line.setup_line(of)}.")
    return " ".join(part for part in parts if part)


def _verdict(of: Estimate) -> str:
    """The verdict without its symbol, for use within a sentence."""
    word = verdicts.verdict(of).word
    return word[2:3].lower() + word[3:] if of.verdict else word[:1].lower() + word[1:]


def _run(of: Estimate) -> str:
    run = one_line.run(of)
    return f"{of.setup.run.num_train_examples:,} examples: {run}." if run else ""


def _laid_out(of: Estimate, day: str, link: str) -> Iterator[Box | TextLine]:
    colour = theme.VERDICTS[of.verdict].colour if of.verdict else NEUTRAL
    yield Box(0, 0, 18, HEIGHT, colour)
    yield TextLine(LEFT, 74, _cut(subject(of), 62), 34, bold=True)
    word = _verdict(of)
    yield TextLine(
        LEFT,
        160,
        _cut(f"{word[:1].upper()}{word[1:]}", 50),
        54 if len(word) < 38 else 38,
        colour,
        bold=True,
    )
    need = f"Needs {units.between(of.need_low_bytes, of.need_high_bytes)}"
    has = f", the GPU has {units.gib(of.gpu.memory_bytes)}" if of.gpu else ""
    yield TextLine(LEFT, 212, need + has, 28)
    yield TextLine(LEFT, 254, _cut(_run(of) or overflow.runs_out(of, units.gib_or_bytes), 84), 28)
    yield TextLine(LEFT, 294, _cut(one_line.setup_line(of), 118), 20, QUIET)
    yield from _bars(of)
    yield TextLine(LEFT, 600, f"Headroom, {day}", 20, QUIET)
    yield TextLine(RIGHT, 600, _cut(link, 80), 20, QUIET, at_right=True)


def _bars(of: Estimate) -> Iterator[Box | TextLine]:
    capacity = of.gpu.memory_bytes if of.gpu else 0
    end = scale(max(of.need_high_bytes, capacity))
    unit = (RIGHT - LEFT) / end
    looks = {part.label: part for part in (*theme.COMPONENTS.values(), theme.RESERVE)}
    x, keys = float(LEFT), []
    for label, size in peak_parts(of).items():
        if not size:
            continue
        part, width = looks[label], unit * units.in_gib(size)
        fill = GROUND if part.hollow else part.colour
        yield Box(x, TOP, width, BAR, fill, part.colour)
        if width > 76:
            middle = x + width / 2
            if of.gpu and abs(middle - LEFT - unit * units.in_gib(capacity)) < 36:
                middle -= min(54, width / 2 - 24)  # keeps the number off the capacity line
            yield TextLine(middle - 22, TOP + 56, units.number(size), 24, part.ink)
        keys.append((label, fill, part.colour))
        x += width
    if of.gpu:
        line = LEFT + unit * units.in_gib(capacity)
        yield Box(line - 2, TOP - 12, 4, BAR + 24, theme.LIGHT.capacity)
        yield TextLine(
            line + (8 if line < WIDTH / 2 else -8),
            TOP + BAR + 36,
            f"{units.gib(capacity)} usable",
            22,
            theme.LIGHT.capacity,
            at_right=line >= WIDTH / 2,
        )
    at, row = LEFT, 500
    for label, fill, colour in keys:
        wide = 56 + 10 * len(label)
        if at + wide > RIGHT:
            at, row = LEFT, row + 34
        yield Box(at, row - 17, 20, 20, fill, colour)
        yield TextLine(at + 28, row, label, 20)
        at += wide


def _svg(box: Box | TextLine) -> str:
    if isinstance(box, Box):
        line = f' stroke="{box.line}"' if box.line else ""
        size = f'width="{box.width:.1f}" height="{box.height}"'
        return f'<rect x="{box.x:.1f}" y="{box.y}" {size} fill="{box.fill}"{line}/>'
    weight = ' font-weight="700"' if box.bold else ""
    anchor = ' text-anchor="end"' if box.at_right else ""
    return (
        f'<text x="{box.x:.1f}" y="{box.y}" font-size="{box.size}" fill="{box.colour}"{weight}{anchor}>'
        f"{escape(box.text)}</text>"
    )


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 3]}..."


def _plain(text: str) -> str:
    """Replaces characters that Pillow's font lacks."""
    for sign, letters in (("×", "x"), ("–", "-"), ("−", "-"), ("≈ ", ""), ("✓ ", ""), ("✕ ", "")):
        text = text.replace(sign, letters)
    return text

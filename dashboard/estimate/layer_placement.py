"""The layers on each GPU under a device map, and the memory that training adds: figure, table and text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from dashboard import theme
from dashboard.figures import memory_bars
from dashboard.figures.memory_bars import Bar, Figure
from dashboard.words import units
from estimator import (
    Component,
    Estimate,
    Gpu,
    ModelClass,
    OnDevice,
    Strategy,
    WithTower,
    estimate,
    placed_with_tower,
    sharing,
)


def over_devices(of: Estimate) -> Estimate | str:
    """The setup under a device map, on its own GPUs or at least two; or a sentence that refuses it."""
    setup = of.setup
    if setup.mesh.strategy.places_layers:
        return of
    number = min(max(2, setup.mesh.num_gpus), setup.mesh.gpus_per_node)
    try:
        shared = replace(setup, **sharing(setup.mesh, Strategy.DEVICE_MAP, number))
        return estimate(of.model, of.gpu, shared)
    except ValueError as problem:
        return str(problem)


ROW, BETWEEN, STRIP = 46, 40, 46
"""Pixels: height of a bar, of the gap with the capacity's name, and of the strip of layers above it."""
MARGIN = {"l": 64, "r": 16, "t": 6, "b": 32}
SHADES = ("#46505B", "#6C7782")
"""Alternating colours of the strip."""
ROOM_FOR_WORDS = 4
"""Maximum number of GPUs at which the strip's pieces have room for labels on a phone."""


class Piece(NamedTuple):
    """Consecutive layers or modules on one GPU."""

    device: int
    layers: tuple[int, ...]
    """Indices of its layers; empty for modules before or after the layers."""
    names: tuple[str, ...]
    in_tower: bool = False
    """Whether its layers are the vision tower's."""

    @property
    def width(self) -> int:
        """Width on the strip: its number of layers, or 1 for a piece of other modules."""
        return len(self.layers) or 1

    @property
    def said(self) -> str:
        """Its content in words."""
        if not self.layers:
            return ", ".join(self.names)
        return f"{'vision ' * self.in_tower}layers {spans(self.layers)}"


def pieces(answer: Estimate) -> list[Piece]:
    """The model from embedding to head, cut where the GPU changes."""
    on = {layer: device.device for device in answer.devices for layer in device.layers}
    around = [(name, device.device) for device in answer.devices for name in device.outside]
    first = next(iter(answer.devices)).outside[:1]
    before = [(name, device) for name, device in around if name in first]
    behind = [(name, device) for name, device in around if name not in first]
    layers = [
        Piece(device, tuple(run), ())
        for device, run in groupby(sorted(on), key=lambda layer: on[layer])
    ]
    return [*_outside(before), *layers, *_outside(behind)]


def _outside(named: Sequence[tuple[str, int]]) -> list[Piece]:
    return [
        Piece(device, (), tuple(name for name, _ in run))
        for device, run in groupby(named, key=lambda pair: pair[1])
    ]


def spans(layers: Sequence[int]) -> str:
    """Layer numbers, counted from 1, as short ranges.

    >>> spans([0, 1, 2, 5])
    '1–3, 6'
    """
    runs = [
        [layer for _, layer in run]
        for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(
        f"{run[0] + 1}" if len(run) == 1 else f"{run[0] + 1}–{run[-1] + 1}" for run in runs
    )


def figure(answer: Estimate, *, dark: bool = False) -> Figure:
    """A strip of the layers by GPU; below it, each GPU's peak by component and the card's memory."""
    fullest = max(device.need.high for device in answer.devices)
    bars = [
        Bar(
            place,
            f"GPU {held.device}",
            memory_bars.parts(held.peak.resident, max(0, held.need.high - held.peak.bytes)),
            held.need.high == fullest,
        )
        for place, held in enumerate(answer.devices)
    ]
    return _drawn(bars, pieces(answer), answer.gpu, fullest, dark=dark)


def _drawn(
    bars: list[Bar], strip: Sequence[Piece], gpu: Gpu | None, fullest: int, *, dark: bool
) -> Figure:
    look = theme.DARK if dark else theme.LIGHT
    memory = gpu.memory_bytes if gpu is not None else 0
    end = memory_bars.scale(max(memory, fullest))
    traces, shapes, notes = memory_bars.against(bars, gpu, look, end)
    size = sum(piece.width for piece in strip)
    height = ROW * len(bars) + BETWEEN + STRIP
    top = ROW * len(bars) / height
    axis: dict[str, Any] = {"fixedrange": True, "automargin": False, "zeroline": False}
    tick = {"size": 14, "color": look.ink}
    return {
        "data": [*traces, _strip(strip, len(bars))],
        "layout": {
            "barmode": "overlay",
            "height": height + MARGIN["t"] + MARGIN["b"],
            "margin": MARGIN,
            "showlegend": False,
            "hovermode": "closest",
            "dragmode": False,
            "xaxis": axis
            | {
                "range": [0, end],
                "ticksuffix": " GiB",
                "showticksuffix": "last",
                "tickangle": 0,
                "gridcolor": theme.GRID,
                "nticks": 6,
                "tickfont": {"size": 13, "color": look.ink},
            },
            "yaxis": axis
            | {
                "domain": [0, top],
                "range": [len(bars) - 0.5, -0.5],
                "tickvals": [bar.place for bar in bars],
                "ticklabelstandoff": 8,
                "ticktext": [f"<b>{bar.name}</b>" if bar.marked else bar.name for bar in bars],
                "tickfont": tick,
                "showgrid": False,
            },
            "xaxis2": axis
            | {
                "anchor": "y2",
                "range": [0, size],
                "showticklabels": False,
                "showgrid": False,
            },
            "yaxis2": axis
            | {
                "domain": [1 - STRIP / height, 1],
                "anchor": "x2",
                "range": [-0.5, 0.5],
                "tickvals": [0],
                "ticklabelstandoff": 8,
                "ticktext": ["Layers"],
                "tickfont": tick,
                "showgrid": False,
            },
            "shapes": [
                shape | ({"y1": top} if shape.get("yref") == "paper" else {}) for shape in shapes
            ],
            "annotations": [note | {"y": top} for note in notes],
        },
    }


def _strip(strip: Sequence[Piece], gpus: int) -> Figure:
    """The strip of all layers as a single trace."""
    word = "GPU " if gpus <= ROOM_FOR_WORDS else ""
    order = {device: place for place, device in enumerate(sorted({one.device for one in strip}))}
    widths = [piece.width for piece in strip]
    return {
        "type": "bar",
        "orientation": "h",
        "xaxis": "x2",
        "yaxis": "y2",
        "x": widths,
        "base": [0, *accumulate(widths[:-1])],
        "y": [0] * len(strip),
        "width": 1,
        "marker": {
            "color": [SHADES[order[piece.device] % 2] for piece in strip],
            "line": {"color": "rgba(255,255,255,0.9)", "width": 1},
        },
        "text": [
            f"{word}{piece.device}<br>{'vision ' * piece.in_tower}{spans(piece.layers)}"
            if piece.layers
            else ""
            for piece in strip
        ],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "insidetextfont": {"color": "#FFFFFF", "size": 12},
        "hovertext": [f"GPU {piece.device}: {escape(piece.said)}" for piece in strip],
        "hoverinfo": "text",
    }


def head_html(answer: Estimate, chosen: Estimate, left_over: str | None) -> str:
    """Text above the figure: what it shows and what it means."""
    setup = answer.setup
    weights = [device.resident.get(Component.WEIGHTS, 0) for device in answer.devices]
    peaks = [device.peak.bytes for device in answer.devices]
    fullest = max(answer.devices, key=lambda held: held.need.high)
    if answer.setup == chosen.setup:
        lead = "Each layer is where"
    else:
        lead = f"If {setup.mesh.num_gpus} such GPUs shared the model by layers, each layer would go where"
    text = (
        f'{lead} from_pretrained(device_map="auto") puts it, by weight alone: '
        f"{units.between(min(weights), max(weights))} a GPU. A training step makes that "
        f"{units.between(min(peaks), max(peaks))}. GPU {fullest.device} decides: it needs up to "
        f"{units.gib(fullest.need.high)}. Only one GPU works at a time, so you pay for {setup.mesh.num_gpus} and "
        "get the speed of one."
    )
    warning = f'<p class="hr-text"><b>{escape(left_over)}</b></p>' if left_over else ""
    return f'<p class="hr-text">{escape(text)}</p>{warning}'


def table_html(answer: Estimate) -> str:
    """One row per GPU: layers, weights, memory that training adds, and free memory, or the need if no card is given."""
    last = "Needs up to" if answer.gpu is None else "Room"
    rows = "".join(_row(device, answer) for device in answer.devices)
    return (
        '<table class="hr-table hr-stages"><thead><tr><th scope="col">GPU, GiB</th>'
        '<th scope="col" class="hr-n">Weights</th><th scope="col" class="hr-n">Training</th>'
        f'<th scope="col" class="hr-n">{last}</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _row(held: OnDevice, answer: Estimate) -> str:
    weights = held.peak.resident.get(Component.WEIGHTS, 0)
    left = held.need.high
    if answer.gpu is not None:
        left = answer.gpu.memory_bytes - left
    shown = f"{'−' if left < 0 else ''}{units.number(abs(left))}"
    return (
        f'<tr><td class="hr-name-cell">{held.device}: {escape(_held(held))}</td>'
        f'<td class="hr-n">{units.number(weights)}</td>'
        f'<td class="hr-n">+{units.number(held.peak.bytes - weights)}</td>'
        f'<td class="hr-n">{shown}</td></tr>'
    )


def _held(held: OnDevice) -> str:
    layers = [f"layers {spans(held.layers)}"] if held.layers else []
    before = held.outside[:1] if held.device == 0 else ()
    return ", ".join((*before, *layers, *held.outside[len(before) :]))


def alt(answer: Estimate) -> str:
    """The figure as text."""
    said = "; ".join(
        f"GPU {device.device} holds {_held(device)} and peaks at {units.gib(device.peak.bytes)}"
        for device in answer.devices
    )
    line = f"; each has {units.gib(answer.gpu.memory_bytes)}" if answer.gpu is not None else ""
    return f"Layers over {len(answer.devices)} GPUs: {said}{line}."


# --- with a vision tower, before any step ---------------------------------------------------------


def with_tower(of: Estimate) -> WithTower | str | None:
    """Where the model goes with its vision tower, on its own GPUs or at least two; None without a tower."""
    if of.model.vision is None or of.setup.adapters.model_class is not ModelClass.IMAGE_TEXT:
        return None
    number = min(max(2, of.setup.mesh.num_gpus), of.setup.mesh.gpus_per_node)
    try:
        return placed_with_tower(of.model, of.gpu, of.setup.adapters, of.setup.precision, number)
    except ValueError as problem:
        return str(problem)


def tower_pieces(placed: WithTower) -> list[Piece]:
    """The model from its tower to the head, cut where the GPU changes, and where layers begin or end."""
    runs = groupby(placed.units, key=lambda unit: (unit.device, not unit.name, unit.in_tower))
    found = []
    for (device, is_layers, in_tower), run in runs:
        of_run = [*run]
        layers = tuple(one.layer for one in of_run) if is_layers else ()
        names = () if is_layers else tuple(one.name for one in of_run)
        found.append(Piece(device, layers, names, in_tower))
    return found


def tower_figure(placed: WithTower, gpu: Gpu | None, *, dark: bool = False) -> Figure:
    """A strip of the tower's and the text's layers by GPU; below it, each GPU's weights."""
    most = max(placed.weights)
    bars = [
        Bar(
            seat, f"GPU {seat}", memory_bars.parts({Component.WEIGHTS: weights}, 0), weights == most
        )
        for seat, weights in enumerate(placed.weights)
    ]
    return _drawn(bars, tower_pieces(placed), gpu, most, dark=dark)


def tower_head_html(placed: WithTower, refused: str) -> str:
    """Text above the figure: what it shows, and why it shows weights alone."""
    text = (
        f'{len(placed.weights)} such GPUs, as from_pretrained(device_map="auto") fills them with the vision tower, the '
        f"projector and the text, by weight alone: {units.between(min(placed.weights), max(placed.weights))} a GPU. "
        f"What a training step adds is not shown: {refused}"
    )
    return f'<p class="hr-text">{escape(text)}</p>'


def tower_table_html(placed: WithTower) -> str:
    """One row per GPU: its modules and weights."""
    rows = "".join(
        f'<tr><td class="hr-name-cell">{seat}: {escape(_on(placed, seat))}</td>'
        f'<td class="hr-n">{units.number(weights)}</td></tr>'
        for seat, weights in enumerate(placed.weights)
    )
    return (
        '<table class="hr-table hr-stages"><thead><tr><th scope="col">GPU, GiB</th>'
        f'<th scope="col" class="hr-n">Weights</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def tower_alt(placed: WithTower) -> str:
    """The figure as text."""
    said = "; ".join(
        f"GPU {seat} holds {_on(placed, seat)}, {units.gib(weights)}"
        for seat, weights in enumerate(placed.weights)
    )
    return f"A vision tower and its text over {len(placed.weights)} GPUs: {said}."


def _on(placed: WithTower, seat: int) -> str:
    held = [piece.said for piece in tower_pieces(placed) if piece.device == seat]
    return ", ".join(held) or "nothing"

"""One's own measured step: its seconds from what a log says, and what it says of every other step on that machine.

A bracket is wide because hosts, kernels and clocks differ between machines. A step measured on one's own says where
between the ends this machine is: its pace. Every part of another step is then taken at the same place.
"""

from __future__ import annotations

import re

from estimator.values.kinds import WHOLE
from estimator.values.range import Range
from estimator.values.refusals import InputError
from estimator.values.results import RunTime, TimePart

PACE_SPREAD = 1.14
"""Factor either way that remains for a step that spends its seconds on the same things: 1.3 between the ends. fitted:
data/throughput.csv, 2026-11: pairs of runs of one source, software, card, method and strategy, of which 84 % foretell
each other within it if less than 2 % of their seconds are spent on other things."""
SPREAD_OF_CHANGE = 0.75
"""What is added to it for a step that spends all its seconds on other things. fitted, likewise: 86 % of all such pairs
are within the sum, as they are within 1.25 whatever their difference."""
UNKNOWN_SPREAD = 1.25
"""The factor if it is unknown on what the measured step spent its seconds."""
KINDS = ("products", "attention", "memory", "host", "links")
"""What a step's seconds are spent on, whose uncertainties differ."""
_KIND = {
    "matrix products": "products",
    "adapters": "products",
    "recomputation": "products",
    "passes without gradients": "products",
    "attention": "attention",
    "waiting for the host": "host",
    "exchange between GPUs": "links",
    "copies between GPUs": "links",
    "optimizer step on the CPU": "links",
    "between GPU and host": "links",
    "NVMe": "links",
    "saved tensors to the host and back": "links",
}
"""The kind of each part of a step; that of all others is memory."""

_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"
_PER_STEP = re.compile(rf"({_NUMBER})\s*s/it")
_PER_SECOND = re.compile(rf"({_NUMBER})\s*it/s")
_LOGGED = re.compile(rf"['\"]?train_(samples|steps)_per_second['\"]?\s*[:=]\s*['\"]?({_NUMBER})")
_PLAIN = re.compile(rf"({_NUMBER})\s*(s|sec|seconds|ms)?(?: (?:a|per) step)?")
MILLI = 1000
"""Milliseconds in a second."""


def seconds_of(said: str, examples: int) -> float:
    """Seconds of an optimizer step, from a number, Trainer's last log line or tqdm's.

    ``examples``: of an optimizer step over all GPUs, by which ``train_samples_per_second`` is divided. The step that
    tqdm counts is Trainer's optimizer step. Raises ``InputError`` in one sentence if it finds no speed.

    Source: transformers 5.23, trainer_utils.py, ``speed_metrics``; tqdm 4.67, std.py, ``format_meter``.

    >>> seconds_of("2.5", 8), seconds_of("850 ms", 8), seconds_of("[01:10<10:00,  1.20s/it]", 8)
    (2.5, 0.85, 1.2)
    >>> seconds_of("{'train_runtime': 80.0, 'train_samples_per_second': 16.0}", 8)
    0.5
    """
    logged = dict(_LOGGED.findall(said))
    found = 0.0
    if float(logged.get("samples", 0)):
        found = examples / float(logged["samples"])
    elif float(logged.get("steps", 0)):
        found = 1 / float(logged["steps"])
    elif match := _PER_STEP.search(said):
        found = float(match[1])
    elif (match := _PER_SECOND.search(said)) and float(match[1]):
        found = 1 / float(match[1])
    elif match := _PLAIN.fullmatch(said.strip()):
        found = float(match[1]) / (MILLI if match[2] == "ms" else 1)
    if not 0 < found < float("inf"):
        raise InputError(
            "A step's seconds are a number above 0 such as 1.25, tqdm's 1.25s/it, or Trainer's line with "
            "train_samples_per_second."
        )
    return found


def pace_of(time: RunTime, seconds: float) -> float:
    """Where between the ends of a step these seconds are (no unit): 0 the fast end, 1 the slow end.

    Below 0: by which share it is faster than the fast end. Above 1: how many times as slow as the slow end.

    Source: derived; ``paced`` is its inverse.

    >>> from estimator.values.results import RunTime
    >>> time = RunTime(parts=(TimePart("all", Range(1.0, 3.0)),), model_flops_per_step=Range(1.0, 1.0),
    ...     hardware_flops_per_step=1.0, peak_tflops=1.0, tokens_per_step=1.0, steps_per_epoch=1, total_steps=1)
    >>> pace_of(time, 2.0), pace_of(time, 0.75), pace_of(time, 6.0)
    (0.5, -0.25, 2.0)
    """
    low, high = time.step_seconds
    if seconds < low:
        return seconds / low - 1
    if seconds > high:
        return seconds / high
    return (seconds - low) / (high - low) if high > low else 0.0


def paced(
    parts: tuple[TimePart, ...], pace: float, measured: str | None = None
) -> tuple[TimePart, ...]:
    """The parts of a step on a machine of this pace.

        factor either way = 1.14 + 0.75 · d     d: share of the seconds spent on other things than in the measured step

    ``measured``: that step's ``shares_text``; None: unknown, 1.25 either way.

    Source: derived.

    >>> paced((TimePart("all", Range(1.0, 3.0)),), 0.5)
    (TimePart(name='all', seconds=Range(low=1.6, high=2.5)),)
    """
    spread = UNKNOWN_SPREAD
    if measured is not None:
        here, there = shares_text(parts, pace).split("/"), measured.split("/")
        moved = sum(abs(int(one) - int(other)) for one, other in zip(here, there, strict=True))
        spread = PACE_SPREAD + SPREAD_OF_CHANGE * moved / 2 / WHOLE
    middles = ((part.name, _middle(part, pace)) for part in parts)
    return tuple(
        TimePart(name, Range(middle / spread, middle * spread)) for name, middle in middles
    )


def shares_text(parts: tuple[TimePart, ...], pace: float) -> str:
    """What a step at this pace spends its seconds on, in percent of ``KINDS``, joined by slashes.

    Source: derived.

    >>> shares_text((TimePart("attention", Range(1.0, 3.0)), TimePart("logits and loss", Range(3.0, 9.0))), 0.5)
    '0/25/75/0/0'
    """
    seconds = dict.fromkeys(KINDS, 0.0)
    for part in parts:
        seconds[_KIND.get(part.name, "memory")] += _middle(part, pace)
    whole = sum(seconds.values()) or 1.0
    return "/".join(str(round(WHOLE * spent / whole)) for spent in seconds.values())


def _middle(part: TimePart, pace: float) -> float:
    """Seconds of a part at this pace."""
    low, high = part.seconds
    if pace < 0:
        return low * (1 + pace)
    if pace > 1:
        return high * pace
    return low + pace * (high - low)

"""One's own measured step: its seconds from what a log says, and what it says of every other step on that machine.

A bracket is wide because hosts, kernels and clocks differ between machines. A step measured on one's own says where
between the ends this machine is: its pace. Every part of another step is then taken at the same place.
"""

from __future__ import annotations

import re

from estimator.values.refusals import InputError
from estimator.values.results import RunTime, TimePart

PACE_SPREAD = 1.25
"""Factor either way that remains. fitted: data/throughput.csv, 2026-11: 87 % of 884 pairs of runs of one source, card,
model, method and number of machines foretell each other within it; within 1.14 (1.3 between the ends) only 69 %."""

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
    >>> time = RunTime(parts=(TimePart("all", 1.0, 3.0),), model_flops_per_step=1.0, least_model_flops_per_step=1.0,
    ...     hardware_flops_per_step=1.0, peak_tflops=1.0, tokens_per_step=1.0, steps_per_epoch=1, total_steps=1)
    >>> pace_of(time, 2.0), pace_of(time, 0.75), pace_of(time, 6.0)
    (0.5, -0.25, 2.0)
    """
    low, high = time.step_seconds_low, time.step_seconds_high
    if seconds < low:
        return seconds / low - 1
    if seconds > high:
        return seconds / high
    return (seconds - low) / (high - low) if high > low else 0.0


def paced(parts: tuple[TimePart, ...], pace: float) -> tuple[TimePart, ...]:
    """The parts of a step on a machine of this pace: seconds of each, a factor of ``PACE_SPREAD`` either way.

    Source: derived.

    >>> paced((TimePart("all", 1.0, 3.0),), 0.5)
    (TimePart(name='all', low_seconds=1.6, high_seconds=2.5),)
    """

    def middle(part: TimePart) -> float:
        if pace < 0:
            return part.low_seconds * (1 + pace)
        if pace > 1:
            return part.high_seconds * pace
        return part.low_seconds + pace * (part.high_seconds - part.low_seconds)

    return tuple(
        TimePart(part.name, middle(part) / PACE_SPREAD, middle(part) * PACE_SPREAD)
        for part in parts
    )

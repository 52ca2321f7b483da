"""Links: a setup as the query of a URL, and what a rehearsal of it found."""

from __future__ import annotations

import json
import re
from typing import NamedTuple
from urllib.parse import urlencode
from zlib import crc32

from estimator.contract.setups import write_fields
from estimator.values.refusals import InputError
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

REHEARSED = "rehearsed"
"""The key of a link that has a rehearsal's peaks."""


class RehearsedPeaks(NamedTuple):
    """What a rehearsal found of the setup of a link. All sizes in bytes."""

    allocated: int
    reserved: int
    least: int | None


def write_link(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> str:
    """The query of a URL, without the question mark: every key that differs from the contract's defaults."""
    pairs = []
    for key, value in write_fields(model, gpu, setup).items():
        values = value if isinstance(value, list) else [value]
        pairs += [(key, one if isinstance(one, str) else json.dumps(one)) for one in values]
    return urlencode(pairs)


def write_rehearsal(link: str, peaks: RehearsedPeaks) -> str:
    """A setup's query with a rehearsal's peaks, and a mark of the setup that they are of.

    >>> write_rehearsal("model=openai-community%2Fgpt2", RehearsedPeaks(7, 9, None))
    'model=openai-community%2Fgpt2&rehearsed=7-9-0-ab17b6ea'
    """
    return f"{link}&{REHEARSED}={peaks.allocated}-{peaks.reserved}-{peaks.least or 0}-{_mark(link)}"


def read_rehearsal(text: str, link: str) -> RehearsedPeaks | None:
    """The peaks in a link, where they are of the setup with this query; None where they are of another.

    >>> read_rehearsal("7-9-0-ab17b6ea", "model=openai-community%2Fgpt2")
    RehearsedPeaks(allocated=7, reserved=9, least=None)
    """
    found = re.fullmatch(r"(\d{1,15})-(\d{1,15})-(\d{1,15})-([0-9a-f]{8})", text, re.ASCII)
    if found is None:
        raise InputError(
            f"{REHEARSED} must be three sizes in bytes and a mark, as headroom rehearse writes it; leave it out."
        )
    allocated, reserved, least = map(int, found.groups()[:3])
    is_of_it = found[4] == _mark(link)
    return RehearsedPeaks(allocated, reserved, least or None) if is_of_it else None


def _mark(link: str) -> str:
    return f"{crc32(link.encode()):08x}"

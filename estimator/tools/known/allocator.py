"""``PYTORCH_CUDA_ALLOC_CONF`` of a command line: each of its settings is a key ``allocator.name``.

Source: torch 2.13, docs/source/notes/cuda.md, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF".
"""

from __future__ import annotations

from estimator.tools.later import EITHER, Later
from estimator.tools.rules import Rule, SoFar, Theirs, Value, Values
from estimator.values.facets.allocator import Allocator

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The variable of the environment, and its newer name."""
KEYS = ("expandable_segments", "roundup_power2_divisions", "max_split_size_mb")


def settings(text: str) -> dict[str, Value]:
    """The settings of the variable's text, by name.

    >>> settings("expandable_segments:True,roundup_power2_divisions:16")
    {'expandable_segments': True, 'roundup_power2_divisions': 16}
    >>> settings("roundup_power2_divisions:[256:1,>:4]")
    {'roundup_power2_divisions': '[256:1,>:4]'}
    """
    found: dict[str, Value] = {}
    for part in _parts(text):
        name, _, value = part.partition(":")
        plain = {"True": True, "False": False}.get(value.strip(), value.strip())
        is_number = isinstance(plain, str) and plain.isascii() and plain.isdecimal()
        found[name.strip()] = int(plain) if is_number and len(str(plain)) < 10 else plain
    return found


def _parts(text: str) -> list[str]:
    """The text cut at its commas, but not within brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def assignment(values: Values) -> str:
    """The variable set before a command, with a space behind it; empty without settings.

    >>> assignment({"expandable_segments": True})
    'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True '
    """
    said = ",".join(f"{name}:{value}" for name, value in values.items())
    return f"{VARIABLES[0]}={said} " if said else ""


PLAIN = Allocator()
"""What PyTorch does where the variable is not set."""


def rule(usual: Allocator = PLAIN, says: str = "", source: str = "") -> Rule:
    """How a tool takes the settings; ``usual``: what it sets itself where the variable is not set."""
    theirs = tuple(f"allocator.{name}" for name in KEYS)

    def read(given: Theirs, so_far: SoFar) -> Values:
        if not given.has_part("allocator"):
            return {name: getattr(usual, name) for name in KEYS if usual != PLAIN}
        found = {name: given[key] for name, key in zip(KEYS, theirs, strict=True)}
        return {name: value for name, value in found.items() if value is not None}

    def write(values: Values) -> Values:
        if all(values[name] == getattr(usual, name) for name in KEYS):
            return {}
        changed = [name for name in KEYS if values[name] != getattr(PLAIN, name)]
        return {f"allocator.{name}": values[name] for name in changed or KEYS[:1]}

    return Rule(theirs=theirs, ours=KEYS, read=read, write=write, says=says, source=source)


RULE = rule()
LATER = (
    Later(
        theirs="allocator.per_process_memory_fraction",
        sentence="PyTorch may take only a share of the card, and garbage_collection_threshold counts from it",
        direction=EITHER,
        harmless=(None, 1, "1.0"),
    ),
)
NO_EFFECT = frozenset({"allocator.garbage_collection_threshold"})
"""torch 2.13 asks for it only where ``per_process_memory_fraction`` is below 1: c10/cuda/CUDACachingAllocator.cpp,
``malloc`` (``set_fraction``); played with and without."""

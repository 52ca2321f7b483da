"""The key of ours that a word of another tool, or of a person, means."""

from __future__ import annotations

from collections import Counter
from functools import cache

from estimator.tools.defaults import TOOLS
from estimator.tools.rules import Entry, Rule, SoFar, Tool, decided
from estimator.values.keys import BY_NAME, SYNONYMS
from estimator.values.kinds import near, plain


def meant_keys(word: str, known: tuple[str, ...]) -> list[str]:
    """Of the keys that there are, the one that a word means: by the tools' tables, else those spelled alike.

    >>> known = ("max_length", "strategy", "optim")
    >>> [meant_keys(word, known) for word in ("cutoff_len", "zero_stage", "seq-len", "optm")]
    [['max_length'], ['strategy'], ['max_length'], ['optim']]
    """
    said = plain(word)
    ours = SYNONYMS.get(said) or by_table(said)
    return [ours] if ours in known else near(word, known)


def by_table(word: str) -> str:
    """The key of ours that most tables read from a key of theirs of this name; empty if none does."""
    votes = Counter(
        our
        for tool, rule, theirs in _rows().get(word, ())
        for our in rule.ours
        if our in (*BY_NAME, "model")
        and our in decided(rule, Entry(theirs, None), {}, tool, SoFar({}))
    )
    return votes.most_common(1)[0][0] if votes else ""


@cache
def _rows() -> dict[str, list[tuple[Tool, Rule, str]]]:
    """Every key of theirs by the last part of its name."""
    found: dict[str, list[tuple[Tool, Rule, str]]] = {}
    for tool in TOOLS.values():
        for rule in tool.rules:
            for theirs in rule.theirs:
                found.setdefault(theirs.rpartition(".")[2], []).append((tool, rule, theirs))
    return found

"""Keys of the contract that are not modelled yet. Only their default is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from estimator.values.refusals import NOT_MODELLED, Refusal, show

LATER_KEY = Refusal(
    "{key} {value} is not modelled yet: a run with it cannot be estimated.", NOT_MODELLED
)

LATER: Mapping[str, object] = MappingProxyType(
    {
        # GRPO's: TRL 1.16, trainer/grpo_config.py
        "transformers_continuous_batching_config": None,
    }
)
"""Each key with its default, the only value that is estimated."""


def read_later(key: str, value: object) -> None:
    """Accepts the default, null and empty values; refuses anything else as not modelled yet.

    >>> read_later("transformers_continuous_batching_config", None)
    """
    default = LATER[key]
    is_default = value == default and isinstance(value, bool) == isinstance(default, bool)
    if is_default or value is None or (default is None and value in ({}, [], ())):
        return
    raise LATER_KEY(key=key, value=show(value))


def later_from_text(text: str) -> object:
    """The JSON value of a text from a link or flag.

    >>> later_from_text("1.0"), later_from_text("false"), later_from_text("sft")
    (1.0, False, 'sft')
    """
    words = {"null": None, "false": False, "true": True}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text

"""Which class ``AutoModelForCausalLM`` makes of a checkpoint that holds more than text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Classes(NamedTuple):
    """Two classes of transformers for one checkpoint, by name."""

    made: str
    """By ``AutoModelForCausalLM``: the text and its towers."""
    text: str
    """The text alone."""


WITH_TOWERS: Mapping[str, Classes] = {
    "gemma3_text": Classes("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"),
    "gemma3n_text": Classes("Gemma3nForConditionalGeneration", "Gemma3nForCausalLM"),
    "gemma4_text": Classes("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"),
}
"""By the ``model_type`` of the text part. Of other wrappers (Llama 4, Qwen3.5) it makes the text alone, or nothing.

Source: transformers 5.23, models/auto/modeling_auto.py, ``MODEL_FOR_CAUSAL_LM_MAPPING_NAMES``.
"""


def class_sentence(model_type: str, tower_parameters: int = 0) -> str:
    """What is said of a checkpoint with towers (a sentence; per model); ``tower_parameters``: 0 if not known.

    Leaves out: nothing; of other wrappers it is empty.
    Source: ``WITH_TOWERS``; data/towers.csv.

    >>> class_sentence("gemma3_text", 419_816_304).split(";")[0].split(", ", 1)[1]
    'whose towers, 419,816,304 parameters more, are not counted here'
    """
    if model_type not in WITH_TOWERS:
        return ""
    made, text = WITH_TOWERS[model_type]
    more = f", {tower_parameters:,} parameters more," if tower_parameters else ""
    return (
        f"AutoModelForCausalLM makes {made} of this checkpoint, whose towers{more} are not counted here; all-linear "
        f"would put adapters on them too. What is estimated is {text}."
    )

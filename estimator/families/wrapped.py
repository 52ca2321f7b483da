"""Which class ``AutoModelForCausalLM`` makes of a checkpoint that holds more than text."""

from __future__ import annotations

from estimator.families.registry import FAMILIES


def class_sentence(model_type: str, tower_parameters: int = 0) -> str:
    """What is said of a checkpoint with towers (a sentence; per model); ``tower_parameters``: 0 if not known.

    Leaves out: nothing; of other wrappers it is empty.
    Source: ``Family.with_towers``; data/towers.csv.

    >>> class_sentence("gemma3_text", 419_816_304).split(";")[0].split(", ", 1)[1]
    'whose towers, 419,816,304 parameters more, are not counted here'
    """
    classes = FAMILIES[model_type].with_towers
    if classes is None:
        return ""
    made, text = classes
    more = f", {tower_parameters:,} parameters more," if tower_parameters else ""
    return (
        f"AutoModelForCausalLM makes {made} of this checkpoint, whose towers{more} are not counted here; all-linear "
        f"would put adapters on them too. What is estimated is {text}."
    )

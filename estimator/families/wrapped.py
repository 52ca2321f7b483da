"""Which class of transformers loads a multimodal checkpoint, and sentences about it."""

from __future__ import annotations

from estimator.families.family import TowerClass
from estimator.families.loaded import has_towers, tower_parameters
from estimator.families.registry import FAMILIES
from estimator.values.facets.adapters import Adapters
from estimator.values.refusals import InputError
from estimator.values.specs import Model


def classes_of(model_type: str) -> TowerClass:
    """The classes of a family whose checkpoints have towers (names); ``ValueError`` if it has none.

    Source: ``Family.with_towers``.

    >>> classes_of("gemma3_text").text
    'Gemma3ForCausalLM'
    """
    classes = FAMILIES[model_type].with_towers
    if classes is None:
        raise InputError(f"{model_type} has no towers.")
    return classes


def class_not_found(model: Model) -> str:
    """A class that accelerate looks for in the model with its towers but does not find (a name); empty: none.

    Source: ``TowerClass.missing_class``; accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_auto_wrap_policy``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> class_not_found(TINY_LLAMA)
    ''
    """
    if model.towers is None:
        return ""
    return classes_of(model.model_type).missing_class(model.towers)


def class_sentence(model: Model, adapters: Adapters) -> str:
    """Which class is estimated for a checkpoint with towers (a sentence; per model); empty for text-only checkpoints.

    Source: ``Family.with_towers``; ``tower_parameters``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> class_sentence(TINY_LLAMA, Adapters())
    ''
    """
    if model.towers is None:
        return ""
    classes = classes_of(model.model_type)
    made, text = classes.made, classes.text
    if not has_towers(model, adapters):
        return (
            f"model_class text: {text}, without the towers of {made}, the class that AutoModelForCausalLM loads for "
            "this checkpoint."
        )
    adapted = ", with adapters on their linears" * (
        adapters.uses_adapters and isinstance(adapters.lora_target_modules, str)
    )
    runs = (
        "only its embedders run, whose activations are not counted"
        if classes.runs_on_text
        else "they get no gradients and no optimizer states"
    )
    return (
        f"AutoModelForCausalLM loads {made} for this checkpoint, including its towers, "
        f"{tower_parameters(model, adapters):,} parameters{adapted}. The examples are text only, which no tower sees: "
        f"{runs}. model_class text leaves the towers out ({text})."
    )


def uncounted_sentence(model_type: str) -> str:
    """A sentence about a checkpoint with towers whose modules are unknown (a sentence; per model).

    Source: ``Family.with_towers``.

    >>> uncounted_sentence("llama")
    ''
    """
    if FAMILIES[model_type].with_towers is None:
        return ""
    classes = classes_of(model_type)
    made, text = classes.made, classes.text
    return (
        f"AutoModelForCausalLM loads {made} for this checkpoint, whose towers are not counted here; all-linear would "
        f"put adapters on them too. The estimate is for {text}."
    )

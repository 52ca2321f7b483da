"""Every field of every transformers config class is read, known to have no effect, or named in the answer."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from estimator.families.config_class import Why
from estimator.families.config_keys import SENSITIVE, is_sensitive, reasons
from estimator.families.hf_config import ignored_keys, model_from_config
from estimator.families.registry import MODELLED

transformers = pytest.importorskip("transformers")

# values that a class leaves unset, and conflicting defaults of two classes
GIVEN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "gemma4_text": {"per_layer_config": None, "global_head_dim": 512},
    "glm4_moe": {"head_dim": 128},
}
NOT_IN_FILES: set[str] = set()
"""Second names that no published config has."""
FAMILIES = sorted(MODELLED)


def class_of(model_type: str) -> Any:
    return transformers.CONFIG_MAPPING[model_type]


def saved(model_type: str) -> dict[str, Any]:
    """A config.json with every field of the class, as ``save_pretrained`` writes it."""
    config = class_of(model_type)()
    fields = {field.name: None for field in dataclasses.fields(config)}
    return {**fields, **config.to_dict(), "model_type": model_type, **GIVEN.get(model_type, {})}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_field_of_the_class_is_read_or_known(model_type):
    config = saved(model_type)
    assert ignored_keys(config) == ()
    # a null field has no meaning, but must not be silently ignored once it has a value
    known = reasons(model_type)
    nulls = {key for key, value in config.items() if value is None and key not in known}
    silent = {key for key in nulls if not is_sensitive(key, model_type)}
    assert silent <= read_somewhere(), "fields that are null by default and nobody reads"


def read_somewhere() -> set[str]:
    """Keys that appear in the readers as string literals."""
    from estimator import families

    files = Path(families.__file__).parent.rglob("*.py")
    return {word for file in files for word in re.findall(r'"(\w+)"', file.read_text("utf-8"))}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_model_code_reads_no_field_listed_as_unread(model_type):
    name = class_of(model_type).__module__.replace("configuration_", "modeling_")
    try:
        source = inspect.getsource(__import__(name, fromlist=["_"]))
    except ModuleNotFoundError:  # InternLM3 uses Llama's code
        source = inspect.getsource(transformers.models.llama.modeling_llama)
    fields = {field.name for field in dataclasses.fields(class_of(model_type))}
    said = {key for key, why in reasons(model_type).items() if why is Why.UNREAD and key in fields}
    base = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
    for key in said - base:
        read = re.findall(rf"\bconfig\.{key}\b|\"{key}\"", source)
        assert not read, f"{key} is read by {name}"


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_field_is_read_by_each_of_its_names(model_type):
    config = saved(model_type)
    for alias, field in class_of(model_type).attribute_map.items():
        value = config.get(field)
        if isinstance(value, int) and alias not in NOT_IN_FILES:
            rest = {key: value for key, value in config.items() if key not in (field, alias)}
            other = not value if isinstance(value, bool) else 2 * value
            assert read({**rest, alias: other}) == read({**rest, field: other}), alias


def read(config: dict[str, Any]) -> object:
    """The model, or the error message."""
    try:
        return model_from_config(config)
    except ValueError as problem:
        return str(problem)


def test_sensitive_keys_are_estimated_at_their_class_defaults():
    for model_type in FAMILIES:
        config = saved(model_type)
        for key, one in SENSITIVE.items():
            if is_sensitive(key, model_type) and key in config:
                assert config[key] in one.estimated, (model_type, key)

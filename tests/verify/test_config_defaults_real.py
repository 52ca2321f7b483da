"""Checks tests/reference/config_defaults.jsonl: the defaults of every family's config class in transformers 5.23.

``UPDATE_GOLDEN=1`` rewrites the file; tests/test_config_defaults.py checks our reader against it without transformers.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from estimator.families.registry import MODELLED
from tests.test_config_defaults import CONFIGS, FILE, WITHOUT_A_CLASS

transformers = pytest.importorskip("transformers")

GIVEN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},  # the class has none, and routes to none
    "glm4_moe": {"num_attention_heads": 64},  # the class has 96, which do not divide its 4,096
}
"""Where the class's defaults alone are no model."""


def written_out(model_type: str) -> dict[str, Any]:
    """The class's own keys with their defaults, as in a config.json."""
    general = transformers.PretrainedConfig().to_dict().keys() - {"tie_word_embeddings"}
    of = transformers.AutoConfig.for_model(model_type, **GIVEN.get(model_type, {})).to_dict()
    own = {key: value for key, value in of.items() if key not in general}
    return json.loads(json.dumps({**own, "model_type": model_type}, sort_keys=True))


def test_the_file_matches_the_real_classes_defaults():
    if "UPDATE_GOLDEN" in os.environ:
        lines = [json.dumps(written_out(name)) for name in sorted(MODELLED - WITHOUT_A_CLASS)]
        FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
        pytest.skip("the file is written anew")
    for model_type, config in CONFIGS.items():
        assert written_out(model_type) == config

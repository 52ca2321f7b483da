"""Our description of objectives, compared with the libraries that train them: transformers 5.23, trl 1.16."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

pytest.importorskip("trl")

import trl
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSES,
)
from trl import DPOConfig, GRPOConfig, KTOConfig, RewardConfig, RLOOConfig, SFTConfig

from estimator.families.registry import BALANCED, MODELLED, WITHOUT_CLASSES
from estimator.values.keys import BY_NAME, DEFAULT
from estimator.values.objective import OBJECTIVES, Objective

CONFIGS = {
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "kto": KTOConfig,
    "reward": RewardConfig,
    "grpo": GRPOConfig,
    "rloo": RLOOConfig,
}
SOURCE = Path(trl.__file__).parent / "trainer"


def defaults(objective: Objective) -> dict[str, object]:
    return {field.name: field.default for field in dataclasses.fields(CONFIGS[objective])}


def test_families_without_a_sequence_classifier_match_transformers():
    assert {family for family in MODELLED if family not in CLASSES} == WITHOUT_CLASSES


@pytest.mark.parametrize("family", sorted(set(MODELLED) & set(CONFIG_MAPPING)))
def test_trl_balances_experts_if_the_config_has_a_coefficient(family):
    config = CONFIG_MAPPING[family]()
    asks = hasattr(config, "output_router_logits") and bool(
        getattr(config, "router_aux_loss_coef", 0.0)
    )
    if asks and family not in BALANCED:
        pytest.skip(f"{family}: not modelled, its layers return no router logits here")
    assert asks is (family in BALANCED)


@pytest.mark.parametrize("objective", CONFIGS)
def test_trainers_disable_dropout_as_their_config_says(objective):
    assert OBJECTIVES[objective].zeroes_dropout is bool(
        defaults(objective).get("disable_dropout", False)
    )


def test_defaults_match_trl():
    grpo, rloo = defaults("grpo"), defaults("rloo")
    assert (grpo["beta"], rloo["beta"], defaults("dpo")["beta"]) == (0.0, 0.05, 0.1)
    assert DEFAULT.task.num_generations == grpo["num_generations"]
    assert BY_NAME["max_completion_length"].remark == f"TRL's is {grpo['max_completion_length']}"
    assert BY_NAME["num_generations"].remark == f"RLOO's is {rloo['num_generations']}"
    assert DEFAULT.task.num_iterations == grpo["num_iterations"]
    assert DEFAULT.task.precompute_ref_log_probs is defaults("dpo")["precompute_ref_log_probs"]


@pytest.mark.parametrize(
    ("objective", "file"), [("dpo", "dpo_trainer.py"), ("grpo", "grpo_trainer.py")]
)
def test_every_loss_type_appears_in_its_trainer(objective, file):
    text = (SOURCE / file).read_text()
    for word in OBJECTIVES[objective].loss_types:
        assert re.search(rf'"{word}"', text), word

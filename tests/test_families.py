"""What is peculiar to a family: its experts, its attention, what it refuses.

The bytes of their steps are held against traced ones in test_reference.py, their modules against the real classes in
tests/verify.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import AttnImplementation, TrainingSetup, catalog, estimate
from estimator.memory.stored import stored_bytes
from estimator.parameters import active_parameters, adapter_parameters, total_parameters
from estimator.quantization import quantization_of
from estimator.specs import Method

GPT_OSS = catalog.model("openai/gpt-oss-20b")
LORA = TrainingSetup(method=Method.LORA, lora_dropout=0.0)


# --- GPT-OSS --------------------------------------------------------------------------------------


def test_gpt_oss_has_the_parameters_of_its_card() -> None:
    # gpt-oss model card, arXiv:2508.10925, table 1: 20.91 B in all; 3.61 B active, without the embedding
    embedding = GPT_OSS.vocab_size * GPT_OSS.hidden_size
    assert round(total_parameters(GPT_OSS) / 10**9, 2) == 20.91
    assert round((active_parameters(GPT_OSS) - embedding) / 10**9, 2) == 3.61


def test_gpt_oss_files_in_mxfp4_are_as_large_as_their_index_says() -> None:
    # openai/gpt-oss-20b, model.safetensors.index.json, metadata.total_size
    mxfp4 = quantization_of({"quantization_config": {"quant_method": "mxfp4"}})
    assert stored_bytes(GPT_OSS, mxfp4) == 13_761_264_768


def test_all_linear_leaves_the_experts_of_gpt_oss_alone() -> None:
    # PEFT knows no former linears in them: 24 layers, r 16, four projections of 2880 to 4096, 512, 512 and back
    per_layer = 16 * (2 * (2880 + 4096) + 2 * (2880 + 512))
    assert adapter_parameters(GPT_OSS, LORA) == 24 * per_layer


@pytest.mark.parametrize("name", ["gate_up_proj", "experts", "router"])
def test_a_name_that_is_no_linear_of_gpt_oss_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"lora_target_modules names '{name}'"):
        estimate(GPT_OSS, None, replace(LORA, lora_target_modules=(name,)))


def test_attention_sinks_run_eagerly_or_not_at_all() -> None:
    said = " ".join(estimate(GPT_OSS, None, LORA).assumptions)
    assert "transformers runs gpt_oss with eager attention" in said
    flash = replace(LORA, attn_implementation=AttnImplementation.FLASH_ATTENTION_2)
    with pytest.raises(ValueError, match="does not know the attention sinks of gpt_oss; use eager"):
        estimate(GPT_OSS, None, flash)

"""Which target names PEFT accepts, ignores and refuses, compared with PEFT itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from estimator.families.adapters import adapter_parameters
from estimator.sources.repository import from_config
from estimator.values.methods import Method
from estimator.values.setup import TrainingSetup

LLAMA: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
pytestmark = pytest.mark.filterwarnings("ignore")

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gpt2": {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "mixtral": LLAMA | {"num_local_experts": 4},
}
NAMES = (
    *("q_proj", "c_attn", "self_attn.q_proj", "q_pro", "proj", "wings", "0", "wpe", "lm_head"),
    *("input_layernorm", "ln_1", "norm", "act_fn", "rotary_emb", "self_attn", "mlp", "layers"),
    *("model", "layers.0.self_attn.q_proj", "embed_tokens", "gate", "experts", "w1", "gate_proj"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", CONFIGS)
def test_names_are_accepted_ignored_or_refused_as_by_peft(family, name):
    config = AutoConfig.for_model(family, **CONFIGS[family])
    model = from_config(config.to_dict()).model
    assert model is not None
    for targets in ([name], ["c_proj" if family == "gpt2" else "v_proj", name]):
        with torch.device("meta"):
            real = AutoModelForCausalLM.from_config(config)
        setup = TrainingSetup(
            method=Method.LORA, lora_r=2, lora_dropout=0.0, lora_target_modules=tuple(targets)
        )
        try:
            ours = adapter_parameters(model, setup.adapters)
        except ValueError as refusal:
            if "not modelled yet" not in str(refusal):
                with pytest.raises(
                    ValueError, match=r"not supported|not found|Cannot convert|No modules"
                ):
                    get_peft_model(real, LoraConfig(r=2, target_modules=targets))
            continue
        adapted = get_peft_model(real, LoraConfig(r=2, target_modules=targets))
        assert ours == sum(
            parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad
        )

"""How close a step on the meta device, counted storage by storage, is to our estimate (decision 4).

Expected heights come from transformers 5.23, peft 0.21 and torch 2.13 themselves, run here.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Component, Phase, estimate
from estimator.contract import setups as contract

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TINY_LLAMA = {  # 1.1 billion parameters
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
LORA = {"method": "lora", "lora_dropout": 0.0}
CASES = {
    "full": {},
    "longer": {"per_device_train_batch_size": 1, "max_length": 2048},
    "checkpointed": {"gradient_checkpointing": True},
    "LoRA": LORA,
}


def traced(setup: dict[str, Any]) -> dict[str, int]:
    """Heights in bytes of a step after the first, from the real code on the meta device."""
    from tests.verify.storages import Storages

    config = transformers.AutoConfig.for_model(**TINY_LLAMA)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="eager"
        )
    if setup.get("gradient_checkpointing"):
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    if setup.get("method") == "lora":
        import peft

        settings = peft.LoraConfig(
            r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear"
        )
        model = peft.get_peft_model(model, settings)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    states = [torch.zeros_like(one) for one in trained for _ in ("exp_avg", "exp_avg_sq")]
    shape = setup["per_device_train_batch_size"], setup["max_length"]
    ids = torch.zeros(shape, dtype=torch.long, device="meta")
    with Storages() as counted:
        counted.note([*model.parameters(), *model.buffers(), states, ids])
        counted.restart()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        forward = counted.restart()
        loss.backward()
        return {"forward": forward, "backward": counted.restart()}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT still uses older names of transformers
@pytest.mark.parametrize("name", CASES)
def test_a_step_on_the_meta_device_is_within_1_percent_of_the_estimate(name):
    # eager attention and no autocast, which the meta device runs as a GPU would
    setup = {"per_device_train_batch_size": 2, "max_length": 512, **CASES[name]}
    said = estimate(
        *contract.parse(
            {
                **setup,
                "model": TINY_LLAMA,
                "mixed_precision": "no",
                "attn_implementation": "eager",
            }
        )
    )
    real = traced(setup)
    workspace = said.peak.resident[Component.WORKSPACE]
    for part, phases in (("forward", (Phase.FORWARD, Phase.LOSS)), ("backward", (Phase.BACKWARD,))):
        ours = max(said.phases[phase].bytes for phase in phases) - workspace
        assert ours == pytest.approx(real[part], rel=0.01), part

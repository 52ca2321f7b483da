"""Traced steps, one of each kind of fault that was once in an estimate: a tensor that a library keeps, copies or drops.

Expected: bytes at the highest moment of some phases, or of all, of the second step of the real Trainer
(transformers 5.23, or TRL 1.16's trainer of the objective) with peft 0.21 and torch 2.13, on a stand-in device that
counts every allocation, rounded to 512 bytes. It has no cuBLAS workspace. Left out: the phase ``forward``, which ends
elsewhere in a Trainer whose model computes its own loss, and what holds less than 48 KiB, such as norms of gradients.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Component, Phase, estimate
from estimator.contract.setups import parse

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
TIED = LLAMA | {"tie_word_embeddings": True}
FLOAT32 = {"dtype": "float32", "mixed_precision": "bf16"}
PURE = {"dtype": "bfloat16", "mixed_precision": "no"}
NEAR = 48 * 2**10

Heights = dict[str, int]
TRACED: dict[str, tuple[dict[str, Any], dict[str, Any], Heights]] = {
    # transformers 5.23, trainer_pt_utils.py:452: one row's slice is contiguous as it is
    "labels smoothed of one row": (
        LLAMA,
        FLOAT32 | {"max_length": 1024, "label_smoothing_factor": 0.1},
        {"loss": 1_099_598_848},
    ),
    "labels smoothed of two rows": (
        LLAMA,
        FLOAT32
        | {"max_length": 1024, "per_device_train_batch_size": 2, "label_smoothing_factor": 0.1},
        {"loss": 1_872_097_280},
    ),
    # peft 0.21, tuners/lora/dora.py: a tied head has magnitudes like any linear
    "DoRA on a tied head": (
        TIED,
        PURE
        | {"method": "lora", "lora_r": 8, "lora_dropout": 0.05, "use_dora": True}
        | {"lora_target_modules": ["q_proj", "lm_head"], "max_length": 256}
        | {"gradient_checkpointing": True},
        {"peak": 375_751_680, "backward": 341_261_824},
    ),
    # transformers 5.23, optimization.py, Adafactor.step: `update` is bound until the next tensor's replaces it
    "Adafactor, whose largest matrix follows another": (
        LLAMA,
        PURE | {"optim": "adafactor", "max_length": 64, "gradient_checkpointing": True},
        {"optimizer_step": 442_901_504},
    ),
    "Adafactor, whose largest matrix is the first": (
        TIED,
        PURE | {"optim": "adafactor", "max_length": 64, "gradient_checkpointing": True},
        {"optimizer_step": 374_546_944},
    ),
}


@pytest.mark.parametrize("kind", TRACED)
def test_each_phase_is_as_high_as_in_the_traced_step(kind: str):
    config, keys, heights = TRACED[kind]
    told = estimate(*parse({"model": config, **keys}))
    for name, traced in heights.items():
        moment = told.peak if name == "peak" else told.phases[Phase(name)]
        said = moment.bytes - moment.resident[Component.WORKSPACE]
        assert said == pytest.approx(traced, abs=NEAR), name

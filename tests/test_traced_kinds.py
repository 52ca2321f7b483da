"""Traced steps, one of each kind of fault that was once in an estimate: a tensor that a library keeps, copies or drops.

Expected: bytes at the highest moment of some phases, or of all, of the second step of the real Trainer
(transformers 5.23, or TRL 1.16's trainer of the objective) with peft 0.21 and torch 2.13, on a stand-in device that
counts every allocation, rounded to 512 bytes. It has no cuBLAS workspace. What holds less than 48 KiB or a
ten-thousandth, such as the norms of gradients, is not modelled.
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
OPT = {
    "model_type": "opt",
    "hidden_size": 512,
    "ffn_dim": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 8000,
    "word_embed_proj_dim": 512,
    "max_position_embeddings": 2048,
}
GPT_NEOX = {
    "model_type": "gpt_neox",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 8000,
}
OLMO2 = LLAMA | {"model_type": "olmo2", "num_key_value_heads": 8, "vocab_size": 100}
GEMMA2 = LLAMA | {"model_type": "gemma2", "head_dim": 64, "vocab_size": 100}
MIXTURE = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
}
AUTOCAST = {"dtype": "bfloat16", "mixed_precision": "bf16"}
FLOAT32 = {"dtype": "float32", "mixed_precision": "bf16"}
REPLAYED = FLOAT32 | {
    "per_device_train_batch_size": 4,
    "max_length": 512,
    "gradient_checkpointing": True,
    "use_reentrant": True,
}
PURE = {"dtype": "bfloat16", "mixed_precision": "no"}
ORPO = {
    "objective": "orpo",
    "method": "qlora",
    "lora_target_modules": "all-linear",
    "max_length": 512,
    "max_prompt_length": 256,
}
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
    # trl 1.16, trainer/utils.py:194: nn.Dropout modules are set to 0, and OPT and eager attention call the function
    "a reward model that drops by function": (
        OPT,
        AUTOCAST | {"objective": "reward", "max_length": 512},
        {"forward": 186_009_088, "backward": 189_152_256},
    ),
    "ORPO, whose eager attention drops by function": (
        LLAMA | {"num_key_value_heads": 2, "vocab_size": 8000, "attention_dropout": 0.1},
        AUTOCAST
        | {"objective": "orpo", "max_length": 512, "max_prompt_length": 256}
        | {"attn_implementation": "eager"},
        {"backward": 414_835_712},
    ),
    # trl 1.16, kernels/chunked_logprob.py: hidden_chunk and w_chunk are bound until the function returns
    "TRL's head on a LayerNorm's float32": (
        GPT_NEOX,
        AUTOCAST
        | {"per_device_train_batch_size": 4, "max_length": 512, "loss": "chunked_trl"}
        | {"gradient_checkpointing": True},
        {"loss": 282_070_528, "backward": 306_574_336},
    ),
    "TRL's head on more tokens than a tile has, cast from float32": (
        LLAMA
        | {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2}
        | {"num_key_value_heads": 2},
        FLOAT32
        | {"per_device_train_batch_size": 3, "max_length": 2048, "loss": "chunked_trl"}
        | {"gradient_checkpointing": True},
        {"backward": 1_688_569_344},
    ),
    # torch 2.13, utils/checkpoint.py, detach_variable: a replay's input is a leaf, which autocast casts once
    "a post-norm layer, checkpointed by replays of leaves": (
        OLMO2,
        REPLAYED | {"objective": "sequence_classification"},
        {"backward": 297_362_944},
    ),
    # transformers 5.23, modeling_layers.py, GradientCheckpointingLayer: partial(..., attention_mask=...) in the node
    "two kinds of masks, both of which live until the graph is freed": (
        GEMMA2,
        REPLAYED | {"objective": "sequence_classification", "attn_implementation": "eager"},
        {"backward": 356_547_584},
    ),
    # transformers 5.23, models/mpt/modeling_mpt.py:141: 4 * hidden_size
    "MPT, whose MLP is wider than it says": (
        {"model_type": "mpt", "d_model": 256, "n_heads": 8, "n_layers": 3, "vocab_size": 8000}
        | {"max_seq_len": 512, "expansion_ratio": 2},
        AUTOCAST | {"max_length": 256, "attn_implementation": "eager"},
        {"backward": 68_044_288},
    ),
    # transformers 5.23, models/qwen3_moe/modeling_qwen3_moe.py:308, models/qwen2_moe/modeling_qwen2_moe.py:357
    "experts in some layers, whose routers return scores": (
        MIXTURE
        | {"model_type": "qwen3_moe", "head_dim": 32, "num_experts": 64}
        | {"num_hidden_layers": 9, "mlp_only_layers": [0, 1, 2, 5]},
        AUTOCAST
        | {"per_device_train_batch_size": 2, "max_length": 256, "loss": "chunked_trl"}
        | {"gradient_checkpointing": True},
        {"forward": 416_566_272, "loss": 448_148_992, "backward": 556_536_832},
    ),
    "adapters on a dense layer among mixtures": (
        MIXTURE
        | {"model_type": "qwen2_moe", "num_experts": 8}
        | {"shared_expert_intermediate_size": 512, "mlp_only_layers": [3]},
        AUTOCAST
        | {"method": "lora", "lora_r": 8, "lora_dropout": 0.0, "lora_target_modules": "all-linear"}
        | {"per_device_train_batch_size": 2, "max_length": 256},
        {"backward": 56_781_312},
    ),
    # transformers 5.23, models/mixtral/modeling_mixtral.py:123
    "noise on the input of Mixtral's experts": (
        MIXTURE
        | {"model_type": "mixtral", "num_local_experts": 8, "intermediate_size": 512}
        | {"router_jitter_noise": 0.1},
        AUTOCAST | {"per_device_train_batch_size": 2, "max_length": 256},
        {"backward": 124_493_824},
    ),
    # trl 1.16, experimental/orpo/orpo_trainer.py:232; in bfloat16 it casts back by name
    "ORPO, which prepares its packed base": (
        LLAMA | {"num_key_value_heads": 2, "vocab_size": 8000},
        PURE | ORPO | {"gradient_checkpointing": True},
        {"optimizer_step": 47_840_256, "backward": 138_213_888},
    ),
    "ORPO, which casts a head back to bfloat16 and leaves an embedding": (
        GPT_NEOX,
        AUTOCAST | ORPO | {"per_device_train_batch_size": 2},
        {"optimizer_step": 39_640_064, "backward": 380_094_976},
    ),
}


@pytest.mark.parametrize("kind", TRACED)
def test_each_phase_is_as_high_as_in_the_traced_step(kind: str):
    config, keys, heights = TRACED[kind]
    told = estimate(*parse({"model": config, **keys}))
    for name, traced in heights.items():
        moment = told.peak if name == "peak" else told.phases[Phase(name)]
        said = moment.bytes - moment.resident[Component.WORKSPACE]
        assert said == pytest.approx(traced, rel=1e-4, abs=NEAR), name

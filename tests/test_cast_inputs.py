"""FSDP 2 under mixed precision: what it casts of the inputs and outputs of the modules that it wraps.

Expected bytes: the third of three steps of transformers 5.23's real classes (peft 0.21, dropout 0.05), sharded over two
ranks by accelerate 1.15's own ``fsdp2_prepare_model`` (torch 2.13), rank 0 of a fake process group, on a stand-in CUDA
device that counts every allocation, rounded to 512 bytes: peaks of forward, loss and backward.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Component, Phase, estimate
from estimator.contract.setups import parse

SIZES: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
POST_NORM = {"ffn_dim": 2816, "word_embed_proj_dim": 512, "do_layer_norm_before": False}
MPT = {"vocab_size": 8192, "d_model": 1024, "n_heads": 16, "n_layers": 4, "max_seq_len": 1024}
GPT2 = {"vocab_size": 8192, "n_embd": 1024, "n_layer": 4, "n_head": 16, "n_positions": 2048}
EAGER = {"attn_implementation": "eager"}
LORA = {"method": "lora", "lora_dropout": 0.05}
CHECKPOINTED = {"gradient_checkpointing": True}

TRACED: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int, int]]] = {
    "float32 rotary tables": (
        {"model_type": "olmo2", **SIZES},
        {},
        (425_059_328, 492_178_432, 492_158_976),
    ),
    "float32 rotary tables, checkpointed": (
        {"model_type": "olmo2", **SIZES},
        CHECKPOINTED,
        (201_400_832, 261_168_128, 349_076_992),
    ),
    "float32 rotary tables that each layer expands": (
        {"model_type": "ernie4_5", **SIZES, "head_dim": 64},
        LORA,
        (368_865_280, 414_684_672, 406_209_536),
    ),
    "ALiBi, and a final LayerNorm gathered with the head": (
        {"model_type": "mpt", **MPT},
        CHECKPOINTED | EAGER,
        (406_040_576, 259_192_832, 519_177_216),
    ),
    "layers that end in a LayerNorm": (
        {"model_type": "opt", **SIZES, **POST_NORM},
        EAGER,
        (721_183_744, 735_346_176, 773_611_008),
    ),
    "a final LayerNorm gathered with the head, LoRA": (
        {"model_type": "gpt2", **GPT2},
        LORA | CHECKPOINTED,
        (207_755_264, 211_424_768, 287_662_080),
    ),
    "a head alone": (
        {"model_type": "starcoder2", **SIZES, "tie_word_embeddings": False},
        LORA,
        (282_750_464, 347_292_160, 343_072_768),
    ),
}


@pytest.mark.parametrize(("config", "keys", "traced"), TRACED.values(), ids=TRACED)
def test_float_inputs_and_outputs_are_cast_for_each_wrapped_module(
    config: dict[str, Any], keys: dict[str, Any], traced: tuple[int, ...]
) -> None:
    told = {"strategy": "fsdp", "num_gpus": 2, "max_length": 1024, "optim": "sgd", **keys}
    of = estimate(*parse({"model": config, **told}))
    workspace = of.peak.resident[Component.WORKSPACE]
    phases = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)
    # two buffers of flags and indices per batch are left out, at most 18 bytes per token
    assert [of.phases[it].bytes - workspace for it in phases] == pytest.approx(traced, abs=18_432)

"""What PEFT adds beyond plain LoRA: copies that are trained whole.

Heights marked as traced are those of peft 0.21.2, transformers 5.23 and torch 2.13 themselves, in bytes as allocated,
run on a stand-in device that counts every allocation; they leave out cuBLAS's workspace. Others are by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator import Component, Dtype, Method, MixedPrecision, Model, TrainingSetup, estimate
from estimator.contract import parse, read_setup
from estimator.memory.optimizer import Trainable
from estimator.moments import adapter_bytes, trainable_tensors
from estimator.parameters import (
    TINY_LLAMA,
    adapter_parameters,
    total_parameters,
    trainable_parameters,
)
from estimator.results import Estimate

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
TIED = LLAMA | {"tie_word_embeddings": True}
V, H = 8192, 512
EMBEDDING = V * H
PURE = {"mixed_precision": "no"}
CHECKPOINTED = {"gradient_checkpointing": True}

TRACED = {
    "head and embedding under autocast": (
        LLAMA,
        {"method": "lora", "max_length": 512, "modules_to_save": ["embed_tokens", "lm_head"]},
        (174_054_400, 207_104_512, 215_484_416, 119_084_032),
    ),
    "the embedding of a tied pair, checkpointed": (
        TIED,
        {"method": "lora", "max_length": 256, "modules_to_save": ["embed_tokens"]}
        | PURE
        | CHECKPOINTED,
        (73_118_208, 89_113_600, 93_041_152, 77_139_968),
    ),
    "the head of a tied pair, accumulating": (
        TIED,
        {"method": "lora", "max_length": 256, "modules_to_save": ["lm_head"]}
        | {"gradient_accumulation_steps": 2},
        (113_942_016, 130_476_032, 134_614_528, 77_139_968),
    ),
    "both of a tied pair in float32": (
        TIED,
        {"method": "lora", "max_length": 256, "modules_to_save": ["lm_head", "embed_tokens"]}
        | {"dtype": "float32"}
        | CHECKPOINTED,
        (192_666_624, 209_447_424, 214_228_992, 211_367_936),
    ),
    "norms and one projection": (
        LLAMA,
        {"method": "lora", "max_length": 256, "modules_to_save": ["norm", "k_proj"]} | PURE,
        (98_160_128, 114_940_928, 118_866_432, 55_422_976),
    ),
}


def told(model: dict[str, Any], keys: dict[str, Any]) -> Estimate:
    return estimate(*parse({"model": model} | keys))


@pytest.mark.parametrize(("model", "keys", "heights"), TRACED.values(), ids=TRACED)
def test_heights_are_those_of_the_traced_run(
    model: dict[str, Any], keys: dict[str, Any], heights: tuple[int, ...]
) -> None:
    of = told(model, keys)
    workspace = of.peak.resident[Component.WORKSPACE]
    phases = ("forward", "loss", "backward", "optimizer_step")
    ours = [of.phases[phase].bytes - workspace for phase in of.phases if phase.value in phases]
    assert ours == pytest.approx(heights, rel=1e-3)


# --- modules_to_save ------------------------------------------------------------------------------


def lora(**keys: Any) -> TrainingSetup:
    return TrainingSetup(method=Method.LORA, **keys)


def test_a_copy_adds_its_parameters_and_the_original_stays() -> None:
    plain, copied = lora(), lora(modules_to_save=("embed_tokens",))
    added = 10 * 8  # TINY_LLAMA's vocabulary × its width
    assert adapter_parameters(TINY_LLAMA, copied) == adapter_parameters(TINY_LLAMA, plain) + added
    assert trainable_parameters(TINY_LLAMA, copied) == adapter_parameters(TINY_LLAMA, copied)
    model = told(LLAMA, {}).model
    assert adapter_bytes(model, replace(copied, dtype=Dtype.BFLOAT16)) == (
        adapter_bytes(model, plain) + 2 * EMBEDDING
    )


def test_copies_keep_the_dtype_of_the_base_while_adapters_become_float32() -> None:
    # peft 0.21, tuners_utils.py, cast_adapter_dtype: BaseTunerLayer alone
    model = told(LLAMA, {}).model
    tensors = trainable_tensors(model, lora(modules_to_save=("embed_tokens", "lm_head")))
    assert tensors[:2] == [
        Trainable((V, H), 2, 1, is_embedding=True),
        Trainable((V, H), 2, 1, is_embedding=False),
    ]
    assert {tensor.width for tensor in tensors[2:]} == {4}


def test_a_copied_projection_has_no_adapter() -> None:
    setup = lora(lora_r=1, modules_to_save=("k_proj",))
    # a layer's linears of TINY_LLAMA: q 8→8, v 8→4, o 8→8, gate and up 8→16, down 16→8; k 8→4 whole
    adapters = 2 * ((8 + 8) * 2 + (8 + 4) + 3 * (8 + 16))
    assert adapter_parameters(TINY_LLAMA, setup) == adapters + 2 * 8 * 4


def test_the_copies_of_a_tied_pair_are_two() -> None:
    tied = replace(TINY_LLAMA, tie_word_embeddings=True)
    both = lora(modules_to_save=("embed_tokens", "lm_head"))
    assert adapter_parameters(tied, both) == adapter_parameters(tied, lora()) + 2 * 10 * 8
    assert total_parameters(tied) == total_parameters(TINY_LLAMA) - 10 * 8


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"modules_to_save": ["wings"]}, "no single module of llama; name some of: embed_tokens"),
        ({"modules_to_save": ["mlp"]}, "no single module"),
        ({"modules_to_save": ["proj"]}, "PEFT refuses to copy that"),
        (
            {"modules_to_save": ["q_proj"], "lora_target_modules": ["q_proj"]},
            "no layer for an adap",
        ),
        ({"modules_to_save": ["q_proj"], "method": "qlora"}, "packed by bitsandbytes"),
        ({"modules_to_save": ["norm"], "dtype": "float16", "mixed_precision": "fp16"}, "float16"),
    ],
)
def test_what_peft_or_the_scaler_refuses_is_refused(keys: dict[str, Any], said: str) -> None:
    reading = read_setup({"model": LLAMA, "method": "lora"} | keys)
    assert said in " ".join(reading.problems)


def test_full_fine_tuning_copies_nothing() -> None:
    whole = TrainingSetup(modules_to_save=("lm_head",), mixed_precision=MixedPrecision.NO)
    model: Model = TINY_LLAMA
    assert trainable_parameters(model, whole) == total_parameters(model)

"""What axolotl 0.19.0 makes of keys that seem to say something else; expected values are its source's, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import read_files

MODEL = {"base_model": "Qwen/Qwen2.5-7B", "micro_batch_size": 4, "sequence_len": 2048, "bf16": True}
LORA4 = {"adapter": "lora", "load_in_4bit": True}


def setup(**keys: Any) -> dict[str, Any]:
    lines = "\n".join(
        f"{key}: {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in {**MODEL, **keys}.items()
    )
    return dict(read_files({"axolotl.yaml": lines}).setup)


@pytest.mark.parametrize(
    ("keys", "method", "dtype"),
    [
        ({"adapter": "qlora", "load_in_4bit": True}, "qlora", "bfloat16"),
        (LORA4, "lora", "float32"),
        ({**LORA4, "deepspeed": "deepspeed_configs/zero3_bf16.json"}, "lora", "bfloat16"),
        ({"adapter": "lora"}, "lora", "bfloat16"),
    ],
)
def test_only_qlora_packs_and_lora_is_upcast_instead(keys, method, dtype):
    """loaders/model.py:801 packs for ``qlora`` alone; 1142 prepares (to float32) whatever asks for 4 bits, but in
    ZeRO-3."""
    found = setup(**keys)
    assert (found["method"], found["dtype"], found.get("load_in_8bit", False)) == (
        method,
        dtype,
        False,
    )


@pytest.mark.parametrize("keys", [{"load_in_8bit": True}, {"adapter": "qlora"}])
def test_what_axolotl_refuses_is_said(keys):
    """utils/schemas/peft.py:177-224."""
    lines = "\n".join(f"{key}: {value}" for key, value in {**MODEL, **keys}.items())
    (said,) = read_files({"axolotl.yaml": lines}).contradictions
    assert "axolotl stops" in said


def test_a_switch_that_packs_nothing_is_said():
    lines = "\n".join(f"{key}: {value}" for key, value in {**MODEL, **LORA4}.items())
    (said,) = read_files({"axolotl.yaml": lines}).guesses
    assert said.startswith("load_in_4bit packs nothing with adapter lora")
    assert said.endswith("the base is float32; set adapter to qlora, or load_in_4bit false.")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", True),
        ("lora_mlp_kernel: false", False),
        ("gradient_checkpointing: true", False),
        ("rl: dpo", False),
        ("load_in_8bit: true", False),
    ],
)
def test_fused_lora_kernels_that_nobody_named_are_said(more, says):
    # axolotl 0.19.0, utils/schemas/config.py:1976; played: 3.24 GiB with them, 3.34 without, a Llama of two layers
    run = read_files(
        {
            "a.yml": f"""
base_model: NousResearch/Llama-2-7b-hf
adapter: lora
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 1
{more}
"""
        }
    )
    assert any("fused LoRA kernels" in note for note in run.notes) is says

"""Realistic configs, with the keys and values of the tools' own examples, are read as the runs that they describe.

The files in ``fixtures`` have the keys and values of examples of axolotl 067b021, LLaMA-Factory ff6d4d1, TRL f2cd577,
ms-swift 3602360, torchtune bd2a0fc, accelerate 16cb6eb and verl 1dda039, in our own layout and without their comments.
Expected values were read by hand from each file and the tools' sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from estimator import Fate, Imported, read_files
from estimator.contract.setups import read_setup
from tests.rows import for_each

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(it for it in FIXTURES.glob("*/*") if it.is_file())
TOOLS = sorted({it.parent.name for it in FILES})


def read(*paths: str) -> Imported:
    files = [FIXTURES / it for it in paths]
    return read_files({it.name.removesuffix(".txt"): it.read_bytes() for it in files})


def test_there_are_many_fixtures() -> None:
    assert len(FILES) >= 150


@pytest.mark.parametrize("tool", TOOLS)
def test_ninety_five_percent_of_keys_are_known(tool: str) -> None:
    fates: Counter[Fate] = Counter()
    unknown = []
    for path in FILES:
        if path.parent.name == tool:
            run = read(f"{tool}/{path.name}")
            assert run.keys, path
            fates.update(it.fate for it in run.keys)
            unknown += [f"{path.name}: {it.says}" for it in run.of(Fate.UNKNOWN)]
    assert fates[Fate.UNKNOWN] <= 0.05 * fates.total(), "\n".join(unknown)


@for_each("path", FILES)
def test_each_key_is_reported_once_with_its_line(path: Path) -> None:
    run = read(f"{path.parent.name}/{path.name}")
    for it in run.keys:
        assert (it.says != "") is (it.fate in {Fate.NOT_MODELLED, Fate.UNKNOWN}), it
        assert it.line > 0
        assert it.says.count("\n") == 0
    assert {it.key for it in run.set_by_tool}.isdisjoint(
        key for it in run.of(Fate.TAKEN) for key in it.ours
    )


AXOLOTL = {"mixed_precision": "bf16", "dtype": "bfloat16", "prepare_model_for_kbit_training": False}
TORCHTUNE = {
    "mixed_precision": "no",
    "dtype": "bfloat16",
    "max_grad_norm": 0.0,
    "use_reentrant": False,
}
EXPECTED: dict[str, dict[str, object]] = {
    # axolotl: packed rows are joined into one of micro_batch_size · sequence_len; reentrant if no options are given
    "axolotl/llama_2_qlora.yaml": {
        **AXOLOTL,
        "model": "NousResearch/Llama-2-7b-hf",
        "method": "qlora",
        "per_device_train_batch_size": 1,
        "max_length": 2 * 4096,
        "packing": True,
        "per_device_eval_batch_size": 1,  # its sampler packs evaluation into the rows of training
        "gradient_accumulation_steps": 4,
        "gradient_checkpointing": True,
        "use_reentrant": True,
        "lora_r": 32,
        "lora_alpha": 16,
        "lora_dropout": 0.05,
        "lora_target_modules": "all-linear",
        "optim": "paged_adamw_32bit",
        "attn_implementation": "flash_attention_2",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_quant_storage": "bfloat16",
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "num_train_epochs": 4.0,
    },
    "axolotl/mistral_mixtral_mixtral_qlora_fsdp.yaml": {
        **AXOLOTL,
        "method": "qlora",
        "strategy": "fsdp",
        "fsdp_version": 1,  # axolotl 0.19.0, utils/schemas/validation.py, check_fsdp_version_in_fsdp_config
        "offload_param": "cpu",
        "offload_optimizer": "cpu",
        "per_device_train_batch_size": 2,
        "max_length": 1024,
        "padded": True,
    },
    "axolotl/archived_tiny_llama_lora.yaml": {
        **AXOLOTL,
        "method": "lora",
        "load_in_8bit": True,
        "max_length": 8192,
        "optim": "adamw_bnb_8bit",
    },
    "axolotl/gpt_oss_gpt_oss_20b_fft_deepspeed_zero3.yaml": {
        **AXOLOTL,
        "model": "openai/gpt-oss-20b",
        "method": "full",
        "strategy": "zero3",
        "activation_offloading": True,
    },
    "axolotl/liquidai_lfm2_350m_fft.yaml": {
        **AXOLOTL,
        "method": "full",
        "gradient_checkpointing": False,
        "max_length": 4 * 4096,
        "gradient_accumulation_steps": 2,
    },
    "axolotl/qwen2_dpo.yaml": {
        **AXOLOTL,
        "model": "Qwen/Qwen2.5-0.5B",
        "objective": "dpo",
        "max_length": 2048,
        "per_device_train_batch_size": 2,
        "use_reentrant": False,
    },
    "axolotl/falcon_h1_falcon_h1_1b_deep_qlora.yaml": {
        **AXOLOTL,
        "method": "qlora",
        "use_reentrant": False,
        "max_length": 2048,
        "lora_target_modules": [
            *(
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "in_proj",
                "gate_proj",
                "up_proj",
                "down_proj",
            )
        ],
    },
    "axolotl/phi_phi2_ft.yaml": {
        **AXOLOTL,
        "method": "full",
        "max_length": 4096,
        "use_reentrant": True,
    },
    # LLaMA-Factory: trained weights are float32 unless pure_bf16; alpha is twice the rank; checkpoints are reentrant
    "llamafactory/train_lora_qwen3_lora_sft.yaml": {
        "method": "lora",
        "dtype": "bfloat16",
        "mixed_precision": "bf16",
        "max_length": 2048,
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "lora_target_modules": "all-linear",
        "gradient_checkpointing": True,
        "use_reentrant": True,
        "gradient_accumulation_steps": 8,
    },
    "llamafactory/train_full_qwen3_full_sft.yaml": {
        "method": "full",
        "dtype": "bfloat16",  # llamafactory/model/adapter.py:318: not cast under ZeRO-3
        "mixed_precision": "bf16",
        "strategy": "zero3",
        "num_train_epochs": 3.0,
    },
    "llamafactory/extras_galore_llama3_full_sft.yaml": {
        "method": "full",
        "dtype": "bfloat16",  # pure_bf16
        "mixed_precision": "no",
        "optim": "galore_adamw_layerwise",
    },
    "llamafactory/extras_fsdp_qlora_llama3_lora_sft.yaml": {
        "method": "qlora",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_quant_storage": "bfloat16",
    },
    "llamafactory/train_qlora_qwen3_lora_sft_bnb_npu.yaml": {
        "method": "qlora",
        "bnb_4bit_use_double_quant": False,
    },
    "llamafactory/train_lora_qwen3_lora_sft_ds3.yaml": {"strategy": "zero3", "method": "lora"},
    "llamafactory/train_lora_qwen3_lora_pretrain.yaml": {"padded": False, "max_length": 2048},
    "llamafactory/train_lora_qwen3_lora_dpo.yaml": {"objective": "dpo", "method": "lora"},
    # torchtune: everything in dtype, no autocast, no clipping; the recipe's builder names model and method
    "torchtune/llama3_1_8b_full_single_device.yaml": {
        **TORCHTUNE,
        "model": "meta-llama/Llama-3.1-8B",
        "method": "full",
        "optim": "paged_adamw_8bit",
        "optimizer_in_bwd": True,
        "per_device_train_batch_size": 2,
        "gradient_checkpointing": True,
    },
    "torchtune/qwen2_5_7b_full.yaml": {
        **TORCHTUNE,
        "model": "Qwen/Qwen2.5-7B",
        "optim": "adamw_torch_fused",
        "gradient_accumulation_steps": 8,
    },
    "torchtune/llama3_8b_qlora_single_device.yaml": {
        **TORCHTUNE,
        "model": "meta-llama/Meta-Llama-3-8B",
        "method": "qlora",
        "lora_r": 8,
        "lora_alpha": 16,
        "autocast_adapter_dtype": False,
        "lora_target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
    "torchtune/gemma_7b_lora_single_device.yaml": {
        **TORCHTUNE,
        "model": "google/gemma-7b",
        "method": "lora",
        "per_device_train_batch_size": 8,
    },
    "torchtune/qwen3_1_7b_lora_single_device.yaml": {
        **TORCHTUNE,
        "model": "Qwen/Qwen3-1.7B",
        "method": "lora",
    },
    "torchtune/llama3_3_70b_lora.yaml": {
        **TORCHTUNE,
        "model": "meta-llama/Llama-3.3-70B-Instruct",
        "lora_r": 16,
        "lora_alpha": 32,
    },
    # ms-swift: flags; accumulation defaults to 16 examples in all
    "ms_swift/packing_liger_kernel.sh": {
        "model": "Qwen/Qwen2.5-7B",
        "method": "full",
        "num_gpus": 4,
        "strategy": "zero3",
        "packing": True,
        "max_length": 16384,
        "use_liger_kernel": True,
        "attn_implementation": "flash_attention_2",
        "dtype": "bfloat16",
        "gradient_accumulation_steps": 2,
    },
    "ms_swift/tuners_neftune_train.sh": {
        "method": "lora",
        "num_gpus": 1,
        "lora_r": 8,
        "lora_target_modules": "all-linear",
        "gradient_accumulation_steps": 16,
        "lora_dropout": 0.05,
        "mixed_precision": "bf16",  # swift/arguments/base_args/model_args.py:135: as the checkpoint's bfloat16
    },
    "ms_swift/sequence_parallel_sequence_parallel_512k.sh": {
        "num_gpus": 8,
        "strategy": "zero3",
        "offload_optimizer": "cpu",
        "offload_param": "cpu",
        "max_length": 512_000,
    },
    # accelerate: FSDP is version 1 if its file does not say
    "accelerate/trl_fsdp1.yaml": {"num_gpus": 8, "strategy": "fsdp", "fsdp_version": 1},
    "accelerate/trl_own_fsdp2.yaml": {
        "num_gpus": 8,
        "strategy": "fsdp",
        "fsdp_version": 2,
        "mixed_precision": "bf16",
    },
    "accelerate/llamafactory_fsdp_config_offload.yaml": {
        "num_gpus": 2,
        "fsdp_version": 1,
        "offload_param": "cpu",
    },
    "accelerate/trl_deepspeed_zero3.yaml": {
        "num_gpus": 8,
        "strategy": "zero3",
        "zero3_save_16bit_model": True,
    },
    "deepspeed/llamafactory_ds_z2_offload_config.json": {
        "strategy": "zero2",
        "offload_optimizer": "cpu",
    },
    "deepspeed/llamafactory_ds_z3_offload_config.json": {
        "strategy": "zero3",
        "offload_param": "cpu",
    },
    # scripts
    "trl/notebooks_sft_trl_lora_qlora.py.txt": {
        "method": "qlora",
        "dtype": "float32",
        "lora_r": 32,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
        "bnb_4bit_use_double_quant": True,
        "autocast_adapter_dtype": False,
    },
    "trl/notebooks_sft_tool_calling.py.txt": {"method": "qlora", "dtype": "float16", "lora_r": 32},
}


@pytest.mark.parametrize("path", EXPECTED)
def test_a_config_is_read_as_the_run_of_its_tool(path: str) -> None:
    run = read(path)
    refused = {  # a key that is not modelled yet is reported and absent from the setup
        key for key in EXPECTED[path] if key not in run.setup and run.of(Fate.NOT_MODELLED)
    }
    expected = {key: value for key, value in EXPECTED[path].items() if key not in refused}
    assert {key: run.setup.get(key) for key in expected} == expected
    assert len(refused) <= 2


def test_tokenizer_file_is_not_requested() -> None:
    run = read("torchtune/qwen3_1_7b_full.yaml")
    assert not any("vocab.json" in it for it in run.notes)


def test_a_script_its_accelerate_file_and_its_deepspeed_file_are_one_run() -> None:
    run = read("trl/notebooks_sft_tool_calling.py.txt", "accelerate/trl_deepspeed_zero3.yaml")
    assert run.setup["num_gpus"] == 8
    assert run.setup["strategy"] == "zero3"
    assert run.setup["use_reentrant"] is True, (
        "trl 1.16.0, sft_trainer.py:880: adapters under ZeRO-3"
    )


WRONG = (
    "[1, 2]",
    "{a: 1}",
    "null",
    "-5",
    "1.5",
    "true",
    '"x"',
    "99999999999999999999",
    ".nan",
    "${a}",
    "[[1]]",
)


def damaged(text: str, chance: Random) -> str:
    """The text, truncated or with one value of another type."""
    if chance.random() < 0.3:
        return text[: chance.randrange(len(text))]
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    head, colon, _ = lines[at].partition(": ")
    if colon:
        lines[at] = f"{head}: {chance.choice(WRONG)}"
    elif "--" in lines[at]:
        lines[at] = f"{lines[at].split()[0]} {chance.choice(WRONG)} \\"
    return "\n".join(lines)


@for_each("seed", range(200))
def test_a_damaged_file_is_read_or_gets_one_sentence(seed: int) -> None:
    chance = Random(seed)
    path = chance.choice(FILES)
    text = damaged(path.read_text(encoding="utf-8"), chance)
    for said in sentences(path.name.removesuffix(".txt"), text):
        assert said.endswith((".", "?"))
        assert "\n" not in said


def sentences(name: str, text: str) -> Sequence[str]:
    """Why a file cannot be read, or the contract's problems with its setup."""
    try:
        setup = read_files({name: text}).setup
    except ValueError as said:
        return [str(said)]
    return read_setup({**setup, "model": "openai-community/gpt2"}).problems

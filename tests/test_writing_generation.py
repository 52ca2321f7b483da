"""A GRPO or RLOO run written in verl's and ms-swift's words reads back as the same run.

Which overrides verl 0.9 takes was tried with Hydra 1.3 and its own YAML: a key that the YAML lacks needs a plus.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from estimator.tools.defaults import TOOLS, with_defaults_of
from estimator.tools.imported import Fate, read_files
from estimator.tools.sayable import sayable
from estimator.tools.writing.changes import changed_files
from estimator.tools.writing.files import files_of
from estimator.tools.writing.theirs import said, theirs_of
from tests.test_writing import LLAMA, written_or_refused

FIXTURES = Path(__file__).parent / "tools" / "fixtures"
VERL: dict[str, Any] = {
    **with_defaults_of("verl", {"objective": "grpo", "num_generations": 8}, LLAMA),
    "model": LLAMA.hub_id,
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "objective": ("grpo", "rloo"),
    "beta": (0.0, 0.001, 0.05),
    "num_generations": (2, 4, 5, 16),
    "per_device_train_batch_size": (1, 2, 5, 16),
    "gradient_accumulation_steps": (1, 4, 10),
    "num_iterations": (1, 2),
    "max_completion_length": (512, 2048),
    "max_prompt_length": (256, 512),
    "method": ("full", "lora"),
    "lora_r": (8, 64),
    "lora_alpha": (16, 32),
    "lora_target_modules": ("all-linear", ["q_proj", "v_proj"]),
    "dtype": ("bfloat16", "float32"),
    "mixed_precision": ("bf16", "fp16", "no"),
    "optim": ("adamw_torch", "sgd", "adamw_bnb_8bit", "paged_adamw_8bit"),
    "max_grad_norm": (1.0, 0.3),
    "gradient_checkpointing": (False, True),
    "use_liger_kernel": (False, True),
    "attn_implementation": ("flash_attention_2", "sdpa"),
    "padded": (False, True),
    "vllm_gpu_memory_utilization": (0.3, 0.6),
    "vllm_tensor_parallel_size": (1, 2, 4),
    "vllm_enable_sleep_mode": (False, True),
    "vllm_max_model_length": (None, 4096),
    "vllm_max_num_seqs": (64, 256),
    "vllm_max_num_batched_tokens": (4096, 8192),
    "generation_offload_model": (False, True),
    "generation_offload_optimizer": (False, True),
    "num_train_epochs": (1.0, 15.0),
    "save_strategy": ("no", "steps"),
}
SHARING: tuple[dict[str, Any], ...] = (
    {"strategy": "none", "num_gpus": 1},
    {"strategy": "fsdp", "num_gpus": 8, "fsdp_version": 1},
    {"strategy": "fsdp", "num_gpus": 8, "fsdp_version": 2},
    {"strategy": "fsdp", "num_gpus": 16, "gpus_per_node": 8, "fsdp_version": 2},
    {"strategy": "fsdp", "num_gpus": 4, "offload_optimizer": "cpu", "offload_param": "cpu"}
    | {"fsdp_version": 2},
    {"strategy": "fsdp_grad_op", "num_gpus": 4, "fsdp_version": 1},
    {"strategy": "hsdp", "num_gpus": 16, "gpus_per_node": 8, "dp_replicate_size": 2},
)


def drawn(random_: random.Random) -> dict[str, Any]:
    """A run with half of its keys off verl's defaults, whose prompts and completions fill its rows."""
    keys = VERL | {key: random_.choice(of) for key, of in CHOICES.items() if random_.random() < 0.5}
    keys |= random_.choice(SHARING)
    keys["steps_per_generation"] = keys["gradient_accumulation_steps"] * random_.choice((1, 4))
    keys["max_length"] = keys["max_prompt_length"] + keys["max_completion_length"]
    if keys["method"] == "lora":
        keys |= {"lora_dropout": 0.0, "autocast_adapter_dtype": False}
    return keys


def test_a_script_for_verl_reads_back_as_the_same_setup():
    random_, expressed, refused = random.Random(7), 0, 0
    kinds: set[Any] = set()
    while expressed < 150:
        keys = drawn(random_)
        files = written_or_refused("verl", keys)
        if isinstance(files, str):
            assert "num_generations" in files  # parts of a prompt's group
            refused += 1
            continue
        run = read_files({name: text for name, text in files.items() if name.endswith(".sh")})
        assert run.tool == "verl"
        assert sayable(run.setup, "verl") == sayable(keys, "verl")
        assert not run.of(Fate.UNKNOWN)
        assert not run.of(Fate.NOT_MODELLED)
        kinds |= {keys[key] for key in ("strategy", "objective", "method")}
        expressed += 1
    assert refused < expressed
    assert kinds == {"none", "fsdp", "fsdp_grad_op", "hsdp", "grpo", "rloo", "full", "lora"}


def test_the_script_states_what_verl_does_not_start_without():
    # rollout.name is ??? in its YAML; utils/config.py, validate_config, asks for the rows of each scoring
    keys = VERL | {"beta": 0.001, "per_device_train_batch_size": 4}
    keys |= {"gradient_accumulation_steps": 8, "steps_per_generation": 32}
    away = files_of("verl", keys, LLAMA, about="Fits.")
    text = away.files["grpo.sh"]
    assert away.command == "bash grpo.sh"
    assert text.startswith("#!/usr/bin/env bash\n# Fits.\n")
    for line in (
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16",
        "data.train_batch_size=128",  # by hand: 4 rows · 8 GPUs · 32 micro-batches of groups of 8
    ):
        assert f"  {line} \\\n" in text
    assert away.files["requirements.txt"].startswith("verl[gpu,vllm]==0.9.")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"objective": "sft"}, "verl has no word for objective 'sft'"),
        ({"use_vllm": False}, "verl has no word for use_vllm false"),
        ({"vllm_mode": "server"}, "verl has no word for vllm_mode 'server'"),
        ({"loss": "chunked_trl"}, "verl has no word for loss 'chunked_trl'"),
        ({"strategy": "zero3"}, "verl has no word for strategy 'zero3'"),
        ({"offload_optimizer": "cpu"}, "verl has no word for offload_optimizer 'cpu'"),
        ({"save_strategy": "epoch"}, "verl has no word for save_strategy 'epoch'"),
        ({"num_train_epochs": 0.5}, "verl has no word for num_train_epochs 0.5"),
        ({"optim": "adafactor"}, "verl has no word for optim 'adafactor'"),
        ({"max_length": 4096}, "verl has no word for max_length 4096"),
        ({"num_generations": 7}, "verl takes whole prompts in a step"),
        ({"steps_per_generation": 33}, "make steps_per_generation a multiple of"),
        ({"method": "lora", "lora_r": 1024}, "verl stops at lora_r above 512"),
    ],
)
def test_what_verl_cannot_say_or_stops_at_is_refused_by_key(keys, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        files_of("verl", VERL | keys, LLAMA)


def test_scoring_in_other_rows_than_training_is_named():
    start = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=4 "
    start += "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    named = {
        rows: read_files(
            {"a.sh": f"{start} actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={rows}"}
        )
        for rows in (4, 8)
    }
    assert [len(value.of(Fate.NOT_MODELLED)) for value in named.values()] == [0, 1]
    assert named[4].setup["objective"] == "rloo"


def test_overrides_of_a_users_own_script_are_changed_in_place():
    """Its dynamic batches become plain ones, for scoring too; a new key comes after the last of its own."""
    text = (FIXTURES / "verl" / "grpo_trainer_qwen3_8b_fsdp.sh").read_text(encoding="utf-8")
    changes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 40}
    changes |= {"steps_per_generation": 160, "vllm_gpu_memory_utilization": 0.4}
    diff = changed_files({"run.sh": text}, changes).diff.splitlines()
    micro = "micro_batch_size_per_gpu=4"
    ref, actor, rollout = (f"actor_rollout_ref.{word}" for word in ("ref", "actor", "rollout"))
    assert [line for line in diff[2:] if line.startswith("+")] == [
        f"+  {actor}.use_dynamic_bsz=False \\",
        f"+  {rollout}.gpu_memory_utilization=0.4 \\",
        f"+  {rollout}.log_prob_use_dynamic_bsz=False \\",
        f"+  {ref}.log_prob_use_dynamic_bsz=False \\",
        f"+  trainer.total_epochs=15 {actor}.ppo_{micro} {rollout}.log_prob_{micro} {ref}.log_prob_{micro}",
    ]


SWIFT_CHOICES = {
    key: CHOICES[key]
    for key in (
        *("beta", "num_generations", "num_iterations", "max_completion_length"),
        *("max_prompt_length", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size"),
        *("vllm_enable_sleep_mode", "vllm_max_model_length", "generation_offload_model"),
        *("generation_offload_optimizer", "per_device_train_batch_size"),
    )
} | {"use_vllm": (False, True), "vllm_max_num_seqs": (None, 64), "steps_per_generation": (16, 32)}


def test_ms_swifts_keys_of_grpo_are_written_as_they_are_read():
    """100 random runs; without a word for the share or the rows at once, ms-swift takes its own."""
    tool, random_ = TOOLS["ms_swift"], random.Random(3)
    plain = {"args.model": LLAMA.hub_id, "args.rlhf_type": "grpo", "args.use_vllm": True}
    plain |= {"args.max_length": 1024, "args.sleep_level": 1}
    base = said(tool, plain, LLAMA)
    for _ in range(100):
        keys = base | {key: random_.choice(of) for key, of in SWIFT_CHOICES.items()}
        keys["max_length"] = keys["max_prompt_length"] + keys["max_completion_length"]
        theirs = theirs_of(tool, keys, LLAMA)
        assert said(tool, theirs, LLAMA) == sayable(keys, "ms_swift")
        assert theirs["args.max_length"] == keys["max_prompt_length"]

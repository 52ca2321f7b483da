"""verl's commands and files are read as the runs that they describe, and its step is estimated as its code runs it.

Expected values: by hand from the keys of verl's examples at 1dda039 and v0.5.0, which ``fixtures/verl`` has in our own
layout, and from verl 0.9.1's source at the lines named in ``estimator/tools/known/verl.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator.answer.estimate import estimate
from estimator.sources import catalog
from estimator.tools.imported import Fate, Imported, read_files
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Phase
from tests.tools.test_real_files import read

QWEN_7B = catalog.model("Qwen/Qwen2.5-7B")
H100 = catalog.gpu("H100-SXM5-80GB")
RUN: dict[str, Any] = {
    "objective": "grpo",
    "loss": "selective_verl",
    "dtype": "float32",
    "strategy": "fsdp",
    "num_gpus": 8,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": True,
    "attn_implementation": "flash_attention_2",
    "max_length": 2048,
    "max_completion_length": 1024,
    "use_vllm": True,
    "vllm_gpu_memory_utilization": 0.5,
    "vllm_enable_sleep_mode": True,
    "vllm_max_model_length": 2048,
}


def answer(**keys: Any) -> Estimate:
    return estimate(QWEN_7B, H100, TrainingSetup(**(RUN | keys)))


def command(*words: str) -> Imported:
    given = " ".join(("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo", *words))
    return read_files({"run.sh": given})


def test_a_generation_is_cut_into_steps_and_micro_batches_of_each_gpu():
    # 1,024 prompts of 5 answers on 8 GPUs: 640 rows each; a step has 256 · 5 / 8 = 160, in micro-batches of 40
    run = read("verl/grpo_trainer_qwen2-7b.sh").setup
    assert (run["per_device_train_batch_size"], run["gradient_accumulation_steps"]) == (40, 4)
    assert run["steps_per_generation"] == 640 / 40
    assert (run["max_length"], run["max_completion_length"]) == (512 + 1024, 1024)
    assert (run["num_gpus"], run["num_generations"], run["beta"]) == (8, 5, 0.001)
    assert run["vllm_tensor_parallel_size"] == 2
    assert run["vllm_gpu_memory_utilization"] == 0.6
    assert run["vllm_enable_sleep_mode"] is True


def test_dynamic_batches_hold_as_many_whole_rows_as_their_tokens():
    # 24,576 tokens are 8 rows of 1,024 + 2,048; 256 · 5 / 8 = 160 rows are 20 of 8
    run = read("verl/grpo_trainer_qwen3_8b_fsdp.sh").setup
    assert (run["per_device_train_batch_size"], run["gradient_accumulation_steps"]) == (8, 20)


def test_silent_defaults_are_those_of_its_yaml():
    # verl/trainer/config/_generated_ppo_trainer.yaml: FSDP 1, float32, share 0.5, 256 rows, 8,192 tokens, two GPUs
    run = command("actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.n=8").setup
    wanted = {
        "fsdp_version": 1,
        "dtype": "float32",
        "vllm_gpu_memory_utilization": 0.5,
        "vllm_max_num_seqs": 256,
        "vllm_max_num_batched_tokens": 8192,
        "vllm_tensor_parallel_size": 2,
        "generation_offload_model": False,
        "beta": 0.0,
        "optim": "adamw_torch",
        "save_strategy": "no",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",  # utils/checkpoint/fsdp_checkpoint_manager.py:311
    }
    assert {key: run[key] for key in wanted} == wanted


def test_a_yaml_of_its_keys_is_read():
    run = read("verl/grpo_overrides.yaml").setup
    assert (run["num_gpus"], run["gpus_per_node"], run["fsdp_version"]) == (16, 8, 2)
    assert run["dtype"] == "bfloat16"
    assert run["num_generations"] == 8  # PyYAML reads n as a text
    assert run["generation_offload_model"] is True
    assert run["generation_offload_optimizer"] is True


def test_adapters_take_the_dtype_of_their_base():
    run = read("verl/tuning_lora_qwen3_8b_fsdp.sh").setup
    assert (run["method"], run["lora_r"], run["lora_alpha"]) == ("lora", 64, 32)
    assert run["lora_dropout"] == 0.0
    assert run["autocast_adapter_dtype"] is False


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("verl/grpo_trainer_qwen3_8b_megatron.sh", "strategy"),
        ("verl/ppo_trainer_qwen3_8b_fsdp.sh", "objective"),
    ],
)
def test_megatron_and_critics_are_refused_by_name(path, key):
    run = read(path)
    assert key in run.refused
    assert key not in run.setup


def test_what_is_not_modelled_is_named():
    run = command(
        "actor_rollout_ref.rollout.name=sglang actor_rollout_ref.model.use_fused_kernels=True"
        " actor_rollout_ref.actor.entropy_coeff=0.001 actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"
    )
    named = {one.key.rpartition(".")[2] for one in run.of(Fate.NOT_MODELLED)}
    assert named == {"name", "use_fused_kernels", "entropy_coeff", "ulysses_sequence_parallel_size"}


SCRIPT = """
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' && echo npu || echo gpu)}
MACHINE=${MACHINE:-}
size=${SIZE:-}
case "${DEVICE}" in
    gpu)
        size=${size:-256}
        case "${MACHINE}" in
            gb200)
                size=64
                ;;
            *)
                more=(+actor_rollout_ref.rollout.n=8)
                ;;
        esac
        ;;
    npu)
        size=16
        ;;
esac
DATA=(
    algorithm.adv_estimator=grpo
    data.train_batch_size=${size}
    data.max_prompt_length=512  # a remark
)
DATA+=(actor_rollout_ref.model.path="Qwen/Qwen3-8B")
LAUNCH=(uv run --extra vllm python3)
"${LAUNCH[@]}" -m verl.trainer.main_ppo \\
    "${DATA[@]}" \\
    "${more[@]}" \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    "$@"
"""


def test_arrays_and_cases_of_a_script_are_followed():
    # 256 prompts of 8 answers on 8 GPUs, in micro-batches of 4: 64 of them
    run = read_files({"run.sh": SCRIPT})
    assert run.setup["steps_per_generation"] == 256 * 8 / 8 / 4
    assert run.setup["model"] == "Qwen/Qwen3-8B"
    assert not run.of(Fate.UNKNOWN)


# --- the step --------------------------------------------------------------------------------------


def test_the_logits_of_every_token_are_kept_once_in_16_bits():
    # by hand: 2 rows of 2,048 tokens, 152,064 words; backward writes over them (flash-attn's inplace_backward)
    loss = answer().phases[Phase.LOSS]
    assert loss.resident[Component.LOGITS] == 2 * 2 * 2048 * QWEN_7B.vocab_size


def test_gradients_are_reduced_in_each_micro_step():
    # verl's use_no_sync_for_gradient_accumulation is off: shards of float32, an eighth of the model
    shard = 4 * 7_615_616_512 // 8
    step = answer().phases[Phase.FORWARD].resident[Component.GRADIENTS]
    assert shard <= step <= shard * 1.001
    whole = answer(loss=None, fsdp_version=2).phases[Phase.FORWARD].resident[Component.GRADIENTS]
    assert whole > 3 * shard  # TRL's lie whole until the last


@pytest.mark.parametrize("version", [1, 2])
def test_its_reference_rests_on_the_cpu_but_for_the_root_of_fsdp_1(version):
    asked = answer(fsdp_version=version, beta=0.001).timeline.resident
    # of FSDP 1 the root stays gathered in bfloat16: embedding, head and final norm
    root = 2 * (2 * 152_064 * 3584 + 3584)
    held = asked[Component.REFERENCE_MODEL]
    assert held < 2**20 if version == 2 else root <= held < root + 2**20


def test_rloo_has_the_passes_of_grpo():
    # trainer/ppo/core_algos.py: the two differ in the arithmetic of the advantage alone
    asked, same = (answer(objective=word, beta=0.001) for word in ("grpo", "rloo"))
    assert asked.phases == same.phases
    assert asked.time == same.time


def test_weights_and_states_wait_on_the_cpu_while_vllm_generates():
    plain = answer()
    both = answer(generation_offload_model=True, generation_offload_optimizer=True)
    gone = plain.phases[Phase.GENERATION].bytes - both.phases[Phase.GENERATION].bytes
    parts = plain.timeline.resident
    assert gone == parts[Component.WEIGHTS] + parts[Component.OPTIMIZER_STATES]
    assert both.host_bytes >= 8 * gone
    assert both.phases[Phase.BACKWARD] == plain.phases[Phase.BACKWARD]
    assert both.time.step_seconds.low > plain.time.step_seconds.low
    alone = {"generation_offload_model": True, "vllm_mode": "server"}
    with pytest.raises(ValueError, match="is for a vLLM on the GPUs that train"):
        answer(**alone)


def test_vllm_keeps_buffers_for_the_rows_it_runs_at_once():
    # v1/worker/gpu/sample/penalties.py:43-50: 4 bytes and a bit of each word for each row
    few, many = (answer(vllm_max_num_seqs=rows).phases[Phase.FORWARD] for rows in (2, 4))
    kept = many.resident[Component.INFERENCE_ENGINE] - few.resident[Component.INFERENCE_ENGINE]
    words = 2 * QWEN_7B.vocab_size
    assert kept - (4 * words + words // 8) in range(0, 3 * 9 * 2**20)  # and one or two CUDA graphs


def test_vllm_is_a_process_of_its_own_whose_context_is_counted():
    # an H100's context, 462 to 926 MiB, once for the trainer and once for vLLM; a server has GPUs of its own
    both, alone = answer(), answer(vllm_mode="server")
    assert (both.context_bytes.low, both.context_bytes.high) == (2 * 462 * 2**20, 2 * 926 * 2**20)
    assert (alone.context_bytes.low, alone.context_bytes.high) == (462 * 2**20, 926 * 2**20)
    exchange, need = 256 * 2**20, both.decisive.bytes
    assert both.need_low_bytes == need + exchange + both.context_bytes.low
    assert "whose CUDA context is counted beside its share" in " ".join(both.assumptions)


def test_ms_swift_s_eager_vllm_is_named_as_less_memory():
    # ms-swift 4.6.0, swift/rlhf_trainers/args_mixin.py:44 and rollout_mixin.py:515
    words = (
        "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B --use_vllm true --vllm_enforce_eager"
    )
    eager, usual = (
        [one.key for one in read_files({"run.sh": f"{words} {flag}"}).of(Fate.NOT_MODELLED)]
        for flag in ("true", "false")
    )
    assert any("vllm_enforce_eager" in key for key in eager)
    assert not any("vllm_enforce_eager" in key for key in usual)


def test_ms_swift_offloads_and_scores_whole_logits_against_a_reference():
    # ms-swift 4.6.0: rlhf_args.py:242 and :357, args_mixin.py:41 and :190, grpo_trainer.py:1580
    run = read_files(
        {
            "run.sh": "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B --tuner_type full --max_length 2048"
            " --use_vllm true --vllm_mode colocate --sleep_level 1 --offload_model true --offload_optimizer true"
        }
    ).setup
    wanted = {
        "loss": "selective",
        "beta": 0.04,
        "max_length": 2048 + 512,
        "max_completion_length": 512,
        "vllm_max_num_seqs": 256,
        "generation_offload_model": True,
        "generation_offload_optimizer": True,
    }
    assert {key: run[key] for key in wanted} == wanted

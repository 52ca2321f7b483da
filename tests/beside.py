"""What a key of the contract needs beside it to be anything but its default."""

from __future__ import annotations

from estimator.contract.setups import IMAGE_KEYS
from tests.test_vision import internvl, pixtral, qwen2_5, smolvlm

BESIDE: dict[str, dict[str, object]] = {
    "fp8_backend": {"mixed_precision": "fp8"},
    "fp8_pad_inner_dim": {"mixed_precision": "fp8"},
    "dp_replicate_size": {"num_gpus": 8, "strategy": "hsdp", "dp_replicate_size": 4},
    "tp_size": {"num_gpus": 2, "save_only_model": True},
    "layers_to_transform": {"lora_target_modules": ["q_proj"], "method": "lora"},
    "optimizer_in_bwd": {"max_grad_norm": 0.0},
    "model_class": {"model": "google/gemma-3-4b-it"},
    "num_gpus": {"strategy": "ddp"},
    "strategy": {"num_gpus": 2},
    "optim_args": {"optim": "sgd"},
    "checkpoint_around_fsdp": {
        "num_gpus": 2,
        "strategy": "fsdp",
        "fsdp_version": 1,
        "gradient_checkpointing": True,
        "use_reentrant": True,
    },
    "fsdp_version": {"num_gpus": 2, "strategy": "fsdp"},
    "offload_optimizer": {"num_gpus": 2, "strategy": "zero3"},
    "offload_param": {"num_gpus": 2, "strategy": "zero3"},
    "tool_version": {"tool": "trl"},
    "max_prompt_length": {"objective": "dpo"},
    "precompute_ref_log_probs": {"objective": "dpo"},
    "loss_type": {"objective": "dpo"},
    "beta": {"objective": "grpo"},
    "max_completion_length": {"objective": "grpo"},
    "num_generations": {"objective": "grpo"},
    "steps_per_generation": {"objective": "grpo"},
    "num_iterations": {"objective": "grpo"},
    "use_vllm": {"objective": "grpo"},
    "vllm_mode": {"objective": "grpo", "use_vllm": True},
    "vllm_gpu_memory_utilization": {"objective": "grpo", "use_vllm": True},
    "vllm_enable_sleep_mode": {"objective": "grpo", "use_vllm": True},
    "vllm_tensor_parallel_size": {
        "objective": "grpo",
        "use_vllm": True,
        "num_gpus": 2,
        "strategy": "zero3",
    },
    "vllm_max_model_length": {"objective": "grpo", "use_vllm": True},
    "vllm_data_parallel_size": {"objective": "grpo", "use_vllm": True, "vllm_mode": "server"},
    "vllm_max_num_seqs": {"objective": "grpo", "use_vllm": True},
    "vllm_max_num_batched_tokens": {"objective": "grpo", "use_vllm": True},
    "generation_offload_model": {"objective": "grpo", "use_vllm": True},
    "generation_offload_optimizer": {"objective": "grpo", "use_vllm": True},
    "use_transformers_continuous_batching": {"objective": "grpo"},
    "ds3_gather_for_generation": {"objective": "grpo", "num_gpus": 2, "strategy": "zero3"},
    "num_labels": {"objective": "sequence_classification"},
    "mini_batch_size": {"objective": "embedding"},
    "use_reentrant": {"gradient_checkpointing": True},
    "selective_checkpointing": {"gradient_checkpointing": True},
    "torch_compile_mode": {"torch_compile": True},
    "torch_compile_backend": {"torch_compile": True},
}
for _key in (
    "num_cpu_threads_per_process",
    "host_cores",
    "host_memory_bandwidth_gb_per_s",
    "pcie_generation",
    "pcie_lanes",
):
    BESIDE[_key] = {"num_gpus": 2, "strategy": "zero3", "offload_optimizer": "cpu"}
for _key in IMAGE_KEYS:
    BESIDE[_key] = {"model": "google/gemma-3-4b-it"}
for _key in ("image_height", "image_width", "do_pan_and_scan"):
    BESIDE[_key] = {"model": "google/gemma-3-4b-it", "images_per_example": 1}
BESIDE["vision_gradient_checkpointing"] |= {"images_per_example": 1}
for _key in (
    "video_frames",
    "video_height",
    "video_width",
    "video_min_pixels",
    "video_max_pixels",
    "cap_pixels_per_frame",
):
    BESIDE[_key] = {"model": qwen2_5(2), "videos_per_example": 1, "max_length": 8192}
BESIDE["videos_per_example"] = {"model": qwen2_5(2), "max_length": 8192}
BESIDE["video_height"] |= {"video_width": 64}
for _key, _model in {
    "min_pixels": qwen2_5(2),
    "max_pixels": qwen2_5(2),
    "do_image_splitting": smolvlm(),
    "image_longest_edge": pixtral(2),
    "crop_to_patches": internvl(2),
    "max_patches": internvl(2),
    "max_soft_tokens": "google/gemma-4-E2B-it",
}.items():
    BESIDE[_key] = {"model": _model, "images_per_example": 1, "max_length": 8192}

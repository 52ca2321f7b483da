"""What a key of the contract needs beside it to be anything but its default."""

from __future__ import annotations

from estimator.contract.setups import IMAGE_KEYS
from tests.test_vision import internvl, pixtral, qwen2_5, smolvlm

TWO = {"num_gpus": 2}
FSDP_1 = TWO | {"strategy": "fsdp", "fsdp_version": 1}
DPO, GRPO = {"objective": "dpo"}, {"objective": "grpo"}
VLLM = GRPO | {"use_vllm": True}
CHECKPOINTED, COMPILED = {"gradient_checkpointing": True}, {"torch_compile": True}
GEMMA_3, GEMMA_4 = {"model": "google/gemma-3-4b-it"}, {"model": "google/gemma-4-E2B-it"}
IMAGE = {"images_per_example": 1}
LONG = IMAGE | {"max_length": 8192}
VIDEO = {"model": qwen2_5(2), "videos_per_example": 1, "max_length": 8192}

BESIDE: dict[str, dict[str, object]] = dict.fromkeys(IMAGE_KEYS, GEMMA_3) | {
    name: beside
    for names, beside in (
        ("fp8_backend fp8_pad_inner_dim", {"mixed_precision": "fp8"}),
        ("dp_replicate_size", {"num_gpus": 8, "strategy": "hsdp", "dp_replicate_size": 4}),
        ("tp_size", TWO | {"save_only_model": True}),
        ("layers_to_transform", {"lora_target_modules": ["q_proj"], "method": "lora"}),
        ("optimizer_in_bwd", {"max_grad_norm": 0.0}),
        ("model_class", GEMMA_3),
        ("num_gpus", {"strategy": "ddp"}),
        ("strategy", TWO),
        ("optim_args", {"optim": "sgd"}),
        ("checkpoint_around_fsdp", FSDP_1 | CHECKPOINTED | {"use_reentrant": True}),
        ("fsdp_version", TWO | {"strategy": "fsdp"}),
        ("offload_optimizer offload_param", TWO | {"strategy": "zero3"}),
        (
            "num_cpu_threads_per_process host_cores host_memory_bandwidth_gb_per_s pcie_generation pcie_lanes",
            TWO | {"strategy": "zero3", "offload_optimizer": "cpu"},
        ),
        ("tool_version", {"tool": "trl"}),
        ("max_prompt_length precompute_ref_log_probs loss_type", DPO),
        ("beta max_completion_length num_generations steps_per_generation", GRPO),
        ("num_iterations use_vllm use_transformers_continuous_batching", GRPO),
        ("ds3_gather_for_generation", GRPO | TWO | {"strategy": "zero3"}),
        ("vllm_mode vllm_gpu_memory_utilization vllm_enable_sleep_mode", VLLM),
        ("vllm_max_model_length vllm_max_num_seqs vllm_max_num_batched_tokens", VLLM),
        ("generation_offload_model generation_offload_optimizer", VLLM),
        ("vllm_tensor_parallel_size", VLLM | TWO | {"strategy": "zero3"}),
        ("vllm_data_parallel_size", VLLM | {"vllm_mode": "server"}),
        ("num_labels", {"objective": "sequence_classification"}),
        ("mini_batch_size", {"objective": "embedding"}),
        ("use_reentrant selective_checkpointing", CHECKPOINTED),
        ("torch_compile_mode torch_compile_backend", COMPILED),
        ("image_height image_width do_pan_and_scan", GEMMA_3 | IMAGE),
        ("vision_gradient_checkpointing", GEMMA_3 | IMAGE),
        ("video_frames video_min_pixels video_max_pixels cap_pixels_per_frame video_width", VIDEO),
        ("video_height", VIDEO | {"video_width": 64}),
        ("videos_per_example", {"model": qwen2_5(2), "max_length": 8192}),
        ("min_pixels max_pixels", LONG | {"model": qwen2_5(2)}),
        ("do_image_splitting", LONG | {"model": smolvlm()}),
        ("image_longest_edge", LONG | {"model": pixtral(2)}),
        ("crop_to_patches max_patches", LONG | {"model": internvl(2)}),
        ("max_soft_tokens", LONG | GEMMA_4),
    )
    for name in names.split()
}

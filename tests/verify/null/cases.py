"""The runs that are played: real layers, few of them, each optimizer, objective and strategy once at least."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from estimator.values.specs import Optimizer

GPU = "A100-SXM4-80GB"

Given = dict[str, Any]


def _llama(**keys: Any) -> Given:
    return {"model_type": "llama", "max_position_embeddings": 8192, **keys}


SMOL = _llama(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=8,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
)
"""Layers of SmolLM2-135M."""
LLAMA = _llama(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=4,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=True,
)
"""Layers of Llama-3.2-1B."""
LLAMA_8B = _llama(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=2,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=False,
)
"""Layers of Llama-3.1-8B."""
TINY_LLAMA = _llama(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=6,
    num_attention_heads=32,
    num_key_value_heads=4,
    tie_word_embeddings=False,
)
"""Layers of TinyLlama-1.1B: a small vocabulary, an untied head."""
QWEN = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 6,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
"""Layers of Qwen2.5-0.5B."""
QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
"""Layers of Qwen3-0.6B."""
MISTRAL = {
    "model_type": "mistral",
    "vocab_size": 32768,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
"""Layers of Mistral-7B-v0.3."""
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 6,
    "n_head": 12,
    "n_positions": 1024,
}
"""Layers of GPT-2."""
GEMMA = {
    "model_type": "gemma3_text",
    "vocab_size": 262144,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "tie_word_embeddings": True,
}
"""Layers of Gemma 3 1B."""

CHECKPOINTED = {"gradient_checkpointing": True}
FLOAT32 = {"dtype": "float32"}
GROWING = {"expandable_segments": True}
NO_AUTOCAST = {"mixed_precision": "no"}
NOT_PLAYED = (Optimizer.GALORE_ADAMW,)
"""Its SVD has a workspace whose size only cuSOLVER knows."""
FLOAT32_ALONE = (Optimizer.RMSPROP_BNB, Optimizer.RMSPROP_BNB_8BIT)
"""Optimizers whose kernels bitsandbytes 0.50 has for 32-bit weights alone (backends/cuda/ops.py)."""


def _run(model: Given, method: str, batch: int, length: int, **keys: Any) -> Given:
    return {
        "model": model,
        "gpu": GPU,
        "method": method,
        "per_device_train_batch_size": batch,
        "max_length": length,
        **keys,
    }


def one_gpu() -> Iterator[Given]:
    """A Trainer's runs on one GPU."""
    for optim in (optimizer for optimizer in Optimizer if optimizer not in NOT_PLAYED):
        wide = FLOAT32 if optim in FLOAT32_ALONE else {}
        yield _run(TINY_LLAMA, "full", 1, 512, optim=optim.value, **NO_AUTOCAST, **wide)
    yield _run(SMOL, "full", 4, 512)
    yield _run(SMOL, "full", 8, 1024, **FLOAT32, **CHECKPOINTED)
    yield _run(SMOL, "full", 2, 1024, **FLOAT32, gradient_accumulation_steps=4)
    yield _run(SMOL, "full", 2, 1024, gradient_accumulation_steps=2, max_grad_norm=0)
    yield _run(LLAMA, "full", 1, 2048, **CHECKPOINTED)
    yield _run(LLAMA, "full", 2, 1024, optim="adamw_torch", **FLOAT32)
    yield _run(LLAMA, "full", 1, 1024, optim="adafactor", **CHECKPOINTED)
    yield _run(LLAMA, "full", 4, 512, attn_implementation="eager", **NO_AUTOCAST)
    yield _run(LLAMA, "full", 4, 512, padded=True, **NO_AUTOCAST)
    yield _run(LLAMA, "full", 2, 2048, attn_implementation="eager", **NO_AUTOCAST)
    yield _run(LLAMA, "full", 2, 1024, eval_strategy="epoch", per_device_eval_batch_size=8)
    yield _run(QWEN, "full", 2, 1024, use_reentrant=True, **CHECKPOINTED)
    yield _run(QWEN, "full", 1, 4096, **NO_AUTOCAST, **CHECKPOINTED)
    yield _run(QWEN3, "full", 2, 1024)
    yield _run(GPT2, "full", 8, 512, **FLOAT32, **NO_AUTOCAST)
    yield _run(GEMMA, "full", 1, 1024)
    yield _run(MISTRAL, "full", 1, 2048, optim="adamw_bnb_8bit", **CHECKPOINTED)
    yield _run(LLAMA_8B, "lora", 2, 1024)
    yield _run(LLAMA, "lora", 4, 1024, lora_target_modules=["q_proj", "v_proj"], **CHECKPOINTED)
    yield _run(MISTRAL, "lora", 1, 4096, lora_r=256, **CHECKPOINTED)
    yield _run(QWEN, "lora", 2, 1024, optim="adamw_torch", **NO_AUTOCAST)
    yield _run(QWEN3, "lora", 2, 1024, gradient_accumulation_steps=2, **FLOAT32)
    yield _run(GEMMA, "lora", 2, 512, autocast_adapter_dtype=False, lora_dropout=0)
    yield _run(GEMMA, "lora", 1, 256, **CHECKPOINTED)
    yield _run(LLAMA_8B, "qlora", 1, 2048, **CHECKPOINTED)
    yield _run(LLAMA_8B, "qlora", 2, 1024, optim="paged_adamw_8bit")
    yield _run(MISTRAL, "qlora", 1, 2048, prepare_model_for_kbit_training=True, **CHECKPOINTED)
    yield _run(QWEN, "qlora", 2, 1024, bnb_4bit_use_double_quant=False, bnb_4bit_quant_type="fp4")
    yield _run(SMOL, "qlora", 4, 2048, prepare_model_for_kbit_training=True, **CHECKPOINTED)
    yield _run(GEMMA, "qlora", 1, 128, prepare_model_for_kbit_training=True)
    yield _run(TINY_LLAMA, "lora", 2, 1024, load_in_8bit=True)
    yield _run(LLAMA, "full", 1, 2048, **GROWING, **CHECKPOINTED)
    yield _run(QWEN, "full", 2, 1024, **GROWING, **FLOAT32)
    yield _run(LLAMA_8B, "lora", 2, 1024, **GROWING, roundup_power2_divisions=16)
    yield _run(TINY_LLAMA, "full", 1, 1024, roundup_power2_divisions=4)
    yield _run(LLAMA, "full", 2, 1024, max_split_size_mb=64)
    yield _run(QWEN, "full", 2, 1024, max_split_size_mb=128, **FLOAT32, **CHECKPOINTED)
    yield _run(LLAMA_8B, "lora", 2, 1024, max_split_size_mb=32)
    yield _run(TINY_LLAMA, "full", 1, 1024, max_split_size_mb=32, **GROWING)
    yield _run(LLAMA, "full", 2, 1024, torch_empty_cache_steps=1)
    yield _run(QWEN, "full", 2, 1024, torch_empty_cache_steps=4, **FLOAT32, **CHECKPOINTED)


CHUNKED = {"loss": "chunked_trl"}
TRL_QLORA = {
    "autocast_adapter_dtype": False
}  # trl 1.16 casts the adapters of a packed base to bfloat16


def objectives() -> Iterator[Given]:
    """Runs of TRL's trainers and of a classifier on one GPU."""
    sft, dpo, kto = ({"objective": word, **CHUNKED} for word in ("sft", "dpo", "kto"))
    half, prompted = {"completion_fraction": 0.5}, {"max_prompt_length": 256}
    yield _run(LLAMA, "full", 2, 1024, **sft, **half, **CHECKPOINTED)
    yield _run(QWEN, "lora", 4, 1024, **sft)
    yield _run(
        LLAMA_8B, "qlora", 1, 2048, optim="adamw_bnb_8bit", **sft, **TRL_QLORA, **CHECKPOINTED
    )
    yield _run(QWEN, "full", 2, 1024, **dpo, **prompted, **CHECKPOINTED)
    yield _run(LLAMA, "lora", 2, 1024, **dpo, **prompted)
    yield _run(LLAMA_8B, "qlora", 1, 1024, **dpo, **prompted, **TRL_QLORA, **CHECKPOINTED)
    yield _run(SMOL, "full", 4, 1024, **kto, **prompted)
    yield _run(LLAMA, "lora", 4, 1024, **kto, **prompted, **CHECKPOINTED)
    yield _run(SMOL, "full", 2, 1024, objective="orpo", **prompted, **FLOAT32)
    yield _run(QWEN, "lora", 2, 1024, objective="orpo", **prompted, **CHECKPOINTED)
    yield _run(LLAMA_8B, "qlora", 1, 512, objective="orpo", **prompted, **TRL_QLORA)
    yield _run(QWEN, "full", 2, 1024, objective="reward", **CHECKPOINTED)
    yield _run(LLAMA_8B, "lora", 2, 1024, objective="reward")
    yield _run(QWEN, "full", 4, 1024, objective="sequence_classification", num_labels=3)
    yield _run(LLAMA_8B, "lora", 4, 1024, objective="sequence_classification", **CHECKPOINTED)
    answers = {"max_completion_length": 128, "num_generations": 4, **prompted, **CHUNKED}
    yield _run(QWEN, "full", 4, 384, objective="grpo", **answers, **CHECKPOINTED)
    yield _run(LLAMA, "lora", 4, 384, objective="grpo", beta=0.04, **answers)
    yield _run(QWEN, "lora", 4, 384, objective="rloo", **answers)


def ranks() -> Iterator[Given]:
    """A Trainer as rank 0 of eight under each strategy."""
    for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp"):
        shared = {"num_gpus": 8, "strategy": strategy}
        master = FLOAT32 if strategy in ("ddp", "fsdp") else {}
        yield _run(TINY_LLAMA, "full", 1, 1024, **shared, **master)
        yield _run(TINY_LLAMA, "full", 2, 2048, **shared, **master, **CHECKPOINTED)
        yield _run(LLAMA_8B, "lora", 1, 1024, **shared, **CHECKPOINTED)
    first = {"num_gpus": 8, "strategy": "fsdp", "fsdp_version": 1}
    yield _run(TINY_LLAMA, "full", 1, 1024, **first, **FLOAT32)
    yield _run(TINY_LLAMA, "full", 2, 2048, **first, **FLOAT32, **CHECKPOINTED)
    yield from shards()
    yield from divided()
    yield from meshed()
    yield _run(
        TINY_LLAMA, "full", 1, 512, num_gpus=8, strategy="zero2", gradient_accumulation_steps=2
    )
    yield _run(LLAMA, "full", 1, 1024, num_gpus=8, strategy="ddp", **NO_AUTOCAST)
    yield _run(LLAMA, "full", 1, 1024, num_gpus=8, strategy="fsdp_grad_op", **FLOAT32)


def shards() -> Iterator[Given]:
    """A Trainer as rank 0 under FSDP 2, and under FSDP 1."""
    second, stays = ({"num_gpus": 8, "strategy": word} for word in ("fsdp", "fsdp_grad_op"))
    replicas = {"num_gpus": 8, "strategy": "hsdp", "dp_replicate_size": 2}
    evaluates = {"eval_strategy": "epoch", "per_device_eval_batch_size": 8}
    yield _run(TINY_LLAMA, "full", 1, 1024, **replicas)
    yield _run(MISTRAL, "lora", 1, 2048, **replicas, **CHECKPOINTED)
    yield _run(QWEN, "full", 2, 1024, **second)
    yield _run(QWEN, "full", 2, 1024, **second, use_reentrant=True, **CHECKPOINTED)
    yield _run(TINY_LLAMA, "full", 1, 1024, **second, gradient_accumulation_steps=2)
    yield _run(LLAMA, "full", 2, 1024, **second, **evaluates, **CHECKPOINTED)
    yield _run(GPT2, "full", 8, 512, **second, **FLOAT32, **NO_AUTOCAST)
    yield _run(GEMMA, "full", 1, 1024, **second, **CHECKPOINTED)
    yield _run(LLAMA_8B, "qlora", 1, 1024, **second, **CHECKPOINTED)
    yield _run(LLAMA_8B, "full", 1, 512, num_gpus=64, strategy="fsdp", **CHECKPOINTED)
    yield _run(QWEN3, "lora", 2, 1024, **stays)
    yield _run(MISTRAL, "full", 1, 1024, **stays, optim="adamw_torch", **NO_AUTOCAST)
    first = {"fsdp_version": 1}
    yield _run(TINY_LLAMA, "full", 1, 1024, **second, **first)
    yield _run(QWEN, "full", 2, 1024, **second, **first, **CHECKPOINTED)
    yield _run(MISTRAL, "lora", 1, 2048, **second, **first, **CHECKPOINTED)
    yield _run(TINY_LLAMA, "full", 1, 1024, **second, **first, gradient_accumulation_steps=2)
    yield _run(GPT2, "full", 8, 512, **second, **first, **FLOAT32, **NO_AUTOCAST)
    yield _run(QWEN3, "lora", 2, 1024, **stays, **first)
    yield _run(LLAMA, "full", 2, 1024, **stays, **first, **FLOAT32, **evaluates)


def divided() -> Iterator[Given]:
    """A rank of several that divide every layer."""
    two, four = ({"num_gpus": ranks, "tp_size": ranks, "save_strategy": "no"} for ranks in (2, 4))
    yield _run(TINY_LLAMA, "full", 1, 1024, **two)
    yield _run(TINY_LLAMA, "full", 2, 2048, **two, **CHECKPOINTED, attn_implementation="eager")
    yield _run(TINY_LLAMA, "full", 2, 1024, **four, **NO_AUTOCAST, gradient_accumulation_steps=2)
    yield _run(LLAMA_8B, "full", 4, 1024, **four, **CHECKPOINTED, **NO_AUTOCAST)
    yield _run(MISTRAL, "full", 1, 2048, **two, **NO_AUTOCAST)


def meshed() -> Iterator[Given]:
    """A rank of a mesh: FSDP 2 shards what each rank has of every layer."""
    mesh = {"num_gpus": 4, "tp_size": 2, "strategy": "fsdp", "save_strategy": "no"}
    yield _run(TINY_LLAMA, "full", 1, 1024, **mesh)
    yield _run(TINY_LLAMA, "full", 2, 2048, **mesh, **CHECKPOINTED, attn_implementation="eager")
    yield _run(TINY_LLAMA, "full", 2, 1024, **mesh, **NO_AUTOCAST, gradient_accumulation_steps=2)
    yield _run(
        LLAMA_8B, "full", 2, 1024, **{**mesh, "num_gpus": 8}, **CHECKPOINTED, dtype="float32"
    )
    yield _run(MISTRAL, "full", 1, 2048, **{**mesh, "num_gpus": 16, "tp_size": 4}, **NO_AUTOCAST)
    replicas = {**mesh, "strategy": "hsdp", "dp_replicate_size": 2}
    yield _run(TINY_LLAMA, "full", 2, 2048, **{**replicas, "num_gpus": 8}, **CHECKPOINTED)
    yield _run(TINY_LLAMA, "full", 1, 1024, **replicas)


def cases() -> Iterator[Given]:
    """All runs."""
    yield from one_gpu()
    yield from objectives()
    yield from ranks()

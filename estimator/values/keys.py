"""The keys of the JSON contract, collected from the facets that declare them.

The contract, links, command-line flags and the page's widgets all read this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from estimator.values.declaration import Key, rows
from estimator.values.kinds import Flag, Kind, Number, ShortText, WholeNumber
from estimator.values.setup import FACETS, KEY_FACET, READ_INTO_OTHERS, TrainingSetup
from estimator.values.specs import COUNTS, HOST_RATES, NETWORK, RATE_SPAN, RATES

DEFAULT = TrainingSetup()


def default_of(key: str) -> Any:
    """A setup's default of a key; None for a key that is no setup's, such as ``tool``."""
    return DEFAULT.value(key) if key in KEY_FACET else None


GROUPS: Mapping[str, tuple[Key, ...]] = MappingProxyType(
    {
        title: (
            *(replace(row, facet=facet) for row in rows(of)),
            *READ_INTO_OTHERS.get(facet, ()),
        )
        for facet, (of, title) in FACETS.items()
    }
)
"""All keys except ``model`` and ``gpu``, grouped as the help lists them."""

KEYS: tuple[Key, ...] = tuple(key for group in GROUPS.values() for key in group)

BY_NAME: Mapping[str, Key] = MappingProxyType(
    {name: key for key in KEYS for name in (key.name, *key.aliases)}
)
"""Each key by its name and aliases."""

LARGEST: Mapping[str, int] = MappingProxyType(
    {key.name: key.kind.high for key in KEYS if isinstance(key.kind, WholeNumber)}
)
"""The maximum of each integer key. Our choice, far above any real run; the minimum is 1."""

SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        word: key
        for key, words in {
            "num_gpus": """world_size n_gpus n_gpu gpus gpu_count devices dp_size
                dp_shard_size data_parallel_size dp""",
            "max_length": """seq_len seq_length seqlen sequence_length max_sequence_length context context_length
                context_len ctx n_ctx max_tokens block_size model_max_length length tokens""",
            "per_device_train_batch_size": """batch bs mbs per_device_batch_size local_batch_size
                train_micro_batch_size_per_gpu per_gpu_train_batch_size""",
            "gradient_accumulation_steps": """grad_accum grad_accum_steps gradient_accumulation accumulation_steps
                accumulate_grad_batches gas""",
            "gradient_checkpointing": """grad_checkpointing grad_ckpt checkpointing
                activation_recomputation recompute""",
            "mixed_precision": "precision amp autocast bfloat16 float16",
            "dtype": "param_dtype weights_dtype",
            "strategy": "zero zero_optimization ds_stage sharding_strategy distributed fsdp2",
            "method": "peft lora qlora adapters bits quantization use_lora use_qlora",
            "load_in_8bit": "load_8bit int8",
            "lora_r": "rank",
            "lora_alpha": "alpha",
            "lora_target_modules": "targets",
            "attn_implementation": "attention flash flash_attn",
            "use_liger_kernel": "liger",
            "objective": "task stage trainer",
            "num_train_examples": "examples dataset_size num_examples num_samples samples max_samples",
            "mean_tokens_per_example": "mean_tokens avg_tokens average_tokens mean_length avg_length",
            "usd_per_gpu_hour": "price cost usd_per_hour price_per_hour",
            "gpu": "card gpu_name gpu_type accelerator hardware",
            "model": "model_id checkpoint repo hub_id",
            "offload_optimizer": "optimizer_offload cpu_offload offload",
            "offload_param": "param_offload",
        }.items()
        for word in words.split()
    }
)
"""Names for a key that stand in no table of a tool or mean another key there, in ``plain`` spelling."""

GPU_KEYS: Mapping[str, Kind] = MappingProxyType(
    {
        "name": ShortText(),
        "memory_bytes": WholeNumber(10**15),
        "memory_is_derived": Flag(),
        "nameplate_gb": Number(1_000_000),
        "vendor": ShortText(),
        "architecture": ShortText(),
        "compute_capability": ShortText(),
        "supports_bf16": Flag(),
        **dict.fromkeys((*RATES, NETWORK), Number(RATE_SPAN[1], low=RATE_SPAN[0], nullable=True)),
        **dict.fromkeys(HOST_RATES, Number(RATE_SPAN[1], low=RATE_SPAN[0], nullable=True)),
        **{name: WholeNumber(most, nullable=True) for name, most in COUNTS.items()},
        "source": ShortText(),
    }
)
"""The keys of a custom GPU other than ``like``: the fields of ``Gpu`` that do not need the catalogue."""

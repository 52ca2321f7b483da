"""Rank 0 of several, alone: collectives return at once, and what they would have brought lies there as it was."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed

from estimator.values.setup import TrainingSetup
from estimator.values.specs import Strategy

PORT = "29533"
"""Nothing listens there."""


def begin(setup: TrainingSetup) -> None:
    """Join a group of so many GPUs as its first rank, before the trainer's arguments are made."""
    if setup.num_gpus == 1:
        return
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=PORT,
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(setup.num_gpus),
        DS_SKIP_CUDA_CHECK="1",  # DeepSpeed would ask nvcc for its version
    )
    distributed.init_process_group(
        "nccl",
        store=distributed.HashStore(),
        rank=0,
        world_size=setup.num_gpus,
        device_id=torch.device("cuda:0"),
    )
    # compares the ranks' shapes, all of which are read as zero here
    torch.nn.parallel.distributed._verify_param_shape_across_processes = lambda *_, **__: None
    if setup.strategy.is_zero:
        _no_step_overflows()


def _no_step_overflows() -> None:
    """DeepSpeed reads a flag and a norm from blocks that may hold what lay there before, and would skip the step."""
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    stage3.is_invalid_grad_norm = lambda _: False
    for optimizer in (
        stage_1_and_2.DeepSpeedZeroOptimizer,
        stage3.DeepSpeedZeroOptimizer_Stage3,
    ):
        optimizer.has_overflow = _never(optimizer.has_overflow)


def _never(asked: Any) -> Any:
    def answer(*told: Any, **named: Any) -> bool:
        asked(*told, **named)
        return False

    return answer


def arguments(setup: TrainingSetup) -> dict[str, Any]:
    """Trainer's arguments of a strategy."""
    strategy = setup.strategy
    if strategy.is_zero:
        return {"deepspeed": _deepspeed(int(strategy.value.removeprefix("zero")))}
    if strategy.is_fsdp:
        sharing = "shard_grad_op" if strategy is Strategy.FSDP_GRAD_OP else "full_shard"
        return {
            **_replicas(setup),
            "fsdp": f"{sharing} auto_wrap",
            "fsdp_config": {"version": setup.mesh.fsdp_version},
        }
    return {}


def _replicas(setup: TrainingSetup) -> dict[str, Any]:
    """How many replicas there are, and over how many GPUs each is divided."""
    if setup.strategy is not Strategy.HSDP:
        return {}
    from accelerate.parallelism_config import ParallelismConfig

    return {
        "parallelism_config": ParallelismConfig(
            dp_replicate_size=setup.mesh.dp_replicate_size, dp_shard_size=setup.mesh.shard_ranks
        )
    }


def _deepspeed(stage: int) -> dict[str, Any]:
    """DeepSpeed's config with Trainer's sizes, as transformers' documentation writes it."""
    sizes = ["reduce_bucket_size"]
    if stage == 3:
        sizes += ["stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"]
    return {
        "zero_optimization": {"stage": stage, **dict.fromkeys(sizes, "auto")},
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
    }

"""One rank of several, alone: collectives return at once, and what they would have brought lies there as it was."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import transformers
from torch import distributed

from estimator.rehearse.on_path.headroom_inside.ranks import (
    LONGER_THAN_A_LOOK,
    answer,
    no_step_overflows,
    store,
)
from estimator.values.setup import TrainingSetup

PORT = "29533"
"""Nothing listens there."""
STORE = store(torch)


class Pause(transformers.TrainerCallback):
    """Lets NCCL's watchdog look between two steps."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """After the optimizer's step."""
        time.sleep(LONGER_THAN_A_LOOK)

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """After a micro-step before it."""
        time.sleep(LONGER_THAN_A_LOOK)


def differing(setup: TrainingSetup) -> range:
    """The ranks whose runs differ: under ZeRO 1 and 2 each keeps other gradients."""
    return range(setup.mesh.num_gpus if setup.mesh.strategy.partitions_flat else 1)


def begin(setup: TrainingSetup, rank: int) -> None:
    """Join a group of so many GPUs, before the trainer's arguments are made."""
    if setup.mesh.num_gpus == 1:
        return
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=PORT,
        RANK=str(rank),
        LOCAL_RANK="0",
        WORLD_SIZE=str(setup.mesh.num_gpus),
        DS_SKIP_CUDA_CHECK="1",  # DeepSpeed would ask nvcc for its version
    )
    distributed.init_process_group(
        "nccl",
        store=STORE,
        rank=rank,
        world_size=setup.mesh.num_gpus,
        # bound to a device, torch splits the group for a mesh of ranks, for which the store would have to be copied
        device_id=None if setup.mesh.tp_size > 1 else torch.device("cuda:0"),
    )
    answer(torch)
    if setup.mesh.strategy.is_zero:
        from deepspeed.runtime.zero import stage3, stage_1_and_2

        no_step_overflows(stage_1_and_2)
        no_step_overflows(stage3)


def arguments(setup: TrainingSetup) -> dict[str, Any]:
    """Trainer's arguments of a strategy."""
    strategy = setup.mesh.strategy
    if setup.mesh.loads_divided:
        return {}
    if strategy.is_zero:
        return {"deepspeed": _deepspeed(int(strategy.value.removeprefix("zero")))}
    if strategy.is_fsdp:
        sharing = "shard_grad_op" if strategy.keeps_gathered else "full_shard"
        # accelerate 1.15, utils/dataclasses.py: FSDP1 asks this before Trainer's reshard_after_forward
        os.environ["FSDP_SHARDING_STRATEGY"] = sharing.upper()
        return {
            **_replicas(setup),
            "fsdp": f"{sharing} auto_wrap",
            "fsdp_config": {"version": setup.mesh.fsdp_version},
        }
    return {}


def divided(setup: TrainingSetup) -> dict[str, Any]:
    """What `from_pretrained` is told so that every rank has a part of each layer, and FSDP 2 shards of that."""
    from transformers.distributed import DistributedConfig

    mesh = setup.mesh
    sizes = {"dp_replicate_size": mesh.dp_replicate_size, "fsdp_size": mesh.shard_ranks}
    return {"distributed_config": DistributedConfig(tp_size=mesh.tp_size, **sizes)}


def _replicas(setup: TrainingSetup) -> dict[str, Any]:
    """How many replicas there are, and over how many GPUs each is divided."""
    if not setup.mesh.strategy.has_groups:
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

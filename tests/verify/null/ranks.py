"""One rank of several, alone: collectives return at once, and what they would have brought lies there as it was."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import transformers
from torch import distributed

from estimator.values.setup import TrainingSetup
from estimator.values.strategies import Strategy

PORT = "29533"
"""Nothing listens there."""
LONGER_THAN_A_LOOK = 0.25
"""Seconds between two steps. NCCL's watchdog looks every 0.1 s for collectives that have ended, and what these used is
freed at the next one: torch 2.13, csrc/distributed/c10d/ProcessGroupNCCL.hpp, ``shelvesToUnstash_``. A step takes a
card longer than that, and this one 0.02 s: DDP's first bucket would outlive it."""


class Store(distributed.Store):  # type: ignore[misc]
    """Answers for ranks that are not there."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Sets a key."""
        self._values[key] = value

    def get(self, key: str) -> bytes:
        """A key's value; of another rank's key, zeros as many as NCCL's identifier has."""
        return self._values.get(key, bytes(128))

    def add(self, key: str, amount: int) -> int:
        """Counts up a key."""
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def check(self, _: list[str]) -> bool:
        """Whether a rank asks the others to dump what they know: never."""
        return False

    def wait(self, *_: object) -> None:
        """Waits for keys: not at all."""


STORE = Store()
"""NCCL's threads ask it until the process ends."""


class Pause(transformers.TrainerCallback):  # type: ignore[misc]
    """Lets NCCL's watchdog look between two steps."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """After the optimizer's step."""
        time.sleep(LONGER_THAN_A_LOOK)

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """After a micro-step before it."""
        time.sleep(LONGER_THAN_A_LOOK)


def differing(setup: TrainingSetup) -> range:
    """The ranks whose runs differ: under ZeRO 1 and 2 each keeps other gradients."""
    partitions = setup.strategy in (Strategy.ZERO1, Strategy.ZERO2)
    return range(setup.num_gpus if partitions else 1)


def begin(setup: TrainingSetup, rank: int) -> None:
    """Join a group of so many GPUs, before the trainer's arguments are made."""
    if setup.num_gpus == 1:
        return
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=PORT,
        RANK=str(rank),
        LOCAL_RANK="0",
        WORLD_SIZE=str(setup.num_gpus),
        DS_SKIP_CUDA_CHECK="1",  # DeepSpeed would ask nvcc for its version
    )
    distributed.init_process_group(
        "nccl",
        store=STORE,
        rank=rank,
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

    for stage, optimizer in (
        (stage_1_and_2, stage_1_and_2.DeepSpeedZeroOptimizer),
        (stage3, stage3.DeepSpeedZeroOptimizer_Stage3),
    ):
        stage.is_invalid_grad_norm = lambda _: False
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
        # accelerate 1.15, utils/dataclasses.py: FSDP1 asks this before Trainer's reshard_after_forward
        os.environ["FSDP_SHARDING_STRATEGY"] = sharing.upper()
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

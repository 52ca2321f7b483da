"""Each strategy, and what is asked about it elsewhere; its hooks are in ``estimator.parallel.strategies``."""

from __future__ import annotations

from estimator.values.records import Record


class StrategyFacts:
    """What is asked about a strategy; each default is that of a GPU that works alone."""

    label: str = ""
    """As a title says it."""
    is_alone: bool = False
    """There is one GPU, so nothing to share."""
    fewest_gpus: int = 2
    is_fsdp: bool = False
    """Sharded by PyTorch's FSDP, of either version."""
    is_zero: bool = False
    """Sharded by DeepSpeed."""
    keeps_whole: bool = False
    """Each process' GPU holds and steps all tensors, whole."""
    averages_in_buckets: bool = False
    """Gradients are averaged through DDP's buckets."""
    places_layers: bool = False
    """Layers are on different GPUs, which one process uses in turn."""
    shards_states: bool = False
    """Each GPU steps its own shard."""
    shards_gradients: bool = False
    """Each GPU accumulates the gradients of its own shard only."""
    shards_weights: bool = False
    """Weights are gathered for each use."""
    keeps_gathered: bool = False
    """Gathered weights stay from forward to backward (``reshard_after_forward=False``)."""
    has_groups: bool = False
    """GPUs form groups, and each group holds a whole copy of the model."""
    partitions_flat: bool = False
    """Ranks divide all trained tensors flattened into one, and each keeps every weight: DeepSpeed's stages 1 and 2."""
    keeps_parts: bool = False
    """Each rank keeps the gradients within its partition; which, depends on where it begins: DeepSpeed's stage 2."""
    reduces_after_backward: bool = False
    """Whole gradients are accumulated, and reduced once a step, after backward: DeepSpeed's stage 1."""
    gathers_modules: bool = False
    """Each weight is sharded on its own from its creation on, and hooks of each module gather its own: DeepSpeed's
    stage 3."""
    has_gradient_buffer: bool = False
    """Gradients have a place from the start, filled or not: DeepSpeed's stage 3."""


_STAGE_1 = {"is_zero": True, "fewest_gpus": 1, "shards_states": True}


class Strategy(StrategyFacts, Record):
    """How GPUs share the work: what each keeps, and what is gathered when."""

    NONE = "none", {"fewest_gpus": 1}, "is_alone keeps_whole"
    """One GPU."""
    DDP = "ddp", {"label": "DDP"}, "keeps_whole averages_in_buckets"
    """Everything on every GPU; gradients are averaged through buckets."""
    ZERO1 = (
        "zero1",
        {"label": "ZeRO-1", "fewest_gpus": 1},
        "is_zero shards_states partitions_flat reduces_after_backward",
    )
    """DeepSpeed: optimizer states and float32 weights are sharded."""
    ZERO2 = (
        "zero2",
        {"label": "ZeRO-2", "fewest_gpus": 1},
        "is_zero shards_states shards_gradients partitions_flat keeps_parts",
    )
    """Gradients are sharded too."""
    ZERO3 = (
        "zero3",
        {"label": "ZeRO-3", "fewest_gpus": 1},
        "is_zero shards_states shards_gradients shards_weights gathers_modules has_gradient_buffer",
    )
    """Weights are sharded too."""
    FSDP = "fsdp", {"label": "FSDP"}, "is_fsdp shards_states shards_gradients shards_weights"
    """FSDP2 as accelerate runs it: weights, gradients and states are sharded, and layers gathered one at a time."""
    FSDP_GRAD_OP = (
        "fsdp_grad_op",
        {"label": "FSDP with SHARD_GRAD_OP"},
        "is_fsdp shards_states shards_gradients shards_weights keeps_gathered",
    )
    """The same, but gathered weights stay from forward to backward (``reshard_after_forward=False``)."""
    HSDP = (
        "hsdp",
        {"label": "HSDP", "fewest_gpus": 4},
        "is_fsdp shards_states shards_gradients shards_weights has_groups",
    )
    """FSDP within groups of GPUs; the groups are replicas of each other."""
    DEVICE_MAP = "device_map", {"label": "a device map"}, "places_layers"
    """Layers on different GPUs, which one process uses in turn (``device_map="auto"``)."""

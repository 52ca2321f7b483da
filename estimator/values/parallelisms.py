"""Ways to share a run between GPUs that no formula knows yet, by every name that people give them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Parallelism(NamedTuple):
    """A way to share a run between GPUs that no formula knows yet, and what people call it."""

    name: str
    words: tuple[str, ...]
    """Alone and with ``_size`` and ``_degree`` behind them they are keys of a configuration; alone, strategies too."""
    strategies: tuple[str, ...] = ()
    """More words for a strategy."""


PARALLELISMS = (
    # accelerate 1.15, parallelism_config.py; vLLM and ms-swift; Megatron-LM's arguments.py; torchtitan's
    Parallelism(
        "tensor parallelism",
        ("tp", "tensor_parallel", "tensor_parallelism", "tensor_model_parallel", "tp_plan"),
    ),
    Parallelism(
        "pipeline parallelism",
        ("pp", "pipeline_parallel", "pipeline_parallelism", "pipeline_model_parallel"),
        ("pipeline", "gpipe", "1f1b"),
    ),
    Parallelism(
        "context parallelism",
        ("cp", "context_parallel", "context_parallelism", "ring_attention", "ring_attn"),
        ("ring",),
    ),
    Parallelism(
        "sequence parallelism",
        (
            *("sp", "sequence_parallel", "sequence_parallelism"),
            *("ulysses", "ulysses_parallel", "ulysses_sequence_parallel", "alst"),
        ),
        ("deepspeed_ulysses",),
    ),
    Parallelism(
        "expert parallelism",
        (
            *("ep", "expert_parallel", "expert_parallelism", "expert_model_parallel", "moe_ep"),
            *("expert_tensor_parallel", "enable_expert_parallel", "moe_expert_parallel"),
        ),
    ),
    Parallelism(
        "tensor or pipeline parallelism",
        ("model_parallel", "megatron", "megatron_lm"),
        ("megatron_core", "mcore", "3d", "3d_parallel", "3d_parallelism"),
    ),
)

PARALLEL_WORDS: Mapping[str, str] = MappingProxyType(
    {
        word + suffix: it.name
        for it in PARALLELISMS
        for word in it.words
        for suffix in ("", "_size", "_degree")
    }
)
"""Each key that asks for such a parallelism, in ``plain`` spelling, and which."""

UNMODELLED_STRATEGIES: Mapping[str, str] = MappingProxyType(
    {word: it.name for it in PARALLELISMS for word in (*it.words, *it.strategies)}
)
"""The same of strategies."""

NOT_PARALLEL = (None, False, 1)
"""What such a key says where nothing is shared that way."""

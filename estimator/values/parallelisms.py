"""Kinds of parallelism by the names that tools give them; of these, tensor parallelism is modelled (``tp_size``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

TENSOR = "tensor parallelism"


class Parallelism(NamedTuple):
    """A kind of parallelism, and its names."""

    name: str
    words: tuple[str, ...]
    """Names of configuration keys, also with ``_size`` or ``_degree`` appended; also names of strategies."""
    strategies: tuple[str, ...] = ()
    """Further names of strategies."""


PARALLELISMS = (
    # accelerate 1.15, parallelism_config.py; vLLM and ms-swift; Megatron-LM's arguments.py; torchtitan's
    Parallelism(
        TENSOR,
        (
            "tp",
            "tensor_parallel",
            "tensor_parallelism",
            "tensor_model_parallel",
            "tp_plan",
            "autotp",
        ),
    ),
    Parallelism(
        "pipeline parallelism",
        ("pp", "pipeline_parallel", "pipeline_parallelism", "pipeline_model_parallel"),
        ("pipeline", "gpipe", "1f1b", "dualpipe"),
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
        ("model_parallel", "megatron", "megatron_lm", "parallelism_config"),
        ("megatron_core", "mcore", "3d", "3d_parallel", "3d_parallelism"),
    ),
)

PARALLEL_WORDS: Mapping[str, str] = MappingProxyType(
    {
        word + suffix: way.name
        for way in PARALLELISMS
        for word in way.words
        for suffix in ("", "_size", "_degree")
    }
)
"""The parallelism that each key asks for, by the key in ``plain`` spelling."""

UNMODELLED_STRATEGIES: Mapping[str, str] = MappingProxyType(
    {word: way.name for way in PARALLELISMS for word in (*way.words, *way.strategies)}
)
"""The parallelism that each strategy asks for, by its name in ``plain`` spelling."""

NOT_PARALLEL = (None, False, 1)
"""Values of such a key that turn the parallelism off."""

_LONG = len("autotp")
"""Minimum length of a word that means a parallelism anywhere in a key."""
_COUNTS = frozenset({"size", "degree", "world", "ways", "rank", "ranks", "num", "stages"})
"""Words next to a two-letter abbreviation that make it mean a parallelism."""


def key_asks_for(key: str) -> str:
    """The parallelism that a key asks for, also as part of a longer name; empty: none.

    >>> key_asks_for("virtual_pipeline_model_parallel_size"), key_asks_for("num_tp_ranks"), key_asks_for("lora_rank")
    ('pipeline parallelism', 'tensor parallelism', '')
    """
    if key in PARALLEL_WORDS:
        return PARALLEL_WORDS[key]
    parts = set(key.split("_"))
    for way in PARALLELISMS:
        names = {*way.words, *way.strategies}
        if any(len(word) >= _LONG and word in key for word in names):
            return way.name
        if parts & names and parts & _COUNTS:
            return way.name
    return ""


def strategy_asks_for(strategy: str) -> str:
    """The parallelism that a strategy asks for, alone or combined with others; empty: none.

    >>> strategy_asks_for("fsdp+tp"), strategy_asks_for("interleaved_1f1b"), strategy_asks_for("fsdp")
    ('tensor parallelism', 'pipeline parallelism', '')
    """
    if strategy in UNMODELLED_STRATEGIES:
        return UNMODELLED_STRATEGIES[strategy]
    parts = re.split(r"[^a-z0-9]+", strategy)
    return next(filter(None, map(UNMODELLED_STRATEGIES.get, parts)), "")

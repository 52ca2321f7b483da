"""transformers' continuous batching: a paged cache in half of the memory that is free when a generation begins.

    free        memory of the card - what is in use
    planned     ⌊0.5 · free⌋ = fixed + batch tokens + sectors
    sectors     what is left of it, each with the tensors that reading it takes; two more hold padding

It takes FlashAttention where the package or its kernel can be had, as here.

Source: transformers 5.23, generation/continuous_batching/cache.py, ``PagedAttentionMemoryHandler``; initialization.py;
trl 1.16, trainer/grpo_trainer.py:806 (``max_memory_percent``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.families.layer_kinds import FULL_ATTENTION, SLIDING
from estimator.values.arithmetic import ceil_div
from estimator.values.refusals import NOT_MODELLED, Line, Refusal
from estimator.values.specs import Model

SHARE = 0.5
"""Of the free memory: trl 1.16, trainer/grpo_trainer.py:806."""
PAGE_TOKENS = 256
"""generation/configuration_utils.py:1772, ``page_size``."""
BATCH_TOKENS = 8192
"""Tokens of a batch: ``_default_max_batch_tokens``."""
MOST_REQUESTS = 1024
"""Rows of a batch at most: initialization.py, ``FALLBACK_DEFAULTS``."""
ALIGNED = 128
WIDTH, INDEX, LONG, FLOAT = 2, 4, 8, 4
"""Bytes of an element of the cache, of an index, of a long one, and of a logit."""
INPUT_ROWS = 7
"""Rows of indices of the batch: ``bulk_input``."""
SETS = 2
"""Sets of inputs: asynchronous batching is on with CUDA graphs, which FlashAttention has by default."""
TRASH = 2
"""Sectors that hold padding."""

KINDS_LATER = Refusal(
    "use_transformers_continuous_batching has a cache for full and sliding attention alone, and {model_type} has "
    "other layers; take use_vllm, or set it to false.",
    Line(
        "transformers",
        "generation/continuous_batching/cache.py",
        65,
        'raise ValueError(f"Invalid layer type: {layer_type}")',
    ),
)
LATENT_LATER = Refusal(
    "use_transformers_continuous_batching is not modelled yet for {model_type}, whose layers cache a latent, share "
    "keys or differ in width; take use_vllm, or set it to false.",
    NOT_MODELLED,
)
NO_SECTOR = Refusal(
    "use_transformers_continuous_batching does not start: half of the memory that is free leaves no page for its "
    "cache; use a larger GPU, or method lora.",
    Line(
        "transformers",
        "generation/continuous_batching/cache.py",
        700,
        'raise ValueError(f"Invalid values: {max_batch_tokens = }, {num_sectors = }")',
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedCache:
    """What one generation plans of a GPU."""

    cache: int
    """Bytes of the cache."""
    beside: int
    """Bytes of what a batch takes beside it, at most."""
    at_once: int
    """Rows of full length that it holds at once (a count), of those of a generation."""


def check_paged(model: Model) -> None:
    """Refuse models that have no paged cache, or none here yet."""
    if any(kind not in (FULL_ATTENTION, SLIDING) for kind in model.layer_types):
        raise KINDS_LATER(model_type=model.model_type)
    if model.state_space is not None or model.delta_net is not None:
        raise KINDS_LATER(model_type=model.model_type)
    if model.kv_lora_rank or model.num_kv_shared_layers or model.global_head_dim:
        raise LATENT_LATER(model_type=model.model_type)


def paged_cache(model: Model, free: int, rows: int, tokens: int) -> PagedCache:
    """The cache of a generation of ``rows`` rows of ``tokens`` tokens where so many bytes are free.

    Raises ``ValueError`` where not one page is left.
    Leaves out: what Python's loop keeps; CUDA graphs, which share one pool.
    Source: transformers 5.23, generation/continuous_batching/cache.py:591-711.
    """
    layers = kinds_of_layers(model)
    token = 2 * model.num_key_value_heads * model.head_dim * WIDTH
    blocks = {window: count * PAGE_TOKENS * token for window, count in layers.items()}
    sector = math.lcm(*blocks.values(), ALIGNED)
    sector_tokens = max(sector // size * PAGE_TOKENS for size in blocks.values())
    groups = len(layers)
    heads = model.num_key_value_heads * model.head_dim
    of_row = ceil_div(tokens, PAGE_TOKENS) + 1
    table = groups * (of_row + of_row % 2) * (len(layers) == 1)  # a window has no table
    batch = WIDTH * (model.hidden_size + model.num_attention_heads * model.head_dim + 4 * heads)
    batch += SETS * (INDEX * (INPUT_ROWS + 1 + table) + 2 * LONG * groups)
    read = 2 * heads * WIDTH + SETS * groups * LONG
    logits = min(rows, MOST_REQUESTS) * (WIDTH * model.hidden_size + FLOAT * model.vocab_size)
    fixed = TRASH * sector + logits
    each = sector + sector_tokens * read
    planned = int(SHARE * free)
    sectors = (planned - fixed - BATCH_TOKENS * batch) // each
    if sectors <= 0:
        raise NO_SECTOR()
    cache = (sectors + TRASH) * sector
    whole = fixed + BATCH_TOKENS * batch + sectors * each
    one = sum(
        ceil_div(ceil_div(min(tokens, window or tokens), PAGE_TOKENS) * blocks[window], sector)
        for window in layers
    )
    return PagedCache(cache=cache, beside=whole - cache, at_once=min(rows, max(1, sectors // one)))


def kinds_of_layers(model: Model) -> dict[int, int]:
    """Layers of each window, 0 for all positions (counts).

    Source: transformers 5.23, generation/continuous_batching/cache.py:41, ``group_layers_by_attn_type``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> kinds_of_layers(TINY_LLAMA)
    {0: 2}
    """
    window = model.sliding_window
    types = model.layer_types or (SLIDING if window else FULL_ATTENTION,) * model.num_hidden_layers
    found: dict[int, int] = {}
    for kind in types:
        key = window if kind == SLIDING else 0
        found[key] = found.get(key, 0) + 1
    return found

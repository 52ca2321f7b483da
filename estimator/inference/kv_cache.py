"""The cache of keys and values: bytes of a token and of a sequence, and vLLM's pages.

vLLM cuts its cache into blocks of equal size. Layers whose cache is alike form groups of equal length; a block is one
page of every layer of a group, and each group of a sequence takes blocks of its own from one pool.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from estimator.families.layer_kinds import (
    CHUNKED,
    CONVOLUTION,
    DELTA_FILTER,
    EXPERTS,
    FIRST_BACK,
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    MLP,
    REUSING,
    SLIDING,
)
from estimator.families.model_tree import layer_model, sharing_of_keys
from estimator.values.arithmetic import ceil_div
from estimator.values.specs import Model

BLOCK_TOKENS = 16
"""Tokens of a block: vllm 0.33, config/cache.py:185, ``DEFAULT_BLOCK_SIZE``."""
WIDTH = 2
"""Bytes of an element: the cache is in the engine's dtype, 16 bits."""
FEW_PADDING_LAYERS = 3, 2
"""A group is as long as the most layers of a kind while those are below 1.5 times the fewest: vllm 0.33,
v1/core/kv_cache_planning.py:524."""
BATCHES_IN_FLIGHT = 2
"""Batches that are scheduled but not settled: asynchronous scheduling, vllm 0.33, config/vllm.py:594, which is on by
default (1719)."""


class Cached(NamedTuple):
    """What one layer caches of a sequence, on one GPU."""

    token_bytes: int
    """Bytes of a token; 0: a state whose size does not grow."""
    state_bytes: int = 0
    """Bytes of a sequence, whatever its length."""
    window: int = 0
    """Tokens that are looked back at; 0: all of them."""


def layer_caches(model: Model, ranks: int = 1) -> tuple[tuple[Cached, int], ...]:
    """What each kind of layer caches of a sequence, in bytes per GPU, and how many layers are alike.

        attention   2 · key-value heads / ranks · head width · 2 bytes, but of one head at least
        latent      (latent + rotary part) · 2 bytes, whole on every rank
        Mamba 2     (convolution · (kernel - 1) + heads · head width · state) / ranks · 2 bytes
        delta-net   likewise, heads · key width · value width

    Layers that reuse an earlier layer's keys and values cache nothing.

    Source: vllm 0.33, v1/kv_cache_interface.py:579 (``state_content_size_bytes``), :742 (``MLAAttentionSpec``: no
    values); model_executor/layers/mamba/mamba_utils.py:186-293; config/model.py, ``get_num_kv_heads``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layer_caches(TINY_LLAMA)
    ((Cached(token_bytes=16, state_bytes=0, window=0), 2),)
    """
    return _layer_caches(model, ranks)


@lru_cache(maxsize=256)
def _layer_caches(model: Model, ranks: int) -> tuple[tuple[Cached, int], ...]:
    types = model.layer_types or (FULL_ATTENTION,) * model.num_hidden_layers
    sharing = sharing_of_keys(model)
    both = model.state_space is not None and LINEAR_ATTENTION not in types  # Falcon-H1
    counts: Counter[Cached] = Counter()
    for index, kind in enumerate(types):
        if kind in (MLP, EXPERTS) or sharing[index] in (REUSING, FIRST_BACK):
            continue
        if kind == CONVOLUTION:
            counts[Cached(0, model.hidden_size * (model.short_filter - 1) * WIDTH // ranks)] += 1
            continue
        if kind == LINEAR_ATTENTION or both:
            counts[Cached(0, _state_bytes(model, ranks))] += 1
        if kind != LINEAR_ATTENTION:
            counts[_attention(model, index, kind, ranks)] += 1
    return tuple(counts.items())


def _attention(model: Model, index: int, kind: str, ranks: int) -> Cached:
    if model.kv_lora_rank:
        return Cached(WIDTH * (model.kv_lora_rank + model.qk_rope_head_dim))
    of = layer_model(model, index)
    heads = max(1, of.num_key_value_heads // ranks)
    is_windowed = kind in (SLIDING, CHUNKED) or not model.layer_types
    width = of.head_dim + (model.v_head_dim or of.head_dim)
    return Cached(heads * width * WIDTH, window=model.sliding_window if is_windowed else 0)


def _state_bytes(model: Model, ranks: int) -> int:
    if model.state_space is not None:
        space = model.state_space
        kept = space.conv_width * (space.conv_kernel - 1)
        return (kept + space.width * space.state_size) * WIDTH // ranks
    assert model.delta_net is not None
    net = model.delta_net
    kept = (2 * net.key_width + net.value_width) * (DELTA_FILTER - 1)
    return (kept + net.value_heads * net.key_dim * net.value_dim) * WIDTH // ranks


def sequence_bytes(model: Model, tokens: int) -> int:
    """Bytes of one sequence in transformers' cache, which keeps of a windowed layer one token less than the window.

    Source: transformers 5.23, cache_utils.py, ``DynamicSlidingWindowLayer.update``; derived, from ``layer_caches``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> sequence_bytes(TINY_LLAMA, 10)
    320
    """
    return sum(
        layers * (cache.state_bytes + cache.token_bytes * _kept(cache, tokens))
        for cache, layers in layer_caches(model)
    )


def _kept(of: Cached, tokens: int) -> int:
    return min(tokens, of.window - 1) if of.window else tokens


class Group(NamedTuple):
    """Groups of layers that are alike: each takes blocks of its own for a sequence."""

    of: Cached
    groups: int
    block_tokens: int


class Pages(NamedTuple):
    """How vLLM lays out its cache on one GPU."""

    block_bytes: int
    """A block: one page of each layer of a group."""
    groups: tuple[Group, ...]

    def blocks(self, tokens: int, batched_tokens: int) -> int:
        """Blocks that a sequence of so many tokens takes (a count); ``batched_tokens``: of the largest batch.

        Source: vllm 0.33, v1/kv_cache_interface.py:648 (full), :925-944 (windows: tokens in flight, and one more
        block), :1143 (states); v1/core/kv_cache_utils.py:1061 (the sum over groups).
        """
        return sum(group.groups * _blocks(group, tokens, batched_tokens) for group in self.groups)


def _blocks(group: Group, tokens: int, batched_tokens: int) -> int:
    if not group.of.token_bytes:
        return 1
    if not group.of.window:
        return ceil_div(tokens, group.block_tokens)
    in_flight = BATCHES_IN_FLIGHT * batched_tokens
    return ceil_div(min(group.of.window - 1 + in_flight, tokens), group.block_tokens) + 1


@lru_cache(maxsize=256)
def pages(model: Model, ranks: int = 1) -> Pages:
    """vLLM's blocks for a model, in bytes per GPU.

    A state is one page of a block; attention's blocks become so long that its page is as large. Pages of different
    sizes are made equal by longer blocks, or by padding where they do not divide.

    Source: vllm 0.33, platforms/interface.py:1090-1112 (``_align_hybrid_block_size``); v1/core/kv_cache_planning.py:346
    (``unify_kv_cache_spec_page_size``), :416 (``_get_kv_cache_groups_uniform_page_size``), :574 (bytes of a block).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> pages(TINY_LLAMA).block_bytes == 2 * 16 * 16, pages(TINY_LLAMA).blocks(100, 4096)
    (True, 7)
    """
    cached = layer_caches(model, ranks)
    state = max(cache.state_bytes for cache, _ in cached)
    tokens = BLOCK_TOKENS
    if state and (largest := max(cache.token_bytes for cache, _ in cached)):
        tokens *= ceil_div(state, BLOCK_TOKENS * largest)
    page = max(state, *(tokens * cache.token_bytes for cache, _ in cached))
    fewest = min(layers for _, layers in cached)
    most = max(layers for _, layers in cached)
    numerator, denominator = FEW_PADDING_LAYERS
    length = most if denominator * most < numerator * fewest else fewest
    groups = tuple(
        Group(cache, ceil_div(layers, length), _block_tokens(cache, tokens, page))
        for cache, layers in cached
    )
    return Pages(length * page, groups)


def _block_tokens(of: Cached, tokens: int, page: int) -> int:
    own = tokens * of.token_bytes
    return tokens * (page // own) if own and page % own == 0 else tokens

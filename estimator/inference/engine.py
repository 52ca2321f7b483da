"""vLLM on one GPU: what it takes of the card, what is left for its cache, and how many sequences fit at once.

    asked       ⌈utilisation · memory of the card⌉
    cache       asked - weights - buffers - activations - CUDA graphs - other

vLLM measures the last three when it starts. Here activations follow from the layers; graphs and the rest are ranges of
published logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.families.model_tree import modules_with_counts, total_parameters
from estimator.families.modules import Bare, Embedding, Linear, Module, Norm, module_parameters
from estimator.inference.kv_cache import pages
from estimator.values.arithmetic import ceil_div
from estimator.values.specs import Gpu, Model

BATCHED_TOKENS = 4096
"""Tokens of the largest batch: trl 1.16, generation/vllm_generation.py:376, ``max_num_batched_tokens``."""
WIDTH = 2
"""Bytes of a weight: ``dtype="auto"`` is float16 for float32 checkpoints and else their own. vllm 0.33,
config/model.py, ``_resolve_auto_dtype``."""
VOCABULARY_MULTIPLE = 64
"""The vocabulary is padded to a multiple: vllm 0.33, model_executor/layers/vocab_parallel_embedding.py,
``DEFAULT_VOCAB_PADDING_SIZE``."""
LOGIT_BYTES = 14
"""Bytes per row and word while the engine tries its sampler: logits 2, in float32 4, scaled and masked 4, softmax 4.
vllm 0.33, v1/worker/gpu/sample/sampler.py:242 and :345."""
COUNT_BYTES = 4
"""Bytes per row and word of ``output_bin_counts``, which stay: vllm 0.33, v1/worker/gpu/sample/penalties.py:48."""
BITS, WORD_BYTES = 8, 4
MASKS = 2
"""Bits per row and word that stay beside them: words of the prompt, and words that a grammar allows. The same file,
line 43; v1/worker/gpu/structured_outputs.py, ``StructuredOutputsWorker``."""
LARGEST_CAPTURE = 512
"""Tokens of the largest CUDA graph; twice as many on compute capability 10: vllm 0.33, config/vllm.py:2463
(``is_device_capability_family(100)``)."""
GRAPH_LOW_BYTES, GRAPH_BYTES, GRAPH_HIGH_BYTES = 2**20, 9 * 2**20, 24 * 2**20
"""Bytes of a CUDA graph: vLLM's own floor (v1/worker/gpu/cudagraph_utils.py, ``_MIN_PER_GRAPH_BYTES``); 0.44 GiB for 51
graphs (vllm pull request 48214, July 2026); 24 MiB (vllm issue 50780, August 2026). Collected, 2026-11."""
OTHER_HIGH_BYTES = 400 * 2**20
"""What an engine takes outside torch beyond the trainer's context, at most: 0.39 GiB in vllm issue 11251. It starts in
the trainer's process, whose context and cuBLAS handles exist, so at best it takes nothing. Collected, 2026-11."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One GPU's part of an engine, in bytes."""

    asked: int
    """What vLLM takes in all."""
    weights: int
    buffers: int
    """What the sampler keeps of each row that the engine is built for."""
    activations: int
    """The highest moment of a batch above what stays; free while the engine is idle."""
    graphs: int
    """CUDA graphs: the middle of three."""
    least: int
    """Graphs and other memory at least."""
    most: int
    """The same at most."""
    block: int
    """Bytes of a block."""
    blocks_per_row: int
    """Blocks of one row of prompt and completion."""
    blocks_needed: int
    """Blocks of the longest row that the engine must hold."""
    longest: int
    """Tokens of that row."""
    rows: int
    """Rows that it runs at once, at most."""
    max_num_seqs: int
    """Rows that it is built for, however many it is given."""
    batched_tokens: int = BATCHED_TOKENS

    @property
    def kept(self) -> int:
        """What it holds while idle: all but the room for activations."""
        return self.asked - self.activations

    @property
    def asleep(self) -> int:
        """What it holds at sleep level 2: the sampler's buffers and the graphs, which its pool does not manage.

        Source: vllm 0.33, v1/worker/gpu_worker.py:301 (``sleep``), v1/worker/gpu/cudagraph_utils.py,
        ``capture_outside_cumem_pool``.
        """
        return self.buffers + self.graphs

    @property
    def cache(self) -> tuple[int, int]:
        """Bytes left for the cache, low and high; at most 0 where nothing is left.

        Source: vllm 0.33, v1/worker/gpu_worker.py:739-743.
        """
        fixed = self.weights + self.buffers + self.activations
        return self.asked - fixed - self.most, self.asked - fixed - self.least

    def fitting(self, cache: int) -> int:
        """Rows of full length that a cache holds at once (a count), without the block that vLLM keeps back.

        Prompts that a group shares count for every row.
        Source: vllm 0.33, v1/core/kv_cache_planning.py:1536 (the null block).
        """
        return max(0, cache // self.block - 1) // self.blocks_per_row

    @property
    def at_once(self) -> tuple[int, int]:
        """Rows of full length that run at once (a count), low and high, of those that it is given."""
        low, high = self.cache
        return min(self.rows, self.fitting(low)), min(self.rows, self.fitting(high))

    @property
    def starts(self) -> bool:
        """Whether the cache may hold one row of the longest length: vLLM's own condition to start."""
        return self.cache[1] >= (self.blocks_needed + 1) * self.block

    def asking(self, asked: int) -> int:
        """The least that it can be given so that so many rows fit at once, in bytes, by the low end of its cache."""
        blocks = max(asked * self.blocks_per_row, self.blocks_needed) + 1
        return self.weights + self.buffers + self.activations + self.most + blocks * self.block


def asked_bytes(memory: int, utilisation: float) -> int:
    """Bytes that vLLM takes of a card.

    Source: vllm 0.33, v1/worker/utils.py:724, ``request_memory``.

    >>> asked_bytes(1000, 0.3)
    300
    """
    return math.ceil(memory * utilisation)


def largest_capture(gpu: Gpu) -> int:
    """Tokens of the largest CUDA graph on a card (a count)."""
    return LARGEST_CAPTURE * (2 if gpu.compute_capability.startswith("10.") else 1)


def hundredths(size: int, memory: int) -> float:
    """The largest utilisation of two decimals that asks for no more than ``size``.

    >>> hundredths(509, 1000)
    0.5
    """
    return max(0, 100 * size // memory) / 100


def least_hundredths(size: int, memory: int) -> float:
    """The smallest utilisation of two decimals that asks for at least ``size``.

    >>> least_hundredths(501, 1000)
    0.51
    """
    return -(-100 * size // memory) / 100


def engine(
    model: Model,
    *,
    asked: int,
    ranks: int,
    rows: int,
    max_num_seqs: int,
    row_tokens: int,
    longest: int,
    captures: int = LARGEST_CAPTURE,
    batched_tokens: int = BATCHED_TOKENS,
) -> Engine:
    """The part of an engine that one of ``ranks`` GPUs holds, in bytes, for so many rows of so many tokens.

    Buffers, graphs and the batch that it tries at its start are for ``max_num_seqs`` rows, given or not.
    Source: vllm 0.33, v1/worker/gpu_worker.py:641, ``determine_available_memory``; v1/worker/gpu/model_runner.py,
    ``profile_run`` and ``_dummy_run`` (``num_reqs``); derived, from the functions here.
    """
    found = pages(model, ranks)
    graphs = graph_count(max_num_seqs, captures, batched_tokens)
    return Engine(
        asked=asked,
        weights=engine_weight_bytes(model, ranks),
        buffers=buffer_bytes(model, max_num_seqs),
        activations=activation_bytes(model, ranks, max_num_seqs, batched_tokens),
        graphs=graphs * GRAPH_BYTES,
        least=graphs * GRAPH_LOW_BYTES,
        most=graphs * GRAPH_HIGH_BYTES + OTHER_HIGH_BYTES,
        block=found.block_bytes,
        blocks_per_row=found.blocks(row_tokens, batched_tokens),
        blocks_needed=found.blocks(longest, batched_tokens),
        longest=longest,
        rows=min(rows, max_num_seqs),
        max_num_seqs=max_num_seqs,
        batched_tokens=batched_tokens,
    )


def engine_weight_bytes(model: Model, ranks: int = 1) -> int:
    """Bytes of the engine's weights on one GPU.

        linears and experts / ranks; keys and values are copied where ranks exceed their heads; embedding and head
        padded to 64 rows; norms, routers and down-projections to a latent on every rank

    Error: what a family's class in vLLM keeps in float32 (some routers) is counted in 16 bits.
    Source: vllm 0.33, model_executor/layers/linear.py, ``QKVParallelLinear`` and ``ReplicatedLinear``;
    vocab_parallel_embedding.py.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> engine_weight_bytes(TINY_LLAMA) == 2 * total_parameters(TINY_LLAMA)
    True
    """
    if ranks == 1:
        return WIDTH * total_parameters(model)
    return WIDTH * sum(
        count * _held(model, module, ranks) for module, count in modules_with_counts(model)
    )


REPLICATED = ("q_a_proj", "kv_a_proj_with_mqa", "gate", "router")
"""Linears that every rank has: projections to a latent, routers."""


def _held(model: Model, module: Module, ranks: int) -> int:
    parameters = module_parameters(module)
    last = module.name.rpartition(".")[2]
    match module:
        case Embedding(rows=rows, width=width):
            padded = ceil_div(rows, VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
            return ceil_div(padded, ranks) * width
        case Linear() if last in ("k_proj", "v_proj"):
            return ceil_div(parameters, min(ranks, model.num_key_value_heads))
        case Linear() if module.routes or last in REPLICATED:
            return parameters
        case Linear():
            return ceil_div(parameters, ranks)
        case Bare(stack=stack) if stack:
            return ceil_div(parameters, ranks)
        case Norm(taps=taps) if taps:
            return ceil_div(parameters, ranks)
        case _:
            return parameters


def buffer_bytes(model: Model, rows: int) -> int:
    """Bytes that the sampler keeps: how often each row has each word, which its prompt has, which its grammar allows.

        rows · (4 · vocabulary + 2 · 4 · ⌈vocabulary / 32⌉)

    Source: vllm 0.33, v1/worker/gpu/sample/penalties.py:43-50; v1/worker/gpu/structured_outputs.py,
    ``StructuredOutputsWorker``.
    """
    masks = MASKS * WORD_BYTES * ceil_div(model.vocab_size, BITS * WORD_BYTES)
    return rows * (COUNT_BYTES * model.vocab_size + masks)


def activation_bytes(
    model: Model, ranks: int, max_num_seqs: int, batched_tokens: int = BATCHED_TOKENS
) -> int:
    """Bytes of the highest moment of a batch: its widest layer, or its sampler.

        layer     tokens · 2 · (h + max(h + 2f, 3f))         residual, input, gate and up, their product; f / ranks
        experts   tokens · 2 · (2h + k · (max(2f, h) + f))    k: experts of a token
        sampler   tokens · 2 · h + rows · vocabulary · 14       rows: max_num_seqs, or the tokens if they are fewer

    Leaves out: attention's workspaces; what the compiler fuses or keeps.
    Error: kvplan, which reads vLLM's logs, has 0.22 GiB for Llama 3.1 8B at 2,048 tokens and 256 rows
    (https://pypi.org/project/kvplan/); this has 0.47 for its sampler, 0.18 for its layers.
    Source: derived, from vllm 0.33, v1/worker/gpu/model_runner.py, ``profile_run``; model_executor/models/llama.py;
    layers/fused_moe/modular_kernel.py (``workspace13``, ``workspace2``).
    """
    hidden, wide = model.hidden_size, ceil_div(model.intermediate_size, ranks)
    layer = hidden + max(hidden + 2 * wide, 3 * wide)
    if model.num_experts:
        expert = ceil_div(model.moe_intermediate_size, ranks)
        chosen = model.num_experts_per_tok * (max(2 * expert, hidden) + expert)
        layer = max(layer, 2 * hidden + chosen)
    rows = min(max_num_seqs, batched_tokens)
    sampler = batched_tokens * WIDTH * hidden + rows * model.vocab_size * LOGIT_BYTES
    return max(batched_tokens * WIDTH * layer, sampler)


def graph_count(
    rows: int, largest: int = LARGEST_CAPTURE, batched_tokens: int = BATCHED_TOKENS
) -> int:
    """CUDA graphs that are captured (a count): of whole batches of decoding, and of pieces for the rest.

        1, 2, 4, multiples of 8 below 256, of 16 from there to min(2 · rows, 512), and rows itself; twice

    Source: vllm 0.33, config/vllm.py:2398-2600, ``_set_cudagraph_sizes``; config/compilation.py:63,
    ``FULL_AND_PIECEWISE``.

    >>> graph_count(8)
    9
    """
    most = min(2 * rows, largest, batched_tokens)
    sizes = {size for size in (1, 2, 4) if size <= most}
    sizes |= {*range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)}
    if rows <= most:
        sizes.add(rows)
    whole = sum(size <= rows for size in sizes)
    return len(sizes) + whole

"""Seconds of a step that generates its own completions: prompts, tokens, and the weights that are pushed before.

Every part has a fast and a slow end. Fast is a roofline: prompts at the best rate of matrix products, and every token
at the memory's bandwidth, which must deliver the weights once for all rows, and each row's keys and values. Slow is
half of that bandwidth, the host's time for every token, prompts without sharing, and fewer rows at once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from estimator.families.model_tree import active_parameters, modules_with_counts, total_parameters
from estimator.families.modules import Bare, Embedding, module_parameters
from estimator.inference.colocation import colocated_engine, engine_of_server, paged_beside
from estimator.inference.engine import WIDTH
from estimator.inference.generate import compute_width
from estimator.inference.kv_cache import sequence_bytes
from estimator.inference.rows import mean_completion, mean_row, row_tokens, rows_at_once
from estimator.inference.server import rows_of_engine
from estimator.inference.trainer_beside import between_steps, offloaded_bytes
from estimator.parallel.host import host_of
from estimator.parallel.network import GIGA, ExchangeGroup, exchange_seconds, links, shards
from estimator.parallel.strategies import resident_memory
from estimator.parallel.tensor_parallel import part_of
from estimator.resident.model import Resident
from estimator.resident.overhead import workspace_bytes
from estimator.time.flops import FORWARD
from estimator.time.host_time import OPERATOR
from estimator.time.rates import Rates, rates
from estimator.time.throughput import run_time
from estimator.values.arithmetic import ceil_div, total
from estimator.values.facets.batch import Batch
from estimator.values.facets.generation import Generation
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.objective import Task
from estimator.values.range import Range, by_end
from estimator.values.results import RunTime, TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

PROMPTS, TOKENS, PUSH = "prompts of the generation", "tokens of the generation", "weights pushed"
MOVED = "weights and states to the CPU and back"
DECODING_SHARE = Range(0.5, 0.9)
"""Share of the memory's bandwidth that decoding reaches: our assumption, not fitted."""
TOKEN_SECONDS = Range(0.0, 0.01)
"""Host's seconds for one token of all rows: scheduling, sampling, log-probabilities. Our assumption."""
TENSOR_SECONDS = Range(0.0, 0.001)
"""Host's seconds for each tensor that is pushed. Our assumption."""
REDUCE_SECONDS, REDUCE_BETWEEN_SECONDS = Range(0.0, 30e-6), Range(0.0, 60e-6)
"""Latency of one small all-reduce inside a machine, and between machines. Our assumption."""
REDUCES = 2
"""All-reduces of a layer under tensor parallelism: behind attention and behind the MLP. vllm 0.33,
model_executor/layers/linear.py, ``RowParallelLinear``."""
LAYER_OPERATORS = 40
"""Operators of one layer of transformers' generate with a cache: derived, from models/llama/modeling_llama.py."""


class Rounds(NamedTuple):
    """One generation as an engine runs it, at one end."""

    rows: float
    at_once: float
    prompt: float
    """Tokens of a row's prompt."""
    computed: float
    """Of these, tokens that are computed for it: those of its group are computed once."""
    completion: float
    """Tokens of a row's completion, on average."""
    longest: float
    """Tokens of the longest completion."""

    @property
    def tokens(self) -> float:
        """Times that the weights are read: at least the tokens of the longest row of each round."""
        return max(self.longest, self.rows * self.completion / self.at_once)


def time_of(model: Model, gpu: Gpu, setup: TrainingSetup, whole: Resident) -> RunTime:
    """Seconds per step and hours of a run, with its generation where there is one; ``missing_rate`` has been checked.

    An example is a prompt: an epoch takes its completions, as often as they are used. ``mean_tokens_per_example`` is
    the mean of prompt and completion: the fast end trains on rows of that length, the slow end on rows padded to the
    longest.

    Leaves out: rewards, and waiting for a server.
    Error: docs/generation.md compares it with published runs.
    Source: derived, from ``run_time`` and ``generation_parts``; trl 1.16, trainer/utils.py, ``RepeatSampler``.
    """
    model = part_of(model, setup.mesh.tp_size)
    time = run_time(model, gpu, setup, whole)
    if not setup.task.objective.generates:
        return time
    mean = mean_row(setup)
    parts = time.parts
    if mean < row_tokens(setup) and setup.run.mfu is None:
        shorter = setup.replace(
            max_length=mean,
            max_completion_length=mean_completion(setup),
            max_prompt_length=None,
            mean_tokens_per_example=None,
        )
        least = {part.name: part.seconds.low for part in run_time(model, gpu, shorter, whole).parts}
        parts = tuple(
            TimePart(name, Range(min(low, least.get(name, 0.0)), high))
            for name, (low, high) in parts
        )
    rows = setup.run.num_train_examples * setup.task.num_generations * setup.task.num_iterations
    steps = ceil_div(rows, setup.effective_batch_size)
    return replace(
        time,
        parts=(*generation_parts(model, gpu, setup), *parts),
        steps_per_epoch=steps,
        total_steps=math.ceil(steps * setup.run.num_train_epochs),
        tokens_per_step=float(setup.effective_batch_size * mean),
    )


def generations_per_step(batch: Batch, task: Task) -> float:
    """Generations in an optimizer's step (a count, of which less than 1 is usual).

    Source: trl 1.16, trainer/grpo_trainer.py:1440, ``generate_every``.

    >>> generations_per_step(Batch(), Task(objective='grpo', num_iterations=2))
    0.5
    """
    accumulation = batch.gradient_accumulation_steps
    steps = task.steps_per_generation or accumulation
    return accumulation / (steps * task.num_iterations)


def generation_parts(model: Model, gpu: Gpu, setup: TrainingSetup) -> tuple[TimePart, ...]:
    """Seconds of the generation in an optimizer's step: pushing weights, prompts, tokens.

        prompts   2 · parameters of a token · tokens / rate         fast: each prompt once for its whole group
        tokens    longest · rounds · weights / bandwidth + Σ rows, tokens  keys and values / bandwidth,
                  or 2 · parameters · rows · tokens / rate if that is longer (fast), and also (slow); with tensor
              parallelism also two all-reduces a layer

    Source: derived; Pope et al. 2022, arXiv:2211.05102, section 2 (decoding reads weights and cache for every token).
    """
    rate = rates(gpu, setup.precision)
    times = generations_per_step(setup.batch, setup.task)
    if setup.generation.use_vllm:
        parts = [_push_part(model, gpu, setup, rate), *_of_engine(model, gpu, setup, rate)]
        parts += _moved_parts(model, gpu, setup)
    else:
        parts = list(_of_transformers(model, gpu, setup, rate))
    return tuple(TimePart(name, times * seconds) for name, seconds in parts)


def _rounds(
    setup: TrainingSetup, rows: int, at_once: tuple[int, int], *, shares: bool
) -> Range[Rounds]:
    prompt, mean = setup.prompt_tokens, mean_completion(setup)
    few, many = (max(1, rows) for rows in at_once)
    group = setup.task.num_generations if shares else 1
    longest = setup.task.max_completion_length * ceil_div(rows, few)
    return Range(
        Rounds(rows, many, prompt, prompt / group, mean, mean),
        Rounds(rows, few, prompt, prompt, mean, longest),
    )


def _of_engine(
    model: Model, gpu: Gpu, setup: TrainingSetup, rate: Rates
) -> tuple[TimePart, TimePart]:
    generation = setup.generation
    ranks = generation.vllm_tensor_parallel_size
    if generation.is_colocated:
        rows = rows_at_once(setup) * ranks
        at_once = colocated_engine(model, gpu, setup).at_once
    else:
        rows = rows_of_engine(setup.generation, setup.mesh, rows_at_once(setup))
        at_once = engine_of_server(model, gpu, setup).at_once
    rounds = _rounds(setup, rows, at_once, shares=True)
    prompts, tokens = _decoded(model, rounds, WIDTH, ranks, rate)
    tokens = (
        tokens
        + _tokens(rounds) * TOKEN_SECONDS
        + _reduced(model, gpu, setup.generation, setup.mesh, rounds)
    )
    return TimePart(PROMPTS, prompts), TimePart(TOKENS, tokens)


def _tokens(rounds: Range[Rounds]) -> Range[float]:
    return by_end(lambda end: end.tokens, rounds)


def _reduced(
    model: Model, gpu: Gpu, generation: Generation, mesh: Mesh, rounds: Range[Rounds]
) -> Range[float]:
    """Seconds that the GPUs of an engine exchange sums: of every token of every row, twice a layer."""
    ranks, node = generation.vllm_tensor_parallel_size, mesh.gpus_per_node
    if ranks == 1:
        return Range(0.0, 0.0)
    group, by = ExchangeGroup(ranks, node), links(gpu, mesh)
    times = REDUCES * model.num_hidden_layers

    def exchanged(of: Rounds) -> Range[float]:
        size = of.rows * (of.computed + of.completion) * model.hidden_size * WIDTH
        return 2 * times * exchange_seconds(size, group, by)

    latency = REDUCE_SECONDS if ranks <= node else REDUCE_BETWEEN_SECONDS
    waiting = times * _tokens(rounds) * latency
    return Range(exchanged(rounds.low).low, exchanged(rounds.high).high) + waiting


def _decoded(
    model: Model, rounds: Range[Rounds], width: int, ranks: int, rate: Rates
) -> tuple[Range[float], Range[float]]:
    """Seconds of the prompts; and of the tokens: of reading or of operations at best, of both at worst."""
    active = FORWARD * _multiplied(model)
    multiplying = Range(rate.products.low, rate.best)

    def read(of: Rounds) -> float:
        weights = of.tokens * width * read_parameters(model, of.at_once)
        kept = sequence_bytes(model, int(of.prompt + of.completion / 2)) * width // 2
        return (weights + of.rows * of.completion * kept) / ranks

    prompts = by_end(lambda of: active * of.rows * of.computed / ranks, rounds)
    products = by_end(lambda of: active * of.rows * of.completion / ranks, rounds) / multiplying
    reading = by_end(read, rounds) / (DECODING_SHARE * rate.bandwidth)
    tokens = Range(max(reading.low, products.low), total([reading.high, products.high]))
    return prompts / multiplying, tokens


def _multiplied(model: Model) -> int:
    """Parameters that one token is multiplied with (a count): of the embedding it reads one row."""
    rows = sum(
        module_parameters(module)
        for module, _ in modules_with_counts(model)
        if isinstance(module, Embedding)
    )
    return active_parameters(model) - rows * (not model.is_tied)


def read_parameters(model: Model, rows: float) -> float:
    """Parameters that a batch of so many rows reads for one token each (a count, on average).

        dense + E · (1 - (1 - k / E) ^ rows) experts      k: experts of a token, E: experts, evenly chosen

    Source: derived.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> read_parameters(TINY_LLAMA, 8) == total_parameters(TINY_LLAMA)
    True
    """
    idle = 0.0
    for module, count in modules_with_counts(model):
        if isinstance(module, Bare) and module.stack:
            missed = (1 - model.num_experts_per_tok / module.stack) ** rows
            idle += count * module_parameters(module) * missed
    return total_parameters(model) - idle


def _of_transformers(
    model: Model, gpu: Gpu, setup: TrainingSetup, rate: Rates
) -> tuple[TimePart, TimePart]:
    """All rows of a generation together, until the longest ends; autocast casts float32 weights for every token."""
    rows = rows_at_once(setup)
    width = compute_width(setup)
    at_once = (rows, rows)
    if setup.generation.use_transformers_continuous_batching:
        between = between_steps(setup, resident_memory(model, setup), workspace_bytes(gpu))
        held = paged_beside(model, gpu, setup, between).at_once
        at_once = (held, held)
    rounds = _rounds(setup, rows, at_once, shares=False)
    prompts, tokens = _decoded(model, rounds, width, 1, rate)
    casts = (setup.precision.dtype.bytes > width) * (setup.precision.dtype.bytes + width)
    cast = casts * total_parameters(model) / rate.bandwidth
    host = LAYER_OPERATORS * model.num_hidden_layers * OPERATOR
    gathers = Range(0.0, 0.0)
    if setup.mesh.strategy.is_fsdp or (
        setup.mesh.strategy.gathers_modules and not setup.generation.ds3_gather_for_generation
    ):
        size = setup.precision.dtype.bytes * total_parameters(model)
        gathers = exchange_seconds(size, shards(setup.mesh), links(gpu, setup.mesh))
    fast, slow = _tokens(rounds)
    tokens = Range(
        max(tokens.low, fast * host.low, fast * gathers.low),
        tokens.high + slow * (host.high + cast + gathers.high),
    )
    return TimePart(PROMPTS, prompts + cast), TimePart(TOKENS, tokens)


def _push_part(model: Model, gpu: Gpu, setup: TrainingSetup, rate: Rates) -> TimePart:
    """Every weight read and written once, gathered from its shards, merged with its adapters and unmerged."""
    read, parameters = setup.precision.dtype.bytes, total_parameters(model)
    merges = 4 * read * setup.adapters.uses_adapters
    seconds = (read + WIDTH + merges) * parameters / rate.bandwidth
    gathers = Range(0.0, 0.0)
    if setup.mesh.strategy.shards_weights:
        gathers = exchange_seconds(read * parameters, shards(setup.mesh), links(gpu, setup.mesh))
    tensors = sum(count for _, count in modules_with_counts(model))
    moved = seconds / Range(DECODING_SHARE.low, 1.0)
    return TimePart(PUSH, moved + gathers + tensors * TENSOR_SECONDS)


def _moved_parts(model: Model, gpu: Gpu, setup: TrainingSetup) -> list[TimePart]:
    """What waits on the CPU while vLLM generates goes there and back; verl's weights once more, to be scored with."""
    weights, states = offloaded_bytes(setup.generation, resident_memory(model, setup))
    if not weights + states:
        return []
    moved = Range(2 * (weights + states), 2 * (2 * weights + states))
    return [TimePart(MOVED, moved / (host_of(gpu, setup.mesh).link * GIGA))]

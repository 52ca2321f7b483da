"""What generation adds to a GPU that trains: vLLM beside the trainer, or transformers' own ``generate``.

Without sleep the engine's memory is there in every phase, and adds to the training step. With it the two take turns:
the card must hold the higher of the training step, and the trainer's residents with all that vLLM asks for.

Source: trl 1.16, generation/vllm_generation.py and trainer/grpo_trainer.py, ``_generate_single_turn``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from estimator.inference.engine import Engine, asked_bytes, engine, largest_capture
from estimator.inference.generate import (
    cast_bytes,
    compute_width,
    gathered_bytes,
    generate_bytes,
    prompt_bytes,
)
from estimator.inference.kv_cache import sequence_bytes
from estimator.inference.paged import PagedCache, paged_cache
from estimator.inference.pushing import push_bytes
from estimator.inference.refusals import NO_GPU, PAGED_GPU, check_start
from estimator.inference.rows import engine_rows, longest_row, row_tokens, rows_at_once
from estimator.inference.server import check_server, server_engine
from estimator.inference.trainer_beside import at_start, between_steps, while_generating
from estimator.resident.model import Resident
from estimator.resident.overhead import context_bytes, workspace_bytes
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Gpu, Model, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Generating:
    """What generation adds to one GPU, and its moments. Bytes."""

    engine: Engine | None = None
    """vLLM on this GPU; None: transformers' generate, or a server."""
    in_steps: int = 0
    """What the engine holds while the step trains."""
    moments: Mapping[Phase, Moment] = field(default_factory=dict)
    """Loading with the engine, pushing weights, generating."""


NOTHING = Generating()


def colocated_engine(model: Model, gpu: Gpu, setup: TrainingSetup) -> Engine:
    """vLLM's part of a GPU that trains too, whether or not it fits.

    Source: trl 1.16, trainer/grpo_trainer.py:1122 (``max_num_seqs``: a GPU's rows times the engine's GPUs).
    """
    generation = setup.generation
    ranks, rows = generation.vllm_tensor_parallel_size, engine_rows(setup)
    return engine(
        model,
        asked=asked_bytes(gpu.memory_bytes, generation.vllm_gpu_memory_utilization),
        ranks=ranks,
        rows=rows,
        max_num_seqs=generation.vllm_max_num_seqs or rows,
        row_tokens=row_tokens(setup),
        longest=longest_row(model, setup),
        captures=largest_capture(gpu),
        batched_tokens=generation.vllm_max_num_batched_tokens,
    )


def engine_of_server(model: Model, gpu: Gpu, setup: TrainingSetup) -> Engine:
    """vLLM's part of one of the GPUs of a server (derived, from ``server_engine``)."""
    of = rows_at_once(setup), row_tokens(setup), longest_row(model, setup)
    return server_engine(model, gpu, setup.generation, setup.mesh, *of)


def generating(
    model: Model,
    gpu: Gpu | None,
    setup: TrainingSetup,
    resident: Resident,
    load: Moment,
    *,
    must_start: bool = True,
) -> Generating:
    """What generation adds to a GPU with these residents, in bytes. ``load``: the highest moment of loading.

    Raises ``ValueError`` with vLLM's own condition where it does not start; unless it ``must_start``, that is a moment
    beyond the GPU, by as much as its cache lacks.
    """
    if not setup.task.objective.generates:
        return NOTHING
    workspace = workspace_bytes(gpu)
    between = between_steps(setup, resident, workspace)
    generation = setup.generation
    if generation.use_transformers_continuous_batching:
        if gpu is None:
            raise PAGED_GPU()
        paged = paged_beside(model, gpu, setup, between)
        name = "transformers' paged cache"
        beside = _beside(Phase.GENERATION, name, between, paged.cache, paged.beside)
        return Generating(moments={Phase.GENERATION: beside})
    if not generation.use_vllm:
        return Generating(moments={Phase.GENERATION: _generate(model, setup, resident, between)})
    if not generation.is_colocated:
        if gpu is not None and must_start:
            check_server(gpu, generation, engine_of_server(model, gpu, setup), row_tokens(setup))
        return Generating(moments={Phase.PUSH_WEIGHTS: _push(model, setup, resident, between, 0)})
    if gpu is None:
        if not must_start:
            return Generating(
                moments={Phase.PUSH_WEIGHTS: _push(model, setup, resident, between, 0)}
            )
        raise NO_GPU(share=generation.vllm_gpu_memory_utilization)
    own = colocated_engine(model, gpu, setup)
    start = at_start(setup, resident)
    if must_start:
        check_start(gpu, setup, own, start)
    sleeps = generation.vllm_enable_sleep_mode
    in_steps = own.asleep if sleeps else own.kept
    pushed = own.asleep + own.weights if sleeps else own.kept
    moments = {
        Phase.LOAD: _higher(load, _beside(Phase.LOAD, "vLLM starts", start, own.asked)),
        Phase.PUSH_WEIGHTS: _push(model, setup, resident, between, pushed),
        Phase.GENERATION: _beside(
            Phase.GENERATION,
            "vLLM generates",
            while_generating(generation, between),
            own.asked,
        ),
    }
    if not own.starts:
        lacking = (own.blocks_needed + 1) * own.block - own.cache[1]
        moments[Phase.LOAD] = _beside(Phase.LOAD, "vLLM starts", {}, gpu.memory_bytes + lacking)
    return Generating(engine=own, in_steps=in_steps, moments=moments)


def paged_beside(
    model: Model, gpu: Gpu, setup: TrainingSetup, between: Mapping[Component, int]
) -> PagedCache:
    """The paged cache of a generation beside what the trainer holds (derived, from ``paged_cache``)."""
    free = gpu.memory_bytes - context_bytes(gpu).low - sum(between.values())
    return paged_cache(model, free, rows_at_once(setup), row_tokens(setup))


def _higher(one: Moment, other: Moment) -> Moment:
    return one if one.bytes >= other.bytes else other


def _beside(
    phase: Phase, name: str, resident: Mapping[Component, int], engine: int, temporaries: int = 0
) -> Moment:
    more = {Component.INFERENCE_ENGINE: engine, Component.TEMPORARIES: temporaries}
    return Moment(phase, name, {part: size for part, size in {**resident, **more}.items() if size})


def _push(
    model: Model,
    setup: TrainingSetup,
    resident: Resident,
    between: Mapping[Component, int],
    engine: int,
) -> Moment:
    """The engine gets new weights: merged if there are adapters, gathered if they are sharded."""
    merges = setup.adapters.uses_adapters
    name = "adapters are merged and pushed" if merges else "weights are pushed"
    return _beside(Phase.PUSH_WEIGHTS, name, between, engine, push_bytes(model, setup, resident))


def _generate(
    model: Model, setup: TrainingSetup, resident: Resident, between: Mapping[Component, int]
) -> Moment:
    cache = (
        rows_at_once(setup) * sequence_bytes(model, row_tokens(setup)) * compute_width(setup) // 2
    )
    moment = _beside(
        Phase.GENERATION,
        "the last token of transformers' generate",
        between,
        cache,
        generate_bytes(model, setup, resident),
    )
    prefilled = (
        rows_at_once(setup) * sequence_bytes(model, setup.prompt_tokens) * compute_width(setup) // 2
    )
    first = _beside(
        Phase.GENERATION,
        "the prompts of transformers' generate",
        between,
        prefilled,
        gathered_bytes(model, setup, resident)
        + cast_bytes(model, setup)
        + prompt_bytes(model, setup),
    )
    return _higher(moment, first)

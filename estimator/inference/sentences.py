"""What an estimate assumes of its generation, in sentences."""

from __future__ import annotations

from estimator.inference.colocation import colocated_engine, engine_of_server
from estimator.inference.rows import longest_row, row_tokens, rows_at_once
from estimator.inference.server import rows_of_engine
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model


def generation_sentences(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> list[str]:
    """Where completions come from, how many at once, and what is not counted; none without generation."""
    if not setup.task.objective.generates:
        return []
    rows, tokens = rows_at_once(setup), row_tokens(setup)
    of = f"{rows:,} rows of a generation, of {tokens:,} tokens each"
    if setup.generation.use_transformers_continuous_batching:
        return [
            f"transformers generates the {of}, by continuous batching with FlashAttention, whose paged cache is "
            "planned in half of the free memory. Rewards take no time and no memory here."
        ]
    if not setup.generation.use_vllm:
        return [
            f"transformers generates all {of}, together; every completion is as long as allowed. Rewards take no time "
            "and no memory here."
        ]
    if not setup.generation.is_colocated:
        return [_of_server(model, gpu, setup, of)]
    said = [
        f"vLLM 0.33 beside TRL 1.16 takes {setup.generation.vllm_gpu_memory_utilization:g} of the whole GPU, "
        "not of what is free."
    ]
    if gpu is not None:
        low, high = colocated_engine(model, gpu, setup).at_once
        given = rows * setup.generation.vllm_tensor_parallel_size
        held = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        said.append(
            f"Of the {given:,} rows that an engine is given, {held} run at once at full length."
        )
    longest = longest_row(model, setup)
    if longest > tokens:
        said.append(
            f"vLLM must hold one row of {longest:,} tokens to start; rows have {tokens:,}, so vllm_max_model_length "
            f"{tokens:,} is enough."
        )
    if setup.generation.vllm_enable_sleep_mode:
        said.append(
            "While the step trains vLLM sleeps at level 2: weights and cache are freed, CUDA graphs and the sampler's "
            "counts stay."
        )
    if setup.processes_per_gpu > 1:
        lora = " The adapters that verl's vLLM keeps come out of its share and are not counted."
        said.append(
            "verl's vLLM is a process of its own on each GPU, whose CUDA context is counted beside its share."
            + lora * setup.adapters.uses_adapters
        )
    return [*said, "Rewards take no time and no memory here."]


def _of_server(model: Model, gpu: Gpu | None, setup: TrainingSetup, of: str) -> str:
    gpus, engines = setup.generation.server_gpus, setup.generation.vllm_data_parallel_size
    parts = "one engine" if engines == 1 else f"{engines:,} engines"
    said = (
        f"vLLM generates the {of}, for each GPU that trains, on a server of {gpus:,} more GPU{'s' * (gpus > 1)} like "
        f"these, {parts}; the cost includes them"
    )
    if gpu is not None:
        low, high = engine_of_server(model, gpu, setup).at_once
        given = rows_of_engine(setup.generation, setup.mesh, rows_at_once(setup))
        held = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        said += (
            f". Of the {given:,} rows that an engine is given, {held} run at once at full length"
        )
    return f"{said}. Rewards take no time and no memory here."

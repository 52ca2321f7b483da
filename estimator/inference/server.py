"""vLLM on GPUs of its own: how many, whether it starts on them, and how many rows an engine holds at once.

    GPUs     vllm_tensor_parallel_size · vllm_data_parallel_size
    asked    0.9 of each

Each engine gets an equal part of the rows of all GPUs that train.

Source: trl 1.16, scripts/vllm_serve.py:111 (``gpu_memory_utilization``) and :228 (what it hands to ``vllm serve``).
"""

from __future__ import annotations

from estimator.inference.engine import Engine, asked_bytes, engine, largest_capture
from estimator.values.arithmetic import ceil_div
from estimator.values.facets.generation import Generation
from estimator.values.facets.mesh import Mesh
from estimator.values.refusals import Refusal, Report
from estimator.values.specs import Gpu, Model

UTILISATION = 0.9
"""Of each of its GPUs: trl 1.16, scripts/vllm_serve.py:111."""
LARGEST_GPU, LARGE_GPU = 171_798_691_840, 75_161_927_680
"""Bytes from which vLLM takes larger batches, 160 and 70 GiB; the second not on an A100 or a GB10."""
LARGEST, LARGE, SMALL = (1024, 16_384), (1024, 8192), (256, 2048)
"""Rows and tokens of a server's largest batch: vllm 0.33, engine/arg_utils.py:2940, ``get_batch_defaults``."""
GB10 = "12.1"
"""Its compute capability; the same file, line 2963."""

NO_START = Refusal(
    "vLLM's server does not start on {gpus} of {gpu}: weights, activations and CUDA graphs leave too little for its "
    "cache of one row of {longest:,} tokens; {instead}.",
    Report(
        "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/core/kv_cache_planning.py#L76"
    ),
)


def rows_of_engine(generation: Generation, mesh: Mesh, rows: int) -> int:
    """Rows of a generation that one engine is given (a count), of ``rows`` on each GPU that trains.

    >>> rows_of_engine(Generation(vllm_mode="server", vllm_data_parallel_size=2), Mesh(strategy="ddp", num_gpus=8), 16)
    64
    """
    return ceil_div(rows * mesh.num_gpus, generation.vllm_data_parallel_size)


def batch_defaults(gpu: Gpu, longest: int, asked_rows: int | None = None) -> tuple[int, int]:
    """Rows and tokens of a server's largest batch on such a card (counts); ``asked_rows``: in place of its own rows.

    No more tokens than so many rows of ``longest`` have, and no more rows of its own than tokens.
    Source: vllm 0.33, engine/arg_utils.py:2940 (``get_batch_defaults``) and :3151
    (``_set_default_max_num_seqs_and_batched_tokens_args``).
    """
    rows, tokens = SMALL
    if gpu.memory_bytes >= LARGEST_GPU:
        rows, tokens = LARGEST
    elif (
        gpu.memory_bytes >= LARGE_GPU and "A100" not in gpu.name and gpu.compute_capability != GB10
    ):
        rows, tokens = LARGE
    tokens = min((asked_rows or rows) * longest, tokens)
    return asked_rows or min(rows, tokens), tokens


def server_engine(
    model: Model, gpu: Gpu, generation: Generation, mesh: Mesh, rows: int, tokens: int, longest: int
) -> Engine:
    """One GPU's part of an engine of a server on GPUs like these; bytes.

    ``rows`` of ``tokens`` tokens on each GPU that trains; ``longest``: the row that vLLM must hold.
    """
    most, batched = batch_defaults(gpu, longest, generation.vllm_max_num_seqs)
    return engine(
        model,
        asked=asked_bytes(gpu.memory_bytes, UTILISATION),
        ranks=generation.vllm_tensor_parallel_size,
        rows=rows_of_engine(generation, mesh, rows),
        max_num_seqs=most,
        row_tokens=tokens,
        longest=longest,
        captures=largest_capture(gpu),
        batched_tokens=batched,
    )


def check_server(gpu: Gpu, generation: Generation, own: Engine, tokens: int) -> None:
    """Refuse a server that does not start on its GPUs."""
    if own.starts:
        return
    instead = "raise vllm_tensor_parallel_size, or use a larger GPU"
    if own.longest > tokens:
        instead = f"set vllm_max_model_length to {tokens:,}, or {instead}"
    raise NO_START(
        gpus=generation.vllm_tensor_parallel_size,
        gpu=gpu.name,
        longest=own.longest,
        instead=instead,
    )

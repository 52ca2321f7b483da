"""vLLM on GPUs of its own: how many, whether it starts on them, and how many rows an engine holds at once.

    GPUs     vllm_tensor_parallel_size · vllm_data_parallel_size
    asked    0.9 of each

Each engine gets an equal part of the rows of all GPUs that train.

Source: trl 1.16, scripts/vllm_serve.py:111 (``gpu_memory_utilization``) and :228 (what it hands to ``vllm serve``).
"""

from __future__ import annotations

from estimator.inference.engine import LARGEST_CAPTURE, Engine, asked_bytes, engine
from estimator.values.arithmetic import ceil_div
from estimator.values.refusals import Refusal, Report
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

UTILISATION = 0.9
"""Of each of its GPUs: trl 1.16, scripts/vllm_serve.py:111."""
LARGE_GPU = 75_161_927_680
"""Bytes from which vLLM takes larger batches, but for an A100."""
LARGE, SMALL = (1024, 8192), (256, 2048)
"""Rows and tokens of a server's largest batch: vllm, engine/arg_utils.py, ``get_batch_defaults``. Retrieved 2026-11."""

NO_START = Refusal(
    "vLLM's server does not start on {gpus} of {gpu}: weights, activations and CUDA graphs leave too little for its "
    "cache of one row of {longest:,} tokens; {instead}.",
    Report(
        "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/core/kv_cache_planning.py#L76"
    ),
)


def rows_of_engine(setup: TrainingSetup, rows: int) -> int:
    """Rows of a generation that one engine is given (a count), of ``rows`` on each GPU that trains.

    >>> setup = TrainingSetup(strategy="ddp", num_gpus=8, vllm_mode="server", vllm_data_parallel_size=2)
    >>> rows_of_engine(setup, 16)
    64
    """
    return ceil_div(rows * setup.mesh.num_gpus, setup.generation.vllm_data_parallel_size)


def server_engine(
    model: Model, gpu: Gpu, setup: TrainingSetup, rows: int, tokens: int, longest: int
) -> Engine:
    """One GPU's part of an engine of a server on GPUs like these; bytes.

    ``rows`` of ``tokens`` tokens on each GPU that trains; ``longest``: the row that vLLM must hold.
    """
    is_large = gpu.memory_bytes >= LARGE_GPU and "A100" not in gpu.name
    most, batched = LARGE if is_large else SMALL
    return engine(
        model,
        asked=asked_bytes(gpu.memory_bytes, UTILISATION),
        ranks=setup.generation.vllm_tensor_parallel_size,
        rows=min(rows_of_engine(setup, rows), setup.generation.vllm_max_num_seqs or most),
        row_tokens=tokens,
        longest=longest,
        captures=(1 + (gpu.architecture == "Blackwell")) * LARGEST_CAPTURE,
        batched_tokens=batched,
    )


def check_server(gpu: Gpu, setup: TrainingSetup, own: Engine, tokens: int) -> None:
    """Refuse a server that does not start on its GPUs."""
    if own.starts:
        return
    instead = "raise vllm_tensor_parallel_size, or use a larger GPU"
    if own.longest > tokens:
        instead = f"set vllm_max_model_length to {tokens:,}, or {instead}"
    raise NO_START(
        gpus=setup.generation.vllm_tensor_parallel_size,
        gpu=gpu.name,
        longest=own.longest,
        instead=instead,
    )

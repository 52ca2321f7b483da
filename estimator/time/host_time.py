"""Seconds that a GPU waits for the host, which launches operator after operator; derived from their number."""

from __future__ import annotations

from estimator.families.delta_net import CHUNK
from estimator.families.layer_kinds import LINEAR_ATTENTION
from estimator.time.lengths import Lengths
from estimator.time.recurrences import DELTA_BACKWARD_KERNELS, DELTA_FORWARD_KERNELS
from estimator.values.arithmetic import ceil_div, larger, total
from estimator.values.results import TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

FAST_OPERATOR, SLOW_OPERATOR = 11e-6, 25e-6
"""Seconds for the host to launch an operator: Python, dispatch, autograd and the kernel. An empty kernel takes 4 to 5
µs; modules, hooks and the allocator add the rest. fitted: the small steps of data/throughput.csv: PEFT 13 µs (2026,
L40S), Qwen 14 to 25 µs (PyTorch 2.0, A100)."""
SLOW_OPERATOR_SHARED = 1.5
"""Factor for several GPUs at the slow end, because of hooks and collectives. fitted: Qwen's rows."""
FAST_COMPILED, SLOW_COMPILED = 0.28, 0.48
"""Kernels that a compiled model launches, as multiples of the tape's operators, at the same seconds for each. traced:
torch 2.13's inductor, tests/verify/test_compiled_steps.py. Measured: 0.34 in the forward pass of Llama 3.2 1B and
3B, 1 × 128 tokens, where launches decide (18.3 to 6.3 and 33.4 to 11.2 ms).
https://github.com/huggingface/accelerate/blob/547479f3/benchmarks/torch.compile/README.md"""
SLOW_HOOK = 500e-6
"""Seconds for DeepSpeed's stage 3 to fetch and release a module's weights, per call, at the slow end; none at best,
where they are prefetched. fitted: Qwen-7B, full, 256 tokens, 12 ms per layer of seven modules called four times, and
the rows with stage 3 of data/throughput.csv.
deepspeed 0.19.6, runtime/zero/parameter_offload.py, ``_register_deepspeed_module``."""


def launches_part(
    model: Model,
    setup: TrainingSetup,
    length: Lengths,
    parts: list[TimePart],
    again: float,
    operators: float,
    calls: float,
) -> TimePart:
    """Time that the GPU waits for the host to launch kernels: the host's time minus the GPU's.

    ``operators`` and ``calls`` of modules with weights, of a micro-batch.
    """
    times = setup.batch.gradient_accumulation_steps
    low, high = FAST_OPERATOR * operators, SLOW_OPERATOR * operators
    if setup.computation.torch_compile:
        low, high = _compiled(setup, low, high)
    deltas = model.layer_types.count(LINEAR_ATTENTION) if model.delta_net else 0
    kernels = deltas * (DELTA_FORWARD_KERNELS * (1 + again) + DELTA_BACKWARD_KERNELS)
    low += kernels * (ceil_div(length.fast, CHUNK) - 1) * FAST_OPERATOR
    high += kernels * (ceil_div(length.slow, CHUNK) - 1) * SLOW_OPERATOR
    high *= SLOW_OPERATOR_SHARED if setup.mesh.num_gpus > 1 else 1
    high += SLOW_HOOK * calls * setup.mesh.strategy.gathers_modules
    return TimePart(
        "waiting for the host",
        larger(0.0, times * low - total(part.low_seconds for part in parts)),
        larger(0.0, times * high - total(part.high_seconds for part in parts)),
    )


def _compiled(setup: TrainingSetup, low: float, high: float) -> tuple[float, float]:
    """Seconds of launching a compiled model, from those of an eager one: none where one CUDA graph is replayed.

    Other lengths and each collective need graphs of their own, which at worst gain nothing.
    Source: torch 2.13, _inductor/cudagraph_trees.py.
    """
    if not setup.computation.uses_cuda_graphs:
        return FAST_COMPILED * low, SLOW_COMPILED * high
    varies = setup.batch.padded or setup.batch.padding_free or setup.mesh.num_gpus > 1
    return 0.0, SLOW_COMPILED * high if varies else 0.0

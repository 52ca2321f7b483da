"""Seconds that a GPU waits for the host, which launches operator after operator; derived from their number."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.families.delta_net import CHUNK
from estimator.families.layer_kinds import LINEAR_ATTENTION
from estimator.time.recurrences import DELTA_BACKWARD_KERNELS, DELTA_FORWARD_KERNELS
from estimator.values.arithmetic import ceil_div, larger
from estimator.values.range import Range, by_end, summed
from estimator.values.results import TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

OPERATOR = Range(11e-6, 25e-6)
"""Seconds for the host to launch an operator: Python, dispatch, autograd and the kernel. An empty kernel takes 4 to 5
µs; modules, hooks and the allocator add the rest. fitted: the small steps of data/throughput.csv: PEFT 13 µs (2026,
L40S), Qwen 14 to 25 µs (PyTorch 2.0, A100)."""
SHARED = Range(1, 1.5)
"""Factor for several GPUs at the slow end, because of hooks and collectives. fitted: Qwen's rows."""
COMPILED = Range(0.28, 0.48)
"""Kernels that a compiled model launches, as multiples of the tape's operators, at the same seconds for each. traced:
torch 2.13's inductor, tests/verify/test_compiled_steps.py. Measured: 0.34 in the forward pass of Llama 3.2 1B and
3B, 1 × 128 tokens, where launches decide (18.3 to 6.3 and 33.4 to 11.2 ms).
https://github.com/huggingface/accelerate/blob/547479f3/benchmarks/torch.compile/README.md"""
HOOK = Range(0.0, 500e-6)
"""Seconds for DeepSpeed's stage 3 to fetch and release a module's weights, per call; none at best, where they are
prefetched. fitted: Qwen-7B, full, 256 tokens, 12 ms per layer of seven modules called four times, and
the rows with stage 3 of data/throughput.csv.
deepspeed 0.19.6, runtime/zero/parameter_offload.py, ``_register_deepspeed_module``."""


def launches_part(
    model: Model,
    setup: TrainingSetup,
    length: int,
    parts: Sequence[TimePart],
    again: float,
    operators: float,
    calls: float,
) -> TimePart:
    """Time that the GPU waits for the host to launch kernels: the host's time minus the GPU's.

    ``length``: tokens per row. ``operators`` and ``calls`` of modules with weights, of a micro-batch.
    """
    times = setup.batch.gradient_accumulation_steps
    seconds = OPERATOR * operators
    if setup.computation.torch_compile:
        seconds = seconds * _compiled(setup)
    deltas = model.layer_types.count(LINEAR_ATTENTION) if model.delta_net else 0
    kernels = deltas * (DELTA_FORWARD_KERNELS * (1 + again) + DELTA_BACKWARD_KERNELS)
    seconds = seconds + kernels * (ceil_div(length, CHUNK) - 1) * OPERATOR
    if setup.mesh.num_gpus > 1:
        seconds = seconds * SHARED
    if setup.mesh.strategy.gathers_modules:
        seconds = seconds + HOOK * calls
    busy = summed(part.seconds for part in parts)
    waiting = by_end(lambda host, gpu: larger(0.0, host - gpu), times * seconds, busy)
    return TimePart("waiting for the host", waiting)


def _compiled(setup: TrainingSetup) -> Range[float]:
    """Launches of a compiled model, as a multiple of an eager one's: none where one CUDA graph is replayed.

    Other lengths and each collective need graphs of their own, which at worst gain nothing.
    Source: torch 2.13, _inductor/cudagraph_trees.py.
    """
    if not setup.computation.uses_cuda_graphs:
        return COMPILED
    varies = setup.batch.padded or setup.batch.padding_free or setup.mesh.num_gpus > 1
    return Range(0.0, COMPILED.high if varies else 0.0)

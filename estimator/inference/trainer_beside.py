"""What the trainer holds on a GPU while vLLM starts, and while it generates."""

from __future__ import annotations

from collections.abc import Mapping

from estimator.resident.model import Resident
from estimator.resident.overhead import context_bytes
from estimator.values.facets.generation import Generation
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Gpu


def between_steps(setup: TrainingSetup, resident: Resident, workspace: int) -> dict[Component, int]:
    """What the trainer holds when a generation begins, in bytes: no gradients, unless within an accumulation.

    DeepSpeed's stage 3 keeps its gradients' buffer.
    Source: trl 1.16, trainer/grpo_trainer.py:1440 (``generate_every``); transformers 5.23, trainer.py
    (``model.zero_grad`` after each step).
    """
    accumulation = setup.batch.gradient_accumulation_steps
    every = (setup.task.steps_per_generation or accumulation) * setup.task.num_iterations
    found = resident.sizes(workspace)
    if setup.mesh.strategy.has_gradient_buffer or every < accumulation:
        found[Component.GRADIENTS] = resident.accumulated
    found[Component.INFERENCE_ENGINE] = 0
    return {part: size for part, size in found.items() if size}


def while_generating(
    generation: Generation, between: Mapping[Component, int]
) -> dict[Component, int]:
    """Of ``between_steps``, what stays on the GPU while vLLM generates, in bytes; weights and states may be offloaded.

    Weights are pushed before they go.
    Source: ms-swift 4.6.0, swift/rlhf_trainers/rollout_mixin.py:1206 and grpo_trainer.py:1843 (``offload_context``);
    verl 0.9.1, workers/engine_workers.py, ``update_weights``, and workers/engine/base.py, ``BaseEngineCtx``.
    """
    gone = _offloaded(generation)
    return {part: size for part, size in between.items() if part not in gone}


def _offloaded(generation: Generation) -> tuple[Component, ...]:
    model = (Component.WEIGHTS, Component.ADAPTERS, Component.REFERENCE_MODEL)
    states = (Component.OPTIMIZER_STATES,)
    return (
        model * generation.generation_offload_model
        + states * generation.generation_offload_optimizer
    )


def offloaded_bytes(generation: Generation, resident: Resident) -> tuple[int, int]:
    """Bytes of one GPU that wait on the CPU while vLLM generates: of weights, and of optimizer states (derived)."""
    sizes = resident.sizes(0)
    of = [(part, sizes[part]) for part in _offloaded(generation)]
    states = sum(size for part, size in of if part is Component.OPTIMIZER_STATES)
    return sum(size for _, size in of) - states, states


def at_start(setup: TrainingSetup, resident: Resident) -> dict[Component, int]:
    """What the trainer holds when vLLM starts, in bytes: weights without optimizer states.

    Under FSDP and DeepSpeed's stages 1 and 2 the model is still on the CPU, as is a second model under several GPUs;
    verl has divided it. Offloaded weights wait there, too.

    Source: verl 0.9.1, workers/engine_workers.py, ``init_model``; transformers 5.23, trainer.py:481-501
    (``place_model_on_device``); trl 1.16, trainer/grpo_trainer.py (vLLM starts in ``__init__``, before
    ``accelerator.prepare``).
    """
    strategy = setup.mesh.strategy
    is_late = strategy.is_fsdp and not setup.task.given_loss.is_verls
    is_late |= strategy.partitions_flat
    if is_late or setup.generation.generation_offload_model:
        return {}
    found = {Component.WEIGHTS: resident.weights, Component.ADAPTERS: resident.adapters}
    if strategy.is_alone or strategy.gathers_modules:
        found[Component.REFERENCE_MODEL] = resident.reference
    return {part: size for part, size in found.items() if size}


def free_on_startup(gpu: Gpu, setup: TrainingSetup, start: Mapping[Component, int]) -> int:
    """Bytes of a card that are free when vLLM starts, at most: its own process's context is there, too.

    Source: vllm 0.33, v1/worker/gpu_worker.py:541 (``init_snapshot``, behind the device's and NCCL's own start);
    derived, from ``at_start``.
    """
    contexts = context_bytes(gpu, setup.processes_per_gpu).low
    return gpu.memory_bytes - contexts - sum(start.values())

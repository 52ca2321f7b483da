"""Widgets of single objectives, drawn only for the chosen objective."""

from __future__ import annotations

from dashboard.state import question
from dashboard.widgets import boxes
from estimator import TrainingSetup, contract


def generates() -> bool:
    """Whether the objective trains on text that the model generates."""
    return question.reading().setup.task.objective.generates


def _shares_with_vllm(setup: TrainingSetup) -> bool:
    return setup.generation.is_colocated


def _asks_reference(setup: TrainingSetup) -> bool:
    return setup.task.objective.has_reference


def _mean_row() -> None:
    """The mean that decides the seconds of a generation, below the limit of its completions."""
    boxes.widget(
        contract.BY_NAME["mean_tokens_per_example"],
        label="Mean tokens of a row",
        help="mean_tokens_per_example: the mean of prompt and completion. The mean length of completions decides the "
        "seconds of a step; left empty, every completion is as long as allowed. Memory depends on the limit.",
        null="the limit",
    )


UNUSUAL = {
    **dict.fromkeys(
        ("completion_fraction", "label_smoothing_factor"),
        boxes.Unusual(where=lambda setup: setup.task.objective.is_causal_lm),
    ),
    "max_prompt_length": boxes.Unusual(where=_asks_reference),
    "precompute_ref_log_probs": boxes.Unusual(
        where=lambda setup: (
            setup.task.objective.has_reference and not setup.task.objective.generates
        )
    ),
    **dict.fromkeys(
        (
            *("beta", "num_generations", "steps_per_generation"),
            "num_iterations",
        ),
        boxes.Unusual(where=lambda setup: setup.task.objective.generates),
    ),
    "max_completion_length": boxes.Unusual(
        where=lambda setup: setup.task.objective.generates, then=_mean_row
    ),
    "mean_tokens_per_example": boxes.Unusual(
        where=lambda setup: not setup.task.objective.generates
    ),
    "loss_type": boxes.Unusual(where=_asks_reference),
    "num_labels": boxes.Unusual(where=lambda setup: setup.task.objective.asks_labels),
    "vllm_mode": boxes.Unusual(where=lambda setup: setup.generation.use_vllm),
    **dict.fromkeys(
        (
            *("vllm_gpu_memory_utilization", "vllm_enable_sleep_mode"),
            "vllm_max_num_batched_tokens",
            *("generation_offload_model", "generation_offload_optimizer"),
        ),
        boxes.Unusual(where=_shares_with_vllm),
    ),
    **dict.fromkeys(
        ("vllm_tensor_parallel_size", "vllm_max_model_length", "vllm_max_num_seqs"),
        boxes.Unusual(where=lambda setup: setup.generation.use_vllm),
    ),
    "vllm_data_parallel_size": boxes.Unusual(
        where=lambda setup: setup.generation.use_vllm and not setup.generation.is_colocated
    ),
    "use_transformers_continuous_batching": boxes.Unusual(
        where=lambda setup: setup.task.objective.generates and not setup.generation.use_vllm
    ),
    "ds3_gather_for_generation": boxes.Unusual(
        where=lambda setup: not setup.generation.use_vllm and setup.mesh.strategy.gathers_modules
    ),
    "mini_batch_size": boxes.Unusual(where=lambda setup: setup.task.objective.compares_rows),
}

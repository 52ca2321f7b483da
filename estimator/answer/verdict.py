"""The verdict: need compared with capacity."""

from __future__ import annotations

from estimator.values.facets.generation import Generation
from estimator.values.facets.run import TrainingRun
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Phase


def beyond_the_step(decisive: Moment, setup: TrainingSetup) -> str:
    """What needs more than training and the setting that lowers it, in one sentence; empty if training decides.

    >>> beyond_the_step(Moment(Phase.EVALUATION, "lm_head", {}), TrainingSetup())
    'Evaluation needs more than training: lower per_device_eval_batch_size, now 8.'
    """
    smaller = less_engine(setup.generation)
    match decisive.phase:
        case Phase.EVALUATION:
            return f"Evaluation needs more than training: {smaller_evaluation(setup.run)}."
        case Phase.LOAD if setup.adapters.prepare_model_for_kbit_training:
            return f"Loading needs more than training ({decisive.name}): leave prepare_model_for_kbit_training off."
        case Phase.LOAD if Component.INFERENCE_ENGINE in decisive.resident:
            return f"vLLM's start needs more than training: {smaller}."
        case Phase.PUSH_WEIGHTS:
            return f"Pushing weights to vLLM needs more than training ({decisive.name}): {smaller}."
        case Phase.GENERATION if setup.generation.use_vllm:
            return f"Generation needs more than training: {smaller}."
        case Phase.GENERATION:
            return (
                "Generation needs more than training: lower max_completion_length or steps_per_generation, or set "
                "use_vllm."
            )
        case Phase.LOAD:
            return f"Loading needs more than training ({decisive.name}): a smaller batch or length does not lower it."
        case Phase.SAVE if setup.mesh.strategy.is_fsdp and not setup.mesh.loads_divided:
            return f"Saving needs more than training ({decisive.name}): set fsdp_state_dict_type to SHARDED_STATE_DICT."
        case Phase.SAVE if setup.run.zero3_save_16bit_model and not setup.adapters.uses_adapters:
            return f"Saving needs more than training ({decisive.name}): leave zero3_save_16bit_model off."
        case Phase.SAVE:
            return f"Saving needs more than training ({decisive.name}): set save_strategy to no, and save afterwards."
        case _:
            return ""


def less_engine(generation: Generation) -> str:
    """The setting that lowers vLLM's share, as the end of a sentence."""
    if not generation.is_colocated:
        return "shard the weights over more GPUs"
    now = generation.vllm_gpu_memory_utilization
    return f"lower vllm_gpu_memory_utilization, now {now:g}, or set vllm_mode to server"


def smaller_evaluation(run: TrainingRun) -> str:
    """The setting that lowers what an evaluation needs, as the end of a sentence."""
    if run.per_device_eval_batch_size > 1:
        return f"lower per_device_eval_batch_size, now {run.per_device_eval_batch_size}"
    return "set eval_strategy to no, and evaluate elsewhere"

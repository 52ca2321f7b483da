"""What generation refuses: keys that the rest of a setup forbids, and vLLM's own conditions to start."""

from __future__ import annotations

from collections.abc import Mapping

from estimator.families.weights import adapter_width
from estimator.inference.engine import Engine, hundredths, least_hundredths
from estimator.inference.paged import check_paged
from estimator.inference.rows import longest_row, row_tokens
from estimator.inference.trainer_beside import free_on_startup
from estimator.values.refusals import CONTRADICTION, NOT_MODELLED, Line, Refusal, Report
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Gpu, MixedPrecision, Model

VLLM = "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/"
GIB = 2**30

NO_GPU = Refusal(
    "vllm_gpu_memory_utilization {share:g} is a share of a GPU's memory; choose a gpu.",
    CONTRADICTION,
)
LOW_ON_STARTUP = Refusal(
    "vLLM does not start: {free:.2f} of {total:.2f} GiB are free beside the trainer's weights, less than "
    "vllm_gpu_memory_utilization {share:g} asks for ({asked:.2f} GiB); lower it to {most:.2f}.",
    Report(VLLM + "v1/worker/utils.py#L764"),
)
FULL_ON_STARTUP = Refusal(
    "vLLM does not start: {free:.2f} of {total:.2f} GiB are free beside the trainer's weights, less than "
    "vllm_gpu_memory_utilization {share:g} asks for ({asked:.2f} GiB); use a larger GPU, vllm_mode server, or method "
    "lora.",
    Report(VLLM + "v1/worker/utils.py#L764"),
)
NO_CACHE = Refusal(
    "vLLM does not start: of the {asked:.2f} GiB that vllm_gpu_memory_utilization {share:g} gives, weights, "
    "activations and CUDA graphs leave {cache:.2f} GiB for its cache, and one row of {longest:,} tokens needs "
    "{needed:.2f}; {instead}.",
    Report(VLLM + "v1/core/kv_cache_planning.py#L76"),
)
WORLD = Refusal(
    "vllm_tensor_parallel_size {ranks} does not divide num_gpus {gpus}; choose a divisor.",
    Line("trl", "generation/vllm_generation.py", 316, "must divide world size"),
)
HEADS = Refusal(
    "vllm_tensor_parallel_size {ranks} does not divide the {heads} attention heads of {model_type}; choose a divisor.",
    Report(VLLM + "config/model.py#L1559"),
)
BEYOND_POSITIONS = Refusal(
    "vllm_max_model_length {longest} exceeds the {limit} positions of {model_type}; lower it.",
    Report("https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/config/model.py"),
)
ROW_BEYOND_ENGINE = Refusal(
    "A prompt of {prompt} and a completion of {completion} tokens do not fit into vllm_max_model_length {longest}; "
    "raise it to {row}.",
    CONTRADICTION,
)
ROW_BEYOND_MODEL = Refusal(
    "A prompt of {prompt} and a completion of {completion} tokens exceed the {limit} positions of {model_type}; lower "
    "max_completion_length.",
    CONTRADICTION,
)
EIGHT_BIT = Refusal(
    "load_in_8bit cannot go with a colocated vLLM, which TRL refuses; use method qlora with transformers' generate, or "
    "a 16-bit base.",
    Line(
        "trl",
        "generation/vllm_generation.py",
        344,
        "vLLM does not support in-flight 8-bit quantization.",
    ),
)
PACKED = Refusal(
    "method qlora fails with use_vllm: TRL merges the adapters into weights that PEFT packs again, and pushes their "
    "4-bit codes, whose shape vLLM refuses; use method lora, or transformers' generate.",
    Report("https://github.com/huggingface/trl/issues/4973"),
)
TWO_GENERATORS = Refusal(
    "use_transformers_continuous_batching does nothing beside use_vllm; set one of them to false.",
    CONTRADICTION,
)
PAGED_STRATEGY = Refusal(
    "use_transformers_continuous_batching under strategy {strategy} is not modelled yet; use_vllm, or take ddp.",
    NOT_MODELLED,
)
CASTS_WEIGHTS = Refusal(
    "use_transformers_continuous_batching casts the trained weights to 16 bits in place before it generates; set {key} "
    "{value}, or mixed_precision no.",
    Line("trl", "trainer/grpo_trainer.py", 1798, "unwrapped_model.to(torch.bfloat16)"),
)
PAGED_GPU = Refusal(
    "use_transformers_continuous_batching takes half of the GPU's free memory; choose a gpu.",
    CONTRADICTION,
)
OFFLOADS_FOR_VLLM = Refusal(
    "{key} is for a vLLM on the GPUs that train, which takes turns with the trainer; set it to false.",
    CONTRADICTION,
)
NOT_GENERATED = Refusal(
    "use_vllm is for objectives grpo and rloo, not {objective}; set it to false.", CONTRADICTION
)


def check_generation(model: Model, setup: TrainingSetup) -> None:
    """Refuse keys of generation that the rest of the setup forbids, in one sentence."""
    generation, task = setup.generation, setup.task
    if not task.objective.generates:
        if generation.use_vllm:
            raise NOT_GENERATED(objective=task.objective)
        return
    if not generation.is_colocated:
        for key in ("generation_offload_model", "generation_offload_optimizer"):
            if getattr(generation, key):
                raise OFFLOADS_FOR_VLLM(key=key)
    prompt, completion, limit = (
        setup.prompt_tokens,
        task.max_completion_length,
        model.max_position_embeddings,
    )
    of = {"prompt": prompt, "completion": completion, "model_type": model.model_type}
    if generation.use_transformers_continuous_batching:
        _check_paged(model, setup)
    if not generation.use_vllm:
        return
    if setup.adapters.has_4bit_base:
        raise PACKED()
    if 0 < limit < prompt + completion:
        raise ROW_BEYOND_MODEL(**of, limit=limit)
    longest = longest_row(model, setup)
    if 0 < limit < longest:
        raise BEYOND_POSITIONS(longest=longest, limit=limit, model_type=model.model_type)
    if longest < prompt + completion:
        raise ROW_BEYOND_ENGINE(**of, longest=longest, row=prompt + completion)
    ranks = generation.vllm_tensor_parallel_size
    if model.num_attention_heads % ranks:
        raise HEADS(ranks=ranks, heads=model.num_attention_heads, model_type=model.model_type)
    if not generation.is_colocated:
        return
    if setup.mesh.num_gpus % ranks:
        raise WORLD(ranks=ranks, gpus=setup.mesh.num_gpus)
    if setup.adapters.has_8bit_base:
        raise EIGHT_BIT()


def _check_paged(model: Model, setup: TrainingSetup) -> None:
    if setup.generation.use_vllm:
        raise TWO_GENERATORS()
    if not setup.mesh.strategy.keeps_whole:
        raise PAGED_STRATEGY(strategy=setup.mesh.strategy)
    if setup.precision.mixed_precision is not MixedPrecision.NO:
        cast = setup.precision.mixed_precision
        if setup.precision.dtype.bytes == 4:
            raise CASTS_WEIGHTS(
                key="dtype", value="bfloat16" if cast is MixedPrecision.BF16 else "float16"
            )
        if setup.adapters.uses_adapters and adapter_width(setup) == 4:
            raise CASTS_WEIGHTS(key="autocast_adapter_dtype", value="false")
    check_paged(model)


def check_start(
    gpu: Gpu, setup: TrainingSetup, own: Engine, start: Mapping[Component, int]
) -> None:
    """Refuse a vLLM that does not start beside what the trainer holds, with vLLM's own condition."""
    share, total = setup.generation.vllm_gpu_memory_utilization, gpu.memory_bytes
    free = free_on_startup(gpu, setup, start)
    if free < own.asked:
        most = hundredths(free, total)
        record = LOW_ON_STARTUP if most > 0 else FULL_ON_STARTUP
        raise record(
            free=max(0, free) / GIB,
            total=total / GIB,
            share=share,
            asked=own.asked / GIB,
            most=most,
        )
    if not own.starts:
        least = least_hundredths(own.asking(1), total)
        shorter = own.blocks_needed > own.blocks_per_row
        instead = f"set vllm_max_model_length to {row_tokens(setup):,}" if shorter else ""
        if least <= 1:
            raised = f"raise vllm_gpu_memory_utilization to {least:.2f}"
            instead = f"{instead}, or {raised}" if instead else raised
        raise NO_CACHE(
            asked=own.asked / GIB,
            share=share,
            cache=max(0, own.cache[1]) / GIB,
            longest=own.longest,
            needed=(own.blocks_needed + 1) * own.block / GIB,
            instead=instead or "raise vllm_tensor_parallel_size, or use a larger GPU",
        )

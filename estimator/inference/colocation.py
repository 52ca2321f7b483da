"""What generation adds to a GPU that trains: vLLM beside the trainer, or transformers' own ``generate``.

Without sleep the engine's memory is there in every phase, and adds to the training step. With it the two take turns:
the card must hold the higher of the training step, and the trainer's residents with all that vLLM asks for.

Source: trl 1.16, generation/vllm_generation.py and trainer/grpo_trainer.py, ``_generate_single_turn``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from estimator.families.adapters import is_adapted, is_trained_whole
from estimator.families.counts import modules_with_counts
from estimator.families.modules import Linear, module_parameters, weight_shapes
from estimator.families.weights import adapter_width, module_bytes, unquantized_width, weight_width
from estimator.inference.engine import LARGEST_CAPTURE, Engine, asked_bytes, engine
from estimator.inference.kv_cache import layer_caches, sequence_bytes
from estimator.inference.paged import PagedCache, check_paged, paged_cache
from estimator.inference.server import check_server, server_engine
from estimator.objectives.batch import prompt_tokens
from estimator.parallel.sharding import fsdp_groups
from estimator.resident.model import Resident, weight_bytes
from estimator.resident.overhead import CONTEXT_LOW_BYTES, workspace_bytes
from estimator.values.refusals import CONTRADICTION, NOT_MODELLED, Line, Refusal, Report
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    Component,
    Gpu,
    Loss,
    Method,
    MixedPrecision,
    Model,
    Phase,
    Strategy,
)

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
    Line("trl", "trainer/grpo_trainer.py", 1799, "unwrapped_model.to(torch.bfloat16)"),
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


def rows_at_once(setup: TrainingSetup) -> int:
    """Rows of one generation on one GPU (a count): all micro-batches until the next one.

    Source: trl 1.16, trainer/grpo_config.py:1095 (``generation_batch_size``).

    >>> rows_at_once(TrainingSetup(objective="grpo", per_device_train_batch_size=4, gradient_accumulation_steps=2))
    8
    """
    steps = setup.task.steps_per_generation or setup.batch.gradient_accumulation_steps
    return setup.batch.per_device_train_batch_size * steps


def engine_rows(setup: TrainingSetup) -> int:
    """Rows that one engine runs at once at most (a count): those that its GPUs train on, or ``vllm_max_num_seqs``.

    >>> engine_rows(TrainingSetup(objective="grpo", per_device_train_batch_size=8, vllm_max_num_seqs=4))
    4
    """
    rows = rows_at_once(setup) * setup.generation.vllm_tensor_parallel_size
    return min(rows, setup.generation.vllm_max_num_seqs or rows)


def row_tokens(setup: TrainingSetup) -> int:
    """Tokens of a whole row (a count): prompt and completion.

    >>> row_tokens(TrainingSetup(objective="grpo", max_length=1024))
    1024
    """
    return prompt_tokens(setup) + setup.task.max_completion_length


def longest_row(model: Model, setup: TrainingSetup) -> int:
    """Tokens of the longest row that vLLM must hold (a count): by default every position of the model.

    Source: trl 1.16, generation/vllm_generation.py:362 (``max_model_len=None``); vllm 0.33, config/model.py,
    ``_get_and_verify_max_len``.
    """
    return (
        setup.generation.vllm_max_model_length or model.max_position_embeddings or row_tokens(setup)
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
        prompt_tokens(setup),
        task.max_completion_length,
        model.max_position_embeddings,
    )
    of = {"prompt": prompt, "completion": completion, "model_type": model.model_type}
    if generation.use_transformers_continuous_batching:
        _check_paged(model, setup)
    if not generation.use_vllm:
        return
    if setup.adapters.method is Method.QLORA:
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
    if setup.mesh.strategy not in (Strategy.NONE, Strategy.DDP):
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


def colocated_engine(
    model: Model, gpu: Gpu, setup: TrainingSetup, utilisation: float | None = None
) -> Engine:
    """vLLM's part of a GPU that trains too, whether or not it fits; ``utilisation`` in place of the setup's.

    Source: trl 1.16, trainer/grpo_trainer.py:1122 (``max_num_seqs``: a GPU's rows times the engine's GPUs).
    """
    generation = setup.generation
    share = generation.vllm_gpu_memory_utilization if utilisation is None else utilisation
    ranks = generation.vllm_tensor_parallel_size
    return engine(
        model,
        asked=asked_bytes(gpu.memory_bytes, share),
        ranks=ranks,
        rows=engine_rows(setup),
        row_tokens=row_tokens(setup),
        longest=longest_row(model, setup),
        captures=(1 + (gpu.architecture == "Blackwell")) * LARGEST_CAPTURE,
        batched_tokens=generation.vllm_max_num_batched_tokens,
    )


def engine_of_server(model: Model, gpu: Gpu, setup: TrainingSetup) -> Engine:
    """vLLM's part of one of the GPUs of a server (derived, from ``server_engine``)."""
    of = rows_at_once(setup), row_tokens(setup), longest_row(model, setup)
    return server_engine(model, gpu, setup, *of)


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
            check_server(gpu, setup, engine_of_server(model, gpu, setup), row_tokens(setup))
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
        _check_start(gpu, setup, own, start)
    sleeps = generation.vllm_enable_sleep_mode
    in_steps = own.asleep if sleeps else own.kept
    pushed = own.asleep + own.weights if sleeps else own.kept
    moments = {
        Phase.LOAD: _higher(load, _beside(Phase.LOAD, "vLLM starts", start, own.asked)),
        Phase.PUSH_WEIGHTS: _push(model, setup, resident, between, pushed),
        Phase.GENERATION: _beside(
            Phase.GENERATION, "vLLM generates", while_generating(setup, between), own.asked
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
    free = gpu.memory_bytes - CONTEXT_LOW_BYTES - sum(between.values())
    return paged_cache(model, free, rows_at_once(setup), row_tokens(setup))


def _higher(one: Moment, other: Moment) -> Moment:
    return one if one.bytes >= other.bytes else other


def _beside(
    phase: Phase, name: str, resident: Mapping[Component, int], engine: int, temporaries: int = 0
) -> Moment:
    more = {Component.INFERENCE_ENGINE: engine, Component.TEMPORARIES: temporaries}
    return Moment(phase, name, {part: size for part, size in {**resident, **more}.items() if size})


def between_steps(setup: TrainingSetup, resident: Resident, workspace: int) -> dict[Component, int]:
    """What the trainer holds when a generation begins, in bytes: no gradients, unless within an accumulation.

    DeepSpeed's stage 3 keeps its gradients' buffer.
    Source: trl 1.16, trainer/grpo_trainer.py:1440 (``generate_every``); transformers 5.23, trainer.py
    (``model.zero_grad`` after each step).
    """
    accumulation = setup.batch.gradient_accumulation_steps
    every = (setup.task.steps_per_generation or accumulation) * setup.task.num_iterations
    found = resident.sizes(workspace)
    if setup.mesh.strategy is Strategy.ZERO3 or every < accumulation:
        found[Component.GRADIENTS] = resident.accumulated
    found[Component.INFERENCE_ENGINE] = 0
    return {part: size for part, size in found.items() if size}


def while_generating(
    setup: TrainingSetup, between: Mapping[Component, int]
) -> dict[Component, int]:
    """Of ``between_steps``, what stays on the GPU while vLLM generates, in bytes; weights and states may be offloaded.

    Weights are pushed before they go.
    Source: ms-swift 4.6.0, swift/rlhf_trainers/rollout_mixin.py:1206 and grpo_trainer.py:1843 (``offload_context``);
    verl 0.9.1, workers/engine_workers.py, ``update_weights``, and workers/engine/base.py, ``BaseEngineCtx``.
    """
    gone = _offloaded(setup)
    return {part: size for part, size in between.items() if part not in gone}


def _offloaded(setup: TrainingSetup) -> tuple[Component, ...]:
    model = (Component.WEIGHTS, Component.ADAPTERS, Component.REFERENCE_MODEL)
    states = (Component.OPTIMIZER_STATES,)
    generation = setup.generation
    return (
        model * generation.generation_offload_model
        + states * generation.generation_offload_optimizer
    )


def offloaded_bytes(setup: TrainingSetup, resident: Resident) -> tuple[int, int]:
    """Bytes of one GPU that wait on the CPU while vLLM generates: of weights, and of optimizer states (derived)."""
    sizes = resident.sizes(0)
    of = [(part, sizes[part]) for part in _offloaded(setup)]
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
    is_late = strategy.is_fsdp and setup.task.loss is not Loss.SELECTIVE_VERL
    is_late |= strategy in (Strategy.ZERO1, Strategy.ZERO2)
    if is_late or setup.generation.generation_offload_model:
        return {}
    found = {Component.WEIGHTS: resident.weights, Component.ADAPTERS: resident.adapters}
    if strategy in (Strategy.NONE, Strategy.ZERO3):
        found[Component.REFERENCE_MODEL] = resident.reference
    return {part: size for part, size in found.items() if size}


def free_on_startup(gpu: Gpu, start: Mapping[Component, int]) -> int:
    """Bytes of a card that are free when vLLM starts, at most (derived, from ``at_start``)."""
    return gpu.memory_bytes - CONTEXT_LOW_BYTES - sum(start.values())


def hundredths(size: int, memory: int) -> float:
    """The largest utilisation of two decimals that asks for no more than ``size``.

    >>> hundredths(509, 1000)
    0.5
    """
    return max(0, 100 * size // memory) / 100


def _check_start(
    gpu: Gpu, setup: TrainingSetup, own: Engine, start: Mapping[Component, int]
) -> None:
    share, total = setup.generation.vllm_gpu_memory_utilization, gpu.memory_bytes
    free = free_on_startup(gpu, start)
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


def least_hundredths(size: int, memory: int) -> float:
    """The smallest utilisation of two decimals that asks for at least ``size``.

    >>> least_hundredths(501, 1000)
    0.51
    """
    return -(-100 * size // memory) / 100


VERL_BUCKET = 2048 * 2**20
"""Bytes of verl's buffer of weights: ``update_weights_bucket_megabytes`` 2048, trainer/config/rollout/rollout.yaml."""


# --- weights --------------------------------------------------------------------------------------


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


def push_bytes(model: Model, setup: TrainingSetup, resident: Resident) -> int:
    """Temporaries while weights are pushed, in bytes per GPU.

        full    the largest parameter, gathered; under FSDP 1 the largest unit; nothing without sharding
        lora    the whole model under zero3; and the largest product of adapters, twice: as computed and scaled

    verl sends them through a bucket on the GPU.

    Source: verl 0.9.1, workers/rollout/vllm_rollout/bucketed_weight_transfer.py:183; trl 1.16,
    generation/vllm_generation.py:387-480 (``_iter_fsdp1_params``, ``_iter_fsdp2_params``,
    ``_iter_named_params``); peft 0.21, tuners/lora/layer.py:1067 (``get_delta_weight``).
    """
    found = VERL_BUCKET if setup.task.loss is Loss.SELECTIVE_VERL else 0
    strategy = setup.mesh.strategy
    if setup.mesh.uses_fsdp1 and strategy.is_fsdp:
        found += largest_group(model, setup)
    elif strategy.is_fsdp or (strategy is Strategy.ZERO3 and not setup.adapters.uses_adapters):
        found += largest_parameter(model, setup)
    elif strategy is Strategy.ZERO3:
        found += weight_bytes(model, setup) - resident.weights
    if setup.adapters.uses_adapters:
        found += (
            2
            * adapter_width(setup)
            * max(
                (
                    prod(weight_shapes(module)[0])
                    for module, _ in modules_with_counts(model)
                    if isinstance(module, Linear) and is_adapted(module, setup.adapters)
                ),
                default=0,
            )
        )
    return found


def largest_group(model: Model, setup: TrainingSetup) -> int:
    """Bytes of the modules that FSDP gathers at once, at most (derived, from ``fsdp_groups``)."""
    return max(
        sum(module_bytes(module, setup) for module in group.modules)
        for group in fsdp_groups(model, setup.adapters)
    )


def largest_parameter(model: Model, setup: TrainingSetup) -> int:
    """Bytes of the largest single parameter, whole (derived, from ``weight_shapes``)."""
    return max(
        prod(shape) * weight_width(module, setup)
        for module, _ in modules_with_counts(model)
        for shape in weight_shapes(module)
    )


# --- transformers ---------------------------------------------------------------------------------

MAX_LIVE_PARAMETERS = 10**9
"""DeepSpeed 0.19, runtime/zero/config.py, ``stage3_max_live_parameters``."""
SAMPLED_BYTES = 8
"""Bytes per row and word beside the logits: a float32 copy and its softmax. transformers 5.23, generation/utils.py,
``_sample``."""


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
        rows_at_once(setup)
        * sequence_bytes(model, prompt_tokens(setup))
        * compute_width(setup)
        // 2
    )
    first = _beside(
        Phase.GENERATION,
        "the prompts of transformers' generate",
        between,
        prefilled,
        gathered_bytes(model, setup, resident)
        + cast_bytes(model, setup)
        + _prompt_bytes(model, setup),
    )
    return _higher(moment, first)


def compute_width(setup: TrainingSetup) -> int:
    """Bytes of an element that the model computes: 2 under autocast or in 16 bits."""
    if setup.precision.mixed_precision is not MixedPrecision.NO:
        return 2
    return unquantized_width(setup)


def gathered_bytes(model: Model, setup: TrainingSetup, resident: Resident) -> int:
    """Bytes of the weights that are gathered for the whole generation, beyond a GPU's own.

    Source: trl 1.16, models/utils.py:202, ``unwrap_model_for_generation`` (stage 3: ``GatheredParameters`` of all);
    distributed.py:74, ``summon_full_params`` (FSDP 1: the root's own; FSDP 2: nothing); torch 2.13,
    distributed/fsdp/_fully_shard (one group is gathered while another computes).
    """
    rest = weight_bytes(model, setup) - resident.weights
    if setup.mesh.strategy is Strategy.ZERO3:
        if setup.generation.ds3_gather_for_generation:
            return rest
        return min(rest, MAX_LIVE_PARAMETERS * unquantized_width(setup))
    return 2 * largest_group(model, setup) if setup.mesh.strategy.is_fsdp else 0


def cast_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of autocast's cached copies of trained float32 linears, which live for one forward call.

    Source: torch 2.13, aten/src/ATen/autocast_mode.cpp, ``cached_cast`` (leaves that require gradients, also under
    ``no_grad``).
    """
    if setup.precision.mixed_precision is MixedPrecision.NO:
        return 0
    return sum(
        2 * count * module_parameters(module)
        for module, count in modules_with_counts(model)
        if isinstance(module, Linear)
        and weight_width(module, setup) == 4
        and is_trained_whole(module, setup.adapters)
    )


def generate_bytes(model: Model, setup: TrainingSetup, resident: Resident) -> int:
    """Temporaries of the last token, in bytes per GPU: gathered weights, casts, logits, and one layer's new cache.

        a cache grows by concatenation: for a moment one layer's keys exist twice

    Source: transformers 5.23, cache_utils.py, ``DynamicLayer.update`` (``torch.cat``).
    """
    rows = rows_at_once(setup)
    logits = rows * model.vocab_size * (compute_width(setup) + SAMPLED_BYTES)
    layer = max((it.token_bytes for it, _ in layer_caches(model)), default=0)
    grown = rows * row_tokens(setup) * layer * compute_width(setup) // 2 // 2
    return gathered_bytes(model, setup, resident) + cast_bytes(model, setup) + max(logits, grown)


def _prompt_bytes(model: Model, setup: TrainingSetup) -> int:
    """Temporaries of the prompts' pass: the widest layer, without gradients; the head sees the last token alone."""
    tokens = rows_at_once(setup) * prompt_tokens(setup)
    wide = model.intermediate_size
    if model.num_experts:
        wide = max(
            wide * (model.moe_intermediate_size == 0),
            model.num_experts_per_tok * model.moe_intermediate_size,
        )
    return tokens * compute_width(setup) * (2 * model.hidden_size + 3 * wide)

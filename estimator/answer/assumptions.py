"""What an estimate rests on, in sentences: one function a topic, in the order in which they are said."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from estimator.families.adapters import default_targets, unmatched_targets
from estimator.families.kernels import attention_of, fallback_of
from estimator.families.liger import loss_sentences
from estimator.families.registry import family_of
from estimator.families.vision.sentences import image_sentences
from estimator.families.wrapped import class_sentence
from estimator.inference.rows import mean_completion
from estimator.inference.sentences import generation_sentences
from estimator.parallel.assumptions import sharing_sentences
from estimator.parallel.module_devices import why_left_on_the_cpu
from estimator.parallel.network import network_sentences
from estimator.passes.assumptions import objective_sentences
from estimator.passes.batch import joined, passed_rows
from estimator.passes.compiled import compiled_sentences
from estimator.passes.float8 import float8_sentences
from estimator.resident.optimizer import LOW_RANK, LOW_RANK_OPTIMIZERS, PAGED, RULES
from estimator.run.prequantized import loading_sentence
from estimator.time.cost import cheapest, rented
from estimator.time.lengths import expected_longest
from estimator.time.rates import INSIDE, missing_rate
from estimator.values.facets.batch import Batch
from estimator.values.facets.computation import Computation
from estimator.values.kinds import one_of
from estimator.values.results import RunTime
from estimator.values.setup import TrainingSetup
from estimator.values.specs import ALL_LINEAR, Gpu, Model

Say = Callable[[Model, Gpu | None, TrainingSetup], Iterator[str]]


def assumptions(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> tuple[str, ...]:
    """What the bytes rest on."""
    said = (sentence for say in SENTENCES for sentence in say(model, gpu, setup))
    return (*said, *model.notes)


def _rows(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Iterator[str]:
    yield _rows_sentence(model, setup.batch, setup.computation)
    yield "The peak is that of a step after the first, when the optimizer states exist."
    if loaded := loading_sentence(model, setup.adapters, setup.precision):
        yield loaded
    if attention_of(model, setup.computation) is not setup.computation.attn_implementation:
        yield f"transformers runs {model.model_type} with eager attention, because it rejects SDPA for it."


def _adapters(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Iterator[str]:
    adapters, computation = setup.adapters, setup.computation
    if adapters.has_8bit_base:
        stays = computation.gradient_checkpointing and not computation.use_reentrant
        yield (
            "LLM.int8 computes outlier columns (above its threshold of 6) separately, which takes a little more; none "
            "is counted. It keeps the input of every 8-bit layer until backward ends"
            + (", despite gradient checkpointing; use_reentrant drops them." if stays else ".")
        )
    elif adapters.load_in_8bit:
        yield f"load_in_8bit applies to method lora; {adapters.method} ignores it."
    if adapters.uses_adapters and adapters.modules_to_save is not None:
        yield (
            f"Copies of {', '.join(adapters.modules_to_save)} are trained in full, in the base's dtype; "
            "the frozen originals stay on the GPU."
        )
    targets = adapters.lora_target_modules
    if adapters.uses_adapters and default_targets(model, setup.adapters) == targets != ALL_LINEAR:
        yield (
            f"PEFT refuses adapters on all linears of {model.model_type}: lora_target_modules is "
            f"{', '.join(targets)}."
        )
    if unmatched := unmatched_targets(model, adapters):
        yield (
            f"{model.model_type} has no {one_of(unmatched)}: PEFT adapts the other "
            "lora_target_modules, without a warning."
        )
    if made := class_sentence(model, adapters):
        yield made


def _kept_elsewhere(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Iterator[str]:
    """Sentences that stand beside their formulas."""
    yield from image_sentences(model, setup)
    yield from loss_sentences(model, setup)
    yield from compiled_sentences(setup.adapters, setup.computation)
    yield from objective_sentences(model, setup)
    yield from generation_sentences(model, gpu, setup)


def _layers(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Iterator[str]:
    computation = setup.computation
    recomputes = computation.gradient_checkpointing and computation.use_reentrant
    if model.num_kv_shared_layers and recomputes:
        yield (
            "With use_reentrant, shared keys and values receive no gradients from the layers that reuse them, because "
            "each layer is recomputed on its own. Leave it at false."
        )
    if (fallback := fallback_of(model)) is not None:
        yield (
            f"The {fallback[0]} are counted as PyTorch runs them, in memory and in time, not with the kernels of "
            f"{fallback[1]}, which transformers uses where they are installed."
        )


def _experts(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Iterator[str]:
    if family_of(model).runs_every_expert:
        yield (
            f"transformers runs every token through all {model.num_experts} experts and weights the unchosen ones by "
            "0: memory and time are those of all experts."
        )
    elif model.num_experts:
        yield (
            f"Each token goes to {model.num_experts_per_tok} of {model.num_experts} experts in the grouped kernel: "
            "how evenly tokens are routed does not change the memory."
        )
    if not setup.adapters.has_4bit_base:
        return
    if model.num_experts:
        is_upcast = setup.adapters.prepare_model_for_kbit_training
        width = "float32" if is_upcast else setup.precision.dtype.value
        yield f"bitsandbytes packs linear layers only: the stacked experts and the router stay in {width}."
    if own := family_of(model).own_linear:
        yield f"bitsandbytes packs plain nn.Linear only: {own} stays as loaded, so QLoRA saves nothing over LoRA here."


def _dtypes(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Iterator[str]:
    states, dtype = setup.optimisation.optim_state_dtype, setup.precision.dtype
    if states is not None and states is not dtype:
        yield (
            f"Optimizer states in {states.value} with {dtype.value} weights are a what-if: Trainer never keeps them so."
        )
    lacks = gpu is not None and not gpu.supports_bf16 and setup.precision.uses_bf16
    if gpu is not None and lacks and not setup.adapters.has_4bit_base:
        yield (
            f"{gpu.capitalised_name} has no bfloat16 units: the memory estimate holds, but the run would be slow or "
            "refused."
        )
    yield from float8_sentences(model, setup.adapters, setup.precision)


def _sharing(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Iterator[str]:
    yield from sharing_sentences(setup)
    if setup.mesh.strategy.places_layers and (left_over := why_left_on_the_cpu(model, gpu, setup)):
        yield left_over


def _optimizer(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Iterator[str]:
    optim = setup.optimisation.optim
    if optim in LOW_RANK_OPTIMIZERS:
        yield (
            f"{optim} projects every linear layer (optim_target_modules all-linear) to rank "
            f"{LOW_RANK}; its step is one that updates the projections"
            + (", without cuSOLVER's workspace." if RULES[optim].decomposes else ".")
        )
    if optim in PAGED:
        yield "Paged optimizer states are outside torch's counter; the need counts them at its high end."


SENTENCES: tuple[Say, ...] = (
    _rows,
    _adapters,
    _kept_elsewhere,
    _layers,
    _experts,
    _dtypes,
    _sharing,
    _optimizer,
)


def _rows_sentence(model: Model, batch: Batch, computation: Computation) -> str:
    length = batch.max_length
    rows = joined(batch, batch.per_device_train_batch_size, length)
    if not rows.is_joined:
        laid = "some padded" if batch.padded else "packed or padded to it, without a mask"
        return f"Every example is {length:,} tokens long, {laid}."
    if computation.attn_implementation.is_flash:
        mask = "without a mask"
    else:
        mask = (
            f"and {attention_of(model, computation)} masks all of its tokens with all: flash_attention_2 needs "
            "no mask"
        )
    what = "Packed rows" if batch.packing else "Examples"
    return f"{what} of {length:,} tokens are joined into one row of {rows.max_length:,} a micro-batch, {mask}."


def run_assumptions(gpu: Gpu | None, setup: TrainingSetup, time: RunTime | None) -> tuple[str, ...]:
    """What seconds and dollars rest on."""
    if gpu is None:
        return ()
    missing = missing_rate(gpu, setup)
    if time is None:
        return (missing,) if missing else ()
    sentences = [] if setup.run.mfu is not None else network_sentences(gpu, setup.mesh)
    if setup.run.mfu is None:
        sentences.append(_bracket(gpu, setup, time))
    mean = setup.run.mean_tokens_per_example
    if setup.task.objective.generates:
        sentences.append(_mean_sentence(setup))
    elif setup.batch.padded and mean is not None and mean < setup.batch.max_length:
        sentences.append(_padding(setup, mean))
    elif setup.batch.padded and mean is not None and mean > setup.batch.max_length:
        sentences.append(f"Examples are cut to {setup.batch.max_length} tokens.")
    elif mean is not None and mean != setup.batch.max_length:
        sentences.append(
            f"Examples of {mean} tokens are packed into rows of {setup.batch.max_length}."
        )
    if setup.run.usd_per_gpu_hour is None:
        sentences.append(_price(gpu, setup.billed_gpus))
    return tuple(sentences)


def _padding(setup: TrainingSetup, mean: int) -> str:
    """How long padded rows become."""
    rows, longest = passed_rows(setup), setup.batch.max_length
    if rows == 1:
        return f"A row alone in its micro-batch is not padded: {mean:,} tokens on average."
    return (
        f"The {rows:,} rows of a micro-batch are padded to the longest, {expected_longest(rows, mean, longest):,} "
        f"tokens on average if lengths fall off exponentially from their mean {mean:,} to {longest:,}: only these are "
        "known."
    )


def _mean_sentence(setup: TrainingSetup) -> str:
    """How long completions are on average, which decides the seconds of their generation."""
    mean = setup.run.mean_tokens_per_example
    if mean is None:
        return (
            "The mean length of completions decides the seconds, and none is given: every completion is counted at "
            f"max_completion_length, {setup.task.max_completion_length:,} tokens. Set mean_tokens_per_example to the "
            "mean of prompt and completion."
        )
    return (
        f"The mean length of completions decides the seconds: {mean_completion(setup):,} tokens, which the prompt "
        f"leaves of mean_tokens_per_example {mean:,}. Rows are trained between that mean and "
        f"{setup.batch.max_length:,} tokens, to which TRL pads the longest."
    )


def _bracket(gpu: Gpu, setup: TrainingSetup, time: RunTime) -> str:
    """What the width of the seconds rests on."""
    if setup.task.objective.generates:
        return (
            "The seconds of generation rest on bandwidth and on no fit; docs/generation.md holds them against "
            "published steps."
        )
    if setup.run.pace is not None:
        taken = f" ({setup.run.pace_from})" if setup.run.pace_from else ""
        spread = math.sqrt(time.step_seconds.high / time.step_seconds.low)
        return (
            f"Seconds follow your own step{taken}, within a factor of {spread:.2f} either way, the more the less this "
            "step is like that one; another machine has another pace."
        )
    if setup.precision.uses_fp8:
        return (
            "No share of the FP8 rate is fitted to published runs: products take the shares of 16 bits, and casts the "
            "time of their bytes; one step of your own narrows the range (pace)."
        )
    if gpu.architecture not in INSIDE:
        rate = (
            "its best measured rate of matrix products"
            if gpu.sustained_tflops is not None
            else "its datasheet's rate of matrix products, for none was measured,"
        )
        return (
            f"Few speeds are published for {gpu.architecture or 'this'} cards, so the range of seconds takes {rate} "
            "and the shares of it that other generations reach; one step of your own narrows it (pace)."
        )
    inside, runs = INSIDE[gpu.architecture]
    return (
        f"{inside} of {runs} published runs on {gpu.architecture} cards lie inside the range of seconds; one step of "
        "your own narrows it (pace)."
    )


def _price(gpu: Gpu, gpus: int) -> str:
    price = cheapest(gpu, gpus)
    if price is None:
        many = f"{gpus} × " * (gpus > 1)
        return (
            f"No cost is given: no price is listed for {many}{gpu.name_in_a_setup}; set usd_per_gpu_hour to your own "
            "price."
        )
    together = rented(price, gpus)
    whose = f"that of {gpu.instance}" if gpu.instance else "the cheapest known listing"
    more = (
        f"; the card's price divided by its {gpu.slices} slices" * (gpu.slices > 1),
        "; a marketplace, where prices start at that" * (price.commitment == "marketplace"),
        "; that listing is old, check it" * price.is_old,
        ".",
        f" {gpus} GPUs are billed as {together}, in machines of {price.min_gpus}."
        * (together > gpus),
    )
    return (
        f"Priced at {price.usd_per_gpu_hour:.2f} US dollars per GPU-hour, {whose}: "
        f"{price.provider}, {price.date}" + "".join(more)
    )

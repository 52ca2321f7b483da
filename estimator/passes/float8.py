"""FP8 as accelerate has it: which linears torchao replaces, and where it cannot."""

from __future__ import annotations

from functools import lru_cache

from estimator.families.adapters import is_adapted
from estimator.families.loaded import has_towers
from estimator.families.model_tree import Located, modules_in_order, tied_head
from estimator.families.modules import HEADS, Linear, Module
from estimator.tape.float8 import converts, is_aligned
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.batch import Batch
from estimator.values.facets.precision import Precision
from estimator.values.refusals import NOT_MODELLED, Line, Refusal, Report
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, Fp8Backend, Gpu, Model

LATER = Refusal(
    "mixed_precision fp8 is not modelled yet with {what}; {instead}, or set mixed_precision to bf16.",
    NOT_MODELLED,
)
UNALIGNED = Refusal(
    "fp8_pad_inner_dim false needs a multiple of 16 tokens in a micro-batch, and per_device_train_batch_size × "
    "max_length is {tokens:,}: torch._scaled_mm stops at the gradient of a weight; set it true, or change max_length.",
    Report("https://github.com/pytorch/ao/blob/v0.18.0/torchao/float8/config.py"),
)
PACKED_BASE = Refusal(
    "mixed_precision fp8 fails on a base packed by bitsandbytes: its layers are linears too, so torchao takes their "
    "packed bytes for a matrix ('Inner dims must match for mm'); set mixed_precision to bf16.",
    Report("https://github.com/pytorch/ao/blob/v0.18.0/torchao/float8/float8_ops.py"),
)
ROUTER = Refusal(
    "mixed_precision fp8 fails in {model_type}, whose router is a linear with several outputs, which torchao replaces "
    "by one with a single output; set mixed_precision to bf16.",
    Report("https://github.com/pytorch/ao/blob/v0.18.0/torchao/float8/float8_linear_utils.py"),
)
WITHOUT_FP8 = Refusal(
    "mixed_precision fp8 needs a GPU of compute capability 8.9 or more, and {gpu} has {capability}: accelerate trains "
    "in fp16 there, with a warning; set mixed_precision to bf16 or fp16.",
    Line(
        "accelerate",
        "state.py",
        937,
        "elif torch.cuda.is_available() and not check_cuda_fp8_capability():",
    ),
)
NO_FP8_RATE = Refusal(
    "mixed_precision fp8 needs a GPU that multiplies in FP8, and none is known of {gpu}; set mixed_precision to bf16.",
    Report("https://github.com/pytorch/ao/blob/v0.18.0/torchao/float8/README.md"),
)
OTHER_ACCELERATOR = Refusal(
    "mixed_precision fp8 on {vendor}'s {gpu} is not modelled yet: accelerate takes another library there; set "
    "mixed_precision to bf16.",
    NOT_MODELLED,
)


@lru_cache(maxsize=256)
def kept(model: Model) -> tuple[Located, ...]:
    """The first and the last ``nn.Linear`` of the model, which accelerate leaves as they are.

    Source: accelerate 1.15, utils/ao.py, ``find_first_last_linear_layers``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [located.module.name for located in kept(TINY_LLAMA)]
    ['self_attn.q_proj', 'lm_head']
    """
    linears = [located for located in modules_in_order(model) if _is_linear(located.module)]
    return (linears[0], linears[-1]) if linears else ()


def _is_linear(module: Module) -> bool:
    return isinstance(module, Linear) and not module.conv1d


def out_of_float8(model: Model, layer: int | None) -> frozenset[str]:
    """Names of the linears of a layer, or of those outside the layers, that stay out of FP8 in any size."""
    return frozenset(
        located.module.name
        for located in kept(model)
        if (None if located.at is None else located.at.layer) == layer
    )


@lru_cache(maxsize=256)
def converted_linears(model: Model, backend: Fp8Backend = Fp8Backend.AO) -> tuple[Linear, ...]:
    """The linears that accelerate converts, one for each time the model has it, without adapters.

    Source: accelerate 1.15, utils/ao.py, ``filter_linear_layers``; utils/transformer_engine.py, ``convert_model``
    (the first and the last too, but no tied head, which would lose its weight).
    """
    return tuple(
        located.module
        for located in modules_in_order(model)
        if isinstance(located.module, Linear)
        and not located.module.conv1d
        and converts(located.module.in_features, located.module.out_features)
        and (backend is Fp8Backend.TE or located not in kept(model))
        and located.module not in tied_head(model)
    )


@lru_cache(maxsize=256)
def converted(model: Model) -> tuple[int, int]:
    """How many linears accelerate converts, and of how many (counts, whole model, without adapters).

    Source: derived, from ``converted_linears``.
    """
    linears = [located for located in modules_in_order(model) if _is_linear(located.module)]
    return len(converted_linears(model)), len(linears)


def check_float8(model: Model, setup: TrainingSetup) -> None:
    """Refuse what torchao cannot convert, and what is not modelled under FP8."""
    if not setup.precision.uses_fp8:
        return
    for breaks, what, instead in _later(model, setup):
        if breaks:
            raise LATER(what=what, instead=instead)
    if setup.adapters.has_packed_base:
        raise PACKED_BASE()
    if any(
        isinstance(located.module, Linear)
        and located.module.routes
        and converts(located.module.in_features, located.module.out_features)
        for located in modules_in_order(model)
    ):
        raise ROUTER(model_type=model.model_type)


def _later(model: Model, setup: TrainingSetup) -> tuple[tuple[bool, str, str], ...]:
    """Each case that is not modelled: whether it is here, what it is, and what else to take."""
    strategy, adapters = setup.mesh.strategy, setup.adapters
    heads = [*tied_head(model), *(located.module for located in modules_in_order(model))]
    return (
        (
            setup.precision.fp8_backend is Fp8Backend.TE,
            "fp8_backend te",
            "take fp8_backend ao",
        ),
        (
            not strategy.keeps_whole,
            f"strategy {strategy}",
            "take strategy ddp",
        ),
        (setup.precision.dtype is Dtype.FLOAT16, "dtype float16", "take dtype bfloat16"),
        (adapters.use_dora, "use_dora", "turn use_dora off"),
        (
            setup.task.objective.generates,
            f"objective {setup.task.objective}",
            "take another objective",
        ),
        (
            setup.computation.activation_offloading,
            "activation_offloading",
            "turn it off",
        ),
        (
            model.vision is not None or has_towers(model, adapters),
            "models that have an image tower",
            "take model_class text",
        ),
        (
            any(
                isinstance(module, Linear) and module.name in HEADS and is_adapted(module, adapters)
                for module in heads
            ),
            "an adapter on the head",
            "leave it out of lora_target_modules",
        ),
    )


def check_float8_tokens(precision: Precision, batch: Batch) -> None:
    """Refuse a number of tokens that FP8's products cannot take as it is."""
    if not precision.uses_torchao or precision.fp8_pad_inner_dim:
        return
    if not is_aligned(batch.tokens):
        raise UNALIGNED(tokens=batch.tokens)


def check_float8_card(gpu: Gpu | None, precision: Precision) -> None:
    """Refuse FP8 on a card without it."""
    if not precision.uses_fp8 or gpu is None:
        return
    if gpu.vendor == "Intel":
        raise OTHER_ACCELERATOR(vendor=gpu.vendor, gpu=gpu.name)
    if gpu.lacks_fp8 and gpu.vendor == "NVIDIA":
        raise WITHOUT_FP8(gpu=gpu.name, capability=gpu.compute_capability)
    if gpu.lacks_fp8:
        raise NO_FP8_RATE(gpu=gpu.name)


def float8_sentences(model: Model, adapters: Adapters, precision: Precision) -> list[str]:
    """What the user should know of FP8: which linears are in it, and what they cost."""
    if not precision.uses_torchao:
        return []
    taken, linears = converted(model)
    if not taken:
        return [
            f"accelerate converts none of {model.model_type}'s linear layers to FP8: they are no nn.Linear, or only "
            "the first and the last are."
        ]
    sentences = [
        f"accelerate converts {taken:,} of {linears:,} linear layers to torchao's Float8Linear: not the first, the "
        "last, and those with a size that is no multiple of 16. They run eagerly; torch.compile would fuse "
        "their casts and lower the peak."
    ]
    sentences.append(
        "enable_fsdp_float8_all_gather is taken as false: at accelerate's default, true, the optimizer keeps weights "
        "that get no gradient outside FSDP 2, and the converted layers are not trained."
    )
    if adapters.uses_adapters:
        sentences.append(
            "torchao's linears save their input and make the weight's gradient even where the weight is frozen, and "
            "LoRA's A and B are converted too where lora_r is a multiple of 16."
        )
    return sentences

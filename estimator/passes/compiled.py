"""What ``torch_compile`` cannot go with, and what an estimate of a compiled step rests on."""

from __future__ import annotations

from estimator.values.facets.adapters import Adapters
from estimator.values.facets.computation import Computation
from estimator.values.refusals import NOT_MODELLED, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import MixedPrecision, Model

COMPILED_LATER = Refusal(
    "torch_compile is not modelled yet with {what}; set it to false, or {instead}.",
    NOT_MODELLED,
)


def check_compiled(model: Model, setup: TrainingSetup) -> None:
    """Refuses, in one sentence, a compiled step whose graphs are not known.

    DeepSpeed's hooks, those of a device map and of saved tensors, and DoRA's names stand between dynamo's graphs; loops
    over chunks are unrolled; images and completions change their shapes from step to step. Full fine-tuning, LoRA and
    4-bit layers are one graph each way, checkpointed or not: tests/verify/test_compiled_steps.py.
    Source: accelerate 1.15, accelerator.py, ``_prepare_deepspeed`` (``engine.compile``) and ``prepare_model``.
    """
    if not setup.computation.torch_compile:
        return
    strategy = setup.mesh.strategy
    if strategy.is_zero:
        raise COMPILED_LATER(what=f"strategy {strategy}", instead="take strategy fsdp or ddp")
    if strategy.places_layers:
        raise COMPILED_LATER(what="strategy device_map", instead="take strategy fsdp")
    if setup.task.objective.generates:
        raise COMPILED_LATER(
            what=f"objective {setup.task.objective}", instead="take another objective"
        )
    if setup.computation.activation_offloading or setup.computation.offload_checkpoints:
        key = (
            "activation_offloading"
            if setup.computation.activation_offloading
            else "offload_checkpoints"
        )
        raise COMPILED_LATER(what=key, instead=f"set {key} to false")
    if setup.precision.mixed_precision is MixedPrecision.FP8:
        raise COMPILED_LATER(what="mixed_precision fp8", instead="set mixed_precision to bf16")
    if setup.adapters.use_dora:  # torch 2.13, peft 0.21: a graph for each adapted module
        raise COMPILED_LATER(what="use_dora", instead="set use_dora to false")
    if setup.adapters.has_8bit_base:
        raise COMPILED_LATER(what="load_in_8bit", instead="set load_in_8bit to false")
    if model.delta_net or model.state_space:
        raise COMPILED_LATER(
            what=f"the loops over chunks of {model.model_type}", instead="take another model"
        )
    if setup.images.shows_any:
        raise COMPILED_LATER(what="images", instead="set images_per_example to 0")


def compiled_sentences(adapters: Adapters, computation: Computation) -> list[str]:
    """What a compiled step costs beside its steps, and what its figures rest on."""
    if not computation.torch_compile:
        return []
    sentences = [
        "The first step compiles the model, which the hours leave out: a forward pass alone took 10 to 23 seconds to "
        "compile for Llamas of 1 to 13 billion parameters (accelerate's benchmark), and every new length may compile "
        "again.",
        "The memory is that of one graph forward and one backward, as torch 2.13 compiles them on one GPU: cheap "
        "values are computed again, gradients leave all at once, and the embedding's is added up in float32. Steps of "
        "six families that inductor scheduled agree to 1 %, or need less.",
    ]
    if computation.gradient_checkpointing and adapters.uses_adapters:
        sentences.append(
            "Inductor computes a checkpointed layer with adapters again in an order of its own, which took up to 1.3 "
            "times the tensors that are counted for that layer."
        )
    if computation.masks_when_traced:
        sentences.append(
            "Below torch 2.14 a compiled model builds a causal mask, so that sdpa attends to masked tokens as well, "
            "which the slow end counts; flash_attention_2 needs none."
        )
    if computation.uses_cuda_graphs:
        sentences.append(
            "CUDA graphs save the launches where every step has the same shape, and keep memory of their own reserved, "
            "which is not counted."
        )
    return sentences

"""What is refused of a whole setup on a model, beside what each part refuses on its own."""

from __future__ import annotations

from estimator.answer.images import check_images
from estimator.families.adapters import is_adapted
from estimator.families.liger import check_liger, loss_of
from estimator.families.loaded import has_towers
from estimator.families.model_tree import outer_modules, tied_head
from estimator.families.modules import Embedding, Linear
from estimator.families.registry import family_of
from estimator.families.wrapped import class_not_found, classes_of
from estimator.inference.refusals import check_generation
from estimator.parallel.combinations import (
    refused,
    refused_by_run,
    shares_between_layers,
)
from estimator.parallel.ddp import finds_unused
from estimator.parallel.fsdp1 import check_units
from estimator.parallel.fsdp2_hooks import check_head
from estimator.parallel.placements import trainable_tensors
from estimator.parallel.sharding import check_groups
from estimator.parallel.tensor_parallel import check_tensor_parallel
from estimator.passes.compiled import check_compiled
from estimator.passes.float8 import (
    check_float8,
    check_float8_tokens,
)
from estimator.passes.refusals import check_objective, check_rows
from estimator.resident.optimizer import LOW_RANK_OPTIMIZERS
from estimator.values.refusals import NOT_MODELLED, Line, Refusal, Report
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    Dtype,
    MixedPrecision,
    Model,
)

NO_FLASH = Refusal(
    "attn_implementation flash_attention_2 does not support the {lacks} of {model_type}; use sdpa.",
    Line("transformers", "modeling_utils.py", 1594, "does not support Flash Attention"),
)


OTHER_FLASH = Refusal(
    "attn_implementation flash_attention_2 does not support the {lacks} of {model_type}, so transformers uses another "
    "kernel (vllm-flash-attn3), which is not modelled yet; use eager.",
    NOT_MODELLED,
)


FLASH_IN_FLOAT32 = Refusal(
    "attn_implementation flash_attention_2 takes 16-bit inputs only; use sdpa, or bf16 mixed precision.",
    Report(
        "https://github.com/Dao-AILab/flash-attention/blob/v2.8.3/csrc/flash_attn/flash_api.cpp"
    ),
)


SPLIT_EXPERTS = Refusal(
    "{packing} is not modelled yet for {model_type}, whose experts transformers splits before quantising them; use "
    "method lora on a 16-bit base.",
    NOT_MODELLED,
)


WEIGHT_READ = Refusal(
    "{packing} fails in {model_type}, whose forward multiplies by the weight of {weight} directly, which is no longer "
    "a matrix once packed ('a and b must have same reduction dim'); use method lora on a 16-bit base.",
    Line(
        "transformers",
        "models/gemma3n/modeling_gemma3n.py",
        1060,
        "all_coefs = torch.nn.functional.linear(modalities, weight, bias=None) + 1.0",
    ),
)


SHARES_BETWEEN_LAYERS = Refusal(
    "strategy {strategy} is not modelled yet for {model_type}, whose layers share embeddings, or keys and values; use "
    "none or ddp.",
    NOT_MODELLED,
)


ROUTER_LOSS_OVER_DEVICES = Refusal(
    "output_router_logits under device_map is not modelled yet; set it to false in the config, or use strategy fsdp.",
    NOT_MODELLED,
)


NOTHING_TO_PROJECT = Refusal(
    "optim {optim} projects gradients of nn.Linear layers, and {model_type} trains none; use another optimizer.",
    Line("transformers", "trainer_optimizer.py", 154, "No target modules found for"),
)


BEYOND_LEARNED_POSITIONS = Refusal(
    "max_length {max_length} exceeds the {limit} positions that {model_type} has learned; lower it.",
    Line("transformers", "models/gpt2/modeling_gpt2.py", 574, "self.wpe(position_ids)"),
)


CLASS_NOT_FOUND = Refusal(
    "strategy {strategy} fails with {made}, which AutoModelForCausalLM loads: accelerate looks for each class that "
    "transformers does not split, and the model has no {missing}; take model_class text.",
    Line("accelerate", "utils/fsdp_utils.py", 953, "Could not find the transformer layer class"),
)


UNUSED_IN_DDP = Refusal(
    "strategy ddp fails at the second step of {made}, whose towers get no gradient in a step on text: with "
    "gradient_checkpointing Trainer does not make DDP look for unused parameters; take model_class text, or turn "
    "gradient_checkpointing off.",
    Line("transformers", "trainer.py", 754, "find_unused = not (self.model.is_activation"),
)


TOWERS_LATER = Refusal(
    "strategy {strategy} is not modelled yet for {made}, which AutoModelForCausalLM loads with its towers; take "
    "model_class text.",
    NOT_MODELLED,
)


def _check_towers(model: Model, setup: TrainingSetup) -> None:
    if not has_towers(model, setup.adapters):
        return
    strategy, made = setup.mesh.strategy, classes_of(model.model_type).made
    missing = class_not_found(model)
    if strategy.is_fsdp and missing:
        raise CLASS_NOT_FOUND(strategy=strategy, made=made, missing=missing)
    if strategy.averages_in_buckets and not finds_unused(setup):
        raise UNUSED_IN_DDP(made=made)
    if not strategy.keeps_whole:
        raise TOWERS_LATER(strategy=strategy, made=made)


def check_structure(model: Model, setup: TrainingSetup) -> None:
    """Refuse what does not go together, whatever the batch, the length and the number of GPUs."""
    family = family_of(model)
    check_objective(model, setup)
    check_liger(model, setup)
    check_compiled(model, setup)
    check_units(model, setup.adapters, setup.mesh)
    check_groups(model, setup)
    check_head(model, setup)
    check_tensor_parallel(model, setup.mesh)
    _check_outer_adapters(model, setup)
    check_float8(model, setup)
    if problem := refused(setup):
        raise problem
    is_flash = setup.computation.attn_implementation.is_flash
    if is_flash and family.flash_lacks:
        record = OTHER_FLASH if family.eager_only else NO_FLASH
        raise record(lacks=family.flash_lacks, model_type=model.model_type)
    packing = "load_in_8bit" if setup.adapters.has_8bit_base else "method qlora"
    if family.splits_packed_experts and setup.adapters.has_packed_base:
        raise SPLIT_EXPERTS(packing=packing, model_type=model.model_type)
    if family.reads_weights and setup.adapters.has_packed_base:
        raise WEIGHT_READ(packing=packing, model_type=model.model_type, weight=family.reads_weights)
    if shares_between_layers(model, setup.mesh):
        raise SHARES_BETWEEN_LAYERS(strategy=setup.mesh.strategy, model_type=model.model_type)
    _check_towers(model, setup)
    check_images(model, setup)
    if setup.mesh.strategy.places_layers and model.output_router_logits:
        raise ROUTER_LOSS_OVER_DEVICES()
    if setup.optimisation.optim in LOW_RANK_OPTIMIZERS and not any(
        tensor.is_linear for tensor in trainable_tensors(model, setup)
    ):
        raise NOTHING_TO_PROJECT(optim=setup.optimisation.optim, model_type=model.model_type)
    in_float32 = (
        setup.precision.dtype is Dtype.FLOAT32
        and setup.precision.mixed_precision is MixedPrecision.NO
    )
    if in_float32 and is_flash:
        raise FLASH_IN_FLOAT32()


LATER = Refusal(
    "lora_target_modules names {name}, whose adapter is not modelled yet with {what}; leave it out, or {instead}.",
    NOT_MODELLED,
)


def _check_outer_adapters(model: Model, setup: TrainingSetup) -> None:
    """Refuses adapters on the embedding and the head if their step is not modelled."""
    for module in (*outer_modules(model), *tied_head(model)):
        if not isinstance(module, Linear | Embedding) or not is_adapted(module, setup.adapters):
            continue
        is_head = module.name == "lm_head"
        if not (is_head or isinstance(module, Embedding)):
            continue
        loss, strategy = loss_of(model, setup), setup.mesh.strategy
        if not strategy.keeps_whole:
            raise LATER(name=module.name, what=f"strategy {strategy}", instead="use strategy ddp")
        if is_head and not loss.calls_head:
            raise LATER(name=module.name, what=f"loss {loss}", instead="use loss standard")
        if isinstance(module, Embedding) and setup.adapters.use_dora:
            raise LATER(name=module.name, what="use_dora", instead="turn use_dora off")


def check_sizes(model: Model, setup: TrainingSetup) -> None:
    """Refuse what a structure cannot tell: a batch, a length or a number of GPUs that the rest forbids."""
    if problem := refused_by_run(setup):
        raise problem
    check_rows(setup)
    check_float8_tokens(setup.precision, setup.batch)
    check_generation(model, setup)
    if 0 < model.position_limit < setup.batch.max_length:
        raise BEYOND_LEARNED_POSITIONS(
            max_length=setup.batch.max_length,
            limit=model.position_limit,
            model_type=model.model_type,
        )

"""What is refused of a model that processes images."""

from __future__ import annotations

from estimator.families.adapters import is_trained
from estimator.families.model_tree import layer_modules, outer_modules
from estimator.families.vision_family import sees, vision_family
from estimator.families.wrapped import class_not_found
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.computation import Computation
from estimator.values.facets.images import Images
from estimator.values.facets.mesh import Mesh
from estimator.values.refusals import NOT_MODELLED, Line, Refusal, Report, show
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, ModelClass, Part

WITH_IMAGES_LATER = Refusal(
    "{key} {value} is not modelled yet for a model with a vision tower; take {key} {instead}, or model_class text.",
    NOT_MODELLED,
)
NO_TOWER = Refusal(
    "model_class image_text needs a vision tower, and none is modelled for {model_type}; take model_class auto.",
    NOT_MODELLED,
)
EAGER_BY_IMAGE = Refusal(
    "attn_implementation eager is not modelled yet for {wrapper}, whose tower attends image by image; take sdpa.",
    NOT_MODELLED,
)
REENTRANT_LATER = Refusal(
    "use_reentrant is not modelled yet for {wrapper} with its tower; set it false.", NOT_MODELLED
)
REENTRANT_WITHOUT_GRADIENT = Refusal(
    "use_reentrant gives adapters in the image tower of {wrapper} no gradient, because nothing that enters its layers "
    "requires one; set use_reentrant false, or freeze_vision true.",
    Line("torch", "utils/checkpoint.py", 92, "None of the inputs have requires_grad=True."),
)
CLASS_NOT_FOUND = Refusal(
    "strategy {strategy} fails with {wrapper} and its tower: accelerate looks for each class that transformers does "
    "not split, and the model has no {missing}; take strategy ddp.",
    Line("accelerate", "utils/fsdp_utils.py", 953, "Could not find the transformer layer class"),
)
ATTENTION_WRAPPED = Refusal(
    "strategy {strategy} is not modelled yet for {wrapper} with its tower, of whose layers it wraps the attention "
    "alone; take strategy ddp.",
    NOT_MODELLED,
)
NOTHING_TRAINED = Refusal(
    "freeze_language leaves nothing to train in a step {without}, so backward fails ('element 0 of tensors does not "
    "require grad'); set it to false, or {instead}.",
    Report("https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/python_engine.cpp"),
)


def check_images(model: Model, setup: TrainingSetup) -> None:
    """Refuses what is not modelled yet, or does not train, where a tower processes images."""
    if setup.adapters.model_class is not ModelClass.IMAGE_TEXT:
        return
    if model.vision is None:
        raise NO_TOWER(model_type=model.model_type)
    _check_trained(setup.adapters, setup.images)
    _check_strategy(model, setup.images, setup.mesh)
    for key, instead in (
        ("objective", "sft"),
        ("checkpoint_every_n_layers", 1),
        ("selective_checkpointing", False),
        ("offload_checkpoints", False),
        ("activation_offloading", False),
        ("load_in_8bit", False),
    ):
        value = setup.value(key)
        if value != instead:
            raise WITH_IMAGES_LATER(key=key, value=show(value), instead=show(instead))
    _check_attention(model, setup.computation)
    _check_reentrant(model, setup.adapters, setup.computation)


def _check_trained(adapters: Adapters, images: Images) -> None:
    frozen = adapters.frozen_parts
    more = adapters.modules_to_save is not None or adapters.bias != "none"
    if Part.TEXT not in frozen or (adapters.uses_adapters and more):
        return
    if not images.shows_any:
        raise NOTHING_TRAINED(without="on text", instead="give images_per_example")
    if {Part.VISION, Part.PROJECTOR} <= frozen:
        raise NOTHING_TRAINED(without="with a frozen tower", instead="freeze_projector")


def _check_strategy(model: Model, images: Images, mesh: Mesh) -> None:
    assert model.vision is not None
    wrapper = model.vision.wrapper
    if mesh.strategy.is_alone:
        return
    is_later = mesh.strategy.places_layers or mesh.uses_fsdp1
    if is_later or not images.shows_any:
        raise WITH_IMAGES_LATER(key="strategy", value=mesh.strategy, instead="none")
    if mesh.strategy.is_zero and vision_family(model.vision).tree is None:
        raise WITH_IMAGES_LATER(key="strategy", value=mesh.strategy, instead="ddp")
    if not mesh.strategy.is_fsdp:
        return
    if missing := class_not_found(model):
        raise CLASS_NOT_FOUND(strategy=mesh.strategy, wrapper=wrapper, missing=missing)
    if not vision_family(model.vision).wraps_layers:
        raise ATTENTION_WRAPPED(strategy=mesh.strategy, wrapper=wrapper)


def _check_attention(model: Model, computation: Computation) -> None:
    assert model.vision is not None
    kernel = computation.attn_implementation
    if kernel.keeps_scores and vision_family(model.vision).attends_by_image:
        raise EAGER_BY_IMAGE(wrapper=model.vision.wrapper)


def _check_reentrant(model: Model, adapters: Adapters, computation: Computation) -> None:
    checkpoints = computation.gradient_checkpointing or computation.checkpoints_vision
    if not (checkpoints and computation.use_reentrant and sees(model, adapters)):
        return
    assert model.vision is not None
    family, tower = vision_family(model.vision), model.vision.tower
    if family.calls_head:
        raise REENTRANT_LATER(wrapper=model.vision.wrapper)
    if not computation.checkpoints_vision or family.hooks_embedding:
        return
    if Part.VISION in adapters.frozen_parts:
        return
    before = any(is_trained(module, adapters) for module in outer_modules(tower))
    within = any(is_trained(module, adapters) for module in layer_modules(tower, 0))
    if within and not before:
        raise REENTRANT_WITHOUT_GRADIENT(wrapper=model.vision.wrapper)

"""Which of Liger's kernels ``use_liger_kernel`` applies to a family, and which loss a setup has.

Trainer passes the loaded model to Liger, which patches the families in its table and leaves others unchanged, with a
line in the log.

Source: transformers 5.23, integrations/liger.py, ``apply_liger_kernel``; liger-kernel 0.8.5,
transformers/monkey_patch.py, ``_apply_liger_kernel_to_instance`` and ``apply_liger_kernel_to_*``.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families.adapters import is_adapted
from estimator.families.family import NO_KERNELS, Kernels
from estimator.families.model_tree import modules_with_counts
from estimator.families.modules import Bare
from estimator.families.registry import family_of
from estimator.families.vision_family import sees, vision_family
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.computation import Computation
from estimator.values.losses import Loss
from estimator.values.refusals import NOT_MODELLED, Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


def kernels(model: Model, computation: Computation, adapters: Adapters) -> Kernels:
    """What Liger replaces in this setup; nothing if it is off or does not support the family."""
    if not computation.use_liger_kernel:
        return NO_KERNELS
    known = kernels_of_family(model, adapters)
    return known if known.mlp_beside_experts or not model.num_experts else replace(known, mlp=False)


def kernels_of_family(model: Model, adapters: Adapters) -> Kernels:
    """What Liger would replace in this family's text."""
    known = family_of(model).liger or NO_KERNELS
    if model.vision is None or not sees(model, adapters):
        return known
    whole = vision_family(model.vision).liger
    if whole is None:
        return NO_KERNELS
    return replace(known, mlp=False) if whole.keeps_mlp else known


def fuses_head(model: Model, adapters: Adapters) -> bool:
    """Whether Liger fuses this family's head and loss."""
    return kernels_of_family(model, adapters).fuses_head


def loss_of(model: Model, setup: TrainingSetup) -> Loss:
    """How this setup computes its loss: as specified, else Liger's if its kernels are used and fuse the head."""
    if setup.task.smooths_labels:
        return Loss.STANDARD
    if setup.task.loss is not None:
        return setup.task.loss
    if setup.task.objective.has_reference:
        return Loss.CHUNKED_TRL
    return (
        Loss.LIGER
        if kernels(model, setup.computation, setup.adapters).fuses_head
        else Loss.STANDARD
    )


LATER_FAMILY = Refusal(
    "use_liger_kernel is not modelled yet for {family}, where Liger replaces more; leave it at false.",
    NOT_MODELLED,
)
WRAPPED_EXPERTS = Refusal(
    "lora_target_modules: Liger's kernel fails on experts that PEFT has wrapped ('ParamWrapper' object has no "
    "attribute 'hidden_dim'); name only linears of the attention, or leave use_liger_kernel at false.",
    Line(
        "liger-kernel", "transformers/swiglu.py", 108, "x = hidden_states.view(-1, self.hidden_dim)"
    ),
)
NO_FUSED_LOSS = Refusal(
    "loss liger: Liger 0.8.5 has no fused loss for {family}; take chunked_trl, or leave it at null.",
    Line("liger-kernel", "transformers/monkey_patch.py", 3904, "MODEL_TYPE_TO_APPLY_LIGER_FN = {"),
)


def _loaded_type(model: Model, adapters: Adapters) -> str:
    """``model_type`` of the class that is loaded: the checkpoint's, where it has its tower."""
    if model.vision is not None and sees(model, adapters):
        return model.vision.wrapper
    return model.model_type


def check_liger(model: Model, setup: TrainingSetup) -> None:
    """Refuses, in one sentence, what Liger refuses or fails on."""
    family, is_later = _loaded_type(model, setup.adapters), family_of(model).liger_is_later
    if model.vision is not None and sees(model, setup.adapters):
        is_later |= vision_family(model.vision).liger_is_later
    if is_later and (setup.computation.use_liger_kernel or setup.task.given_loss.fuses_gradient):
        raise LATER_FAMILY(family=family)
    if kernels(model, setup.computation, setup.adapters).experts and any(
        isinstance(module, Bare) and module.stack and is_adapted(module, setup.adapters)
        for module, _ in modules_with_counts(model)
    ):
        raise WRAPPED_EXPERTS()
    if setup.task.given_loss.fuses_gradient and not fuses_head(model, setup.adapters):
        raise NO_FUSED_LOSS(family=family)


def loss_sentences(model: Model, setup: TrainingSetup) -> list[str]:
    """Sentences on what Liger does with this family, and how the loss is computed."""
    sentence = loss_of(model, setup).sentence
    return [*_liger_sentences(model, setup), *([sentence] if sentence else [])]


def _liger_sentences(model: Model, setup: TrainingSetup) -> list[str]:
    if not setup.computation.use_liger_kernel:
        return []
    known, loaded = kernels_of_family(model, setup.adapters), _loaded_type(model, setup.adapters)
    if known == NO_KERNELS:
        return [
            f"Liger 0.8.5 has no kernels for {loaded}: Trainer logs this and trains without them."
        ]
    sentences = ["Liger's kernels are not counted in time: the fast end has all kernels fused."]
    seen = model.vision is not None and sees(model, setup.adapters)
    if seen and model.vision and vision_family(model.vision).liger_needs_older:
        sentences.append(
            f"Liger 0.8.5 cannot be used for {loaded} with transformers 5.23, which lacks an output class that it "
            "imports; take an older transformers."
        )
    if known.whole_logits and loss_of(model, setup).takes_whole_logits:
        sentences.append(
            f"Liger does not fuse {model.model_type}'s head: the full logits exist, and their gradient overwrites them."
        )
    return sentences

"""What an objective cannot be trained with: TRL's own refusals, contradictions, and what is not modelled yet."""

from __future__ import annotations

from estimator.families.adapters import is_adapted
from estimator.families.loaded import has_towers
from estimator.families.model_tree import outer_modules, tied_head
from estimator.families.modules import Linear
from estimator.families.registry import family_of, is_classified
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.batch import Batch
from estimator.values.facets.computation import Computation
from estimator.values.facets.images import Images
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.objective import Task
from estimator.values.refusals import CONTRADICTION, NOT_MODELLED, Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

STRATEGY_LATER = Refusal(
    "objective {objective} under strategy {strategy} is not modelled yet; take strategy ddp.",
    NOT_MODELLED,
)
FSDP1_LATER = Refusal(
    "objective {objective} under FSDP 1 is not modelled yet; set fsdp_version 2, or take strategy ddp.",
    NOT_MODELLED,
)
WHOLE_LOGITS_LATER = Refusal(
    "loss {loss} with objective {objective}, as TRL had it before 1.15, is not modelled yet; take chunked_trl.",
    NOT_MODELLED,
)
UNKNOWN_BATCHES = Refusal(
    "compute_metrics keeps the logits of the whole evaluation on the GPU, whose batches are not known here; give "
    "eval_accumulation_steps, after which they go to the host.",
    CONTRADICTION,
)
METRICS_LATER = Refusal(
    "compute_metrics is not modelled yet with {what}; set it to false.",
    NOT_MODELLED,
)
PRECOMPUTED_IS_TRLS = Refusal(
    "precompute_ref_log_probs does not go with loss {loss}, whose trainers ask the reference in every step; set it "
    "false, or take loss chunked_trl.",
    CONTRADICTION,
)
WHOLE_REFERENCE_LATER = Refusal(
    "loss {loss} with a reference model under strategy {strategy} is not modelled yet; take zero3 or ddp, method lora, "
    "or loss chunked_trl.",
    NOT_MODELLED,
)
WHOLE_ROUTERS_LATER = Refusal(
    "loss {loss} with objective {objective} is not modelled yet where the config's output_router_logits is on; take "
    "chunked_trl.",
    NOT_MODELLED,
)
VERL_IS_FSDP = Refusal(
    "loss selective_verl is that of verl's FSDP engine, and strategy is {strategy}; take strategy fsdp.",
    CONTRADICTION,
)
LIGER_HEAD = Refusal(
    "loss liger cannot go with objective {objective}: TRL refuses Liger's fused loss there; take chunked_trl, which is "
    "the default.",
    Line(
        "trl",
        "trainer/dpo_trainer.py",
        949,
        "is not supported: it replaces the",
    ),
)
NO_SUCH_LOSS = Refusal(
    "loss {loss} is not for objective {objective}, which has {own}; leave loss at null.",
    CONTRADICTION,
)
NO_SUCH_TYPE = Refusal(
    "loss_type {loss_type} is not one of objective {objective}; it has {known}.", CONTRADICTION
)
PROMPT_FILLS_ROW = Refusal(
    "max_prompt_length {prompt} leaves no token of max_length {length} for an answer; lower it, or raise max_length.",
    CONTRADICTION,
)
NO_SMOOTHING = Refusal(
    "label_smoothing_factor is Trainer's, and loss {loss} is not; set it to 0, or leave loss at null.",
    CONTRADICTION,
)
SMOOTHING_LATER = Refusal(
    "label_smoothing_factor is not modelled yet with {what}; set it to 0, or {instead}.",
    NOT_MODELLED,
)
ADAPTER_ON_HEAD = Refusal(
    "lora_target_modules names lm_head, which TRL refuses with objective {objective}: the log-probabilities are "
    "computed from the head's weight past the adapter; leave it out.",
    Line(
        "trl",
        "trainer/dpo_trainer.py",
        839,
        "Applying a PEFT adapter to `lm_head` is not supported",
    ),
)
NO_CLASS = Refusal(
    "objective {objective} needs a class for sequence classification, which transformers does not have for "
    "{model_type}; take another model.",
    Line(
        "transformers",
        "models/auto/modeling_auto.py",
        1483,
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES = OrderedDict(",
    ),
)
IMAGES_LATER = Refusal(
    "objective {objective} with images is not modelled yet; set images_per_example to 0.",
    NOT_MODELLED,
)
TOWERS_LATER = Refusal(
    "objective {objective} is not modelled yet for {model_type} with its towers; take model_class text.",
    NOT_MODELLED,
)
JOINED_LATER = Refusal(
    "packing and padding_free with objective {objective} are not modelled yet; set both false.",
    NOT_MODELLED,
)
JOINED_FAMILY = Refusal(
    "packing and padding_free are not modelled yet for {model_type}, whose layers know positions by ALiBi or a state; "
    "set both false.",
    NOT_MODELLED,
)
SELECTIVE_IS_SFTS = Refusal(
    "selective_checkpointing is SFTTrainer's alone: with objective {objective} torch's checkpoint refuses the key; "
    "leave it out.",
    Line("torch", "utils/checkpoint.py", 502, "Unexpected keyword arguments"),
)
OFFLOADS_NOT = Refusal(
    "activation_offloading is no argument of the trainer of objective {objective}; set it false, or take "
    "offload_checkpoints.",
    CONTRADICTION,
)
SWITCHED_OFF = Refusal(
    "checkpoint_every_n_layers and offload_checkpoints fail with objective {objective}: TRL turns checkpointing off "
    "where it scores without gradients and on again with these keys, which torch's checkpoint refuses; leave them "
    "out{instead}.",
    Line("torch", "utils/checkpoint.py", 502, "Unexpected keyword arguments"),
)
TOWERS_EVERY_N = Refusal(
    "{key} is not modelled yet for models that see images; leave it at {value}.", NOT_MODELLED
)


def _check_joined(model: Model, batch: Batch, task: Task) -> None:
    if not batch.is_joined:
        return
    if not task.objective.is_causal_lm:
        raise JOINED_LATER(objective=task.objective)
    has_positions = family_of(model).rotary is not None or model.learned_positions > 0
    if (
        model.state_space or model.delta_net or not has_positions
    ):  # ALiBi counts from the row's begin
        raise JOINED_FAMILY(model_type=model.model_type)


def _check_checkpoints(computation: Computation, task: Task) -> None:
    objective = task.objective
    if objective.is_causal_lm:
        return
    if computation.selective_checkpointing:
        raise SELECTIVE_IS_SFTS(objective=objective)
    if computation.activation_offloading and not objective.offloads_activations:
        raise OFFLOADS_NOT(objective=objective)
    given = computation.checkpoint_every_n_layers > 1 or computation.offload_checkpoints
    if not (computation.gradient_checkpointing and given):
        return
    if objective.generates:
        raise SWITCHED_OFF(objective=objective, instead="")
    if objective.has_reference and not task.precompute_ref_log_probs:
        raise SWITCHED_OFF(objective=objective, instead=", or set precompute_ref_log_probs")


def _check_checkpointed_towers(images: Images, computation: Computation) -> None:
    """Layers of a tower are counted with the text's, and their tensors are offloaded too."""
    if not images.images_per_example:
        return
    if computation.gradient_checkpointing and computation.checkpoint_every_n_layers > 1:
        raise TOWERS_EVERY_N(key="checkpoint_every_n_layers", value=1)
    if computation.activation_offloading:
        raise TOWERS_EVERY_N(key="activation_offloading", value="false")


def _check_metrics(setup: TrainingSetup) -> None:
    if not setup.run.compute_metrics or setup.run.eval_strategy == "no":
        return
    if not setup.task.objective.has_metrics:
        raise METRICS_LATER(what=f"objective {setup.task.objective}")
    if setup.task.given_loss.chunks_sequence:
        raise METRICS_LATER(what=f"loss {setup.task.loss}")
    if setup.mesh.strategy.places_layers:
        raise METRICS_LATER(what=f"strategy {setup.mesh.strategy}")
    if setup.images.images_per_example:
        raise METRICS_LATER(what="images")
    if setup.run.eval_accumulation_steps is None:
        raise UNKNOWN_BATCHES()


def check_objective(model: Model, setup: TrainingSetup) -> None:
    """Refuse, in one sentence, what the objective does not go with."""
    objective = setup.task.objective
    _check_joined(model, setup.batch, setup.task)
    _check_checkpoints(setup.computation, setup.task)
    _check_checkpointed_towers(setup.images, setup.computation)
    if setup.task.loss_type is not None and setup.task.loss_type not in objective.loss_types:
        raise NO_SUCH_TYPE(
            loss_type=setup.task.loss_type,
            objective=objective,
            known=", ".join(objective.loss_types) or "none",
        )
    if setup.task.smooths_labels:
        _check_smoothing(model, setup)
    if objective.is_causal_lm:
        if setup.task.given_loss.selects:
            raise NO_SUCH_LOSS(
                loss=setup.task.loss, objective=objective, own="standard and fused ones"
            )
        return
    if has_towers(model, setup.adapters):
        raise TOWERS_LATER(objective=objective, model_type=model.model_type)
    if setup.images.images_per_example:
        raise IMAGES_LATER(objective=objective)
    _check_loss(model, setup)
    if objective.has_reference and setup.mesh.uses_fsdp1 and not setup.task.given_loss.is_verls:
        raise FSDP1_LATER(objective=objective)
    if _is_later(setup.task, setup.mesh):
        raise STRATEGY_LATER(objective=objective, strategy=setup.mesh.strategy)
    if objective.has_score and not is_classified(model.model_type):
        raise NO_CLASS(objective=objective, model_type=model.model_type)
    if objective.has_reference:
        _check_head(model, setup.adapters, setup.task)


def _is_later(task: Task, mesh: Mesh) -> bool:
    divided = task.objective.compares_rows and not mesh.strategy.keeps_whole
    return mesh.strategy.places_layers or divided


def check_rows(setup: TrainingSetup) -> None:
    """Refuse rows that leave the loss nothing to count, and logits that are kept for nobody knows how many batches."""
    _check_metrics(setup)
    if setup.task.objective.is_preference and setup.prompt_tokens >= setup.batch.max_length:
        raise PROMPT_FILLS_ROW(prompt=setup.prompt_tokens, length=setup.batch.max_length)
    if (refused := setup.task.objective.refuses(setup)) is not None:
        raise refused


def _check_smoothing(model: Model, setup: TrainingSetup) -> None:
    if setup.task.given_loss.chunks_sequence:
        raise NO_SMOOTHING(loss=setup.task.loss)
    is_tiled = setup.task.given_loss.tiles_logits
    if setup.mesh.strategy.places_layers or (is_tiled and not setup.mesh.strategy.keeps_whole):
        raise SMOOTHING_LATER(what=f"strategy {setup.mesh.strategy}", instead="take strategy ddp")
    if has_towers(model, setup.adapters) or setup.images.images_per_example:
        raise SMOOTHING_LATER(what="towers", instead="take model_class text")
    if model.output_router_logits:
        raise SMOOTHING_LATER(what="output_router_logits", instead="set it to false in the config")


def _check_loss(model: Model, setup: TrainingSetup) -> None:
    loss, given, objective = setup.task.loss, setup.task.given_loss, setup.task.objective
    if objective.has_reference:
        if given.freezes_reference or given.keeps_logits:
            _check_whole_logits(model, setup)
        if given.fuses_gradient:
            raise LIGER_HEAD(objective=objective)
        if given.is_verls:
            _check_verl(model, setup.task, setup.mesh)
        if given.chunks_sequence:
            raise NO_SUCH_LOSS(loss=loss, objective=objective, own="TRL's fused head")
    elif loss is not None and not loss.takes_whole_logits:
        own = "the whole logits" if objective.is_preference else "no logits over the vocabulary"
        raise NO_SUCH_LOSS(loss=loss, objective=objective, own=own)


def _check_whole_logits(model: Model, setup: TrainingSetup) -> None:
    if setup.task.objective.generates and not setup.task.given_loss.scores_completions:
        raise WHOLE_LOGITS_LATER(loss=setup.task.loss, objective=setup.task.objective)
    if setup.task.precompute_ref_log_probs and setup.task.given_loss.freezes_reference:
        raise PRECOMPUTED_IS_TRLS(loss=setup.task.loss)
    if (
        setup.task.given_loss.freezes_reference
        and setup.keeps_reference
        and setup.mesh.strategy.is_fsdp
    ):
        raise WHOLE_REFERENCE_LATER(loss=setup.task.loss, strategy=setup.mesh.strategy)
    if model.output_router_logits:
        raise WHOLE_ROUTERS_LATER(loss=setup.task.loss, objective=setup.task.objective)


def _check_verl(model: Model, task: Task, mesh: Mesh) -> None:
    if not task.objective.generates:
        raise NO_SUCH_LOSS(loss=task.loss, objective=task.objective, own="TRL's fused head")
    if not (mesh.strategy.is_fsdp or mesh.strategy.is_alone):
        raise VERL_IS_FSDP(strategy=mesh.strategy)
    if model.output_router_logits:
        raise WHOLE_ROUTERS_LATER(loss=task.loss, objective=task.objective)


def _check_head(model: Model, adapters: Adapters, task: Task) -> None:
    for module in (*outer_modules(model), *tied_head(model)):
        if not isinstance(module, Linear) or module.name != "lm_head":
            continue
        if is_adapted(module, adapters):
            raise ADAPTER_ON_HEAD(objective=task.objective)

"""PEFT's rules: which modules get an adapter or a trained copy, what is refused, and the resulting parameter counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod

from estimator.families.loaded import (
    adapted_groups,
    ends,
    has_towers,
    left_out,
    made_modules,
    modules_of_layer,
    pattern_rank,
    tower_modules,
    tower_parameters,
)
from estimator.families.model_tree import (
    layer_groups,
    layer_modules,
    module_tree,
    outer_modules,
    tied_head,
    total_parameters,
    untrained_parameters,
    vision_modules,
)
from estimator.families.modules import (
    HEADS,
    Bare,
    Embedding,
    Kernel,
    Linear,
    Module,
    Norm,
    is_after_layers,
    module_parameters,
    weight_shapes,
)
from estimator.families.registry import family_of
from estimator.families.vision_family import sees
from estimator.values.facets.adapters import Adapters
from estimator.values.refusals import NOT_MODELLED, InputError, Line, Refusal, RefusedError
from estimator.values.setup import TrainingSetup
from estimator.values.specs import ALL_LINEAR, Model, ModelClass

COPIED_ROUTER = Refusal(
    "modules_to_save names {name!r}, a router or stacked experts, whose copies are not modelled yet; leave it out.",
    NOT_MODELLED,
)
COPIED_PACKED = Refusal(
    "modules_to_save names {name!r}, but bitsandbytes packs {module} into integers, which have no gradient; leave it "
    "out, or take method lora on a base that is not packed.",
    Line("peft", "utils/other.py", 300, "param.requires_grad_(requires_grad)"),
)
COPIED_ADAPTER = Refusal(
    "modules_to_save names {name!r}, which also matches {module}, a layer with an adapter that PEFT refuses to copy; "
    "give the module's full name.",
    Line("peft", "utils/other.py", 360, "cannot be applied to modules of type"),
)
NOTHING_TO_ADAPT = Refusal(
    "modules_to_save leaves no layer for an adapter, which PEFT refuses; leave out some of {names}.",
    Line("peft", "tuners/tuners_utils.py", 1077, "No modules were targeted for adaptation."),
)
WRAPPED_LINEAR = Refusal(
    "lora_target_modules names {name!r}, which also matches linears of a custom class in the towers of {model_type}, "
    "and PEFT refuses those; take all-linear, or model_class text.",
    Line("peft", "tuners/lora/model.py", 559, "is not supported. Currently, only the following"),
)


HALF_OF_A_MATRIX = Refusal(
    "lora_target_modules leaves out {missing}, which {model_type} fuses with {named} into one matrix; name both or "
    "neither.",
    Line("peft", "utils/transformers_weight_conversion.py", 467, "Cannot convert PEFT target(s)"),
)
READ_BY_KERNELS = Refusal(
    "lora_target_modules matches {module} of {model_type}, where PEFT refuses an adapter because kernels read its "
    "weight directly; name others, such as {others}.",
    Line("peft", "tuners/tuners_utils.py", 161, "is incompatible with Mamba-based models"),
)
ADAPTER_ON_ROUTER = Refusal(
    "lora_target_modules matches the router of {model_type}, where PEFT's adapters fail ('tuple' object has no "
    "attribute 'dtype'); set exclude_modules to router, or name others, such as {others}.",
    Line("peft", "tuners/lora/layer.py", 1089, "torch_result_dtype = result.dtype"),
)
NO_SUCH_LAYERS = Refusal(
    "lora_target_modules names {names}, which {model_type} does not have, and PEFT fails if nothing matches; its "
    "linear layers are: {known}.",
    Line("peft", "tuners/tuners_utils.py", 1066, "not found in the base model. "),
)
NO_LAYER = Refusal(
    "lora_target_modules names {name!r}, which is not a linear layer, embedding or convolution in {model_type}, so "
    "PEFT "
    "refuses it; leave it out.",
    Line("peft", "tuners/lora/model.py", 559, "is not supported. Currently"),
)
OTHER_LAYERS = Refusal(
    "lora_target_modules names {name!r}: an adapter on a convolution, on a second embedding or on a single layer is "
    "not modelled yet; leave it out.",
    NOT_MODELLED,
)
DORA_ON_EXPERTS = Refusal(
    "PEFT refuses use_dora with adapters on the router or the stacked experts of {model_type}; turn it off, or name "
    "{others} in lora_target_modules.",
    Line("peft", "tuners/lora/layer.py", 2372, "does not work with use_dora=True."),
)
DROPOUT_ON_EXPERTS = Refusal(
    "PEFT refuses lora_dropout {dropout:g} with adapters on the router or the stacked experts of {model_type}; set "
    "lora_dropout to 0, or name {others} in lora_target_modules.",
    Line("peft", "tuners/lora/layer.py", 2366, "does not work with lora_dropout != 0."),
)
BIAS_ON_EXPERTS = Refusal(
    "lora_bias cannot go with adapters on the router or the stacked experts of {model_type}, PEFT refuses it; turn it "
    "off, or name {others} in lora_target_modules.",
    Line("peft", "tuners/lora/layer.py", 2370, "does not work with lora_bias=True."),
)
BIAS_ON_EMBEDDING = Refusal(
    "lora_bias cannot go with an adapter on {name}, an embedding, PEFT refuses it; turn it off, or leave the embedding "
    "out.",
    Line("peft", "tuners/lora/layer.py", 1223, "lora_bias={lora_bias} is not supported"),
)
NOTHING_LEFT = Refusal(
    "lora_target_modules, exclude_modules and layers_to_transform leave no layer of {model_type} for an adapter, and "
    "PEFT refuses that; name more.",
    Line("peft", "tuners/tuners_utils.py", 1077, "No modules were targeted for adaptation."),
)
OTHER_PARAMETERS = Refusal(
    "target_parameters names {name!r}, which is no router and no stack of experts in {model_type}; others are not "
    "modelled yet: {instead}.",
    NOT_MODELLED,
)
LAYERS_WITH_TOWERS = Refusal(
    "Adapters that differ between layers are not modelled yet for {model_type} with its towers; take model_class text.",
    NOT_MODELLED,
)
POSITIONS_AND_LAYERS = ("wpe", "embed_positions", "embed_tokens_per_layer")
"""Embeddings other than the token embedding, which get no adapter here."""


def is_adapted(module: Linear | Bare | Embedding, adapters: Adapters) -> bool:
    """Whether this layer gets an adapter (a yes or no; the same on every GPU).

    ``"all-linear"`` matches every Linear and Conv1D except ``lm_head``. A list matches full names and names ending in a
    dot and a listed name, so ``"c_proj"`` matches both of GPT-2's. Routers and stacked experts are matched by their
    former names as linears, so ``"all-linear"`` matches them too, if PEFT knows these names. The head and the token
    embedding are matched only by name, the head even if tied.

    ``exclude_modules`` and ``layers_to_transform`` take linears and embeddings from these; ``target_parameters`` adds
    routers and stacked experts by their names, which the other two do not reach.

    Leaves out: adapters on other embeddings; ``target_parameters`` of a linear. ``target_pattern`` makes names of a
    regular expression.
    Source: PEFT 0.21 tuners/tuners_utils.py, ``check_target_module_exists`` and ``_maybe_include_all_linear_layers``;
    utils/transformers_weight_conversion.py, ``_convert_peft_config_moe``.

    >>> setup = Adapters(method="lora", lora_target_modules=("q_proj",))
    >>> is_adapted(Linear("self_attn.q_proj", 8, 8), setup), is_adapted(Linear("mlp.up_proj", 8, 8), setup)
    (True, False)
    """
    if (
        not adapters.uses_adapters
        or is_copied(module, adapters)
        or module.part in adapters.frozen_parts
    ):
        return False
    if isinstance(module, Bare):
        return _is_target(module, adapters) or _is_parameter(module, adapters)
    return _is_target(module, adapters) and not left_out(module, adapters)


def _is_parameter(module: Bare, adapters: Adapters) -> bool:
    """Whether ``target_parameters`` names a bare weight."""
    names = (module.name, f"{module.name}.weight")
    return any(ends(name, target) for target in adapters.target_parameters or () for name in names)


def _is_target(module: Linear | Bare | Embedding, adapters: Adapters) -> bool:
    if isinstance(module, Linear) and module.shadowed:
        return False
    if isinstance(module, Embedding) and module.name in POSITIONS_AND_LAYERS:
        return False
    targets = adapters.lora_target_modules
    if isinstance(targets, str):
        if targets != ALL_LINEAR:
            raise InputError(
                f"lora_target_modules {targets!r} is a regular expression, which only parse() resolves; list names."
            )
        if isinstance(module, Bare):
            return bool(module.former_names)
        return isinstance(module, Linear) and module.name not in HEADS
    return any(_names(target, module) for target in targets)


def trains_bias(module: Module, adapters: Adapters) -> bool:
    """Whether the base's own bias of this module is trained beside the adapters (a yes or no).

    With ``bias`` all every parameter whose name ends in ``.bias``, so norms' and routers' too, but not those of stacked
    experts; with lora_only those of adapted linears.

    Source: PEFT 0.21 tuners/tuners_utils.py, ``_mark_only_adapters_as_trainable``.

    >>> given = Adapters(method="lora", lora_target_modules=["q_proj"], bias="lora_only")
    >>> [trains_bias(Linear(it, 8, 8, bias=True), given) for it in ("self_attn.q_proj", "self_attn.o_proj")]
    [True, False]
    """
    if not adapters.uses_adapters or adapters.bias == "none" or is_copied(module, adapters):
        return False
    if isinstance(module, Linear):
        return module.bias and (adapters.bias == "all" or is_adapted(module, adapters))
    if isinstance(module, Norm | Bare):
        # no parameter called bias: those of a stack of experts, and the scalars of xIELU
        unnamed = module.stack if isinstance(module, Bare) else module.name.endswith("act_fn")
        return adapters.bias == "all" and module.bias and not unnamed
    return False


def trained_biases(model: Model, adapters: Adapters) -> int:
    """Elements of the base's own biases that are trained beside the adapters, whole job.

    Error: none; compared with PEFT's own count in tests/verify.
    Source: derived, from ``trains_bias``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> trained_biases(TINY_LLAMA, Adapters(method="lora", bias="all"))
    0
    """
    if adapters.bias == "none":
        return 0
    return sum(
        count * prod(weight_shapes(module)[-1])
        for module, count in made_modules(model, adapters)
        if trains_bias(module, adapters)
    )


def is_trained(module: Module, adapters: Adapters) -> bool:
    """Whether any part of this module is trained: its weights, its adapter, or PEFT's copy of it (a yes or no).

    Source: derived, from ``is_adapted`` and ``is_copied``.

    >>> from estimator.families.modules import Norm
    >>> is_trained(Norm("norm", 8), Adapters()), is_trained(Norm("norm", 8), Adapters(method="lora"))
    (True, False)
    """
    if is_trained_whole(module, adapters) or trains_bias(module, adapters):
        return True
    return isinstance(module, Linear | Bare | Embedding) and is_adapted(module, adapters)


def is_trained_whole(module: Module, adapters: Adapters) -> bool:
    """Whether the module's own weights, or PEFT's copy of them, are trained (a yes or no).

    Source: derived, from the method, what is frozen, and ``is_copied``.

    >>> from estimator.families.modules import Norm
    >>> is_trained_whole(Norm("norm", 8), TrainingSetup().adapters)
    True
    """
    if adapters.uses_adapters:
        return is_copied(module, adapters)
    return module.part not in adapters.frozen_parts


def lowest_trained(model: Model, setup: TrainingSetup) -> int | None:
    """The lowest layer with trained tensors, the last that backward reaches (an index, from 0; the number of layers if
    there is none); None if gradients continue to the embedding.

    They do if anything before the layers is trained, also what turns images into embeddings, and with gradient
    checkpointing, which makes the embedding's output require a gradient.

    Source: torch 2.13, torch/csrc/autograd/function.h, ``collect_next_edges`` (no node where no input requires a
    gradient); transformers 5.23, modeling_utils.py, ``enable_input_require_grads``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> lowest_trained(TINY_LLAMA, TrainingSetup(method="lora")), lowest_trained(TINY_LLAMA, TrainingSetup())
    (0, None)
    """
    before = [module for module in outer_modules(model) if not is_after_layers(module)]
    if setup.images.shows_any and sees(model, setup.adapters):
        before += [module for module, _ in vision_modules(model)]
    if setup.computation.gradient_checkpointing or any(
        is_trained(module, setup.adapters) for module in before
    ):
        return None
    return min(
        (
            lowest
            for lowest, _ in adapted_groups(model, setup.adapters)
            if any(
                is_trained(module, setup.adapters)
                for module in modules_of_layer(model, setup.adapters, lowest)
            )
        ),
        default=model.num_hidden_layers,
    )


def is_copied(module: Module, adapters: Adapters) -> bool:
    """Whether PEFT trains a full copy of this module and keeps the frozen original (a yes or no).

    Matches every module whose name ends with a listed string: ``"norm"`` matches ``input_layernorm`` too.

    Source: PEFT 0.21 utils/other.py, ``_set_trainable`` (``key.endswith(target_key)``) and ``ModulesToSaveWrapper``.

    >>> setup = Adapters(method="lora", modules_to_save=("embed_tokens",))
    >>> is_copied(Embedding("embed_tokens", 10, 8), setup), is_copied(Linear("lm_head", 8, 10), setup)
    (True, False)
    """
    names = adapters.modules_to_save
    return names is not None and adapters.uses_adapters and module.name.endswith(names)


def copied_modules(model: Model, adapters: Adapters) -> tuple[tuple[Module, int], ...]:
    """The modules of which PEFT trains a copy, and their multiplicity. A copy of a tied head or embedding is untied.

    Source: PEFT 0.21 utils/other.py, ``ModulesToSaveWrapper.update`` (``deepcopy``; ``ensure_weight_tying`` is off).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> setup = Adapters(method="lora", modules_to_save=("lm_head", "post_attention_layernorm"))
    >>> [(module.name, count) for module, count in copied_modules(TINY_LLAMA, setup)]
    [('lm_head', 1), ('post_attention_layernorm', 2)]
    """
    if not adapters.uses_adapters or adapters.modules_to_save is None:
        return ()
    heads = ((module, 1) for module in tied_head(model))
    everything = (*made_modules(model, adapters), *heads)
    return tuple((module, count) for module, count in everything if is_copied(module, adapters))


def _check_copies(model: Model, adapters: Adapters) -> None:
    if adapters.modules_to_save is None:
        return
    modules = (*(module for module, _ in made_modules(model, adapters)), *tied_head(model))
    blocks = {
        module.name[:place]
        for module in modules
        for place, letter in enumerate(module.name)
        if letter == "."
    }
    adapters_alone = replace(adapters, modules_to_save=None)
    for name in adapters.modules_to_save:
        taken = [module for module in modules if module.name.endswith(name)]
        if not taken or any(block.endswith(name) for block in blocks):
            known = ", ".join(m.name for m in modules if not isinstance(m, Bare))
            raise InputError(
                f"modules_to_save names {name!r}, which is not a module of {model.model_type}; choose from: "
                f"{known}."
            )
        for module in taken:
            if isinstance(module, Bare):
                raise COPIED_ROUTER(name=name)
            if is_quantized(module, adapters):
                raise COPIED_PACKED(name=name, module=module.name)
            whole = module.name == name or module.name.endswith(f".{name}")
            if not whole and isinstance(module, Linear) and is_adapted(module, adapters_alone):
                raise COPIED_ADAPTER(name=name, module=module.name)
    if not any(is_adapted(module, adapters) for module, _ in _adaptable(model, adapters)):
        raise NOTHING_TO_ADAPT(names=", ".join(adapters.modules_to_save))


def _names(target: str, module: Linear | Bare | Embedding) -> bool:
    if isinstance(module, Bare):
        return target.rsplit(".", 1)[-1] in module.former_names
    return ends(module.name, target)


def _adaptable(model: Model, adapters: Adapters) -> Iterator[tuple[Linear | Bare | Embedding, int]]:
    """The modules that can get adapters, and their multiplicity."""
    for module, count in (
        *made_modules(model, adapters),
        *((head, 1) for head in tied_head(model)),
    ):
        match module:
            case Linear(shadowed=False):
                yield module, count
            case Bare(former_names=names) if names or _is_parameter(module, adapters):
                yield module, count
            case Embedding(name=name) if name not in POSITIONS_AND_LAYERS:
                yield module, count


def dropout_is_refused(model: Model, adapters: Adapters) -> bool:
    """Whether PEFT refuses the setup's LoRA dropout (a yes or no): it adapts a router or stacked experts.

    Source: PEFT 0.21 tuners/lora/layer.py, ``ParamWrapper.__init__``: such adapters are merged into the weight, so
    there is no input to drop.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> dropout_is_refused(TINY_LLAMA, Adapters(method="lora"))
    False
    """
    bare = (module for module, _ in made_modules(model, adapters) if isinstance(module, Bare))
    return adapters.lora_dropout > 0 and any(is_adapted(module, adapters) for module in bare)


def _is_stopping(module: Linear | Bare | Embedding, adapters: Adapters) -> bool:
    stops = isinstance(module, Linear) and (module.routes or module.unadaptable)
    return stops and is_adapted(module, adapters)


def _last(module: Linear | Bare) -> str:
    return module.name.rpartition(".")[2]


TEXT_ALONE = TrainingSetup(model_class=ModelClass.TEXT)
"""A setup for the modules of the text model only."""


def linears_peft_takes(model: Model) -> tuple[str, ...]:
    """All linears that can have an adapter (names; per model), as used in ``lora_target_modules``.

    Source: derived, from ``layer_modules``; PEFT 0.21 tuners/lora/layer.py, ``Linear.forward`` (``result.dtype``, of a
    tuple), and tuners/tuners_utils.py, ``_check_lora_target_modules_mamba``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> linears_peft_takes(TINY_LLAMA)
    ('q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj')
    """
    linears = [
        module
        for module, _ in _adaptable(model, TEXT_ALONE.adapters)
        if isinstance(module, Linear) and module.name not in HEADS
    ]
    stopping = {_last(linear) for linear in linears if linear.routes or linear.unadaptable}
    return tuple(
        dict.fromkeys(_last(linear) for linear in linears if _last(linear) not in stopping)
    )


def default_targets(model: Model, adapters: Adapters) -> str | tuple[str, ...]:
    """Default target modules (names; per model): all linears, or those that PEFT accepts.

    For families in PEFT's own table, its entry; for others, every linear whose name was never that of an expert.

    Source: PEFT 0.21, utils/constants.py; the refusals as ``refused_targets``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> default_targets(TINY_LLAMA, Adapters(method="lora"))
    'all-linear'
    """
    return _default_targets(model, adapters)


@lru_cache(maxsize=1024)
def _default_targets(model: Model, adapters: Adapters) -> str | tuple[str, ...]:
    every = replace(adapters, lora_target_modules=ALL_LINEAR)
    return ALL_LINEAR if not refused_targets(model, every) else _accepted(model)


def _accepted(model: Model) -> tuple[str, ...]:
    of_experts = {
        name
        for module, _ in _adaptable(model, TEXT_ALONE.adapters)
        if isinstance(module, Bare)
        for name in module.former_names
    }
    plain = tuple(name for name in linears_peft_takes(model) if name not in of_experts)
    return family_of(model).peft_targets or plain


def refused_targets(model: Model, adapters: Adapters) -> RefusedError | None:
    """Why PEFT refuses the setup's targets (an error; per model); None if it accepts them.

    Source: PEFT 0.21, tuners/lora/layer.py, ``Linear.forward`` (``result.dtype``, of a tuple) and
    ``ParamWrapper.__init__``; tuners/tuners_utils.py, ``_check_lora_target_modules_mamba``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> refused_targets(TINY_LLAMA, Adapters(method="lora")) is None
    True
    """
    adaptable = [module for module, _ in _adaptable(model, adapters)]
    bare = [module for module in adaptable if isinstance(module, Bare)]
    accepted = ", ".join(_accepted(model))
    for module in adaptable:
        if not _is_stopping(module, adapters):
            continue
        if isinstance(module, Linear) and module.unadaptable:
            return READ_BY_KERNELS(module=module.name, model_type=model.model_type, others=accepted)
        return ADAPTER_ON_ROUTER(model_type=model.model_type, others=accepted)
    if adapters.use_dora and any(is_adapted(module, adapters) for module in bare):
        return DORA_ON_EXPERTS(model_type=model.model_type, others=accepted)
    if adapters.lora_bias and any(is_adapted(module, adapters) for module in bare):
        return BIAS_ON_EXPERTS(model_type=model.model_type, others=accepted)
    if dropout_is_refused(model, adapters):
        return DROPOUT_ON_EXPERTS(
            dropout=adapters.lora_dropout, model_type=model.model_type, others=accepted
        )
    return None


def _check_targets(model: Model, adapters: Adapters) -> None:
    adaptable = [module for module, _ in _adaptable(model, adapters)]
    if refused := refused_targets(model, adapters):
        raise refused
    _check_parameters(model, adapters)
    if adapters.by_layer and has_towers(model, adapters):
        raise LAYERS_WITH_TOWERS(model_type=model.model_type)
    if adapters.lora_bias:
        for module in adaptable:
            if isinstance(module, Embedding) and is_adapted(module, adapters):
                raise BIAS_ON_EMBEDDING(name=module.name)
    is_less = adapters.exclude_modules is not None or adapters.layers_to_transform is not None
    if is_less and not any(is_adapted(module, adapters) for module in adaptable):
        raise NOTHING_LEFT(model_type=model.model_type)
    if isinstance(adapters.lora_target_modules, str):
        return
    for target in adapters.lora_target_modules:
        reached = (module for module in adaptable if module.part not in adapters.frozen_parts)
        if any(_names(f"{target}.linear", module) for module in reached):
            raise WRAPPED_LINEAR(name=target, model_type=model.model_type)
        if not any(_names(target, module) for module in adaptable):
            _check_no_layer(model, target)
            if any(_is_convolution(module, target) for module, _ in tower_modules(model, adapters)):
                raise OTHER_LAYERS(name=target)
    unmatched = unmatched_targets(model, adapters)
    if len(unmatched) == len(adapters.lora_target_modules):
        every = (name for m in adaptable for name in getattr(m, "former_names", (m.name,)))
        raise NO_SUCH_LAYERS(
            names=", ".join(map(repr, unmatched)),
            model_type=model.model_type,
            known=", ".join(dict.fromkeys(every)),
        )
    for module in adaptable:
        if not isinstance(module, Bare):
            continue
        named = {target.rsplit(".", 1)[-1] for target in adapters.lora_target_modules}
        missing = [name for name in module.former_names if name not in named]
        if missing and len(missing) < len(module.former_names):
            raise HALF_OF_A_MATRIX(
                missing=", ".join(map(repr, missing)),
                named=" and ".join(repr(name) for name in module.former_names if name in named),
                model_type=model.model_type,
            )


def _check_parameters(model: Model, adapters: Adapters) -> None:
    bare = [module for module, _ in made_modules(model, adapters) if isinstance(module, Bare)]
    for name in adapters.target_parameters or ():
        one = replace(adapters, target_parameters=(name,))
        if not any(_is_parameter(module, one) for module in bare):
            known = [module.name if module.stack else f"{module.name}.weight" for module in bare]
            instead = f"name some of {', '.join(dict.fromkeys(known))}" if known else "leave it out"
            raise OTHER_PARAMETERS(name=name, model_type=model.model_type, instead=instead)


@lru_cache(maxsize=1024)
def unmatched_targets(model: Model, adapters: Adapters) -> tuple[str, ...]:
    """The listed targets that match nothing in the model (names; per model). PEFT adapts the others without a warning.

    Source: PEFT 0.21 tuners/tuners_utils.py, ``inject_adapter`` (an error only if no module matches).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> unmatched_targets(TINY_LLAMA, Adapters(method="lora", lora_target_modules=("q_proj", "c_attn")))
    ('c_attn',)
    """
    if not adapters.uses_adapters or isinstance(adapters.lora_target_modules, str):
        return ()
    adaptable = [module for module, _ in _adaptable(model, adapters)]
    return tuple(
        target
        for target in adapters.lora_target_modules
        if not any(_names(target, module) for module in adaptable)
        and not _is_in_the_tree(model, target)
    )


def _is_in_the_tree(model: Model, target: str) -> bool:
    return any(ends(node.name, target) for node in module_tree(model).walk())


def _is_convolution(module: Module, target: str) -> bool:
    """Whether a target matches a tower's convolution, which PEFT adapts."""
    convolves = isinstance(module, Kernel) or (isinstance(module, Norm) and module.taps > 0)
    return convolves and ends(module.name, target)


def _check_no_layer(model: Model, target: str) -> None:
    """Refuses a target that matches something in the model, but no layer that gets an adapter here."""
    if not _is_in_the_tree(model, target):
        return
    modules = [module for module, _ in made_modules(model, TEXT_ALONE.adapters)]
    named = [module for module in modules if ends(module.name, target) or ends(target, module.name)]
    kernels = any(isinstance(module, Linear) and module.unadaptable for module in modules)
    if kernels and target.rpartition(".")[2] == "conv1d":
        accepted = ", ".join(_accepted(model))
        raise READ_BY_KERNELS(module=target, model_type=model.model_type, others=accepted)
    if any(
        isinstance(module, Linear | Embedding) or (isinstance(module, Norm) and module.taps)
        for module in named
    ):
        raise OTHER_LAYERS(name=target)
    raise NO_LAYER(name=target, model_type=model.model_type)


def adapter_rank(module: Linear | Bare | Embedding, adapters: Adapters) -> int:
    """Rows of LoRA's A and columns of its B on this layer, whole model.

        Linear  r      router  r      stack of E experts  r · n · E    r: lora_r; n: linears fused into one, so gate
                                                                       and up, which were two, take 2 r, where they
                                                                       are targets by these two names

    r is ``rank_pattern``'s where that names the module, and then n is 1.

    Error: none; compared with PEFT's own count in tests/verify.
    Source: PEFT 0.21 tuners/lora/layer.py, ``ParamWrapper.update_layer``; utils/transformers_weight_conversion.py,
    ``_convert_peft_config_moe`` (rank_pattern).

    >>> adapter_rank(Bare("experts.gate_up_proj", 8, 32, 4, ("gate_proj", "up_proj")), Adapters(lora_r=16))
    128
    """
    rank = pattern_rank(module, adapters)
    if not isinstance(module, Bare):
        return adapters.lora_r if rank is None else rank
    fused = len(module.former_names) if rank is None and _is_target(module, adapters) else 1
    return (adapters.lora_r if rank is None else rank) * fused * (module.stack or 1)


def adapter_parameters(model: Model, adapters: Adapters) -> int:
    """Parameters that PEFT adds to the model, in elements, whole job; 0 for full fine-tuning.

        Σ adapted layers  r · (in + out)  (+ out where DoRA or a bias)  +  Σ copied modules  their parameters
        r: ``adapter_rank``; A is [r, in], B is [out, r]; DoRA's magnitudes and B's bias are [out]; copied:
        ``modules_to_save``

    Error: none; compared with PEFT's own count in tests/verify.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; PEFT 0.21 tuners/lora/layer.py, ``LoraLayer.update_layer``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> setup = TrainingSetup(method="lora", lora_r=2, lora_target_modules=("q_proj", "v_proj"))
    >>> adapter_parameters(TINY_LLAMA, setup.adapters) == 2 * 2 * ((8 + 8) + (8 + 4))
    True
    """
    return _adapter_parameters(model, adapters) if adapters.uses_adapters else 0


@lru_cache(maxsize=1024)
def _adapter_parameters(model: Model, adapters: Adapters) -> int:
    _check_targets(model, adapters)
    _check_copies(model, adapters)
    copies = sum(
        count * module_parameters(module) for module, count in copied_modules(model, adapters)
    )
    return copies + sum(
        count * _adapter_elements(module, adapters)
        for module, count in _adaptable(model, adapters)
        if is_adapted(module, adapters)
    )


def _adapter_elements(module: Linear | Bare | Embedding, adapters: Adapters) -> int:
    rows, columns = adapted_sizes(module)
    beside = columns if adapters.use_dora or adapters.lora_bias else 0
    return adapter_rank(module, adapters) * (rows + columns) + beside


def adapted_sizes(module: Linear | Bare | Embedding) -> tuple[int, int]:
    """What LoRA's A takes and its B gives, in elements: of an embedding the vocabulary and the width.

    Source: PEFT 0.21 tuners/lora/layer.py, ``Embedding.update_layer``.

    >>> adapted_sizes(Embedding("embed_tokens", 10, 8)), adapted_sizes(Linear("lm_head", 8, 10))
    ((10, 8), (8, 10))
    """
    if isinstance(module, Embedding):
        return module.rows, module.width
    return module.in_features, module.out_features


def adapter_shapes(module: Module, adapters: Adapters) -> tuple[tuple[int, ...], ...]:
    """Shapes of LoRA's A [r, in] and B [out, r] on this module, and of B's bias or DoRA's magnitudes [out].

    Empty if the module is not adapted. On a stack of E experts the rank is r · n · E, with n linears fused into one
    (gate and up: 2).

    Source: peft 0.21, tuners/lora/layer.py, ``LoraLayer.update_layer`` and ``ParamWrapper.update_layer``;
    tuners/lora/dora.py, ``update_layer``.
    """
    if not (isinstance(module, Linear | Bare | Embedding) and is_adapted(module, adapters)):
        return ()
    rows, columns = adapted_sizes(module)
    rank = adapter_rank(module, adapters)
    has_row = adapters.lora_bias or adapters.use_dora
    return ((rank, rows), (columns, rank), *([(columns,)] if has_row else []))


def copied_shapes(module: Module, adapters: Adapters) -> tuple[tuple[int, ...], ...]:
    """Shapes in elements of the copy of a module that PEFT trains; empty if there is none.

    Source: as ``is_copied``.
    """
    return weight_shapes(module) if is_copied(module, adapters) else ()


def trainable_parameters(model: Model, adapters: Adapters) -> int:
    """Trained parameters, in elements, whole job: all, or the adapters, and with ``bias`` biases of the base.

    Includes those of towers, which get no gradient in a step on text.

    Error: none; exact.
    Source: derived, from ``total_parameters``, ``untrained_parameters`` and ``adapter_parameters``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> trainable_parameters(TINY_LLAMA, Adapters()) == total_parameters(TINY_LLAMA)
    True
    """
    if not adapters.uses_adapters:
        made = total_parameters(model) + tower_parameters(model, adapters)
        return made - untrained_parameters(model) - _frozen_parameters(model, adapters)
    return adapter_parameters(model, adapters) + trained_biases(model, adapters)


def _frozen_parameters(model: Model, adapters: Adapters) -> int:
    """Of the parts that the setup freezes."""
    frozen = adapters.frozen_parts
    if not frozen:
        return 0
    return sum(
        count * module_parameters(module)
        for module, count in made_modules(model, adapters)
        if module.part in frozen
    )


@lru_cache(maxsize=512)
def linear_names(model: Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of a layer's linear modules as PEFT matches them: all, and those of attention.

    A name shared by two modules (GPT-2's ``c_proj``) is written with its block.

    Source: peft 0.21, tuners/tuners_utils.py, ``check_target_module_exists``: a target matches a module's full name or
    its end.
    """
    modules = (module for index, _ in layer_groups(model) for module in layer_modules(model, index))
    paths = list(dict.fromkeys(module.name for module in modules if isinstance(module, Linear)))
    lasts = [path.rpartition(".")[2] for path in paths]
    names = [
        last if lasts.count(last) == 1 else path for path, last in zip(paths, lasts, strict=True)
    ]
    attention = [name for name, path in zip(names, paths, strict=True) if "att" in path]
    return tuple(names), tuple(attention)


@lru_cache(maxsize=512)
def outer_names(model: Model) -> tuple[str, ...]:
    """Names of the embeddings and the head, which are often trained in addition to adapters.

    Source: peft 0.21, utils/other.py, ``_set_trainable``, which matches the end of a module's name.
    """
    modules = (*outer_modules(model), *tied_head(model))
    return tuple(module.name for module in modules if isinstance(module, Embedding | Linear))


def is_quantized(module: Module, adapters: Adapters) -> bool:
    """Whether bitsandbytes packs this module: every linear except the head (a yes or no; the same on every GPU).

    Falcon's linears have a class of their own and are not packed; neither is the last one of an OLMo with a tied head.
    Source: transformers 5.23, quantizers/base.py, ``get_keys_to_not_convert`` (output embedding and tied keys stay);
    integrations/bitsandbytes.py, ``replace_with_bnb_linear`` (``type(module) is nn.Linear``).
    """
    if not adapters.has_packed_base or not isinstance(module, Linear):
        return False
    return module.name not in HEADS and not (module.own_class or module.is_last)

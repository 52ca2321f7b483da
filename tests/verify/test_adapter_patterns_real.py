"""What PEFT's patterns and biases train in every family, compared with PEFT itself on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
from test_parameters_meta import IDS, VARIANTS, build

from estimator.families.adapters import trainable_parameters
from estimator.families.model_tree import layer_modules, layers_name
from estimator.families.modules import Bare
from estimator.families.target_pattern import is_pattern, with_names
from estimator.passes.stack import is_checkpointed
from estimator.values.facets.adapters import Adapters
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

peft = pytest.importorskip("peft")
modeling_layers = pytest.importorskip("transformers.modeling_layers")

pytestmark = pytest.mark.filterwarnings("ignore")


def asked(model: Model, given: dict[str, Any]) -> int | str:
    """Our count, or the sentence of the refusal."""
    setup = TrainingSetup(method="lora", lora_r=4, lora_dropout=0.0, **given)
    try:
        if is_pattern(setup.adapters):
            setup = setup.replace(adapters=with_names(model, setup.adapters))
        return trainable_parameters(model, setup.adapters)
    except ValueError as refusal:
        return str(refusal)


def real(made: Any, given: dict[str, Any]) -> int | str:
    """PEFT's count, or why it fails."""
    keys = {
        name.replace("lora_target_modules", "target_modules"): list(value)
        if isinstance(value, tuple)
        else value
        for name, value in given.items()
    }
    try:
        wrapped = peft.get_peft_model(made, peft.LoraConfig(r=4, task_type="CAUSAL_LM", **keys))
    except (ValueError, TypeError) as problem:
        return str(problem)
    return int(
        sum(parameter.numel() for parameter in wrapped.parameters() if parameter.requires_grad)
    )


def patterns(model: Model) -> list[dict[str, Any]]:
    """Values for every key, with module names of the family."""
    from estimator.families.adapters import linears_peft_takes

    names = linears_peft_takes(model)
    first, last = names[0], names[-1]
    layers = layers_name(model)
    both = tuple(dict.fromkeys((first, last)))
    return [
        {"lora_target_modules": both, "bias": "all"},
        {"lora_target_modules": both, "bias": "lora_only"},
        {"lora_target_modules": both, "lora_bias": True},
        {"lora_target_modules": both, "layers_to_transform": (1, 3)},
        {"lora_target_modules": both, "layers_to_transform": (0,), "exclude_modules": (last,)},
        {"lora_target_modules": (first, "lm_head"), "layers_to_transform": (2,)},
        {"lora_target_modules": both, "rank_pattern": {first: 2}},
        {"lora_target_modules": both, "rank_pattern": {f"{layers}.1.{'x'}": 2, last: 9}},
        {"lora_target_modules": both, "exclude_modules": (f"{layers}.0", first)},
    ]


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=IDS)
def test_trained_parameters_match_peft(model_type, keys):
    _, model = build(model_type, keys)
    for given in patterns(model):
        ours, theirs = asked(model, given), real(build(model_type, keys)[0], given)
        if isinstance(ours, str):
            assert "not modelled" in ours or isinstance(theirs, str), (given, ours, theirs)
        else:
            assert ours == theirs, given


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=IDS)
def test_a_regular_expression_reaches_what_it_reaches_in_peft(model_type, keys):
    _, model = build(model_type, keys)
    takes = patterns(model)[0]["lora_target_modules"]
    either = "|".join(takes)
    for pattern in (
        rf".*\.({either})",
        rf"{layers_name(model)}.[13]..*.({either})",
        rf"(lm_head|.*{takes[0]})",
        rf".*\.\d+\.[^.]+\.{takes[-1]}",
        takes[0],
        r".*mlp.*",
    ):
        given = {"lora_target_modules": pattern}
        ours, theirs = asked(model, given), real(build(model_type, keys)[0], given)
        if isinstance(ours, str):
            assert "not modelled" in ours or isinstance(theirs, str), (given, ours, theirs)
        else:
            assert ours == theirs, given


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=IDS)
def test_one_layer_may_be_excluded_or_have_its_own_rank(model_type, keys):
    _, model = build(model_type, keys)
    takes = patterns(model)[0]["lora_target_modules"]
    for index in (0, model.num_hidden_layers - 1):
        names = [module.name for module in layer_modules(model, index)]
        for name in (name for name in names if name.rpartition(".")[2] in takes):
            key = f"{layers_name(model)}.{index}.{name}"
            for given in (
                {"lora_target_modules": takes, "exclude_modules": (key,)},
                {"lora_target_modules": takes, "rank_pattern": {key: 11}},
            ):
                ours, theirs = asked(model, given), real(build(model_type, keys)[0], given)
                assert ours == theirs or (isinstance(ours, str) and isinstance(theirs, str)), given


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=IDS)
def test_stacked_experts_are_adapted_by_parameter_name(model_type, keys):
    _, model = build(model_type, keys)
    names = {
        module.name if module.stack else f"{module.name}.weight"
        for index in range(model.num_hidden_layers)
        for module in layer_modules(model, index)
        if isinstance(module, Bare)
    }
    attention = next(module for module in patterns(model)[0]["lora_target_modules"])
    for name in sorted(names):
        given = {"lora_target_modules": (attention,), "target_parameters": (name,)}
        assert asked(model, given) == real(build(model_type, keys)[0], given), name


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=IDS)
def test_every_third_layer_is_checkpointed_as_in_transformers(model_type, keys):
    made, model = build(model_type, keys)
    made.activation_checkpointing_enable(every_n_layers=3)
    layer = modeling_layers.GradientCheckpointingLayer
    theirs = [
        module.gradient_checkpointing for module in made.modules() if isinstance(module, layer)
    ]
    setup = TrainingSetup(gradient_checkpointing=True, checkpoint_every_n_layers=3)
    assert theirs == [
        is_checkpointed(model, setup, index) for index in range(model.num_hidden_layers)
    ]


def test_adapters_accept_peft_s_shorthand():
    read = Adapters(method="lora", layers_to_transform=3, rank_pattern={"q_proj": 2})
    assert (read.layers_to_transform, read.rank_pattern) == ((3,), (("q_proj", 2),))

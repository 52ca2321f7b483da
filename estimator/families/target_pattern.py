"""A regular expression in PEFT's ``target_modules``, as the names of the modules that it matches.

It is matched by RE2, in time linear in the name: a pattern of a stranger's file cannot hold the page up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from estimator.families.loaded import ends, has_towers, made_modules, tower_modules
from estimator.families.model_tree import ModuleNode, layers_name, module_tree
from estimator.families.modules import HEADS, Bare
from estimator.families.vision_family import sees, vision_family
from estimator.values.facets.adapters import Adapters
from estimator.values.refusals import NOT_MODELLED, Line, Refusal, show
from estimator.values.specs import ALL_LINEAR, Model

UNREADABLE = Refusal(
    "lora_target_modules {pattern} is a regular expression of a kind that is not modelled yet ({why}); list the "
    "modules' names.",
    NOT_MODELLED,
)
NOTHING_MATCHES = Refusal(
    "lora_target_modules {pattern} is one string, so PEFT takes it for a regular expression, and it must match a "
    "module's whole name; {model_type}'s are such as {known}, and none does. Write {instead}, or a list of names.",
    Line("peft", "utils/other.py", 1521, "re.fullmatch(target_pattern, key)"),
)
NO_ADAPTER = Refusal(
    "lora_target_modules {pattern} also matches {name}, which is no layer that gets an adapter, and PEFT fails on it; "
    "make it end in the linears' names.",
    Line(
        "peft",
        "tuners/lora/model.py",
        559,
        "is not supported. Currently, only the following modules are supported",
    ),
)
NOT_BY_NAME = Refusal(
    "lora_target_modules {pattern} matches modules of {model_type} that no list of names tells from the others, which "
    "is not modelled yet; list names.",
    NOT_MODELLED,
)


TEXT_BESIDE_TOWERS = "model.language_model"
"""The text of Gemma 3n and 4: transformers 5.23, models/gemma4/modeling_gemma4.py, ``Gemma4Model.__init__``."""
TOWER_LAYERS = re.compile(r"\b(layers|conformer)\.")
"""Where the name of a module in a tower's layers leaves out the index."""


def is_pattern(adapters: Adapters) -> bool:
    r"""Whether the targets are one string other than ``all-linear``, which PEFT takes for a regular expression.

    Source: peft 0.21, tuners/tuners_utils.py, ``check_target_module_exists``.

    >>> is_pattern(Adapters(method="lora", lora_target_modules=r".*\.q_proj")), is_pattern(Adapters())
    (True, False)
    """
    targets = adapters.lora_target_modules
    return isinstance(targets, str) and targets != ALL_LINEAR


@lru_cache(maxsize=256)
def with_names(model: Model, adapters: Adapters) -> Adapters:
    r"""The same adapters with names for the pattern; layers and towers that it leaves out are left out by key.

    Of a mixture whose experts were linears once, PEFT takes the last parts of what matches, in every layer, and tries
    the experts' former names. Raises ``InputError`` with one sentence if nothing matches, or no list says the same.

    Source: peft 0.21, tuners/tuners_utils.py, ``check_target_module_exists``; utils/transformers_weight_conversion.py,
    ``_resolve_string_target_modules``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> given = Adapters(method="lora", lora_target_modules=r"model\.layers\.1\..*\.(q|v)_proj")
    >>> named = with_names(TINY_LLAMA, given)
    >>> named.lora_target_modules, named.layers_to_transform
    (('q_proj', 'v_proj'), (1,))
    """
    pattern = str(adapters.lora_target_modules)
    matches = _matcher(pattern)
    layers, modules = _names(model, adapters)
    matched = list(filter(matches, modules))
    if former := tuple(_former_names(model, adapters, layers)):
        found = (*matched, *filter(matches, former))
        if found:
            names = tuple(dict.fromkeys(_last(name) for name in found))
            return replace(adapters, lora_target_modules=names)
    if not matched:
        first = next(name for name, is_leaf in modules.items() if is_leaf and _layer(name, layers))
        raise NOTHING_MATCHES(
            pattern=show(pattern),
            model_type=model.model_type,
            known=first,
            instead=rf".*\.{_last(first)}",
        )
    for name in matched:
        if not modules[name]:
            raise NO_ADAPTER(pattern=show(pattern), name=name)
    for candidate in _candidates(adapters, matched, layers, model):
        if [name for name in modules if _reaches(candidate, name, layers)] == matched:
            return candidate
    raise NOT_BY_NAME(pattern=show(pattern), model_type=model.model_type)


def _matcher(pattern: str) -> Callable[[str], object]:
    try:
        import re2
    except ImportError:
        why = "the package google-re2 is not installed"
        raise UNREADABLE(pattern=show(pattern), why=why) from None
    options = re2.Options()
    options.log_errors = False
    try:
        fullmatch: Callable[[str], object] = re2.compile(pattern, options).fullmatch
    except re2.error as problem:
        why = problem.args[0].decode(errors="replace")
        raise UNREADABLE(pattern=show(pattern), why=why) from None
    return fullmatch


def _names(model: Model, adapters: Adapters) -> tuple[str, Mapping[str, bool]]:
    """The name of the list of decoder layers, and every module's full name with whether it has weights and no children.

    Of towers whose tree is not known, the modules with weights, those of one layer alone.
    """
    with_tower = sees(model, adapters)
    tower = vision_family(model.vision) if with_tower and model.vision else None
    is_known = tower.tree is not None if tower else not has_towers(model, adapters)
    if is_known:
        nodes = module_tree(model, with_tower=with_tower).walk()
        layers = layers_name(model, with_tower=with_tower)
        return layers, {node.name: _has_weights(node) for node in nodes}
    text = {
        node.name.replace("model.", f"{TEXT_BESIDE_TOWERS}.", 1): _has_weights(node)
        for node in module_tree(model).walk()
    }
    inside = (f"model.{module.name}" for module, _ in tower_modules(model, adapters))
    leaves = [TOWER_LAYERS.sub(r"\1.0.", name) for name in inside]
    around = {name.rpartition(".")[0]: False for name in leaves}
    return f"{TEXT_BESIDE_TOWERS}.layers", text | around | dict.fromkeys(leaves, True)


def _has_weights(node: ModuleNode) -> bool:
    is_tied_head = node.name in HEADS
    return not node.children and (bool(node.tensors) or is_tied_head)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _former_names(model: Model, adapters: Adapters, layers: str) -> Iterator[str]:
    """Full names that a mixture's stacked experts had when they were linears."""
    for module, _ in made_modules(model, adapters):
        if isinstance(module, Bare):
            container = module.name.rpartition(".")[0]
            for index in range(model.num_hidden_layers):
                yield from (f"{layers}.{index}.{container}.{name}" for name in module.former_names)


def _candidates(
    adapters: Adapters, wanted: Sequence[str], layers: str, model: Model
) -> Iterator[Adapters]:
    """Adapters that might reach the wanted modules and no others, the shortest lists first."""
    of_text = [name for name in wanted if _is_text(name, layers)]
    indices = {int(index) for name in of_text if (index := _layer(name, layers))}
    only = tuple(sorted(indices)) if len(indices) < model.num_hidden_layers else None
    freezes = len(of_text) == len(wanted) and sees(model, adapters)
    for short in (_last, _within_a_layer):
        yield replace(
            adapters,
            lora_target_modules=tuple(dict.fromkeys(map(short, wanted))),
            layers_to_transform=only,
            freeze_vision=adapters.freeze_vision or freezes,
            freeze_projector=adapters.freeze_projector or freezes,
        )


def _is_text(name: str, layers: str) -> bool:
    return name.startswith(f"{layers.rpartition('.')[0]}.") or name in HEADS


def _layer(name: str, layers: str) -> str:
    """The index of the decoder layer that a module is in; empty: none."""
    return name.removeprefix(f"{layers}.").split(".")[0] if name.startswith(f"{layers}.") else ""


def _within_a_layer(name: str) -> str:
    """The name after the last index: ``model.layers.3.self_attn.q_proj`` is ``self_attn.q_proj``."""
    parts = name.split(".")
    indices = [at for at, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[indices[-1] + 1 :]) if indices else parts[-1]


def _reaches(adapters: Adapters, name: str, layers: str) -> bool:
    """Whether PEFT's rule for lists, and what is frozen, give the module of this full name an adapter."""
    if adapters.freeze_vision and not _is_text(name, layers):
        return False
    only, layer = adapters.layers_to_transform, _layer(name, layers)
    if only is not None and not (layer and int(layer) in only):
        return False
    return any(ends(name, target) for target in adapters.lora_target_modules)

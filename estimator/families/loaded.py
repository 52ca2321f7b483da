"""The modules of the class that a setup loads: of the text, alike where adapters are, and of towers beside it.

PEFT tells modules by their names, so that layers of one kind may differ in what is adapted, and in the rank.

Source: peft 0.21, tuners/tuners_utils.py, ``check_target_module_exists``; utils/other.py, ``get_pattern_key``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from estimator.families.model_tree import (
    layer_groups,
    layer_kind,
    layer_modules,
    layers_name,
    outer_modules,
    vision_modules,
)
from estimator.families.modules import Bare, Embedding, Linear, Module, module_parameters
from estimator.families.registry import family_of
from estimator.families.vision_family import sees
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.images import Images
from estimator.values.specs import Model, ModelClass

Alike = tuple[tuple[Module, int], ...]
"""Modules with weights, and their multiplicity."""
BEFORE_THE_TEXT = ("vision_tower", "multi_modal_projector")
"""Name prefixes of modules that precede the text model in parameter order."""


# --- PEFT's patterns ----------------------------------------------------------------------------


def ends(name: str, target: str) -> bool:
    """Whether a module's name is a pattern's, or ends in it (a yes or no).

    Source: peft 0.21, tuners/tuners_utils.py, ``check_target_module_exists``.

    >>> ends("self_attn.q_proj", "q_proj"), ends("self_attn.q_proj", "proj")
    (True, False)
    """
    return name == target or name.endswith(f".{target}")


def key_of(module: Linear | Bare | Embedding) -> str:
    """The name that patterns are held against: with the layer's number where that matters.

    Source: derived.
    """
    return module.layer + module.name if isinstance(module, Linear) else module.name


def left_out(module: Linear | Embedding, adapters: Adapters) -> bool:
    """Whether PEFT leaves out this target (a yes or no): excluded by name, or of a layer that is not listed.

    Where layers are listed, what lies outside them is taken by its whole name alone, so of all the head.

    Source: peft 0.21, tuners/tuners_utils.py, ``check_target_module_exists``.

    >>> given = Adapters(method="lora", lora_target_modules=["q_proj"], layers_to_transform=[1])
    >>> [left_out(Linear("self_attn.q_proj", 8, 8, layer=f"model.layers.{it}."), given) for it in (0, 1)]
    [True, False]
    """
    key = key_of(module)
    if any(ends(key, name) for name in adapters.exclude_modules or ()):
        return True
    if adapters.layers_to_transform is None:
        return False
    if isinstance(module, Linear) and module.layer:
        return int(module.layer.split(".")[-2]) not in adapters.layers_to_transform
    return module.name != "lm_head"


def pattern_rank(module: Linear | Bare | Embedding, adapters: Adapters) -> int | None:
    """The rank that ``rank_pattern`` gives this module (rows of A); None: it names it not.

    Source: peft 0.21, utils/other.py, ``get_pattern_key``: the first pattern that fits.

    >>> given = Adapters(method="lora", rank_pattern={"q_proj": 4})
    >>> pattern_rank(Linear("self_attn.q_proj", 8, 8), given), pattern_rank(Linear("mlp.up_proj", 8, 8), given)
    (4, None)
    """
    key = key_of(module)
    return next((rank for name, rank in adapters.rank_pattern or () if ends(key, name)), None)


# --- the text -----------------------------------------------------------------------------------


def modules_of_layer(model: Model, adapters: Adapters, index: int) -> tuple[Module, ...]:
    """Modules with weights in a decoder layer, which know their layer where adapters differ between layers.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> modules_of_layer(TINY_LLAMA, Adapters(), 1) == layer_modules(TINY_LLAMA, 1)
    True
    """
    modules = layer_modules(model, index)
    if not adapters.by_layer:
        return modules
    layer = f"{layers_name(model)}.{index}."
    return tuple(
        replace(module, layer=layer) if isinstance(module, Linear) else module for module in modules
    )


def adapted_kinds(model: Model, adapters: Adapters) -> tuple[str, ...]:
    """Of every layer its kind, and what the patterns say of its linears, as one word; equal words, equal layers.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> adapted_kinds(TINY_LLAMA, Adapters())
    ('', '')
    """
    kinds = tuple(layer_kind(model, index) for index in range(model.num_hidden_layers))
    if not adapters.by_layer:
        return kinds
    patterns = Adapters(  # alone, since a rank that is recorded has no hash
        method=adapters.method,
        layers_to_transform=adapters.layers_to_transform,
        exclude_modules=adapters.exclude_modules,
        rank_pattern=adapters.rank_pattern,
    )
    return _adapted_kinds(model, patterns, kinds)


@lru_cache(maxsize=256)
def _adapted_kinds(model: Model, adapters: Adapters, kinds: tuple[str, ...]) -> tuple[str, ...]:
    def said(index: int) -> Iterator[str]:
        for module in modules_of_layer(model, adapters, index):
            if isinstance(module, Linear):
                yield f"{left_out(module, adapters):d}{pattern_rank(module, adapters)}"

    return tuple(" ".join((kind, *said(index))) for index, kind in enumerate(kinds))


def adapted_groups(model: Model, adapters: Adapters) -> tuple[tuple[int, int], ...]:
    """Of layers that hold the same modules and adapters the lowest, and how many there are (a count, whole model).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> adapted_groups(TINY_LLAMA, Adapters(method="lora", lora_target_modules=["q_proj"], layers_to_transform=[1]))
    ((0, 1), (1, 1))
    """
    if not adapters.by_layer:
        return layer_groups(model)
    kinds = adapted_kinds(model, adapters)
    return tuple((kinds.index(kind), count) for kind, count in Counter(kinds).items())


def text_modules(model: Model, adapters: Adapters) -> Iterator[tuple[Module, int]]:
    """Every module with weights of the text, and how many alike with the same adapters there are, whole model.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [count for module, count in text_modules(TINY_LLAMA, Adapters()) if module.name == "self_attn.q_proj"]
    [2]
    """
    yield from ((module, 1) for module in outer_modules(model))
    for index, count in adapted_groups(model, adapters):
        yield from ((module, count) for module in modules_of_layer(model, adapters, index))


# --- towers -------------------------------------------------------------------------------------


def has_towers(model: Model, adapters: Adapters) -> bool:
    """Whether the class that loads the model has towers (a yes or no; the same on every GPU).

    Source: transformers 5.23, models/auto/modeling_auto.py, ``MODEL_FOR_CAUSAL_LM_MAPPING_NAMES``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> has_towers(TINY_LLAMA, Adapters())
    False
    """
    return model.towers is not None and adapters.model_class is ModelClass.AUTO


def tower_modules(model: Model, adapters: Adapters) -> Alike:
    """Modules with weights of the towers and their projectors, and their multiplicity; whole model.

    Names are those of transformers without the layer index. Empty for the text class.

    Leaves out: buffers.
    Error: none; compared with transformers' own module tree in tests/verify.
    Source: transformers 5.23, models/gemma3/modeling_gemma3.py, ``Gemma3Model.__init__``; models/gemma3n/
    modeling_gemma3n.py, ``Gemma3nModel.__init__``; models/gemma4/modeling_gemma4.py, ``Gemma4Model.__init__``;
    models/siglip/modeling_siglip.py; timm 1.0.31, models/mobilenetv5.py.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> tower_modules(TINY_LLAMA, Adapters())
    ()
    """
    if sees(model, adapters):
        return (*vision_modules(model), *_audio_modules(model))
    if model.towers is None or not has_towers(model, adapters):
        return ()
    classes = family_of(model).with_towers
    assert classes is not None
    return tuple(classes.modules(model.towers.vision, model.towers.audio, model))


def _audio_modules(model: Model) -> Alike:
    """A tower of sound beside one that sees, which images do not run."""
    classes = family_of(model).with_towers
    if model.towers is None or model.towers.audio is None or classes is None:
        return ()
    return tuple(classes.modules(None, model.towers.audio, model))


def made_modules(model: Model, adapters: Adapters) -> Alike:
    """Every module with weights of the loaded class, towers first, and their multiplicity, whole model.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> made_modules(TINY_LLAMA, Adapters()) == tuple(text_modules(TINY_LLAMA, Adapters()))
    True
    """
    return (*tower_modules(model, adapters), *text_modules(model, adapters))


def tower_parameters(model: Model, adapters: Adapters) -> int:
    """Parameters of the towers and their projectors, in elements, whole model; 0 for the text class.

    Error: none; equal to the published parameters beyond the text in data/models.csv.
    Source: derived, from ``tower_modules``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> tower_parameters(TINY_LLAMA, Adapters())
    0
    """
    return sum(
        count * module_parameters(module) for module, count in tower_modules(model, adapters)
    )


def idle_modules(model: Model, adapters: Adapters, images: Images) -> Alike:
    """The towers' modules that a step does not run, and their multiplicity: on text all but Gemma 3n's embedders.

    Source: transformers 5.23, models/gemma3n/modeling_gemma3n.py, ``Gemma3nModel.forward`` (``vision_embeds``,
    ``audio_embeds``).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> idle_modules(TINY_LLAMA, Adapters(), Images())
    ()
    """
    classes, modules = family_of(model).with_towers, tower_modules(model, adapters)
    if sees(model, adapters):
        run = vision_modules(model) if images.shows_any else ()
        return tuple(counted for counted in modules if counted not in run)
    run_on_text = classes.runs_on_text if classes else ()
    return tuple(counted for counted in modules if not counted[0].name.startswith(run_on_text))


def layers_before_the_text(model: Model, adapters: Adapters) -> int:
    """Tower layers that can be checkpointed and precede the text's (a count): those of Gemma 3's and 4's vision towers.

    Source: transformers 5.23, modeling_layers.py, ``GradientCheckpointingLayer``; models/siglip/modeling_siglip.py,
    ``SiglipEncoderLayer``; models/gemma4/modeling_gemma4.py, ``Gemma4VisionEncoderLayer``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layers_before_the_text(TINY_LLAMA, Adapters())
    0
    """
    if model.towers is None or not has_towers(model, adapters):
        return 0
    vision = model.towers.vision
    return vision.num_hidden_layers if vision is not None else 0


def clamps(model: Model, adapters: Adapters) -> int:
    """Scalars of Gemma 4's towers that clamp a linear's input and output (a count, whole model), 4 per linear.

    Source: transformers 5.23, models/gemma4/modeling_gemma4.py, ``Gemma4ClippableLinear.__init__``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> clamps(TINY_LLAMA, Adapters())
    0
    """
    if model.towers is None:
        return 0
    clipping = tuple(
        name
        for name, tower in (("vision", model.towers.vision), ("audio", model.towers.audio))
        if tower is not None and tower.use_clipped_linears
    )
    return 4 * sum(
        count
        for module, count in tower_modules(model, adapters)
        if module.name.endswith(".linear") and module.name.startswith(clipping)
    )

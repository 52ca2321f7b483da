"""The modules of a model, how many of each there are, and the resulting parameter counts.

Counts are elements, for the whole model, before any sharding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from estimator.families.family import ModuleClass
from estimator.families.layer_kinds import (
    CONVOLUTION,
    DELTA,
    DENSE,
    EXPERTS,
    FIRST_BACK,
    FULL_ATTENTION,
    KEEPING,
    LINEAR_ATTENTION,
    MAMBA,
    MLP,
    REUSING,
)
from estimator.families.modules import (
    LAYERS,
    Bare,
    Embedding,
    Linear,
    Module,
    Tree,
    extended,
    module_parameters,
    weight_shapes,
)
from estimator.families.parts import decoder
from estimator.families.registry import family_of
from estimator.values.refusals import InputError
from estimator.values.specs import Model


def layer_kind(model: Model, index: int) -> str:
    """The kind of a layer whose modules differ from the family's usual layer (a name); empty: the usual layer.

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, the decoder layer's ``__init__``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layer_kind(TINY_LLAMA, 0)
    ''
    """
    given = model.layer_types[index] if model.layer_types else ""
    if given in (CONVOLUTION, MLP, EXPERTS):
        return given
    if given == LINEAR_ATTENTION:
        return MAMBA if model.state_space else DELTA
    if named := family_of(model).kind:
        return named(model, index)
    is_dense = bool(model.mlp_layer_types) and model.mlp_layer_types[index] == DENSE
    return DENSE if is_dense else ""


@lru_cache(maxsize=1024)
def layer_groups(model: Model) -> tuple[tuple[int, int], ...]:
    """The lowest layer of each group with the same modules, and the group's size (a count, whole model).

    Source: derived, from ``layer_kind``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layer_groups(TINY_LLAMA)
    ((0, 2),)
    """
    kinds = [layer_kind(model, index) for index in range(model.num_hidden_layers)]
    return tuple((kinds.index(kind), count) for kind, count in Counter(kinds).items())


def layer_model(model: Model, index: int) -> Model:
    """The model with the heads and widths of one layer (no unit; per layer).

    Source: transformers 5.23 models/gemma4/configuration_gemma4.py, ``per_layer_config``; models/gemma4/
    modeling_gemma4.py, ``Gemma4TextMLP.__init__`` (``use_double_wide_mlp``).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layer_model(TINY_LLAMA, 1) is TINY_LLAMA
    True
    >>> mixed = replace(TINY_LLAMA, layer_types=("sliding_attention", "full_attention"), global_head_dim=16)
    >>> [layer_model(mixed, index).head_dim for index in range(2)]
    [4, 16]
    """
    is_global = bool(model.global_head_dim) and model.layer_types[index] == FULL_ATTENTION
    first_reusing = model.num_hidden_layers - model.num_kv_shared_layers
    is_wide = model.use_double_wide_mlp and index >= first_reusing
    return _changed(model, is_global=is_global, is_wide=is_wide) if is_global or is_wide else model


@lru_cache(maxsize=256)
def _changed(model: Model, *, is_global: bool, is_wide: bool) -> Model:
    heads = model.num_global_key_value_heads or model.num_key_value_heads
    return replace(
        model,
        head_dim=model.global_head_dim if is_global else model.head_dim,
        num_key_value_heads=heads if is_global else model.num_key_value_heads,
        intermediate_size=(1 + is_wide) * model.intermediate_size,
    )


@lru_cache(maxsize=256)
def sharing_of_keys(model: Model) -> tuple[str, ...]:
    """Every layer's role in sharing keys and values between layers (a name each); empty: none.

    Source: transformers 5.23 models/gemma4/configuration_gemma4.py, ``kv_sharing_modes``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> sharing_of_keys(replace(TINY_LLAMA, num_hidden_layers=4, num_kv_shared_layers=2))
    ('', 'keeping', 'reusing', 'reusing, first in backward')
    """
    layers, shared = model.num_hidden_layers, model.num_kv_shared_layers
    if not shared:
        return ("",) * layers
    types = model.layer_types or (FULL_ATTENTION,) * layers
    modes = [""] * (layers - shared) + [REUSING] * shared
    for kind in set(types):
        own = [index for index in range(layers - shared) if types[index] == kind]
        others = [index for index in range(layers - shared, layers) if types[index] == kind]
        modes[own[-1]] = KEEPING
        if others:
            modes[others[-1]] = FIRST_BACK
    return tuple(modes)


def layer_modules(model: Model, index: int = 0) -> tuple[Module, ...]:
    """Modules with weights in decoder layer ``index``, sizes in elements, whole model.

    Leaves out: buffers.
    Error: none; compared with transformers' own module tree in tests/verify.
    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, the decoder layer's ``__init__``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [module.name for module in layer_modules(TINY_LLAMA)][:4]
    ['self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.o_proj']
    """
    if not 0 <= index < model.num_hidden_layers:
        raise InputError(
            f"layer {index} does not exist in a model with {model.num_hidden_layers} layers; count from 0."
        )
    return _layer_modules(layer_model(model, index), layer_kind(model, index))


@lru_cache(maxsize=256)
def _layer_modules(model: Model, kind: str) -> tuple[Module, ...]:
    return tuple(_layer_tree(model, kind).modules)


def layer_tree(model: Model, index: int) -> Tree:
    """The module tree of decoder layer ``index``, sizes in elements, whole model (derived)."""
    return _layer_tree(layer_model(model, index), layer_kind(model, index))


@lru_cache(maxsize=256)
def _layer_tree(model: Model, kind: str) -> Tree:
    return _class_of(model, kind).tree(model)


def layer_class_of(model: Model, index: int) -> ModuleClass:
    """The class of decoder layer ``index``: its modules and its forward (derived)."""
    return _class_of(model, layer_kind(model, index))


def _class_of(model: Model, kind: str) -> ModuleClass:
    family = family_of(model)
    return family.others.get(kind, family.layer)


@lru_cache(maxsize=64)
def root_tree(model: Model) -> Tree:
    """The module tree of the model around ``LAYERS``, with the head that it is trained with (derived)."""
    root = (family_of(model).root or decoder)(model)
    if model.num_labels is None:
        return root
    children = tuple((name, child) for name, child in root.children if name != "lm_head")
    body = replace(root, children=children)
    if not model.num_labels:
        return body
    return extended(body, score=Linear("", output_width(tuple(root.modules)), model.num_labels))


def modules_with_counts(model: Model) -> Iterator[tuple[Module, int]]:
    """Every module with weights, and its multiplicity, whole model.

    Source: derived, from ``outer_modules``, ``layer_modules`` and ``layer_groups``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [count for module, count in modules_with_counts(TINY_LLAMA) if module.name == "self_attn.q_proj"]
    [2]
    """
    yield from ((module, 1) for module in outer_modules(model))
    for index, count in layer_groups(model):
        yield from ((module, count) for module in layer_modules(model, index))


@lru_cache(maxsize=256)
def outer_modules(model: Model) -> tuple[Module, ...]:
    """Modules with weights outside the layers, sizes in elements, whole model; no ``lm_head`` if it is tied.

    Leaves out: buffers; vision and audio towers.
    Error: none; compared with transformers' own module tree in tests/verify.
    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, the model's ``__init__``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [module.name for module in outer_modules(TINY_LLAMA)]
    ['embed_tokens', 'norm', 'lm_head']
    """
    return tuple(
        replace(module, name=_outer_name(module.name, model)) for module in root_tree(model).modules
    )


def _outer_name(name: str, model: Model) -> str:
    """Relative to what has the layers, where it is part of that."""
    return name.removeprefix(f"{layers_name(model).rpartition('.')[0]}.")


@lru_cache(maxsize=256)
def layers_name(model: Model) -> str:
    """Full name of the list of decoder layers (a name).

    Source: derived, from the family's tree.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layers_name(TINY_LLAMA)
    'model.layers'
    """
    return next(name for name, node in root_tree(model).walk() if node is LAYERS)


def output_width(modules: tuple[Module, ...]) -> int:
    """Width of the head's input, in elements: that of the token embedding.

    Source: transformers 5.23, modeling_layers.py, ``GenericForSequenceClassification.__init__``; models/opt/
    modeling_opt.py, ``OPTForSequenceClassification.__init__`` (``word_embed_proj_dim``).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> output_width(outer_modules(TINY_LLAMA))
    8
    """
    return next(module.width for module in modules if isinstance(module, Embedding))


@lru_cache(maxsize=256)
def total_parameters(model: Model) -> int:
    """Parameters of the model in elements, whole job; a tied head counts once.

        Σ outer + Σ layers + parameters that are never trained

    Leaves out: stored buffers and second copies of a tied head, which some Hub totals count (see data/models.csv).
    Error: none; equal to the published count of every row of data/models.csv.
    Source: Hub ``safetensors.total`` of each repository, by row in data/models.csv.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> total_parameters(TINY_LLAMA) == 2 * 10 * 8 + 8 + 2 * (2 * 8 + 8 * (8 + 4 + 4 + 8) + 3 * 8 * 16)
    True
    """
    made = sum(count * module_parameters(module) for module, count in modules_with_counts(model))
    return made + untrained_parameters(model)


def untrained_parameters(model: Model) -> int:
    """Parameters that the class itself freezes, in elements, whole job: ERNIE's router correction bias.

    Error: none; exact. Other families have this correction bias as a buffer.
    Source: ``Family.untrained``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> untrained_parameters(TINY_LLAMA)
    0
    """
    count = family_of(model).untrained
    return count(model) if count else 0


def active_parameters(model: Model) -> int:
    """Parameters that one token passes through, in elements, whole job: all of them in a dense model.

        Σ outer + Σ layers, with k/E of each stack of experts      k: experts per token, E: experts

    The embedding counts in full, though a token reads only one of its rows, and so do an untied head and every router.
    Model cards that say "3B active" often leave the embedding out.

    Error: none; for Mixtral 8x7B it is the 12.9 B of its paper.
    Source: derived; Jiang et al. 2024, arXiv:2401.04088, section 2.1 ("active parameter count").

    >>> from estimator.families.modules import TINY_LLAMA
    >>> active_parameters(TINY_LLAMA) == total_parameters(TINY_LLAMA)
    True
    """
    chosen = model.num_experts_per_tok
    idle = sum(
        count * module_parameters(module) * (module.stack - chosen) // module.stack
        for module, count in modules_with_counts(model)
        if isinstance(module, Bare) and module.stack
    )
    return total_parameters(model) - idle


def experts_run(model: Model) -> int:
    """Experts that process every token (a count): those it is routed to, in Llama 4 all; 0 in a dense model.

    Source: transformers 5.23, integrations/moe.py, ``grouped_mm_experts_forward``; models/llama4/modeling_llama4.py,
    ``Llama4TextMoe.forward`` (``hidden_states.repeat``).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> experts_run(TINY_LLAMA)
    0
    """
    return model.num_experts if family_of(model).runs_every_expert else model.num_experts_per_tok


@lru_cache(maxsize=256)
def tied_head(model: Model) -> tuple[Linear, ...]:
    """The head of a model with a tied head, in the shape that it uses; empty if the head is not tied.

    Source: transformers 5.23, modeling_utils.py, ``tie_weights``: the head's weight is the embedding's.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> tied_head(TINY_LLAMA), [it.name for it in tied_head(replace(TINY_LLAMA, tie_word_embeddings=True))]
    ((), ['lm_head'])
    """
    outer = outer_modules(model)
    if model.num_labels is not None or any(module.name == "lm_head" for module in outer):
        return ()
    return (Linear("lm_head", output_width(outer), model.vocab_size),)


def gate_up_stacks(
    model: Model, modules: Iterable[tuple[Module, int]] | None = None
) -> list[tuple[int, ...]]:
    """Shapes of the stacks [experts, gate and up, hidden] that transformers merges on loading, for all layers.

    ``modules``: only for these.

    Source: transformers 5.23, conversion_mapping.py.
    """
    if not family_of(model).merges_experts:
        return []
    return [
        weight_shapes(module)[0]
        for module, count in (modules_with_counts(model) if modules is None else modules)
        if module.name.endswith(("experts.gate_up_proj", "experts.up_proj"))
        and isinstance(module, Bare)
        for _ in range(count)
    ]

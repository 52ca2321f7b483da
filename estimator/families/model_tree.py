"""The modules of a model: its layers, what is around them, and its vision tower with the projector.

All follows from the trees that its family makes (``modules.Tree``): modules with weights and their multiplicity, full
names, the order of definition, modules without weights and buffers. A vision tower is a model of a family of its own,
``Vision.tower``, for which the same functions answer; its modules know their part.

Counts are elements, for the whole model, before any sharding. Everything here is compared with the real classes on the
meta device in tests/verify. Source: transformers 5.23, models/<model_type>/modeling_<model_type>.py, each class's
``__init__``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

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
    TreeTensor,
    Width,
    changed,
    extended,
    module_parameters,
    weight_shapes,
)
from estimator.families.parts import decoder
from estimator.families.registry import family_of, is_tower
from estimator.families.vision_family import vision_family
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal
from estimator.values.specs import Model, Part, Vision

LLAMA_ROOT = decoder()
NO_TREE = Refusal(
    "where device_map puts the vision tower of {wrapper} is not modelled yet; take model_class text.",
    NOT_MODELLED,
)


# --- layers -------------------------------------------------------------------------------------


def layer_kind(model: Model, index: int) -> str:
    """The kind of a layer whose modules differ from the family's usual layer (a name); empty: the usual layer.

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
    return _as_layer(model, is_global=is_global, is_wide=is_wide) if is_global or is_wide else model


@lru_cache(maxsize=256)
def _as_layer(model: Model, *, is_global: bool, is_wide: bool) -> Model:
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


def layer_class_of(model: Model, index: int) -> ModuleClass:
    """The class of decoder layer ``index``: its modules and its forward (derived)."""
    return _class_of(model, layer_kind(model, index))


def _class_of(model: Model, kind: str) -> ModuleClass:
    family = family_of(model)
    return family.others.get(kind, family.layer)


def layer_tree(model: Model, index: int) -> Tree:
    """The module tree of decoder layer ``index``, sizes in elements, whole model (derived)."""
    return _layer_tree(layer_model(model, index), layer_kind(model, index))


@lru_cache(maxsize=256)
def _layer_tree(model: Model, kind: str) -> Tree:
    part = _part(model)
    return changed(_class_of(model, kind).tree(model), lambda module: replace(module, part=part))


def _part(model: Model) -> Part:
    return Part.VISION if is_tower(model) else Part.TEXT


def layer_modules(model: Model, index: int = 0) -> tuple[Module, ...]:
    """Modules with weights in decoder layer ``index``, sizes in elements, whole model.

    Leaves out: buffers.
    Error: none. Source: the family's ``layer`` and ``others``.

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


# --- around the layers --------------------------------------------------------------------------


@lru_cache(maxsize=64)
def root_tree(model: Model) -> Tree:
    """The module tree of the model around ``LAYERS``, with the head that it is trained with (derived).

    Modules are named relative to what has the layers, where they are part of that.
    """
    root, part = (family_of(model).root or LLAMA_ROOT)(model), _part(model)
    base = f"{_place_of_layers(root).rpartition('.')[0]}."
    root = changed(
        root, lambda module: replace(module, name=module.name.removeprefix(base), part=part)
    )
    if model.num_labels is None:
        return root
    children = tuple((name, child) for name, child in root.children if name != "lm_head")
    body = replace(root, children=children)
    if not model.num_labels:
        return body
    return extended(body, score=Linear("", output_width(tuple(root.modules)), model.num_labels))


@lru_cache(maxsize=256)
def outer_modules(model: Model) -> tuple[Module, ...]:
    """Modules with weights outside the layers, sizes in elements, whole model; no ``lm_head`` if it is tied.

    Leaves out: buffers; vision and audio towers.
    Error: none. Source: the family's ``root``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [module.name for module in outer_modules(TINY_LLAMA)]
    ['embed_tokens', 'norm', 'lm_head']
    """
    return tuple(root_tree(model).modules)


def _place_of_layers(root: Tree) -> str:
    return next(name for name, node in root.walk() if node is LAYERS)


@lru_cache(maxsize=256)
def layers_name(model: Model, *, with_tower: bool = False) -> str:
    """Full name of the list of decoder layers (a name; derived); ``with_tower``: as for ``module_tree``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layers_name(TINY_LLAMA)
    'model.layers'
    """
    own = _place_of_layers(root_tree(model))
    if not with_tower:
        return own
    base = own.partition(".")[0]
    return f"{_Seeing(model).text}{own.removeprefix(base)}"


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


# --- counts -------------------------------------------------------------------------------------


def modules_with_counts(model: Model) -> Iterator[tuple[Module, int]]:
    """Every module with weights, and its multiplicity, whole model.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [count for module, count in modules_with_counts(TINY_LLAMA) if module.name == "self_attn.q_proj"]
    [2]
    """
    yield from ((module, 1) for module in outer_modules(model))
    for index, count in layer_groups(model):
        yield from ((module, count) for module in layer_modules(model, index))


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


# --- vision towers ------------------------------------------------------------------------------


def vision_modules(model: Model) -> tuple[tuple[Module, int], ...]:
    """Modules with weights of the tower and the projector by full name, with their multiplicity; whole model (derived).

    Names leave out a layer's number.
    """
    vision = model.vision
    if vision is None:
        return ()
    tower, prefix = vision.tower, vision_family(vision).prefix
    made = [(prefix, module, 1) for module in outer_modules(tower)]
    for lowest, count in layer_groups(tower):
        made += [(tower_layers(vision), module, count) for module in layer_modules(tower, lowest)]
    named = (
        (replace(module, name=f"{above}.{module.name}"), count) for above, module, count in made
    )
    return (*named, *((module, 1) for module in projector_modules(vision, model)))


def tower_layers(vision: Vision) -> str:
    """Full name of the tower's list of layers (a name; derived)."""
    return f"{vision_family(vision).prefix}.{layers_name(vision.tower)}"


def projector_modules(vision: Vision, model: Model) -> tuple[Module, ...]:
    """Modules with weights of the projector by full name; whole model (derived)."""
    return tuple(module for made in _projector(vision, model).values() for module in made.modules)


def _projector(vision: Vision, model: Model) -> dict[str, Tree]:
    """By full name its trees, whose modules have full names, too."""

    def named(above: str, module: Module) -> Module:
        name = f"{above}.{module.name}".removesuffix(".")
        return replace(module, part=Part.PROJECTOR, name=name)

    made = vision_family(vision).projector(vision, model)
    return {name: changed(part, partial(named, name)) for name, part in made.items()}


def _joined(vision: Vision, model: Model) -> dict[str, Tree]:
    """Tower and projector by name, in the order of definition; a merger that the tower has is inside it (derived)."""
    prefix, tower = vision_family(vision).prefix, root_tree(vision.tower)
    inside: dict[str, Tree] = dict(tower.children)
    beside: dict[str, Tree] = {}
    for name, made in _projector(vision, model).items():
        block, _, last = name.rpartition(".")
        (inside if block == prefix else beside)[last] = made
    return {prefix: replace(tower, children=tuple(inside.items())), **beside}


# --- the whole class, by name -------------------------------------------------------------------


class At(NamedTuple):
    """A layer."""

    layer: int
    in_tower: bool = False
    """Of the vision tower; else of the text."""


class Located(NamedTuple):
    """A module with weights, and its layer."""

    at: At | None
    module: Module


@lru_cache(maxsize=64)
def modules_in_order(model: Model, *, with_tower: bool = False) -> tuple[Located, ...]:
    """Modules with weights, in the order of ``named_parameters``. A tied head, which has no weight of its own, is last.

    ``with_tower``: the tower's and its projector's before them.

    Source: torch 2.13, nn/modules/module.py, ``named_parameters``; ``module_tree`` for the order of definition.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [it.module.name for it in modules_in_order(TINY_LLAMA)][:3]
    ['embed_tokens', 'self_attn.q_proj', 'self_attn.k_proj']
    """
    seeing = list(_named_in_tower(model)) if with_tower else []
    named = (located for _, located in (*seeing, *_named(root_tree(model), "", model)))
    return (*named, *(Located(None, head) for head in tied_head(model)))


@lru_cache(maxsize=64)
def modules_as_loaded(model: Model) -> tuple[Located, ...]:
    """Modules with weights of their own, in the order in which transformers loads them: by name, layers by number.

    Source: transformers 5.23, core_model_loading.py, ``dot_natural_key``, ``convert_and_load_state_dict_in_model``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [located.module.name for located in modules_as_loaded(TINY_LLAMA)][:4]
    ['lm_head', 'embed_tokens', 'input_layernorm', 'mlp.down_proj']
    """
    by_name = _named(root_tree(model), "", model)
    named = sorted(by_name, key=lambda named: [*map(_natural, named[0].split("."))])
    tied = tied_head(model)
    return tuple(located for _, located in named if located.module not in tied)


def _natural(word: str) -> tuple[int, str, int]:
    """Sorts numbers before words, and a word's last digits as a number."""
    text = word.rstrip("0123456789")
    return int(text != ""), text, int(word[len(text) :] or -1)


def _named_in_tower(model: Model) -> Iterator[tuple[str, Located]]:
    """Source: transformers 5.23, models/*/modeling_*.py, ``__init__`` of each class with a vision tower."""
    assert model.vision is not None
    for name, made in _joined(model.vision, model).items():
        yield from _named(made, name, model.vision.tower)


def _named(root: Tree, above: str, model: Model) -> Iterator[tuple[str, Located]]:
    """Modules with their full names, in the order of definition; ``model``: the one that has the layers."""
    for name, node in root.walk(above):
        if node is not LAYERS:
            yield from _own_modules(node, name, None)
            continue
        for index in range(model.num_hidden_layers):
            for below, inside in layer_tree(model, index).walk(f"{name}.{index}"):
                yield from _own_modules(inside, below, At(index, in_tower=is_tower(model)))


def _own_modules(node: Tree, name: str, at: At | None) -> Iterator[tuple[str, Located]]:
    return ((full, Located(at, module)) for full, module in node.own(name) if weight_shapes(module))


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """A module with its own tensors and children, or a single parameter of a split module."""

    name: str
    """Full name, such as ``model.layers.0.mlp``; empty: the root."""
    class_name: str = ""
    """Class of a module with children; empty for leaves, where it does not matter."""
    tensors: tuple[TreeTensor, ...] = ()
    children: tuple[ModuleNode, ...] = ()
    is_parameter: bool = False

    @property
    def parts(self) -> tuple[ModuleNode, ...]:
        """Its parts when split: its own parameters, then its children, without buffers.

        Only experts and Gemma 4's routers have both.
        """
        stacks = (
            one
            for one in self.tensors
            if self.children and one.width is Width.WEIGHT and not one.is_buffer
        )
        alone = (
            ModuleNode(f"{self.name}.{one.name}", tensors=(one,), is_parameter=True)
            for one in stacks
        )
        return (*alone, *self.children)

    def walk(self) -> Iterator[ModuleNode]:
        """Itself and all its descendants, in the order of ``named_modules``."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending += node.children[::-1]


@lru_cache(maxsize=64)
def module_tree(model: Model, *, with_tower: bool = False) -> ModuleNode:
    """The root of the model's tree, in the order of ``named_children``; tensors in elements, whole model.

    ``with_tower``: as ``AutoModelForImageTextToText`` makes it, the text's part under another name; ``InputError`` for
    Gemma 4, whose tower's tree is not known. A tied head is included without a weight, which belongs to the embedding.

    Leaves out: audio towers; a rotary embedding's attention factor.
    Error: none (except InternLM3, which has no class in transformers).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [node.name for node in module_tree(TINY_LLAMA).walk()][:6]
    ['', 'model', 'model.embed_tokens', 'model.layers', 'model.layers.0', 'model.layers.0.self_attn']
    """
    return _Seeing(model).root() if with_tower else _node("", root_tree(model), model, _own(model))


Renamed = Callable[[str], str]
"""A class's name from the tree's."""


def _own(model: Model) -> Renamed:
    prefix = family_of(model).prefix
    return lambda name: name.replace("@", prefix)


def _node(name: str, made: Tree, model: Model, renamed: Renamed) -> ModuleNode:
    """``model``: the one whose layers are in place of ``LAYERS``."""
    below: Iterable[tuple[str, Tree]] = made.children
    if made is LAYERS:
        below = ((str(at), layer_tree(model, at)) for at in range(model.num_hidden_layers))
    return ModuleNode(
        name,
        renamed(made.class_name),
        made.tensors,
        tuple(_node(_below(name, child), inside, model, renamed) for child, inside in below),
    )


def _below(name: str, child: str) -> str:
    return f"{name}.{child}" if name else child


class _Seeing:
    """The class that has tower, projector and text."""

    def __init__(self, model: Model) -> None:
        assert model.vision is not None
        tree = vision_family(model.vision).tree
        if tree is None:
            raise NO_TREE(wrapper=model.vision.wrapper)
        self.model, self.vision, self.tree = model, model.vision, tree
        self.prefix = tree.prefixes.get(self.vision.wrapper, "")
        self.base = "" if tree.text_in else "model"
        """Name of the module that has them all."""
        self.text = _below(self.base, tree.text_name) + ".model" * bool(tree.text_in)
        """Name of the text's model."""

    def around(self, name: str) -> str:
        """The name of a class around the text."""
        return name.replace("@", self.prefix)

    def text_class(self, name: str) -> str:
        """The name of a class of the text in this model."""
        prefix = family_of(self.model).prefix
        name = name.replace("@", prefix)
        if not self.tree.text or name in self.tree.shared or not name.startswith(prefix):
            return name
        return self.around(self.tree.text) + name.removeprefix(prefix)

    def root(self) -> ModuleNode:
        (_, base), (_, head) = root_tree(self.model).children
        text = _node(self.text, base, self.model, self.text_class)
        if self.tree.text_class:
            text = replace(text, class_name=self.around(self.tree.text_class))
        seeing = [
            _node(_below(self.base, name), made, self.vision.tower, self.around)
            for name, made in _joined(self.vision, self.model).items()
        ]
        if self.tree.text_in:
            beside = _node(f"{self.tree.text_name}.lm_head", head, self.model, self.text_class)
            inside = ModuleNode(self.tree.text_name, self.tree.text_in, children=(text, beside))
            return ModuleNode("", children=(*seeing, inside))
        whole = ModuleNode(self.base, self.around(self.tree.class_name), children=(*seeing, text))
        return ModuleNode("", children=(whole, _node("lm_head", head, self.model, self.text_class)))


def whole_classes(model: Model, *, with_tower: bool) -> frozenset[str]:
    """Classes of modules that stay on one device: the decoder layer, and the tower's own (names).

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, ``_no_split_modules``; modeling_utils.py,
    ``PreTrainedModel.post_init``, which collects those of its parts.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> whole_classes(TINY_LLAMA, with_tower=False)
    frozenset({'LlamaDecoderLayer'})
    """
    if not with_tower:
        return frozenset({layer_class(model)})
    seeing = _Seeing(model)
    return frozenset(
        {seeing.text_class(layer_class(model)), *map(seeing.around, seeing.tree.whole)}
    )


def layer_class(model: Model) -> str:
    """Class of the decoder layer, which is what ``_no_split_modules`` names in every family modelled (a name).

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, ``_no_split_modules``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layer_class(TINY_LLAMA)
    'LlamaDecoderLayer'
    """
    return _own(model)(layer_tree(model, 0).class_name)


def base_model_prefix(model: Model) -> str:
    """The attribute of the causal model that holds the base model (a name).

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, ``base_model_prefix``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> base_model_prefix(TINY_LLAMA)
    'model'
    """
    return layers_name(model).partition(".")[0]

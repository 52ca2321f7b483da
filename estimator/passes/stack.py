"""A model's layers grouped into kinds: which layers are played on the tape, and which layer represents each other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

from estimator.families.adapters import lowest_trained
from estimator.families.layer_kinds import SLIDING
from estimator.families.loaded import adapted_kinds, layers_before_the_text
from estimator.families.model_tree import At, layer_kind, sharing_of_keys
from estimator.families.registry import family_of
from estimator.families.vision_family import sees
from estimator.parallel.zero_partitions import keeps_parts, parts_of
from estimator.passes.float8 import kept
from estimator.tape.offloading import STASHED
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


class LayerKind(NamedTuple):
    """The properties that a layer's memory depends on."""

    windowed: bool
    """Its window is shorter than the sequence."""
    rotary: bool
    sliding: bool
    """A sliding-window layer in a model with both kinds, whatever its window: it has its own mask and tables."""
    modules: str = ""
    """Its modules, by ``layer_kind``."""
    cuts_gate: bool = False
    """Its MLP keeps only the largest gate activations."""
    sharing: str = ""
    """Its role in sharing keys and values between layers, by ``sharing_of_keys``."""
    reach: str = ""
    """Where backward ends: ``BELOW`` and ``LOWEST``; empty where it continues to the layer beneath."""
    is_kept: bool = False
    """It is not checkpointed, while others are: ``checkpoint_every_n_layers`` leaves it out."""
    alone: int | None = None
    """Its index, if it represents no other layer: by ``Parts.alone`` under ZeRO-2, or for a linear that stays out of
    FP8."""


BELOW = "below"
"""A layer that backward does not reach: neither it nor any layer before it is trained, so it saves nothing."""
LOWEST = "lowest"
"""The last layer that backward reaches: its input needs no gradient."""


def is_checkpointed(model: Model, setup: TrainingSetup, index: int) -> bool:
    """Whether this layer is checkpointed (a yes or no): of every n the first, counted from the first layer of a tower.

    Source: transformers 5.23, modeling_utils.py, ``_set_gradient_checkpointing`` (``layer_index % every_n_layers``).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> setup = TrainingSetup(gradient_checkpointing=True, checkpoint_every_n_layers=2)
    >>> [is_checkpointed(TINY_LLAMA, setup, index) for index in range(2)]
    [True, False]
    """
    if (
        not setup.computation.gradient_checkpointing
        or setup.computation.checkpoint_every_n_layers == 1
    ):
        return setup.computation.gradient_checkpointing
    before = layers_before_the_text(model, setup.adapters)
    return (before + index) % setup.computation.checkpoint_every_n_layers == 0


def has_window(model: Model, max_length: int) -> bool:
    """Whether the sequence is longer than the sliding window."""
    return 0 < model.sliding_window <= max_length


@lru_cache(maxsize=1024)
def layer_kinds(model: Model, *, windowed: bool) -> tuple[LayerKind, ...]:
    """The kind of every layer; ``windowed``: sliding windows are shorter than the sequence."""
    family, types, sharing = family_of(model), model.layer_types, sharing_of_keys(model)
    return tuple(
        LayerKind(
            windowed and (not types or types[index] == SLIDING),
            family.rotary is not None
            and not (model.no_rope_layers and model.no_rope_layers[index]),
            bool(types) and types[index] == SLIDING,
            layer_kind(model, index),
            index < model.cut_layers,
            sharing[index],
        )
        for index in range(model.num_hidden_layers)
    )


def reached(
    kinds: Sequence[LayerKind], model: Model, setup: TrainingSetup
) -> tuple[LayerKind, ...]:
    """Kinds extended by where backward ends: the lowest layer it reaches, and those below it, are separate kinds.

    The layer above then becomes the lowest of its kind: it may be the last in backward to need what all layers share.
    """
    lowest = lowest_trained(model, setup)
    if lowest is None:
        return tuple(kinds)
    return tuple(
        kind._replace(reach=BELOW if index < lowest else LOWEST) if index <= lowest else kind
        for index, kind in enumerate(kinds)
    )


def played_layers(kinds: Sequence[Hashable]) -> list[int]:
    """Indices of the layers to play: the lowest of each kind and one more, and the model's last.

    The lowest of a kind is the last in backward to need what the kind shares: a mask, rotary tables.
    """
    last = len(kinds) - 1
    lowest = {kinds[index]: index for index in range(last, -1, -1)}
    others = {
        kinds[index]: index for index in range(last - 1, 0, -1) if index != lowest[kinds[index]]
    }
    return sorted({last, *lowest.values(), *others.values()})


def stand_ins(kinds: Sequence[Hashable], chosen: Sequence[int]) -> list[int]:
    """For every real layer, the chosen layer that represents it."""
    last = len(kinds) - 1
    by_kind = {kinds[index]: index for index in chosen if 0 < index < last}
    return [
        index if index in chosen else by_kind.get(kinds[index], chosen[0])
        for index in range(len(kinds))
    ]


class Stack(NamedTuple):
    """Layers of which some are played and represent the others."""

    kinds: Sequence[Hashable]
    """The kind of every layer."""
    chosen: Sequence[int]
    """Indices of the layers that represent their kind."""
    played: Sequence[int]
    """Indices of the played layers: the chosen, and their neighbours where these matter."""
    label: str = ""
    """Prefix of the names of its moments; empty for the layers of the text."""
    is_tower: bool = False
    """Whether these are the layers of a vision tower, whose text has the number before."""

    @classmethod
    def of(cls, kinds: Sequence[Hashable]) -> Stack:
        """Play enough layers of every kind."""
        chosen = played_layers(kinds)
        return cls(kinds, chosen, chosen)

    @classmethod
    def beside_others(cls, kinds: Sequence[Hashable], before: int, after: int) -> Stack:
        """Play neighbours too, where a layer's memory depends on so many layers before and after it."""
        around = [*[None] * before, *kinds, *[None] * after]
        spans = [tuple(around[index : index + before + 1 + after]) for index in range(len(kinds))]
        chosen = played_layers(spans)
        near = {index + step for index in chosen for step in range(-before, after + 1)}
        return cls(spans, chosen, sorted(index for index in near if 0 <= index < len(kinds)))

    @property
    def stand_ins(self) -> list[int]:
        """For every real layer, the position in ``played`` of the layer that represents it."""
        position = {index: place for place, index in enumerate(self.played)}
        return [position[index] for index in stand_ins(self.kinds, self.chosen)]


def kinds_of(model: Model, setup: TrainingSetup, length: int) -> tuple[LayerKind, ...]:
    """The kind of every layer of a model that is trained on sequences of ``length`` tokens."""
    kinds = reached(layer_kinds(model, windowed=has_window(model, length)), model, setup)
    if setup.adapters.by_layer:
        named = adapted_kinds(model, setup.adapters)
        kinds = tuple(kind._replace(modules=name) for kind, name in zip(kinds, named, strict=True))
    if (
        not setup.computation.gradient_checkpointing
        or setup.computation.checkpoint_every_n_layers == 1
    ):
        return kinds
    return tuple(
        kind._replace(is_kept=not is_checkpointed(model, setup, index))
        for index, kind in enumerate(kinds)
    )


def stack_of(model: Model, setup: TrainingSetup, length: int) -> Stack:
    """The layers of a model that is trained on sequences of ``length`` tokens."""
    kinds = kinds_of(model, setup, length)
    if keeps_parts(setup.mesh):
        alone = parts_of(model, setup).alone
        kinds = tuple(
            kind._replace(alone=index) if At(index) in alone else kind
            for index, kind in enumerate(kinds)
        )
    if setup.precision.uses_torchao:
        apart = {located.at for located in kept(model)}
        kinds = tuple(
            kind._replace(alone=index) if At(index) in apart else kind
            for index, kind in enumerate(kinds)
        )
    if sees(model, setup.adapters) and model.vision and setup.images.shows_any:
        # after each of the first layers the features of one of the tower's layers are added
        kinds = tuple(
            kind._replace(alone=index) if index < len(model.vision.deepstack) else kind
            for index, kind in enumerate(kinds)
        )
    is_uneven = len({kind.modules for kind in kinds}) > 1
    before = after = 0
    if setup.mesh.strategy.is_fsdp and not setup.mesh.uses_fsdp1 and is_uneven:
        # FSDP 2 gathers the next layer's weights while one runs, and the previous layer's buffer lives until then
        before = after = 1
    if setup.computation.gradient_checkpointing and setup.computation.activation_offloading:
        before = STASHED  # a checkpointed layer saves one tensor, so the stash reaches back over as many layers
    return Stack.beside_others(kinds, before, after) if before else Stack.of(kinds)

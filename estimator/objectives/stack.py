"""The layers of a model as a stack of few kinds: which are played on the tape, and which stand for the others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

from estimator.families.adapters import lowest_trained
from estimator.families.counts import layer_kind, sharing_of_keys
from estimator.families.registry import architecture
from estimator.parallel.zero import Parts, keeps_parts
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

SLIDING = "sliding_attention"


class LayerKind(NamedTuple):
    """What makes one layer's memory differ from another's."""

    windowed: bool
    """Its window is shorter than the text."""
    rotary: bool
    sliding: bool
    """Of a model of two kinds of layers the one with a window, however long: it has its own mask and tables."""
    modules: str = ""
    """What it holds, by ``layer_kind``."""
    cuts_gate: bool = False
    """Only the largest gates of its MLP are left."""
    sharing: str = ""
    """What it has to do with keys and values that layers share, by ``sharing_of_keys``."""
    reach: str = ""
    """How far backward comes: ``BELOW`` and ``LOWEST``; empty where it goes on to the layer beneath."""
    alone: int | None = None
    """Its index, if it stands for no other, by ``Parts.alone`` under ZeRO-2."""


BELOW = "below"
"""A layer that backward does not reach: nothing in it or before it is trained, so that it saves nothing."""
LOWEST = "lowest"
"""The last that backward reaches: its input needs no gradient."""


def has_window(model: Model, max_length: int) -> bool:
    """Whether the text is longer than what a sliding window sees."""
    return 0 < model.sliding_window <= max_length


@lru_cache(maxsize=1024)
def layer_kinds(model: Model, *, windowed: bool) -> tuple[LayerKind, ...]:
    """The kind of every layer: does it see a window shorter than the text, and does it rotate."""
    family, types, sharing = architecture(model), model.layer_types, sharing_of_keys(model)
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
    """The kinds with how far backward comes: where it ends at a layer, that and those beneath are kinds of their own.

    So is what comes next above: it may be the last in backward to need what all share.
    """
    lowest = lowest_trained(model, setup)
    if lowest is None:
        return tuple(kinds)
    return tuple(
        kind._replace(reach=BELOW if index < lowest else LOWEST) if index <= lowest else kind
        for index, kind in enumerate(kinds)
    )


def played_layers(kinds: Sequence[Hashable]) -> list[int]:
    """Indices of the layers to play: of each kind the lowest and one more, and the last of all.

    The lowest of a kind is the last in backward to need what its kind shares: a mask, rotary tables.
    """
    last = len(kinds) - 1
    lowest = {kinds[index]: index for index in range(last, -1, -1)}
    others = {
        kinds[index]: index for index in range(last - 1, 0, -1) if index != lowest[kinds[index]]
    }
    return sorted({last, *lowest.values(), *others.values()})


def stand_ins(kinds: Sequence[Hashable], chosen: Sequence[int]) -> list[int]:
    """For every real layer, the chosen layer that stands for it."""
    last = len(kinds) - 1
    by_kind = {kinds[index]: index for index in chosen if 0 < index < last}
    return [
        index if index in chosen else by_kind.get(kinds[index], chosen[0])
        for index in range(len(kinds))
    ]


class Stack(NamedTuple):
    """Layers of which some are played, and the others follow from them."""

    kinds: Sequence[Hashable]
    """Of every layer, what makes its memory differ from another's."""
    chosen: Sequence[int]
    """Indices of the layers that stand for others of their kind."""
    played: Sequence[int]
    """Indices of the layers that are played: the chosen, and where it matters those beside them."""

    @classmethod
    def of(cls, kinds: Sequence[Hashable]) -> Stack:
        """Of every kind enough layers are played."""
        chosen = played_layers(kinds)
        return cls(kinds, chosen, chosen)

    @classmethod
    def beside_others(cls, kinds: Sequence[Hashable]) -> Stack:
        """Where a layer's memory depends on the layers before and after it, these are played too.

        FSDP 2 gathers the next layer's weights while one works, and the buffer of the one before lives until then.
        """
        around = [None, *kinds, None]
        triples = list(zip(around, around[1:], around[2:], strict=False))
        chosen = played_layers(triples)
        last = len(kinds) - 1
        near = {index + step for index in chosen for step in (-1, 0, 1)}
        return cls(triples, chosen, sorted(index for index in near if 0 <= index <= last))

    @property
    def stand_ins(self) -> list[int]:
        """For every real layer, the position in ``played`` of the layer that stands for it."""
        position = {index: place for place, index in enumerate(self.played)}
        return [position[index] for index in stand_ins(self.kinds, self.chosen)]


def stack_of(model: Model, setup: TrainingSetup, length: int) -> Stack:
    """The layers of a model that is trained on texts of so many tokens."""
    kinds = reached(layer_kinds(model, windowed=has_window(model, length)), model, setup)
    if keeps_parts(setup):
        alone = Parts(model, setup).alone
        kinds = tuple(
            kind._replace(alone=index) if index in alone else kind
            for index, kind in enumerate(kinds)
        )
    is_uneven = len({kind.modules for kind in kinds}) > 1
    if setup.strategy.is_fsdp and not setup.uses_fsdp1 and is_uneven:
        return Stack.beside_others(kinds)
    return Stack.of(kinds)

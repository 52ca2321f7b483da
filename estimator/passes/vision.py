"""The tower that sees, on a tape: its layers as a stack of their own, and how its features enter the text.

Source: transformers 5.23, models/*/modeling_*.py, ``get_image_features`` and the model's ``forward``;
modeling_utils.py, ``enable_input_require_grads``.
"""

from __future__ import annotations

from collections.abc import Sequence

from estimator.families.model_tree import At, layer_modules, outer_modules, projector_modules
from estimator.families.modules import ROTARY, Module
from estimator.families.registry import family_of
from estimator.families.rotary import Tables
from estimator.families.vision.block import TowerBlock
from estimator.families.vision_family import Seen, images_of, sees, vision_family
from estimator.parallel.computed import computed
from estimator.parallel.hooks import Hooks
from estimator.parallel.zero_partitions import keeps_parts, parts_of
from estimator.passes.stack import Stack
from estimator.tape import operators as op
from estimator.tape.tape import (
    TEMPORARIES,
    Leaf,
    Parameter,
    Place,
    Tape,
    Tensor,
    leaf_node,
)
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Phase


def tower_stack(model: Model, setup: TrainingSetup) -> Stack:
    """The tower's layers; those whose output is projected as well stand for no other, nor do ``Parts.alone``."""
    assert model.vision is not None
    vision = model.vision
    alone = parts_of(model, setup).alone if keeps_parts(setup.mesh) else frozenset()
    kinds = [
        f"alone {index}" if index in vision.deepstack or At(index, in_tower=True) in alone else ""
        for index in range(vision.tower.num_hidden_layers)
    ]
    return Stack.of(kinds)._replace(label="image tower", is_tower=True)


class LoadedTower:
    """A tower and its projector on the GPU, ready to be called."""

    def __init__(
        self, tape: Tape, model: Model, given: TrainingSetup, number: int, hooks: Hooks
    ) -> None:
        vision = model.vision
        assert vision is not None
        self.hooks, setup = hooks, computed(given)
        self.tape, self.model, self.setup, self.vision = tape, model, setup, vision
        self.family = vision_family(vision)
        self.kind = family_of(vision.tower)
        self.stack = tower_stack(model, given)
        self.number = number
        """Index of its stack among those of the step."""
        self.parameters: dict[str, Parameter] = {}
        self.outer = self._block(outer_modules(vision.tower), "outer", setup)
        self.merger = self._block(projector_modules(vision, model), "projector", setup)
        hooks.see(self.outer, self.merger)
        self.outer.hold_input = hooks.hold_input if hooks.casts_inputs else None

    def _block(
        self,
        modules: Sequence[Module],
        key: str,
        setup: TrainingSetup,
        index: int | None = None,
    ) -> TowerBlock:
        block = TowerBlock(
            self.tape,
            self.vision.tower,
            setup,
            modules,
            key=f"stack{self.number}.{key}",
            norm_kind=self.kind.norm,
            softmax_float32=self.kind.softmax_float32,
            index=index,
            parameters=self.parameters,
        )
        if setup.computation.use_liger_kernel and self.family.liger is not None:
            block.kernels = self.family.liger.tower
        return block

    def features(
        self, phase: Phase, rows: int, *, checkpointing: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Features of every image token; those that are added after layers of the text; and what outlives the call."""
        tape, vision, family = self.tape, self.vision, self.family
        seen = Seen(images_of(self.model, self.setup.images), rows)
        before = tape.place
        tape.go_to(phase, "image tower", Place(before.forward, self.number))
        batch, length = family.tokens_a_row(vision, seen)
        setup = self.setup.replace(per_device_train_batch_size=batch, max_length=length)
        setup = setup.replace(padded=False)  # of the text
        self.outer.setup = setup
        hidden = family.embed(
            self.outer, vision, seen, _required if checkpointing and tape.records else _left
        )
        tape.operation = "rotary tables"
        around = tape, vision, seen, hidden.width
        tables = family.tables(*around) if family.tables else None
        if tables is not None:
            self.outer.within(ROTARY, Tensor(1, 1, None), lambda x: x)
        mask = family.mask(*around) if family.mask else None
        added: list[Tensor] = []
        for played, index in enumerate(self.stack.played):
            tape.enter(phase, "layer", played)
            hidden = self._layer(
                played, index, hidden, tables, mask, setup, checkpointing=checkpointing
            )
            if index in vision.deepstack:
                added.append(self._projected(f"deepstack_merger_list.{len(added)}", seen, hidden))
        tape.enter(phase, "projector")
        self.merger.setup = setup.replace(per_device_train_batch_size=1, max_length=seen.tokens)
        features = family.project(self.outer, self.merger, vision, seen, hidden)
        self.outer.pixels.clear()
        tape.go_to(phase, "embedding", before)
        # Llama 4's tower returns what its adapter made of the last layer's output, not the output itself
        return features, added, [] if family.calls_head else [hidden]

    def _layer(
        self,
        played: int,
        index: int,
        hidden: Tensor,
        tables: Tables | None,
        mask: Tensor | None,
        setup: TrainingSetup,
        *,
        checkpointing: bool,
    ) -> Tensor:
        block = self._block(
            layer_modules(self.vision.tower, index), f"layers.{played}", setup, played
        )
        block.rotary = self.kind.rotary
        block.mask, block.rotary_tables = mask, tables
        layer = self.kind.layer.forward

        def program(x: Tensor) -> Tensor:
            return layer(block, x)

        unit = self.hooks.tower_layer(index, block)
        if unit is not None:
            hidden = unit.enter(hidden)
        out = self.tape.checkpoint(program, hidden) if checkpointing else program(hidden)
        if unit is not None:
            out = unit.leave(out)
        if not checkpointing:
            block.mask = block.rotary_tables = None
        block.weights, block.is_replay = None, True
        return out

    def _projected(self, name: str, seen: Seen, hidden: Tensor) -> Tensor:
        family = self.family
        assert family.project_deep is not None
        return family.project_deep(self.merger, self.vision, seen, hidden, name)


def _required(x: Tensor) -> Tensor:
    """``enable_input_require_grads``: a tensor that needs no gradient becomes a leaf that does."""
    if not x.requires_grad:
        x.requires_grad = True
        x.node = leaf_node(Leaf(TEMPORARIES, variable=x.storage))
    return x


def _left(x: Tensor) -> Tensor:
    return x


def loaded_tower(
    tape: Tape, model: Model, given: TrainingSetup, number: int, hooks: Hooks
) -> LoadedTower | None:
    """The vision tower, if the examples have images."""
    if not sees(model, given.adapters) or not given.images.shows_any:
        return None
    return LoadedTower(tape, model, given, number, hooks)


def merged(tower: LoadedTower, embedded: Tensor, features: Tensor) -> Tensor:
    """``inputs_embeds.masked_scatter(mask, features)``: a copy of the embeddings with features in their places."""
    cast = op.cast(tower.tape, features, embedded.width)
    if tower.family.returns_features:
        tower.outer.outputs.append(cast)
    return op.masked_scatter(tower.tape, embedded, cast)

"""One forward call of a causal language model: embedding, layers, final norm, head.

Source: transformers 5.23, models/llama/modeling_llama.py (``LlamaModel``, ``LlamaForCausalLM``); accelerate 1.15,
accelerator.py (autocast around the forward pass); peft 0.21 and transformers' ``enable_input_require_grads``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from estimator.families.adapters import is_adapted, is_copied, lowest_trained
from estimator.families.block import Block, Owned
from estimator.families.family import Family, Rotary
from estimator.families.layer_kinds import WITHOUT_ATTENTION
from estimator.families.loaded import modules_of_layer
from estimator.families.model_tree import layer_class_of, layer_model, outer_modules, tied_head
from estimator.families.modules import DROPOUT, ROTARY, Module
from estimator.families.registry import family_of
from estimator.families.rotary import Tables
from estimator.parallel.computed import computed
from estimator.parallel.module_devices import ModuleDevices
from estimator.parallel.placement import HEAD
from estimator.parallel.strategies import hooks
from estimator.passes.float8 import out_of_float8
from estimator.passes.stack import Stack, has_window, is_checkpointed, layer_kinds
from estimator.passes.vision import LoadedTower, loaded_tower, merged
from estimator.resident.optimizer import Trainable, step_transient
from estimator.tape import operators as op
from estimator.tape.tape import (
    ACTIVATIONS,
    LOGITS,
    TEMPORARIES,
    Leaf,
    Node,
    Parameter,
    Place,
    Tape,
    Tensor,
    leaf_node,
)
from estimator.values.arithmetic import allocated
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Phase

ID_BYTES = 8
"""Token ids, labels and positions are int64."""


class Pass(NamedTuple):
    """One forward call of a model on ``rows`` sequences of ``length`` tokens."""

    model: LoadedModel
    rows: int
    length: int
    scored: int | None = None
    """Tokens passed to the head; None: all."""
    grad: bool = True
    """Builds a graph for backward; False: runs under ``torch.no_grad``."""
    phase: Phase = Phase.FORWARD
    label: str = ""
    """Prefix of its moments' names where a step has several passes."""
    adapters: bool = True
    """False: adapters are switched off."""


class LoadedModel:
    """A model loaded on the GPU, ready to be called."""

    def __init__(
        self,
        tape: Tape,
        model: Model,
        setup: TrainingSetup,
        stack: Stack,
        *,
        number: int = 0,
        ranks: int = 1,
        devices: ModuleDevices | None = None,
        trained: bool = True,
    ) -> None:
        self.tape = tape
        self.model = model
        self.given, self.trained = setup, trained
        self.setup = computed(setup)
        self.stack = stack
        self.number = number
        """Index of its stack among those of the step."""
        self.family: Family = family_of(model)
        self.parameters: dict[str, Parameter] = {}
        """Parameters by key, shared by all passes."""
        copied_head = [head for head in tied_head(model) if is_copied(head, setup.adapters)]
        self.outer = self.block((*outer_modules(model), *copied_head), "outer", self.setup)
        for head in tied_head(model):
            if is_adapted(head, setup.adapters):
                self.outer.tie(head, self.head_weight(), "outer")
        self.hooks = hooks(tape, model, setup, self.outer, ranks, devices, trained=trained)
        """Kept from pass to pass."""
        self.tower = loaded_tower(tape, model, setup, number + 1, self.hooks)
        """What sees, where the examples have images."""

    @property
    def stacks(self) -> list[Stack]:
        """Its layers, and those of its tower."""
        return [self.stack] if self.tower is None else [self.stack, self.tower.stack]

    def head_weight(self) -> Parameter:
        """The head's weight, V · h; the embedding's if tied."""
        outer = self.outer
        if outer.has("lm_head"):
            return outer.linears["lm_head"].weight
        weight = outer.embeddings[next(iter(outer.embeddings))]
        if weight.requires_grad and self.setup.adapters.uses_adapters:
            # the embedding is a trained copy (PEFT's modules_to_save); the head keeps the frozen original
            return Parameter("head", weight.elements, weight.width, trainable=False)
        return weight

    def block(
        self,
        modules: Sequence[Module],
        key: str,
        setup: TrainingSetup,
        index: int | None = None,
    ) -> Block:
        """The modules of one played layer, or those outside the layers."""
        model = self.model
        block = Block(
            self.tape,
            model if index is None else layer_model(model, self.stack.played[index]),
            setup,
            modules,
            key=f"model{self.number}.{key}" if self.number else key,
            norm_kind=self.family.norm,
            softmax_float32=self.family.softmax_float32,
            index=index,
            parameters=self.parameters,
        )
        if not self.trained and not self.given.task.given_loss.freezes_reference:
            # from_pretrained leaves requires_grad on, so autocast caches casts
            for owned in block.owned:
                owned.parameter.requires_grad = True
        elif self.trained and setup.optimisation.optimizer_in_bwd:
            for owned in block.owned:
                self._step_in_backward(owned)
        if self.trained and setup.precision.uses_torchao:
            played = None if index is None else self.stack.played[index]
            block.out_of_float8 = out_of_float8(model, played)
        return block

    def _step_in_backward(self, owned: Owned) -> None:
        """Have a weight stepped when its gradient arrives, which is then freed.

        Source: torchtune 0.6.1, training/memory.py, ``register_optim_in_bwd_hooks``.
        """
        parameter, tape = owned.parameter, self.tape
        if parameter.node is None or parameter.node.leaf is None:
            return
        tensor = Trainable(owned.shape, parameter.width, 1)
        optimisation = self.setup.optimisation
        size = step_transient([tensor], optimisation.optim, optimisation.optim_state_dtype)

        def step(leaf: Leaf) -> None:
            if size:
                tape.operation = f"{optimisation.optim} step in backward"
                tape.new(size, 1)
            leaf.take()

        parameter.node.leaf.arrived = step


class _Given(NamedTuple):
    """What all layers are called with."""

    masks: Mapping[bool, Tensor | None]
    """Of layers with a window, and without."""
    tables: Mapping[bool, Tables]
    alibi: Tensor | None
    positions: Tensor | None
    shared_states: dict[bool, tuple[Tensor, Tensor]]


class Forward:
    """A running pass, and what lives on from it until backward ends.

    Layers are checkpointed only where a graph is built; without gradients nothing is saved anyway.
    """

    def __init__(self, of: Pass) -> None:
        loaded = of.model
        self.tape = loaded.tape
        self.model, self.family, self.hooks = loaded.model, loaded.family, loaded.hooks
        self.layers = loaded.stack.played
        self.loaded = loaded
        self.phase = of.phase
        self.scored = of.scored
        self.setup = loaded.setup.replace(
            batch=loaded.setup.batch.as_rows(of.rows, of.length),
            gradient_checkpointing=loaded.setup.computation.gradient_checkpointing and of.grad,
        )
        self.outer = loaded.outer
        self.outer.setup = self.setup
        self.adapters = self.outer.adapters_on = of.adapters
        self.kinds = layer_kinds(self.model, windowed=has_window(self.model, of.length))
        self.lowest = lowest_trained(self.model, self.setup) or 0
        """The lowest layer that backward reaches."""
        self.returned: Tensor | None = None
        """The attention weights that the last layer returned with its output."""
        self.router_logits: dict[int, Tensor] = {}
        """Router logits of each played layer that has a router, if the model returns them."""
        self.until_end: list[Tensor] = []
        """Local names of the forward that calls the head."""
        self.asks_router = self.model.output_router_logits and of.grad
        """Router logits are returned, for the loss that spreads tokens evenly."""
        self.end_phase = Phase.LOSS if of.phase is Phase.FORWARD else of.phase
        """Phase between the logits and the end of the call."""
        self.tape.begin_pass(of.phase, loaded.number)
        self.tape.fuse(on=True)

    def end(self) -> None:
        """End the call, and autocast with it."""
        self.tape.fuse(on=False)
        self.tape.operation = "end of autocast"
        self.tape.autocast_active = False
        self.until_end.clear()
        self.drop_cache()

    def drop_images(self) -> None:
        """Free the batch's images: Trainer deletes its inputs before backward."""
        if self.loaded.tower is not None:
            self.loaded.tower.outer.batch.clear()

    def drop_image_outputs(self) -> None:
        """Free what the model returned of its images."""
        if self.loaded.tower is not None:
            self.loaded.tower.outer.outputs.clear()

    def image_outputs_in_float32(self) -> None:
        """Convert what the model returned of its images, all before the first is freed."""
        if self.loaded.tower is not None:
            outputs = self.loaded.tower.outer.outputs
            wide = [
                output if output.width == 4 else self.tape.new(output.elements, 4)
                for output in outputs
            ]
            outputs[:] = wide

    def drop_cache(self) -> None:
        """Free autocast's weight copies, layer by layer so that unplayed layers can be counted."""
        tape = self.tape
        here = tape.place
        for offset, stack in enumerate(self.loaded.stacks):
            for index in range(len(stack.played)):
                place = Place(here.forward, self.loaded.number + offset, index)
                tape.go_to(self.end_phase, "cache", place)
                for key in [key for key, (at, _) in tape.cast_cache.items() if at == place]:
                    del tape.cast_cache[key]
        tape.go_to(self.end_phase, "end of forward", here._replace(layer=None))
        tape.cast_cache.clear()

    # -- the decoder ------------------------------------------------------------------------------------------

    def hidden(self, ids: Tensor) -> Tensor:
        """Hidden states after the final norm."""
        tape, setup, model = self.tape, self.setup, self.model
        embedded = self._embedding(ids)  # locals of the model's forward, alive until it returns
        added: list[Tensor] = []
        outliving: list[Tensor] = []
        by_table: Tensor | None = None
        if self.loaded.tower is not None:
            by_table = self._layer_table(ids)
            added, outliving = self._merged_with_images(self.loaded.tower, embedded)
        positions: Tensor | None = tape.new(setup.batch.max_length, ID_BYTES)
        if setup.batch.is_joined:  # they come with the batch
            positions = Tensor(setup.batch.max_length, ID_BYTES, None)
        hidden = self._first_hidden(embedded)
        of_layers = None
        if self.family.layer_inputs is not None and model.hidden_size_per_layer_input:
            by_table = by_table or self._layer_table(ids)
            of_layers = self.family.layer_inputs(self.outer, by_table, hidden)
            del by_table
        streams: list[Tensor] = []
        self.hooks.work_at(self.outer.embedding_name)
        masks = self._masks(embedded[0].width)
        alibi = self._alibi()
        if self.family.spread is not None:
            hidden, streams = self.family.spread(self.outer, hidden)
        kinds_of_tables = self._table_kinds()
        brought: Tensor | None = self.hooks.enter(ROTARY, hidden) if kinds_of_tables else None
        tables = {local: self._rotary_tables(hidden.width, local) for local in kinds_of_tables}
        if tables and positions is not None:
            self.outer.within(ROTARY, positions, lambda x: x)
        del brought
        if not self.hooks.brings_inputs:
            positions = None
        given = _Given(masks, tables, alibi, positions if kinds_of_tables else None, {})
        for played, index in enumerate(self.layers):
            tape.enter(self.phase, "layer", played)
            tape.write(hidden)
            block = self._block(played, index, given)
            layer_input = None
            if of_layers is not None:
                width = setup.batch.tokens * model.hidden_size_per_layer_input
                layer_input = op.part(tape, of_layers, width)
            hidden = self._layer(block, hidden, layer_input)
            if index < len(added):
                sizes = added[index].elements // model.hidden_size, model.hidden_size
                hidden = op.added_to_rows(tape, hidden, added[index], *sizes)
            assert hidden.requires_grad == (tape.records and index >= self.lowest)
            block.router_logits = None
            if not is_checkpointed(model, setup, index):  # else its replay needs them
                block.mask = block.rotary_tables = block.alibi = block.positions = None
            del block, layer_input
        tape.enter(self.phase, "head")
        tape.write(hidden)
        if self.family.gathered is not None:
            streams.clear()
            hidden = self.family.gathered(self.outer, hidden)
        hidden = self._final_norm(hidden)
        del embedded, given, masks, tables, alibi, positions, of_layers, streams, added, outliving
        self.returned = None
        return hidden

    def _merged_with_images(
        self, tower: LoadedTower, embedded: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Put the images' features among the embeddings; returns what is added after layers, and what outlives the
        call.
        """
        features, added, outliving = tower.features(
            self.phase,
            self.setup.batch.per_device_train_batch_size,
            checkpointing=self.setup.computation.checkpoints_vision,
        )
        embedded[0] = merged(tower, embedded[0], features)
        outliving.append(features)
        if tower.family.calls_head:
            self.until_end += (embedded[0], *outliving)
        return added, outliving

    def _block(self, played: int, index: int, given: _Given) -> Block:
        """A played layer with what it is called with."""
        kind = self.kinds[index]
        modules = modules_of_layer(self.model, self.setup.adapters, index)
        block = self.loaded.block(modules, f"layers.{played}", self.setup, played)
        block.adapters_on = self.adapters
        block.mask = given.masks[kind.sliding] if self._attends(index) else None
        block.rotary_tables = given.tables.get(kind.sliding and self.family.tables_by_kind)
        block.rotary = self.family.rotary if kind.rotary else None
        block.alibi, block.positions = given.alibi, given.positions
        block.router_logits = self.router_logits if self.asks_router else None
        block.shared_states, block.sharing = given.shared_states, kind.sharing
        block.is_windowed, block.cuts_gate = kind.sliding, kind.cuts_gate
        return block

    def _attends(self, index: int) -> bool:
        """Whether the layer reads an attention mask."""
        types = self.model.layer_types
        return not types or types[index] not in WITHOUT_ATTENTION

    def _layer(self, block: Block, hidden: Tensor, layer_input: Tensor | None) -> Tensor:
        def program(x: Tensor, *given: Tensor) -> Tensor:
            block.layer_input = given[0] if given else None
            x = layer(block, x)
            block.layer_input = None
            return x

        given = [] if layer_input is None else [layer_input]
        assert block.index is not None
        index = self.layers[block.index]
        layer = layer_class_of(self.model, index).forward
        unit = self.hooks.layer(index, block)
        if unit is not None:
            hidden = unit.enter(hidden)
        if is_checkpointed(self.model, self.setup, index):
            hidden = self.tape.checkpoint(program, hidden, *given)
            self._keep_arguments(hidden.node, block)
        else:
            hidden = program(hidden, *given)
        if unit is not None:
            hidden = unit.leave(hidden)
        self.returned = block.weights if self.family.returns_weights else None
        block.weights, block.is_replay = None, True
        return hidden

    def _keep_arguments(self, node: Node | None, block: Block) -> None:
        """A reentrant checkpoint's node holds what the layer is called with by name until the graph is freed.

        Source: transformers 5.23, modeling_layers.py, ``GradientCheckpointingLayer.__call__`` (``partial(...,
        **kwargs)``); torch 2.13, utils/checkpoint.py, ``CheckpointFunction`` (``ctx.run_function``).
        """
        if not self.tape.is_reentrant or self.tape.is_compiled:
            return
        for given in (block.mask, block.alibi, block.positions, *(block.rotary_tables or ())):
            if given is not None:
                self.tape.attach(node, given)

    def _embedding(self, ids: Tensor) -> list[Tensor]:
        """Token embeddings, and learned position embeddings if the model has them."""
        tape, setup, outer, model = self.tape, self.setup, self.outer, self.model
        names = [name for name in outer.embeddings if name not in ("wpe", "embed_positions")]
        weight = outer.embeddings[names[0]]
        width = weight.elements // model.vocab_size
        self.hooks.enter_model(ids)
        ids = self.hooks.enter(names[0], ids)
        hidden = op.embedding(tape, ids, weight, width, setup.batch.tokens)
        in_module = self.family.scales_in_module
        if self.family.scales_embedding and in_module:
            hidden = op.scale(tape, hidden)
        is_scaled = self.family.scales_embedding and in_module
        hidden = outer.adapted_embedding(names[0], ids, hidden, is_scaled=is_scaled)
        if setup.computation.gradient_checkpointing and not hidden.requires_grad:
            hidden.requires_grad = True
            hidden.node = leaf_node(Leaf(TEMPORARIES, variable=hidden.storage))
            if tape.saved_tensor_hooks is not None:
                kept = [tape.new(hidden.elements, hidden.width, ACTIVATIONS) for _ in range(2)]
                tape.saved_tensor_hooks.left_over = kept
                tape.left_over = 2 * allocated(hidden.elements * hidden.width)
        hidden = self.hooks.leave(names[0], hidden)
        if self.family.scales_embedding and not in_module:
            hidden = op.scale(tape, hidden)
        if outer.has("project_in"):
            hidden = self.hooks.enter("project_in", hidden)
            hidden = outer.linear("project_in", hidden)
        learned = [name for name in ("wpe", "embed_positions") if name in outer.embeddings]
        return [hidden, *(self._positions(name) for name in learned)]

    def _layer_table(self, ids: Tensor) -> Tensor | None:
        """Looked up before a tower runs, so that its gradient comes after the tower's."""
        if self.family.layer_table is None or not self.model.hidden_size_per_layer_input:
            return None
        return self.family.layer_table(self.outer, ids)

    def _first_hidden(self, embedded: list[Tensor]) -> Tensor:
        """Input of the first layer: the sum of the embeddings, in some families after a norm or dropout."""
        tape, model = self.tape, self.model
        hidden = embedded[0]
        for positions in embedded[1:]:
            hidden = op.add(tape, hidden, positions)
        if self.outer.has("word_embeddings_layernorm"):
            hidden = self.outer.norm("word_embeddings_layernorm", hidden)
        hidden = op.dropout(tape, self.hooks.enter(DROPOUT, hidden), model.embd_pdrop)
        if (
            self.family.rebinds_embedding
        ):  # modeling_phi.py: `inputs_embeds = self.embed_dropout(inputs_embeds)`
            embedded[0] = hidden
        return hidden

    def _positions(self, name: str) -> Tensor:
        """Position embeddings: one set for all sequences, or one for each (OPT, which counts unpadded tokens)."""
        tape, setup = self.tape, self.setup
        rows = setup.batch.tokens if name == "embed_positions" else setup.batch.max_length
        ids = tape.new(rows, ID_BYTES)
        weight, width = self.outer.embeddings[name], self.model.hidden_size
        return self.outer.within(
            weight.key, ids, lambda ids: op.embedding(tape, ids, weight, width, rows)
        )

    def _masks(self, width: int) -> dict[bool, Tensor | None]:
        """The masks of full and of sliding layers; None where the kernel applies the causal mask itself."""
        setup = self.setup
        masks: dict[bool, Tensor | None] = {}
        additive = setup.computation.attn_implementation.keeps_scores
        needed = (
            setup.batch.padded or setup.batch.is_joined or self.family.always_masked or additive
        )
        needed = needed or setup.computation.masks_when_traced
        needed = needed or self.model.use_bidirectional_attention or self._image_masks
        for sliding in (False, True):
            alike = [kind for kind in self.kinds if kind.sliding == sliding]
            # Qwen2MoeConfig sets an unused window to 0 tokens, which every sequence exceeds
            unused = self.family.masks_unused_window and not alike
            exists = bool(alike) or unused
            if setup.computation.attn_implementation.is_flash:
                exists = False
            is_needed = needed or unused or any(kind.windowed for kind in alike)
            if exists and is_needed:
                masks[sliding] = self._mask(width, additive=additive, sliding=sliding)
            else:
                masks[sliding] = None
        return masks

    def _mask(self, width: int, *, additive: bool, sliding: bool) -> Tensor:
        """A bool mask, one for all sequences unless some are padded; or an additive one each, in the model's dtype."""
        setup, model = self.setup, self.model
        self.tape.operation = "attention mask"
        scores = setup.batch.per_device_train_batch_size * setup.batch.max_length**2
        if self.family.alibi_in_mask and model.no_rope_layers:
            # each head's ALiBi is added to the mask: modeling_falcon.py, FalconModel.forward
            return self.tape.new(scores * model.num_attention_heads, width)
        if self.family.alibi_by_head:  # `create_causal_mask(...).to(torch.bool)`
            return self.tape.new(scores, 1)
        seen = self._seen(scores, sliding=sliding)
        if additive:  # made from a bool mask: masking_utils.py, `eager_mask`
            mask = self.tape.new(scores, width)
            del seen
            return mask
        return self.tape.view(seen, scores)

    def _seen(self, scores: int, *, sliding: bool) -> Tensor:
        """The bool mask: of a window and of what came before, and where rows are padded, of each row.

        Source: transformers 5.23, masking_utils.py, ``sdpa_mask``, ``and_masks``.
        """
        tape, each = self.tape, self.setup.batch.max_length**2
        if sliding:
            window = tape.new(each, 1)
            joined = tape.new(each, 1)
            del window
            causal = tape.new(each, 1)
            seen = tape.new(each, 1)
            del causal, joined
        else:
            seen = tape.new(each, 1)
        if self._has_row_masks:
            joined = tape.new(each, 1)
            del seen
            seen = tape.new(scores, 1)
            del joined
        return seen

    @property
    def _image_masks(self) -> bool:
        """Whether images give each text a mask of its own."""
        return self.loaded.tower is not None and self.loaded.tower.family.masks_text

    @property
    def _has_row_masks(self) -> bool:
        """Whether a mask that is needed at all is made for every row: where the batch brings one, or images do.

        Source: transformers 5.23, masking_utils.py, ``sdpa_mask`` (``padding_mask_function``); trl 1.16,
        trainer/dpo_trainer.py, ``DataCollatorForPreference`` (``attention_mask``).
        """
        brings = self.setup.batch.padded or self.setup.task.objective.brings_mask
        return brings or self._image_masks

    def _alibi(self) -> Tensor | None:
        """MPT's ALiBi biases: float32, for every head and every position up to the model's maximum, at any length."""
        model = self.model
        if not self.family.alibi_by_head:
            return None
        self.tape.operation = "ALiBi"
        longest = model.num_attention_heads * model.max_position_embeddings
        seen = model.num_attention_heads * self.setup.batch.max_length
        return self.tape.view(self.tape.new(longest, 4), seen)

    def _table_kinds(self) -> set[bool]:
        """Rotary table sets: one for sliding and one for full layers, or one for all."""
        if self.family.rotary is None:
            return set()
        if self.family.tables_if_turned and not any(kind.rotary for kind in self.kinds):
            return set()
        both = self.family.tables_by_kind and self.model.layer_types
        return {False, True} if both else {False}

    def _rotary_tables(self, width: int, local: bool) -> Tables:
        tape, rotary = self.tape, self.family.rotary
        model = self.model
        head_dim = model.head_dim if local else model.global_head_dim or model.head_dim
        turned = int(head_dim * min(1.0, model.partial_rotary_factor))
        dimension = model.qk_rope_head_dim or turned
        if rotary is Rotary.SPLIT_HALVES:  # one number serves both halves
            dimension //= 2
        texts = self.setup.batch.per_device_train_batch_size if self.family.tables_by_text else 1
        elements = texts * self.setup.batch.max_length * dimension
        width = 4 if rotary is not None and rotary.float32_tables else width
        tape.operation = "rotary tables"
        if rotary is Rotary.COMPLEX:  # cosine and sine in one complex table
            table = tape.new(elements, width, ACTIVATIONS)
            return Tables(table, table)
        if rotary is not Rotary.HALVES:
            return Tables(
                tape.new(elements, width, ACTIVATIONS), tape.new(elements, width, ACTIVATIONS)
            )
        return _cosine_and_sine(tape, elements, width)

    def _final_norm(self, hidden: Tensor) -> Tensor:
        if name := self.outer.final_norm_name:
            hidden = self.hooks.leave(name, self.outer.norm(name, self.hooks.enter(name, hidden)))
        if self.outer.has("project_out"):
            hidden = self.outer.linear("project_out", self.hooks.enter("project_out", hidden))
        return hidden

    # -- the head ---------------------------------------------------------------------------------------------

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary, as the model returns them."""
        tape, model, outer = self.tape, self.model, self.outer
        hidden = self.hooks.enter(HEAD, hidden)
        with tape.keeping_saved():
            if outer.has("lm_head"):
                logits = outer.linear("lm_head", hidden)
            else:
                weight = self.loaded.head_weight()
                width = weight.elements // model.vocab_size
                sizes = width, model.vocab_size
                logits = outer.within(
                    HEAD, hidden, lambda x: op.linear(tape, x, weight, None, *sizes, "lm_head")
                )
        logits = as_logits(self.hooks.leave(HEAD, logits))
        if self.family.float32_logits:
            logits = as_logits(op.cast(tape, logits, 4))
        if self.family.scales_logits:
            logits = as_logits(op.scale(tape, logits))
        if model.final_logit_softcapping:
            logits = as_logits(op.scale(tape, logits))
            logits = as_logits(op.elementwise(tape, logits, "tanh", saves="output"))
            logits = as_logits(op.scale(tape, logits))
        return logits


def _cosine_and_sine(tape: Tape, elements: int, width: int) -> Tables:
    """Both of the angles of every position and dimension, scaled, in float32 first.

    Source: transformers 5.23, models/llama/modeling_llama.py, ``LlamaRotaryEmbedding.forward``.
    """
    inputs = tape.new(elements // 2, 4), tape.new(elements, 4)
    kept = ACTIVATIONS if width == 4 else TEMPORARIES
    scaled = []
    for _ in range(2):
        unscaled = tape.new(elements, 4)
        scaled.append(tape.new(elements, 4, kept))
        del unscaled
    if width == 4:
        return Tables(*scaled)
    narrow = [tape.new(elements, width, ACTIVATIONS) for _ in scaled]
    del inputs, scaled
    return Tables(*narrow)


def as_logits(x: Tensor) -> Tensor:
    """The same tensor, counted as logits."""
    if x.storage is not None:
        x.storage.become(LOGITS)
    return x

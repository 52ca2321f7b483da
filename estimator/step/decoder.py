"""One training step of a causal language model: embedding, layers, head, loss, and back.

Source: transformers 5.23, models/llama/modeling_llama.py (``LlamaModel``, ``LlamaForCausalLM``) and
loss/loss_utils.py (``ForCausalLMLoss``); accelerate 1.15, accelerator.py (autocast around the forward pass, outputs
converted to float32); peft 0.21 and transformers' ``enable_input_require_grads``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from estimator.families.block import ROTARY, Block
from estimator.families.experts import balancing_loss
from estimator.families.liger import KERNELS, loss_of
from estimator.families.parameters import (
    WITHOUT_ATTENTION,
    Module,
    is_adapted,
    is_copied,
    layer_kind,
    layer_model,
    layer_modules,
    lowest_trained,
    outer_modules,
    sharing_of_keys,
    tied_head,
)
from estimator.families.registry import Architecture, architecture
from estimator.families.rotary import Rotary, Tables
from estimator.parallel.device_hooks import Placed
from estimator.parallel.fsdp1_units import FlatUnits
from estimator.parallel.groups import Sharded
from estimator.parallel.module_devices import Seats
from estimator.parallel.placement import HEAD
from estimator.parallel.sharding import computed, finds_unused, made_divided
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import (
    ACTIVATIONS,
    LOGITS,
    TEMPORARIES,
    Leaf,
    Parameter,
    Tape,
    Tensor,
    leaf_node,
)
from estimator.values.arithmetic import ceil_div
from estimator.values.specs import (
    AttnImplementation,
    Dtype,
    Loss,
    MixedPrecision,
    Model,
    Phase,
    TrainingSetup,
)

SLIDING = "sliding_attention"
ID_BYTES = 8
"""Token ids, labels and positions are int64."""
CHUNKS = 8
"""Of a text's logits: torchtune 0.6.1, modules/loss/ce_chunked_output_loss.py, ``num_output_chunks``."""


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


class Step:
    """One micro-batch on a tape. ``layers`` are the indices that are played; the others follow from them."""

    def __init__(
        self,
        model: Model,
        setup: TrainingSetup,
        layers: Sequence[int],
        ranks: int = 1,
        *,
        training: bool = True,
        seats: Seats | None = None,
    ) -> None:
        self.model = model
        self.training = training
        """False: an evaluation's forward call under ``torch.no_grad``."""
        self.setup = computed(setup)
        self.layers = layers
        self.family: Architecture = architecture(model)
        self.kinds = layer_kinds(model, windowed=has_window(model, setup.max_length))
        self.lowest = lowest_trained(model, setup) or 0
        """The lowest layer that backward reaches."""
        self.loss = loss_of(model, setup)
        autocast = self.setup.mixed_precision is not MixedPrecision.NO
        self.tape = Tape(
            autocast_width=2 if autocast else None,
            records=training,
            is_reentrant=setup.use_reentrant,
            is_float16=Dtype.FLOAT16 in (setup.dtype, setup.mixed_precision.value),
            is_deepspeeds=made_divided(setup),
        )
        copied_head = [head for head in tied_head(model) if is_copied(head, setup)]
        self.outer = self._block((*outer_modules(model), *copied_head), "outer")
        for head in tied_head(model):
            if is_adapted(head, setup):
                self.outer.tie(head, self._head(), "outer")
        self.sharded: Sharded | FlatUnits
        if setup.uses_fsdp1:
            self.sharded = FlatUnits(self.tape, model, setup, self.outer, ranks)
        else:
            self.sharded = Sharded(self.tape, model, setup, self.outer, ranks)
        self.placed = Placed(self.tape, seats)
        self.returned: Tensor | None = None
        """What the last layer returned beside its output."""
        self.router_logits: list[Tensor] = []
        """One a played layer, if the model returns them."""

    def _block(self, modules: Sequence[Module], key: str, index: int | None = None) -> Block:
        return Block(
            self.tape,
            self.model if index is None else layer_model(self.model, self.layers[index]),
            self.setup,
            modules,
            key=key,
            norm_kind=self.family.norm,
            softmax_float32=self.family.softmax_float32,
            index=index,
        )

    def play(self) -> Tape:
        """Forward and loss, and backward in training."""
        tape = self.tape
        ids = tape.new(self.setup.tokens, ID_BYTES, ACTIVATIONS)
        labels = tape.new(self.setup.tokens, ID_BYTES, ACTIVATIONS)
        padding = tape.new(self.setup.tokens, ID_BYTES, ACTIVATIONS) if self.setup.padded else None
        loss, outputs = self._forward(ids, labels)
        if not (self.training and self.setup.hold_outputs):
            del outputs
            self._let_go(self.router_logits)
        if self.training:
            tape.backward(loss)
            self._drop_graph()
        self.sharded.end_backward()
        self.router_logits.clear()
        del ids, labels, padding
        return tape

    def _forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        tape = self.tape
        hidden: Tensor | None = self._decoder(ids)
        assert hidden is not None
        logits = None
        match self.loss:
            case Loss.STANDARD:
                logits = self._logits(hidden)
                tape.enter(Phase.LOSS, "loss")
                loss = self._loss(logits, labels)
            case Loss.CHUNKED_TORCHTUNE:
                chunks = self._logits_in_chunks(hidden)
                hidden = None
                tape.enter(Phase.LOSS, "loss")
                loss = self._loss_of_chunks(chunks)
                del chunks
            case _:
                tape.enter(Phase.LOSS, "loss")
                loss = self._loss_without_logits(hidden)
        if logits is None:
            loss = self.sharded.after_head(loss)
        loss = self._with_balance(loss)
        del hidden
        loss, logits = self.placed.returned(loss, logits)
        tape.operation = "end of autocast"
        tape.autocast_active = False
        self._drop_cache()
        outputs = logits if tape.autocast_width is None else self._in_float32(logits)
        del logits
        if outputs is not None and finds_unused(self.setup):
            tape.operation = "outputs through DDP's sink"
            outputs = tape.new(outputs.elements, outputs.width, LOGITS)
        return self.sharded.end_forward(loss), outputs

    def _in_float32(self, logits: Tensor | None) -> Tensor | None:
        """Accelerate's ``convert_outputs_to_fp32``: a copy of every 16-bit output before the first is let go."""
        tape = self.tape
        tape.operation = "outputs to float32"
        converted = logits
        if logits is not None and logits.width != 4:
            converted = tape.new(logits.elements, 4, LOGITS)
        scores = self.router_logits[:]
        for index in range(len(scores)):
            tape.enter(Phase.LOSS, "outputs", index)
            if scores[index].width != 4:
                self.router_logits[index] = tape.new(scores[index].elements, 4)
        if scores:
            tape.enter(Phase.LOSS, "end of forward")
        self._let_go(scores)
        return converted

    def _let_go(self, scores: list[Tensor]) -> None:
        """Free the routers' scores layer by layer, so that unplayed layers can be counted."""
        for index in range(len(scores)):
            self.tape.enter(Phase.LOSS, "scores", index)
            del scores[0]
            if not scores:
                self.tape.enter(Phase.LOSS, "end of forward")

    def _with_balance(self, loss: Tensor) -> Tensor:
        """The loss, and what the routers' scores add to it, layer by layer so that unplayed layers can be counted."""
        tape, balance = self.tape, None
        for index, logits in enumerate(self.router_logits):
            tape.enter(Phase.LOSS, "balance", index)
            balance = balancing_loss(tape, self.model, self.setup.tokens, logits, balance)
        if balance is None:
            return loss
        tape.enter(Phase.LOSS, "loss")
        return op.add(tape, loss, op.mean(tape, balance, 1, "sum over experts"))

    def _drop_graph(self) -> None:
        """With the loss goes the graph and what its nodes kept, layer by layer so that unplayed ones can be counted."""
        tape = self.tape
        if not tape.attached:
            return
        for index in reversed(range(len(self.layers))):
            tape.enter(Phase.BACKWARD, "graph", index)
            tape.attached = [kept for kept in tape.attached if kept[0] != index]
        tape.enter(Phase.BACKWARD, "end of backward")
        tape.attached.clear()

    def _drop_cache(self) -> None:
        """Autocast ends: its copies of weights go, layer by layer so that unplayed layers can be counted."""
        tape = self.tape
        for index in range(len(self.layers)):
            tape.enter(Phase.LOSS, "cache", index)
            for key in [key for key, (layer, _) in tape.cast_cache.items() if layer == index]:
                del tape.cast_cache[key]
        tape.enter(Phase.LOSS, "end of forward")
        tape.cast_cache.clear()

    # -- the decoder ------------------------------------------------------------------------------------------

    def _decoder(self, ids: Tensor) -> Tensor:
        tape, setup, model = self.tape, self.setup, self.model
        embedded = self._embedding(ids)  # names of the model's forward until it returns
        positions: Tensor | None = tape.new(setup.max_length, ID_BYTES)
        hidden = self._first_hidden(embedded)
        of_layers = None
        if self.family.layer_inputs is not None and model.hidden_size_per_layer_input:
            of_layers = self.family.layer_inputs(self.outer, ids, hidden)
        shared: dict[bool, tuple[Tensor, Tensor]] = {}
        streams: list[Tensor] = []
        self.placed.before_masks(next(iter(self.outer.embeddings)))
        masks = self._masks(embedded[0].width)
        alibi = self._alibi()
        if self.family.spread is not None:
            hidden, streams = self.family.spread(self.outer, hidden)
        kinds_of_tables = self._table_kinds()
        brought: Tensor | None = self.placed.tables(hidden) if kinds_of_tables else None
        tables = {local: self._rotary_tables(hidden.width, local) for local in kinds_of_tables}
        if tables and positions is not None:
            self.outer.within(ROTARY, positions, lambda x: x)
        del brought
        if self.placed.seats is None:
            positions = None
        for played, index in enumerate(self.layers):
            tape.enter(Phase.FORWARD, "layer", played)
            kind = self.kinds[index]
            block = self._block(layer_modules(model, index), f"layers.{played}", played)
            block.mask = masks[kind.sliding] if self._attends(index) else None
            block.rotary_tables = tables.get(kind.sliding and self.family.tables_by_kind)
            block.rotary = self.family.rotary if kind.rotary else None
            block.alibi = alibi
            block.positions = positions if kinds_of_tables else None
            block.router_logits = self.router_logits if model.output_router_logits else None
            block.shared_states, block.sharing = shared, kind.sharing
            block.is_windowed, block.cuts_gate = kind.sliding, kind.cuts_gate
            layer_input = None
            if of_layers is not None:
                width = setup.tokens * model.hidden_size_per_layer_input
                layer_input = op.part(tape, of_layers, width)
            hidden = self._layer(block, hidden, layer_input)
            assert hidden.requires_grad == (self.training and index >= self.lowest)
            block.router_logits = None
            if not setup.gradient_checkpointing:  # else its replay needs them
                block.mask = block.rotary_tables = block.alibi = block.positions = None
            del block, layer_input
        tape.enter(Phase.FORWARD, "head")
        if self.family.gathered is not None:
            streams.clear()
            hidden = self.family.gathered(self.outer, hidden)
        hidden = self._final_norm(self.sharded.before_norm(hidden))
        if self.loss is not Loss.CHUNKED_TORCHTUNE:
            hidden = self.sharded.before_head(hidden)
        del embedded, masks, tables, alibi, positions, of_layers, shared, streams
        self.returned = None
        return hidden

    def _attends(self, index: int) -> bool:
        """Whether the layer reads a mask of queries and keys."""
        types = self.model.layer_types
        return not types or types[index] not in WITHOUT_ATTENTION

    def _layer(self, block: Block, hidden: Tensor, layer_input: Tensor | None) -> Tensor:
        def program(x: Tensor, *given: Tensor) -> Tensor:
            block.layer_input = given[0] if given else None
            x = layer(block, x)
            block.layer_input = None
            return x

        layer = self.family.layer
        given = [] if layer_input is None else [layer_input]
        assert block.index is not None
        hidden = self.placed.layer(self.layers[block.index], block, hidden)
        group = self.sharded.layer(block)
        if group.members:
            hidden = group.enter(hidden)
        if self.setup.gradient_checkpointing:
            hidden = self.tape.checkpoint(program, hidden, *given)
        else:
            hidden = program(hidden, *given)
        if group.members:
            hidden = group.leave(hidden)
        self.returned = block.weights if self.family.returns_weights else None
        block.weights, block.is_replay = None, True
        return hidden

    def _embedding(self, ids: Tensor) -> list[Tensor]:
        """The tokens' vectors, and the positions' where these are learned."""
        tape, setup, outer, model = self.tape, self.setup, self.outer, self.model
        names = [name for name in outer.embeddings if name not in ("wpe", "embed_positions")]
        weight = outer.embeddings[names[0]]
        width = weight.elements // model.vocab_size
        self.sharded.before_embedding(ids)
        ids = self.placed.module(names[0], ids)
        hidden = op.embedding(tape, ids, weight, width, setup.tokens)
        in_module = self.family.scales_in_module
        if self.family.scales_embedding and in_module:
            hidden = op.scale(tape, hidden)
        is_scaled = self.family.scales_embedding and in_module
        hidden = outer.adapted_embedding(names[0], ids, hidden, is_scaled=is_scaled)
        if setup.gradient_checkpointing and not hidden.requires_grad:
            hidden.requires_grad = True
            hidden.node = leaf_node(Leaf(TEMPORARIES, variable=hidden.storage))
        hidden = self.sharded.after_embedding(hidden)
        if self.family.scales_embedding and not in_module:
            hidden = op.scale(tape, hidden)
        if outer.has("project_in"):
            hidden = self.placed.module("project_in", hidden)
            hidden = outer.linear("project_in", hidden)
        learned = [name for name in ("wpe", "embed_positions") if name in outer.embeddings]
        return [hidden, *(self._positions(name) for name in learned)]

    def _first_hidden(self, embedded: list[Tensor]) -> Tensor:
        """What enters the first layer: the sum of the embeddings, normalised or dropped out by some families."""
        tape, model = self.tape, self.model
        hidden = embedded[0]
        for positions in embedded[1:]:
            hidden = op.add(tape, hidden, positions)
        if self.outer.has("word_embeddings_layernorm"):
            hidden = self.outer.norm("word_embeddings_layernorm", hidden)
        hidden = op.dropout(tape, self.placed.dropout(hidden), model.embd_pdrop)
        if (
            model.model_type == "phi"
        ):  # modeling_phi.py: `inputs_embeds = self.embed_dropout(inputs_embeds)`
            embedded[0] = hidden
        return hidden

    def _positions(self, name: str) -> Tensor:
        """The positions' vectors: once for all texts, or (OPT, which counts what is not padding) for each."""
        tape, setup = self.tape, self.setup
        rows = setup.tokens if name == "embed_positions" else setup.max_length
        ids = tape.new(rows, ID_BYTES)
        weight, width = self.outer.embeddings[name], self.model.hidden_size
        return self.outer.within(
            weight.key, ids, lambda ids: op.embedding(tape, ids, weight, width, rows)
        )

    def _masks(self, width: int) -> dict[bool, Tensor | None]:
        """The mask of full and of sliding layers: None where the kernel's own causality is enough."""
        setup = self.setup
        masks: dict[bool, Tensor | None] = {}
        additive = setup.attn_implementation is AttnImplementation.EAGER
        needed = setup.padded or self.family.always_masked or additive
        needed = needed or self.model.use_bidirectional_attention
        for sliding in (False, True):
            alike = [kind for kind in self.kinds if kind.sliding == sliding]
            # Qwen2MoeConfig makes an unused window one of 0 tokens, which every text exceeds
            unused = self.family.masks_unused_window and not alike
            exists = bool(alike) or unused
            if setup.attn_implementation is AttnImplementation.FLASH_ATTENTION_2:
                exists = False
            is_needed = needed or unused or any(kind.windowed for kind in alike)
            masks[sliding] = self._mask(width, additive=additive) if exists and is_needed else None
        return masks

    def _mask(self, width: int, *, additive: bool) -> Tensor:
        """Truth values, one for all texts unless some are padded; or 0 and -∞ for each, in the model's dtype."""
        setup, model = self.setup, self.model
        self.tape.operation = "attention mask"
        scores = setup.per_device_train_batch_size * setup.max_length**2
        if model.model_type == "falcon" and model.no_rope_layers:
            # ALiBi of every head joins the mask: modeling_falcon.py, FalconModel.forward
            return self.tape.new(scores * model.num_attention_heads, width)
        if model.model_type == "mpt":  # `create_causal_mask(...).to(torch.bool)`
            return self.tape.new(scores, 1)
        if additive:
            return self.tape.new(scores, width)
        stored = scores if setup.padded else setup.max_length**2
        return self.tape.view(self.tape.new(stored, 1), scores)

    def _alibi(self) -> Tensor | None:
        """MPT's biases: of every head and every position that the model may see, in float32, whatever the length."""
        model = self.model
        if model.model_type != "mpt":
            return None
        self.tape.operation = "ALiBi"
        longest = model.num_attention_heads * model.max_position_embeddings
        seen = model.num_attention_heads * self.setup.max_length
        return self.tape.view(self.tape.new(longest, 4), seen)

    def _table_kinds(self) -> set[bool]:
        """Which sets of rotary tables there are: those of windowed layers beside the others', or one for all."""
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
        if rotary is Rotary.SPLIT_HALVES:  # a number for both halves
            dimension //= 2
        texts = self.setup.per_device_train_batch_size if self.family.tables_by_text else 1
        elements = texts * self.setup.max_length * dimension
        width = 4 if rotary is not None and rotary.float32_tables else width
        tape.operation = "rotary tables"
        if rotary is Rotary.COMPLEX:  # both in one
            table = tape.new(elements, width, ACTIVATIONS)
            return Tables(table, table)
        return Tables(
            tape.new(elements, width, ACTIVATIONS), tape.new(elements, width, ACTIVATIONS)
        )

    def _final_norm(self, hidden: Tensor) -> Tensor:
        before_layers = ("word_embeddings_layernorm", "per_layer_projection_norm")
        names = [name for name in self.outer.norms if name not in before_layers]
        if names:
            hidden = self.outer.norm(names[0], self.placed.module(names[0], hidden))
        if self.outer.has("project_out"):
            hidden = self.outer.linear("project_out", self.placed.module("project_out", hidden))
        return hidden

    # -- head and loss ----------------------------------------------------------------------------------------

    def _head(self) -> Parameter:
        """The head's weight, V · h: its own, or the embedding's."""
        outer = self.outer
        if outer.has("lm_head"):
            return outer.linears["lm_head"].weight
        weight = outer.embeddings[next(iter(outer.embeddings))]
        if weight.requires_grad and self.setup.uses_adapters:
            # the embedding is a trained copy (PEFT's modules_to_save); the head keeps the frozen original
            return Parameter("head", weight.elements, weight.width, trainable=False)
        return weight

    def _logits(self, hidden: Tensor) -> Tensor:
        tape, model, outer = self.tape, self.model, self.outer
        hidden = self.placed.module(HEAD, hidden)
        if outer.has("lm_head"):
            logits = outer.linear("lm_head", hidden)
        else:
            weight = self._head()
            width = weight.elements // model.vocab_size
            sizes = width, model.vocab_size
            logits = outer.within(
                HEAD, hidden, lambda x: op.linear(tape, x, weight, None, *sizes, "lm_head")
            )
        logits = _as_logits(self.sharded.after_head(logits))
        if self.family.float32_logits:
            logits = _as_logits(op.cast(tape, logits, 4))
        if self.family.scales_logits:
            logits = _as_logits(op.scale(tape, logits))
        if model.final_logit_softcapping:
            logits = _as_logits(op.scale(tape, logits))
            logits = _as_logits(op.elementwise(tape, logits, "tanh", saves="output"))
            logits = _as_logits(op.scale(tape, logits))
        return logits

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        tape = self.tape
        tape.operation = "logits to float32"
        logits = _as_logits(op.cast(tape, logits, 4))
        self.placed.first()
        padded = tape.new(labels.elements + 1, ID_BYTES)
        shifted = tape.new(labels.elements, ID_BYTES, ACTIVATIONS)
        del padded
        shifted = self.placed.labels(shifted)
        if self.outer.kernels.whole_logits:
            return fused.cross_entropy(tape, logits)
        return op.log_softmax_loss(tape, logits, shifted)

    def _loss_without_logits(self, hidden: Tensor) -> Tensor:
        """Head and loss in one, so that the logits never exist as a whole."""
        weight, vocabulary = self.sharded.read_head(self._head()), self.model.vocab_size
        width = weight.elements // vocabulary
        texts = self.setup.per_device_train_batch_size

        def loss(x: Tensor) -> Tensor:
            if self.loss is Loss.LIGER:
                budget = KERNELS[self.model.model_type].budget
                return fused.linear_cross_entropy(
                    self.tape, x, weight, width, vocabulary, budget=budget
                )
            return fused.log_probabilities(self.tape, x, weight, width, texts)

        return self.outer.within(HEAD, hidden, loss)

    def _logits_in_chunks(self, hidden: Tensor) -> list[Tensor]:
        """torchtune's: each text in eight chunks; rows of several texts are copied side by side.

        Source: torchtune 0.6.1, modules/transformer.py, ``chunked_output``.
        """
        texts, length = self.setup.per_device_train_batch_size, self.setup.max_length
        width, size = hidden.elements // self.setup.tokens, ceil_div(length, CHUNKS)
        sizes = []
        while length > 0:
            sizes.append(texts * min(size, length) * width)
            length -= size
        return [
            self._logits(
                self.sharded.before_chunk(op.clone(self.tape, chunk) if texts > 1 else chunk)
            )
            for chunk in op.split(self.tape, hidden, sizes)
        ]

    def _loss_of_chunks(self, chunks: Sequence[Tensor]) -> Tensor:
        """Only one chunk at a time is in float32, but the log-softmax of all is kept, as are the logits until here.

        Source: torchtune 0.6.1, modules/loss/ce_chunked_output_loss.py, ``CEWithChunkedOutputLoss``.
        """
        tape, total = self.tape, None
        shifted = tape.new(self.setup.tokens, ID_BYTES)
        for chunk in chunks:
            loss = op.log_softmax_loss(tape, _as_logits(op.cast(tape, chunk, 4)), shifted)
            total = loss if total is None else op.add(tape, total, loss)
        assert total is not None
        return total


def _as_logits(x: Tensor) -> Tensor:
    if x.storage is not None:
        x.storage.become(LOGITS)
    return x

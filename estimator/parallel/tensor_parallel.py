"""Tensor parallelism as transformers runs it on torch's DTensor: every rank has a part of each layer's matrices.

The projections of queries, keys, values, gate and up are divided by their outputs, those behind them by their inputs,
embedding and head by the vocabulary. So a rank's model is one with fewer heads, a narrower MLP and fewer words
(``part_of``), and its program is the family's own. Norms, hidden states and the whole logits are on every rank.

What is sent: the gradient of the input of a projection divided by its outputs, the output of one divided by its
inputs, and the logits. An all-reduce writes a new tensor beside the one that it reduces.

Source: transformers 5.23, distributed/tensor_parallel.py, ``ColwiseParallel``, ``RowwiseParallel``,
``EmbeddingParallel``; distributed/mixin.py:94 (``embedding_rowwise``); models/llama/configuration_llama.py,
``base_model_tp_plan``; torch 2.13, distributed/tensor/_redistribute.py, ``Redistribute``, and
distributed/_functional_collectives.py, ``all_gather_tensor`` (dimension -1: chunks are joined by ``cat``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from estimator.families.block import Block
from estimator.families.registry import family_of
from estimator.parallel.hooks import Hooks
from estimator.parallel.placement import HEAD
from estimator.parallel.placements import unsharded
from estimator.resident.model import Resident, counts
from estimator.tape.operators import Gradients
from estimator.tape.tape import Tape, Tensor
from estimator.values.arithmetic import allocated, ceil_div
from estimator.values.facets.mesh import Mesh
from estimator.values.refusals import CONTRADICTION, NOT_MODELLED, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

COLWISE, ROWWISE = "colwise", "rowwise"
PLAN = MappingProxyType(
    {
        "self_attn.q_proj": COLWISE,
        "self_attn.k_proj": COLWISE,
        "self_attn.v_proj": COLWISE,
        "self_attn.o_proj": ROWWISE,
        "mlp.gate_proj": COLWISE,
        "mlp.up_proj": COLWISE,
        "mlp.down_proj": ROWWISE,
    }
)
"""How a layer's linears are divided in every family with ``has_tp_plan``."""
NO_PLAN = Refusal(
    "tp_size {ranks} is not modelled yet for {model_type}{what}; take strategy fsdp.",
    NOT_MODELLED,
)
UNEVEN = Refusal(
    "tp_size {ranks} does not divide {what} {number} of this model; take a divisor of it.",
    CONTRADICTION,
)


def check_tensor_parallel(model: Model, mesh: Mesh) -> None:
    """Raises ``RefusedError`` if the ranks cannot divide the model's heads and widths.

    Source: transformers 5.23, models/llama/modeling_llama.py, ``LlamaAttention.forward`` (``view`` by whole heads).
    """
    ranks = mesh.tp_size
    if ranks == 1:
        return
    if not family_of(model).has_tp_plan or model.vision is not None or model.num_experts:
        raise NO_PLAN(ranks=ranks, model_type=model.model_type, what="")
    if model.tie_word_embeddings:
        raise NO_PLAN(ranks=ranks, model_type=model.model_type, what=" with a tied head")
    for what, number in (
        ("num_attention_heads", model.num_attention_heads),
        ("num_key_value_heads", model.num_key_value_heads),
        ("intermediate_size", model.intermediate_size),
    ):
        if number % ranks:
            raise UNEVEN(ranks=ranks, what=what, number=number)


@lru_cache(maxsize=1024)
def part_of(model: Model, ranks: int) -> Model:
    """The model as the fullest of ``ranks`` ranks has it: part of the heads, of the MLP and of the vocabulary.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> half = part_of(replace(TINY_LLAMA, num_key_value_heads=2), 2)
    >>> half.num_attention_heads, half.intermediate_size, half.vocab_size, half.hidden_size
    (1, 8, 5, 8)
    """
    if ranks == 1:
        return model
    return replace(
        model,
        num_attention_heads=model.num_attention_heads // ranks,
        num_key_value_heads=model.num_key_value_heads // ranks,
        intermediate_size=model.intermediate_size // ranks,
        vocab_size=ceil_div(model.vocab_size, ranks),
    )


def divided(model: Model, structure: TrainingSetup) -> Resident:
    """What a rank keeps: its part of weights, gradients and states; parameters are counted of the whole model.

    The embedding's gradient is that of all its rows on every rank: DTensor keeps it replicated, and the
    optimizer's step copies the rank's part of it.

    Source: derived, from ``unsharded``; torch 2.13, distributed/tensor/_ops/_embedding_ops.py
    (``embedding_dense_backward``); tests/verify/test_tensor_parallel.py.
    """
    rank = unsharded(part_of(model, structure.mesh.tp_size), structure)
    own, rows = embedding_bytes(model, structure)
    return replace(
        rank,
        gradients=rank.gradients + rows - own,
        accumulated=rank.accumulated + rows - own,
        transient=rank.transient + own,
        **counts(model, structure.adapters),
    )


def embedding_bytes(model: Model, setup: TrainingSetup) -> tuple[int, int]:
    """Bytes of a rank's part of the embedding, and of all its rows (derived)."""
    column = model.hidden_size * setup.precision.dtype.bytes
    words = ceil_div(model.vocab_size, setup.mesh.tp_size), model.vocab_size
    own, rows = (allocated(count * column) for count in words)
    return own, rows


def largest_whole_bytes(model: Model, mesh: Mesh, width: int) -> int:
    """Bytes on the GPU while a rank gathers its largest tensor whole; ``width``: bytes of an element.

        a matrix divided by its outputs, or by the vocabulary   whole, and its part gathered over the shards' n ranks
        one divided by its inputs                               whole, and 1 / n of it; twice, where nothing is sharded

    Chunks of a matrix divided by its inputs are joined in a second copy.

    Source: torch 2.13, distributed/_functional_collectives.py, ``_maybe_view_chunk_cat``; distributed/tensor/
    _redistribute.py, ``redistribute_local_tensor`` (one mesh dimension after another).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> wide = 2 * 512 * TINY_LLAMA.intermediate_size
    >>> meshes = Mesh(num_gpus=2, tp_size=2), Mesh(num_gpus=8, tp_size=2)
    >>> [largest_whole_bytes(replace(TINY_LLAMA, hidden_size=512), mesh, 2) / wide for mesh in meshes]
    [2.0, 1.5]
    """
    ranks, column = mesh.shard_ranks, model.hidden_size * width
    inner = max(model.intermediate_size, model.num_attention_heads * model.head_dim)
    if ranks == 1:
        return allocated(max(model.vocab_size, 2 * inner) * column)
    words = max(model.vocab_size, inner)
    by_outputs = allocated(words * column) + allocated(ceil_div(words, mesh.tp_size) * column)
    return max(by_outputs, allocated(inner * column) + allocated(ceil_div(inner, ranks) * column))


class _Colwise:
    """A linear divided by its outputs: the gradients of its input are summed over the ranks.

    The sum is a new tensor, and the partial gradient goes when it has arrived.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def enter(self, x: Tensor) -> Tensor:
        """The input is the same on all ranks."""
        elements, width = x.elements, x.width

        def backward(tape: Tape, gradients: Gradients) -> Gradients:
            return [tape.new(elements, width)]

        self._tape.operation = "input of a divided linear"
        return self._tape.record("all-reduce of its gradient", self._tape.view(x), [x], backward)

    def leave(self, x: Tensor) -> Tensor:
        """The output stays divided."""
        return x


class _Rowwise:
    """A linear divided by its inputs, or an embedding by its words: its outputs are summed over the ranks."""

    def __init__(self, tape: Tape, *, always_new: bool = False) -> None:
        self._tape = tape
        self._always_new = always_new

    def enter(self, x: Tensor) -> Tensor:
        """The input is this rank's part."""
        return x

    def leave(self, x: Tensor) -> Tensor:
        """The sum, a new tensor beside the partial one; in place where no gradient is asked for."""
        if not x.requires_grad and not self._always_new:
            return x
        return _sent(self._tape, x, x.elements, x.elements, "outputs summed")


def _sent(tape: Tape, x: Tensor, elements: int, own: int, name: str) -> Tensor:
    """What a collective makes of a tensor; of its gradient a rank keeps ``own`` elements: all, or its part, copied."""
    width, is_part = x.width, own != elements

    def backward(tape: Tape, gradients: Gradients) -> Gradients:
        (gradient,) = gradients
        return [tape.new(own, width)] if is_part else [gradient]

    tape.operation = name
    return tape.record(f"{name} backward", tape.new(elements, width), [x], backward)


class TensorParallelHooks(Hooks):
    """The collectives around the calls of a rank's modules."""

    def __init__(
        self, tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int
    ) -> None:
        super().__init__(tape, model, setup, outer, ranks)
        self._ranks = setup.mesh.tp_size
        self._embedding = outer.embedding_name
        weight = outer.embeddings[self._embedding]
        weight.gradient_elements = weight.elements * self._ranks
        self._colwise, self._rowwise = _Colwise(tape), _Rowwise(tape)
        self._looked_up = _Rowwise(tape, always_new=True)

    def layer(self, index: int, block: Block) -> None:
        """Hooks the layer's linears by the plan."""
        for name, linked in block.linears.items():
            block.units[linked.weight.key] = (
                self._colwise if PLAN[name] == COLWISE else self._rowwise
            )

    def enter(self, module: str, x: Tensor) -> Tensor:
        """The head's input is the same on all ranks."""
        return self._colwise.enter(x) if module == HEAD else x

    def leave(self, module: str, x: Tensor) -> Tensor:
        """The embedding's rows are summed; the logits are gathered, and their parts joined in a second copy."""
        if module == self._embedding:
            return self._looked_up.leave(x)
        if module != HEAD:
            return x
        gathered = _sent(self.tape, x, x.elements * self._ranks, x.elements, "logits gathered")
        tape, elements, width = self.tape, gathered.elements, gathered.width
        tape.operation = "logits joined"
        return tape.record(
            "logits joined backward", tape.new(elements, width), [gathered], lambda t, g: [g[0]]
        )

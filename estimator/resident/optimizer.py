"""Bytes of optimizer states, and of temporaries of the optimizer's step, per GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.specs import Dtype, Optimizer

EIGHT_BIT_BLOCK = 256
"""Elements that share one float32 absmax in 8-bit states: bitsandbytes 0.50, optim/optimizer.py, blockwise."""
EIGHT_BIT_MINIMUM = 4096
"""Tensors with fewer elements keep float32 states: bitsandbytes 0.50, optim/optimizer.py, ``min_8bit_size``."""
PAGED_MINIMUM = 100_000
"""Tensors with fewer elements are not paged: bitsandbytes 0.50, optim/optimizer.py, ``get_state_buffer``."""

LOW_RANK = 128
"""Rank of GaLore's and APOLLO's projections: transformers 5.23, trainer_optimizer.py, without ``optim_args``."""


class Trainable(NamedTuple):
    """One trained tensor, and its multiplicity."""

    shape: tuple[int, ...]
    width: int
    """Bytes per element."""
    alike: int
    is_embedding: bool = False
    is_linear: bool = False
    """The matrix of an ``nn.Linear``, which GaLore and APOLLO project."""

    @property
    def bytes(self) -> int:
        """Bytes of one, as allocated."""
        return allocated(elements(self.shape) * self.width)


class States(NamedTuple):
    """Bytes of states inside torch's allocator, and in bitsandbytes' managed memory outside it."""

    resident_bytes: int
    paged_bytes: int
    from_start: int = 0
    """Of the resident ones, those that exist before the first step."""


class StateTensors(NamedTuple):
    """One trained tensor's states."""

    resident: tuple[int, ...]
    """Bytes of each inside torch's allocator, in the order in which they are made."""
    paged_bytes: int = 0

    @property
    def resident_bytes(self) -> int:
        """Bytes of all inside torch's allocator."""
        return sum(self.resident)


Rule = Callable[[Trainable, int], StateTensors]
"""One tensor's states, given the bytes per element of states in the parameter's dtype."""


def _of_the_parameter(number: int, *counters: int) -> Rule:
    """Counters on the GPU, of so many bytes each, and ``number`` tensors like the parameter."""

    def states(tensor: Trainable, width: int) -> StateTensors:
        each = allocated(elements(tensor.shape) * width)
        return StateTensors((*counters, *[each] * number))

    return states


def _bitsandbytes(*buffers: int, eight_bit: bool = False, paged: bool = False) -> Rule:
    """Buffers whose sizes are multiples of the parameter's elements, and their scales, which are always resident."""

    def states(tensor: Trainable, width: int) -> StateTensors:
        count = elements(tensor.shape)
        packed = eight_bit and count >= EIGHT_BIT_MINIMUM and not tensor.is_embedding
        each = 1 if packed else 4
        codes = tuple(allocated(each * times * count) for times in buffers)
        blocks = 4 * ceil_div(count, EIGHT_BIT_BLOCK)
        scales = tuple(allocated(times * blocks) for times in buffers) if packed else ()
        away = paged and count >= PAGED_MINIMUM
        return StateTensors(scales, sum(codes)) if away else StateTensors((*codes, *scales))

    return states


def _torchao(bits: int) -> Rule:
    """Two moments of codes, a scale for each block and a table of all values; of small or odd tensors, as they are."""

    def states(tensor: Trainable, width: int) -> StateTensors:
        count = elements(tensor.shape)
        if not _in_blocks(count):
            return StateTensors((allocated(count * tensor.width),) * 2)
        sizes = bits * count // 8, 4 * count // EIGHT_BIT_BLOCK, 4 * 2**bits
        return StateTensors(tuple(map(allocated, sizes)) * 2)

    return states


def _in_blocks(count: int) -> bool:
    return count >= EIGHT_BIT_MINIMUM and count % EIGHT_BIT_BLOCK == 0


def _adafactor(tensor: Trainable, width: int) -> StateTensors:
    # float32 means of rows and of columns, or of every element, and the root of the weight's mean square, a scalar:
    # transformers 5.23, optimization.py, Adafactor.step (beta1 None: no first moment; state["RMS"])
    return StateTensors((*map(allocated, _means(tensor.shape)), allocated(4)))


def _means(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes of Adafactor's means of squares: of rows and of columns of the last two dimensions; of vectors whole."""
    if len(shape) < MATRIX:
        return (4 * elements(shape),)
    stack = elements(shape[:-2])
    return 4 * stack * shape[-2], 4 * stack * shape[-1]


MATRIX = 2
"""Dimensions of a matrix."""


def _adafactor_step(tensors: Iterable[Trainable]) -> int:
    """Peak of a loop over tensors in their order, each of which finds the update of the one before it.

    16 · n   the update in float32, what it is computed from, and copies of a 16-bit gradient and weight
             beside it 4 · n of the tensor before, or a factor of every row and of every column
    """
    peak = before = 0
    for tensor in tensors:
        size = elements(tensor.shape)
        factors = sum(_means(tensor.shape)) if len(tensor.shape) >= MATRIX else 0
        peak = max(peak, size * (16 if tensor.width < 4 else 8) + max(before, factors))
        before = 4 * size
    return peak


def _stable_adamw(tensor: Trainable, width: int) -> StateTensors:
    # a third tensor holds the rounding errors of 16-bit weights; ε², a flag and a mean are on the GPU too:
    # torch-optimi 0.3.3, stableadamw.py, _init_state (kahan_sum None, Triton)
    scalars = allocated(4), allocated(4)
    return _of_the_parameter(3 if tensor.width < 4 else 2, *scalars)(tensor, width)


def _low_rank(shape: tuple[int, ...]) -> tuple[int, int]:
    """Elements of a projected gradient, longer side · r, and of its projector, r · shorter side."""
    rank = min(LOW_RANK, *shape)
    return rank * max(shape), rank * min(shape)


def _galore(tensor: Trainable, width: int) -> StateTensors:
    if not tensor.is_linear:
        return _of_the_parameter(2)(tensor, tensor.width)
    low, projector = _low_rank(tensor.shape)
    # a slice of the singular vectors is a view that keeps all of them, unless a cast to 16 bits copies it
    kept = projector if tensor.width < 4 else min(tensor.shape) ** 2
    return StateTensors(tuple(allocated(size * tensor.width) for size in (kept, low, low)))


def _apollo(tensor: Trainable, width: int) -> StateTensors:
    if not tensor.is_linear:
        return _of_the_parameter(2)(tensor, tensor.width)
    low, projector = _low_rank(tensor.shape)
    sizes = (projector, low, low, 1)  # and the norm of the last step
    return StateTensors(tuple(allocated(size * tensor.width) for size in sizes))


def _low_rank_step(tensors: Iterable[Trainable], optim: Optimizer) -> int:
    """Peak of a loop over tensors in their order, in which each tensor's leftovers live until the next replaces them.

    The peak is in the update of the largest matrix's projector, or in a full-size update.
    """
    peak = left = 0
    for tensor in tensors:
        peak = max(peak, _update(tensor), _renewal(tensor, optim) + left)
        left = _left_behind(tensor)
        if tensor.alike > 1:
            peak = max(peak, _renewal(tensor, optim) + left)
    return peak


def _left_behind(tensor: Trainable) -> int:
    """Denominator and update. For a projected gradient only the update has full size."""
    size = elements(tensor.shape) * tensor.width
    if not tensor.is_linear:
        return 2 * size
    return size + _low_rank(tensor.shape)[0] * tensor.width


def _update(tensor: Trainable) -> int:
    size = elements(tensor.shape) * tensor.width
    if not tensor.is_linear:
        return size * (3 if tensor.alike > 1 else 2)
    return 2 * size + 3 * _low_rank(tensor.shape)[0] * tensor.width


def _renewal(tensor: Trainable, optim: Optimizer) -> int:
    if not tensor.is_linear:
        return 0
    size, shorter = elements(tensor.shape), min(tensor.shape)
    low, projector = _low_rank(tensor.shape)
    in_float32 = 4 * size if tensor.width < 4 else 0
    if not RULES[optim].decomposes:  # random numbers, and the same divided by √r
        return in_float32 + 2 * 4 * projector
    factors = (
        4 * size + 4 * shorter**2 + 4 * shorter
    )  # both sets of singular vectors, and the values
    diagonal = 4 * min(LOW_RANK, shorter) ** 2  # of the values, freed when the projector is cast
    cast = tensor.width * projector if tensor.width < 4 else 0
    return in_float32 + factors + 4 * low + max(diagonal, cast)


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """What one optimizer keeps for each trained tensor, and the temporaries of its step."""

    states: Rule
    takes_parameter_dtype: bool = False
    """Whether its states have the parameter's dtype, so a what-if dtype applies."""
    step_copies: int = 0
    """Temporaries of a foreach optimizer at its peak, in tensors like one state of every parameter."""
    steps_differ: bool = False
    """Whether what a step asks for depends on the step, beside the states that the first one makes."""
    sums_rows: bool = False
    """Whether its step sums rows, for which a kernel takes memory by the card."""
    is_fused: bool = True
    """Whether one kernel reads and writes each weight once."""
    starts_with_states: bool = False
    """Whether states are made with the optimizer: torch 2.13, optim/adagrad.py, ``__init__``."""
    between_kernels: tuple[int, ...] = ()
    """Of a compiled step, the tensors between its kernels, one matrix after the other: bytes of an element of each."""
    projects: bool = False
    """Whether it keeps states of gradients projected to a low rank."""
    decomposes: bool = False
    """Whether a projection is renewed by singular values, for which cuSOLVER takes a workspace."""


_ONE_COUNTER = allocated(4)
_PYTORCH = partial(OptimizerRule, takes_parameter_dtype=True)
RULES: dict[Optimizer, OptimizerRule] = {
    # the fused kernel keeps its step counter, one float32, on the GPU: torch 2.13, optim/adam.py, _init_group
    Optimizer.ADAMW_TORCH_FUSED: _PYTORCH(_of_the_parameter(2, _ONE_COUNTER)),
    Optimizer.ADAMW_TORCH: _PYTORCH(_of_the_parameter(2), step_copies=1, is_fused=False),
    Optimizer.ADAMW_BNB_8BIT: OptimizerRule(_bitsandbytes(1, 1, eight_bit=True)),
    Optimizer.PAGED_ADAMW_8BIT: OptimizerRule(_bitsandbytes(1, 1, eight_bit=True, paged=True)),
    Optimizer.PAGED_ADAMW_32BIT: OptimizerRule(_bitsandbytes(1, 1, paged=True)),
    # what inductor writes for a matrix: both moments in float32, and for 4 bits the codes of both as int64
    Optimizer.ADAMW_TORCH_8BIT: OptimizerRule(_torchao(8), is_fused=False, between_kernels=(4, 4)),
    Optimizer.ADAMW_TORCH_4BIT: OptimizerRule(
        _torchao(4), is_fused=False, between_kernels=(4, 4, 8, 8)
    ),
    Optimizer.ADAFACTOR: OptimizerRule(_adafactor, sums_rows=True, is_fused=False),
    Optimizer.SGD: OptimizerRule(_of_the_parameter(0)),
    Optimizer.SGD_MOMENTUM: _PYTORCH(_of_the_parameter(1)),
    Optimizer.LION_32BIT: OptimizerRule(_bitsandbytes(1)),
    Optimizer.LION_8BIT: OptimizerRule(_bitsandbytes(1, eight_bit=True)),
    Optimizer.PAGED_LION_32BIT: OptimizerRule(_bitsandbytes(1, paged=True)),
    Optimizer.PAGED_LION_8BIT: OptimizerRule(_bitsandbytes(1, eight_bit=True, paged=True)),
    # a fast and a slow mean in one buffer: bitsandbytes 0.50, optim/ademamix.py, _get_state_double_buffer
    Optimizer.ADEMAMIX: OptimizerRule(_bitsandbytes(2, 1)),
    Optimizer.ADEMAMIX_8BIT: OptimizerRule(_bitsandbytes(2, 1, eight_bit=True)),
    Optimizer.PAGED_ADEMAMIX_32BIT: OptimizerRule(_bitsandbytes(2, 1, paged=True)),
    Optimizer.PAGED_ADEMAMIX_8BIT: OptimizerRule(_bitsandbytes(2, 1, eight_bit=True, paged=True)),
    Optimizer.RMSPROP_BNB: OptimizerRule(_bitsandbytes(1)),
    Optimizer.RMSPROP_BNB_8BIT: OptimizerRule(_bitsandbytes(1, eight_bit=True)),
    Optimizer.RMSPROP: _PYTORCH(_of_the_parameter(1), step_copies=1),
    Optimizer.ADAGRAD: _PYTORCH(_of_the_parameter(1), step_copies=2, starts_with_states=True),
    Optimizer.STABLE_ADAMW: _PYTORCH(_stable_adamw),
    # z, the weights without averaging, and a second moment (sgd: z alone): schedulefree 1.4.1, *_schedulefree.py, step
    Optimizer.SCHEDULE_FREE_ADAMW: _PYTORCH(_of_the_parameter(2), step_copies=1),
    Optimizer.SCHEDULE_FREE_RADAM: _PYTORCH(_of_the_parameter(2), step_copies=1),
    Optimizer.SCHEDULE_FREE_SGD: _PYTORCH(_of_the_parameter(1)),
    Optimizer.GALORE_ADAMW: OptimizerRule(_galore, projects=True, decomposes=True),
    Optimizer.APOLLO_ADAMW: OptimizerRule(_apollo, projects=True, steps_differ=True),
}
"""One row per optimizer."""
PAGED = frozenset(optimizer for optimizer in Optimizer if optimizer.startswith("paged"))
"""Optimizers whose large states are in memory that the driver pages between GPU and host."""
LOW_RANK_OPTIMIZERS = frozenset(optimizer for optimizer in RULES if RULES[optimizer].projects)
"""Optimizers that keep states of projected gradients."""
LOW_BIT_OPTIMIZERS = frozenset(optimizer for optimizer in RULES if RULES[optimizer].between_kernels)
"""torchao's, whose compiled step unpacks one tensor's states at a time."""


def state_rule(optim: Optimizer) -> Rule:
    """The rule for one tensor's states in bytes, resident and paged.

    Source: derived, one rule per optimizer; see ``optimizer_states`` for the sources.
    """
    return RULES[optim].states


def optimizer_states(
    tensors: Iterable[Trainable], optim: Optimizer, state_dtype: Dtype | None
) -> States:
    """Bytes of all states after the first step.

    AdamW keeps two tensors, SGD with momentum, RMSprop and Adagrad one in the parameter's dtype; bitsandbytes'
    optimizers always use float32; the 8-bit ones use 1 + 4/256 bytes per element of a state, but float32 for small
    tensors and embeddings; torchao's 1 + 4/256 or 1/2 + 4/256, but the parameter's dtype for small or odd tensors;
    Adafactor rows + columns in float32. Scales are never paged. GaLore and APOLLO keep AdamW's
    two of a linear's gradient projected to rank 128, and the projector, which in float32 is a view of all singular
    vectors.

    Source: torch 2.13, optim/adam.py, sgd.py, rmsprop.py and adagrad.py; bitsandbytes 0.50, optim/optimizer.py,
    ``init_state`` and ``get_state_buffer``, and optim/ademamix.py; schedulefree 1.4.1; torch-optimi 0.3.3; galore-torch
    1.0, adamw.py and galore_projector.py; apollo-torch 1.0.3, apollo.py and random_projector.py;
    torchao 0.18, optim/adam.py, ``_new_buffer``, subclass_8bit.py and subclass_4bit.py, ``zeros``;
    transformers 5.23, optimization.py, ``Adafactor``, trainer_optimizer.py (which class, with which arguments), and
    trainer.py (embeddings registered for 32-bit states).

    >>> optimizer_states([Trainable((4096, 4096), 2, 1)], Optimizer.ADAMW_TORCH, None).resident_bytes == 4 * 4096**2
    True
    """
    resident = paged = 0
    of = RULES[optim]
    for tensor in tensors:
        what_if = state_dtype is not None and of.takes_parameter_dtype
        width = state_dtype.bytes if what_if and state_dtype is not None else tensor.width
        states = of.states(tensor, width)
        resident += tensor.alike * states.resident_bytes
        paged += tensor.alike * states.paged_bytes
    return States(resident, paged, resident if of.starts_with_states else 0)


def state_tensors(
    tensor: Trainable, optim: Optimizer, state_dtype: Dtype | None
) -> tuple[int, ...]:
    """Bytes of each state of one trained tensor on the GPU, in the order in which the optimizer makes them.

    Fused AdamW's counter comes first, Adafactor keeps rows before columns, bitsandbytes all codes before their scales,
    GaLore and APOLLO the projector first.

    Source: torch 2.13, optim/adam.py, ``_init_group``; bitsandbytes 0.50, optim/optimizer.py, ``init_state``;
    transformers 5.23, optimization.py, ``Adafactor.step``; apollo-torch 1.0.3, apollo.py, ``step``.

    >>> state_tensors(Trainable((1024, 1024), 2, 1), Optimizer.ADAMW_TORCH_FUSED, None)
    (512, 2097152, 2097152)
    """
    of = RULES[optim]
    what_if = state_dtype is not None and of.takes_parameter_dtype
    width = state_dtype.bytes if what_if and state_dtype is not None else tensor.width
    return of.states(tensor, width).resident


def between_kernels(tensor: Trainable, optim: Optimizer) -> tuple[int, ...]:
    """Bytes of each temporary of one tensor's compiled step, in the order in which they are taken.

    Of a matrix in 8 or 4 bits the scales of both moments, and both moments in float32, before they are rounded; in 4
    bits also both moments' codes as int64. A vector's step is one kernel.

    Source: torchao 0.18, optim/adam.py, ``single_param_adam``; the code that torch 2.13's inductor writes for it.

    >>> between_kernels(Trainable((1024, 1024), 2, 1), Optimizer.ADAMW_TORCH_8BIT)
    (16384, 16384, 4194304, 4194304)
    """
    count = elements(tensor.shape)
    widths = RULES[optim].between_kernels
    if not widths or not _in_blocks(count) or len(tensor.shape) < MATRIX:
        return ()
    scales = (4 * count // EIGHT_BIT_BLOCK,) * 2
    return tuple(map(allocated, (*scales, *(width * count for width in widths))))


def step_transient(
    tensors: Iterable[Trainable], optim: Optimizer, state_dtype: Dtype | None
) -> int:
    """Peak bytes of temporaries in ``optimizer.step()``, in addition to weights, gradients and states.

    Foreach AdamW: a square root of every second moment at once; Adagrad: also the scaled gradients. Adafactor, whose
    tensors come in the order of its loop: float32 copies of one tensor's gradient and weight and two working tensors,
    16 bytes per element (8 if they already are float32), beside the update of the tensor before. Fused and
    bitsandbytes' kernels: none. torchao's: what ``between_kernels`` says of the largest matrix. GaLore, in a step that
    updates its projectors: float32 copy, singular vectors and values of the largest matrix, plus leftovers of the
    previous tensor; APOLLO: only the copy.

    Leaves out: cuSOLVER's scratch memory in GaLore's decomposition.

    Source: torch 2.13, optim/adam.py, ``_multi_tensor_adam`` (``_foreach_sqrt``), adagrad.py, rmsprop.py; schedulefree
    1.4.1, ``step``; transformers 5.23, optimization.py, ``Adafactor.step``.

    >>> step_transient([Trainable((1024, 1024), 2, 3)], Optimizer.ADAMW_TORCH, None) == 3 * 2 * 1024**2
    True
    """
    tensors = list(tensors)
    if not tensors:  # a GPU without trained tensors
        return 0
    if optim in LOW_RANK_OPTIMIZERS:
        return _low_rank_step(tensors, optim)
    if copies := RULES[optim].step_copies:
        width = state_dtype.bytes if state_dtype is not None else None
        each = sum(t.alike * allocated(elements(t.shape) * (width or t.width)) for t in tensors)
        return copies * each
    if RULES[optim].sums_rows:
        return _adafactor_step(tensors)
    return max(sum(between_kernels(tensor, optim)) for tensor in tensors)

"""Seconds of a step and hours of a run, as a range with its reasons.

A step is a list of parts: matrix products by their operations, by the bytes they read and write and by the tiles they
fill; attention by its kernel; everything between them by the bytes that the tape counts; the optimizer and
dequantisation by theirs; communication by links. Each part has a fast and a slow end, and the ends add up, because one
stream runs the parts in sequence. The host launches one operator after another beside the GPU, so the longer of the two
decides.

Nine in ten published runs lie between the sums. Constants marked "fitted" come from data/throughput.csv, where no
kernel benchmark gives them; ``benchmarks/fit_throughput.py`` prints them, and how well they hold for sources that they
were not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from estimator.families.counts import experts_run, layer_model
from estimator.families.delta_net import CHUNK
from estimator.families.layer_kinds import LINEAR_ATTENTION
from estimator.families.liger import loss_of
from estimator.objectives.batch import passed_rows, passes_without_grad, rows_per_example
from estimator.parallel.network import GIGA, exchange_seconds, links, replicas, shards
from estimator.parallel.offload import offloads
from estimator.resident.model import Resident
from estimator.time.flops import (
    FORWARD,
    Matrices,
    Work,
    attended_pairs,
    delta_products,
    is_eager,
    matrices,
    mixers,
    replayed,
    scan_products,
    scored_share,
    trains_whole,
    work,
)
from estimator.time.offload_time import offload_parts, saved_tensor_parts, steps_on_host
from estimator.time.own_reading import paced
from estimator.time.traffic import traffic
from estimator.values.arithmetic import StandIn, ceil_div, larger, real, smaller, total
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.precision import Precision
from estimator.values.results import TERA, RunTime, TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    RATES,
    AttnImplementation,
    Dtype,
    Gpu,
    Loss,
    MixedPrecision,
    Model,
    Objective,
    Optimizer,
    Strategy,
)

# --- matrix products ----------------------------------------------------------------------------

FAST_SHARE: Mapping[str, float] = MappingProxyType(
    {"Ampere": 0.95, "Hopper": 0.87, "Ada Lovelace": 0.93, "Blackwell": 1.01, "Gaudi": 0.8}
)
"""Share of the best measured rate that matrix products reach in the faster published runs, by ``Gpu.architecture``.
fitted: data/throughput.csv, 2026-11: the closest two shares between which 93 % of a generation's rows lie, rounded
outwards."""
FAST_SHARE_ELSEWHERE = 0.95
"""The same if too few runs were published: that of all generations together."""
SLOW_SHARE: Mapping[str, float] = MappingProxyType(
    {"Ampere": 0.65, "Hopper": 0.715, "Ada Lovelace": 0.625, "Blackwell": 0.68, "Gaudi": 0.33}
)
"""The same in the slower runs. fitted, likewise. Ampere has 311 rows, Hopper 57, Ada Lovelace 26, Gaudi 22, Blackwell
17."""
SLOW_SHARE_ELSEWHERE = 0.53
"""The same if too few runs were published. fitted: the three rows of CDNA 3 and Blackwell Ultra reach it, and 19 of
Volta's 22, from two sources, which have no shares of their own because the rest wait for their network."""
FAST_MOVES, SLOW_MOVES = 0.6, 1.3
"""Seconds that products take for moving their matrices, as multiples of bytes over bandwidth, besides their operations:
a kernel loads the next tile while it multiplies this one, which hides part of it. fitted, within 0.5 and 2."""
HALF_WAVE = 128 * 256 * 108 // 2
"""Elements of half a wave of tiles, which a product's last wave leaves idle on average at the slow end: tiles of
128 × 256 on an A100's 108 multiprocessors. NVIDIA, Matrix Multiplication Background User's Guide, "Tile quantization"
and "Wave quantization"."""
HALF_TILE = 64
"""Rows by which each expert's tokens fall short of whole tiles of 128, on average: the same guide."""
FAST_SKINNY, SLOW_SKINNY = 0.3, 0.8
"""Seconds of LoRA's two thin products as multiples of the bytes that they read and write over the bandwidth: caches
hold what the product beside them has just read. fitted."""
FAST_FLASH, SLOW_FLASH = 0.68, 0.43
"""Share of the dense rate that attention reaches, forward and backward. FlashAttention-2 on A100: 225 of 312 TFLOPS at
most: Dao 2023, arXiv:2307.08691, abstract; the slow end, short sequences and heads of 64: there, figures 4 to 6."""
FAST_FLASH_HOPPER, SLOW_FLASH_HOPPER = 0.65, 0.235
"""The same from Hopper on: FlashAttention-3 at most 740 of 989 TFLOPS forward and three quarters of that backward,
which with a checkpoint's second forward is 0.65; version 2 reaches 0.35 forward: Shah et al. 2024, arXiv:2407.08608,
abstract and figures 5 and 6. fitted within these."""
SINCE_HOPPER = frozenset({"Hopper", "Blackwell", "Blackwell Ultra"})

# --- memory traffic: bytes, in 16-bit compute ---------------------------------------------------

SLOW_BANDWIDTH_SHARE = 0.8
"""Share of the memory bandwidth that PyTorch's elementwise kernels reach at the slow end. Our assumption."""
FAST_WRITES, SLOW_WRITES = 1.15, 3.0
"""Seconds of the operators between products, as multiples of the bytes that they write over the bandwidth. Slow end: an
operator of one input moves 2 bytes per byte written, one of two inputs 3, at four fifths of the bandwidth. Fast end:
fused kernels (torch.compile, foak), which write less than half of what is counted. fitted, within these."""
FUSED_HIDDEN_BYTES = 12
"""Bytes per token and element of the hidden state, forward, fused kernels: two norms with the sum before them, each
2 bytes read (twice) and 2 written."""
FUSED_MLP_BYTES = 6
"""Bytes per token and element of the MLP's width, fused: gate and up read, their product written."""
EAGER_HIDDEN_BYTES = 84
"""The same, unfused: two RMS norms of 36 (cast 2+4, square 4+4, mean 4, scale 4+4, cast 4+2, weight 2+2+2, and the
rows' factors) and two sums of 6. transformers 5.23, models/llama/modeling_llama.py."""
EAGER_MLP_BYTES = 10
"""The same, unfused: activation 2+2, product 2+2+2."""
EAGER_ROTARY_BYTES = 20
"""Bytes per token and element of queries and keys: two products 2+2, negated and joined halves 2+4, a sum of 6."""
ADAPTER_CAST_BYTES = 12
"""Bytes per token and input of an adapted linear, with float32 adapters under autocast: to float32 2+4, back 4+2. peft
0.21, tuners/lora/layer.py, ``Linear.forward``."""
DROPOUT_BYTES = 5
"""Bytes per token and input: 2 read, 2 written, 1 for the mask; twice the first two if the input was cast to
float32."""
ADAPTER_OUTPUT_BYTES = 12
"""Bytes per token and output of an adapted linear: B's result 2, scaled 2+2, added 2+2+2."""
DORA_WEIGHT_BYTES = 34
"""Bytes per element of an adapted weight and call: to float32 2+4, B @ A written 4, scaled 4+4, summed 4+4+4, norm 4.
peft 0.21, tuners/lora/dora.py, ``DoraLinearLayer.forward``."""
FUSED_LOSS_BYTES = 4
"""Bytes per token and word of the vocabulary, at best: logits written and read once, in a fused head."""
PLAIN_LOSS_BYTES = 12
"""The same with whole logits in a fused cross-entropy: logits 2, read 2 and 2, gradient 2, into two products 2+2."""
EAGER_LOSS_BYTES = 42
"""The same, unfused: logits 2, to float32 2+4, log-softmax 4+4; backward: gradient 4, log-softmax 4+4+4, back to 16
bits 4+2, into two products 2+2. transformers 5.23, loss/loss_utils.py."""
SCORE_BYTES = 24
"""Bytes per score of eager attention: product 2, scaled 2+2, masked 2+2, softmax in float32 2+4, back 4+2, second
product 2. transformers 5.23, ``eager_attention_forward``."""
FUSED_SCORE_BYTES = 8
"""The same at best: written, read by the softmax, written, read."""
CAST_WEIGHT_BYTES = 6
"""Bytes per element when autocast casts a float32 weight to 16 bits, and when backward casts its gradient back."""
ADDED_GRADIENTS = 3
"""Memory passes over the gradients in each micro-batch but the first, which adds to them in place: torch 2.13,
torch/csrc/autograd/functions/accumulate_grad.h."""
WHOLE_GRADIENTS = frozenset({Strategy.NONE, Strategy.DDP, Strategy.ZERO1, Strategy.DEVICE_MAP})
"""Strategies under which a GPU adds up the gradients of all its weights, not those of its shard."""
PACKED_BYTES, UNPACKED_BYTES = 0.5, 2
"""Bytes per element read from a 4-bit weight and written in 16 bits."""
BACKWARD_TRAFFIC = 2
"""Backward over forward traffic: a gradient read and written for every value, and the value read again. derived."""

FAST_DEQUANTISATION, SLOW_DEQUANTISATION = 2.0, 9.0
"""Seconds as multiples of the roofline. fitted: LitGPT on A100, 120 tokens per step, nf4 minus 16-bit LoRA: 79 ms for
two passes over 6.5·10⁹ weights (Llama 2 7B, 5 times) to 215 ms over 12.7·10⁹ (13B, 7 times); GPTQ in Qwen's table up
to 9. https://github.com/Lightning-AI/litgpt/blob/26857050/tutorials/resource-tables.md"""

# --- gated delta-nets, a row (a token of a head of values), in float32 -----------------------------

DELTA_KEY_BYTES = 136
"""Bytes per row and element of its key, kernel by kernel: repeated 8, cast 12, two norms 40, scaled 8, padded 16, times
rate and decay three times 24, solved for 8, read chunk by chunk 12, queries likewise 8. transformers 5.23,
models/qwen3_5/modeling_qwen3_5.py, ``torch_chunk_gated_delta_rule``."""
DELTA_VALUE_BYTES = 128
"""Bytes per row and element of its value: cast 6, padded 8, times rate 8, solved for 8, zeros 4, the loop's products
and sums 48, reshaped 8, cast 6, normalised and gated 32."""
DELTA_PAIR_BYTES = 64
"""Bytes per row and token of its chunk: decays 20, two products 8, decayed 24, solved with 8, read 4."""
DELTA_STATE_BYTES = 36
"""Bytes per chunk and element of the state: read three times, decayed 8, corrected 16."""
DELTA_SLICE_BYTES = 16
"""Bytes in backward per iteration and element of the sliced tensor: the gradient is zero outside the slice (4), and
added to those of earlier iterations (12). This grows with the square of the length."""
DELTA_COPY_BYTES = 8
"""Bytes in backward per iteration and element of the output: the whole gradient is copied for the written slice."""
DELTA_FORWARD_KERNELS, DELTA_BACKWARD_KERNELS = 9, 37
"""Kernels of one iteration, from a trace with transformers 5.23, torch 2.13."""

# --- state spaces, a token, in float32 -------------------------------------------------------------

SCAN_PAIR_BYTES = 48
"""Bytes per head and token of its chunk, kernel by kernel: masked 4, summed 8, masked 8, exponential 8, C × B
4, decayed 12, read 4. transformers 5.23, models/granitemoehybrid/modeling_granitemoehybrid.py,
``mamba2_chunk_scan``."""
SCAN_VALUE_BYTES = 170
"""Bytes per element of all heads' values: cast 6, padded twice 16, times D and times the step 16, copied twice 16,
three products 16, decayed 8, two sums 24, copied 8; gated and normalised 60."""
SCAN_STATE_BYTES = 80
"""Bytes per element of all heads' B, and the same for C: repeated 8, padded 16, copied 24, decayed 8, products 24."""
SCAN_CHANNEL_BYTES = 12
"""Bytes per channel of the convolution, in 16 bits: made contiguous 4, convolved 4, activated 4."""
SCAN_CHUNK_BYTES = 40
"""Bytes per chunk and element of its state: created 4, joined 8, copied twice 16, passed on 8, read 4."""

# --- the optimizer, and the host ----------------------------------------------------------------

OPTIMIZER_STEP = "optimizer step"
ASKED = "passes without gradients"
FOREACH_PASSES = 20 / 7
"""Memory passes of foreach AdamW relative to the fused kernel's seven: torch 2.13, optim/adam.py,
``_multi_tensor_adam``: mul 2, lerp 3, mul 2, addcmul 3, sqrt 2, div 2, add 2, addcdiv 4."""
UNFUSED = frozenset({Optimizer.ADAMW_TORCH, Optimizer.ADAFACTOR})
FAST_OPERATOR, SLOW_OPERATOR = 10e-6, 25e-6
"""Seconds for the host to launch an operator: Python, dispatch, autograd and the kernel. An empty kernel takes 4 to 5
µs; modules, hooks and the allocator add the rest. fitted: the small steps of data/throughput.csv: PEFT 13 µs (2026,
L40S), Qwen 14 to 25 µs (PyTorch 2.0, A100)."""
SLOW_OPERATOR_SHARED = 1.5
"""Factor for several GPUs at the slow end, because of hooks and collectives. fitted: Qwen's rows."""
SLOW_HOOK = 300e-6
"""Seconds for DeepSpeed's stage 3 to fetch and release a module's weights, per call, at the slow end; none at best,
where they are prefetched. fitted: Qwen-7B, full, 256 tokens, 12 ms per layer of seven modules called four times.
deepspeed 0.19.6, runtime/zero/parameter_offload.py, ``_register_deepspeed_module``."""


class Sharing(Enum):
    """What is sharded, which determines the communication."""

    REPLICAS = "everything on each GPU, as in DDP"
    STATES = "sharded optimizer states, as in ZeRO 1 and 2"
    WEIGHTS = "sharded weights too, as in ZeRO 3 and FSDP"
    GATHERED_ONCE = "sharded weights that stay gathered until backward, as in FSDP's shard_grad_op"
    LAYERS = "layers on different GPUs that work in turn, as in a device map"


SHARING_OF_STRATEGY: Mapping[Strategy, Sharing] = {
    Strategy.NONE: Sharing.REPLICAS,
    Strategy.DDP: Sharing.REPLICAS,
    Strategy.ZERO1: Sharing.STATES,
    Strategy.ZERO2: Sharing.STATES,
    Strategy.ZERO3: Sharing.WEIGHTS,
    Strategy.FSDP: Sharing.WEIGHTS,
    Strategy.FSDP_GRAD_OP: Sharing.GATHERED_ONCE,
    Strategy.HSDP: Sharing.WEIGHTS,
    Strategy.DEVICE_MAP: Sharing.LAYERS,
}
"""What each strategy shards."""


class Rates(NamedTuple):
    """Rates of a GPU."""

    peak: float
    """Operations per second in the datasheet, dense, in the compute dtype."""
    best: float
    """Best measured operations per second of matrix products."""
    slow: float
    """The same in slower published runs."""
    bandwidth: float
    """Bytes per second."""
    float32: float
    """Operations per second in float32; ``slow`` if the datasheet does not say."""
    fast: float
    """Operations per second of matrix products in faster published runs."""
    flash_fast: float
    """Operations per second of attention, fast end."""
    flash_slow: float
    """The same, slow end."""


def compute_dtype(precision: Precision) -> Dtype:
    """The dtype that matrix products run in (no unit): autocast's, or the weights' own.

    Source: torch 2.13, torch/amp/autocast_mode.py; bitsandbytes 0.50, nn/modules.py, ``Linear4bit.forward``.

    >>> compute_dtype(TrainingSetup()).value
    'bfloat16'
    """
    match precision.mixed_precision:
        case MixedPrecision.BF16:
            return Dtype.BFLOAT16
        case MixedPrecision.FP16:
            return Dtype.FLOAT16
        case _:
            return precision.dtype


def missing_rate(gpu: Gpu, setup: TrainingSetup) -> str | None:
    """Why no time can be given, in one sentence; None if it can.

    Source: data/gpus.csv (empty cells are unknown).

    >>> missing_rate(Gpu(name="card", memory_bytes=2**34, fp32_tflops=9), TrainingSetup())
    'No time is given: the bfloat16 rate of card is unknown (bf16_dense_tflops).'
    """
    dtype = compute_dtype(setup.precision)
    if all(getattr(gpu, name) is None for name in RATES):
        return (
            f"No time is given: the speed of {gpu.name} is unknown; set like to a catalogued card of the same speed, "
            f"or give {_RATE[dtype]} and memory_bandwidth_gb_per_s."
        )
    if gpu.slices > 1 and setup.mesh.num_gpus > 1:
        return (
            f"No time is given: {gpu.name} is a MIG slice, and slices have no link to one another; "
            "set num_gpus to 1."
        )
    if dtype is Dtype.BFLOAT16 and not gpu.supports_bf16:
        return f"No time is given: {gpu.name} has no bfloat16 units; set mixed_precision to fp16."
    if _dense_tflops(gpu, dtype) is None:
        return (
            f"No time is given: the {dtype.value} rate of {gpu.name} is unknown ({_RATE[dtype]})."
        )
    if gpu.memory_bandwidth_gb_per_s is None:
        return (
            f"No time is given: the memory bandwidth of {gpu.name} is unknown "
            "(memory_bandwidth_gb_per_s)."
        )
    return None


_RATE = {
    Dtype.BFLOAT16: "bf16_dense_tflops",
    Dtype.FLOAT16: "fp16_dense_tflops",
    Dtype.FLOAT32: "fp32_tflops",
}


def _dense_tflops(gpu: Gpu, dtype: Dtype) -> float | None:
    rates = {
        Dtype.BFLOAT16: gpu.bf16_dense_tflops,
        Dtype.FLOAT16: gpu.fp16_dense_tflops,
        Dtype.FLOAT32: gpu.fp32_tflops,
    }
    return rates[dtype]


def rates(gpu: Gpu, precision: Precision) -> Rates:
    """Operations and bytes per second of one GPU for this setup; the caller has checked ``missing_rate``.

    Source: data/gpus.csv, by row; ``sustained_tflops`` from its own source there.

    >>> card = Gpu(name="card", memory_bytes=2**34, bf16_dense_tflops=100, memory_bandwidth_gb_per_s=1000)
    >>> rates(card, TrainingSetup()).best == 100e12
    True
    """
    dtype = compute_dtype(precision)
    tflops, gb_per_s = _dense_tflops(gpu, dtype), gpu.memory_bandwidth_gb_per_s
    assert tflops is not None
    assert gb_per_s is not None
    measured = None if dtype is Dtype.FLOAT32 else gpu.sustained_tflops
    best = measured or tflops
    fast = best * FAST_SHARE.get(gpu.architecture, FAST_SHARE_ELSEWHERE)
    slow = best * SLOW_SHARE.get(gpu.architecture, SLOW_SHARE_ELSEWHERE)
    float32 = gpu.fp32_tflops or slow
    shares = FAST_FLASH, SLOW_FLASH
    if gpu.architecture in SINCE_HOPPER:
        shares = FAST_FLASH_HOPPER, SLOW_FLASH_HOPPER
    return Rates(
        peak=tflops * TERA,
        best=best * TERA,
        slow=slow * TERA,
        bandwidth=gb_per_s * GIGA,
        float32=float32 * TERA,
        fast=fast * TERA,
        flash_fast=min(best, shares[0] * tflops) * TERA,
        flash_slow=min(slow, shares[1] * tflops) * TERA,
    )


class Lengths(NamedTuple):
    """Rows and tokens as the GPU sees them."""

    rows_per_epoch: int
    """Examples, or packed rows."""
    mean: int
    """Tokens of text per example, at most those of a row."""
    fast: int
    """Tokens computed per row at best."""
    slow: int
    """At worst."""
    text: float
    """Tokens of text in a row."""


def lengths(setup: TrainingSetup) -> Lengths:
    """Rows per epoch and tokens per row; the work is examples times their mean length.

        packed   rows = ⌈examples · mean / max_length⌉, each of max_length tokens
        padded   rows = examples, from the mean length (batches of similar lengths) to max_length (padded to it)
        padding_free without packing   rows = examples, each of the mean length

    Source: derived; TRL, data_utils.py, ``pack_dataset``; transformers 5.23, data/data_collator.py.

    >>> lengths(TrainingSetup(num_train_examples=100, mean_tokens_per_example=256)).rows_per_epoch
    25
    """
    longest = setup.batch.max_length
    mean = setup.run.mean_tokens_per_example or longest
    examples = setup.run.num_train_examples
    if setup.batch.padding_free and not setup.batch.packing:
        mean = min(mean, longest)
        return Lengths(examples, mean, mean, mean, real(mean))
    if setup.batch.padded:
        mean = min(mean, longest)
        return Lengths(examples, mean, mean, longest, real(mean))
    rows = -(-examples * mean // longest)
    return Lengths(rows, min(mean, longest), longest, longest, examples * mean / rows)


def run_time(
    model: Model,
    gpu: Gpu,
    setup: TrainingSetup,
    resident: Resident,
    *,
    sharing: Sharing | None = None,
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
) -> RunTime:
    """Seconds per step and hours of the run, whole job; the caller has checked ``missing_rate``.

        steps per epoch = ⌈rows / (b · accumulation · GPUs)⌉,  steps = ⌈epochs · steps per epoch⌉

    ``resident``: memory of one GPU if nothing were sharded. ``sharing`` (None: the strategy's), ``link_gb_per_s`` and
    ``network_gb_per_s`` determine the communication, as in ``communication``.

    Leaves out: loading, evaluation, saving, a slow input pipeline, the first step's compilation and warm-up.
    Error: tests/test_throughput.py compares it with data/throughput.csv.
    Source: transformers 5.23, trainer.py, ``set_initial_training_values``.
    """
    rate, length = rates(gpu, setup.precision), lengths(setup)
    fast, slow = _works(model, setup, length)
    accumulation = setup.batch.gradient_accumulation_steps
    model_flops, least_model_flops = accumulation * slow.model, accumulation * fast.model
    # a card may be measured above its datasheet's rate, which then becomes its peak, so utilisation is at most 1
    peak = max(rate.peak, rate.best)
    if setup.run.mfu is not None:
        seconds = model_flops / (setup.run.mfu * peak)
        least_model_flops = model_flops  # the utilisation was measured on the actual work
        parts: tuple[TimePart, ...] = (TimePart("at the given utilisation", seconds, seconds),)
    else:
        parts = step_parts(model, setup, resident, rate, length, fast, slow)
        if setup.mesh.num_gpus > 1:
            shared = SHARING_OF_STRATEGY[setup.mesh.strategy] if sharing is None else sharing
            if shared is Sharing.LAYERS:
                parts = _one_after_another(
                    parts, model, setup, links(gpu, setup.mesh, link_gb_per_s).gpu
                )
            else:
                exchange = communication(
                    gpu,
                    setup,
                    resident,
                    sharing=shared,
                    link_gb_per_s=link_gb_per_s,
                    network_gb_per_s=network_gb_per_s,
                )
                parts = _exchanging(parts, setup.mesh, shared, exchange)
        if offloads(setup.mesh):
            parts = _with_offload(parts, model, gpu, setup)
        behind = total(part.low_seconds for part in parts if part.name != OPTIMIZER_STEP)
        parts = (*parts, *saved_tensor_parts(model, gpu, setup, behind))
        if setup.run.pace is not None:
            parts = paced(parts, setup.run.pace, setup.run.pace_shares)
    steps = -(-length.rows_per_epoch // setup.effective_batch_size)
    return RunTime(
        parts=parts,
        model_flops_per_step=model_flops,
        least_model_flops_per_step=least_model_flops,
        hardware_flops_per_step=accumulation * slow.hardware,
        peak_tflops=peak / TERA,
        tokens_per_step=smaller(setup.effective_batch_size, length.rows_per_epoch)
        * rows_per_example(setup)
        * length.text,
        steps_per_epoch=steps,
        total_steps=math.ceil(steps * setup.run.num_train_epochs),
        before=precomputation(model, gpu, setup, resident),
    )


def _exchanging(
    parts: tuple[TimePart, ...], mesh: Mesh, sharing: Sharing, exchange: TimePart
) -> tuple[TimePart, ...]:
    """The parts of a step on one of several GPUs: its share of the optimizer's work, and communication."""
    share = 1 if sharing is Sharing.REPLICAS else mesh.shard_ranks
    own = tuple(
        TimePart(name, low / share, high / share)
        if name == OPTIMIZER_STEP
        else TimePart(name, low, high)
        for name, low, high in parts
    )
    behind = total(part.low_seconds for part in own)
    return (*own, exchange._replace(low_seconds=larger(0.0, exchange.low_seconds - behind)))


def _with_offload(
    parts: tuple[TimePart, ...], model: Model, gpu: Gpu, setup: TrainingSetup
) -> tuple[TimePart, ...]:
    """The parts of a step with offloaded weights or states."""
    rest = tuple(it for it in parts if it.name != OPTIMIZER_STEP or not steps_on_host(setup.mesh))
    behind = total(part.low_seconds for part in rest if part.name != OPTIMIZER_STEP)
    return (*rest, *offload_parts(model, gpu, setup, behind))


def _one_after_another(
    parts: tuple[TimePart, ...],
    model: Model,
    setup: TrainingSetup,
    link: float,
) -> tuple[TimePart, ...]:
    """The parts of a step over a device map: those of one GPU, and copies between GPUs, which nothing overlaps.

    The optimizer's kernels are launched on every GPU before the first finishes, so at best all GPUs update in parallel.
    """
    own = tuple(
        TimePart(name, low / setup.mesh.num_gpus if name == OPTIMIZER_STEP else low, high)
        for name, low, high in parts
    )
    seconds = crossing_bytes(model, setup) / link
    return (*own, TimePart("copies between GPUs", seconds, seconds))


def crossing_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes copied between GPUs in an optimizer step over a device map.

        accumulation · T · (2 · (n - 1) · h + V) · p     n: GPUs, T: tokens of a micro-batch

    Hidden states forward and their gradients backward between neighbouring GPUs; all logits to the first GPU. A tied
    head is on the first GPU already, so the hidden states are copied there instead.

    Leaves out: masks and rotary tables; GPUs that hold no layer.
    Source: accelerate 1.15, hooks.py, ``AlignDevicesHook``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> crossing_bytes(TINY_LLAMA, TrainingSetup(num_gpus=2)) == 1024 * (2 * 8 + 10) * 2
    True
    """
    hops = setup.mesh.num_gpus - 1
    if model.is_tied:
        wide = 2 * (hops + 1) * model.hidden_size
    else:
        wide = 2 * hops * model.hidden_size + model.vocab_size
    return (
        setup.batch.gradient_accumulation_steps
        * setup.batch.tokens
        * wide
        * compute_dtype(setup.precision).bytes
    )


def _works(model: Model, setup: TrainingSetup, length: Lengths) -> tuple[Work, Work]:
    """The work of a micro-batch at best and at worst, which differ in padding and in pairs that the kernel skips."""
    eager = is_eager(model, setup.computation)
    if setup.batch.is_joined:
        only = work(model, setup, length.fast, pairs=_joined_pairs(model, setup, length))
        return only, only
    masked = setup.batch.padded or 0 < model.sliding_window <= length.slow
    skips = not eager and (
        setup.computation.attn_implementation is AttnImplementation.FLASH_ATTENTION_2 or not masked
    )
    slow_pairs = attended_pairs(model, length.slow, skips=skips)
    slow = work(model, setup, length.slow, pairs=slow_pairs)
    # packed examples do not attend to each other if the kernel knows their bounds
    example = length.fast if eager else length.mean
    pairs = attended_pairs(model, example, skips=not eager) * length.fast // example
    if (length.fast, pairs) == (length.slow, slow_pairs):
        return slow, slow
    return work(model, setup, length.fast, pairs=pairs), slow


def _joined_pairs(model: Model, setup: TrainingSetup, length: Lengths) -> int:
    """Pairs of a query and a key for each row of a micro-batch whose rows are joined into one.

    FlashAttention is told where each example begins; other kernels multiply all tokens with all and mask the result.
    """
    if setup.computation.attn_implementation is AttnImplementation.FLASH_ATTENTION_2:
        return attended_pairs(model, length.mean, skips=True) * length.fast // length.mean
    rows = setup.batch.per_device_train_batch_size
    return attended_pairs(model, rows * length.fast, skips=False) // rows


def step_parts(
    model: Model,
    setup: TrainingSetup,
    resident: Resident,
    rate: Rates,
    length: Lengths,
    fast: Work,
    slow: Work,
) -> tuple[TimePart, ...]:
    """The parts of an optimizer step on one GPU: seconds of each, low and high.

        products / rate + attention / rate + Σ traffic / bandwidth, plus any time waiting for the host

    Leaves out: overlap (a second stream, host work during GPU work); paged states that come from the host.
    Source: derived; the roofline of Williams et al. 2009, doi:10.1145/1498765.1498785, part by part.
    """
    sizes, times = matrices(model, setup.adapters), setup.batch.gradient_accumulation_steps
    again, asked = replayed(model, setup), passes_without_grad(setup)
    micro, is_trained = passed_rows(setup), trains_whole(setup)
    tokens_fast, tokens_slow = micro * length.fast, micro * length.slow
    once_fast = _moved(setup, sizes, tokens_fast, 1) * FAST_MOVES / rate.bandwidth
    once_slow = _moved(setup, sizes, tokens_slow, 1) * SLOW_MOVES / rate.bandwidth
    tiles = _idle(sizes, 1) / rate.best
    passes = 3 if is_trained else 2
    weight_gradients = FORWARD * HALF_WAVE * sizes.products * tokens_slow / rate.best
    written = _between(model, setup, length, rate, again)
    skinny = _skinny_bytes(setup, sizes) / rate.bandwidth
    dora = DORA_WEIGHT_BYTES * sizes.adapted if setup.adapters.use_dora else 0
    words = _scored_words(model, setup) * _width(setup.precision)
    is_whole = loss_of(model, setup) is Loss.STANDARD

    once = [
        TimePart(
            "matrix products",
            fast.products / rate.fast + passes * once_fast,
            slow.products / rate.slow
            + passes * once_slow
            + 2 * tiles
            + is_trained * weight_gradients,
        ),
        TimePart("attention", fast.attention / rate.flash_fast, slow.attention / rate.flash_slow),
        TimePart(
            "norms, activations, residuals",
            written.forward[0] + written.backward[0],
            written.forward[1] + written.backward[1],
        ),
        TimePart(
            "adapters",
            fast.adapters / rate.fast
            + 3 * FAST_SKINNY * tokens_fast * skinny
            + dora / rate.bandwidth,
            slow.adapters / rate.slow
            + 3 * SLOW_SKINNY * tokens_slow * skinny
            + dora / (SLOW_BANDWIDTH_SHARE * rate.bandwidth),
        ),
        TimePart(
            "recomputation",
            fast.products_again / rate.fast
            + fast.attention_again / rate.flash_fast
            + again * (once_fast + written.forward[0] + FAST_SKINNY * tokens_fast * skinny)
            + again * dora / rate.bandwidth,
            slow.products_again / rate.slow
            + slow.attention_again / rate.flash_slow
            + again * (once_slow + tiles + written.forward[1] + SLOW_SKINNY * tokens_slow * skinny)
            + again * dora / (SLOW_BANDWIDTH_SHARE * rate.bandwidth),
        ),
        TimePart(
            ASKED,
            fast.products_asked / rate.fast
            + fast.attention_asked / rate.flash_fast
            + asked * (once_fast + written.forward[0]),
            slow.products_asked / rate.slow
            + slow.attention_asked / rate.flash_slow
            + asked * (once_slow + tiles + written.forward[1]),
        ),
        _delta_nets(model, setup, length, again, rate),
        _scans(model, setup, length, again, rate),
        _dequantisation(setup, sizes, 2 + again + asked, rate),
        _casts(setup, sizes, 1 + again + asked + is_trained, rate),
        TimePart(
            "logits and loss",
            tokens_fast
            * words
            * (PLAIN_LOSS_BYTES if is_whole else FUSED_LOSS_BYTES)
            / rate.bandwidth,
            tokens_slow * words * EAGER_LOSS_BYTES / (SLOW_BANDWIDTH_SHARE * rate.bandwidth),
        ),
    ]
    parts = [
        TimePart(part.name, times * part.low_seconds, times * part.high_seconds)
        for part in once
        if _takes_time(part)
    ]
    parts += [_added(setup, resident, rate), _optimizer(setup, resident, rate)]
    calls = sizes.products * (passes + again + asked)
    parts.append(_launches(model, setup, length, parts, again + asked, written.operators, calls))
    return tuple(part for part in parts if _takes_time(part))


def _takes_time(part: TimePart) -> bool:
    """Whether a part is listed; a record lists it in any case, since no seconds add nothing."""
    seconds = part.low_seconds + part.high_seconds
    return isinstance(seconds, StandIn) or seconds > 0


def _moved(setup: TrainingSetup, sizes: Matrices, tokens: float, passes: int) -> float:
    """Bytes that matrix products read and write: weights, all experts', once a pass; inputs and outputs per token."""
    width = 2 * _width(setup.precision)
    return passes * width * (sizes.stored + tokens * (sizes.inputs + sizes.outputs))


def _idle(sizes: Matrices, passes: int) -> float:
    """Operations that tiles without work could have run in a pass: half a wave, and half a tile for each expert."""
    return passes * FORWARD * (HALF_WAVE * sizes.inputs + HALF_TILE * sizes.stacked)


def _skinny_bytes(setup: TrainingSetup, sizes: Matrices) -> int:
    """Bytes per token that LoRA's two products read and write in a pass, besides what has the width of the rank."""
    cast = setup.adapters.autocast_adapter_dtype and _width(setup.precision) == 1
    return (
        2
        * (2 if cast else _width(setup.precision))
        * (sizes.adapter_inputs + sizes.adapter_outputs)
    )


class _Between(NamedTuple):
    """Seconds of the operators between products in one micro-batch, fast and slow, and their number."""

    forward: tuple[float, float]
    """One forward pass."""
    backward: tuple[float, float]
    """Without recomputation."""
    operators: float


def _between(
    model: Model, setup: TrainingSetup, length: Lengths, rate: Rates, again: float
) -> _Between:
    micro, rows = passed_rows(setup), setup.batch.per_device_train_batch_size
    fused = micro * length.fast * _fused_bytes(model, setup.precision)
    scores_fast = _score_bytes(model, setup, length.fast)[0]
    scores_slow = _score_bytes(model, setup, length.slow)[1]
    moves = traffic(model, setup, again)
    if model.delta_net or model.state_space:  # whose loops are counted apart
        sizes = matrices(model, setup.adapters)
        eager = micro * length.slow * _eager_bytes(model, setup.precision)
        eager += micro * length.slow * _adapter_bytes(setup, sizes)
        slowest = eager / SLOW_BANDWIDTH_SHARE
        fastest = max(fused, slowest * FAST_WRITES / SLOW_WRITES)
        forward: tuple[float, float] = (fastest, slowest)
        backward: tuple[float, float] = (BACKWARD_TRAFFIC * fastest, BACKWARD_TRAFFIC * slowest)
    else:
        apart = rows * moves.image + moves.fixed
        ahead = rows * moves.forward
        # operators in place write without allocating, so backward moves at least what forward does
        back = rows * max(moves.backward, moves.forward)
        forward = (
            larger(fused, FAST_WRITES * (length.fast * ahead + apart)),
            larger(fused, SLOW_WRITES * (length.slow * ahead + apart)),
        )
        backward = (
            larger(BACKWARD_TRAFFIC * fused, FAST_WRITES * (length.fast * back + apart)),
            larger(BACKWARD_TRAFFIC * fused, SLOW_WRITES * (length.slow * back + apart)),
        )
    slow_scores = scores_slow / SLOW_BANDWIDTH_SHARE
    return _Between(
        ((forward[0] + scores_fast) / rate.bandwidth, (forward[1] + slow_scores) / rate.bandwidth),
        (
            (backward[0] + BACKWARD_TRAFFIC * scores_fast) / rate.bandwidth,
            (backward[1] + BACKWARD_TRAFFIC * slow_scores) / rate.bandwidth,
        ),
        moves.operators,
    )


def _scored_words(model: Model, setup: TrainingSetup) -> float:
    """Logits per token: the vocabulary or the labels; with a fused head, scored tokens only.

    ORPO reads those of the chosen half twice.
    """
    words = model.vocab_size if model.num_labels is None else model.num_labels
    if loss_of(model, setup) is Loss.CHUNKED_TRL:
        return words * scored_share(setup)
    return words * (1.5 if setup.task.objective is Objective.ORPO else 1)


def precomputation(
    model: Model, gpu: Gpu, setup: TrainingSetup, resident: Resident
) -> TimePart | None:
    """Seconds of running the reference model on every example before training; None without precomputation.

        rows of the training set / (b · GPUs) · seconds of the reference's pass

    This equals the extra time of steps that run the reference model themselves, once per example.

    Source: trl 1.16, trainer/dpo_trainer.py, ``_precompute_ref_logps`` (``precompute_ref_batch_size`` is b).
    """
    if not (setup.task.precompute_ref_log_probs and setup.task.objective.has_reference):
        return None
    rate, length = rates(gpu, setup.precision), lengths(setup)
    low, high = [0.0, 0.0], [0.0, 0.0]
    for index, is_before in enumerate((True, False)):
        one = replace(setup, precompute_ref_log_probs=is_before, gradient_accumulation_steps=1)
        parts = step_parts(model, one, resident, rate, length, *_works(model, one, length))
        low[index] = total(part.low_seconds for part in parts)
        high[index] = total(part.high_seconds for part in parts)
    calls = ceil_div(
        length.rows_per_epoch, setup.batch.per_device_train_batch_size * setup.mesh.replicas
    )
    return TimePart("reference precomputed", calls * (low[1] - low[0]), calls * (high[1] - high[0]))


def _width(precision: Precision) -> int:
    """Element widths as multiples of 16 bits."""
    return compute_dtype(precision).bytes // 2


class _Widths(NamedTuple):
    """Widths summed over all layers, in elements per token."""

    mlp: int
    """The MLP, or the experts in use."""
    turned: int
    """Queries and keys."""


@lru_cache(maxsize=1024)
def _widths(model: Model) -> _Widths:
    layers = [layer_model(model, index) for index in range(model.num_hidden_layers)]
    of_experts = experts_run(model) * model.moe_intermediate_size
    return _Widths(
        sum(of_experts or it.intermediate_size for it in layers),
        sum(it.query_size + it.key_value_size for it in layers),
    )


def _fused_bytes(model: Model, precision: Precision) -> int:
    """Bytes per token, all layers, one forward pass, fused kernels."""
    hidden = model.num_hidden_layers * model.hidden_size
    return _width(precision) * (FUSED_HIDDEN_BYTES * hidden + FUSED_MLP_BYTES * _widths(model).mlp)


def _eager_bytes(model: Model, precision: Precision) -> int:
    """Bytes per token, all layers, one forward pass, unfused kernels."""
    widths, hidden = _widths(model), model.num_hidden_layers * model.hidden_size
    layers = EAGER_HIDDEN_BYTES * hidden + EAGER_MLP_BYTES * widths.mlp
    return _width(precision) * (layers + EAGER_ROTARY_BYTES * widths.turned)


def _score_bytes(model: Model, setup: TrainingSetup, length: int) -> tuple[int, int]:
    """Bytes of a micro-batch's attention scores in one forward pass, fused and unfused; 0 if no score is kept."""
    if not is_eager(model, setup.computation):
        return 0, 0
    scores = passed_rows(setup) * model.num_attention_heads * length * length
    if setup.batch.is_joined:
        scores *= setup.batch.per_device_train_batch_size
    scores *= model.num_hidden_layers * _width(setup.precision)
    return scores * FUSED_SCORE_BYTES, scores * SCORE_BYTES


def _adapter_bytes(setup: TrainingSetup, sizes: Matrices) -> int:
    """Bytes per token of adapters in one forward pass, apart from their products."""
    cast = (
        setup.adapters.autocast_adapter_dtype
        and setup.precision.mixed_precision is not MixedPrecision.NO
    )
    dropout = DROPOUT_BYTES + 4 * cast if setup.adapters.lora_dropout else 0
    inputs = ADAPTER_CAST_BYTES * cast + dropout
    return sizes.adapter_inputs * inputs + sizes.adapter_outputs * ADAPTER_OUTPUT_BYTES


def _delta_nets(
    model: Model, setup: TrainingSetup, length: Lengths, again: float, rate: Rates
) -> TimePart:
    """Traffic of gated delta nets as PyTorch runs them, chunk by chunk in a loop, which is what memory counts too."""
    sizes = model.delta_net
    if sizes is None:
        return TimePart("delta-nets", 0.0, 0.0)
    layers = model.layer_types.count(LINEAR_ATTENTION) * sizes.value_heads
    layers *= passed_rows(setup)
    keys, values = sizes.key_dim, sizes.value_dim
    passes = 1 + BACKWARD_TRAFFIC + again
    row = DELTA_KEY_BYTES * keys + DELTA_VALUE_BYTES * values + DELTA_PAIR_BYTES * CHUNK
    once = CHUNK * row + DELTA_STATE_BYTES * keys * values
    sliced = DELTA_SLICE_BYTES * (3 * keys + values + CHUNK) + DELTA_COPY_BYTES * values

    def seconds(tokens: int, bandwidth: float) -> float:
        chunks = ceil_div(tokens, CHUNK)
        moved = layers * chunks * (passes * once + chunks * CHUNK * sliced)
        products = passed_rows(setup) * delta_products(model, tokens)
        return moved / bandwidth + _in_float32(products, passes, setup, rate)

    slow = SLOW_BANDWIDTH_SHARE * rate.bandwidth
    return TimePart("delta-nets", seconds(length.fast, rate.bandwidth), seconds(length.slow, slow))


def _scans(
    model: Model, setup: TrainingSetup, length: Lengths, again: float, rate: Rates
) -> TimePart:
    """Traffic of state-space layers as PyTorch runs them, in float32 except under autocast."""
    sizes = model.state_space
    if sizes is None:
        return TimePart("state spaces", 0.0, 0.0)
    layers = mixers(model) * passed_rows(setup)
    passes = 1 + BACKWARD_TRAFFIC + again
    row = SCAN_PAIR_BYTES * sizes.heads * sizes.chunk_size + SCAN_VALUE_BYTES * sizes.width
    row += 2 * SCAN_STATE_BYTES * sizes.heads * sizes.state_size
    row += SCAN_CHANNEL_BYTES * sizes.conv_width
    chunk = sizes.chunk_size * row + SCAN_CHUNK_BYTES * sizes.width * sizes.state_size

    def seconds(tokens: int, bandwidth: float) -> float:
        moved = passes * layers * ceil_div(tokens, sizes.chunk_size) * chunk
        products = passed_rows(setup) * scan_products(model, tokens)
        return moved / bandwidth + _in_float32(products, passes, setup, rate)

    slow = SLOW_BANDWIDTH_SHARE * rate.bandwidth
    return TimePart(
        "state spaces", seconds(length.fast, rate.bandwidth), seconds(length.slow, slow)
    )


def _in_float32(products: int, passes: float, setup: TrainingSetup, rate: Rates) -> float:
    """Seconds of a fallback's products, which run in float32 without autocast."""
    if setup.precision.mixed_precision is not MixedPrecision.NO:
        return 0.0
    return passes * FORWARD * products / rate.float32


def _dequantisation(setup: TrainingSetup, sizes: Matrices, passes: float, rate: Rates) -> TimePart:
    quantized = sizes.quantizable if setup.adapters.has_packed_base else 0
    packed = 2 * PACKED_BYTES if setup.adapters.has_8bit_base else PACKED_BYTES
    size = quantized * (packed + UNPACKED_BYTES * _width(setup.precision))
    seconds = passes * size / rate.bandwidth
    return TimePart("dequantisation", FAST_DEQUANTISATION * seconds, SLOW_DEQUANTISATION * seconds)


def _casts(setup: TrainingSetup, sizes: Matrices, passes: float, rate: Rates) -> TimePart:
    """Autocast makes 16-bit copies of float32 weights once per forward pass; backward casts their gradients."""
    autocast = setup.precision.mixed_precision is not MixedPrecision.NO
    if not autocast or setup.precision.dtype is not Dtype.FLOAT32 or setup.adapters.has_packed_base:
        return TimePart("casts of weights", 0.0, 0.0)
    seconds = passes * CAST_WEIGHT_BYTES * (sizes.layers + sizes.outside) / rate.bandwidth
    return TimePart("casts of weights", seconds, seconds / SLOW_BANDWIDTH_SHARE)


def _added(setup: TrainingSetup, resident: Resident, rate: Rates) -> TimePart:
    """Gradients of the second and later micro-batches are added to those of the first."""
    ranks = 1 if setup.mesh.strategy in WHOLE_GRADIENTS else setup.mesh.shard_ranks
    moved = ADDED_GRADIENTS * resident.gradients / ranks
    seconds = (setup.batch.gradient_accumulation_steps - 1) * moved / rate.bandwidth
    return TimePart("gradients added up", seconds, seconds / SLOW_BANDWIDTH_SHARE)


def _optimizer(setup: TrainingSetup, resident: Resident, rate: Rates) -> TimePart:
    """Gradients read, weights and states read and written; clipping adds a norm and an in-place product."""
    trained = resident.adapters if setup.adapters.uses_adapters else resident.weights
    states = resident.states.resident_bytes + resident.states.paged_bytes
    passes = FOREACH_PASSES if setup.optimisation.optim in UNFUSED else 1.0
    update = passes * (resident.gradients + 2 * trained + 2 * states)
    clips = setup.optimisation.max_grad_norm > 0
    low = (update + clips * resident.gradients) / rate.bandwidth
    high = (update + 3 * clips * resident.gradients) / (SLOW_BANDWIDTH_SHARE * rate.bandwidth)
    return TimePart(OPTIMIZER_STEP, low, high)


def _launches(
    model: Model,
    setup: TrainingSetup,
    length: Lengths,
    parts: list[TimePart],
    again: float,
    operators: float,
    calls: float,
) -> TimePart:
    """Time that the GPU waits for the host to launch kernels: the host's time minus the GPU's.

    ``operators`` and ``calls`` of modules with weights, of a micro-batch.
    """
    times = setup.batch.gradient_accumulation_steps
    low, high = FAST_OPERATOR * operators, SLOW_OPERATOR * operators
    deltas = model.layer_types.count(LINEAR_ATTENTION) if model.delta_net else 0
    kernels = deltas * (DELTA_FORWARD_KERNELS * (1 + again) + DELTA_BACKWARD_KERNELS)
    low += kernels * (ceil_div(length.fast, CHUNK) - 1) * FAST_OPERATOR
    high += kernels * (ceil_div(length.slow, CHUNK) - 1) * SLOW_OPERATOR
    high *= SLOW_OPERATOR_SHARED if setup.mesh.num_gpus > 1 else 1
    high += SLOW_HOOK * calls * (setup.mesh.strategy is Strategy.ZERO3)
    return TimePart(
        "waiting for the host",
        larger(0.0, times * low - total(part.low_seconds for part in parts)),
        larger(0.0, times * high - total(part.high_seconds for part in parts)),
    )


def communication(
    gpu: Gpu,
    setup: TrainingSetup,
    resident: Resident,
    *,
    sharing: Sharing,
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
) -> TimePart:
    """Seconds of communication per step: overlapped with computation at best, added to it at worst.

        replicas   2 · gradients, once per step, among all; the same with sharded states
        weights    2 · weights + gradients, once per micro-batch, both in the compute dtype; gathered once: 1 · weights;
                   and once more for each pass without gradients;
                   hsdp: among the n GPUs of a copy, and then 2 · gradients / n, once per step, among the copies

    ``exchange_seconds`` gives the time within and between machines. ``link_gb_per_s`` and ``network_gb_per_s``: one
    direction; by default the card's and those of its machines.

    Leaves out: latency.
    Source: Rajbhandari et al. 2019, arXiv:1910.02054, section 7; PyTorch, FSDP, ``ShardingStrategy``.
    """
    by = links(gpu, setup.mesh, link_gb_per_s, network_gb_per_s)
    if sharing in (Sharing.WEIGHTS, Sharing.GATHERED_ONCE):
        narrow = min(1.0, compute_dtype(setup.precision).bytes / setup.precision.dtype.bytes)
        gathers = (2 if sharing is Sharing.WEIGHTS else 1) + passes_without_grad(setup)
        exchanged = gathers * (resident.weights + resident.adapters) + resident.gradients
        size = setup.batch.gradient_accumulation_steps * narrow * exchanged
    else:
        size = 2.0 * resident.gradients
    low, high = exchange_seconds(size, shards(setup), by)
    if setup.mesh.dp_replicate_size > 1:
        shard = 2 * resident.gradients / setup.mesh.shard_ranks
        beside = exchange_seconds(shard, replicas(setup.mesh), by)
        low, high = low + beside[0], high + beside[1]
    return TimePart("exchange between GPUs", low, high)

"""Seconds of gated delta nets and state spaces as PyTorch runs them, kernel by kernel, without their own packages.

Bytes are in float32, derived from the lines named at each constant.
"""

from __future__ import annotations

from estimator.families.delta_net import CHUNK
from estimator.families.layer_kinds import LINEAR_ATTENTION
from estimator.passes.batch import passed_rows
from estimator.time.flops import FORWARD, delta_products, mixers, scan_products
from estimator.time.rates import BACKWARD_TRAFFIC, BANDWIDTH_SHARE, Rates
from estimator.values.arithmetic import ceil_div
from estimator.values.facets.precision import Precision
from estimator.values.range import Range
from estimator.values.results import TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import MixedPrecision, Model

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


def delta_nets_part(
    model: Model, setup: TrainingSetup, length: int, again: float, rate: Rates
) -> TimePart:
    """Traffic of gated delta nets as PyTorch runs them, chunk by chunk in a loop, which is what memory counts too."""
    sizes = model.delta_net
    if sizes is None:
        return TimePart("delta-nets", Range(0.0, 0.0))
    layers = model.layer_types.count(LINEAR_ATTENTION) * sizes.value_heads
    layers *= passed_rows(setup)
    keys, values = sizes.key_dim, sizes.value_dim
    passes = 1 + BACKWARD_TRAFFIC + again
    row = DELTA_KEY_BYTES * keys + DELTA_VALUE_BYTES * values + DELTA_PAIR_BYTES * CHUNK
    once = CHUNK * row + DELTA_STATE_BYTES * keys * values
    sliced = DELTA_SLICE_BYTES * (3 * keys + values + CHUNK) + DELTA_COPY_BYTES * values
    chunks = ceil_div(length, CHUNK)
    moved = layers * chunks * (passes * once + chunks * CHUNK * sliced)
    products = passed_rows(setup) * delta_products(model, length)
    seconds = moved / (BANDWIDTH_SHARE * rate.bandwidth)
    return TimePart("delta-nets", seconds + _in_float32(products, passes, setup.precision, rate))


def scans_part(
    model: Model, setup: TrainingSetup, length: int, again: float, rate: Rates
) -> TimePart:
    """Traffic of state-space layers as PyTorch runs them, in float32 except under autocast."""
    sizes = model.state_space
    if sizes is None:
        return TimePart("state spaces", Range(0.0, 0.0))
    layers = mixers(model) * passed_rows(setup)
    passes = 1 + BACKWARD_TRAFFIC + again
    row = SCAN_PAIR_BYTES * sizes.heads * sizes.chunk_size + SCAN_VALUE_BYTES * sizes.width
    row += 2 * SCAN_STATE_BYTES * sizes.heads * sizes.state_size
    row += SCAN_CHANNEL_BYTES * sizes.conv_width
    chunk = sizes.chunk_size * row + SCAN_CHUNK_BYTES * sizes.width * sizes.state_size
    moved = passes * layers * ceil_div(length, sizes.chunk_size) * chunk
    products = passed_rows(setup) * scan_products(model, length)
    seconds = moved / (BANDWIDTH_SHARE * rate.bandwidth)
    return TimePart("state spaces", seconds + _in_float32(products, passes, setup.precision, rate))


def _in_float32(products: int, passes: float, precision: Precision, rate: Rates) -> float:
    """Seconds of a fallback's products, which run in float32 without autocast."""
    if precision.mixed_precision is not MixedPrecision.NO:
        return 0.0
    return passes * FORWARD * products / rate.float32

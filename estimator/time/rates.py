"""How fast a GPU multiplies and reads: shares of its best measured rates that fast and slow published runs reach."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from estimator.parallel.network import GIGA
from estimator.values.facets.precision import Precision
from estimator.values.range import Range, by_end
from estimator.values.results import TERA
from estimator.values.setup import TrainingSetup
from estimator.values.specs import RATES, Dtype, Gpu, MixedPrecision

SHARE: Mapping[str, Range[float]] = MappingProxyType(
    {
        "Ampere": Range(0.7, 1.03),
        "Hopper": Range(0.57, 0.94),
        "Ada Lovelace": Range(0.62, 1.04),
        "Blackwell": Range(0.57, 1.19),
        "Gaudi": Range(0.345, 1.02),
        "Volta": Range(0.51, 1.02),
    }
)
"""Share of the best measured rate that matrix products reach in slower and faster published runs, by
``Gpu.architecture``. Above 1 where the published measurement was itself slow; no step is faster than the card's peak.
fitted, 2026-11, with all other constants at once: the narrowest brackets that hold 92 % of data/throughput.csv,
rounded."""
SHARE_ELSEWHERE = Range(0.55, 1.07)
"""The same if too few runs were published. fitted: the three rows of CDNA 3 and Blackwell Ultra, and all generations
together."""
INSIDE: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "Ampere": (297, 323),
        "Hopper": (62, 63),
        "Ada Lovelace": (22, 26),
        "Blackwell": (16, 17),
        "Gaudi": (19, 22),
        "Volta": (19, 22),
    }
)
"""Published runs inside the range of seconds, and all of them, by generation. ``tests/test_proof.py`` counts them again
in data/throughput.csv."""
FLASH = Range(0.36, 0.72)
"""Share of the dense rate that attention reaches, forward and backward. FlashAttention-2 on A100: 225 of 312 TFLOPS at
most: Dao 2023, arXiv:2307.08691, abstract; the slow end, short sequences and heads of 64: there, figures 4 to 6. fitted
within these."""
FLASH_HOPPER = Range(0.2, 0.66)
"""The same from Hopper on: FlashAttention-3 at most 740 of 989 TFLOPS forward and three quarters of that backward,
which with a checkpoint's second forward is 0.65; version 2 reaches 0.35 forward: Shah et al. 2024, arXiv:2407.08608,
abstract and figures 5 and 6; the kernels of 2023 were slower. fitted within these."""
FP8_GAIN_SHARE = 0.9
"""Share of the datasheet's gain of FP8 over 16 bits that products reach where it was not measured: a sustained rate of
1.79 times that of bfloat16 on an H200, 1.80 on an MI300X, 1.94 on a B200, of a factor of 2. data/gpus.csv."""
SINCE_HOPPER = frozenset({"Hopper", "Blackwell", "Blackwell Ultra"})
BANDWIDTH_SHARE = Range(0.8, 1.0)
"""Share of the memory bandwidth that PyTorch's elementwise kernels reach. Slow end: our assumption."""


BACKWARD_TRAFFIC = 2
"""Backward over forward traffic: a gradient read and written for every value, and the value read again. derived."""


class Rates(NamedTuple):
    """Rates of a GPU."""

    peak: float
    """Operations per second in the datasheet, dense, in the compute dtype."""
    best: float
    """Best measured operations per second of matrix products."""
    products: Range[float]
    """Operations per second of matrix products in slower and faster published runs."""
    attention: Range[float]
    """Operations per second of attention."""
    fp8: Range[float]
    """Operations per second of matrix products in FP8; as ``products`` without FP8."""
    bandwidth: float
    """Bytes per second."""
    float32: float
    """Operations per second in float32; ``products.low`` if the datasheet does not say."""

    @property
    def ceiling(self) -> float:
        """Operations per second that no product exceeds: by the datasheet or the best measurement, in FP8 if used."""
        return max(self.peak, self.best) * self.fp8.high / self.products.high


def compute_dtype(precision: Precision) -> Dtype:
    """The dtype that matrix products run in (no unit): autocast's, or the weights' own.

    Source: torch 2.13, torch/amp/autocast_mode.py; bitsandbytes 0.50, nn/modules.py, ``Linear4bit.forward``.

    >>> compute_dtype(Precision()).value
    'bfloat16'
    """
    match precision.mixed_precision:
        case MixedPrecision.BF16 | MixedPrecision.FP8:
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
    is_fp8 = setup.precision.mixed_precision is MixedPrecision.FP8
    if is_fp8 and (gpu.fp8_sustained_tflops or gpu.fp8_dense_tflops) is None:
        return f"No time is given: the FP8 rate of {gpu.name} is unknown (fp8_dense_tflops)."
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
    >>> rates(card, Precision()).best == 100e12
    True
    """
    return _rates(gpu, precision)


@lru_cache(maxsize=1024)
def _rates(gpu: Gpu, precision: Precision) -> Rates:
    dtype = compute_dtype(precision)
    tflops, gb_per_s = _dense_tflops(gpu, dtype), gpu.memory_bandwidth_gb_per_s
    assert tflops is not None
    assert gb_per_s is not None
    measured = None if dtype is Dtype.FLOAT32 else gpu.sustained_tflops
    best = measured or tflops
    products = best * SHARE.get(gpu.architecture, SHARE_ELSEWHERE)
    flash = tflops * (FLASH_HOPPER if gpu.architecture in SINCE_HOPPER else FLASH)
    return Rates(
        peak=tflops * TERA,
        best=best * TERA,
        products=products * TERA,
        attention=by_end(min, Range(products.low, best), flash) * TERA,
        fp8=products * _fp8_gain(gpu, precision, tflops, best) * TERA,
        bandwidth=gb_per_s * GIGA,
        float32=(gpu.fp32_tflops or products.low) * TERA,
    )


def _fp8_gain(gpu: Gpu, precision: Precision, tflops: float, best: float) -> float:
    """How often faster than in 16 bits a card multiplies in FP8: its measured rates, else the datasheet's."""
    if precision.mixed_precision is not MixedPrecision.FP8:
        return 1.0
    if gpu.fp8_sustained_tflops is not None:
        return gpu.fp8_sustained_tflops / best
    assert gpu.fp8_dense_tflops is not None
    return FP8_GAIN_SHARE * gpu.fp8_dense_tflops / tflops


def width_of(precision: Precision) -> int:
    """Element widths as multiples of 16 bits (derived)."""
    return compute_dtype(precision).bytes // 2

"""Need against capacity."""

from __future__ import annotations

from estimator.specs import Gpu, Verdict


def verdict(need_low: int, need_high: int, gpu: Gpu | None) -> Verdict | None:
    """Fits if even the high end of the need does; tight if only the low end does; None without a GPU. All in bytes.

    >>> verdict(1, 2, None) is None
    True
    """
    if gpu is None:
        return None
    if need_high <= gpu.memory_bytes:
        return Verdict.FITS
    return Verdict.TIGHT if need_low <= gpu.memory_bytes else Verdict.DOES_NOT_FIT

"""Settings of PyTorch's caching allocator, which it reads from ``PYTORCH_CUDA_ALLOC_CONF``."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Flag, WholeNumber
from estimator.values.refusals import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator(Checked):
    """How PyTorch's allocator cuts its blocks and grows. The names are its own.

    Source: torch 2.13, docs/source/notes/cuda.md, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF".
    """

    __hash__ = Hashed.__hash__

    def __post_init__(self) -> None:
        """Checks the values. Divisions are a power of two, as torch wants them."""
        Checked.__post_init__(self)
        divisions = self.roundup_power2_divisions
        if divisions & (divisions - 1):
            raise InputError(
                f"roundup_power2_divisions must be a power of two, such as 4 or 16, not {divisions}."
            )

    expandable_segments: bool = key(
        False,
        Flag(),
        "segments of PyTorch's allocator grow where they end, so that its blocks fit together",
        default_from=DefaultSource.PYTORCH,
        remark="axolotl's is on",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Expandable segments",
            help="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: memory grows by pages at the end of one segment "
            "instead of in segments that can only be reused whole. The result is the same.",
        ),
    )
    roundup_power2_divisions: int = key(
        1,
        WholeNumber(64),
        "steps between two powers of two to which PyTorch's allocator rounds requests up; 1: by 512 bytes",
        default_from=DefaultSource.PYTORCH,
        remark="axolotl's is 16",
        widget="of PYTORCH_CUDA_ALLOC_CONF; the page takes it from axolotl's defaults and from scripts",
    )

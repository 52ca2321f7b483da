"""How a run sets PyTorch's caching allocator: ``PYTORCH_CUDA_ALLOC_CONF``, and when Trainer empties its cache."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import WholeNumber
from estimator.values.refusals import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator(Checked):
    """How PyTorch's allocator cuts its blocks and grows, and when it is emptied. The names are its own and Trainer's.

    Source: torch 2.13, docs/source/notes/cuda.md, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF"; transformers
    5.23, training_args.py.
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

    expandable_segments: bool = flag(
        False,
        "segments of PyTorch's allocator grow where they end, so that its blocks fit together",
        "PYTORCH_CUDA_ALLOC_CONF has it. The result is the same.",
        default_from=DefaultSource.PYTORCH,
        remark="axolotl's is on",
        widget=Widget(Section.MORE, "Expandable segments"),
    )
    roundup_power2_divisions: int = key(
        1,
        WholeNumber(64),
        "steps between two powers of two to which PyTorch's allocator rounds requests up; 1: by 512 bytes",
        default_from=DefaultSource.PYTORCH,
        remark="axolotl's is 16",
        widget="of PYTORCH_CUDA_ALLOC_CONF; the page takes it from axolotl's defaults and from scripts",
    )
    max_split_size_mb: int | None = key(
        None,
        WholeNumber(2**20, low=20, nullable=True),
        "MiB of a block from which PyTorch's allocator keeps it whole for requests as large",
        "PYTORCH_CUDA_ALLOC_CONF has it. The result is the same.",
        default_from=DefaultSource.PYTORCH,
        null="blocks of any size are split",
        widget=Widget(Section.MORE, "Largest block that is split (MiB)"),
    )
    torch_empty_cache_steps: int | None = key(
        None,
        WholeNumber(10**6, nullable=True),
        "optimizer steps after which Trainer gives free blocks back to the driver, between forward and backward",
        "Backward may then find room in one piece. The result is the same; each time costs time.",
        null="never",
        widget=Widget(Section.MORE, "Empty the cache every n steps"),
    )

"""What a run needs of a card, and whether it fits: the allocator's least memory, the CUDA context, NCCL's buffers."""

from __future__ import annotations

from functools import cached_property

from estimator.answer.verdict import verdict
from estimator.resident.overhead import exchange_bytes
from estimator.step.allocations import hardware_of
from estimator.step.reserved import Replayed, goes_through, is_replayed, refused, replayed
from estimator.values.facets.mesh import Mesh
from estimator.values.range import Range
from estimator.values.results import Refused
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Verdict


class NeedInTheAllocator:
    """Both ends of a run's need and its verdict, in bytes per GPU.

    A run that is replayed needs what PyTorch's allocator makes of its tensors; of any other the allocator's slack is
    that of published runs. A replay takes tens of milliseconds, so it waits until it is asked for.
    """

    def __init__(
        self,
        model: Model,
        gpu: Gpu | None,
        setup: TrainingSetup,
        stated: Range[int],
        highest: int,
        outside: Range[int],
    ) -> None:
        self._run = model, gpu, setup
        self._stated = stated
        """Both ends with the slack of published runs."""
        self._highest = highest
        """The highest moment of the run."""
        self._outside = outside
        """What is outside PyTorch's allocator."""

    @cached_property
    def replay(self) -> Replayed | None:
        """What the allocator makes of the run; None where it is not replayed."""
        model, gpu, setup = self._run
        if not is_replayed(model, gpu, setup):
            return None
        found = replayed(model, hardware_of(gpu), setup, self._rooms)
        return Replayed(*(max(size, self._highest) for size in found))

    @property
    def _rooms(self) -> tuple[int, ...]:
        """What the card leaves to PyTorch beside the most and beside the least that is outside."""
        gpu = self._run[1]
        low, high = self._outside
        return () if gpu is None else (gpu.memory_bytes - high, gpu.memory_bytes - low)

    @cached_property
    def refused(self) -> Refused | None:
        """The request that is refused beside the least that is outside; None where the run is not replayed or goes
        through.
        """
        model, gpu, setup = self._run
        if gpu is None or not is_replayed(model, gpu, setup):
            return None
        return refused(model, gpu, setup, self._rooms[-1])

    @property
    def low(self) -> int:
        """The low end."""
        return self._stated.low if self.replay is None else self.replay.least + self._outside.low

    @property
    def high(self) -> int:
        """The high end."""
        return self._stated.high if self.replay is None else self.replay.least + self._outside.high

    @cached_property
    def verdict(self) -> Verdict | None:
        """Fits if the run goes through beside the largest context, tight if only beside the smallest."""
        model, gpu, setup = self._run
        if gpu is None or not is_replayed(model, gpu, setup):
            return verdict(self._stated, gpu)
        for room, said in zip(self._rooms, (Verdict.FITS, Verdict.TIGHT), strict=True):
            if goes_through(model, gpu, setup, room, self._highest):
                return said
        return Verdict.DOES_NOT_FIT


def outside(mesh: Mesh, context: Range[int], paged: int) -> Range[int]:
    """Bytes outside PyTorch's allocator; paged states may be evicted to the host.

    Source: as ``estimator.resident.overhead.need_bytes``.
    """
    return context + exchange_bytes(mesh) + Range(0, paged)

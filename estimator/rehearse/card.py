"""The card of a rehearsal, as the processes of the run find it."""

from __future__ import annotations

from collections.abc import Mapping

from estimator.contract.setups import parse
from estimator.resident.overhead import median_context_bytes
from estimator.sources.catalog import gpus, models
from estimator.values.refusals import InputError
from estimator.values.specs import Gpu


def card_named(name: str) -> tuple[Gpu, int]:
    """A card and how many of them, of a text such as ``4x A100-SXM4-80GB``; ``InputError`` says what is wrong."""
    _, gpu, setup = parse({"model": next(iter(models())), "gpu": name})
    if gpu is None:
        raise InputError('gpu is missing; give a card such as --gpu "RTX 4090".')
    if gpu.vendor != "NVIDIA" or not gpu.compute_capability:
        raise InputError(
            f"{gpu.name} cannot be rehearsed: only PyTorch's CUDA build can, which runs on NVIDIA's cards."
        )
    return gpu, setup.mesh.num_gpus


def usable_bytes(gpu: Gpu) -> int:
    """What a card leaves to PyTorch beside the CUDA context as most often read, in bytes.

    Source: ``estimator.resident.overhead.median_context_bytes``.

    >>> card = Gpu(name="card", memory_bytes=2**34, compute_capability="7.5", multiprocessors=40)
    >>> 2**34 - usable_bytes(card)
    104857600
    """
    return gpu.memory_bytes - median_context_bytes(gpu)


OLDEST_ALIKE = "8.0"
"""The capability from which cards take the same kernels where no FP8 is asked for."""


def smallest_card(least: int, gpu: Gpu) -> Gpu | None:
    """The known card with the least memory that leaves PyTorch so many bytes, and is about as new; None: none does."""

    def newness(capability: str) -> tuple[int, ...]:
        return tuple(map(int, capability.split(".")))

    oldest = min(newness(gpu.compute_capability), newness(OLDEST_ALIKE))
    able = [
        card
        for card in gpus().values()
        if card.vendor == gpu.vendor
        and card.compute_capability
        and newness(card.compute_capability) >= oldest
        and usable_bytes(card) >= least
    ]
    return min(able, key=lambda card: (card.memory_bytes, card.name), default=None)


def told(gpu: Gpu, number: int) -> Mapping[str, str]:
    """The environment that tells a process of the card: see null.cpp."""
    return {
        "NULL_NAME": gpu.device_name or gpu.name,
        "NULL_MEMORY": str(usable_bytes(gpu)),
        "NULL_TOTAL": str(gpu.memory_bytes),
        "NULL_CAPABILITY": gpu.compute_capability.replace(".", ""),
        "NULL_DEVICES": str(number),
        **({"NULL_MULTIPROCESSORS": str(gpu.multiprocessors)} if gpu.multiprocessors else {}),
    }

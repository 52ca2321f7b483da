"""The verdict in words: whether it fits, its need, and the capacity."""

from __future__ import annotations

from typing import NamedTuple

from dashboard import theme
from dashboard.words import one_line, terms, units
from estimator import Estimate, Gpu, Verdict, beyond_the_step, overflow


class Saying(NamedTuple):
    """The verdict in words."""

    word: str
    """Symbol, word and headroom: ``✕ Does not fit: 2.0 to 5.0 GiB short``."""
    sentence: str
    stops: str
    """Where the run stops; empty if it does not."""
    when: str
    """The moment of the peak."""
    capacity: str


def capacity_note(gpu: Gpu) -> str:
    """Why an "80 GB" GPU has 79.1 GiB."""
    usable = units.gib(gpu.memory_bytes)
    derived = " This figure is derived, not read from a card." if gpu.memory_is_derived else ""
    if not gpu.nameplate_gb:
        return f"{gpu.capitalised_name} leaves programs {usable}.{derived}"
    return (
        f"“{gpu.nameplate_gb:g} GB” is the nameplate; the driver reserves a part of it and leaves "
        f"programs {usable} (1 GiB is 2³⁰ bytes).{derived}"
    )


def allocator_adds(of: Estimate) -> str:
    """What PyTorch's allocator takes beyond the tensors, as the end of a sentence."""
    replay = of.needs.replay
    if replay is None:
        return "up to 3 % of the peak that the allocator cannot reuse"
    tensors = of.decisive.bytes
    if units.number(replay.least) == units.number(tensors):
        return "less than 0.1 GiB that PyTorch’s allocator adds"
    return f"{units.gib(replay.least - tensors)} that PyTorch’s allocator adds, whose blocks leave gaps"


def verdict(estimate: Estimate) -> Saying:
    """Whether it fits, its need, the GPU's memory, and the amount free or short."""
    low, high = estimate.need_low_bytes, estimate.need_high_bytes
    need = units.between(low, high)
    subject = f"{estimate.setup.adapters.method.noun} of {terms.short_name(estimate.model.hub_id)}"
    beyond = beyond_the_step(estimate.decisive, estimate.setup)
    peak = beyond or f"Memory is highest in {terms.moment(estimate.peak)}."
    peak += one_line.elsewhere(estimate)
    gpu = estimate.gpu
    if gpu is None or estimate.verdict is None:
        return Saying(
            f"Needs {need}",
            f"{subject} needs {need} on one GPU. Choose a GPU to see whether it fits.",
            "",
            peak,
            "",
        )
    usable = gpu.memory_bytes
    number = estimate.setup.mesh.num_gpus
    which = "the fullest" if estimate.devices else "each"
    where = f" on {which} of {number} GPUs by {estimate.setup.mesh.way}" if number > 1 else ""
    offer = f"{subject} needs {need}{where}; one {gpu.name} has {units.gib(usable)} usable"
    word = f"{terms.SIGNS[estimate.verdict]} {theme.VERDICTS[estimate.verdict].label}"
    if estimate.verdict is Verdict.FITS:
        room = units.gib(usable - high)
        word, sentence = f"{word}: {room} free", f"{offer}, so at least {room} is left."
    elif estimate.verdict is Verdict.TIGHT:
        word = f"{word}: {units.gib(usable - low)} free at best, {units.gib(high - usable)} short at worst"
        sentence = f"{offer}. The allocator decides; do not count on it."
    else:
        word = f"{word}: {units.between(low - usable, high - usable)} short"
        sentence = f"{offer}."
    return Saying(
        word, sentence, overflow.runs_out(estimate, units.gib_or_bytes), peak, capacity_note(gpu)
    )

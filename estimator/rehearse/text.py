"""A rehearsal in words, for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from estimator.contract.links import RehearsedPeaks, write_link, write_rehearsal
from estimator.contract.units import amount, gib
from estimator.rehearse.asked import MadeAt
from estimator.rehearse.beside import Beside
from estimator.rehearse.card import smallest_card, usable_bytes
from estimator.rehearse.ledger import KEPT, KINDS, kept
from estimator.rehearse.phases import LOADING, ORDER
from estimator.rehearse.rehearsed import FailedAllocation, Rehearsed, status_of
from estimator.step.blocks import STREAMS
from estimator.values.results import NOT_READ, Estimate
from estimator.values.specs import Gpu

AGREES = 0.01
"""Estimate and rehearsal agree within this share: our choice."""
SMALL = AGREES / 2
"""Share of the peak below which a kind of tensors or a line is not worth a sentence: our choice."""
SLEEPS = (
    "vLLM gives its memory back while it sleeps, and PyTorch counts it as allocated all the same. So the peaks are "
    "what the card held; the least memory, and what lay there at the peak, are not known."
)
NO_FLASH = (
    "Install flash-attn here as on the card's machine, or rehearse with attn_implementation sdpa, which takes the same "
    "memory."
)
"""Where transformers misses the package. The two are 8 KiB of 13.88 GiB apart: TRL's sft.py with Llama 3.2 1B."""
MOST_LINES = 3
"""Lines that are named for one kind of tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalAnswer:
    """A rehearsal, and what stands beside it."""

    run: Rehearsed
    """The rank that decides."""
    gpu: Gpu
    beside: Beside
    ranks: int = 1
    roomy: Rehearsed | None = None
    """The same with memory to spare, where the card has too little."""
    page: str = ""
    """Where the page is served, for the link to both results."""

    @property
    def whole(self) -> Rehearsed:
        """The run that tells the need."""
        return self.run if self.roomy is None else self.roomy

    @property
    def is_whole(self) -> bool:
        """Whether that run took its steps."""
        return status_of(self.whole) != NOT_READ and self.whole.ran_out is None


def describe(answer: RehearsalAnswer) -> str:
    """The verdict, the need, phases and peak beside the estimate's, and what was otherwise than on a real card."""
    run = answer.run
    parts = [
        verdict(answer),
        needed(answer),
        _phases(answer.whole, answer.beside),
        _ledger(answer),
        compared(answer),
        _evaluation(answer.beside),
        _both(answer),
        *_kept(answer),
    ]
    if answer.whole.sleeps:
        parts.append(SLEEPS)
    if answer.ranks > 1:
        parts.append(f"Of {answer.ranks} processes this is rank {run.rank}, which has the most.")
    if run.failed and run.ran_out is None:
        parts.append(
            f"Memory ran out {len(run.failed)} times, which the script caught: {_where(run.failed[0])}."
        )
    if run.reads:
        parts.append(
            "The script reads these values of the card (--value FILE:LINE=VALUE says another):\n"
            + "\n".join(f"- {line}: {value}" for line, value in run.reads.items())
        )
    if run.notes:
        parts.append("Not as on a real card:\n" + "\n".join(f"- {note}" for note in run.notes))
    return "\n\n".join(filter(None, parts))


def verdict(answer: RehearsalAnswer) -> str:
    """Whether it fits, and where memory ran out."""
    run, gpu = answer.run, answer.gpu
    of = f"of {gib(usable_bytes(gpu))} GiB that {gpu.name} leaves to PyTorch"
    if (failed := run.ran_out) is not None:
        what = "Cannot say: without torch.compile" if run.is_compiled else "Does not fit:"
        return (
            f"{what} {_where(failed)} asks for {amount(failed.asked)} with {gib(failed.allocated)} GiB "
            f"allocated and {gib(failed.reserved)} GiB reserved, {of}."
        )
    if run.exception:
        stopped = f"Cannot say: the script stopped after {_steps(run.steps)} with {run.exception}"
        return f"{stopped} {NO_FLASH}" if "FlashAttention2" in run.exception else stopped
    if not run.steps:
        said = "Cannot say: the script ended by itself without an optimizer step"
        return f"{said}, with {_peak(run)}, {of}."
    return f"Fits: {_steps(run.steps)} went through, with {_peak(run)}, {of}."


def needed(answer: RehearsalAnswer) -> str:
    """The least memory on which it goes through, and the smallest card that has it."""
    if not answer.is_whole:
        return ""
    found = []
    if answer.roomy is not None:
        steps = _steps(answer.roomy.steps)
        found.append(f"With memory to spare {steps} go through, with {_peak(answer.roomy)}.")
    least = answer.whole.least
    if least is not None:
        card = smallest_card(least, answer.gpu)
        has = (
            "no known card leaves it" if card is None else f"the smallest card with it: {card.name}"
        )
        found.append(f"The least on which the same requests go through is {gib(least)} GiB; {has}.")
    elif (
        most := max((device.streams for device in answer.whole.asked if device), default=0)
    ) > STREAMS:
        found.append(
            f"The least memory is not known: the requests are on {most} streams, of which {STREAMS} can be replayed."
        )
    return " ".join(found)


def _peak(run: Rehearsed) -> str:
    return f"{gib(run.allocated)} GiB allocated and {gib(run.reserved)} GiB reserved at the peak"


def _steps(number: int) -> str:
    return f"{number} step{'s' * (number != 1)}"


def _where(failed: FailedAllocation) -> str:
    """The phase, the line and the module of an allocation."""
    when = failed.phase if failed.phase == LOADING else f"step {failed.step}'s {failed.phase}"
    where = ", in ".join(
        str(line) for line in (failed.line, failed.library_line) if line is not None
    )
    module = f" (module {failed.module})" * bool(failed.module)
    return f"{when} at {where}{module}" if where else when


def _phases(run: Rehearsed, estimated: Beside) -> str:
    """GiB allocated at the peak of each phase: in the first step, in the last, and in the estimate."""
    last = run.steps
    steps = {"loading": run.peaks(0), "step 1": run.peaks(1)}
    if last > 1:
        steps[f"step {last}"] = run.peaks(last)
    if run.ran_out is not None and run.ran_out.step > 1:
        steps[f"step {run.ran_out.step}"] = run.peaks(run.ran_out.step)
    columns = {name: peaks for name, peaks in steps.items() if name != "loading" and peaks}
    if estimated.phases:
        columns["estimate"] = estimated.phases
    first = next(iter(columns), None)
    if first is not None and LOADING in steps["loading"]:
        columns[first] = {**steps["loading"], **columns[first]}
    return _table("GiB at the peak of", ORDER, columns)


def _ledger(answer: RehearsalAnswer) -> str:
    """GiB of each kind of tensors at the peak, here and in the estimate."""
    here = {name: kind.bytes for name, kind in answer.whole.ledger.items()}
    if not here:
        return ""
    here[BLOCKS] = answer.whole.allocated - sum(here.values())
    columns = {"here": here}
    if theirs := answer.beside.kinds:
        rest = (answer.beside.allocated or 0) - sum(theirs.values())
        columns["estimate"] = {**theirs, BLOCKS: max(0, rest)}
    return _table("GiB at the peak", [*here, *columns.get("estimate", {})], columns)


BLOCKS = "what PyTorch's blocks have beyond"
"""Bytes of blocks that no tensor fills."""


def _table(title: str, names: Iterable[str], columns: Mapping[str, Mapping[str, int]]) -> str:
    rows = [
        name
        for name in dict.fromkeys(names)
        if any(gib(has.get(name, 0)) != gib(0) for has in columns.values())
    ]
    if not rows:
        return ""
    wide = max(22, *(len(name) + 2 for name in rows))
    lines = [f"{title:<{wide}}" + "".join(f"{column:>12}" for column in columns)]
    for name in rows:
        cells = (gib(has[name]) if name in has else "-" for has in columns.values())
        lines.append(f"{name:<{wide}}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def compared(answer: RehearsalAnswer) -> str:
    """The estimate's peak beside the rehearsal's, and of what they differ."""
    run, estimated = answer.whole, answer.beside
    if estimated.estimate is None or estimated.allocated is None:
        return (
            f"No estimate beside it: {estimated.problem.rstrip('.')}." if estimated.problem else ""
        )
    said = f"The estimate of this Trainer is {gib(estimated.allocated)} GiB allocated"
    if not answer.is_whole:
        return f"{said}."
    error = estimated.allocated / run.allocated - 1
    if abs(error) <= AGREES:
        return f"{said}, {_percent(error)}: they agree."
    if run.world_size > answer.ranks and error > 0:
        said = f"{said} on the fullest of {run.world_size} ranks, of which rank {run.rank} alone was played"
    return "\n".join([f"{said}, {_percent(error)}:", *_differences(answer)])


def _both(answer: RehearsalAnswer) -> str:
    found = link(answer)
    return f"Both on the page: {found}" if found else ""


def link(answer: RehearsalAnswer) -> str:
    """The page with the estimate of the Trainer's setup and this rehearsal; empty where one of them is not whole."""
    of = answer.beside.with_evaluation or answer.beside.estimate
    if of is None or not answer.is_whole or not answer.page:
        return ""
    run = answer.whole
    peaks = RehearsedPeaks(run.allocated, run.reserved, run.least)
    query = write_rehearsal(write_link(of.model, of.gpu, of.setup), peaks)
    return f"{answer.page.rstrip('/')}/?{query}"


def _evaluation(estimated: Beside) -> str:
    """What the evaluations, before which a rehearsal ends, are estimated to take."""
    if estimated.evaluated is None:
        return ""
    return f"Its evaluations are not rehearsed; with them the estimate is {gib(estimated.evaluated)} GiB allocated."


def _percent(share: float) -> str:
    """A signed share; nothing is neither more nor less.

    >>> _percent(-0.0001), _percent(-0.0216)
    ('0.0 %', '-2.2 %')
    """
    tenths = round(1000 * share)
    return f"{tenths / 10:+.1f} %" if tenths else "0.0 %"


def _differences(answer: RehearsalAnswer) -> Iterator[str]:
    """Each kind of tensors of which the peaks differ, and the lines that make most of it."""
    run, theirs = answer.whole, answer.beside.kinds
    if run.sleeps:
        return
    mine = run.ledger
    small = SMALL * run.allocated
    sizes = {name: (mine[name].bytes if name in mine else 0, theirs.get(name, 0)) for name in KINDS}
    for name, (here, there) in sorted(
        sizes.items(), key=lambda kind: -abs(kind[1][0] - kind[1][1])
    ):
        if abs(here - there) > small:
            made = _lines(mine[name].lines, small) if name in mine and here > there else ""
            yield f"- {name}: {gib(here)} GiB here, {gib(there)} in the estimate{made}"


def _lines(lines: Sequence[tuple[MadeAt, int]], small: float) -> str:
    large = [line for line in lines if line[1] > small][:MOST_LINES]
    return "".join(f"\n  {gib(size)} GiB {place}" for place, size in large)


def _kept(answer: RehearsalAnswer) -> Iterator[str]:
    """What the script keeps, with its variable and its line."""
    run = answer.whole
    if run.fullest is None or KEPT not in run.ledger:
        return
    for names, place, size in kept(run.fullest, run.ledger[KEPT]):
        if size > SMALL * run.allocated:
            who = f"The script keeps {names}" if names else "Something is kept"
            yield f"{who} after the backward pass, until the next step replaces it: {gib(size)} GiB, made {place}."


def as_json(answer: RehearsalAnswer) -> dict[str, Any]:
    """The same as one object; sizes in bytes."""
    run, whole = answer.run, answer.whole
    failed = run.ran_out
    least = whole.least if answer.is_whole else None
    card = None if least is None else smallest_card(least, answer.gpu)
    return {
        "fits": (None if status_of(run) == NOT_READ else failed is None),
        "sentence": verdict(answer),
        "gpu": answer.gpu.name,
        "usable_bytes": usable_bytes(answer.gpu),
        "steps": run.steps,
        "rank": run.rank,
        "processes": answer.ranks,
        "allocated_bytes": run.allocated,
        "reserved_bytes": run.reserved,
        "with_memory_to_spare": None
        if answer.roomy is None
        else {
            "allocated_bytes": answer.roomy.allocated,
            "reserved_bytes": answer.roomy.reserved,
        },
        "least_bytes": least,
        "smallest_gpu": None if card is None else card.name,
        "out_of_memory": None if failed is None else asdict(failed),
        "caught": [asdict(caught) for caught in run.failed] if failed is None else [],
        "exception": run.exception or None,
        "phases": [asdict(peak) for peak in whole.phases],
        "peak": {
            name: {
                "bytes": kind.bytes,
                "lines": [
                    {**_place(place), "bytes": size} for place, size in kind.lines[:MOST_LINES]
                ],
            }
            for name, kind in whole.ledger.items()
        },
        "kept": [*_kept(answer)],
        "versions": dict(run.versions),
        "notes": list(run.notes),
        "values_read": dict(run.reads),
        "setup": None if run.keys is None else dict(run.keys),
        "estimate": _estimate(answer.beside.estimate, answer.beside),
        "estimate_problem": answer.beside.problem or None,
        "comparison": compared(answer) or None,
        "link": link(answer) or None,
        "evaluation": _evaluation(answer.beside) or None,
    }


def _place(place: MadeAt) -> dict[str, Any]:
    return {
        "line": None if place.script is None else asdict(place.script),
        "library_line": None if place.library is None else asdict(place.library),
    }


def _estimate(found: Estimate | None, estimated: Beside) -> Mapping[str, Any] | None:
    if found is None:
        return None
    return {
        "allocated_bytes": estimated.allocated,
        "need_low_bytes": found.need_low_bytes,
        "need_high_bytes": found.need_high_bytes,
        "phases": estimated.phases,
        "peak": estimated.kinds,
    }

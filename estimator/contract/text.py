"""An estimate in words, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from estimator.answer.overflow import runs_out
from estimator.answer.verdict import beyond_the_step
from estimator.contract.units import amount, gib, share
from estimator.parallel.offload import offloads
from estimator.resident.stored import checkpoint_bytes
from estimator.step import reserved
from estimator.values.range import Range
from estimator.values.results import Estimate, Remedy, UtilisationSearch
from estimator.values.specs import Component, Verdict


def describe(estimate: Estimate, remedies: Sequence[Remedy] = (), defaults: str = "") -> str:
    """The setup, the ledger at the peak, the phases, the parameters, the verdict, remedies and assumptions.

    ``defaults``: whose they are, for the first line.
    """
    parts = [
        _headline(estimate) + f"; other keys as {defaults}" * bool(defaults),
        _ledger(estimate),
        _phases(estimate),
        _parameters(estimate),
    ]
    beyond = beyond_the_step(estimate.decisive, estimate.setup)
    said = [verdict(estimate), runs_out(estimate, amount), beyond]
    parts += [*filter(None, [" ".join(filter(None, said)), shown(estimate)]), *_run(estimate)]
    if remedies:
        lines = [f"- {remedy.text} Needs {gib(remedy.need_high_bytes)} GiB." for remedy in remedies]
        parts.append("What would fit:\n" + "\n".join(lines))
    parts.append(_checkpoints(estimate))
    parts += ["Assumed:\n" + "\n".join(f"- {sentence}" for sentence in estimate.assumptions)]
    return "\n\n".join(parts)


SHOWN_STEPS = 5
"""Every so many hundredths of a share have a row in the terminal."""


def describe_shares(shares: UtilisationSearch) -> str:
    """The number to type for ``vllm_gpu_memory_utilization``, and what others do."""
    if shares.advised is None:
        why = next((tried.refusal for tried in shares.shares if tried.refusal), "")
        found = f"No vllm_gpu_memory_utilization fits. At 0.01: {why}".removesuffix(" At 0.01: ")
    else:
        held = shares.holding()
        holds = (
            f"from {held:.2f} on all {shares.rows:,} rows of a generation run at once"
            if held is not None
            else f"none of these holds all {shares.rows:,} rows of a generation at once"
        )
        found = (
            f"vllm_gpu_memory_utilization {shares.advised:.2f}: {shares.starts:.2f} to {shares.largest:.2f} fit, and "
            f"{holds}."
        )
    rows = [
        (
            f"{tried.utilisation:.2f}",
            tried.verdict.value.replace("_", " ") if tried.verdict else "vLLM does not start",
            gib(tried.need_high_bytes) if tried.verdict else "-",
            f"{tried.rows_low:,} to {tried.rows_high:,}" if tried.verdict else "-",
            f"{tried.step_seconds.low:.1f} to {tried.step_seconds.high:.1f}"
            if tried.step_seconds is not None
            else "-",
        )
        for tried in shares.shares
        if round(100 * tried.utilisation) % SHOWN_STEPS == 0
        or tried.utilisation in {shares.starts, shares.holding(), shares.largest}
    ]
    head = ("share", "verdict", "needs at most, GiB", "rows at once", "seconds per step")
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join([found, "", *lines])


def verdict(estimate: Estimate) -> str:
    """Whether it fits, in one sentence."""
    low, high = gib(estimate.need_low_bytes), gib(estimate.need_high_bytes)
    gpu = estimate.gpu
    if gpu is None:
        return f"Needs {low} to {high} GiB; give a card with --gpu to see whether it fits."
    has = f"{gpu.name} has {gib(gpu.memory_bytes)} GiB"
    match estimate.verdict:
        case Verdict.FITS:
            return f"Fits: needs {low} to {high} GiB, {has}; {gib(estimate.headroom_bytes)} GiB remain free."
        case Verdict.TIGHT:
            return f"Tight: needs {low} to {high} GiB, {has}; it may run out of memory."
        case _:
            missing = gib(estimate.need_low_bytes - gpu.memory_bytes)
            return f"Does not fit: needs {low} to {high} GiB, {has}; at least {missing} GiB are missing."


def shown(estimate: Estimate) -> str:
    """What nvidia-smi or rocm-smi may show, in one sentence; empty for what cannot run and for other memory."""
    on_card = reserved.shown(estimate)
    if on_card is None:
        return ""
    low, middle, high = on_card
    monitor = "nvidia-smi" if estimate.gpu is None else estimate.gpu.monitor
    return (
        f"{monitor} may show {gib(middle)} GiB ({gib(low)} to {gib(high)} in published runs): the allocator keeps "
        f"freed "
        "blocks while there is room, so this does not affect the verdict."
    )


def _checkpoints(estimate: Estimate) -> str:
    files = checkpoint_bytes(estimate.model)
    download = f"The model's files take {gib(files)} GiB. " if files else ""
    disk = f"{download}A checkpoint takes {gib(estimate.disk_bytes)} GiB on disk"
    if estimate.run_disk_bytes != estimate.disk_bytes:
        disk += f", all checkpoints of the run {gib(estimate.run_disk_bytes)}"
    if not offloads(estimate.setup.mesh):
        return f"{disk}; loading and saving need {gib(estimate.host_bytes)} GiB on the host."
    away = f", {gib(estimate.nvme_bytes)} GiB on its NVMe" if estimate.nvme_bytes else ""
    return f"{disk}; a machine needs {gib(estimate.host_bytes)} GiB of memory{away}."


def seconds(value: float) -> str:
    """Seconds as a column shows them.

    >>> seconds(0.01234), seconds(1.5), seconds(65.0), seconds(12345.6)
    ('0.012', '1.50', '65.0', '12,346')
    """
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def _run(estimate: Estimate) -> list[str]:
    """The parts of a step's time, and the run's hours and dollars; empty if no time is known or nothing can run."""
    time, cost = estimate.time, estimate.cost
    if time is None or not estimate.can_run:
        return []
    rows = [
        *((part.name, part.seconds) for part in time.parts),
        ("one step", time.step_seconds),
    ]
    steps = f"{time.total_steps:,} step{'s' * (time.total_steps != 1)}"
    run = [(f"the run ({steps}), hours", time.total_hours)]
    if cost is not None:
        run.append(("cost, US dollars", cost.cost_usd))
    if estimate.energy_kwh is not None:
        run.append(("energy at full board power, kWh", estimate.energy_kwh))
    low, high = (f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}" for rate in time.tokens_per_second)
    mfu = time.mfu
    return [
        _table([("seconds per step", "fast", "slow"), *map(_row, rows)]),
        _table([("whole run", "fast", "slow"), *map(_row, run)]),
        f"{low} to {high} tokens per second, {100 * mfu.low:.0f} to {100 * mfu.high:.0f} % MFU.",
    ]


def _row(named: tuple[str, Range[float]]) -> tuple[str, str, str]:
    name, (low, high) = named
    return name, seconds(low), seconds(high)


def _headline(estimate: Estimate) -> str:
    setup = estimate.setup
    batch = f"{setup.batch.per_device_train_batch_size:,} x {setup.batch.max_length:,} tokens"
    model = estimate.model.hub_id or estimate.model.model_type
    return f"{model}: {setup.adapters.method}, {setup.precision.dtype}, {setup.optimisation.optim}, {batch}"


def _ledger(estimate: Estimate) -> str:
    peak = estimate.peak
    held = [(part, peak.resident.get(part, 0)) for part in Component]
    rows = [(_words(part), gib(size), share(size, peak.bytes)) for part, size in held if size]
    total = ("all", gib(peak.bytes), share(peak.bytes, peak.bytes))
    when = f"The peak is in {_words(peak.phase)}: {peak.name}."
    return f"{when}\n\n{_table([('alive at the peak', 'GiB', 'share'), *rows, total])}"


def _phases(estimate: Estimate) -> str:
    heights = [(phase, moment.bytes) for phase, moment in estimate.phases.items()]
    rows = [
        (_words(phase), gib(size), "peak" if phase is estimate.peak.phase else "")
        for phase, size in heights
    ]
    return _table([("peak of each phase", "GiB", ""), *rows])


def _parameters(estimate: Estimate) -> str:
    return f"{estimate.total_parameters:,} parameters, of which {estimate.trainable_parameters:,} are trained."


def _words(name: str) -> str:
    return name.replace("_", " ")


def _table(rows: Sequence[tuple[str, str, str]]) -> str:
    """First column left-aligned, the others right-aligned, with a rule below the title."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    first, *rest = widths
    lines = ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], rest)]) for row in rows]
    title, *body = (line.rstrip() for line in lines)
    return "\n".join([title, "-" * (sum(widths) + 4), *body])

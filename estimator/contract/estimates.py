"""How an estimate is written: one flat JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from estimator.answer.overflow import first_overflow
from estimator.answer.ranks import ranks
from estimator.contract.setups import plain_keys
from estimator.resident.stored import checkpoint_bytes
from estimator.step.reserved import shown
from estimator.values.facets.objective import Task
from estimator.values.range import Range
from estimator.values.results import Estimate, OnDevice, Remedy, UtilisationSearch
from estimator.values.specs import (
    GENERATION_PHASES,
    MORE_PASSES,
    OF_EVERY_STEP,
    Component,
    Phase,
    Verdict,
)


def write_estimate(estimate: Estimate, remedies: Sequence[Remedy] = ()) -> dict[str, object]:
    """The contract's answer, all memory in bytes on the fullest GPU; null where a fact is missing."""
    return {
        **_peak(estimate),
        **_need(estimate),
        "per_gpu": [*map(_on_device, estimate.devices)]
        or [rank._asdict() for rank in ranks(estimate)],
        "stored_bytes": checkpoint_bytes(replace(estimate.model, num_labels=None)),
        "host_bytes": estimate.host_bytes,
        "nvme_bytes": estimate.nvme_bytes,
        "disk_bytes": estimate.disk_bytes,
        "run_disk_bytes": estimate.run_disk_bytes,
        "paged_bytes": estimate.paged_bytes,
        "total_parameters": estimate.total_parameters,
        "trainable_parameters": estimate.trainable_parameters,
        **_run(estimate),
        "assumptions": list(estimate.assumptions),
        "remedies": [*map(_remedy, remedies)],
    }


def write_shares(shares: UtilisationSearch) -> dict[str, object]:
    """The answer to ``vllm_shares``: the numbers to type, and every share; null where there is none.

    Memory in bytes on the fullest GPU, rows of full length, seconds of an optimizer step.
    """
    return {
        "advised": shares.advised,
        "smallest": shares.starts,
        "smallest_for_all_rows": shares.holding(),
        "largest": shares.largest,
        "rows": shares.rows,
        "shares": [
            {
                "vllm_gpu_memory_utilization": share.utilisation,
                "verdict": share.verdict.value if share.verdict else None,
                "need_low_bytes": share.need_low_bytes,
                "need_high_bytes": share.need_high_bytes,
                "rows_at_once_low": share.rows_low,
                "rows_at_once_high": share.rows_high,
                **_two("step_seconds", share.step_seconds),
                "refusal": share.refusal or None,
            }
            for share in shares.shares
        ],
    }


def _remedy(remedy: Remedy) -> dict[str, object]:
    """One remedy: the keys to set, the bytes saved per GPU, and the text."""
    return {
        "keys": plain_keys(remedy.keys),
        "saved_bytes": remedy.saved_bytes,
        "text": remedy.text,
    }


def _on_device(device: OnDevice) -> dict[str, object]:
    """One GPU of a device map."""
    return {
        "device": device.device,
        "gpus": 1,
        "peak_bytes": device.peak.bytes,
        "components": {part.value: device.peak.resident.get(part, 0) for part in OF_EVERY_STEP},
        "need_low_bytes": device.need.low,
        "need_high_bytes": device.need.high,
        "layers": list(device.layers),
        "modules": list(device.outside),
    }


def _peak(estimate: Estimate) -> dict[str, object]:
    peak = estimate.peak
    return {
        "peak_bytes": peak.bytes,
        "peak_phase": peak.phase.value,
        "peak_moment": peak.name,
        "phases": {
            phase.value: estimate.phases[phase].bytes if phase in estimate.phases else None
            for phase in Phase
            if phase not in _absent(estimate.setup.task) or phase in estimate.phases
        },
        "moments": [
            {"phase": moment.phase.value, "name": moment.name, "bytes": moment.bytes}
            for moment in estimate.moments
        ],
        "components": {
            part.value: peak.resident.get(part, 0)
            for part in Component
            if part in OF_EVERY_STEP
            or (part is Component.REFERENCE_MODEL and _has_more(estimate.setup.task))
            or (part is Component.INFERENCE_ENGINE and estimate.setup.task.objective.generates)
        },
    }


def _absent(task: Task) -> Sequence[Phase]:
    """Phases that the answer does not list."""
    if task.objective.generates:
        return ()
    return GENERATION_PHASES if _has_more(task) else (*MORE_PASSES, *GENERATION_PHASES)


def _has_more(task: Task) -> bool:
    """Whether the answer lists passes and the component of a reference model."""
    return not task.objective.is_causal_lm


def _run(estimate: Estimate) -> dict[str, object]:
    """Seconds, hours and dollars; null where a fact is missing, hours and dollars also where the run does not fit."""
    time, cost = estimate.time, estimate.cost
    whole, bill = (time, cost) if estimate.can_run else (None, None)
    return {
        **_two("step_seconds", time.step_seconds if time else None),
        "step_parts": [
            {"name": part.name, **_two("seconds", part.seconds)}
            for part in (time.parts if time else ())
        ],
        **_two("tokens_per_second", time.tokens_per_second if time else None),
        "flops_per_step": time.hardware_flops_per_step if time else None,
        **_two("mfu", time.mfu if time else None),
        "steps_per_epoch": time.steps_per_epoch if time else None,
        "total_steps": time.total_steps if time else None,
        **_two("epoch_hours", whole.epoch_hours if whole else None),
        **_two("total_hours", whole.total_hours if whole else None),
        **_two("energy_kwh", estimate.energy_kwh if whole else None),
        "usd_per_gpu_hour": cost.usd_per_gpu_hour if cost else None,
        "price_provider": cost.price.provider if cost and cost.price else None,
        "price_date": cost.price.date if cost and cost.price else None,
        **_two("cost_usd", bill.cost_usd if bill else None),
    }


def _two(name: str, ends: Range[float] | None) -> dict[str, float | None]:
    """The keys of a range; null where it is unknown."""
    low, high = ends or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _need(estimate: Estimate) -> dict[str, object]:
    verdict, on_card, replay = estimate.verdict, shown(estimate), estimate.needs.replay
    return {
        "need_low_bytes": estimate.need_low_bytes,
        "need_high_bytes": estimate.need_high_bytes,
        "need_phase": estimate.decisive.phase.value,
        "allocated_bytes": replay.allocated if replay else None,
        "least_bytes": replay.least if replay else None,
        "device_bytes": on_card.middle if on_card else None,
        "device_low_bytes": on_card.low if on_card else None,
        "device_high_bytes": on_card.high if on_card else None,
        "capacity_bytes": estimate.gpu.memory_bytes if estimate.gpu else None,
        "verdict": verdict.value if verdict else None,
        "fits": None if verdict in {None, Verdict.TIGHT} else verdict is Verdict.FITS,
        "first_overflow": _first_overflow(estimate),
    }


def _first_overflow(estimate: Estimate) -> dict[str, object] | None:
    """Phase, step (0 before the first) and moment at which the run would stop, and the bytes that PyTorch asks for then
    (null where it is not replayed); null unless it does not fit.
    """
    over = first_overflow(estimate)
    if over is None:
        return None
    moment, device = over.at.moment, over.at.device
    name = moment.name if device is None else f"GPU {device}: {moment.name}"
    return {
        "phase": moment.phase.value,
        "step": over.at.step,
        "moment": name,
        "requested_bytes": over.requested_bytes,
    }

"""Memory of loading, evaluating and saving."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dashboard.words import units
from estimator import (
    SHARDED_STATE_DICT,
    Estimate,
    Stage,
    TrainingSetup,
    beyond_the_step,
    checkpoint_bytes,
    family_of,
    write_seconds,
)


def stages_html(estimate: Estimate, stages: Sequence[Stage]) -> str:
    """The stages of a run: GPU, host and disk in GiB, the highest on the GPU in bold."""
    highest = max(stage.gpu_bytes for stage in stages)
    several = estimate.setup.mesh.num_gpus > 1
    columns = (
        ("GPU", "Host, rank 0", "Host, others", "Disk") if several else ("GPU", "Host", "Disk")
    )
    rows = [
        f'<tr class="{"hr-sum" if stage.gpu_bytes == highest else ""}"><td class="hr-name-cell">'
        f"{escape(stage.name)}</td>"
        + "".join(
            f'<td class="hr-n">{"–" if size is None else units.number(size)}</td>'
            for size in (
                stage.gpu_bytes,
                stage.host_bytes,
                *([stage.other_host_bytes] if several else []),
                stage.disk_bytes,
            )
        )
        + "</tr>"
        for stage in stages
    ]
    head = "".join(f'<th scope="col" class="hr-n">{where}</th>' for where in columns)
    lead = beyond_the_step(estimate.decisive, estimate.setup) or (
        "Nothing else in this run needs more GPU memory than its training steps."
    )
    beyond = [stage.name for stage in stages if stage.gpu_bytes > estimate.decisive.bytes]
    if any(name.startswith("Evaluate") for name in beyond):
        lead += " An evaluation would need more, but none is planned; set eval_strategy to count it in the verdict."
    if any(name.startswith("Merge") for name in beyond):
        lead += " Merging the adapters afterwards would need more; it can be done on the CPU."
    return (
        f'<p class="hr-text">{escape(lead)}</p>'
        f'<table class="hr-table hr-stages{" hr-several" * several}"><thead><tr>'
        f'<th scope="col">GiB at the peak</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _loading(setup: TrainingSetup) -> str:
    """Where from_pretrained loads the weights, and how to use less host memory."""
    if setup.adapters.has_4bit_base:
        return "A 4-bit base goes to the GPU tensor by tensor."
    first = "Without a device_map, from_pretrained puts all weights on the host first"
    if setup.mesh.strategy.is_alone:
        return f"{first}; device_map={{'': 0}} loads straight to the GPU."
    if setup.mesh.strategy.averages_in_buckets:
        return f"{first}; device_map={{'': PartialState().process_index}} loads straight to each process' GPU."
    return ""


def saving_html(estimate: Estimate, kept_a_batch: int, disk_gb_per_second: float) -> str:
    """Notes below the table: a run's disk space, seconds per checkpoint, and GPU memory for metrics."""
    setup = estimate.setup
    at_best = write_seconds(estimate.disk_bytes, disk_gb_per_second * units.GB)
    writing = f"{units.seconds(at_best)} seconds at best, while training waits"
    if estimate.run_disk_bytes == estimate.disk_bytes:
        disk = f"The run leaves one checkpoint of {units.gib(estimate.disk_bytes)}, written in {writing}."
    elif estimate.run_disk_bytes:
        together = estimate.run_disk_bytes // estimate.disk_bytes
        disk = (
            f"At most {together} checkpoints are on disk at once, {units.gib(estimate.run_disk_bytes)} in all; each is "
            f"written in {writing}."
        )
    else:
        disk = "This run saves no checkpoints (save_strategy is no)."
    lines = [
        disk,
        *shared_saving(setup),
        f"Host figures are for one process, without Python and CUDA's libraries. {_loading(setup)}",
        (
            ""
            if setup.run.eval_strategy != "no"
            else "The evaluation row shows what one would take. "
        )
        + "Without compute_metrics Trainer keeps no logits. With it, each evaluation batch leaves "
        f"{units.gib(kept_a_batch)} of them on the GPU, and joining them takes as much again; eval_accumulation_steps "
        "moves them to the host.",
    ]
    if family_of(estimate.model).merges_experts and not setup.mesh.strategy.shards_states:
        lines.append(
            "The files store experts separately, so transformers first splits every layer's stacked gate and up "
            "projections on the GPU."
        )
    if setup.adapters.uses_adapters:
        lines.append(
            "Merging happens after training, when the optimizer is freed; the adapters are saved without the base."
        )
    return "".join(f'<p class="hr-text">{escape(line)}</p>' for line in lines)


def download(estimate: Estimate) -> str:
    """The size of the checkpoint's files, in a sentence; empty if unknown."""
    size, stored = checkpoint_bytes(estimate.model), estimate.model.quantization
    if size is None:
        return ""
    form = f", stored as {escape(stored.name)}" if stored else ""
    return f"The checkpoint's files take {units.gib(size)}{form}, downloaded once and kept on disk."


def shared_saving(setup: TrainingSetup) -> list[str]:
    """Which rank gathers and writes a sharded checkpoint, and which key changes that."""
    match setup.mesh.strategy:
        case strategy if strategy.averages_in_buckets:
            return ["Rank 0 saves its own copy; the other processes wait."]
        case strategy if strategy.is_fsdp and setup.run.fsdp_state_dict_type == SHARDED_STATE_DICT:
            return [
                "Each process writes its own shards (fsdp_state_dict_type is SHARDED_STATE_DICT). Trainer.save_model "
                "writes no model then: accelerate merge-weights builds one from a checkpoint."
            ]
        case strategy if strategy.is_fsdp:
            return [
                "Tensors are gathered on the GPUs one at a time and copied to the host of rank 0, which "
                "ends up with the whole model, then all states. With fsdp_state_dict_type SHARDED_STATE_DICT each "
                "process copies its own shards instead."
            ]
        case strategy if strategy.partitions_flat:
            return [
                "Every process copies all weights to its host, so "
                f"{min(setup.mesh.num_gpus, setup.mesh.gpus_per_node)} processes of a machine hold as many copies; "
                "rank 0 writes the model and each its own states."
            ]
        case strategy if strategy.gathers_modules and setup.adapters.uses_adapters:
            return [
                "Adapters are gathered module by module, together with frozen weights; each process writes its own "
                "states."
            ]
        case strategy if strategy.gathers_modules and setup.run.zero3_save_16bit_model:
            return [
                "16-bit weights are gathered module by module and copied to the host of rank 0 "
                "(zero3_save_16bit_model is on); each process writes its own states."
            ]
        case strategy if strategy.gathers_modules:
            return [
                "Each process writes its own float32 weights and states, but no model: "
                "zero_to_fp32.py builds one from them, or zero3_save_16bit_model writes 16-bit weights as well. "
                "save_only_model changes nothing."
            ]
        case _:
            return []

"""Contradictions in a run's files at which the real tools would stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimator.tools.known.parallel import is_on, whole
from estimator.tools.rules import Entry, Tool

FILLED = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}
"""Keys of DeepSpeed's JSON that must equal the training arguments.

Source: transformers 5.23, integrations/deepspeed.py, ``fill_match``.
"""
PRECISIONS = ("args.bf16", "args.fp16")
SHARDS = ("args.fsdp", "args.deepspeed")


def found(tool: Tool, given: Mapping[str, Entry], values: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each contradiction at which the real tools would stop."""
    yield from _deepspeed(given, values)
    both = [entry for key in PRECISIONS if (entry := given.get(key)) and is_on(entry.value)]
    if len(both) == 2 and "auto" not in [entry.value for entry in both]:
        yield f"{both[0].at} and {both[1].at} are both on, and Trainer takes one of the two; turn one off."
    fp8 = given.get("accelerate.mixed_precision")
    if fp8 is not None and fp8.value == "fp8" and values.get("mixed_precision") in ("bf16", "fp16"):
        autocast = values["mixed_precision"]
        yield (
            f"{fp8.at} does not go with {autocast} of the training arguments, at which accelerate stops ('NoneType' "
            f"object has no attribute 'config'); set {autocast} false."
        )
    flag = given.get("accelerate.fp8_backend")
    if flag is not None and flag.value in (
        "ao",
        "te",
    ):  # its only words; FP8BackendType has capitals
        yield (
            f"{flag.at} is the launcher's word, which accelerate 1.15 itself refuses ('{flag.value}' is not a valid "
            f"FP8BackendType); give fp8_config in its file, with backend {flag.value.upper()}."
        )
    packed = [
        entry
        for key, entry in given.items()
        if key.rpartition(".")[2] in ("load_in_4bit", "load_in_8bit") and is_on(entry.value)
    ]
    if len({entry.key.rpartition(".")[2] for entry in packed}) == 2:
        yield f"{packed[0].at} and {packed[1].at} are both on, and bitsandbytes takes one of the two; turn one off."
    yield from tool.stops_at(given, values)
    two = [entry for key in SHARDS if (entry := given.get(key)) and entry.value]
    if len(two) == 2:
        yield f"{two[0].at} and {two[1].at} are two ways to divide one run; leave one out."


def _deepspeed(given: Mapping[str, Entry], values: Mapping[str, Any]) -> Iterator[str]:
    for theirs, ours in FILLED.items():
        entry = given.get(f"deepspeed.{theirs}")
        if entry is None or entry.value == "auto" or ours not in values:
            continue
        if isinstance(entry.value, int | float) and entry.value != values[ours]:
            yield _differ(entry, ours, values[ours], given)
    total, each = given.get("deepspeed.train_batch_size"), values.get("per_device_train_batch_size")
    if total is not None and (asked := whole(total.value)) and each:
        product = each * values.get("gradient_accumulation_steps", 1) * values.get("num_gpus", 1)
        if asked != product:
            yield (
                f"{total.at} is not the {product} that micro-batch, accumulation and GPUs make together, and "
                "DeepSpeed stops there; write auto."
            )
    for key in ("bf16", "fp16"):
        entry = given.get(f"deepspeed.{key}.enabled")
        autocast = values.get("mixed_precision")
        if entry is None or not isinstance(entry.value, bool) or entry.value == (autocast == key):
            continue
        if f"args.{key}" in given or entry.value:
            yield _differ(entry, key, str(autocast == key).lower(), given)


def _differ(entry: Entry, ours: str, value: Any, given: Mapping[str, Entry]) -> str:
    other = given.get(f"args.{ours}")
    against = other.at if other is not None else f"the tool's {ours} {value}"
    return f"{entry.at} contradicts {against}, and Trainer stops there; write auto."

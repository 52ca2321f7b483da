"""Contradictions in a run's files at which the real tools would stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimator.tools.known.parallel import is_on, whole
from estimator.tools.rules import Entry

FILLED = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}
"""Keys of DeepSpeed's JSON that must equal the training arguments.

Source: transformers 5.23, integrations/deepspeed.py, ``fill_match``.
"""


def found(tool: str, given: Mapping[str, Entry], values: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each contradiction at which the real tools would stop."""
    yield from _deepspeed(given, values)
    both = [
        given[key] for key in ("args.bf16", "args.fp16") if key in given and is_on(given[key].value)
    ]
    if len(both) == 2 and "auto" not in [entry.value for entry in both]:
        yield f"{_at(both[0])} and {_at(both[1])} are both on, and Trainer takes one of the two; turn one off."
    fp8 = given.get("accelerate.mixed_precision")
    if fp8 is not None and fp8.value == "fp8" and values.get("mixed_precision") in ("bf16", "fp16"):
        autocast = values["mixed_precision"]
        yield (
            f"{_at(fp8)} does not go with {autocast} of the training arguments, at which accelerate stops ('NoneType' "
            f"object has no attribute 'config'); set {autocast} false."
        )
    flag = given.get("accelerate.fp8_backend")
    if flag is not None and flag.value in (
        "ao",
        "te",
    ):  # the launcher's only words; FP8BackendType has capitals
        yield (
            f"{_at(flag)} is the launcher's word, which accelerate 1.15 itself refuses ('{flag.value}' is not a valid "
            f"FP8BackendType); give fp8_config in its file, with backend {flag.value.upper()}."
        )
    packed = [
        entry
        for key, entry in given.items()
        if key.rpartition(".")[2] in ("load_in_4bit", "load_in_8bit") and is_on(entry.value)
    ]
    if len({entry.key.rpartition(".")[2] for entry in packed}) == 2:
        yield f"{_at(packed[0])} and {_at(packed[1])} are both on, and bitsandbytes takes one of the two; turn one off."
    if tool == "axolotl":
        yield from _of_axolotl(given)
    alone = [given[key] for key in PACKS if key in given and is_on(given[key].value)]
    adapts = "args.use_peft" in given and (
        given["args.use_peft"].is_unknown or is_on(given["args.use_peft"].value)
    )
    if tool == "trl" and alone and not adapts and not any(key.startswith("peft.") for key in given):
        yield f"{_at(alone[0])} trains nothing without adapters, and Trainer stops there; set use_peft true."
    free = given.get("args.padding_free")
    if tool == "trl" and free is not None and is_on(free.value) and not values.get("packing"):
        length = given.get("args.max_length")
        if length is None or length.value is not None:
            yield f"{_at(free)} without packing needs max_length null, or TRL stops; turn packing on."
    two = [
        entry
        for entry in (given.get("args.fsdp"), given.get("args.deepspeed"))
        if entry is not None and entry.value
    ]
    if len(two) == 2:
        yield f"{_at(two[0])} and {_at(two[1])} are two ways to divide one run; leave one out."


def _of_axolotl(given: Mapping[str, Entry]) -> Iterator[str]:
    """Source: axolotl 0.19.0, axolotl/utils/schemas/peft.py:177-224."""
    adapter = given.get("args.adapter")
    packs = [given[key] for key in PACKS if key in given and is_on(given[key].value)]
    if packs and (adapter is None or not adapter.value):
        yield f"{_at(packs[0])} needs an adapter, or axolotl stops; set adapter to qlora, or turn it off."
    if (
        adapter is not None
        and adapter.value == "qlora"
        and not any(entry.key == PACKS[0] for entry in packs)
    ):
        yield f"{_at(adapter)} needs load_in_4bit, or axolotl stops; turn it on."


PACKS = ("args.load_in_4bit", "args.load_in_8bit")


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
                f"{_at(total)} is not the {product} that micro-batch, accumulation and GPUs make together, and "
                "DeepSpeed stops there; write auto."
            )
    for key in ("bf16", "fp16"):
        entry = given.get(f"deepspeed.{key}.enabled")
        autocast = values.get("mixed_precision")
        if entry is not None and isinstance(entry.value, bool) and entry.value != (autocast == key):
            said = given.get(f"args.{key}")
            if said is not None or entry.value:
                against = (
                    _at(said)
                    if said is not None
                    else f"the tool's {key} {str(autocast == key).lower()}"
                )
                yield f"{_at(entry)} contradicts {against}, and Trainer stops there; write auto."


def _differ(entry: Entry, ours: str, value: Any, given: Mapping[str, Entry]) -> str:
    other = given.get(f"args.{ours}")
    against = _at(other) if other is not None else f"the tool's {ours} {value}"
    return f"{_at(entry)} contradicts {against}, and Trainer stops there; write auto."


def _at(entry: Entry) -> str:
    value = str(entry.value).lower() if isinstance(entry.value, bool) else entry.value
    return f"{entry.shown} {value} ({entry.file}, line {entry.line})"

"""A request for a device map, as one JSON object: read, checked and answered.

    {"model": "…", "max_memory": {"0": "24GiB", "cpu": "64GiB"}, "dtype": "bfloat16"}

Without ``device_map`` the answer is accelerate's ``infer_auto_device_map`` on these limits. With it, it is the map of
transformers' ``from_pretrained``, or with ``"library": "accelerate"`` that of ``load_checkpoint_and_dispatch``. With
``"model_class": "image_text"`` the vision tower is placed too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from estimator.contract.setups import MODEL_MISSING, NONE_KNOWN, read_model
from estimator.parallel.placement import (
    BITS,
    CPU,
    DISK,
    Balance,
    Device,
    Packing,
    from_pretrained_device_map,
    infer_auto_device_map,
)
from estimator.values.kinds import Choice, Flag, Kind, Names, near, one_of
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal, about, show
from estimator.values.specs import Dtype, Model, ModelClass

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "dtype": Choice(tuple(BITS)),
        "no_split_module_classes": Names(nullable=True),
        "device_map": Choice(tuple(Balance), member=Balance, nullable=True),
        "library": Choice(("accelerate", "transformers"), nullable=True),
        "model_class": Choice(
            (ModelClass.IMAGE_TEXT, ModelClass.TEXT), member=ModelClass, nullable=True
        ),
        Packing.FOUR_BIT.value: Flag(),
        Packing.EIGHT_BIT.value: Flag(),
    }
)
"""Value type of each key other than model and max_memory."""
DEFAULT_DTYPE = Dtype.BFLOAT16.value
MOST_GPUS = 1024
"""Our choice: more than any machine has."""
LARGEST_LIMIT = 2**50
"""Bytes. Our choice: a petabyte."""
UNITS = MappingProxyType(
    {"GIB": 2**30, "MIB": 2**20, "KIB": 2**10, "GB": 10**9, "MB": 10**6, "KB": 10**3}
)
"""Bytes of each unit that accelerate's ``convert_file_size_to_int`` reads, in this order."""
NO_TOWER_TO_PLACE = Refusal(
    "model_class image_text places a vision tower, and none is modelled for {model_type}; leave model_class out.",
    NOT_MODELLED,
)
EXAMPLE = '{"0": "24GiB", "cpu": "64GiB"}'


def place(
    given: Mapping[str, object], known: Mapping[str, Model] = NONE_KNOWN
) -> dict[str, Device]:
    """The device map for a request; ``ValueError`` is one sentence that says what to change.

    ``known`` holds models by ids that the catalogue lacks.

    >>> place({"model": "openai-community/gpt2", "max_memory": {"0": "1GiB"}})
    {'': 0}
    """
    _check_keys(given)
    model = read_model(given["model"], known)
    limits = _max_memory(given["max_memory"])
    read = {name: _read(name, value) for name, value in given.items() if name in KINDS}
    dtype = str(read.get("dtype", DEFAULT_DTYPE))
    balance, classes = read.get("device_map"), read.get("no_split_module_classes")
    packing = _packing(read)
    with_tower = read.get("model_class") is ModelClass.IMAGE_TEXT
    if with_tower and model.vision is None:
        raise NO_TOWER_TO_PLACE(model_type=model.model_type)
    library = read.get("library") or ("transformers" if balance or packing else "accelerate")
    if library == "accelerate":
        if packing:
            raise InputError(
                f"{packing} is an option of transformers; leave library out, or give dtype int4 or int8."
            )
        return infer_auto_device_map(
            model,
            limits,
            dtype=dtype,
            no_split_module_classes=classes if isinstance(classes, tuple) else None,
            balance=balance if isinstance(balance, Balance) else Balance.SEQUENTIAL,
            with_tower=with_tower,
        )
    if not isinstance(balance, Balance):
        raise InputError(f"device_map is missing; transformers takes {one_of(Balance)}.")
    if classes is not None:
        raise InputError(
            "no_split_module_classes is not read by transformers, which keeps decoder layers whole; "
            "leave it out, or give library accelerate."
        )
    if dtype not in list(Dtype):
        raise InputError(
            f"dtype {dtype} is not a dtype of transformers' weights; give {one_of(Dtype)}."
        )
    return from_pretrained_device_map(
        model, limits, dtype=dtype, balance=balance, packing=packing, with_tower=with_tower
    )


def _check_keys(given: Mapping[str, object]) -> None:
    keys = ("model", "max_memory", *KINDS)
    for name in given:
        if name not in keys:
            meant = near(name, keys)
            hint = f"did you mean {one_of(meant)}?" if meant else f"the keys are {', '.join(keys)}."
            raise InputError(f"{show(name)} is not a key of a placement; {hint}")
    if "model" not in given:
        raise InputError(MODEL_MISSING)
    if "max_memory" not in given:
        raise InputError(f"max_memory is missing; give a limit for each device, such as {EXAMPLE}.")


def _read(name: str, value: object) -> object:
    if name == "no_split_module_classes" and value in ([], ()):
        return ()  # every module may be split
    try:
        return KINDS[name].read(value)
    except ValueError as problem:
        raise about(name, problem) from None


def _packing(read: Mapping[str, object]) -> Packing | None:
    chosen = [packing for packing in Packing if read.get(packing)]
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)} cannot both be true; give one of them.")
    return chosen[0] if chosen else None


def _max_memory(value: object) -> dict[Device, int]:
    if not isinstance(value, Mapping) or not value:
        raise InputError(
            f"max_memory must be an object such as {EXAMPLE}, not {show(value) if value != {} else 'empty'}."
        )
    return {_device(name): _bytes(name, limit) for name, limit in value.items()}


def _device(name: object) -> Device:
    if name in {CPU, DISK}:
        return str(name)
    if isinstance(name, str) and re.fullmatch("0|[1-9][0-9]{0,3}", name) and int(name) < MOST_GPUS:
        return int(name)
    raise InputError(
        f"max_memory names the device {show(name)}; devices are GPUs by index, such as 0, and cpu and disk."
    )


def _bytes(device: str, limit: object) -> int:
    """Bytes of a limit, as accelerate reads it: a whole number, or a number and a unit.

    Source: accelerate 1.15 utils/modeling.py, ``convert_file_size_to_int``, a small b at the end is bits.
    """
    count = limit if type(limit) is int else _sized(limit) if isinstance(limit, str) else None
    if count is None or not 0 <= count <= LARGEST_LIMIT:
        raise InputError(
            f"max_memory of {device} must be bytes, or a string such as 24GiB, up to a million GiB, not {show(limit)}."
        )
    return count


def _sized(text: str) -> int | None:
    for unit, size in UNITS.items():
        if text.upper().endswith(unit):
            try:
                number = float(text[: -len(unit)])
            except ValueError:
                return None
            if not math.isfinite(number):
                return None
            is_bits = len(unit) == 2 and text.endswith("b")
            return int(number * size) // (8 if is_bits else 1)
    return None

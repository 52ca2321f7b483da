"""What a script says by making objects: PEFT's config, bitsandbytes' config, and the calls between them.

Source: peft 0.21, utils/other.py, prepare_model_for_kbit_training; transformers 5.23, utils/quantization_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator.tools.rules import Rule, Value
from estimator.tools.writing import overrides

TASKS = {"sequence_classification": "SEQ_CLS"}
"""PEFT's word for an objective: peft 0.21, utils/peft_types.py, ``TaskType``."""


def _method(values: Mapping[str, Value]) -> Mapping[str, Value]:
    if values["method"] == "full":
        return {}
    written: dict[str, Value] = {
        "peft.r": values["lora_r"],
        "peft.task_type": TASKS.get(values["objective"], "CAUSAL_LM"),
    }
    if values["method"] == "qlora":
        written |= {"bnb.load_in_4bit": True, "bnb.bnb_4bit_compute_dtype": values["dtype"]}
    elif values["load_in_8bit"]:
        written["bnb.load_in_8bit"] = True
    return written


def _prepared(values: Mapping[str, Value]) -> Mapping[str, Value]:
    if not values["prepare_model_for_kbit_training"]:
        return {}
    return {
        "call.prepare_model_for_kbit_training": True,
        "call.use_gradient_checkpointing": values["gradient_checkpointing"],
    }


OBJECTS: Mapping[str, tuple[Rule, ...]] = {
    "verl": (overrides.BATCH,),
    "axolotl": (
        Rule(  # a base that it does not pack is float32 while this is on: known/axolotl.py, ``_is_upcast``
            theirs=(),
            ours=("method", "dtype"),
            read=lambda theirs, so_far: {},
            write=lambda values: {"args.load_in_4bit": values["method"] == "qlora"},
        ),
    ),
    "trainer": (
        Rule(
            theirs=(),
            ours=("method", "load_in_8bit", "lora_r", "dtype", "objective"),
            read=lambda theirs, so_far: {},
            write=_method,
        ),
        Rule(
            theirs=(),
            ours=("prepare_model_for_kbit_training", "gradient_checkpointing"),
            read=lambda theirs, so_far: {},
            write=_prepared,
        ),
    ),
}
"""Rows that only write, by tool: what their readers take apart."""

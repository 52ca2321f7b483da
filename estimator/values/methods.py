"""Each method, and what is asked about it elsewhere."""

from __future__ import annotations

from estimator.values.records import Record


class MethodFacts:
    """What is asked about a method."""

    label: str
    """In a table or on a button."""
    noun: str
    """At the begin of a sentence."""
    phrase: str
    """Within a sentence."""
    has_adapters: bool = True
    """Adapters are trained, on a frozen base."""
    has_4bit_base: bool = False
    """bitsandbytes quantises that base to 4 bits."""


class Method(MethodFacts, Record):
    """What is trained: every weight, or adapters on a frozen (``qlora``: 4-bit) base."""

    FULL = (
        "full",
        {
            "label": "Full",
            "noun": "Full fine-tuning",
            "phrase": "full fine-tuning",
            "has_adapters": False,
        },
    )
    LORA = "lora", dict.fromkeys(("label", "noun", "phrase"), "LoRA")
    QLORA = (
        "qlora",
        {**dict.fromkeys(("label", "noun", "phrase"), "QLoRA"), "has_4bit_base": True},
    )

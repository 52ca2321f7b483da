"""Every refusal is declared with its cause, docs/refusals.md lists them all, and hundreds of setups get theirs."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from estimator import estimate
from estimator.contract.setups import read_setup
from estimator.parallel.combinations import RULES, refused
from estimator.values.keys import BY_NAME
from estimator.values.methods import Method
from estimator.values.refusals import (
    CONTRADICTION,
    LIBRARIES,
    NOT_MODELLED,
    InputError,
    Line,
    Refusal,
    RefusedError,
)
from estimator.values.setup import TrainingSetup
from estimator.values.strategies import Strategy
from tests.rows import for_each

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "estimator").rglob("*.py"))

ANSWERED_WITH = {"_Refused", "_slow", "_refused"}
"""Errors of Hub access, which do not refuse a setup."""
OF_OURS = {"NotImplementedError", "TypeError", "AttributeError", "StopReplayError", "NotBuiltError"}
"""Programming errors, the end of a replay, and what a rehearsal's machine lacks, which refuses no setup."""
INPUT = {"InputError", "TooFewError", "DoesNotFitError", "wrong"}
BUILT = {
    "NotModelledError",
    "about",
    "beyond",
    "not_modelled",
    "problem",
    "read.refused",
    "refused",
}
"""Names raised where the record is declared elsewhere; each is a ``RefusedError``."""

A_REASON = re.compile(
    r"not modelled|such are modelled|refuse|crash|PEFT|FSDP|DeepSpeed|Liger|bitsandbytes|GradScaler|kernel"
)
"""Words that an input error must not contain: a library's behaviour, or a limit of ours."""


REFUSED = [
    json.loads(line)
    for line in (ROOT / "tests" / "reference" / "refusals.jsonl").read_text().splitlines()
]


@for_each("row", REFUSED)
def test_a_setup_that_cannot_run_gets_its_one_sentence(row):
    """``says`` is part of the sentence; an ellipsis stands for anything."""
    reading = read_setup(row["setup"])
    said = list(reading.problems)
    if reading.model is not None and not said:
        try:
            estimate(reading.model, reading.gpu, reading.setup)
        except ValueError as refused:
            said = [str(refused)]
    (sentence,) = said
    assert re.search(".*".join(map(re.escape, row["says"].split("…"))), sentence)
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refusals", ROOT / "docs/generate_refusals.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = generator()


def raises(path: Path) -> Iterator[tuple[str, ast.Raise]]:
    """Every raise statement of a file with the name of what it raises."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Raise) or node.exc is None:
            continue
        thrown = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        for name in [thrown.body, thrown.orelse] if isinstance(thrown, ast.IfExp) else [thrown]:
            yield ast.unparse(name), node


@for_each("path", MODULES)
def test_every_refusal_has_a_record(path):
    known = INPUT | OF_OURS | ANSWERED_WITH | BUILT
    for name, node in raises(path):
        is_record = name.isupper() or name == "record"
        assert is_record or name in known, (
            f"{path.name}:{node.lineno} raises {name}: declare a Refusal with its cause, or raise InputError where "
            "what was given is no question (estimator/values/refusals.py)"
        )


@for_each("path", MODULES)
def test_input_errors_blame_neither_a_limit_nor_a_library(path):
    for name, node in raises(path):
        # a tool's name in a list of tools is not a reason
        if "documents.py" in path.name or name not in INPUT or not isinstance(node.exc, ast.Call):
            continue
        said = " ".join(
            instant.value
            for instant in ast.walk(node.exc)
            if isinstance(instant, ast.Constant) and isinstance(instant.value, str)
        )
        found = A_REASON.search(said)
        assert found is None, f"{path.name}:{node.lineno} says {found[0]!r}: declare a Refusal"


def test_every_declared_refusal_is_raised():
    used = {name for path in MODULES for name, _ in raises(path)}
    texts = "".join(path.read_text(encoding="utf-8") for path in MODULES)
    declared = set(re.findall(r"^([A-Z_0-9]+) = Refusal\(", texts, re.M))
    words = Counter(re.findall(r"\b[A-Z_0-9]+\b", texts))
    through_a_name = {constant for constant in declared if words[constant] > 1}
    assert declared <= used | through_a_name


def test_docs_list_exactly_the_declared_refusals():
    written = (ROOT / "docs" / "refusals.md").read_text(encoding="utf-8")
    assert written == GENERATOR.render(), "docs/refusals.md is behind the code; run `make docs`"


def test_only_unmodelled_setups_are_called_not_modelled():
    listed = [record for _, record in GENERATOR.refusals()]
    assert len(listed) > 70
    for refusal in listed:
        assert refusal.sentence.endswith(".")
        says_not_modelled = bool(re.search("modelled|are estimated", refusal.sentence))
        assert says_not_modelled == (refusal.cause is NOT_MODELLED), refusal.sentence
        if isinstance(refusal.cause, Line):
            assert refusal.cause.library in LIBRARIES


def test_calling_a_record_makes_an_error_that_carries_it():
    record = Refusal("strategy {strategy} is not modelled yet.", NOT_MODELLED)
    error = record(strategy=Strategy.HSDP)
    assert isinstance(error, RefusedError)
    assert isinstance(error, ValueError)
    assert (str(error), error.refusal) == ("strategy hsdp is not modelled yet.", record)


def test_rules_pass_on_their_cause():
    crossed = refused(TrainingSetup(num_gpus=2))
    assert crossed.refusal.cause is CONTRADICTION
    assert crossed.refusal in [rule.refusal for rule in RULES]


def test_refusing_16_bit_weights_under_deepspeed_does_not_blame_it():
    """DeepSpeed 0.19.6, runtime/engine.py, ``__check_params`` returns before it checks a dtype."""
    setup = {"num_gpus": 2, "strategy": "zero2", "mixed_precision": "no", "dtype": "bfloat16"}
    (problem,) = [
        sentence for sentence in read_setup(setup).problems if "mixed_precision" in sentence
    ]
    assert "is not modelled yet" in problem


def test_an_input_error_is_not_a_refusal():
    with pytest.raises(InputError):
        TrainingSetup(method=Method.LORA, lora_dropout=1.0)
    assert not issubclass(InputError, RefusedError)


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [
        ("strategy", "megatron", NOT_MODELLED),
        ("optim", "lomo", NOT_MODELLED),
        ("attn_implementation", "flex_attention", NOT_MODELLED),
    ],
)
def test_a_key_passes_on_the_record_of_its_values_refusal(key, value, cause):
    with pytest.raises(RefusedError, match=f"^{key} ") as refused:
        BY_NAME[key].read(value)
    assert refused.value.refusal.cause is cause
    with pytest.raises(InputError, match=f"^{key} "):
        BY_NAME[key].read({})

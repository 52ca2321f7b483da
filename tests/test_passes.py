"""Several forward passes per step, of one model or with a frozen second one, under every sharding strategy.

Expected bytes: the third of three steps of the real torch 2.13 ``fully_shard`` (by accelerate 1.15's own
``fsdp2_prepare_model``) and ``FullyShardedDataParallel`` on transformers 5.23's Llama, rank 0 of 2 of a fake process
group, on a stand-in CUDA device that counts every allocation, rounded to 512 bytes; bfloat16 without autocast, plain
SGD, one row of 512 tokens, both losses added up. The second model is wrapped as trl 1.16's ``prepare_fsdp`` does it.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from estimator.contract.setups import parse
from estimator.parallel.computed import as_frozen
from estimator.parallel.strategies import frozen_bytes, resident_memory
from estimator.parallel.zero3_coordinator import (
    OUTSIDE,
    CallTrace,
    Coordinator,
    ModuleCall,
    Rules,
    Stretch,
)
from estimator.passes.forward import Pass, as_logits
from estimator.passes.step import MicroStep, Step
from estimator.step.timeline import Plan, StepTimeline, structure
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.results import Moment
from estimator.values.specs import Phase
from tests.rows import for_each
from tests.test_coordinator import HERE, calls

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
FSDP2 = {"strategy": "fsdp"}
FSDP1 = {"strategy": "fsdp", "fsdp_version": 1}
LORA = {"method": "lora", "lora_dropout": 0.0, "autocast_adapter_dtype": False}
CHECKPOINTED = {"gradient_checkpointing": True}
REENTRANT = {"gradient_checkpointing": True, "use_reentrant": True}


def answered(step: Step, of: Pass, ids: Tensor, labels: Tensor) -> Tensor:
    """One call of a model with labels; returns the loss."""
    forward = step.call(of)
    logits = forward.logits(forward.hidden(ids))
    step.tape.enter(forward.end_phase, "loss")
    loss = op.log_softmax_loss(step.tape, as_logits(op.cast(step.tape, logits, 4)), labels)
    del logits
    forward.end()
    loss, _ = forward.hooks.leave_model(loss, None)
    return loss


def passes(second: str) -> MicroStep:
    """A pass and a second one: with gradients, without, or of a frozen model."""

    def play(step: Step) -> None:
        setup = step.setup
        ids, labels = step.ids(setup.batch.tokens), step.ids(setup.batch.tokens)
        other = step.load(step.trained.model) if second == "reference" else step.trained
        rows, length = setup.batch.per_device_train_batch_size, setup.batch.max_length
        loss = answered(step, Pass(step.trained, rows, length), ids, labels)
        if second == "two":
            again = answered(step, Pass(other, rows, length, label="second"), ids, labels)
            loss = op.add(step.tape, loss, again)
        else:
            with step.tape.grad(enabled=False):
                answered(step, Pass(other, rows, length, grad=False, label="second"), ids, labels)
        step.backward(loss)
        step.end()

    return play


def heights(second: str, keys: dict[str, Any]) -> tuple[int, int, int]:
    """Peaks of the first pass, the second pass and backward."""
    given = {
        "model": LLAMA,
        "max_length": 512,
        "num_gpus": 2,
        "mixed_precision": "no",
        "optim": "sgd",
    }
    model, _, setup = parse({**given, **keys})
    plan = Plan(model, structure(setup), objective=passes(second))
    timeline = StepTimeline(setup, plan, resident_memory(model, structure(setup)), 0)
    beside = frozen_bytes(model, as_frozen(setup)) if second == "reference" else 0

    def part(moment: Moment) -> int:
        if moment.phase is Phase.BACKWARD:
            return 2
        return int(moment.name.startswith("second"))

    found = [0, 0, 0]
    for moment in timeline.moments:
        if moment.phase is not Phase.OPTIMIZER_STEP:
            found[part(moment)] = max(found[part(moment)], moment.bytes + beside)
    return found[0], found[1], found[2]


CHECKPOINTS = {"none": {}, "plain": CHECKPOINTED, "reentrant": REENTRANT}
with (Path(__file__).parent / "reference" / "passes.csv").open(encoding="utf-8") as _lines:
    TRACED = list(csv.DictReader(_lines))


@for_each("row", TRACED)
def test_peaks_of_two_passes_match_real_fsdp(row):
    keys = {"strategy": row["strategy"], "fsdp_version": int(row["fsdp_version"])}
    keys |= CHECKPOINTS[row["checkpoints"]] | (LORA if row["method"] == "lora" else {})
    traced = tuple(int(row[name]) for name in ("first_pass", "second_pass", "backward"))
    # the trace also has the shifted labels, scalars and, with reentrant checkpoints, a buffer of zeros
    rel = 7e-4 if row["checkpoints"] == "reentrant" else 0
    assert heights(row["second"], keys) == pytest.approx(traced, abs=20_000, rel=rel)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2"])
def test_a_reference_is_unsharded_under_ddp_and_zero_below_3(strategy):
    # trl 1.16, models/utils.py, prepare_deepspeed: stage 0 below stage 3
    given = {"model": LLAMA, "num_gpus": 2, "strategy": strategy}
    model, _, setup = parse(given)
    weights = 2 * resident_memory(model, structure(setup)).total_parameters
    assert frozen_bytes(model, as_frozen(setup)) == pytest.approx(weights, rel=1e-4)


def test_a_second_pass_adds_no_second_set_of_gradients():
    # at the end of backward there is one gradient per weight, whatever the number of passes
    for keys in (FSDP2, FSDP1, FSDP2 | REENTRANT, {"strategy": "ddp"}):
        model, _, setup = parse({"model": LLAMA, "num_gpus": 2, **keys})
        resident = resident_memory(model, structure(setup))
        plan = Plan(model, structure(setup), objective=passes("two"))
        step = StepTimeline(setup, plan, resident, 0)
        sized, schedule = step._sized, step._schedule
        left = sum(sized.heights[run.segment].net * run.length for run in schedule.runs)
        assert left == resident.gradients


@pytest.mark.parametrize(
    ("keys", "cause"), [(FSDP1, "first alone"), ({"strategy": "zero2"}, "takes a weight's once")]
)
def test_replaying_two_passes_fails_where_real_fsdp_does(keys, cause):
    # torch 2.13's FullyShardedDataParallel: "Attempting to broadcast a dimension of length 1024"
    with pytest.raises(ValueError, match=cause):
        heights("two", {**keys, **REENTRANT, "mixed_precision": "bf16"})


class Watched(Coordinator):
    """Records the elements gathered after each call of a module with weights to gather."""

    def __init__(self, call_trace: CallTrace, rules: Rules) -> None:
        self.gathered: list[int] = []
        super().__init__(call_trace, rules)

    def _note(self, call: ModuleCall) -> None:
        if call.weights:
            here = {*self._data, *self._handles}
            self.gathered.append(sum(self.call_trace.elements[weight] for weight in here))

    def _begin(self, module_call: ModuleCall) -> None:
        super()._begin(module_call)
        self._note(module_call)

    def _end(self, module_call: ModuleCall) -> None:
        super()._end(module_call)
        self._note(module_call)


SMALL = LLAMA | {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
# The fourth step of the real DeepSpeed 0.19.6 at stage 3, two ranks on the CPU over gloo, with Trainer's "auto" sizes:
# how often a module with weights above the threshold was fetched or released, and of the elements gathered at these
# times the maximum and the sum.
FETCHED = {
    "two": ({}, "two", (209, 312_320, 13_699_072)),
    "no gradients": ({}, "nograd", (150, 312_320, 11_530_752)),
    "no gradients, checkpointed": (CHECKPOINTED, "nograd", (230, 189_952, 14_506_496)),
    "two, checkpointed": (CHECKPOINTED, "two", (341, 189_952, 22_519_808)),
    "beside a reference": ({}, "reference", (119, 312_320, 24_133_632)),
}
REFERENCE = (60, 189_952, 6_180_864)
"""The same of the reference's own engine in the last case."""


def fetched(second: str, keys: dict[str, Any], calls: int, number: int = 0) -> tuple[int, int, int]:
    given = {"model": SMALL, "max_length": 32, "num_gpus": 2, "strategy": "zero3"}
    model, _, setup = parse({**given, **keys})
    plan = Plan(model, structure(setup), objective=passes(second))
    step = StepTimeline(setup, plan, resident_memory(model, structure(setup)), 0)
    schedule, rules = step._schedule, step._schedule.rules[number]
    assert rules is not None
    runs = [repeated.stretches for repeated in schedule.calls(number)]
    watched = Watched(CallTrace(runs, step._sized.wholes, rules), rules).gathered
    assert len(watched) % calls == 0
    gathered = watched[-calls:]  # the last micro-step played
    return len(gathered), max(gathered), sum(gathered)


@pytest.mark.parametrize("name", FETCHED)
def test_zero3_gathers_in_several_passes_as_real_deepspeed_does(name):
    keys, second, traced = FETCHED[name]
    assert fetched(second, keys, traced[0]) == traced


def test_a_references_engine_gathers_by_a_forward_only_trace():
    assert fetched("reference", {}, REFERENCE[0], number=1) == REFERENCE


def test_the_next_step_follows_the_trace_of_the_last():
    # by hand: the second pass calls a module that the first one's trace lacks and drops the trace, so the third pass
    # records itself and backward; the next step's first pass follows that trace and prefetches b while a runs
    def stretch(names: str, number: int, *, back: bool = False) -> list[Stretch]:
        marks = [
            calls(name, 1024, begins=begins, is_forward=not back)
            for name in names
            for begins in (True, False)
        ]
        return [Stretch(OUTSIDE, back, marks, number)]

    step = [stretch("ab", 0), stretch("b", 1), stretch("ab", 2), stretch("ba", 2, back=True)]
    rules = Rules(1024, 10, **HERE)
    first, *_ = Coordinator(CallTrace(step, {"a": 1024, "b": 1024}, rules), rules).levels(2)
    before, _, after_a_begins, *_ = first[0]
    assert (before, after_a_begins) == (0, 2 * 2048)

"""The worked examples of ARCHITECTURE.md, "Adding": a strategy and an optimizer, each a row and what it names.

An objective is in tests/test_objectives.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator import (
    Component,
    Method,
    Optimizer,
    Phase,
    Strategy,
    TrainingSetup,
    catalog,
    estimate,
)
from estimator.families.block import Block
from estimator.parallel import strategies
from estimator.parallel.hooks import Hooks
from estimator.parallel.strategies import StrategyRule
from estimator.resident import optimizer
from estimator.resident.model import Resident, undivided
from estimator.resident.optimizer import OptimizerRule, States
from estimator.tape.tape import WEIGHTS, Storage, Tape, Tensor
from estimator.values.arithmetic import allocated
from estimator.values.specs import MixedPrecision, Model

MODEL = catalog.model("HuggingFaceTB/SmolLM2-135M")
SETUP = TrainingSetup(method=Method.LORA, mixed_precision=MixedPrecision.NO, num_gpus=2)


def a_model_of_its_own(name: str) -> Model:
    """What the caches remember of other tests is none of its business."""
    return replace(MODEL, hub_id=name)


# --- a strategy: every GPU keeps half of the frozen weights, and a layer's are brought while it works -------------


class Brought:
    """The weights of one layer, whole from its call to its return."""

    def __init__(self, tape: Tape, block: Block) -> None:
        self.tape = tape
        self.bytes = sum(
            allocated(owned.parameter.elements * owned.parameter.width)
            for owned in block.owned
            if not owned.is_adapter
        )
        self.weights: Storage | None = None

    def enter(self, x: Tensor) -> Tensor:
        self.tape.operation = "weights of the layer"
        self.weights = Storage(self.tape, self.bytes, WEIGHTS)
        return x

    def leave(self, x: Tensor) -> Tensor:
        self.weights = None
        return x


class HalvesHooks(Hooks):
    def layer(self, index: int, block: Block) -> Brought:
        return Brought(self.tape, block)


def halves(model: Model, structure: TrainingSetup) -> Resident:
    whole = undivided(model, structure)
    return replace(whole, weights=whole.weights // 2)


def test_a_strategy_is_its_hooks_what_a_gpu_keeps_and_a_row(monkeypatch):
    model = a_model_of_its_own("halves")
    alone = estimate(model, None, replace(SETUP, num_gpus=1))
    monkeypatch.setitem(strategies.RULES, Strategy.DDP, StrategyRule(HalvesHooks, halves))
    shared = estimate(model, None, replace(SETUP, strategy=Strategy.DDP))
    # Llama's layer: q and o of h², k and v of h · 192, gate, up and down of h · 1536, in 2 bytes; two norms of 1,152
    # bytes, each in three blocks of 512
    h = 576
    layer = 2 * (2 * h * h + 2 * h * 192 + 3 * h * 1536) + 2 * 3 * 512
    weights = {
        way: max(moment.resident[Component.WEIGHTS] for moment in it.moments)
        for way, it in {"alone": alone, "shared": shared}.items()
    }
    assert weights["shared"] == weights["alone"] // 2 + layer


# --- an optimizer: one state of a byte an element, and a copy of everything at its step ----------------------------


def test_an_optimizer_is_a_row(monkeypatch):
    model = a_model_of_its_own("signs")
    rule = OptimizerRule(lambda tensor, width: States(tensor.shape[0], 0), step_copies=1)
    monkeypatch.setitem(optimizer.RULES, Optimizer.ADAGRAD, rule)
    setup = replace(SETUP, num_gpus=1, optim=Optimizer.ADAGRAD, autocast_adapter_dtype=False)
    step = estimate(model, None, setup).phases[Phase.OPTIMIZER_STEP].resident
    # each of 30 layers has seven adapted linears, A of [16, in] and B of [out, 16]: a state has 16 or `out` bytes
    out = 576 + 192 + 192 + 576 + 1536 + 1536 + 576
    assert step[Component.OPTIMIZER_STATES] == 30 * (7 * 16 + out)
    assert step[Component.TEMPORARIES] == step[Component.GRADIENTS]

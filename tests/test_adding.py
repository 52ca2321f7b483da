"""The worked examples of docs/adding.md: an objective, a strategy, an optimizer, a family, a tool, each a
record or a row.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard.words import setup_sentence
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
from estimator.contract.setups import read_setup
from estimator.families import parts, registry
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Why
from estimator.families.family import Family, ModuleClass
from estimator.families.hf_config import ignored_keys, model_from_config
from estimator.families.layers import plain_mlp
from estimator.families.model_tree import layer_class, module_tree, total_parameters
from estimator.families.modules import Tree, tree
from estimator.parallel import strategies
from estimator.parallel.hooks import Hooks
from estimator.parallel.placements import unsharded
from estimator.parallel.strategies import StrategyRule
from estimator.passes.step import Step
from estimator.resident import optimizer
from estimator.resident.model import Resident
from estimator.resident.optimizer import OptimizerRule, States
from estimator.tape import operators as op
from estimator.tape.tape import WEIGHTS, Storage, Tape, Tensor
from estimator.tools.defaults import TOOLS
from estimator.tools.imported import Fate, read_files
from estimator.tools.known import transformers
from estimator.tools.later import MORE, not_modelled
from estimator.tools.lists import under
from estimator.tools.rules import Tool, always, row, same
from estimator.values.arithmetic import allocated
from estimator.values.objective import OBJECTIVES, Objective, TrlTrainer
from estimator.values.refusals import CONTRADICTION, InputError, Refusal, RefusedError
from estimator.values.specs import MixedPrecision, Model

MODEL = catalog.model("HuggingFaceTB/SmolLM2-135M")
SETUP = TrainingSetup(method=Method.LORA, mixed_precision=MixedPrecision.NO, num_gpus=2)


def a_model_of_its_own(name: str) -> Model:
    """Clears the caches that other tests have filled."""
    return replace(MODEL, hub_id=name)


# --- an objective: answers that are good or bad, as KTO's without its divergence ---------------------------------


def bco(step: Step) -> None:
    ids, mask, completions, labels = step.batch(4)
    reference = step.reference()
    loss, *held = step.ask(step.policy(), ids, labels)
    step.ask(step.of_reference(reference), ids, step.ids())
    step.train(loss)
    del mask, completions, held


ODD = Refusal(
    "objective bco trains on as many good answers as bad; {rows} rows are odd.", CONTRADICTION
)


def refuses(setup: TrainingSetup) -> RefusedError | None:
    rows = setup.batch.per_device_train_batch_size
    return ODD(rows=rows) if rows % 2 else None


BCO = Objective(
    "bco",
    bco,
    refuses=refuses,
    phrase="by BCO",
    trl=TrlTrainer(
        "BCO",
        rows='rows of "prompt", "completion" and "label".',
        dataset="trl-lib/kto-mix-14k",
        arguments="min_density_ratio",
        module="trl.experimental.bco",
    ),
    beta=0.1,
    is_preference=True,
    has_reference=True,
    zeroes_dropout=True,
)


def test_an_objective_needs_one_record(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "bco", BCO)
    model, gpu = a_model_of_its_own("bco"), catalog.gpu("A100-SXM4-80GB")
    setup = replace(SETUP, num_gpus=1, objective="bco", per_device_train_batch_size=2)
    ours = estimate(model, gpu, setup)
    same = estimate(model, gpu, setup.replace(objective="kto", loss_type="apo_zero_unpaired"))
    assert ours.phases == same.phases
    assert ours.time == same.time
    # half the time of KTO, whose policy and reference are asked of mismatched answers, too
    kto = estimate(model, gpu, setup.replace(objective="kto"))
    assert ours.time.step_seconds.high < kto.time.step_seconds.high
    with pytest.raises(RefusedError, match="3 rows are odd"):
        estimate(model, gpu, setup.replace(per_device_train_batch_size=3))
    script = f"""
from trl.experimental.bco import BCOConfig, BCOTrainer
args = BCOConfig(beta=0.2, max_length=512, per_device_train_batch_size=2)
BCOTrainer(model="{MODEL.hub_id}", args=args).train()
"""
    read = read_files({"train.py": script}).setup
    assert [read[key] for key in ("objective", "beta", "max_length")] == ["bco", 0.2, 512]
    assert " by BCO " in setup_sentence.text(model, gpu, setup)


# --- a strategy: every GPU keeps half of the frozen weights and gathers a layer's while it runs ------------------


class Brought:
    """One layer's weights, unsharded from its call to its return."""

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
    whole = unsharded(model, structure)
    return replace(whole, weights=whole.weights // 2)


def test_a_strategy_needs_hooks_a_shard_and_a_row(monkeypatch):
    model = a_model_of_its_own("halves")
    alone = estimate(model, None, replace(SETUP, num_gpus=1))
    monkeypatch.setitem(strategies.RULES, Strategy.DDP, StrategyRule(HalvesHooks, halves))
    shared = estimate(model, None, replace(SETUP, strategy=Strategy.DDP))
    # Llama's layer: q and o of h², k and v of h · 192, gate, up and down of h · 1536, in 2 bytes; two norms of 1,152
    # bytes, each in three blocks of 512
    h = 576
    layer = 2 * (2 * h * h + 2 * h * 192 + 3 * h * 1536) + 2 * 3 * 512
    weights = {
        way: max(moment.resident[Component.WEIGHTS] for moment in value.moments)
        for way, value in {"alone": alone, "shared": shared}.items()
    }
    assert weights["shared"] == weights["alone"] // 2 + layer


# --- an optimizer: one state of a byte an element, and a copy of every tensor during its step ----------------------


def test_an_optimizer_needs_one_row(monkeypatch):
    model = a_model_of_its_own("signs")
    rule = OptimizerRule(lambda tensor, width: States(tensor.shape[0], 0), step_copies=1)
    monkeypatch.setitem(optimizer.RULES, Optimizer.ADAGRAD, rule)
    setup = replace(SETUP, num_gpus=1, optim=Optimizer.ADAGRAD, autocast_adapter_dtype=False)
    step = estimate(model, None, setup).phases[Phase.OPTIMIZER_STEP].resident
    # each of 30 layers has seven adapted linears, A of [16, in] and B of [out, 16]: a state has 16 or `out` bytes
    out = 576 + 192 + 192 + 576 + 1536 + 1536 + 576
    assert step[Component.OPTIMIZER_STATES] == 30 * (7 * 16 + out)
    assert step[Component.TEMPORARIES] == step[Component.GRADIENTS]


# --- a family: layers without attention, each a norm and an MLP whose width the config calls mix_size --------------


MIX = plain_mlp("up", "down", "up act down", name="mix", class_name="@Mix")


def mixed_tree(model: Model) -> Tree:
    return tree("@DecoderLayer", norm=parts.norm(model), mix=MIX.tree(model))


def mixed(b: Block, x: Tensor) -> Tensor:
    residual = x
    x = MIX.forward(b, b.norm("norm", x))
    return op.add(b.tape, residual, x)


MIXED = Family(
    model_type="mixed",
    config=ConfigClass(
        tied=True, width=lambda read, hidden: read.whole("mix_size", default=2 * hidden)
    ),
    prefix="Mixed",
    layer=ModuleClass("", mixed_tree, mixed),
    rotary=None,
    unread={Why.NUMBERS: "mix_scale"},
)


def test_a_family_needs_one_record(monkeypatch):
    monkeypatch.setitem(registry.FAMILIES, "mixed", MIXED)
    hidden, width, layers, words = 512, 1536, 3, 1000
    config = {
        "model_type": "mixed",
        "vocab_size": words,
        "hidden_size": hidden,
        "mix_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "mix_scale": 0.5,
    }
    model = model_from_config(config)
    assert ignored_keys(config) == ()
    # the embedding, which is the head too; a norm and two matrices a layer; the last norm
    parameters = words * hidden + layers * (hidden + 2 * hidden * width) + hidden
    assert total_parameters(model) == parameters
    assert [node.name for node in module_tree(model).walk()][5:9] == [
        "model.layers.0.norm",
        "model.layers.0.mix",
        "model.layers.0.mix.up",
        "model.layers.0.mix.act",
    ]
    assert layer_class(model) == "MixedDecoderLayer"
    setup = TrainingSetup(
        mixed_precision=MixedPrecision.NO, gradient_checkpointing=False, max_length=512
    )
    forward = {
        count: estimate(replace(model, num_hidden_layers=count), None, setup)
        .phases[Phase.FORWARD]
        .resident
        for count in (layers, layers + 1)
    }
    assert forward[layers][Component.WEIGHTS] == 2 * parameters
    # for 512 tokens in bfloat16 another layer keeps: the norm's float32 copy of its input and a number a token, both
    # factors of its product with the weight, the activation's input and what the second matrix reads
    kept = 512 * (4 * hidden + 4 + 2 * hidden + 2 * hidden + 2 * width + 2 * width)
    more = forward[layers + 1][Component.ACTIVATIONS] - forward[layers][Component.ACTIVATIONS]
    assert more == kept


# --- a tool: a trainer of TrainingArguments with four keys of its own, as a YAML and as flags -----------------------

LAB = Tool(
    name="lab",
    label="Lab",
    distribution="transformers",
    chains=transformers.CHAINS,
    rules=(
        *transformers.RULES,
        same("args.checkpoint", "model"),
        same("args.row_length", "max_length"),
        row(
            "args.rank",
            "method lora_r",
            lambda theirs, so_far: (
                {"method": "lora", "lora_r": theirs["args.rank"]} if theirs["args.rank"] else {}
            ),
        ),
        always("use_reentrant", True, "Lab checkpoints the older way", "lab 1.0, train.py:12"),
    ),
    later=not_modelled("args", ("ema", "A second copy of the weights is kept", MORE)),
    no_effect=transformers.NO_EFFECT | under("args", "notes"),
    marks=("row_length", "checkpoint"),
    programs=frozenset(["lab"]),
    trains=frozenset(["fit"]),
)


def test_a_tool_needs_one_record(monkeypatch):
    monkeypatch.setitem(TOOLS, "lab", LAB)
    text = f"checkpoint: {MODEL.hub_id}\nrow_length: 512\nrank: 8\nema: true\nnotes: ours\nbf16: true\n"
    run = read_files({"lab.yaml": text})
    keys = ("model", "max_length", "method", "lora_r", "mixed_precision", "use_reentrant")
    assert run.tool == "lab"
    assert [run.setup[key] for key in keys] == [MODEL.hub_id, 512, "lora", 8, "bf16", True]
    assert {key.key: key.fate for key in run.keys} == {
        **dict.fromkeys(("checkpoint", "row_length", "rank", "bf16"), Fate.TAKEN),
        "ema": Fate.NOT_MODELLED,
        "notes": Fate.NO_EFFECT,
    }
    assert [found.source for found in run.set_by_tool if found.key == "use_reentrant"] == [
        "lab 1.0, train.py:12"
    ]
    with_flags = read_files({"lab.yaml": text, "run.sh": "lab fit lab.yaml --row_length 2048"})
    assert with_flags.setup["max_length"] == 2048
    with pytest.raises(InputError, match="no command that trains"):
        read_files({"run.sh": "lab serve lab.yaml"})
    asked = {
        "model": MODEL.hub_id,
        "gpu": "H100-SXM5-80GB",
        "tool": "lab",
        "gradient_checkpointing": True,
    }
    assert read_setup(asked).setup.computation.use_reentrant

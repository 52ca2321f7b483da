"""Needs computed in arrays equal those of single setups to the byte; ``need`` is the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from estimator import (
    OBJECTIVES,
    Method,
    Strategy,
    TrainingSetup,
    Verdict,
    catalog,
    estimate,
    need,
    needs,
    runs,
)
from estimator.families.modules import TINY_LLAMA
from estimator.grid import rows as grid_rows
from estimator.grid.arrays import evaluate, holds
from estimator.grid.needs import needs_on_each
from estimator.grid.reals import RealRecording
from estimator.grid.rows import highest, peaks
from estimator.tape.symbols import Recording, next_power_of_2

CARD = catalog.gpu("A100-SXM4-80GB")
MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")


@pytest.fixture(autouse=True)
def in_arrays(monkeypatch):
    """Forces arrays; small inputs would be computed one by one."""
    monkeypatch.setattr("estimator.grid.runs.FEW", 0)
    monkeypatch.setattr("estimator.grid.needs.SINGLE", 0)


def one_by_one(model, setup, asked):
    """``need`` of each cell; zeros if it is refused."""
    said = []
    for cell in zip(*(values.tolist() for values in asked.values()), strict=True):
        try:
            said.append(
                (*need(model, CARD, replace(setup, **dict(zip(asked, cell, strict=True)))),)
            )
        except ValueError:
            said.append((0, 0))
    return said


def random_cells(seed, count, **choices):
    chance = np.random.default_rng(seed)
    return {
        "per_device_train_batch_size": chance.integers(1, 300, count),
        "max_length": chance.integers(1, 70_000, count),
        "gradient_accumulation_steps": chance.integers(1, 4, count),
        **{key: chance.choice(values, count) for key, values in choices.items()},
    }


def same(model, setup, asked):
    many = needs(model, CARD, setup, **asked)
    assert list(zip(many.low_bytes.tolist(), many.high_bytes.tolist(), strict=True)) == one_by_one(
        model, setup, asked
    )
    return many


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_cell_equals_the_answer_for_its_setup(method, checkpointing):
    setup = TrainingSetup(
        method=method, gradient_checkpointing=checkpointing, eval_strategy="epoch"
    )
    same(MISTRAL, setup, random_cells(1, 60, lora_r=[1, 16, 333]))


@pytest.mark.parametrize(
    "strategy", [strategy for strategy in Strategy if strategy is not Strategy.NONE]
)
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_every_strategy_equals_single_setups(strategy, method):
    parts = 2 if strategy is Strategy.HSDP else 1
    setup = TrainingSetup(
        method=method, strategy=strategy, num_gpus=2 * parts, dp_replicate_size=parts
    )
    gpus = [4, 8] if parts == 2 else [2, 3, 8]
    same(TINY_LLAMA, setup, random_cells(2, 40, num_gpus=gpus, lora_r=[4, 8]))


@pytest.mark.parametrize(
    "name",
    [
        "google/gemma-2-9b",
        "openai/gpt-oss-20b",
        "Qwen/Qwen3-30B-A3B",
        "ibm-granite/granite-4.0-h-tiny",
    ],
)
def test_other_families_equal_single_setups(name):
    """Windows, experts, state spaces: their comparisons split the cells between several records."""
    same(catalog.model(name), TrainingSetup(method="lora"), random_cells(3, 30, lora_r=[8, 16]))


@pytest.mark.parametrize("strategy", [Strategy.DDP, Strategy.ZERO3, Strategy.FSDP], ids=str)
def test_bounds_are_below_the_needs_and_refuse_the_same_cells(strategy):
    setup = TrainingSetup(strategy=strategy, num_gpus=2, eval_strategy="steps")
    asked = random_cells(5, 20, num_gpus=[1, 2, 8])
    found = needs(MISTRAL, CARD, setup, **asked)
    (least,) = needs_on_each(MISTRAL, (CARD,), setup, asked, plays=False)
    assert found.refused.any() == (strategy is not Strategy.ZERO3)  # which runs on one GPU, too
    assert (least.refused == found.refused).all()
    assert (least.low_bytes <= found.low_bytes).all()
    assert (least.high_bytes <= found.high_bytes).all()
    weights = 2 * 7_241_732_096 // (1 if strategy is Strategy.DDP else 8)  # data/models.csv
    assert (least.low_bytes[~least.refused] >= weights).all()


def test_refused_cells_are_marked():
    gpt2 = catalog.model("openai-community/gpt2")
    many = same(
        gpt2,
        TrainingSetup(),
        {"max_length": np.array([512, 1024, 1025]), "num_gpus": np.array([1, 1, 1])},
    )
    assert many.refused.tolist() == [False, False, True]
    alone = needs(TINY_LLAMA, CARD, TrainingSetup(), num_gpus=[1, 2])
    assert alone.refused.tolist() == [False, True]


def test_arrays_broadcast_and_verdicts_match_the_estimate():
    setup = TrainingSetup(method="lora")
    lengths, batches = np.array([256, 4096, 32_768]), np.array([[1], [16]])
    many = needs(MISTRAL, CARD, setup, max_length=lengths, per_device_train_batch_size=batches)
    assert many.low_bytes.shape == (2, 3)
    verdicts = many.verdicts(CARD)
    for row, batch in enumerate((1, 16)):
        for column, length in enumerate(lengths.tolist()):
            one = replace(setup, per_device_train_batch_size=batch, max_length=length)
            said = estimate(MISTRAL, CARD, one).verdict
            assert [verdict for verdict in Verdict if verdicts[verdict][row, column]] == [said]


def test_only_some_keys_accept_arrays():
    with pytest.raises(ValueError, match=r"optim: arrays are taken for per_device"):
        needs(TINY_LLAMA, CARD, TrainingSetup(), optim=[1])


def alike(model, setup, asked):
    """Hours and dollars of each cell match its estimate up to rounding."""
    many = runs(model, CARD, setup, **asked)
    for place, cell in enumerate(zip(*(values.tolist() for values in asked.values()), strict=True)):
        one = estimate(model, CARD, replace(setup, **dict(zip(asked, cell, strict=True))))
        said = one.time.total_hours.low, one.time.total_hours.high
        assert (many.hours.low[place], many.hours.high[place]) == pytest.approx(said, rel=1e-14)
        said = one.cost.cost_usd.low, one.cost.cost_usd.high
        assert (many.dollars.low[place], many.dollars.high[place]) == pytest.approx(said, rel=1e-14)


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"padded": True, "mean_tokens_per_example": 700},
        {"mfu": 0.4, "usd_per_gpu_hour": 2.0},
        {"pace": 0.3, "padded": True},
        {"gradient_checkpointing": True, "offload_checkpoints": True},
    ],
    ids=str,
)
def test_hours_and_dollars_match_each_run(method, keys):
    alike(MISTRAL, TrainingSetup(method=method, **keys), random_cells(4, 25, lora_r=[4, 64]))


@pytest.mark.parametrize("keys", [{}, {"padded": True, "mean_tokens_per_example": 700}], ids=str)
def test_hours_and_dollars_of_a_whole_grid_match_each_run(keys, monkeypatch):
    axes = [1, 3, 200], [128, 2048, 4097, 40_000], [1, 2, 7]
    meshed = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    names = "per_device_train_batch_size", "max_length", "gradient_accumulation_steps"
    asked = dict(zip(names, meshed, strict=True))
    setup = TrainingSetup(num_train_examples=1000, **keys)
    cell_by_cell = "estimator.grid.runs._Group._read_some"
    monkeypatch.setattr(cell_by_cell, lambda *_: pytest.fail("a grid was read cell by cell"))
    alike(MISTRAL, setup, asked)


def test_one_record_covers_both_sides_of_a_maximum(monkeypatch):
    """The host's launches outlast the GPU's work on 16 tokens, and hide behind that on 64 rows of 2,048.

    With ``max`` in place of ``larger``, each side is a record of its own.
    """
    records = []
    monkeypatch.setattr(
        "estimator.grid.runs.RealRecording", lambda: records.append(RealRecording()) or records[-1]
    )
    batches, lengths = np.array([1, 64, 1, 64]), np.array([16, 16, 2048, 2048])
    asked = {"per_device_train_batch_size": batches, "max_length": lengths}
    setup = TrainingSetup(method="lora")
    alike(MISTRAL, setup, asked)
    small, large = (
        estimate(MISTRAL, CARD, replace(setup, **dict(zip(asked, cell, strict=True)))).time.parts
        for cell in ((1, 16), (64, 2048))
    )
    assert {one.name for one in small} - {one.name for one in large} == {"waiting for the host"}
    assert len(records) == 1


@pytest.mark.parametrize(
    "keys",
    [
        {"strategy": "fsdp"},
        {"strategy": "zero3", "offload_param": "cpu", "offload_optimizer": "cpu"},
        {"strategy": "zero2"},
        {"strategy": "device_map"},
    ],
    ids=str,
)
def test_hours_of_several_gpus_match_each_run(keys):
    setup = TrainingSetup(num_gpus=4, **keys)
    alike(MISTRAL, setup, random_cells(5, 12, num_gpus=[2, 4, 8]))


def test_hours_are_unknown_for_a_card_without_rates():
    many = runs(MISTRAL, replace(CARD, memory_bandwidth_gb_per_s=None), TrainingSetup())
    assert np.isnan([many.hours.low, many.dollars.high]).all()


def test_invalid_counts_are_refused():
    with pytest.raises(ValueError, match="max_length holds 0; a count is at least 1"):
        needs(TINY_LLAMA, CARD, TrainingSetup(), max_length=[0, 5])


def test_duplicate_setups_get_duplicate_answers():
    many = needs(TINY_LLAMA, CARD, TrainingSetup(), gradient_accumulation_steps=[1, 2, 9, 1])
    assert many.high_bytes[0] == many.high_bytes[3] < many.high_bytes[1] == many.high_bytes[2]


def test_a_recording_evaluated_in_arrays_matches_each_evaluation():
    recording = Recording()
    number, other = recording.symbol(6), recording.symbol(4)
    total = (number * 7 - other) // 3 + next_power_of_2(number)
    assert number > other
    numbers, others = np.array([6, 5, 2, 4096, 4097]), np.array([4, 4, 4, 1, 9])
    table = evaluate(recording, [numbers, others])
    each = [
        recording.evaluate(cell) for cell in zip(numbers.tolist(), others.tolist(), strict=True)
    ]
    assert table[total.position].tolist() == [one[total.position] for one in each]
    assert holds(recording, table, 5).tolist() == [recording.holds(one) for one in each]


def test_dominated_rows_are_dropped():
    chance = np.random.default_rng(0)
    moments = chance.integers(-2, 5, (200, 4))
    sizes = chance.integers(0, 10**6, (4, 50))
    kept = highest(moments)
    assert len(kept) < len(moments)
    assert ((kept @ sizes).max(axis=0) == (moments @ sizes).max(axis=0)).all()


@pytest.mark.parametrize(
    "keys", [{"method": "lora"}, {"strategy": "zero3", "num_gpus": 4}], ids=str
)
def test_many_cells_need_what_few_do(keys, monkeypatch):
    """Many are read from the moments that no other dominates, few from all; all equal ``need`` in other tests."""
    asked = random_cells(6, 40)
    few = needs(MISTRAL, CARD, TrainingSetup(**keys), **asked)
    monkeypatch.setattr("estimator.grid.needs.FEW", 0)
    many = needs(MISTRAL, CARD, TrainingSetup(**keys), **asked)
    assert few.high_bytes.tolist() == many.high_bytes.tolist()


def test_sums_beyond_the_mantissa_stay_exact():
    """float64 cannot represent 2⁵³ + 1; the row that holds it must still win by one byte."""
    rows = grid_rows.Rows(np.array([[2, 0], [0, 1]]), np.array([1, 0]))
    assert peaks(rows, [np.array([2**52, 1]), np.array([2**53, 2])], 2).tolist() == [2**53 + 1, 3]


@pytest.mark.parametrize("objective", list(OBJECTIVES.values()))
def test_cells_of_every_objective_equal_single_setups(objective):
    model = catalog.model("HuggingFaceTB/SmolLM2-135M")
    setup = TrainingSetup(
        objective=objective, method=Method.LORA, num_generations=2, max_completion_length=32
    )
    many = same(model, setup, random_cells(5, 6))
    assert not many.refused.all()

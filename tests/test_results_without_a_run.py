"""Runs that do not fit show no hours or dollars, and a refused setup is not called too large."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from html import unescape

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dashboard.compare import findings, report, results_table
from dashboard.compare.entry import ComparedEntry
from dashboard.estimate import headroom_map, method_cards, more_gpus, time_and_money, which_gpu
from dashboard.words import one_line
from estimator import Dtype, Method, Strategy, TrainingSetup, Verdict, catalog, estimate
from estimator.contract.text import describe
from estimator.parallel.combinations import refusal, sharing_keys
from estimator.search.limits import MOST_GPUS, WAYS, why_not_shared
from estimator.search.scaling import curves
from tests.test_limits import MODELS, SETUPS, SEVERAL, can_be_trained

MISTRAL, A100 = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
PRICED = st.sampled_from([card for card in catalog.gpus().values() if card.prices])
RUN_WORDS = ("$", "hours", "minutes", " days", "kWh", "tokens per second", "seconds per step")


@settings(max_examples=15)
@given(model=MODELS, gpu=PRICED, setup=st.one_of(SETUPS, SEVERAL))
def test_only_runs_that_may_fit_show_hours_and_dollars(model, gpu, setup):
    assume(can_be_trained(model, setup))
    answer = estimate(model, gpu, setup)
    assume(answer.time is not None and answer.cost is not None)
    entries = [ComparedEntry("it", answer), ComparedEntry("again", answer)]
    rows = {row.label: row.cells[0].text for row in results_table.results(entries)}
    subject = report.Subject(entries, "2026-01-01")
    (of_csv, _) = csv.DictReader(io.StringIO(report.write_csv(subject)))
    row = which_gpu.gpu_row(answer)
    shown = {
        "run": one_line.run(answer),
        "sentence": one_line.run_sentence(answer),
        "card": method_cards.card_html(setup.adapters.method, answer, ""),
        "time": time_and_money.time_html(answer, None, None).replace("no hours or dollars", ""),
        "text": describe(answer).partition("Assumed:")[0],
        "table": f"{rows['Hours']} {rows['Cost']}".strip("– "),
        "csv": of_csv["total_hours_high"] + of_csv["cost_usd_low"],
        "gpus": "" if row["Hours, slow"] is row["Dollars, low"] is None else "numbers",
    }
    bare = {"table", "csv", "gpus"}  # only numbers
    for where, said in shown.items():
        has_run = bool(said) if where in bare else any(word in said for word in RUN_WORDS)
        assert has_run is (answer.verdict is not Verdict.DOES_NOT_FIT), where


# --- refusals -----------------------------------------------------------------------------------


def test_a_refused_strategy_is_not_blamed_on_too_few_gpus():
    # ZeRO-3 shards 4-bit weights only with a float storage dtype (bnb_4bit_quant_storage), whatever the GPUs
    qlora = TrainingSetup(method=Method.QLORA, max_length=32_768, per_device_train_batch_size=64)
    card = catalog.gpu("T4")
    answer = estimate(MISTRAL, card, qlora)
    found = curves(MISTRAL, card, qlora)
    (zero3,) = [curve for curve in found if curve.strategy is Strategy.ZERO3]
    assert all(point.refusal for point in zero3.points if point.num_gpus > 1)
    said = unescape(more_gpus.head_html(found, answer))
    assert "zero3 cannot share it" in said
    assert "under ddp, " in said


def test_single_machine_strategies_are_not_said_to_reach_64_gpus():
    # a device map is one process: at most the 8 GPUs of a machine
    setup = TrainingSetup(dtype=Dtype.FLOAT32)
    llama, card = catalog.model("meta-llama/Llama-3.1-70B"), catalog.gpu("T4")
    said = unescape(more_gpus.head_html(curves(llama, card, setup), estimate(llama, card, setup)))
    assert "under device_map not even on 8" in said


@settings(max_examples=8)
@given(model=MODELS, setup=st.one_of(SETUPS, SEVERAL))
def test_sharing_is_refused_only_if_every_number_of_gpus_is_refused(model, setup):
    assume(can_be_trained(model, setup))
    refusals = []
    for number in (2, 4, 8, 16, 32, MOST_GPUS):
        for way in WAYS:
            if number > setup.mesh.num_gpus:
                shared = replace(setup, **sharing_keys(setup, way, number))
                try:
                    estimate(model, None, shared)
                    refusals.append(refusal(shared) or "")
                except ValueError as problem:
                    refusals.append(refusal(shared) or str(problem))
    assert why_not_shared(model, setup) == (refusals[0] if all(refusals) else "")


def test_a_method_card_says_sharing_is_refused_not_that_64_gpus_are_too_few():
    # layers that share keys and values: only one GPU and DDP are modelled
    model, card = catalog.model("google/gemma-4-E4B-it"), catalog.gpu("T4")
    setup = TrainingSetup(max_length=131_072, per_device_train_batch_size=64)
    answer = estimate(model, card, setup)
    place = method_cards.smallest_place(answer)
    assert isinstance(place, str)
    assert place
    said = method_cards.card_html(Method.FULL, answer, place)
    assert "it cannot be shared" in said
    assert "together" not in said
    assert "together" in method_cards.card_html(Method.FULL, answer, "")


def test_a_refused_scenario_is_not_counted_as_one_that_does_not_fit():
    fits = estimate(MISTRAL, A100, TrainingSetup(method=Method.QLORA))
    too_large = estimate(MISTRAL, A100, TrainingSetup(dtype=Dtype.FLOAT32))
    one, other = ComparedEntry("a", fits), ComparedEntry("b", too_large)
    refused = ComparedEntry("c", None, "no such model")
    assert "Only “a” fits." in findings.answers([one, other, refused])
    assert "Only “a” fits." not in findings.answers([one, refused])


@pytest.mark.parametrize(
    ("headroom", "said"),
    [
        ([[5], [-5]], "512 tokens up to 1."),
        ([[0], [0]], "512 tokens up to 2."),
        ([[-1], [-2]], "512 tokens none."),
        ([[-1], [None]], "512 tokens none."),
        ([[None], [None]], "512 tokens cannot be trained."),
    ],
)
def test_the_maps_text_says_what_cannot_be_trained(headroom, said):
    assert headroom_map.map_alt([1, 2], [512], headroom).endswith(said)

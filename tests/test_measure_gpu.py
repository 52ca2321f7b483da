"""The measuring script without a GPU or torch: its cases, its refusals, its output, and when it stops.

The real libraries run its steps in tests/verify/test_measure_gpu_steps.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from benchmarks import measure_gpu
from benchmarks.gpu.cases import BUILT_IN, DRY_RUN, Case, fits, read_case, read_lines
from benchmarks.gpu.compare import compare, report
from benchmarks.gpu.configs import config_of
from benchmarks.gpu.session import CannotStart, Session, Worker
from benchmarks.gpu.worker import Answer, FoundDevice
from estimator import Method, catalog
from estimator.families.hf_config import model_from_config
from estimator.proof import rows
from estimator.values.specs import STEP_PHASES, Component
from tests.rows import for_each

GIB = 2**30
H100 = catalog.gpu("H100-SXM5-80GB")
FOUND = FoundDevice(
    device="NVIDIA H100 80GB HBM3",
    memory_bytes=H100.memory_bytes,
    free_bytes=H100.memory_bytes - 600 * 2**20,
    compute_capability="9.0",
    packages=frozenset({"torch", "transformers", "accelerate", "peft"}),
    versions="torch 2.13.0; CUDA 13.0",
)
GPT2 = {"model": "openai-community/gpt2"}


def case(**keys: object) -> Case:
    return read_case(GPT2 | keys)


# --- models -------------------------------------------------------------------------------------


@for_each("entry", catalog.models().values())
def test_config_of_a_catalogued_model_round_trips(entry):
    # a measurement builds the text class, with random weights in one dtype: neither towers nor packed weights
    built = replace(entry.model, vision=None, towers=None, quantization=None, stored_width=0)
    assert model_from_config(config_of(entry.model), entry.model.hub_id) == built


# --- cases --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases():
    return [read_case(given) for given in BUILT_IN]


def test_built_in_cases_fit_an_80_gb_card_and_only_the_first_repeats(cases):
    free = FOUND.free_bytes
    assert free is not None
    assert all(fits(each.predicted(H100).peak.bytes, free, 0.05) for each in cases)
    names = [each.id for each in cases]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {names[0]}


def test_the_first_ten_cases_show_every_method_precision_and_checkpointing(cases):
    setups = [each.setup for each in cases[:10]]
    assert {setup.adapters.method for setup in setups} == set(Method)
    assert {setup.computation.gradient_checkpointing for setup in setups} == {True, False}
    assert {setup.precision.dtype.value for setup in setups} >= {"float32", "bfloat16"}
    assert {setup.precision.mixed_precision.value for setup in setups} >= {"no", "bf16"}


@pytest.mark.parametrize(
    "optim", ["paged_adamw_8bit", "paged_adamw_32bit", "paged_adamw", "paged_lion_8bit"]
)
def test_a_paged_optimizer_is_refused_in_one_sentence(cases, optim):
    with pytest.raises(ValueError, match=f"^optim {optim} .* managed memory, .* not paged\\.$"):
        case(optim=optim)
    assert not any(each.setup.optimisation.optim.startswith("paged") for each in cases)


def test_a_what_if_that_no_run_can_have_is_refused():
    with pytest.raises(ValueError, match="optim_state_dtype is a what-if"):
        case(optim="adamw_torch", optim_state_dtype="bfloat16")


def test_lines_are_read_in_order_and_a_bad_one_does_not_affect_the_others():
    lines = [json.dumps(GPT2), "", "[1]", "{", json.dumps(GPT2 | {"max_length": 4096})]
    first, *bad = read_lines(lines)
    assert isinstance(first, Case)
    assert [str(sentence)[:7] for sentence in bad] == ["line 3:", "line 4:", "line 5:"]
    assert "1024 positions" in str(bad[-1])


def test_the_present_gpu_replaces_the_one_a_setup_names():
    named = case(gpu="A100-SXM4-80GB")
    assert json.loads(named.fields(None)) == GPT2
    assert json.loads(named.fields(H100))["gpu"] == "H100-SXM5-80GB"


def test_a_case_lists_the_packages_it_needs():
    assert case().needs == []
    assert case(method="qlora").needs == ["peft", "bitsandbytes"]
    assert case(optim="lion_8bit").needs == ["bitsandbytes"]
    assert case(use_liger_kernel=True).needs == ["liger_kernel"]


# --- rows ---------------------------------------------------------------------------------------


def test_every_shipped_row_is_an_object_of_the_contract_with_source_and_date():
    assert rows.TABLE.read_text("utf-8").splitlines()[0] == ",".join(rows.COLUMNS)
    for row in catalog.measurements():
        assert row.outcome in {rows.MEASURED, rows.OUT_OF_MEMORY}
        assert row.measured
        assert row.source
        assert row.retrieved
        assert "model" in json.loads(row.setup)


def test_rows_round_trip_and_missing_readings_stay_missing(tmp_path):
    table = tmp_path / "rows.csv"
    setup = case(lora_target_modules=["c_attn"], method="lora").fields(H100)
    row: dict[str, str | int | float | None] = {
        "id": 'a "b", c',
        "setup": setup,
        "outcome": rows.MEASURED,
        "allocated_peak_bytes": 7,
        "device_peak_bytes": None,
        "retrieved": "2026-11-21",
    }
    rows.append(table, row)
    rows.append(table, row | {"id": "second"})
    first, second = catalog.measurements(table)
    assert (first.id, second.id) == ('a "b", c', "second")
    assert first.setup == setup
    assert first.readings == {"allocated": {"peak": 7}, "reserved": {}, "device": {}}
    assert first.total_parameters is None


def test_a_table_with_other_columns_is_not_changed(tmp_path):
    table = tmp_path / "other.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="has other columns"):
        rows.append(table, {"id": "x"})
    assert table.read_text() == "a,b\n1,2\n"


# --- a session ----------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Scripted:
    """A fake worker with a fixed time per case and scripted answers."""

    started = 0

    def __init__(self, clock: Clock, found: FoundDevice, answer: Callable[[Case], Answer]) -> None:
        self.found, self._clock, self._answer = found, clock, answer
        Scripted.started += 1

    def ask(self, case: Case, deadline: float) -> Answer:
        self._clock.now += 60
        return self._answer(case)

    def end(self) -> None:
        pass


def measured(case: Case) -> Answer:
    peak = case.predicted(None).peak.bytes
    return Answer("measured", {"allocated_peak_bytes": peak}, "", retire=False)


def session(
    tmp_path: Path,
    found: FoundDevice = FOUND,
    answer: Callable[[Case], Answer] = measured,
    minutes: float = 9,
) -> tuple[Session, list[str]]:
    clock, said = Clock(), []
    Scripted.started = 0
    return (
        Session(
            device="cpu",
            budget_seconds=60 * minutes,
            margin=0.05,
            table=tmp_path / "rows.csv",
            start=lambda _device, _deadline: Scripted(clock, found, answer),
            clock=clock,
            say=said.append,
        ),
        said,
    )


def lengths(*values: int) -> list[Case]:
    return [case(max_length=value) for value in values]


def test_rows_are_written_after_each_case_and_one_process_runs_all(tmp_path):
    run, said = session(tmp_path)
    run.run(lengths(128, 256))
    first, _ = catalog.measurements(tmp_path / "rows.csv")
    assert json.loads(first.setup)["gpu"] == {
        "memory_bytes": H100.memory_bytes,
        "compute_capability": "9.0",
    }
    assert first.gpu == "NVIDIA H100 80GB HBM3"
    assert first.versions == FOUND.versions
    assert Scripted.started == 1
    assert said[-1].startswith("2 measured, 0 out of memory, 0 skipped, 0 failed, 0 left")


def test_it_stops_when_time_is_up_and_reports_the_remaining_cases(tmp_path):
    run, said = session(tmp_path, minutes=2.5)
    run.run(lengths(64, 128, 256, 512, 1024))
    assert len(catalog.measurements(tmp_path / "rows.csv")) == 3  # started at 0, 1 and 2 minutes
    assert said[-1].endswith("2 left for lack of time")


def test_cases_already_in_the_table_for_this_card_and_versions_are_skipped(tmp_path):
    session(tmp_path)[0].run(lengths(128))
    run, said = session(tmp_path)
    run.run(lengths(128, 256))
    assert "the table has it already" in said[0]
    newer, _ = session(tmp_path, FOUND._replace(versions="torch 2.14.0"))
    newer.run(lengths(128))
    again, _ = session(tmp_path)
    again.again = True
    again.run(lengths(128))
    assert len(catalog.measurements(tmp_path / "rows.csv")) == 4


def test_cases_that_do_not_fit_are_skipped_with_both_figures(tmp_path):
    big = read_case({"model": "meta-llama/Llama-2-7b-hf"})
    assert big.predicted(H100).peak.bytes > H100.memory_bytes * 0.6
    run, said = session(tmp_path, FOUND._replace(free_bytes=20 * GIB))
    run.run([big])
    assert "by our estimate it takes" in said[0]
    assert "this card has 20.0" in said[0]
    assert not (tmp_path / "rows.csv").exists()


@pytest.mark.parametrize(("free", "expected"), [(105, True), (104, False)])
def test_five_percent_of_the_peak_must_stay_free(free, expected):
    assert fits(100, free, 0.05) is expected


def test_a_case_whose_package_is_missing_is_skipped(tmp_path):
    run, said = session(tmp_path)
    run.run([case(method="qlora"), case()])
    assert said[0].endswith("bitsandbytes is not installed")
    assert run.outcomes["measured"] == 1


def test_out_of_memory_is_a_row_and_the_next_case_gets_a_new_process(tmp_path):
    def answer(case: Case) -> Answer:
        if case.setup.batch.max_length == 128:
            return Answer("out_of_memory", {"allocated_forward_bytes": 5}, "CUDA: no", retire=True)
        return measured(case)

    run, _ = session(tmp_path, answer=answer)
    run.run(lengths(128, 256))
    first, second = catalog.measurements(tmp_path / "rows.csv")
    assert (first.outcome, first.note) == ("out_of_memory", "CUDA: no")
    assert first.readings["allocated"] == {"forward": 5}
    assert second.outcome == "measured"
    assert Scripted.started == 2


def test_fresh_runs_every_case_in_its_own_process(tmp_path):
    run, _ = session(tmp_path)
    run.fresh = True
    run.run(lengths(64, 128, 256))
    assert Scripted.started == 3


# --- real processes -----------------------------------------------------------------------------

DRY_FOUND = FoundDevice("cpu", None, None, "", frozenset(), "")


def dies_at_128(pipe: Connection, device: str) -> None:
    """A worker that one case kills outright, as the kernel does when the host runs out of memory."""
    pipe.send(DRY_FOUND)
    while (case := pipe.recv()) is not None:
        if case.setup.batch.max_length == 128:
            os._exit(9)
        pipe.send(Answer("measured", {}, "", retire=False))


def hangs(pipe: Connection, device: str) -> None:
    pipe.send(DRY_FOUND)
    pipe.recv()
    pipe.recv()


def finds_none(pipe: Connection, device: str) -> None:
    pipe.send("no GPU here.")


def dies_at_once(pipe: Connection, device: str) -> None:
    os._exit(3)


def real(tmp_path: Path, target: Callable[[Connection, str], None], seconds: float) -> Session:
    return Session(
        device="cpu",
        budget_seconds=seconds,
        margin=0.05,
        table=tmp_path / "rows.csv",
        start=lambda device, deadline: Worker(device, deadline, target),
        say=lambda _line: None,
    )


def test_a_child_that_dies_fails_only_its_own_case(tmp_path):
    run = real(tmp_path, dies_at_128, 60)
    run.run(lengths(64, 128, 256))
    assert (run.outcomes["measured"], run.outcomes["failed"]) == (2, 1)
    assert [json.loads(row.setup)["max_length"] for row in catalog.measurements(run.table)] == [
        64,
        256,
    ]


def test_a_child_that_hangs_is_killed_at_the_end_of_the_budget(tmp_path):
    run = real(tmp_path, hangs, 4)
    run.run(lengths(64, 128))
    assert run.outcomes["left"] == 2
    assert not (tmp_path / "rows.csv").exists()


@pytest.mark.parametrize(
    ("target", "said"), [(finds_none, "no GPU here"), (dies_at_once, "exit status 3")]
)
def test_a_missing_device_is_reported_once(tmp_path, target, said):
    with pytest.raises(CannotStart, match=said):
        real(tmp_path, target, 60).run(lengths(64, 128))


# --- comparing ----------------------------------------------------------------------------------


def reading(case: Case, **factors: float) -> catalog.Measurement:
    """A row with our prediction, times a factor for the named moments."""
    result = case.predicted(H100)
    heights = {phase.value: result.phases[phase].bytes for phase in STEP_PHASES}
    heights["peak"] = result.peak.bytes
    heights["after_load"] = result.peak.resident[Component.WEIGHTS]
    return catalog.Measurement(
        id=case.id,
        setup=case.fields(H100),
        gpu=H100.name,
        outcome=rows.MEASURED,
        measured="",
        readings={
            "allocated": {
                moment: round(size / factors.get(moment, 1)) for moment, size in heights.items()
            }
        },
        total_parameters=None,
        trainable_parameters=None,
        versions="",
        source="",
        retrieved="",
        note="",
    )


def test_comparison_is_predicted_over_measured_by_phase():
    errors = compare(reading(case(), backward=1.02, peak=1.02, loss=0.9)).errors
    assert errors["forward"] == 0
    assert errors["backward"] == pytest.approx(0.02)
    assert errors["loss"] == pytest.approx(-0.1)
    assert errors["after_load"] == 0


def test_report_lists_the_worst_first_and_unpredicted_rows_last():
    right, wrong = case(max_length=128), case(max_length=256)
    out = replace(reading(case()), outcome=rows.OUT_OF_MEMORY, readings={"allocated": {}})
    unknown = replace(reading(case(max_length=512)), setup=json.dumps(GPT2 | {"cp_size": 2}))
    lines = list(report([unknown, out, reading(right), reading(wrong, peak=1.05)]))
    ids = [
        next((each.id for each in (right, wrong) if f" {each.id} (" in line), "") for line in lines
    ]
    assert [name for name in ids if name] == [wrong.id, right.id]
    assert "+5.00" in lines[2]
    assert any(line == "peak: 2 rows, median 2.50 %, largest 5.00 %" for line in lines)
    assert lines[-2].startswith("no prediction: ")
    assert "cp_size 2 is not modelled yet" in lines[-2]
    assert lines[-1].endswith("our verdict: fits")


# --- the command --------------------------------------------------------------------------------


def test_without_torch_the_command_says_what_to_run(monkeypatch, capsys):
    monkeypatch.setattr(measure_gpu, "find_spec", lambda _name: None)
    assert measure_gpu.main([]) == 2
    assert "has no torch; run `make measure`" in capsys.readouterr().err


def test_dry_run_has_all_three_methods_of_a_tiny_model():
    dry = [read_case(given) for given in DRY_RUN]
    assert {each.setup.adapters.method for each in dry} == set(Method)
    assert max(each.predicted(None).total_parameters for each in dry) < 200_000

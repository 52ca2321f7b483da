"""The calibration script without a GPU: measured rows in, the keys of the contract out."""

from __future__ import annotations

import json

import pytest

from benchmarks import calibrate
from benchmarks.gpu.cases import read_case
from estimator import catalog, contract, estimate

A100 = catalog.gpu("A100-SXM4-80GB")


def row(share: float, case: dict[str, object] = calibrate.CASES[0]) -> dict[str, str]:
    """A step measured at this fraction of the range of its estimate."""
    of = read_case(case)
    time = estimate(of.model, A100, of.setup).time
    low, high = time.step_seconds.low, time.step_seconds.high
    return {
        "id": of.id,
        "setup": of.fields(None),
        "gpu": A100.device_name,
        "step_seconds": f"{low + share * (high - low):.9f}",
    }


def test_pace_is_the_median_of_the_measured_steps(tmp_path, capsys):
    rows = [row(0.2), row(0.3, calibrate.CASES[1]), row(0.7, calibrate.CASES[2])]
    rows.append(row(0.9) | {"step_seconds": ""})  # out of memory
    assert calibrate.report(rows, None, tmp_path / "pace.json") == 0
    keys = json.loads((tmp_path / "pace.json").read_text(encoding="utf-8"))
    assert keys["pace"] == pytest.approx(0.3, abs=1e-4)
    assert len(keys["pace_shares"].split("/")) == 5
    assert keys["pace_from"] == "calibrate.py, median of 3 steps, A100-SXM4-80GB"
    assert "--pace=0.3" in capsys.readouterr().out
    # and the contract accepts what was written
    _, _, setup = contract.parse({"model": "openai-community/gpt2", **keys})
    assert setup.run.pace == keys["pace"]


def test_an_uncatalogued_card_must_be_named(tmp_path, capsys):
    rows = [row(0.5) | {"gpu": "NVIDIA Wings"}]
    assert calibrate.report(rows, None, tmp_path / "pace.json") == 2
    assert "NVIDIA Wings is not in the catalogue; name the card" in capsys.readouterr().err
    assert calibrate.report(rows, A100.name, tmp_path / "pace.json") == 0


def test_no_measurement_writes_nothing(tmp_path, capsys):
    assert calibrate.report([], None, tmp_path / "pace.json") == 2
    assert calibrate.report([row(0.5) | {"step_seconds": ""}], None, tmp_path / "pace.json") == 2
    assert not (tmp_path / "pace.json").exists()
    assert "No measured step has seconds." in capsys.readouterr().err


def test_every_case_is_a_valid_setup():
    assert [read_case(case).id for case in calibrate.CASES]

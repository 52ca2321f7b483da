"""The page Accuracy shows every measured run, and the link beside it opens that very setup."""

from __future__ import annotations

from urllib.parse import parse_qs

import plotly.graph_objects as go
import pytest

from dashboard import links, proof
from estimator import Method, TrainingSetup, catalog, estimate, measured_peaks, trust
from estimator.contract import read_link
from tests.test_start_page import open_page

PEAKS = measured_peaks()


def test_no_measured_run_is_left_out():
    rows = [row for row in catalog.measurements() if row.outcome == "measured"]
    shown = [proof.row(peak)["Run"] for peak in proof.worst_first(PEAKS)]
    refused = [proof.refused_row(peak) for peak in PEAKS if peak.estimate is None]
    assert len(shown) + len(refused) == len(rows)
    assert all(len(str(row["Why there is no estimate"])) > 20 for row in refused)


def test_the_worst_comes_first_and_its_error_is_of_the_measured_peak():
    errors = [abs(peak.error) for peak in proof.worst_first(PEAKS)]
    assert errors == sorted(errors, reverse=True)
    for peak in proof.worst_first(PEAKS):
        assert peak.estimate.peak.bytes == pytest.approx(peak.measured_bytes * (1 + peak.error))


def test_one_gpu_s_measured_peaks_are_estimated_to_two_percent_in_the_median_and_six_at_most():
    # the readings: fms-acceleration's a100_80gb.csv; the bars: our own
    for method in Method:
        said = trust(method)
        assert said.runs >= 2
        assert said.median < 0.02
        assert said.largest < 0.06


@pytest.mark.parametrize("peak", proof.worst_first(PEAKS), ids=lambda peak: peak.measurement.id)
def test_the_link_beside_a_run_opens_its_setup(peak):
    read = read_link(parse_qs(links.query(peak.estimate)))
    assert read.problems == ()
    assert (read.model, read.gpu, read.setup) == (
        peak.estimate.model,
        peak.estimate.gpu,
        peak.estimate.setup,
    )


def test_a_link_carries_lists_and_switches_as_the_page_reads_them():
    setup = TrainingSetup(
        method=Method.LORA, lora_target_modules=("q_proj", "v_proj"), gradient_checkpointing=True
    )
    said = parse_qs(links.query(estimate(catalog.model("Qwen/Qwen3-8B"), None, setup)))
    assert said["lora_target_modules"] == ["q_proj", "v_proj"]
    assert said["gradient_checkpointing"] == ["true"]


@pytest.mark.parametrize("dark", [False, True])
def test_plotly_takes_the_figure_and_it_holds_a_point_a_run(dark):
    figure = proof.figure(PEAKS, dark=dark)
    go.Figure(figure)
    points = [trace for trace in figure["data"] if trace["mode"] == "markers"]
    assert sum(len(trace["x"]) for trace in points) == len(proof.worst_first(PEAKS))


def test_the_page_draws_itself():
    page = open_page()
    page.switch_page("pages/accuracy.py").run()
    assert not page.exception
    assert len(page.dataframe) == 2

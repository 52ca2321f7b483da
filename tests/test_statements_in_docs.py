"""Prose is up to date: the changelog's figures, the page's description of itself, and the scripts named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.accuracy import evidence
from estimator import accuracy
from estimator.answer.estimate import estimate
from estimator.contract.setups import parse
from estimator.contract.units import GIB
from estimator.values.results import Estimate

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
EXAMPLE = {"model": "mistralai/Mistral-7B-v0.1", "gpu": "A100-SXM4-80GB", "mixed_precision": "no"}


def size(count: int) -> str:
    return f"{count / GIB:.1f}"


def hours(of: Estimate) -> str:
    return f"{of.time.total_hours.low:.2f} to {of.time.total_hours.high:.2f} hours"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {**EXAMPLE, "optim_state_dtype": "float32"},
            lambda one: (
                f"peak {size(one.peak.bytes)} GiB, needs {size(one.need_low_bytes)} to "
                f"{size(one.need_high_bytes)}, does not fit"
            ),
        ),
        (
            {**EXAMPLE, "method": "qlora"},
            lambda one: (
                f"as QLoRA it needs up to {size(one.need_high_bytes)}, and 10,000 examples take {hours(one)}."
            ),
        ),
    ],
    ids=["example", "qlora"],
)
def test_the_changelog_gives_todays_figures(given, told):
    said = told(estimate(*parse(given)))
    assert said in CHANGELOG, f"its first lines should say: {said}"


def test_the_page_says_reserved_memory_is_simulated_by_the_allocator():
    # estimator.step.reserved: no longer a share of the peak
    said = evidence.summary_html(accuracy.summaries(accuracy.stored_measured()))
    assert "through PyTorch's caching allocator" in said
    assert "middle of what was measured" not in said


def test_the_script_of_the_fitted_shares_runs_without_a_path(tmp_path):
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = ROOT / "benchmarks" / "fit_throughput.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Each source judged by what fits all others" in done.stdout

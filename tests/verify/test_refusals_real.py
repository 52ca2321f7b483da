"""Each line that a refusal cites, checked in the installed library."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from estimator.values.refusals import LIBRARIES, Line
from tests.test_refusals import GENERATOR

LINES = list(
    dict.fromkeys(
        refusal.cause for _, refusal in GENERATOR.refusals() if isinstance(refusal.cause, Line)
    )
)


def installed(library: str) -> Path:
    read, package = LIBRARIES[library]
    try:
        here = version(library).partition("+")[0]
    except PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    assert here == read, (
        f"{library} {here} is installed; read its lines again and say so in LIBRARIES"
    )
    spec = importlib.util.find_spec(package)
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.mark.parametrize("cited", LINES, ids=str)
def test_the_cited_line_supports_the_refusal(cited):
    lines = (installed(cited.library) / cited.path).read_text(encoding="utf-8").splitlines()
    assert cited.text in lines[cited.line - 1]


def test_most_citations_are_checked():
    opened = [
        line for line in LINES if line.library in {"transformers", "peft", "torch", "bitsandbytes"}
    ]
    assert len(opened) > 25

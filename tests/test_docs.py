"""The documents agree with the code: formulas, data columns, commands, units."""

from __future__ import annotations

import csv
import importlib.util
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from estimator.values.parallelisms import PARALLELISMS, TENSOR
from tests.rows import for_each

ROOT = Path(__file__).resolve().parent.parent
GIB_IS_ALLOWED_IN = {
    "dashboard/words/units.py",
    "estimator/answer/own_error.py",
    "estimator/contract/units.py",
    "estimator/contract/placement_request.py",
    "estimator/inference/refusals.py",
}
"""The display edges, the page's and the command line's; accelerate's "24GiB" and PyTorch's error are
read, and vLLM is quoted."""
PLAIN_ARITHMETIC = {"elements"}
"""Products of sizes: nothing to cite."""


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_formulas", ROOT / "docs" / "generate_formulas.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()
FORMULAS = [
    (module, function)
    for module in GENERATOR.formula_modules()
    for function in GENERATOR.formulas(module)
]


def test_formulas_page_matches_the_docstrings():
    written = (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8")
    assert written == GENERATOR.render(), "docs/formulas.md is behind the code; run `make docs`"


@for_each(("module", "function"), FORMULAS)
def test_formula_names_its_quantity_and_its_source(module, function):
    docstring = inspect.getdoc(function) or ""
    name = getattr(function, "__name__", "")
    assert docstring, f"{name} has no docstring"
    if name in PLAIN_ARITHMETIC:
        return
    has_source = any(
        "Source" in text or "derived" in text for text in (docstring, module.__doc__ or "")
    )
    assert has_source, f"{name} names no source (nor does its module)"


@pytest.mark.parametrize(
    "table", sorted((ROOT / "data").glob("*.csv")), ids=lambda path: str(path.name)
)
def test_data_readme_explains_every_column(table):
    readme = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    with table.open(encoding="utf-8", newline="") as lines:
        columns = next(csv.reader(lines))
    missing = [column for column in columns if f"`{column}`" not in readme]
    assert not missing, f"data/README.md does not explain {missing} of {table.name}"


def test_readme_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", _commands(ROOT / "README.md")))
    assert {"run", "test", "verify"} <= named
    assert named <= targets


def test_the_readmes_first_screen_has_the_two_commands():
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:20]
    assert {line.split("#")[0].strip() for line in first_screen} >= {"make run", "make test"}


def test_the_readme_names_every_parallelism_that_is_refused():
    named = [kind.name for kind in PARALLELISMS if " or " not in kind.name and kind.name != TENSOR]
    kinds = [name.removesuffix(" parallelism") for name in named]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"not {', '.join(kinds[:-1])} or {kinds[-1]} parallelism" in readme


def test_links_between_documents_resolve():
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "data").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} → {target}")
    assert not broken


def test_gib_appears_only_at_the_edges():
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("estimator", "dashboard", "pages")
        for path in [*(ROOT / folder).rglob("*.py"), ROOT / "app.py"]
        if re.search(r"2 ?\*\* ?30|1024 ?\*\* ?3|1 ?<< ?30|1_?073_?741_?824", " ".join(_code(path)))
    }
    assert found <= GIB_IS_ALLOWED_IN


def _commands(page: Path) -> str:
    """The code spans and blocks of a Markdown page."""
    text = page.read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL))


def _code(path: Path) -> Iterator[str]:
    """A file's tokens except comments and strings."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type not in {tokenize.COMMENT, tokenize.STRING}:
            yield token.string

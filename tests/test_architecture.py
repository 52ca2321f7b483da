"""Directions that the import contracts of pyproject.toml cannot express."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import estimator
from estimator.values.objective import OBJECTIVES
from estimator.values.setup import FACETS
from tests.rows import for_each

ROOT = Path(__file__).resolve().parent.parent
FACE = sorted(
    [*(ROOT / "pages").glob("*.py"), *(ROOT / "dashboard").rglob("*.py"), ROOT / "app.py"]
)
INDOORS = {
    "csv",
    "pathlib",
    "os",
    "io",
    "time",
    "datetime",
    "random",
    "logging",
    "urllib",
    "socket",
}
"""What reaches files, network, clock or environment."""
ONLY_TEXT = {"urllib.parse"}
"""Modules of these that write and read text."""
DOORS = {
    "catalog.py",
    "own_tables.py",
    "hub.py",
    "__main__.py",
    "rows.py",
    "callback.py",
    "files.py",
    "local_files.py",
    "running.py",
}
"""``rows.py`` and ``callback.py`` write what was measured: a row of a table, with its day, after a step that they time;
``files.py`` reads the files that a command names, by ``local_files.py``;
``own_tables.py`` the folder that ``HEADROOM_DATA`` names; ``running.py`` starts the command that the user rehearses,
and ``on_path/`` is loaded by its processes."""


def _at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                pass
            case _:
                yield node
                yield from _at_run_time(node)


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """Each imported name of a file as (module, name); name is empty for ``import module``."""
    for node in _at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.module or "", alias.name


UP = {"objective.py", "objectives", "passes"}
"""Where a type alone is imported from above: an objective's of the step that it is handed, and a pass's likewise."""


def test_only_objectives_and_passes_name_types_from_above():
    named = {
        path.relative_to(ROOT / "estimator").as_posix()
        for path in (ROOT / "estimator").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in node.body
        if isinstance(inner, ast.ImportFrom) and str(inner.module).startswith("estimator.")
        if not UP & {path.name, path.parent.name}
    }
    assert named == {"__init__.py"}, (
        "import it, or move it up"
    )  # whose arrays are imported on demand


def test_exported_members_are_sorted_and_complete():
    names = list(estimator.__all__)
    order = {True: 0, False: 1}  # constants, then classes, then functions, as ruff's RUF022 sorts
    assert names == sorted(names, key=lambda name: (order[name.isupper()], name[0].islower(), name))
    public = {
        name
        for name, value in vars(estimator).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("estimator.")
    }
    assert public <= set(names), f"estimator.__all__ lacks {sorted(public - set(names))}"
    assert all(hasattr(estimator, name) for name in names)


@for_each("page", FACE)
def test_page_imports_only_public_names(page):
    for module, name in _imports(page):
        assert not module.startswith("estimator."), f"{page.name} reaches into {module}"
        if module == "estimator" and name:
            assert name in estimator.__all__, f"{page.name} imports {name}, which is not public"


@for_each(
    "path",
    [
        path
        for path in sorted((ROOT / "estimator").rglob("*.py"))
        if path.name not in DOORS and "on_path" not in path.parts
    ],
)
def test_only_listed_modules_import_files_network_or_clock(path):
    modules = {module for module, _ in _imports(path)} - ONLY_TEXT
    reached = {module.split(".")[0] for module in modules} & INDOORS
    assert not reached, f"{path.name} imports {sorted(reached)}; only {sorted(DOORS)} may"


def test_one_estimate_imports_only_the_standard_library():
    blocked = ("streamlit", "plotly", "pandas", "numpy", "huggingface_hub")
    script = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
        "import runpy\nsys.argv = ['estimator', 'mistralai/Mistral-7B-v0.1', '--method', 'qlora']\n"
        "runpy.run_module('estimator', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_class_name_means_one_thing_across_the_project():
    found: dict[str, set[str]] = {}
    for path in sorted(
        path
        for folder in ("estimator", "dashboard", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(path.relative_to(ROOT).as_posix())
    twice = {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}
    assert not twice, "give one of them the name of what it is"


def _reads_one_facet(function: ast.FunctionDef) -> bool:
    """Whether a function takes a whole setup and each use of it is of the same facet."""
    given = (*function.args.args, *function.args.kwonlyargs)
    for name in (
        argument.arg
        for argument in given
        if argument.annotation is not None and ast.unparse(argument.annotation) == "TrainingSetup"
    ):
        uses, facets = 0, []
        for node in ast.walk(function):
            match node:
                case ast.Attribute(ast.Name(of), facet) if of == name and facet in FACETS:
                    facets.append(facet)
                case ast.Name(of) if of == name:
                    uses += 1
        if len(set(facets)) == 1 and uses == len(facets):
            return True
    return False


def test_a_function_that_reads_one_facet_of_a_setup_takes_that_facet():
    found, rows = set(), set()
    for path in (ROOT / "estimator").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) if _reads_one_facet(node):
                    found.add(name)
                case ast.Name(name, ast.Load()) if id(node) not in called:
                    rows.add(name)  # of a table, whose functions take the same
    assert not found - rows


DEEPEST = 30
"""Modules of the longest chain in which each imports the next, wherever it does: lower it only."""


def test_no_chain_of_imports_is_longer_than_it_was():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / "estimator").rglob("*.py")
        if path.name != "__init__.py"
    }

    @cache
    def chain(name: str) -> tuple[str, ...]:
        imported = {
            found
            for module, member in _imports(modules[name])
            for found in (module, f"{module}.{member}")
            if found in modules
        }
        return (name, *max(map(chain, imported), key=len, default=()))

    longest = max(map(chain, modules), key=len)
    assert len(longest) <= DEEPEST, longest


RECORDS = {"AttnImplementation": 0, "Strategy": 0, "Loss": 0, "Method": 0, "Optimizer": 0}
"""Words of a setup, and the most places that compare with one instead of asking for a fact: lower them only."""


def _compared(tree: ast.AST) -> Iterator[str]:
    """The word of each member in a comparison, ``is`` to ``in``, or a ``case``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            for part in ast.walk(node):
                match part:
                    case ast.Attribute(ast.Name(word), member) if member.isupper():
                        yield word


def test_a_fact_is_asked_for_and_no_objective_compared_by_its_word():
    """A tool's table alone says what it calls each."""
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno} compares {part.value}"
        for path in (*(ROOT / "estimator").rglob("*.py"), *FACE)
        if path.parent.name != "known"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in OBJECTIVES
    }
    assert not found, "ask for a fact of estimator/values/objective.py"


def test_a_fact_is_asked_for_and_no_record_compared_by_its_name():
    found = Counter(
        word
        for path in (*(ROOT / "estimator").rglob("*.py"), *FACE)
        for word in _compared(ast.parse(path.read_text(encoding="utf-8")))
    )
    grown = {word: found[word] for word, most in RECORDS.items() if found[word] > most}
    assert not grown, "ask for a fact, in the file of the word's class"


LONG = {"_play": 169}
"""Functions of more than 60 lines: the allocator's loop, compiled over twenty arrays that its parts would share."""


def _unread(path: Path) -> Iterator[str]:
    """Functions that a screen does not hold, and values of which no name says what they are."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) if node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if path.is_relative_to(ROOT / "estimator") and lines > LONG.get(name, 60):
                    yield f"{name} has {lines} lines"
            case ast.Name(id="it", ctx=ast.Store()) | ast.arg(arg="it"):
                yield f"line {node.lineno} calls a value it"


def test_a_function_fits_a_screen_and_a_value_is_named_after_what_it_is():
    found = {
        f"{path.relative_to(ROOT)}: {problem}"
        for folder in ("estimator", "dashboard", "pages", "tests", "benchmarks", "docs", "deploy")
        for path in (ROOT / folder).rglob("*.py")
        for problem in _unread(path)
    }
    assert not found, "split it into steps; name the value"


ASKED_FOR = {"on_step_end"}
"""Functions that a library calls by their names."""


def test_no_function_is_there_for_tests_alone():
    defined, used = set(), set()
    for folder in ("estimator", "dashboard", "pages", "benchmarks", "docs", "deploy", "."):
        files = (ROOT / folder).glob("*.py" if folder == "." else "**/*.py")
        for node in (
            node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))
        ):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    if folder in {"estimator", "dashboard"} and not name.startswith("__"):
                        defined.add(name)
                case ast.Name(name) | ast.Attribute(attr=name):
                    used.add(name)
                case ast.Constant(str(text)):
                    used.update(
                        re.findall(r"\w+", text)[:9]
                    )  # as a table or a decorator names them
    assert defined - used == ASKED_FOR

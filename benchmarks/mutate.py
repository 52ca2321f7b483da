"""Which lines could be changed without a test noticing: a mutation score for each folder.

    python benchmarks/mutate.py [estimator/time dashboard/words ...] [--lines 20] [--seed 31] [--jobs 2]

In each folder as many lines are chosen by the seed; on each, one operator, constant or condition is changed, and the
tests that concern the file run, the closest first, until one fails. The working tree is not touched: what is under git
is copied. A change that no test could notice, because it means the same, counts as unnoticed too. Judges nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES = 4
"""Test files that run for one changed line, the closest to it."""
MOST_SECONDS = 300
"""A changed line that makes the tests run longer than this is noticed."""
OPERATORS: dict[type, type] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """One changed line."""

    path: str
    line: int
    before: str
    after: str
    source: str
    """The whole file with the change."""


def changed(node: ast.AST) -> ast.AST | None:
    """A node that means something else; None if this kind is not changed."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            other.ops = [OPERATORS[type(op)]()]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            other.op = OPERATORS[type(op)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.IfExp(test=test):
            other.test = ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value=bool() as value):
            other.value = not value
        case ast.Constant(value=int() | float() as value):
            other.value = value + 1
        case ast.Name(id=name) if name in NAMES:
            other.id = NAMES[name]
        case _:
            return None
    return other


def places(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that may be changed: no annotations, no decorators, and nothing inside an f-string, which has no places."""
    yield node
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                yield from places(child)


def mutants(path: str) -> Iterator[Mutant]:
    """Every single change of a file."""
    text = (ROOT / path).read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in places(ast.parse(text)):
        other = changed(node)
        if other is None or not isinstance(node, ast.expr | ast.stmt):
            continue
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[node.end_lineno - 1] + node.end_col_offset
        new = ast.unparse(other)
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant | ast.Name):
            new = f"({new})"
        whole = (text[:first] + new.encode() + text[last:]).decode()
        yield Mutant(path, node.lineno, text[first:last].decode(), new, whole)


def drawn(folder: str, lines: int, seed: int) -> list[Mutant]:
    """So many lines of a folder, each with one change."""
    by_line = defaultdict(list)
    for path in sorted((ROOT / folder).rglob("*.py")):
        for mutant in mutants(str(path.relative_to(ROOT))):
            by_line[mutant.path, mutant.line].append(mutant)
    chance = random.Random(f"{seed} {folder}")
    chosen = chance.sample(sorted(by_line), min(lines, len(by_line)))
    return [chance.choice(by_line[place]) for place in sorted(chosen)]


@cache
def imported(path: str) -> frozenset[str]:
    """The modules that a file names in its imports; a public name counts as the module that defines it."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
            if node.module == "estimator" and path != "estimator/__init__.py":
                found |= {of for name in node.names for of in public().get(name.name, ())}
    return frozenset(found)


@cache
def public() -> dict[str, tuple[str, ...]]:
    """Modules by the public names that they define, but for ``estimate``, which every test calls."""
    whole = ast.parse((ROOT / "estimator" / "__init__.py").read_text(encoding="utf-8"))
    found = [one for one in whole.body if isinstance(one, ast.ImportFrom) and one.module]
    names = {name.name: (str(one.module),) for one in found for name in one.names}
    return {name: of for name, of in names.items() if name != "estimate"}


@cache
def tests_of(path: str) -> tuple[str, ...]:
    """Test files that concern a source file, the closest first, after its own examples."""
    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    folder, _, name = module.rpartition(".")
    users = [
        str(path.relative_to(ROOT)).removesuffix(".py").replace("/", ".")
        for top in ("estimator", "dashboard")
        for path in (ROOT / top).rglob("*.py")
        if module in imported(str(path.relative_to(ROOT)))
    ]

    def closeness(test: str) -> int:
        names = imported(test)
        beside = sum(name.startswith(f"{folder}.") for name in names)
        through = sum(user in names for user in users)
        same = name in Path(test).stem
        return 100 * (module in names) + 50 * same + 10 * min(through, 4) + min(beside, 9)

    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    own = [file for file in files if not file.startswith(("tests/browser", "tests/verify"))]
    near = sorted((one for one in own if closeness(one)), key=lambda one: (-closeness(one), one))
    return (path, *near[:MOST_FILES])


def fails(copied: Path, tests: Sequence[str]) -> bool:
    """Whether a test fails in a copy of the tree, or the time is over."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        run = subprocess.run(
            command, check=False, cwd=copied, capture_output=True, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    return run.returncode not in (0, 5)  # 5: no test, such as a file without examples


def is_noticed(copied: Path, mutant: Mutant) -> bool:
    """Whether the tests notice the change, made in a copy of the tree."""
    place = copied / mutant.path
    before = place.read_bytes()
    place.write_text(mutant.source, encoding="utf-8")
    try:
        return fails(copied, tests_of(mutant.path))
    finally:
        place.write_bytes(before)


def folders() -> list[str]:
    """All folders of the sources."""
    tops = [ROOT / "estimator", ROOT / "dashboard"]
    inside = (path for top in tops for path in top.iterdir() if any(path.glob("*.py")))
    return sorted(str(one.relative_to(ROOT)) for one in inside)


def copies(number: int, below: Path) -> Iterator[Path]:
    """Copies of what is under git."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for index in range(number):
        for name in filter(None, listed.split("\0")):
            place = below / str(index) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, place)
        yield below / str(index)


def main() -> None:
    """Draw, try and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="*", help="such as estimator/time; all if none is given")
    parser.add_argument("--lines", type=int, default=20, help="lines of each folder")
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at once")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as below:
        free: Queue[Path] = Queue()
        for copied in copies(given.jobs, Path(below)):
            free.put(copied)

        def noticed(mutant: Mutant) -> bool:
            copied = free.get()
            try:
                return is_noticed(copied, mutant)
            finally:
                free.put(copied)

        with ThreadPoolExecutor(given.jobs) as pool:
            for folder in given.folder or folders():
                found = drawn(folder, given.lines, given.seed)
                if fails(
                    free.queue[0], sorted({test for one in found for test in tests_of(one.path)})
                ):
                    print(f"{folder}: its tests fail as it is, or take too long", flush=True)
                    continue
                results = [*zip(found, pool.map(noticed, found), strict=True)]
                score = sum(seen for _, seen in results)
                print(f"{folder}: {score} of {len(results)} noticed", flush=True)
                for one, seen in results:
                    if not seen:
                        print(
                            f"    {one.path}:{one.line}: {one.before}  ->  {one.after}", flush=True
                        )


if __name__ == "__main__":
    main()

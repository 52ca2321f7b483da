"""See the package's docstring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import tests.corpus
from tests.corpus.answers import SETUPS, answer, digests, read
from tests.corpus.draw import drawn, setup_of

HOUSE = Path(__file__).parents[2]


def main(given: Sequence[str]) -> int:
    """Do what is asked; 1 if an answer differs."""
    match given:
        case ["draw", count]:
            with ProcessPoolExecutor() as pool:
                _write(list(pool.map(drawn, range(int(count)), chunksize=8)))
        case ["write"]:
            _write([setup_of(line) for line in read()])
        case ["check", *count]:
            return _check(read(*map(int, count)))
        case ["against", revision, *count]:
            return _against(revision, read(*map(int, count)))
        case _:
            print(tests.corpus.__doc__)
            return 2
    return 0


def _answers(setups: list[dict[str, object]]) -> Iterator[dict[str, Any]]:
    with ProcessPoolExecutor() as pool:
        yield from pool.map(answer, setups, chunksize=8)


def _write(setups: list[dict[str, object]]) -> None:
    lines = [
        json.dumps({"setup": setup, **digests(whole)})
        for setup, whole in zip(setups, _answers(setups), strict=True)
    ]
    SETUPS.write_text("\n".join(lines) + "\n")


def _check(lines: list[dict[str, Any]]) -> int:
    different = 0
    for line, whole in zip(lines, _answers([setup_of(line) for line in lines]), strict=True):
        found = digests(whole)
        changed = [
            part
            for part in {**line, **found}
            if part != "setup" and line.get(part) != found.get(part)
        ]
        if changed:
            different += 1
            print(*changed, json.dumps(line["setup"]))
    print(f"{different} of {len(lines)} answers differ")
    return int(different > 0)


def _against(revision: str, lines: list[dict[str, Any]]) -> int:
    """Both houses answer the same setups, each in processes of its own."""
    setups = [setup_of(line) for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        tree, questions = Path(folder) / "tree", Path(folder) / "questions.jsonl"
        questions.write_text("".join(json.dumps(setup) + "\n" for setup in setups))
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--quiet", tree, revision], cwd=HOUSE, check=True
        )
        try:
            then, now = (_house(where, questions) for where in (tree, HOUSE))
            before, after = (
                [json.loads(line) for line in one.communicate()[0].splitlines()]
                for one in (then, now)
            )
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=HOUSE, check=True)
    different = 0
    for setup, old, new in zip(setups, before, after, strict=True):
        if changes := list(_changes(old, new)):
            different += 1
            print(json.dumps(setup), *changes, sep="\n    ")
    print(f"{different} of {len(setups)} answers differ from {revision}")
    return int(different > 0)


def _house(where: Path, questions: Path) -> subprocess.Popen[str]:
    with questions.open() as asked:
        return subprocess.Popen(
            [sys.executable, "-m", "estimator", "--json"],
            cwd=where,
            env={**os.environ, "PYTHONPATH": str(where)},
            stdin=asked,
            stdout=subprocess.PIPE,
            text=True,
        )


def _changes(old: Any, new: Any, where: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _changes(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _changes(one, other, f"{where}[{number}]")
    elif old != new:
        yield f"{where}: {json.dumps(old)[:300]} -> {json.dumps(new)[:300]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

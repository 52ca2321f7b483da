"""Reads the tools' defaults from their published wheels into ``data/tool_defaults.csv``.

Nothing is imported or run: a wheel is a zip, and its files are read by ``ast``. A row of the table names a package, and
a key as ``holder.name``: a field of a dataclass or a pydantic model, an argument of a function
(``Class.function.name``), an entry of a dict of the module (``NAME.entry``); in a YAML file what follows the first
point is the path. To add a default, add a row with its
``tool``, ``key`` and ``file``; this fills in the rest.

    python benchmarks/tool_defaults.py            compare with the newest wheels, downloaded with pip
    python benchmarks/tool_defaults.py --write    and write what they say
    python benchmarks/tool_defaults.py --wheels D with the wheels of a folder
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from estimator.tools.reading.yaml_text import read_yaml

TABLE = Path(__file__).resolve().parent.parent / "data" / "tool_defaults.csv"
COLUMNS = ("tool", "version", "key", "default", "file", "line")
Row = dict[str, str]
Source = Callable[[str], str]
"""Returns the text of a package's file."""


class MissingError(LookupError):
    """A default that is no longer where the table says."""


def read_default(text: str, key: str) -> tuple[object, int]:
    r"""The default of a key in the source of a module, and its line.

    >>> read_default("class A:\n    size: int = field(default=8, metadata={})", "A.size")
    (8, 2)
    >>> read_default("class A:\n    def load(self, bits=4): ...", "A.load.bits")
    (4, 2)
    >>> read_default("SIZES = {'small': [1, 2]}", "SIZES.small")
    ([1, 2], 1)
    """
    tree = _parsed(text)
    *holders, name = key.split(".")
    holder: ast.AST = tree
    for one in holders:
        holder = _inside(holder, one)
    node = _value(holder, name)
    if node is None:
        raise MissingError(f"{key} is not in the file any more")
    return _literal(node, (holder, tree)), node.lineno


def read_yaml_default(text: str, key: str) -> tuple[object, int]:
    r"""The default of a key in a YAML file, whose path follows the first point, and its line.

    >>> read_yaml_default("trainer:\n  nnodes: 1", "ppo_trainer.trainer.nnodes")
    (1, 2)
    """
    wanted = tuple(key.split(".")[1:])
    for found in read_yaml(text, "the file").keys:
        if found.path == wanted:
            return found.value, found.line
    raise MissingError(f"{key} is not in the file any more")


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _inside(holder: ast.AST, name: str) -> ast.AST:
    for node in ast.walk(holder):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and _targets(node) == [name]:
            return node.value
    raise MissingError(f"{name} is not in the file any more")


def _targets(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _value(holder: ast.AST, name: str) -> ast.expr | None:
    if isinstance(holder, ast.FunctionDef):
        return _argument(holder, name)
    if isinstance(holder, ast.ClassDef):
        for node in holder.body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
                return node.value
        return None
    return _entry([holder], name)


def _argument(function: ast.FunctionDef, name: str) -> ast.expr | None:
    given = function.args
    named = [*given.posonlyargs, *given.args]
    late = zip(named[len(named) - len(given.defaults) :], given.defaults, strict=True)
    of = {one.arg: value for one, value in late}
    of |= {
        one.arg: value
        for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if value
    }
    return of.get(name)


def _entry(nodes: Iterable[ast.AST], name: str) -> ast.expr | None:
    for node in nodes:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    return value
    return None


def _literal(node: ast.expr, scopes: Sequence[ast.AST]) -> object:
    """The value of an expression: a literal, a field's default, or the last value assigned to a name."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.Name):
        for scope in scopes:
            found = [
                one
                for one in ast.walk(scope)
                if isinstance(one, ast.Assign) and _targets(one) == [node.id]
            ]
            if found:
                return _literal(found[-1].value, scopes)
    if isinstance(node, ast.Call):
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "default" in given:
            return _literal(given["default"], scopes)
        if (made := given.get("default_factory")) is not None:
            return _literal(made.body, scopes) if isinstance(made, ast.Lambda) else _made(made)
        if node.args and ast.unparse(node.func) in {"Field", "pp_int"}:
            return _literal(node.args[0], scopes)
        if ast.unparse(node.func) == "Field":
            return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _literal(node.left, scopes), _literal(node.right, scopes)
        if isinstance(left, int) and isinstance(right, int):
            return left * right
    return ast.unparse(node)


def _made(factory: ast.expr) -> object:
    return {"list": [], "dict": {}}.get(ast.unparse(factory), ast.unparse(factory))


# --- wheels -------------------------------------------------------------------------------------


def wheel_source(wheel: Path) -> tuple[str, Source]:
    """The version of a wheel, and a reader of its files."""
    with zipfile.ZipFile(wheel) as opened:
        kept = {
            name: opened.read(name) for name in opened.namelist() if name.endswith((".py", ".yaml"))
        }
    return wheel.name.split("-")[1], lambda file: kept[file].decode()


def downloaded(folder: Path, tool: str) -> Path:
    """Downloads the newest wheel of a package, without its dependencies."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(folder),
            tool,
        ],
        check=True,
    )
    return found_in(folder, tool)


def found_in(folder: Path, tool: str) -> Path:
    """The wheel of a package in a folder."""
    stem = tool.replace("-", "_")
    wheels = sorted(folder.glob(f"{stem}-*.whl"))
    if not wheels:
        raise MissingError(f"there is no wheel of {tool}")
    return wheels[-1]


def reread(rows: Sequence[Row], wheel_of: Callable[[str], Path]) -> list[Row]:
    """The same rows with the wheels' values."""
    read = {
        tool: wheel_source(wheel_of(tool)) for tool in dict.fromkeys(row["tool"] for row in rows)
    }
    return [read_row(row, *read[row["tool"]]) for row in rows]


def read_row(row: Mapping[str, str], version: str, file: Source) -> Row:
    """One row with the package's value."""
    try:
        read = read_yaml_default if row["file"].endswith(".yaml") else read_default
        value, line = read(file(row["file"]), row["key"])
    except (KeyError, MissingError) as problem:
        raise MissingError(f"{row['tool']} {version}, {row['file']}: {problem}") from None
    return {
        "tool": row["tool"],
        "version": version,
        "key": row["key"],
        "default": json.dumps(value),
        "file": row["file"],
        "line": str(line),
    }


def table() -> list[Row]:
    """The rows of the table."""
    with TABLE.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def moved(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """A sentence for each default that has changed."""
    return [
        f"{new['tool']} {new['version']}: {new['key']} is {new['default']}, not {old['default']} as in "
        f"{old['version']} ({new['file']}:{new['line']})"
        for old, new in zip(before, after, strict=True)
        if old["default"] != new["default"]
    ]


def main() -> int:
    """Compares, and writes if asked to; returns 1 if a default has changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, help="a folder that has the wheels")
    parser.add_argument("--write", action="store_true", help="write the table anew")
    given = parser.parse_args()
    before = table()
    with tempfile.TemporaryDirectory() as made:
        folder = given.wheels or Path(made)
        find = found_in if given.wheels else downloaded
        after = reread(before, lambda tool: find(folder, tool))
    said = moved(before, after)
    print(*said or ["no default has moved"], sep="\n")
    if given.write:
        with TABLE.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.DictWriter(opened, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(after)
        return 0
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())

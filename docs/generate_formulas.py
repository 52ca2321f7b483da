"""Write docs/formulas.md from the docstrings of the formulas, so that the page cannot say what the code does not.

Run ``make docs`` after a docstring changes; ``tests/test_docs.py`` fails while the file is behind.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "formulas.md"
PACKAGES = (
    "estimator.families.modules",
    "estimator.families.model_tree",
    "estimator.families.adapters",
    "estimator.families.packed",
    "estimator.families.weights",
    "estimator.tape",
    "estimator.resident",
    "estimator.parallel.assumptions",
    "estimator.parallel.computed",
    "estimator.parallel.fsdp1",
    "estimator.parallel.fsdp2",
    "estimator.parallel.module_devices",
    "estimator.parallel.network",
    "estimator.parallel.offload",
    "estimator.parallel.placement",
    "estimator.parallel.placements",
    "estimator.parallel.sharding",
    "estimator.parallel.tensors",
    "estimator.parallel.zero",
    "estimator.parallel.zero_partitions",
    "estimator.parallel.zero3_coordinator",
    "estimator.step.blocks",
    "estimator.step.reserved",
    "estimator.time.flops",
    "estimator.time.lengths",
    "estimator.time.rates",
    "estimator.time.products",
    "estimator.time.between",
    "estimator.time.recurrences",
    "estimator.time.optimizer_time",
    "estimator.time.host_time",
    "estimator.time.exchange_time",
    "estimator.time.spread",
    "estimator.time.throughput",
    "estimator.time.cost",
    "estimator.time.interruptions",
)
"""Where the formulas are: a module, or a package with all its modules."""

HEAD = """\
# Formulas

Every figure on the page comes from one of these functions. This file is written from their docstrings by
`make docs`; a test fails while it is behind. `>>>` lines are run as tests.
"""


def formula_modules() -> Iterator[ModuleType]:
    """The modules that hold formulas, in order of name."""
    for name in PACKAGES:
        module = importlib.import_module(name)
        yield module
        for found in sorted(
            pkgutil.iter_modules(getattr(module, "__path__", []), name + "."),
            key=lambda info: info.name,
        ):
            yield importlib.import_module(found.name)


def formulas(module: ModuleType) -> list[Callable[..., object]]:
    """The public functions that a module defines, in the order of the file."""
    own = [
        function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    ]
    return sorted(own, key=lambda function: function.__code__.co_firstlineno)


def render() -> str:
    """The whole of docs/formulas.md."""
    parts = [HEAD]
    for module in formula_modules():
        functions = formulas(module)
        if not functions:
            continue
        path = module.__name__.replace(".", "/")
        parts.append(f"## `{path}.py`\n\n{inspect.getdoc(module)}\n")
        for function in functions:
            arguments = ", ".join(inspect.signature(function).parameters)
            text = inspect.getdoc(function) or ""
            parts.append(f"### `{function.__name__}({arguments})`\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")

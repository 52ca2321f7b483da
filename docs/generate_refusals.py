"""Write docs/refusals.md from the refusals that the code declares, so that the page can list no other.

Run ``make docs`` after a refusal changes; ``tests/test_refusals.py`` fails while the file is behind.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "refusals.md"
sys.path.insert(0, str(ROOT))

import estimator  # noqa: E402  run as a script, the package is beside its folder
from estimator.families.registry import BEYOND  # noqa: E402
from estimator.parallel.combinations import RULES  # noqa: E402
from estimator.values.refusals import (  # noqa: E402
    CONTRADICTION,
    LIBRARIES,
    NOT_MODELLED,
    Cause,
    Line,
    Ours,
    Refusal,
)

HEAD = """\
# Refusals

Every way in which a setup is refused, and its cause. This file is written from the code by `make docs`; a test fails
while it is behind, another opens each cited file of the installed libraries and looks for the cited line. In braces
stand the setup's own values. What is no question at all (a word where a number belongs, an unknown key, sizes of a
config that contradict each other) is not listed: the sentence says what to correct.
"""

SECTIONS = (
    (
        "The libraries stop at it",
        "The line at which a real run stops, or the address that reports it.",
    ),
    (
        "Not modelled yet",
        "The libraries run these, and no formula here knows them. They are refused rather than guessed.",
    ),
    ("The setup contradicts itself", "No library would be asked: two keys cannot both be meant."),
)


def refusals() -> Iterator[tuple[str, Refusal]]:
    """Every record that the package declares, with the file that raises it."""
    for found in pkgutil.walk_packages(estimator.__path__, "estimator."):
        if found.ispkg or found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        path = found.name.replace(".", "/") + ".py"
        own = (one for name, one in sorted(vars(module).items()) if name.isupper())
        yield from ((path, one) for one in own if isinstance(one, Refusal))
    yield from (("estimator/parallel/combinations.py", rule.refusal) for rule in RULES)


def _section(cause: Cause) -> int:
    return {NOT_MODELLED: 1, CONTRADICTION: 2}[cause] if isinstance(cause, Ours) else 0


def _cause(cause: Cause) -> str:
    if isinstance(cause, Line):
        version, package = LIBRARIES[cause.library]
        text = f"`` {cause.text} ``" if "`" in cause.text else f"`{cause.text}`"
        return f"{cause.library} {version}, `{package}/{cause.path}:{cause.line}`: {text}"
    return f"<{cause}>"


def _cell(text: str) -> str:
    shown = re.sub(r"\{(?:s\.)?(\w+)(?:![rs])?(?::\w+)?\}", r"{\1}", text)
    return shown.replace("|", "\\|")


def render() -> str:
    """The whole of docs/refusals.md."""
    listed: list[list[tuple[str, Refusal]]] = [[], [], []]
    for path, refusal in dict.fromkeys(refusals()):
        listed[_section(refusal.cause)].append((path, refusal))
    parts = [HEAD]
    for number, (title, lead) in enumerate(SECTIONS):
        rows = [f"\n## {title}\n\n{lead}\n\n"]
        if number == 0:
            rows.append("| what is said | cause | raised in |\n|---|---|---|\n")
            rows += [
                f"| {_cell(refusal.sentence)} | {_cell(_cause(refusal.cause))} | `{path}` |\n"
                for path, refusal in listed[number]
            ]
        else:
            rows.append("| what is said | raised in |\n|---|---|\n")
            rows += [
                f"| {_cell(refusal.sentence)} | `{path}` |\n" for path, refusal in listed[number]
            ]
        if number == 1:
            rows.append("\nArchitectures that are asked for and not modelled yet:\n\n")
            rows.append("| model_type | why |\n|---|---|\n")
            rows += [f"| `{name}` | {why} |\n" for name, why in sorted(BEYOND.items())]
        parts.append("".join(rows))
    return "".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")

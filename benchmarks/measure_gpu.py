"""Measures real training steps on this machine's GPU, and compares our estimates with such measurements.

    python benchmarks/measure_gpu.py                    the built-in setups, appended to data/measurements.csv
    python benchmarks/measure_gpu.py setups.jsonl       setups of one's own, one JSON object of the contract a line
    python benchmarks/measure_gpu.py --compare          predicted against measured, in percent, worst first
    python benchmarks/measure_gpu.py --device cpu       the same steps of a tiny model, to see that the script runs

Needs an interpreter with torch for CUDA, transformers and accelerate; cases that need peft, bitsandbytes, flash-attn or
liger-kernel are skipped where these are missing. Models are built with random weights: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # so that any interpreter can run this file, from anywhere

from benchmarks.gpu.cases import (  # noqa: E402
    BUILT_IN,
    DEFAULT_MARGIN,
    DRY_RUN,
    Case,
    read_case,
    read_lines,
)
from benchmarks.gpu.compare import report  # noqa: E402
from benchmarks.gpu.session import CannotStart, Session  # noqa: E402
from estimator import catalog  # noqa: E402
from estimator.proof import rows  # noqa: E402

NEEDED = ("torch", "transformers", "accelerate")


def main(arguments: Sequence[str]) -> int:
    """Runs one command; returns the exit status."""
    given = _parser().parse_args(arguments)
    table = given.output or (None if given.device == "cpu" else rows.TABLE)
    if given.compare:
        print(*report(catalog.measurements(table or rows.TABLE)), sep="\n")
        return 0
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"{sys.executable} has no {missing[0]}; run `make measure`, or name a Python that has "
            f"{', '.join(NEEDED)}.",
            file=sys.stderr,
        )
        return 2
    cases, refused = _cases(given.setups, given.device)
    session = Session(
        device="cpu" if given.device == "cpu" else "cuda:0",
        budget_seconds=60 * given.minutes,
        margin=given.margin / 100,
        table=table,
        again=given.again,
        fresh=given.fresh,
        say=_say,
    )
    if table is None:
        _say("Nothing is written, since no --output is given: a CPU has no readings.")
    try:
        session.run(cases)
    except CannotStart as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return int(bool(refused or session.outcomes["failed"]))


def _say(line: str) -> None:
    print(line, flush=True)


def _cases(setups: Path | None, device: str) -> tuple[list[Case], int]:
    """The cases, and the number of refused setups (each with a sentence on standard error)."""
    if setups is None:
        return [read_case(given) for given in (DRY_RUN if device == "cpu" else BUILT_IN)], 0
    with setups.open(encoding="utf-8") as lines:
        read = list(read_lines(lines))
    return list(_told(read)), sum(isinstance(case, str) for case in read)


def _told(read: Iterable[Case | str]) -> Iterable[Case]:
    for case in read:
        if isinstance(case, str):
            print(f"refused   {case}", file=sys.stderr)
        else:
            yield case


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python benchmarks/measure_gpu.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("setups", nargs="?", type=Path, help="a file of setups, one JSON object a line")
    add("--compare", action="store_true", help="print predicted against measured, and measure none")
    add("--output", type=Path, help="the table that rows are appended to [data/measurements.csv]")
    add("--minutes", type=float, default=9.0, help="stop after so long, with what there is [9]")
    add(
        "--margin",
        type=float,
        default=100 * DEFAULT_MARGIN,
        help="percent of our predicted peak that must be free beyond it; below 0 tries what we say does not fit [5]",
    )
    add("--again", action="store_true", help="measure also what the table holds already")
    add("--fresh", action="store_true", help="a process of its own for each case: slower")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="[cuda]")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

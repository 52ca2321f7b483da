"""Find the pace of this machine's GPU in three minutes: where its steps fall between the ends of our estimate.

    python benchmarks/calibrate.py [--gpu NAME] [--output pace.json]

Runs a few real training steps as `make measure` does: random weights, nothing downloaded, nothing added to data/. It
compares their seconds with the estimated ranges, and writes keys of the contract: `pace`, and what it was taken from.
Any setup with these keys is estimated for this machine: add them to a JSON line, to a link, or take the printed flags.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # so any interpreter can run this file from any folder

from benchmarks.gpu.cases import DEFAULT_MARGIN, read_case  # noqa: E402
from benchmarks.gpu.session import CannotStart, Session  # noqa: E402
from estimator import catalog, contract, estimate, own_step  # noqa: E402
from estimator.values.range import Range  # noqa: E402
from estimator.values.specs import Gpu  # noqa: E402

MINUTES = 3.0
CHECKPOINTED = {"gradient_checkpointing": True}
CASES: tuple[dict[str, object], ...] = (
    {"model": "Qwen/Qwen2.5-0.5B", "method": "full", "max_length": 2048, **CHECKPOINTED},
    {
        "model": "meta-llama/Llama-3.2-1B",
        "method": "full",
        "max_length": 2048,
        "per_device_train_batch_size": 2,
        **CHECKPOINTED,
    },
    {
        "model": "meta-llama/Llama-3.2-3B",
        "method": "lora",
        "max_length": 2048,
        "per_device_train_batch_size": 2,
        **CHECKPOINTED,
    },
    {"model": "meta-llama/Llama-3.1-8B", "method": "lora", "max_length": 2048, **CHECKPOINTED},
)
"""From small to large, so a small card fits some; those that do not fit are skipped."""


class Timed(NamedTuple):
    """One measured step with its estimate."""

    id: str
    seconds: float
    estimated: Range[float]
    pace: float
    shares: str


def timed(rows: Iterable[Mapping[str, str]], gpu: Gpu) -> list[Timed]:
    """The measured rows with their estimated seconds on this card; rows without seconds are skipped."""
    found = []
    for row in rows:
        if not row["step_seconds"]:
            continue
        keys = {name: value for name, value in json.loads(row["setup"]).items() if name != "gpu"}
        model, _, setup = contract.parse(keys)
        answer = estimate(model, gpu, setup)
        own = own_step(answer, row["step_seconds"])
        assert answer.time is not None
        seconds, estimated = float(row["step_seconds"]), answer.time.step_seconds
        found.append(Timed(row["id"], seconds, estimated, own["pace"], own["pace_shares"]))
    return found


def calibrated(found: Sequence[Timed], gpu: Gpu) -> dict[str, object]:
    """The keys ``pace``, ``pace_from`` and ``pace_shares``: the median of the measured steps."""
    pace = statistics.median_low(one.pace for one in found)
    of = f"median of {len(found)} steps" if len(found) > 1 else "one step"
    return {
        "pace": float(f"{pace:.6g}"),
        "pace_from": f"calibrate.py, {of}, {gpu.name}",
        "pace_shares": next(one.shares for one in found if one.pace == pace),
    }


def card(device: str, named: str | None) -> Gpu:
    """The catalogued card of this device; without one, ``ValueError`` says what to do."""
    if named is not None:
        return catalog.gpu(named)
    known = [gpu for gpu in catalog.gpus().values() if gpu.device_name == device]
    if len(known) != 1:
        raise ValueError(
            f"{device} is {'not' if not known else 'more than once'} in the catalogue; name the card: --gpu NAME."
        )
    return known[0]


def main(arguments: Sequence[str]) -> int:
    """Measure, compare and write; returns the exit status."""
    given = _parser().parse_args(arguments)
    if find_spec("torch") is None:
        print(f"{sys.executable} has no torch; run `make calibrate`.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "steps.csv"
        session = Session(
            device="cuda:0",
            budget_seconds=60 * MINUTES,
            margin=DEFAULT_MARGIN,
            table=table,
            again=True,
        )
        try:
            session.run([read_case(case) for case in CASES])
        except CannotStart as problem:
            print(problem, file=sys.stderr)
            return 2
        rows = list(csv.DictReader(table.open(encoding="utf-8"))) if table.exists() else []
    return report(rows, given.gpu, given.output)


def report(rows: Sequence[Mapping[str, str]], named: str | None, output: Path) -> int:
    """Print the steps with their ranges, and write the keys."""
    try:
        if not rows:
            raise ValueError("No step could be measured.")
        gpu = card(rows[0]["gpu"], named)
        found = timed(rows, gpu)
        if not found:
            raise ValueError("No measured step has seconds.")
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    for run in found:
        print(
            f"{run.seconds:9.3f} s, estimated {run.estimated.low:.3f} to {run.estimated.high:.3f}   {run.id}"
        )
    keys = calibrated(found, gpu)
    output.write_text(json.dumps(keys) + "\n", encoding="utf-8")
    print(f"\n{output}: {json.dumps(keys)}")
    flags = f"--pace={keys['pace']} --pace-shares {keys['pace_shares']}"
    print(f"{flags} --pace-from {shlex.quote(str(keys['pace_from']))}")
    return 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python benchmarks/calibrate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--gpu", help="a card of the catalogue [the one that the driver names]")
    parser.add_argument("--output", type=Path, default=Path("pace.json"), help="[pace.json]")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Write how near the estimates come into docs/accuracy.md, which readings were left out into data/README.md, and what
the estimates of all runs come to into data/estimated.csv and data/replayed.csv.

Run ``make docs`` after an estimate or a table changed; ``tests/test_proof.py`` fails while a page is behind.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dashboard.accuracy import evidence  # noqa: E402  run as a script, the packages are beside its folder
from estimator import accuracy, catalog  # noqa: E402
from estimator.proof import outcomes, replays  # noqa: E402

ESTIMATED, REPLAYED = ROOT / "data" / "estimated.csv", ROOT / "data" / "replayed.csv"
ACCURACY, DATA_README = ROOT / "docs" / "accuracy.md", ROOT / "data" / "README.md"


def accuracy_table() -> str:
    """The summary of the page Accuracy as Markdown."""
    head, *rows = evidence.summary_rows(
        accuracy.summaries((*accuracy.stored_measured(), *accuracy.stored_traced()))
    )
    found = accuracy.agreement(evidence.CAPACITIES)
    return (
        f"{_markdown(head, rows)}\nOf {found.pairs:,} pairs of a measured run and a card of 15 to 141 GiB that get a "
        f"plain yes or no, {100 * found.share:.1f} %\nagree with what was measured; the range of the need is "
        f"{100 * found.width:.1f} % wide in the median.\n"
    )


def played_table() -> str:
    """How near our allocator comes to PyTorch's, as Markdown."""
    head, *rows = evidence.played_rows(replays.spreads(replays.stored()))
    return _markdown(head, rows)


def left_out_table() -> str:
    """Why published readings are no rows of data/measurements.csv, with counts."""
    counts = Counter(row["reason"] for row in catalog.left_out())
    rows = [(reason, str(count)) for reason, count in counts.most_common()]
    return _markdown(("reason", "readings"), rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ("---", *("---:" for _ in head[1:])), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


PLACES: tuple[tuple[Path, str, Callable[[], str]], ...] = (
    (ACCURACY, "accuracy", accuracy_table),
    (ACCURACY, "played", played_table),
    (DATA_README, "left out", left_out_table),
)
"""A page, what stands there between two comments, and what writes it."""


def render(page: str, name: str, write: Callable[[], str]) -> str:
    """The page with what is so today."""
    begin, end = f"<!-- {name}: written by make docs -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{write()}{end}{after}"


def write_table(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV table."""
    with path.open("w", encoding="utf-8", newline="") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerow(head)
        table.writerows(rows)
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    write_table(ESTIMATED, outcomes.COLUMNS, outcomes.rows_of(accuracy.computed()))
    write_table(REPLAYED, replays.COLUMNS, ((one.row.id, *one.ours) for one in replays.computed()))
    for path, name, write in PLACES:
        path.write_text(render(path.read_text(encoding="utf-8"), name, write), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")

"""Write docs/rules_of_thumb.md: advice that people follow, beside what the same run needs at three lengths.

Run ``make docs`` after an estimate changes; ``tests/test_rules_of_thumb.py`` fails while the file is behind.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "rules_of_thumb.md"
sys.path.insert(0, str(ROOT))

from estimator import catalog, contract, estimate  # noqa: E402  run as a script, the package is beside its folder

LENGTHS = (512, 2048, 8192)
"""Tokens of the one row of a micro-batch, of which no rule speaks."""
ROW = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
"""The smallest micro-batch, several of which make a step."""
GB = 1e9
HEAD = """\
# Headroom beside the rules of thumb

Twenty questions that people answer by a table or a rule of thumb, and what the same run needs, in GB (10⁹ bytes) of one
GPU, low to high, at a micro-batch of one row of 512, 2,048 and 8,192 tokens, eight of which make a step; the rules
mention neither. The other keys are the defaults of the named tool's newest version, or Trainer's. These are estimates
beside advice, not measurements (the page Accuracy has those). This file is written from `data/rules_of_thumb.csv`
by `make docs`.

| advice | says | 512 tokens | 2,048 tokens | 8,192 tokens | at 2,048 tokens the advice is |
|---|---:|---:|---:|---:|---|
"""


def render() -> str:
    """The page."""
    rules = catalog.rules_of_thumb()
    rows, verdicts = [], []
    for rule in rules:
        needs = []
        for length in LENGTHS:
            one = estimate(*contract.setups.parse({**rule.setup, **ROW, "max_length": length}))
            needs.append((one.need_low_bytes / GB, one.need_high_bytes / GB))
        verdict = _verdict(rule.says_gb, *needs[1])
        verdicts.append(verdict.split()[0])
        cells = [f"{low:.1f} to {high:.1f}" for low, high in needs]
        rows.append(
            f"| [{rule.advice}]({rule.source}) | {rule.says_gb:g} | {' | '.join(cells)} | {verdict} |"
        )
    counts = {word: verdicts.count(word) for word in ("short", "within", "generous")}
    summary = (
        f"Of {len(rules)}, {counts['short']} are short at 2,048 tokens, where by the estimate the run stops on a card "
        f"of that size; "
        f"{counts['within']} within the bracket, {counts['generous']} above it."
    )
    sources = sorted({f"- {rule.source}, read {rule.retrieved}" for rule in rules})
    said = "\n".join(sources)
    return HEAD + "\n".join(rows) + f"\n\n{summary}\n\nSources:\n\n{said}\n"


def _verdict(says: float, low: float, high: float) -> str:
    if says < low:
        return f"short by {low - says:.1f} GB"
    if says <= high:
        return "within the bracket"
    return f"generous by {says - high:.1f} GB ({100 * (says / high - 1):.0f} %)"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")

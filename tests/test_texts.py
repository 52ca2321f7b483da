"""No text of 120 random setups repeats a mistake once found."""

from __future__ import annotations

import csv
import io
import random
import re
from collections.abc import Iterator
from html import unescape

import pytest

from dashboard.compare import report, results_table
from dashboard.compare.entry import ComparedEntry
from dashboard.estimate import (
    ledger,
    method_cards,
    saving,
    through_the_run,
    time_and_money,
    verdict_panel,
    which_gpu,
)
from dashboard.words import one_line, slider_limits, terms, verdicts
from estimator import (
    AttnImplementation,
    Dtype,
    Method,
    MixedPrecision,
    Optimizer,
    Strategy,
    TrainingSetup,
    Verdict,
    catalog,
    estimate,
    similar_runs,
    stages,
)
from estimator.contract.text import describe

MISTAKES = {
    "a star": "★",
    "Python's None": r"\bNone\b(?! of\b)",
    "not a number": r"\b(nan|inf|NaN)\b",
    "an exponent": r"\d[eE][+-]\d",
    "a factor with two places behind three": r"\d{3}\.\d+ ×",
    "a number in the thousands without its comma": (
        r"(?<![\d,.\w-])\d{4,}(?= (tokens|bytes|examples|GPUs|steps|parameters)\b)"
    ),
    "a plural of one": r"(?<![\d,.])1 (tokens|examples|GPUs|steps|epochs|hours|minutes|changes)\b",
    "a time or a price of nothing": r"(?<![\d.,])0 (to \d+ )?(minutes|hours)\b",
    "a place that was not filled": r"\{\w*\}",
    "a name of a class": r"\b(Method|Dtype|Strategy|Verdict|Phase|Component|Optimizer)\.[A-Z]",
    "two spaces": r"(?<=[a-z,;]) {2}(?=[a-z])",
    "a space before a stop": r"\w [,;](?= |$)",
    "two stops": r"(?<![.…])\.\.(?!\.)",
    "an empty bracket": r"(?<!\w)\(\s*\)",
    "a minus with nothing": r"[−-]0(\.0+)?(?![\d.,x])(?= |$)",
}


def wrong(text: str) -> list[str]:
    """The mistakes in a text, with context."""
    plain = unescape(re.sub(r"<style>.*?</style>|<[^>]+>", "\n", text, flags=re.DOTALL))
    return [
        f"{what}: …{plain[max(0, found.start() - 40) : found.end() + 40]}…"
        for what, pattern in MISTAKES.items()
        for found in re.finditer(pattern, plain)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "★ 5.8",
        "114.76 ×",
        "None",
        "1e+03M parameters",
        "Every example is 1024 tokens long",
        "1 tokens",
        "0 minutes",
        "{number} GPUs",
        "Method.FULL",
        "It runs out ,",
    ],
)
def test_each_mistake_is_found(text):
    assert wrong(text)


def test_correct_text_is_not_called_a_mistake():
    right = "None of the 67 GPUs holds it: 10 tokens, 1,024 tokens, 114 ×, 2026-11-22, $0.00, 1 GPU, 20 minutes."
    assert wrong(right) == []


def some_setups(number: int) -> Iterator[ComparedEntry]:
    """Entries of random setups on random cards, including refused ones."""
    dice = random.Random(18)
    models, cards = list(catalog.models()), list(catalog.gpus().values())
    for place in range(number):
        several = dice.random() < 0.3
        fields = {
            "method": dice.choice(list(Method)),
            "dtype": dice.choice([Dtype.BFLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32]),
            "mixed_precision": dice.choice([MixedPrecision.BF16, MixedPrecision.NO]),
            "optim": dice.choice(list(Optimizer)),
            "optim_state_dtype": dice.choice([None, None, None, Dtype.FLOAT32]),
            "attn_implementation": dice.choice(list(AttnImplementation)),
            "gradient_checkpointing": dice.random() < 0.6,
            "per_device_train_batch_size": dice.choice([1, 1, 2, 7, 64, 1000]),
            "gradient_accumulation_steps": dice.choice([1, 1, 3, 1000]),
            "max_length": dice.choice([16, 1024, 4096, 100_000]),
            "num_train_examples": dice.choice([1, 10_000, 10**9]),
            "num_train_epochs": dice.choice([1.0, 0.5, 3.0]),
            "eval_strategy": dice.choice(["no", "no", "epoch"]),
            "usd_per_gpu_hour": dice.choice([None, None, None, 0.0, 2.5]),
            "num_gpus": dice.choice([2, 4, 8, 64]) if several else 1,
            "strategy": dice.choice(
                [strategy for strategy in Strategy if strategy is not Strategy.NONE]
            )
            if several
            else Strategy.NONE,
        }
        card = dice.choice([None, *cards, *cards])
        try:
            name = dice.choice(models)
            model = catalog.model(name)
            yield ComparedEntry(f"{place} {name}", estimate(model, card, TrainingSetup(**fields)))
        except ValueError as refusal:
            yield ComparedEntry(f"{place} refused", None, str(refusal))


def texts_of(entry: ComparedEntry) -> Iterator[str]:
    """Every sentence and table that the page shows of one setup without a search over setups."""
    if entry.estimate is None:
        yield entry.problem
        return
    of = entry.estimate
    yield verdict_panel.verdict_html(of, similar_runs(of))
    yield from verdicts.verdict(of)
    yield one_line.setup_line(of)
    yield terms.proposed_name(of)
    yield slider_limits.effective_batch(of.setup)
    yield method_cards.card_html(of.setup.adapters.method, of, "")
    yield ledger.ledger_html(of) + ledger.assumptions_html(of)
    yield through_the_run.run_html(of) + through_the_run.run_alt(of)
    yield saving.stages_html(of, stages(of))
    yield time_and_money.time_html(of, None, None)
    yield describe(of).replace("fast  slow", "")  # two column headings
    if of.gpu is not None:
        yield " ".join(f"{value}" for value in which_gpu.gpu_row(of).values() if value is not None)


@pytest.fixture(scope="module")
def entries() -> list[ComparedEntry]:
    return list(some_setups(40))


def test_no_text_of_a_setup_has_a_mistake(entries):
    assert sum(entry.estimate is not None for entry in entries) > 12
    found = {
        entry.name: said
        for entry in entries
        if (said := [w for t in texts_of(entry) for w in wrong(t)])
    }
    assert found == {}


def test_no_table_report_or_file_of_a_comparison_has_a_mistake(entries):
    found: list[str] = []
    for start in range(0, len(entries), 6):
        subject = report.Subject(entries[start : start + 6], "2026-11-22", "", 24.0)
        for write in (report.write_html, report.write_markdown):
            found += wrong(write(subject))
        shown = subject.shown
        rows = [*results_table.results(shown, 24.0), *results_table.differences(shown)]
        found += [f"a raw key: {row.label}" for row in rows if "_" in row.label]
        found += [
            w for row in rows for cell in row.cells for w in wrong(f"{cell.text} {cell.beside}")
        ]
        for line in list(csv.reader(io.StringIO(report.write_csv(subject))))[1:]:
            found += [
                f"not a number for a program: {cell}" for cell in line if NUMBER.fullmatch(cell)
            ]
            found += [w for cell in line if not is_float(cell) for w in wrong(cell)]
    assert found == []


def is_float(cell: str) -> bool:
    """Whether a program can read the cell as a number with all its digits."""
    return re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", cell) is not None


NUMBER = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")


def test_a_refused_setup_is_never_called_too_large(entries):
    refused = [entry for entry in entries if entry.estimate is None]
    assert refused
    for one in refused:
        (verdict, *_) = results_table.results([one])
        assert [cell.text for cell in verdict.cells] == ["refused"]
        assert "not fit" not in one.problem


def test_a_setup_that_does_not_fit_has_no_hours_or_dollars(entries):
    for entry in entries:
        of = entry.estimate
        if of is None or of.verdict is not Verdict.DOES_NOT_FIT:
            continue
        assert one_line.run(of) == ""
        assert one_line.run_sentence(of) == ""
        row = which_gpu.gpu_row(of)
        assert {row[key] for key in row if key.startswith(("Hours", "Dollars"))} == {None}

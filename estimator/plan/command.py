"""``headroom plan``: a question in a file, its answer, and an exit status that a script can act on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TextIO

from estimator.plan import files, report
from estimator.plan.advice import Advice, advise, options_of
from estimator.plan.candidates import candidates
from estimator.plan.question import Question, TokenLengths
from estimator.plan.reading import object_of_text, question_of
from estimator.plan.team_reading import team_of
from estimator.plan.teams import schedule, team_jobs
from estimator.sources.local_files import regular_file
from estimator.tools.defaults import TOOLS
from estimator.tools.writing.files import files_of
from estimator.values.kinds import one_of
from estimator.values.refusals import InputError
from estimator.values.specs import Model, Price

MEETS, NONE_MEETS, NOT_READ = 0, 1, 2
"""Exit statuses, as those of ``headroom check``."""
USAGE = "headroom plan QUESTION.yaml [--json | --csv] [--take-away N FOLDER] [--prices FILE.csv] [--hub]"
DESCRIPTION = "What are the options, and what does the next dollar buy?"
EPILOG = f"""\
example of a question:
  model: Qwen/Qwen3-8B
  examples: 20000
  lengths: {{p50: 400, p90: 1200, max: 4096}}   # or {{file: train.jsonl, tokenizer: tokenizer.json}}
  effective_batch: 64
  methods: [full, lora]                       # whose results are good enough
  deadline_hours: 24
  budget_usd: 200
  cards:
    - {{gpu: H100-SXM5-80GB, most: 8}}
    - {{gpu: RTX 4090, most: 2, owned: true}}

several jobs on cards that they share, with a schedule of the week (hours from its beginning):
  cards: [{{gpu: A100-SXM4-80GB, most: 8, owned: true}}]
  jobs:
    - {{name: support bot, model: Qwen/Qwen3-8B, deadline_hours: 24}}
    - {{name: summaries, model: Qwen/Qwen3-32B, methods: [qlora], ready_hours: 12}}

exit status: {MEETS} a setup meets everything, {NONE_MEETS} none surely does, {NOT_READ} no answer.
"""
LENGTHS_OF_FILE = ("file", "column", "tokenizer")


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = argparse.ArgumentParser(
        prog="headroom plan",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("question", metavar="QUESTION", help="a file of YAML or JSON")
    made.add_argument("--json", action="store_true", help="the whole answer as one object")
    made.add_argument(
        "--csv", action="store_true", help="the points of the front, or a team's schedule, as CSV"
    )
    made.add_argument(
        "--take-away",
        nargs=2,
        metavar=("N", "FOLDER"),
        help="write the files that run point N of the list (0: the recommended one)",
    )
    made.add_argument(
        "--prices",
        metavar="FILE",
        help="a price list of your own: CSV with the columns of data/prices.csv",
    )
    made.add_argument("--hub", action="store_true", help="ask the Hub for unknown models")
    made.add_argument("--hub-token", action="store_true", help="the same, with your own token")
    return made


def run(
    given: argparse.Namespace,
    output: TextIO,
    known: Callable[[object], Mapping[str, Model]],
) -> int:
    """Answer the question of a file; returns the exit status. Raises ``InputError`` for one that cannot be answered."""
    asked = object_of_text(regular_file(given.question), given.question)
    if "jobs" in asked:
        return _schedule(asked, given, output, known)
    question, notes = _question(asked, given.question)
    answer = _answered(question, _prices(given), known)
    answer = replace(answer, notes=(*notes, *answer.notes))
    if given.json:
        output.write(f"{json.dumps(report.as_json(answer), allow_nan=False)}\n")
    elif given.csv:
        output.write(
            report.plan_csv(answer.candidates, answer.front[: report.MOST_WRITTEN].tolist())
        )
    else:
        output.write(f"{report.text(answer)}\n")
    if given.take_away:
        said = _take_away(answer, *given.take_away)
        if not (given.json or given.csv):
            output.write(f"\n{said}\n")
    return MEETS if answer.meets.any() else NONE_MEETS


def priced_by(question: Question, prices: Mapping[str, tuple[Price, ...]]) -> Question:
    """The question with a price list of one's own, which alone counts; a card that it lacks has no price."""
    offers = tuple(
        replace(offer, listings=prices.get(offer.gpu.name, ())) for offer in question.offers
    )
    return replace(question, offers=offers)


def _prices(given: argparse.Namespace) -> Mapping[str, tuple[Price, ...]] | None:
    """The price list that is given, if one is."""
    return files.price_list(regular_file(given.prices), given.prices) if given.prices else None


def _answered(
    question: Question,
    prices: Mapping[str, tuple[Price, ...]] | None,
    known: Callable[[object], Mapping[str, Model]],
) -> Advice:
    """The answer with the models that a question names, at the prices of a list of one's own."""
    question = question if prices is None else priced_by(question, prices)
    models = {name: model for asked in question.models for name, model in known(asked).items()}
    return advise(candidates(question, models))


def _schedule(
    asked: Mapping[str, object],
    given: argparse.Namespace,
    output: TextIO,
    known: Callable[[object], Mapping[str, Model]],
) -> int:
    """Schedule a team's jobs; the status says whether all run in time."""
    if given.take_away:
        raise InputError("--take-away is for one question; a team's jobs take --json or --csv.")
    team = team_of(asked)
    prices = _prices(given)
    answers = {name: _answered(own, prices, known) for name, own in team.jobs.items()}
    jobs = team_jobs(team, {name: options_of(answer) for name, answer in answers.items()})
    found = schedule(jobs, team.pools, team.horizon_hours, team.slots)
    if given.json:
        output.write(f"{json.dumps(report.timetable_json(found, answers), allow_nan=False)}\n")
    elif given.csv:
        output.write(report.timetable_csv(found, report.timetable_titles(found, answers)))
    else:
        output.write(f"{report.timetable_text(found, answers)}\n")
    return NONE_MEETS if found.left_out or found.late_hours > 0 else MEETS


def _question(given: Mapping[str, object], path: str) -> tuple[Question, list[str]]:
    """The question of a file; lengths may be named as a file of texts, whose tokens are counted here."""
    lengths = given.get("lengths")
    if not (isinstance(lengths, Mapping) and "file" in lengths):
        return question_of(given), []
    if unknown := [key for key in lengths if key not in LENGTHS_OF_FILE]:
        raise InputError(f"lengths of a file have {one_of(LENGTHS_OF_FILE)}, not {unknown[0]}.")
    name, tokenizer = str(lengths["file"]), lengths.get("tokenizer")
    counted = files.count_texts(
        regular_file(files.beside(path, name)),
        name,
        column=str(lengths.get("column") or ""),
        tokenizer=None if tokenizer is None else regular_file(files.beside(path, str(tokenizer))),
    )
    rest = {key: value for key, value in given.items() if key != "lengths"}
    asked = question_of({"examples": counted.examples, **rest})
    return replace(asked, lengths=counted.high), [counted.how, *_range(counted)]


def _range(counted: files.CountedTexts) -> list[str]:
    if counted.is_exact:
        return []
    few, many = (_said(lengths) for lengths in (counted.low, counted.high))
    return [f"The examples have {few}, or {many}; the plan takes the latter."]


def _said(lengths: TokenLengths) -> str:
    return f"{lengths.mean:,.0f} tokens in the mean and {lengths.longest:,} at most"


def _take_away(answer: Advice, number: str, folder: str) -> str:
    places = report.listed(answer)
    if not number.isdecimal() or int(number) > len(places):
        raise InputError(
            f"--take-away takes 0 to {len(places)}, a point of the list, not {number}."
        )
    place = places[int(number) - 1] if int(number) else answer.recommended
    if place is None:
        raise InputError("--take-away 0: nothing is recommended; name a point of the list.")
    keys = answer.candidates.keys(place)
    tool = answer.question.tool
    about = f"{answer.candidates.offer(place).gpu.name}, by headroom plan"
    away = files_of(tool, keys, answer.candidates.of(place).model, about=about)
    written = files.write_take_away(away, folder)
    return f"{TOOLS[tool].label}: {', '.join(written)} in {folder}; start with: {away.command}"

"""``headroom check``: files in, verdicts out, and an exit status that a script can act on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TextIO, TypedDict

from estimator.answer.estimate import estimate
from estimator.check import files, reading, report
from estimator.check.judged import Asked, Judged
from estimator.contract.setups import NONE_KNOWN, gpu_keys, parse, plain_keys
from estimator.search.remedies import cheapest_change
from estimator.sources.catalog import models
from estimator.tools.writing.changes import changed_files
from estimator.values.refusals import InputError
from estimator.values.results import DOES_NOT_FIT, FITS, NOT_READ
from estimator.values.specs import Model, Verdict

DESCRIPTION = "Do these training runs fit? Files of setups, or folders of them, are read and nothing in them is run."
EPILOG = f"""\
examples:
  headroom check train.yaml --gpu "RTX 4090"
  headroom check train.py accelerate.yaml ds_z3.json --together --gpu "4x A100-SXM4-80GB"
  headroom check sweep/ --gpu H100-SXM5-80GB --json
  headroom check train.yaml --gpu L4 --max-length 4096     # any key of a setup, above what the file says

exit status: {FITS} all fit, {DOES_NOT_FIT} some do not, {NOT_READ} some could not be read or estimated.
A key that decides memory and that the files do not say counts as {NOT_READ}; a flag says it.
{report.TIGHT}
"""


class Words(TypedDict):
    """The parser's description."""

    prog: str
    usage: str
    description: str
    epilog: str
    formatter_class: type[argparse.HelpFormatter]


WORDS: Words = {
    "prog": "headroom check",
    "usage": "headroom check FILE|FOLDER ... --gpu NAME [--together] [--json] [--hub] [--KEY VALUE ...]",
    "description": DESCRIPTION,
    "epilog": EPILOG,
    "formatter_class": argparse.RawDescriptionHelpFormatter,
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command's own flags; flags for setup keys are added separately."""
    parser.add_argument("paths", nargs="+", metavar="FILE", help="a file of a run, or a folder")
    parser.add_argument("--together", action="store_true", help="the files are one run")
    parser.add_argument("--json", action="store_true", help="one JSON object a run, one a line")


def run(
    paths: Sequence[str],
    changed: Mapping[str, object],
    output: TextIO,
    known: reading.Known = lambda name: NONE_KNOWN,
    *,
    together: bool = False,
    as_json: bool = False,
) -> int:
    """Check the runs in some paths, with keys that override their files; returns the exit status."""
    known = _or_local(known)
    found, large = files.found(paths)
    asked, others = reading.read(found, known, together=together)
    left_out = [*others, *large]
    if not asked:
        raise InputError(
            f"none of {len(left_out)} files says what is trained; name the files of a run."
        )
    if len(asked) > 1 and changed.get("gpu") is not None:
        parse({"model": next(iter(models())), "gpu": changed["gpu"]})  # once, not in every row
    judged = [_judge(run, changed, known) for run in asked]
    if as_json:
        output.writelines(f"{json.dumps(report.as_json(run), allow_nan=False)}\n" for run in judged)
    else:
        alone = len(judged) == 1
        said = (
            report.one(judged[0], _diff(judged[0], changed, known))
            if alone
            else report.table(judged)
        )
        rest = f"No runs, and left out: {', '.join(left_out)}.\n" if left_out else ""
        output.write(f"{said}\n{rest}")
    return max(run.status for run in judged)


def _or_local(known: reading.Known) -> reading.Known:
    """A folder with a config.json is a local model; any other name is looked up as before."""

    def found(name: object) -> Mapping[str, Model]:
        model = files.local_model(name)
        return known(name) if model is None else {str(name): model}

    return found


def _diff(judged: Judged, changed: Mapping[str, object], known: reading.Known) -> str:
    """The diff of the run's own files that makes it fit; empty if the files cannot express it or it does not help."""
    texts, change = judged.asked.texts, judged.change
    if change is None or not texts:
        return ""
    try:
        own = known(judged.asked.keys.get("model"))
        after = changed_files(texts, plain_keys(change.keys), own)
        mended = {**texts, **{name: text.encode() for name, text in after.files.items()}}
        again = [files.FoundFile(name=name, content=text) for name, text in mended.items()]
        (asked,), _ = reading.read(again, known, together=True)
    except ValueError:
        return ""
    return after.diff if judge(asked, changed, own).status == FITS else ""


def _judge(asked: Asked, changed: Mapping[str, object], known: reading.Known) -> Judged:
    try:
        return judge(asked, changed, known(changed.get("model", asked.keys.get("model"))))
    except ValueError as problem:
        return Judged(asked=asked, problem=str(problem))


def judge(
    asked: Asked, changed: Mapping[str, object], known: Mapping[str, Model] = NONE_KNOWN
) -> Judged:
    """The verdict on one run, with keys given in addition to its files (bytes and seconds are in the estimate).

    >>> gpt2 = Asked(files=("a.json",), keys={"model": "openai-community/gpt2"})
    >>> judge(gpt2, {"gpu": "L4"}).status, judge(gpt2, {"gpu": "L4", "max_length": 9999}).status
    (0, 2)
    """
    if asked.problems:
        return Judged(asked=asked, problem=" ".join(asked.problems))
    gpu = changed.get("gpu", asked.keys.get("gpu"))
    answered = {*changed, *(gpu_keys(gpu) if isinstance(gpu, str) else ())}
    open_still = tuple(
        guess for guess in asked.guesses if asked.settled_by.get(guess) not in answered
    )
    asked = replace(asked, guesses=open_still)
    if said := {key: sentence for key, sentence in asked.asked.items() if key not in answered}:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in said)
        return Judged(
            asked=asked, problem=f"{' '.join(dict.fromkeys(said.values()))} Or here: {flags}."
        )
    try:
        keys = {**asked.keys, **changed}
        if keys.get("gpu") is None:
            raise InputError('gpu is missing; name the card, such as --gpu "RTX 4090".')
        answer = estimate(*parse(keys, known))
    except ValueError as problem:
        return Judged(asked=asked, problem=f"{problem}{_hint(str(problem))}")
    change = None if answer.verdict is Verdict.FITS else cheapest_change(answer)
    return Judged(asked=asked, estimate=answer, change=change)


def _hint(problem: str) -> str:
    """What the command's flags can do about it; empty if nothing."""
    if "is not in the catalogue" in problem and problem.startswith("model "):
        return " Or ask the Hub for it: --hub."
    if "num_gpus is 1" in problem:
        return ' Or say how many there are: --gpu "8x A100-SXM4-80GB".'
    return ""

"""``headroom rehearse``: the user's own script runs on a card that is not there, and its verdict comes out."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from estimator.rehearse import running, text
from estimator.rehearse.beside import beside
from estimator.rehearse.card import card_named, told
from estimator.rehearse.rehearsed import Rehearsed, decisive, read, status_of
from estimator.values.refusals import InputError
from estimator.values.results import DOES_NOT_FIT, FITS, NOT_READ

STEPS = 4
"""The second step finds the blocks of the first; what changes afterwards, such as a longer row, shows in more steps."""
MOST_STEPS = 1000
ROOMY = 2**41
"""Bytes of a card with memory to spare: more than any has."""
PAGE = "http://localhost:8501"
"""Where `make run` serves the page: Streamlit's own port."""
DESCRIPTION = (
    "Runs your own training command for a few steps with PyTorch's CUDA build, its allocator and its out-of-memory "
    "error, on a GPU that is not there. It runs your code, as you would; no value is computed and no weight saved."
)
EPILOG = f"""\
examples:
  headroom rehearse --gpu "RTX 4090" -- python train.py --batch-size 4
  headroom rehearse --gpu "2x A100-SXM4-80GB" -- torchrun --nproc-per-node 2 train.py
  headroom rehearse --gpu "64x H100-SXM5-80GB" --first-rank -- python train.py    # rank 0 of 64, alone
  headroom rehearse --gpu L4 --json -- accelerate launch train.py

exit status: {FITS} it fits, {DOES_NOT_FIT} it does not, {NOT_READ} that cannot be said.
"""


def parser() -> argparse.ArgumentParser:
    """The command's flags, without those of the user's command."""
    found = argparse.ArgumentParser(
        prog="headroom rehearse",
        usage="headroom rehearse --gpu NAME [FLAG ...] -- COMMAND ...",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    found.add_argument("--gpu", required=True, metavar="NAME", help='such as "RTX 4090", "4x H100"')
    found.add_argument(
        "--steps", default=str(STEPS), metavar="N", help=f"optimizer steps [{STEPS}]"
    )
    found.add_argument(
        "--read-weights",
        action="store_true",
        help="read or download checkpoints instead of making weights from the config",
    )
    found.add_argument(
        "--first-rank",
        action="store_true",
        help="the command is the first of so many processes as --gpu has cards, and the others are not started",
    )
    found.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="FILE:LINE=VALUE",
        help="what this line of the script reads from the card, such as train.py:12=1.5; can be repeated",
    )
    found.add_argument(
        "--route",
        choices=("even", "one"),
        default="even",
        help="mixtures of experts: tokens to all in turn, or all to the same [even]",
    )
    found.add_argument(
        "--max-length",
        default="",
        metavar="N",
        help="tokens of the longest row, prompt and completion, where the Trainer's rows do not say it (GRPO, RLOO)",
    )
    found.add_argument(
        "--page",
        default=PAGE,
        metavar="URL",
        help=f"where your page is served, for the link that shows both results there [{PAGE}]",
    )
    found.add_argument("--json", action="store_true", help="the answer as one JSON object")
    return found


def run(arguments: Sequence[str], output: TextIO) -> int:
    """Rehearse a command; returns the exit status, and raises ``InputError`` where it cannot begin."""
    ours, command = _split(arguments)
    given = parser().parse_args(ours)
    if not command:
        raise InputError(
            'the command to rehearse is missing; put it after --: headroom rehearse --gpu "RTX 4090" -- python train.py'
        )
    steps = _steps(given.steps)
    gpu, number = card_named(given.gpu)
    alone_of = number if given.first_rank and number > 1 else 0
    card = told(gpu, 1 if alone_of else number)
    values = {
        "HEADROOM_VALUES": "\n".join(map(_value, given.value)),
        "HEADROOM_ROUTE": given.route,
        "HEADROOM_MAX_LENGTH": _length(given.max_length),
    }

    def rehearse(card: Mapping[str, str]) -> list[Rehearsed]:
        status, reports = running.run(
            command, {**card, **values}, steps, read_weights=given.read_weights, alone_of=alone_of
        )
        if refused := sorted({report["refused"] for report in reports if "refused" in report}):
            raise InputError(" ".join(refused))
        if not reports:
            raise InputError(_nothing(status))
        return [read(report) for report in reports]

    ranks = rehearse(card)
    found, roomy = decisive(ranks), None
    if found.ran_out is not None:
        sys.stderr.write("Memory ran out. Once more, with memory to spare, for what it needs.\n")
        roomy = decisive(rehearse({**card, "NULL_MEMORY": str(ROOMY), "NULL_TOTAL": str(ROOMY)}))
    answer = text.RehearsalAnswer(
        run=found,
        ranks=len(ranks),
        gpu=gpu,
        roomy=roomy,
        beside=beside(roomy or found, gpu.name),
        page=given.page,
    )
    if given.json:
        said = {**text.as_json(answer), "status": status_of(found)}
        output.write(json.dumps(said, allow_nan=False) + "\n")
    else:
        output.write(text.describe(answer) + "\n")
    return status_of(found)


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Our flags and the user's command, which begins after the first ``--``."""
    if "--" not in arguments:
        return arguments, ()
    at = list(arguments).index("--")
    return arguments[:at], arguments[at + 1 :]


def _steps(said: str) -> int:
    if not said.isascii() or not said.isdigit() or not 1 <= int(said) <= MOST_STEPS:
        raise InputError(f"steps must be a whole number from 1 to {MOST_STEPS}, not {said}.")
    return int(said)


def _length(said: str) -> str:
    if said and (not said.isascii() or not said.isdigit() or int(said) < 1):
        raise InputError(f"max-length must be a whole number of tokens, not {said}.")
    return said


def _value(said: str) -> str:
    if re.fullmatch(r"[^=\n]+:\d+=-?\d+(\.\d*)?(e-?\d+)?", said) is None:
        raise InputError(f"value must be a line and a number, such as train.py:12=1.5, not {said}.")
    return said


def _nothing(status: int) -> str:
    ended = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
    return (
        f"The command {ended}, and no Python that it started used the GPU through torch; a rehearsal cannot follow "
        "containers, other machines, or Python started with -I, -E or -S."
    )

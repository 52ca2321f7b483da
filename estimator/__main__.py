"""The command line: a thin layer over the contract, using only the standard library."""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO

from estimator.answer.estimate import estimate
from estimator.answer.own_error import error_in, explained_by, said_of
from estimator.answer.own_step import own_step
from estimator.check import command
from estimator.contract.estimates import write_estimate, write_shares
from estimator.contract.placement_request import place
from estimator.contract.setups import NONE_KNOWN, Reading, from_texts, parse, read_link
from estimator.contract.text import describe, describe_shares
from estimator.contract.units import amount
from estimator.rehearse import command as rehearse
from estimator.search.remedies import remedies
from estimator.search.vllm_share import vllm_shares
from estimator.sources import catalog, hub
from estimator.tools.defaults import TOOLS, defaults_of, tool_named, version_of
from estimator.tools.meant import meant_keys
from estimator.values.declaration import DefaultSource, Key
from estimator.values.facets.objective import Task
from estimator.values.json_text import LONGEST_TEXT, read_object
from estimator.values.keys import BY_NAME, GROUPS, KEYS
from estimator.values.kinds import Choice, Flag, one_of, plain
from estimator.values.objective import having
from estimator.values.parallelisms import PARALLEL_WORDS
from estimator.values.refusals import InputError, show
from estimator.values.results import Estimate, Remedy, UtilisationSearch
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

DESCRIPTION = (
    "How much GPU memory does fine-tuning this model need, what takes it, and does it fit?"
)
EXAMPLES = """\
examples:
  python -m estimator mistralai/Mistral-7B-v0.1 --gpu A100-SXM4-80GB --method qlora
  python -m estimator openai-community/gpt2 --method lora --lora-target-modules c_attn --lora-r 8
  python -m estimator Qwen/Qwen2.5-Math-7B --hub
  python -m estimator --json < setups.jsonl > estimates.jsonl
  python -m estimator placement '{"model": "...", "max_memory": {"0": "24GiB", "cpu": "64GiB"}, "dtype": "bfloat16"}'

With --json each line of standard input is one setup, an object with the names above as keys (max_length
for --max-length), and each line of standard output is its estimate, in order. A line that cannot be estimated
gives {"error": "..."} instead, and the exit status is then 1.

Names and defaults [in brackets] are those of Hugging Face's Trainer, TRL and PEFT unless marked as ours. Flags leave
the rest to TRL's trainers, whose defaults are marked "trl" where they differ; --tool takes another tool's, and
--tool trainer those in brackets, as --json does.
--no-padded and the like turn a switch off. Keys marked as fixed for now are not modelled yet.
"""


USUAL_TOOL = "trl"
"""Whose defaults a setup of flags has unless it names another tool, as the page's first setup."""


def main(arguments: Sequence[str]) -> int:
    """Runs one command; returns the exit status."""
    if wrong := catalog.wrong_tables():
        return _refuse(*wrong)
    match arguments[:1]:
        case ["placement"]:
            return _print_placement(arguments[1:])
        case ["check"]:
            return _check(arguments[1:])
        case ["plan"]:
            return _plan(arguments[1:])
        case ["rehearse"]:
            return _rehearse(arguments[1:])
        case ["serve"]:
            return _refuse(_serve(arguments[1:]))
        case ["estimate"]:
            arguments = arguments[1:]
    given = _read_arguments(arguments)
    with_remedies = bool(given.pop("remedies", False))
    with_shares = bool(given.pop("vllm_shares", False))
    measured, error = (given.pop(name, [None])[0] for name in ("measured", "error"))
    whose = {name for name in ("hub", "hub_token") if given.pop(name, None)}
    ask = _Ask(hub.own_token() if "hub_token" in whose else None) if whose else None
    if given.pop("json", False):
        if given:
            return _refuse(f"--json reads setups from standard input; leave out {_named(given)}.")
        source = sys.stdin.buffer if sys.stdin else io.BytesIO()
        return answer_lines(
            source, sys.stdout, ask, with_remedies=with_remedies, with_shares=with_shares
        )
    if "model" not in given:
        return _refuse(
            "model is missing; give a Hub id such as mistralai/Mistral-7B-v0.1, or --help."
        )
    try:
        known = ask.models(given["model"][0]) if ask else NONE_KNOWN
    except ValueError as problem:
        return _refuse(str(problem))
    objective = given.get("objective", ["sft"])[0]
    tool = given.setdefault("tool", [USUAL_TOOL if objective in having("trl") else "trainer"])[0]
    reading = read_link(given, known)
    if with_shares:
        return _print_shares(reading)
    defaults = _whose(tool, reading.setup.task)
    return _print_estimate(reading, defaults, with_remedies, measured, error)


def _whose(tool: str, task: Task) -> str:
    """Whose defaults are taken, with the version."""
    if tool not in TOOLS:
        return ""  # which the reading says
    if tool == "trainer":
        return "--help has them"
    return f"{tool_named(tool, str(task.objective)).label} {version_of(tool)} has them"


@dataclass(frozen=True, slots=True)
class _Ask:
    """Asks the Hub for models that the catalogue lacks, with the user's token if requested."""

    token: str | None = field(repr=False)

    def models(self, asked: object) -> Mapping[str, Model]:
        """The model of an id that is not in the catalogue; ``ValueError`` says why there is none."""
        name = asked.get("like") if isinstance(asked, Mapping) else asked
        if not isinstance(name, str) or name.lstrip().startswith("{") or _is_catalogued(name):
            return NONE_KNOWN
        found = hub.fetch(name, token=self.token)
        if found.model is None:
            raise InputError(" ".join(found.sentences))
        return {catalog.as_hub_id(name): found.model}


def _is_catalogued(name: str) -> bool:
    try:
        catalog.model(name)
    except ValueError:
        return False
    return True


# --- for programs -------------------------------------------------------------------------------


def answer_lines(
    source: BinaryIO,
    answers: TextIO,
    ask: _Ask | None = None,
    *,
    with_remedies: bool = False,
    with_shares: bool = False,
) -> int:
    """Writes one answer per line, in order; returns 1 if any is an error."""
    failed = False
    for line in _lines(source):
        answer = _answer(line, ask, with_remedies=with_remedies, with_shares=with_shares)
        failed = failed or "error" in answer
        answers.write(json.dumps(answer, allow_nan=False) + "\n")
        answers.flush()
    return int(failed)


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """Lines without line ends; a line that is too long is truncated, so memory stays bounded."""
    while line := source.readline(LONGEST_TEXT + 2):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = source.readline(LONGEST_TEXT)
        yield line.rstrip(b"\r\n")


def _answer(
    line: bytes, ask: _Ask | None, *, with_remedies: bool, with_shares: bool
) -> dict[str, object]:
    try:
        given = read_object(line, "The line")
        known = ask.models(given.get("model")) if ask else NONE_KNOWN
        asked = parse(given, known)
        if with_shares:
            return write_shares(_shares(*asked))
        answer = estimate(*asked)
        return write_estimate(answer, _remedies(answer) if with_remedies else ())
    except ValueError as problem:
        return {"error": str(problem)}
    except Exception as fault:  # a bug of ours, which must not affect other lines
        return {"error": _our_mistake(fault)}


def _shares(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> UtilisationSearch:
    if gpu is None:
        raise InputError("A share is of a GPU's memory; give a card with gpu.")
    return vllm_shares(model, gpu, setup)


def _remedies(answer: Estimate) -> Sequence[Remedy]:
    return remedies(answer, catalog.gpus_like(answer.gpu))


def _our_mistake(fault: Exception) -> str:
    said = f"{type(fault).__name__}: {fault}"[:200]
    return f"The estimator failed on this setup ({said}); please report it."


# --- for people ---------------------------------------------------------------------------------


def _print_estimate(
    reading: Reading, defaults: str, with_remedies: bool, measured: str | None, error: str | None
) -> int:
    if reading.problems or reading.model is None:
        return _refuse(*map(_with_the_hub, reading.problems))
    try:
        answer = estimate(reading.model, reading.gpu, reading.setup)
        if measured is not None:
            keys = own_step(answer, measured)
            answer = estimate(reading.model, reading.gpu, replace(reading.setup, **keys))
            flags = f"--pace={keys['pace']} --pace-shares {keys['pace_shares']} "
            flags += f"--pace-from {shlex.quote(str(keys['pace_from']))}"
            print(f"Other setups on this machine: {flags}\n")
        said = describe(answer, _remedies(answer) if with_remedies else (), defaults)
        if error is not None:
            said += f"\n\nYour error: {_explained(error, answer)}"
    except ValueError as problem:
        return _refuse(str(problem))
    except OSError:  # the answer cannot be written, which ``console`` says
        raise
    except Exception as fault:  # a traceback would not help the user
        return _refuse(_our_mistake(fault))
    print(said)
    return 0


def _explained(text: str, answer: Estimate) -> str:
    """What an out-of-memory message, or a log with one, says of this setup."""
    with suppress(OSError, ValueError):  # no path, but the message itself
        text = Path(text).read_text(errors="replace")
    found = error_in(text)
    if found is None:
        raise InputError("--error has no out-of-memory message of PyTorch; give it, or a log file.")
    changes = [
        f"{_flag(key)} {str(value).lower()}"
        for change in explained_by(found, answer)
        for key, value in change.items()
    ]
    would = f" It would be explained by {one_of(changes)}." * bool(changes)
    return " ".join(said_of(found, answer, amount)) + would


def _print_shares(reading: Reading) -> int:
    """Prints what each share of the GPU does."""
    if reading.problems or reading.model is None:
        return _refuse(*map(_with_the_hub, reading.problems))
    try:
        print(describe_shares(_shares(reading.model, reading.gpu, reading.setup)))
    except ValueError as problem:
        return _refuse(str(problem))
    return 0


def _print_placement(arguments: Sequence[str]) -> int:
    """Prints the device map for one request."""
    if len(arguments) != 1:
        return _refuse(
            "placement takes one JSON object, such as "
            '\'{"model": "openai-community/gpt2", "max_memory": {"0": "24GiB", "cpu": "64GiB"}}\'.'
        )
    try:
        placed = place(read_object(arguments[0], "The placement"))
    except ValueError as problem:
        return _refuse(str(problem))
    except OSError:  # the answer cannot be written, which ``console`` says
        raise
    except Exception as fault:  # a traceback would not help the user
        return _refuse(_our_mistake(fault))
    print(json.dumps(placed, indent=2))
    return 0


def _check(arguments: Sequence[str]) -> int:
    """Checks files of runs; flags override what the files say."""
    parser = _Parser(**command.WORDS, argument_default=argparse.SUPPRESS, allow_abbrev=False)
    command.add_flags(parser)
    _add_keys(parser)
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(_unknown_argument(unknown[0].split("=")[0]))
    given = vars(known)
    paths, together, as_json = (given.pop(name, None) for name in ("paths", "together", "json"))
    own = {name for name in ("hub", "hub_token") if given.pop(name, None)}
    ask = _Ask(hub.own_token() if "hub_token" in own else None) if own else None
    changed, problems = from_texts({name: _texts(value) for name, value in given.items()})
    if problems:
        return _refuse(*problems)
    models = ask.models if ask else lambda name: NONE_KNOWN
    how = {"together": bool(together), "as_json": bool(as_json)}
    try:
        return command.run(paths, changed, sys.stdout, models, **how)
    except ValueError as problem:
        return _refuse(str(problem))
    except OSError:  # the answer cannot be written, which ``console`` says
        raise
    except Exception as fault:  # a traceback would not help the user
        return _refuse(_our_mistake(fault))


def _plan(arguments: Sequence[str]) -> int:
    """Answers a planner's question; needs NumPy, which is imported here alone."""
    if find_spec("numpy") is None:
        return _refuse("headroom plan needs NumPy: pip install numpy.")
    from estimator.plan import command as plan  # noqa: PLC0415

    given = plan.parser().parse_args(arguments)
    asks = given.hub or given.hub_token
    ask = _Ask(hub.own_token() if given.hub_token else None) if asks else None
    models = ask.models if ask else lambda name: NONE_KNOWN
    try:
        return plan.run(given, sys.stdout, models)
    except ValueError as problem:
        return _refuse(_with_the_hub(str(problem)))
    except OSError:  # the answer cannot be written, which ``console`` says
        raise
    except Exception as fault:  # a traceback would not help the user
        return _refuse(_our_mistake(fault))


def _rehearse(arguments: Sequence[str]) -> int:
    """Runs the user's command on a card that is not there."""
    try:
        return rehearse.run(arguments, sys.stdout)
    except ValueError as problem:
        return _refuse(str(problem))


def _serve(arguments: Sequence[str]) -> str:
    """Replaces this process by Streamlit, which takes its own flags (``--server.port 8600``); or says why it cannot."""
    root = Path(__file__).resolve().parent.parent
    places = (root / "headroom" / "serve.py", root / "serve.py")
    app = next(filter(Path.is_file, places), None)
    if app is None or find_spec("streamlit") is None:
        return "the page needs Streamlit and the whole package; pip install headroom."
    command = [sys.executable, "-m", "streamlit", "run", str(app), *arguments]
    os.execv(sys.executable, command)  # a single process: ending it ends the page


def _with_the_hub(problem: str) -> str:
    """Suggests the Hub for a name that the catalogue lacks."""
    unknown = problem.startswith("model ") and "is not in the catalogue" in problem
    return f"{problem} Or ask the Hub for it: --hub." if unknown else problem


def _refuse(*sentences: str) -> int:
    print(*sentences, sep="\n", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """Reports errors in one sentence, without a usage text of sixty flags."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_refuse(f"{message}; see --help."))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _named(given: dict[str, list[str]]) -> str:
    return ", ".join(name if name == "model" else _flag(name) for name in given)


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m estimator",
        usage="python -m estimator MODEL [--gpu NAME] [--method METHOD] [--KEY VALUE ...]\n"
        "       python -m estimator --json < setups.jsonl\n"
        "       python -m estimator placement JSON\n"
        "       python -m estimator check FILE ... --gpu NAME\n"
        "       python -m estimator plan QUESTION.yaml\n"
        "       python -m estimator rehearse --gpu NAME -- python train.py ...",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=_layout,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", help="a Hub id such as mistralai/Mistral-7B-v0.1")
    parser.add_argument(
        "--json", action="store_true", help="setups in, estimates out, one per line"
    )
    parser.add_argument("--remedies", action="store_true", help="what to change so that it fits")
    parser.add_argument(
        "--vllm-shares",
        action="store_true",
        help="which vllm_gpu_memory_utilization to type, and what each does",
    )
    parser.add_argument(
        "--measured",
        action="append",
        metavar="STEP",
        help="what a step of this setup took on your machine: seconds, Trainer's last log line, tqdm's s/it",
    )
    parser.add_argument(
        "--error",
        action="append",
        metavar="MESSAGE",
        help="PyTorch's out-of-memory message, or a log file with it: what it says of this setup",
    )
    _add_keys(parser)
    return parser


def _add_keys(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a setup and of the Hub."""
    parser.add_argument("--gpu", action="append", metavar="NAME", help="such as A100-SXM4-80GB")
    parser.add_argument(
        "--hub", action="store_true", help="ask the Hugging Face Hub for ids the catalogue lacks"
    )
    parser.add_argument(
        "--hub-token", action="store_true", help="the same, with your own token (HF_TOKEN)"
    )
    for title, keys in GROUPS.items():
        group = parser.add_argument_group(title)
        for key in keys:
            _add_flag(group, key)
    for word in (
        PARALLEL_WORDS.keys() - BY_NAME.keys()
    ):  # so that the contract can refuse them by name
        parser.add_argument(
            _flag(word), dest=word, action="append", nargs="?", const="true", help=argparse.SUPPRESS
        )


def _add_flag(group: argparse._ArgumentGroup, key: Key) -> None:
    """Adds one flag per key. Aliases, and ``--no-`` before a switch, work without being listed."""
    name, *others = [_flag(name) for name in (key.name, *key.aliases)]
    if isinstance(key.kind, Flag):
        offs = [_flag(f"no_{name}") for name in (key.name, *key.aliases)]
        for flag, value in (dict.fromkeys(others, "true") | dict.fromkeys(offs, "false")).items():
            group.add_argument(
                flag, dest=key.name, action="append_const", const=value, help=argparse.SUPPRESS
            )
        group.add_argument(
            name, dest=key.name, action="append_const", const="true", help=_help(key)
        )
    else:
        metavar = "NAME" if isinstance(key.kind, Choice) else key.kind.metavar
        group.add_argument(
            name, *others, dest=key.name, action="append", metavar=metavar, help=_help(key)
        )


def _help(key: Key) -> str:
    choices = f": {one_of(key.kind.words)}" if isinstance(key.kind, Choice) else ""
    default = json.dumps(key.default).strip('"')
    usual = _usual_defaults().get(key.name)
    null = f"; null: {key.null}" if key.kind.nullable else ""
    remarks = f"{', ours' * (key.default_from is DefaultSource.OURS)}{'; fixed for now' * bool(key.modelled)}"
    remarks += f"; {USUAL_TOOL}: {usual}" if usual else ""
    return f"{key.help}{null}{choices} [{default}{remarks}]".replace("%", "%%")


@lru_cache(maxsize=1)
def _usual_defaults() -> Mapping[str, str]:
    """Where the defaults of a setup of flags differ from the contract's."""
    return {
        default.key: json.dumps(default.value).strip('"')
        for default in defaults_of(USUAL_TOOL)
        if default.differs and default.value != {}
    }


def _layout(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=36, width=100)


def _read_arguments(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The given flags with their texts, as in a link."""
    parser = _parser()
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        wrong = next((word for word in unknown if word.startswith("-")), unknown[0])
        parser.error(_unknown_argument(wrong.split("=")[0]))
    return {name: _texts(value) for name, value in vars(known).items()}


def _texts(value: object) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else [str(value)]


def _unknown_argument(argument: str) -> str:
    names = [
        "error",
        "gpu",
        "hub",
        "hub_token",
        "json",
        "measured",
        "remedies",
        "vllm_shares",
        *(key.name for key in KEYS),
    ]
    word = plain(argument.lstrip("-"))
    like = meant_keys(word, tuple(names)) if argument.startswith("-") else []
    hint = f"; did you mean {one_of([_flag(name) for name in like])}?" if like else ""
    return f"{show(argument)} is not understood{hint}"


def _drop_the_rest() -> None:
    """Discards what is not yet written, so that Python does not try again, and fail, at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> int:
    """The command ``headroom``; returns the exit status."""
    with suppress(AttributeError):  # no stream that encodes, as under a test or pythonw
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a × on a terminal of ASCII
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader closed the pipe, as `head` does; stay silent
        _drop_the_rest()
        return 1
    except OSError as problem:
        _drop_the_rest()
        return _refuse(f"the answer cannot be written: {(problem.strerror or 'unknown').lower()}.")
    return status


if __name__ == "__main__":
    sys.exit(console())

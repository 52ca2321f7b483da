"""Commands that train, out of a shell script or a line: launchers, tools and their flags. No shell expands anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain, dropwhile
from typing import Any

from estimator.tools.defaults import TOOLS
from estimator.tools.lists import listed
from estimator.tools.parsed import Command, Found, Text, Unresolved, plain_value
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal

LONGEST = 200_000
"""Characters of a file of commands: ours, twenty times the longest example; each is looked at several times."""
LONGEST_VALUE = 5_000
"""Characters that variables add to a word: ours."""
NO_TRAINING = re.compile(r"(^|/)(generate|eleuther_eval|quantize)")
"""torchtune's recipes that do not train: torchtune 0.6, _recipe_registry.py."""
UV_FLAGS = frozenset(["--extra", "--group", "--with", "--python", "--package"])
"""Flags of ``uv run`` that a value follows."""
WRAPPERS = frozenset(["nohup", "time", "srun", "sudo", "exec"])
LAUNCHERS = {"torchrun": "torchrun", "deepspeed": "deepspeed", "accelerate-launch": "accelerate"}
TORCHRUN = (["torch.distributed.run"], ["torch.distributed.launch"])
"""What ``python -m`` runs as torchrun."""
SWITCHES = frozenset(
    listed("""multi_gpu quiet m module no_python debug cpu tpu use_deepspeed use_fsdp use_megatron_lm same_network
    use_parallelism_config standalone no-python use_xpu dynamo_use_dynamic enable_cpu_affinity use_mps_device
    force_multi no_ssh no_local_rank autotuning bind_cores_to_rank use_cpu use_tpu""")
)
"""Flags of launchers that no value follows."""
STARTS = frozenset(listed("accelerate torchrun deepspeed python python3 uv -m"))
"""Words that start a command of training, beside the tools' own."""
ARRAY = re.compile(r"^\s*(\w+)(\+?)=\((.*)$", re.DOTALL)
"""``NAME=(words)``, and ``NAME+=(more)``."""
LONGEST_ARRAY = 200
"""Lines of an array: ours, three times the longest of verl's examples."""
ASSIGNED = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$", re.DOTALL)


def looks_like_shell(text: str) -> bool:
    """Whether a text without a name is commands.

    >>> looks_like_shell("CUDA_VISIBLE_DEVICES=0 trl sft --config a.yaml"), looks_like_shell("seed: 1")
    (True, False)
    """
    if text.startswith("#!"):
        return "sh" in text.splitlines()[0]
    programs = "|".join(sorted(_programs()))
    start = re.compile(
        r"\s*\$?\s*(?:[A-Z_]\w*=\S*\s+)*(?:uv run\s+)?"
        rf"(?:accelerate\s+launch|(?:torchrun|deepspeed)(?=\s|$)|(?:{programs})\s+\w|python3?\s+\S)"
    )
    return any(map(start.match, text.splitlines()))


def _programs() -> frozenset[str]:
    """The tools' commands."""
    return frozenset[str]().union(*(tool.programs for tool in TOOLS.values()))


def _may_train(text: str) -> bool:
    """Whether a word of a text starts a command of training."""
    words = re.findall(r"(?:^|[\s;&|=/])([\w.-]+)(?=\s)", f" {text} ")
    return not (STARTS | _programs()).isdisjoint(words)


UNREAD: Mapping[str, str] = {"openrlhf.cli": "OpenRLHF"}
"""Modules of tools whose commands are recognised and not read."""
UNREAD_TOOL = Refusal(
    "Commands of {tool} are not modelled yet: it trains and generates in turns with engines of its own. Say the run in "
    "TRL's keys instead: objective grpo, use_vllm, vllm_gpu_memory_utilization, vllm_enable_sleep_mode.",
    NOT_MODELLED,
)


def read_shell(text: str, name: str) -> Text:
    r"""The training commands of a text.

    >>> (command,) = read_shell("accelerate launch --num_processes 4 train.py \\\n --bf16", "run.sh").commands
    >>> command.launcher, command.launch[0].value, command.words, command.flags[0].name
    ('accelerate', 4, ('train.py',), 'bf16')
    """
    if len(text) > LONGEST:
        raise InputError(
            f"{name} is longer than {LONGEST // 1000} kB, which no command is; give the command alone."
        )
    variables = _Variables()
    arrays: dict[str, list[str]] = {}
    commands: list[Command] = []
    for line, words, is_sure in _statements(text, name, variables.known):
        if (array := ARRAY.match(words[0])) and words[-1].endswith(")"):
            inside = [array[3], *words[1:]] if len(words) > 1 else [array[3]]
            inside[-1] = inside[-1].removesuffix(")")
            before = arrays.get(array[1], []) if array[2] else []
            added = [_filled(word, variables.known) for word in inside if word]
            arrays[array[1]] = [*before, *(added if is_sure else _unsure(added))]
            continue
        unfolded = [*chain.from_iterable(_of_array(word, arrays) for word in words)]
        environment, rest = _environment(unfolded, variables.known)
        if not rest:
            variables.set(environment, is_sure=is_sure)
            continue
        if rest[0] == "export":
            exported = _environment(rest[1:], variables.known)[0]
            variables.set(exported, is_sure=is_sure)
            continue
        expanded = [*chain.from_iterable(_expanded(word, variables.known) for word in rest)]
        if (command := _command(expanded, {**variables.known, **environment}, line)) is not None:
            commands.append(command)
    if not commands:
        for module, label in UNREAD.items():
            if module in text:
                raise UNREAD_TOOL(tool=label)
        raise InputError(
            f"{name} has no command that trains; give one such as accelerate launch, trl sft, axolotl train, "
            "llamafactory-cli train, swift sft, tune run, python -m verl.trainer.main_ppo, torchrun or deepspeed."
        )
    return Text(name=name, kind="shell", commands=tuple(commands))


class _Variables:
    """The variables of a script, but those to which its branches give different values."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self._undecided: set[str] = set()

    def set(self, given: Mapping[str, str], *, is_sure: bool) -> None:
        """Assignments; one that is not sure to run agrees with the value before, or leaves the variable unknown.

        A value of the script's own arguments leaves the default.
        """
        for name, value in given.items():
            if is_sure:
                self._undecided.discard(name)
                self.known[name] = value
            elif name in self._undecided or (name in self.known and VARIABLE.search(value)):
                continue
            elif self.known.get(name, value) != value:
                del self.known[name]
                self._undecided.add(name)
            else:
                self.known[name] = value


def _unsure(words: Sequence[str]) -> list[str]:
    """Words that a script adds under a test: flags whose values only the run knows.

    >>> _unsure(["--bf16", "--rank", "8"])
    ['--bf16', '$(under an if)', '--rank', '$(8 under an if)']
    """
    found: list[str] = []
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        is_flag = re.match(r"--?[A-Za-z]", word) is not None
        found.append(word if is_flag else f"$({word} under an if)")
        if is_flag and after.startswith("-"):
            found.append("$(under an if)")
    return found


class _Ifs:
    """Whether a line stands in an ``if``.

    >>> ifs = _Ifs()
    >>> [ifs.is_sure(line) for line in ("if [ $A ]; then", "B=1", "fi", "B=2", "if true; then B=1; fi")]
    [False, False, False, True, False]
    """

    def __init__(self) -> None:
        self._depth = 0

    def is_sure(self, line: str) -> bool:
        """Whether the commands of this line run whatever is tested."""
        opens = re.match(r"\s*if\b", line) is not None
        closes = re.search(r"(^|;)\s*fi\s*(;|$)", line) is not None
        self._depth += opens
        is_sure = self._depth == 0
        self._depth = max(0, self._depth - closes)
        return is_sure


def _of_array(word: str, arrays: Mapping[str, list[str]]) -> list[str]:
    """The words of ``"${NAME[@]}"``; a script's own arguments are none."""
    if word == "$@":
        return []
    found = re.fullmatch(r"\$\{(\w+)\[@\]\}", word)
    return arrays.get(found[1], []) if found else [word]


class _Cases:
    """Which lines of a script run: of a ``case`` the first branch that matches, or the first where only the run knows.

    >>> cases, known = _Cases(), {"DEVICE": "npu"}
    >>> [cases.runs(line, known) for line in ('case "${DEVICE}" in', "gpu) ;;", "npu) ;;", "esac", "a=1")]
    [False, False, False, False, True]
    """

    def __init__(self) -> None:
        self._open: list[tuple[str, bool, bool]] = []
        """Of each open case: its word, whether this branch runs, and whether one has."""

    def runs(self, line: str, known: Mapping[str, str]) -> bool:
        """Whether this line is a statement that runs."""
        bare = line.strip()
        if found := re.fullmatch(r"case\s+(\S+)\s+in", bare):
            self._open.append((_filled(found[1].strip("\"'"), known), False, False))
            return False
        if not self._open:
            return True
        if bare == "esac":
            self._open.pop()
            return False
        word, current, done = self._open[-1]
        if not current and (pattern := re.match(r"([^()\s][^()]*)\)(.*)", bare)):
            is_known = not VARIABLE.search(word) and "$(" not in word
            options = [option.strip().strip("\"'") for option in pattern[1].split("|")]
            matches = not is_known or any(fnmatchcase(word, option) for option in options)
            current = matches and not done
            self._open[-1] = (
                word,
                current and not pattern[2].strip().endswith(";;"),
                done or current,
            )
            return False
        if bare.endswith(";;"):
            self._open[-1] = (word, False, done)
            return False
        return all(runs for _, runs, _ in self._open)


def _statements(
    text: str, name: str, known: Mapping[str, str]
) -> Iterator[tuple[int, list[str], bool]]:
    """Each simple command with its first line, and whether it is sure to run.

    ``known``: the variables so far, which choose a ``case``'s branch.
    """
    kept, first = "", 0
    cases, ifs = _Cases(), _Ifs()
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.rstrip()
        if not kept:
            first = number
        if bare.lstrip().startswith("#") or (not kept and not cases.runs(bare, known)):
            continue
        if bare.endswith("\\"):
            kept += bare[:-1] + " "
            continue
        kept += bare
        if kept.count("'") % 2 or kept.replace('\\"', "").count('"') % 2:
            kept += "\n"
            if number - first < 60:
                continue
        if ARRAY.match(kept) and not kept.rstrip().endswith(")") and number - first < LONGEST_ARRAY:
            kept += "\n"
            continue
        yield from _split(kept, first, name, is_sure=ifs.is_sure(kept))
        kept = ""
    if kept.strip():
        yield from _split(kept, first, name, is_sure=ifs.is_sure(kept))


TESTED = re.compile(r"(?:\[\[?|test)\s[^&|]*(?:&&|\|\|)\s*\w+=")
"""``[ test ] && NAME=value``."""
LONGEST_IF = 2_000
"""Characters of an ``if`` in one line: ours."""
ONE_LINE = re.compile(r"\b(?:then|else)\s+(.*?)\s*;?\s*(?=\belif\b|\belse\b|\bfi\b|$)")


def _split(
    text: str, line: int, name: str, *, is_sure: bool
) -> Iterator[tuple[int, list[str], bool]]:
    text = text.strip().removeprefix("$ ").removeprefix("!").removeprefix("%%bash")
    if len(text) <= LONGEST_IF and re.match(r"(el)?if\b.*\bthen\b|else\b", text):
        for inner in ONE_LINE.findall(text):
            yield from _split(inner, line, name, is_sure=False)
        return
    is_assigned = ASSIGNED.match(text) or ARRAY.match(text) or TESTED.match(text)
    if not text or not (is_assigned or _may_train(text)):
        return
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        tokens = list(lexer)
    except ValueError:
        if _may_train(text):
            raise InputError(f"{name}, line {line}: a quotation has no end; close it.") from None
        return
    words: list[str] = []
    for token in tokens:
        if token and set(token) <= set(";&|"):
            if words:
                yield line, words, is_sure
            is_sure = is_sure and not (
                token in ("&&", "||") and words[:1] in (["["], ["[["], ["test"])
            )
            words = []
        else:
            words.append(token)
    if words:
        yield line, words, is_sure


def _environment(
    words: Sequence[str], known: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """``NAME=value`` before a command."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest and (assigned := ASSIGNED.match(rest[0])) and not rest[0].startswith("-"):
        found[assigned[1]] = _filled(assigned[2], {**known, **found})
        rest.pop(0)
    return found, rest


VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^}]*))?\}|\$(\w+)")


WHOLE_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?")


def _filled(text: str, known: Mapping[str, str]) -> str:
    """A text with the variables that are known in it; the others stay. One that is empty takes its default.

    Those that would make it longer than ``LONGEST_VALUE`` stay, too.
    """
    total = 0

    def one(variable: re.Match[str]) -> str:
        nonlocal total
        name, instead = variable[1] or variable[3], variable[2]
        found = known.get(name, variable[0]) if instead is None else known.get(name) or instead
        total += len(found)
        return found if total <= LONGEST_VALUE else variable[0]

    return VARIABLE.sub(one, text)


def _expanded(word: str, known: Mapping[str, str]) -> list[str]:
    filled = _filled(word, known)
    if filled != word and re.fullmatch(r"\$\{?\w+\}?", word):
        try:
            return shlex.split(filled) or [""]
        except ValueError:
            return [filled]
    return [filled]


def _command(words: list[str], environment: Mapping[str, str], line: int) -> Command | None:
    """What a command launches, or None where it trains nothing."""
    launcher, rest = _launcher(_unwrapped(words))
    launch, rest = _launcher_flags(rest, line) if launcher else ((), rest)
    tool, rest = _tool(rest, is_module=any(flag.path == ("module",) for flag in launch))
    if not rest or not (tool or launcher or rest[0].endswith(".py")):
        return None
    of = TOOLS.get(tool)
    if (
        of is not None and of.reads_recipes
    ):  # tune run [torchrun's flags] recipe --config name key=value
        launch, rest = _launcher_flags(rest[1:], line) if rest[0] == "run" else ((), [])
        if not rest or NO_TRAINING.search(rest[0]):
            return None
        launcher, rest = "torchrun" if launch else "", ["run", f"recipe={rest[0]}", *rest[1:]]
    plain, flags = _flags(rest, line, is_hydra=of is not None and of.reads_overrides)
    if of is not None and of.trains and plain and plain[0] not in of.trains and "." not in plain[0]:
        return None
    return Command(
        launcher=launcher,
        launch=launch,
        tool=tool,
        words=tuple(plain),
        flags=tuple(flags),
        environment=dict(environment),
        line=line,
    )


def _unwrapped(words: list[str]) -> list[str]:
    """A command without what only starts it, such as ``uv run`` and ``srun``, and that one's flags."""
    rest = words
    while rest[:2] == ["uv", "run"] or (rest and rest[0] in WRAPPERS):
        rest = rest[2:] if rest[0] == "uv" else rest[1:]
        while rest and rest[0].startswith("-"):
            rest = rest[1 + (rest[0] in UV_FLAGS) :]
    return rest


def _launcher(words: list[str]) -> tuple[str, list[str]]:
    """A launcher, empty if none, and the words after it; no words if it launches nothing."""
    head = _name(words)
    if words[:2] == ["python", "-m"] and words[2:3] in TORCHRUN:
        return "torchrun", words[3:]
    if head == "accelerate":
        return head, words[2:] if words[1:2] == ["launch"] else []
    if head in LAUNCHERS:
        return LAUNCHERS[head], words[1:]
    return "", words


def _tool(words: list[str], *, is_module: bool) -> tuple[str, list[str]]:
    """The tool that trains, empty for a script of one's own, and the words that it reads; no words if none trains."""
    rest = words
    if _name(rest) in {"python", "python3"}:
        rest = [*dropwhile({"-u", "-O", "-B"}.__contains__, rest[1:])]
        if rest[:1] == ["-m"] and len(rest) > 1:
            return _of_module(rest[1:])
    elif is_module and rest and _of_module(rest)[0]:
        return _of_module(rest)
    for tool in TOOLS.values():
        if _name(rest) in tool.programs:
            return tool.name, rest[1:]
        for pattern, word in tool.scripts:
            if rest and (found := re.search(pattern, rest[0])):
                return tool.name, [word or found[1], *rest[1:]]
    return "", rest


def _of_module(words: list[str]) -> tuple[str, list[str]]:
    """The tool whose module is run, and the words that it reads; no words if it does not train."""
    module, *rest = words
    tool = next((tool for tool in TOOLS.values() if module.startswith(tool.modules)), None)
    if tool is None:
        return "", []
    word = {"launcher": "train"}.get(last := module.rpartition(".")[2], last)
    return tool.name, rest if word in ENTRIES else [word, *rest]


ENTRIES = frozenset(["cli", "main"])
"""Modules that read a word of their tool's command."""


def _name(words: list[str]) -> str:
    """The program that is started, without its folder."""
    return words[0].rpartition("/")[2] if words else ""


def _launcher_flags(words: list[str], line: int) -> tuple[tuple[Found, ...], list[str]]:
    """A launcher's own flags, up to the script."""
    found, rest = [], list(words)
    while rest and rest[0].startswith("-"):
        flag, equals, value = rest.pop(0).lstrip("-").partition("=")
        name = {"m": "module"}.get(flag, flag).replace("-", "_")
        if equals:
            found.append(Found((name,), _value(value), line))
        elif flag in SWITCHES or not rest:
            found.append(Found((name,), True, line))
        else:
            found.append(Found((name,), _value(rest.pop(0)), line))
    return tuple(found), rest


OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=")
"""Hydra's ``key=value``; a + adds the key."""


def _flags(
    words: Sequence[str], line: int, *, is_hydra: bool = False
) -> tuple[list[str], list[Found]]:
    """Plain words, and flags with one value, several, or none; Hydra's flags take one at most."""
    plain: list[str] = []
    found: list[Found] = []
    flag = ""
    values: list[Any] = []

    def close() -> None:
        if flag:
            value: Any = True if not values else values[0] if len(values) == 1 else list(values)
            found.append(Found(tuple(flag.split(".")), value, line))

    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            close()
            name, equals, value = word.lstrip("-").partition("=")
            flag, values = name.replace("-", "_"), [_value(value)] if equals else []
            if equals:
                close()
                flag = ""
        elif values and WHOLE_VARIABLE.fullmatch(word):
            plain.append(word)  # more words, which only the run knows
        elif flag and not (is_hydra and (values or OVERRIDE.match(word))):
            values.append(_value(word))
        elif OVERRIDE.match(word):
            close()
            flag = ""
            name, _, value = word.lstrip("+").partition("=")
            found.append(Found(tuple(name.split(".")), _of_hydra(value), line))
        else:
            plain.append(word)
    close()
    return plain, found


def _of_hydra(text: str) -> Any:
    """The value of an override, which may be a list of plain items.

    >>> _of_hydra('["q_proj",v_proj]'), _of_hydra("8")
    (['q_proj', 'v_proj'], 8)
    """
    found = re.fullmatch(r"\[([^\[\]{}]*)\]", text.strip())
    if found is None or isinstance(_value(text), Unresolved):
        return _value(text)
    words = (word.strip().strip("\"'") for word in found[1].split(","))
    return [*map(_value, filter(None, words))]


def _value(text: str) -> Any:
    """What a flag's text is: a plain value, or a variable that nobody set."""
    is_open = VARIABLE.search(text) or "$(" in text or "`" in text
    return Unresolved(text) if is_open else plain_value(text)

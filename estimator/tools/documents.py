"""Identifies the tool of each file, and turns its text into entries that the tables know."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any

from estimator.tools.defaults import TOOLS
from estimator.tools.known import allocator
from estimator.tools.known.parallel import DEEPSPEED_FLAGS
from estimator.tools.lists import listed
from estimator.tools.parsed import Call, Command, Found, Text, Unresolved, flattened
from estimator.tools.reading.python_script import OF_PEFT, OF_TRAINER, OF_TRL
from estimator.tools.reading.shell import VARIABLE, WHOLE_VARIABLE
from estimator.tools.rules import Entry, Tool
from estimator.values.refusals import InputError

BESIDE: Mapping[str, str] = {
    "deepspeed": "zero_optimization train_micro_batch_size_per_gpu zero_allow_untested_optimizer",
    "accelerate": "compute_environment distributed_type main_training_function",
    "peft": "peft_type",
}
"""Keys of which a file beside a tool's has one."""
ALSO_BESIDE: Mapping[str, str] = {
    "bnb": "load_in_4bit load_in_8bit",
    "peft": "r lora_alpha lora_dropout target_modules",
    "accelerate": "num_processes num_machines fsdp_config deepspeed_config",
}
"""Of these a tool's own file may have one, too."""


def _marks() -> Iterator[tuple[str, frozenset[str]]]:
    """Each kind of file with keys that make a file one of it, in the order in which they are tried."""
    yield from _each(BESIDE)
    yield from _of_tools(is_called=False)
    yield from _each({"bnb": "bnb_4bit_compute_dtype _load_in_4bit llm_int8_threshold"})
    yield from _of_tools(is_called=True)
    yield from _each(ALSO_BESIDE)


def _each(kinds: Mapping[str, str]) -> Iterator[tuple[str, frozenset[str]]]:
    yield from ((kind, frozenset([key])) for kind, keys in kinds.items() for key in listed(keys))


def _of_tools(*, is_called: bool) -> Iterator[tuple[str, frozenset[str]]]:
    for tool in TOOLS.values():
        if tool.is_called is is_called:
            yield from ((tool.name, frozenset(listed(mark))) for mark in tool.marks)


def marks() -> frozenset[str]:
    """Every key that makes a file one of a kind, alone or with others."""
    within = (tool.marks_within for tool in TOOLS.values())
    return frozenset(chain.from_iterable((*(mark for _, mark in _marks()), *within)))


OBJECTIVE_CLASSES = re.compile(rf"^({'|'.join(OF_TRL)})")
KINDS = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
"""Switches of accelerate's launcher that are its ``distributed_type``."""
BLOCKS: Mapping[str, Callable[[str], bool]] = {
    "fsdp_config": lambda name: name.startswith("fsdp_"),
    "parallelism_config": lambda name: name.startswith("parallelism_config_"),
    "deepspeed_config": DEEPSPEED_FLAGS.__contains__,
}
"""Blocks of accelerate's file, whose keys its launcher takes as flags."""


@dataclass(slots=True)
class Pool:
    """The combined entries of all files."""

    entries: dict[str, Entry] = field(default_factory=dict)
    """By key; the last of several entries wins."""
    tools: list[str] = field(default_factory=list)
    """The tools named in the files, in order."""
    references: list[str] = field(default_factory=list)
    """Other files that these files name."""
    model_config: Mapping[str, Any] | None = None
    folder: str = ""
    """The folder that the files name as their model."""
    guesses: list[str] = field(default_factory=list)
    settled_by: dict[str, str] = field(default_factory=dict)
    """Of a guess, the key whose value would make it needless."""
    """What the files leave open, and how it is taken: one sentence each."""
    notes: list[str] = field(default_factory=list)
    options: frozenset[str] = frozenset()
    """Flags that the scripts parse themselves."""

    def add(self, entry: Entry) -> None:
        """Add a key; a later one wins."""
        self.entries.pop(entry.key, None)
        self.entries[entry.key] = entry

    def guess(self, says: str, key: str) -> None:
        """Add a guess that a value of one of our keys makes needless."""
        self.guesses.append(says)
        self.settled_by[says] = key

    def put(self, part: str, found: Found, file: str, name: str = "") -> None:
        """The entry for a file's key, in the part it belongs to; DeepSpeed's own config may stand in an argument."""
        name = name or found.name
        if part == "args" and name.startswith("deepspeed."):
            part, _, name = name.partition(".")
        self.add(Entry(f"{part}.{name}", found.value, file, found.line, found.name))


def pool_of(texts: Iterable[Text]) -> Pool:
    """All texts of a run together: configs first, then scripts, then commands, since flags override files."""
    order = {"yaml": 0, "json": 0, "python": 1, "shell": 2}
    given = sorted(texts, key=lambda text: order[text.kind])
    pool = Pool()
    for text in given:
        if text.kind in ("yaml", "json"):
            _document(text, pool)
        elif text.kind == "python":
            _script(text, pool)
        else:
            for command in text.commands:
                _command(command, text.name, pool)
    return pool


# --- YAML and JSON ------------------------------------------------------------------------------


def document_kind(text: Text) -> str:
    """What a file of keys is: a tool, ``deepspeed``, ``accelerate``, ``peft``, ``bnb``, ``torchtune`` or ``model``."""
    top = {key.path[0] for key in text.keys}
    names = frozenset(chain.from_iterable(key.path for key in text.keys))
    for tool in TOOLS.values():
        if tool.marks_within & names:
            return tool.name
    if "merge_method" in top and {"models", "slices"} & top:
        raise InputError(
            f"{text.name} is mergekit's, which trains nothing; give the config of the training run."
        )
    if {"hidden_size", "model_type"} <= top or ({"architectures", "model_type"} <= top):
        return "model"
    if {"dist_config", "model_class"} <= top or {"model", "peft_config"} <= top:
        raise InputError(
            f"{text.name} is of LLaMA-Factory's v1 engine, whose keys are not known here yet; give a config of its v0."
        )
    if found := [(kind, mark) for kind, mark in _marks() if mark <= top]:
        return max(found, key=lambda kind: len(kind[1]))[0]
    shown = ", ".join(sorted(top)[:4])
    raise InputError(
        f"{text.name} is no config that is known here: its keys are {shown}; give one of TRL, Trainer, PEFT, axolotl, "
        "LLaMA-Factory, ms-swift, torchtune, verl, accelerate or DeepSpeed."
    )


def _document(text: Text, pool: Pool) -> None:
    kind = document_kind(text)
    if kind == "model":
        pool.model_config = text.whole
        return
    tool = TOOLS.get(kind)
    if tool is not None:
        pool.tools.append(kind)
    part = kind if kind in ("deepspeed", "accelerate", "peft", "bnb") else "args"
    for found in text.keys:
        if tool is not None and tool.hands_on(found.name):
            _launched("accelerate", found, text.name, pool)
            continue
        pool.put(part, _accelerated(found) if part == "accelerate" else found, text.name)
        if isinstance(found.value, str) and re.search(r"\.(json|ya?ml)$", found.value):
            pool.references += [found.value] * (found.value.rpartition("/")[2] not in OF_TOKENIZERS)


OF_TOKENIZERS = frozenset(
    listed("vocab.json tokenizer.json tokenizer_config.json special_tokens_map.json")
)
"""Files that a config names and that say nothing of a run."""


def _accelerated(found: Found) -> Found:
    """accelerate's older files have the keys of FSDP and DeepSpeed with and without their prefix."""
    if (
        found.path[0] == "fsdp_config"
        and len(found.path) == 2
        and not found.path[1].startswith("fsdp_")
    ):
        return Found(("fsdp_config", f"fsdp_{found.path[1]}"), found.value, found.line)
    return found


# --- Python -------------------------------------------------------------------------------------

PEFT_KINDS = frozenset(f"{name}Config" for name in OF_PEFT)
OLD_TRAINER_ARGS = frozenset(
    listed("max_seq_length packing dataset_text_field neftune_noise_alpha dataset_num_proc")
)
"""Former arguments of ``SFTTrainer`` that moved to ``SFTConfig``."""
TRAINER_KEYS = frozenset(listed("compute_loss_func compute_metrics preprocess_logits_for_metrics"))
"""Arguments of a trainer that are keys of a run; the others are objects that the script made before: its model, its
data, its config."""


def _script(text: Text, pool: Pool) -> None:
    unsloth = any(call.of.startswith("Fast") and call.of.endswith("Model") for call in text.calls)
    policy = _policy(text.calls)
    pool.options |= text.options
    pool.guesses += text.guesses
    _allocator(text.environment, text.name, 0, pool)
    objectives: dict[str, Call] = {}
    for call in text.calls:
        for part, found in _call_keys(call, unsloth=unsloth, is_policy=call is policy):
            pool.put(part, _under(call.condition, found), text.name)
        if unsloth:
            pool.tools.append("unsloth")
        elif (found_class := OBJECTIVE_CLASSES.match(call.name)) and call.name.endswith(
            ("Trainer", "Config")
        ):
            pool.tools.append("trl")
            objectives.setdefault(found_class[1].lower(), call)
        elif call.name in OF_TRAINER or call.name in ("Trainer", "Seq2SeqTrainer"):
            pool.tools.append("trainer")
    certain = [word for word, call in objectives.items() if not call.condition]
    for word in certain or [" or ".join(objectives)] * bool(objectives):
        value = word if word in objectives else Unresolved(word)
        _objective(value, text.name, next(iter(objectives.values())).line, pool)
    if {"trl", "unsloth"} & {*pool.tools}:
        pool.tools = [tool for tool in pool.tools if tool != "trainer"]
    elif policy is not None and policy.of.endswith("ForSequenceClassification"):
        _objective("sequence_classification", text.name, policy.line, pool)


def _objective(word: str | Unresolved, file: str, line: int, pool: Pool) -> None:
    if "trainer.objective" not in pool.entries:
        shown = word if isinstance(word, str) else "objective"
        pool.add(Entry("trainer.objective", word, file, line, shown))


def _under(condition: str, found: Found) -> Found:
    """A key of a call, which is not known if only the run knows whether it is called."""
    if not condition or isinstance(found.value, Unresolved):
        return found
    return Found(found.path, Unresolved(f"{found.value} if {condition}"), found.line)


def _policy(calls: Iterable[Call]) -> Call | None:
    """The trained one of several models: the one named model, else the first that is no reference or reward model."""
    loads = [
        call
        for call in calls
        if call.name == "from_pretrained"
        and not call.of.startswith("Fast")
        and not call.of.endswith("Processor")
    ]
    others = [
        call
        for call in loads
        if not re.search(r"ref|reward|teacher|value|judge|critic", call.target)
    ]
    return min(others, key=lambda call: call.target != "model", default=None)


def _call_keys(call: Call, *, unsloth: bool, is_policy: bool) -> Iterator[tuple[str, Found]]:
    """The keyword arguments of a call, each with its part."""
    called = Found((call.name,), True, call.line)
    match call.name:
        case "from_pretrained" if call.of.startswith("Fast"):
            yield from product(["unsloth"], call.found)
        case "from_pretrained" if call.of.endswith("Processor"):
            yield from product(["processor"], call.found)
        case "from_pretrained":
            if is_policy:
                yield from product(["model"], call.found)
                yield "model", Found(("loaded",), True, call.line)
        case "get_peft_model" if unsloth:
            yield "unsloth_peft", called
            yield from product(["unsloth_peft"], call.found)
        case "get_peft_model":
            yield from (("call", key) for key in call.found if key.name == "autocast_adapter_dtype")
        case "tokenizer":
            yield from (("data", key) for key in call.found if key.name == "max_length")
        case "prepare_model_for_kbit_training":
            yield "call", called
            for key in call.found:
                if key.path[0] in ("use_gradient_checkpointing", "gradient_checkpointing_kwargs"):
                    yield "call", key
        case "gradient_checkpointing_enable":
            yield "call", called
            yield from product(["call"], call.found)
        case "to" | "half" | "bfloat16":
            word = {"half": "float16", "bfloat16": "bfloat16"}.get(call.name)
            said = next((key.value for key in call.found if key.name == "dtype"), word)
            yield "call", Found(("to",), said, call.line)
        case "LoraConfig":
            yield "peft", Found(("peft_type",), "LORA", call.line)
            yield from product(["peft"], call.found)
        case "DistributedConfig":
            yield from product(["distributed"], call.found)
        case "BitsAndBytesConfig":
            yield from product(["bnb"], call.found)
        case name if name in PEFT_KINDS:
            yield "peft", Found(("peft_type",), name.removesuffix("Config"), call.line)
            yield from product(["peft"], call.found)
        case name if name.endswith("Trainer"):
            for key in call.found:
                if key.path[0] in OLD_TRAINER_ARGS:
                    yield "args", key
                elif key.name in TRAINER_KEYS or (
                    key.name == "model" and isinstance(key.value, str)
                ):
                    yield "trainer", key
        case _:
            yield from product(["args"], call.found)


CONFIG_FLAGS = {"config", "config_file", "config_path"}
"""Flags whose value is a config file."""

OF_ONES_OWN = Tool(name="", label="", distribution="", chains={}, rules=())
"""A script that no tool's command starts."""

# --- commands -----------------------------------------------------------------------------------


def _command(command: Command, file: str, pool: Pool) -> None:
    for flag in command.launch:
        _launched(command.launcher, flag, file, pool)
    tool = TOOLS.get(command.tool, OF_ONES_OWN)
    if not tool.counts_gpus:
        _environment(command, file, pool)
    _own_variables(tool, command, file, pool)
    words = list(command.words)
    if command.tool:
        pool.tools.append(command.tool)
    if words and words[0] in tool.trains and tool.word_key and tool.word_key not in pool.entries:
        pool.add(Entry(tool.word_key, words[0], file, command.line, words[0]))
    pool.guesses += [
        f"{word} in the command is taken as empty."
        for word in words
        if WHOLE_VARIABLE.fullmatch(word)
    ]
    pool.references += [word for word in words if re.search(r"\.(py|ya?ml|json)$", word)]
    for flag in command.flags:
        if tool.shipped and flag.name == "accelerate_config":
            _accelerate_config(tool, Entry(flag.name, str(flag.value), file, flag.line), pool)
            continue
        if not command.launcher and tool.hands_on(flag.name):
            _launched("accelerate", flag, file, pool)
            continue
        is_file = flag.name in CONFIG_FLAGS and isinstance(flag.value, str)
        if is_file and not tool.reads_recipes:
            pool.references.append(flag.value)
            continue
        if (
            flag.name == "deepspeed"
            and isinstance(flag.value, str)
            and flag.value.endswith(".json")
        ):
            pool.references.append(flag.value)
        for key in _opened(flag):
            pool.put("args", key, file)
    if command.launcher or tool.launches_itself:
        pool.add(
            Entry(
                "launch.launcher",
                command.launcher or command.tool,
                file,
                command.line,
                command.launcher,
            )
        )


def _opened(flag: Found) -> list[Found]:
    """The keys of a flag whose value is an object's JSON, as ``HfArgumentParser`` reads it; any other flag as it is.

    >>> _opened(Found(("deepspeed",), '{"zero_optimization": {"stage": 3}}', 3))
    [Found(path=('deepspeed', 'zero_optimization', 'stage'), value=3, line=3)]
    """
    if flag.name not in OBJECT_FLAGS or not isinstance(flag.value, str):
        return [flag]
    try:
        given = json.loads(flag.value)
    except (ValueError, RecursionError):
        return [flag]
    return list(flattened(given, flag.line, flag.path)) if isinstance(given, dict) else [flag]


OBJECT_FLAGS = frozenset(
    listed("""accelerator_config fsdp_config deepspeed activation_checkpointing_kwargs gradient_checkpointing_kwargs
    lr_scheduler_kwargs""")
)
"""Arguments that may be an object's JSON: transformers 5.23, training_args.py:761."""


def _accelerate_config(tool: Tool, named: Entry, pool: Pool) -> None:
    """The file, or the name of one that the tool ships."""
    if named.value not in tool.shipped:
        pool.references.append(named.value)
        pool.add(replace(named, key="accelerate.config_file", written=named.key))
    for key, value in tool.shipped.get(named.value, {}).items():
        entry = replace(named, key=f"accelerate.{key}", value=value, written=named.key)
        pool.entries.setdefault(entry.key, entry)


def _launched(launcher: str, found: Found, file: str, pool: Pool) -> None:
    name = found.name
    if launcher == "accelerate":
        if name == "config_file":
            pool.references.append(str(found.value))
        if name in KINDS:
            found, name = Found(found.path, KINDS[name], found.line), "distributed_type"
        blocks = (block for block, is_of in BLOCKS.items() if is_of(name))
        pool.put("accelerate", found, file, ".".join([*blocks, name]))
        return
    name = {"num_nodes": "nnodes"}.get(name, name)
    if name == "include" and isinstance(found.value, str) and ":" in found.value:
        shown = found.value.partition(":")[2]
        pool.put("launch", Found(found.path, shown, found.line), file, "visible_devices")
        return
    pool.put("launch", found, file, name)


ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "visible_devices",
    "NPROC_PER_NODE": "nproc_per_node",
    "NNODES": "nnodes",
}


def _own_variables(tool: Tool, command: Command, file: str, pool: Pool) -> None:
    for name, value in command.environment.items():
        if name in tool.variables and value.isdecimal():
            pool.add(Entry(f"args.{name.lower()}", int(value), file, command.line, name))


def _environment(command: Command, file: str, pool: Pool) -> None:
    for name, value in command.environment.items():
        if name in ENVIRONMENT:
            plain: Any = (
                int(value)
                if re.fullmatch(r"[0-9]{1,6}", value) and name != "CUDA_VISIBLE_DEVICES"
                else Unresolved(value)
                if VARIABLE.search(value)
                else value
            )
            pool.add(Entry(f"launch.{ENVIRONMENT[name]}", plain, file, command.line, name))
    _allocator(command.environment, file, command.line, pool)


def _allocator(environment: Mapping[str, str], file: str, line: int, pool: Pool) -> None:
    for name in allocator.VARIABLES:
        if (text := environment.get(name)) is None:
            continue
        unknown = dict.fromkeys(allocator.KEYS, Unresolved(text))
        said = unknown if VARIABLE.search(text) else allocator.settings(text)
        for setting, value in said.items():
            pool.add(Entry(f"allocator.{setting}", value, file, line, name))

"""The defaults of tools: our keys as each tool sets them, with the source line."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pkgutil import iter_modules

from estimator.sources.catalog import tool_versions
from estimator.tools import known
from estimator.tools.lists import listed
from estimator.tools.rules import NOTHING, Origin, Tool, Value, Values, effective
from estimator.values import setup
from estimator.values.keys import default_of
from estimator.values.kinds import one_of
from estimator.values.refusals import InputError, show
from estimator.values.specs import Model

TOOLS: dict[str, Tool] = setup.TOOLS
"""Every tool whose table is here, by its value of the contract's key ``tool``."""
KNOWN = (import_module(f"{known.__name__}.{found.name}") for found in iter_modules(known.__path__))
for one in sorted((of.TOOL for of in KNOWN if hasattr(of, "TOOL")), key=attrgetter("place")):
    TOOLS[one.name] = one

QUESTION = listed("""model gpu model_class method load_in_8bit objective per_device_train_batch_size
    gradient_accumulation_steps max_length num_gpus gpus_per_node strategy fsdp_version dp_replicate_size
    offload_optimizer offload_param num_train_examples mean_tokens_per_example usd_per_gpu_hour mfu pace
    pace_from pace_shares""")
"""Keys of the question rather than of the tool; they stay when another tool's defaults are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetByTool:
    """One key of ours that a tool sets by default."""

    key: str
    value: Value
    tool: str
    """The tool and version, as ``trl 1.16.0``."""
    says: str
    """What it does, in a few words; empty if the key says it."""
    source: str
    """The package, its version, and the line."""
    differs: bool
    """Whether it differs from the contract's default."""


def tool_named(name: str, objective: object = None) -> Tool:
    """The table of a tool; ``ValueError`` names the known tools.

    >>> tool_named("trl").label
    "TRL's SFTTrainer"
    """
    if name not in TOOLS:
        raise InputError(f"tool {show(name)} is unknown; it is one of {one_of(TOOLS)}.")
    tool = TOOLS[name]
    if tool.for_objective is not None and isinstance(objective, str):
        return tool.for_objective(objective)
    return tool


def version_of(name: str) -> str:
    """The version of a tool whose defaults are known.

    >>> version_of("trl").count(".")
    2
    """
    return tool_versions()[TOOLS[name].distribution]


def defaults_of(
    name: str, given: Values = NOTHING, model: Model | None = None
) -> tuple[SetByTool, ...]:
    """The value a tool gives to each missing key of ours, in the order of its table.

    ``given`` matters: TRL keeps adapters in bfloat16 where the method is ``qlora``.

    >>> [(default.key, default.value, default.source) for default in defaults_of("trl") if default.key == "max_length"]
    [('max_length', 1024, 'trl 1.16.0, trl/trainer/sft_config.py:...')]
    """
    tool = tool_named(name, given.get("objective"))
    found = effective(tool, fixed=given, model=model)
    return tuple(
        set_by(tool, key, found.values[key], origin)
        for key, origin in found.origins.items()
        if key != "model"
    )


def set_by(tool: Tool, key: str, value: Value, origin: Origin) -> SetByTool:
    """A value that a rule found without a user's key."""
    version = f"{tool.distribution} {tool_versions()[tool.distribution]}"
    lines = [default.source for default in origin.defaults]
    return SetByTool(
        key=key,
        value=value,
        tool=version,
        says=origin.rule.says,
        source=origin.rule.source or (lines[0] if lines else ""),
        differs=value != plain_default(key),
    )


def plain_default(key: str) -> object:
    """The contract's default of a key, as in JSON."""
    value = default_of(key)
    return list(value) if isinstance(value, tuple) else value


def with_defaults_of(name: str, given: Values, model: Model | None = None) -> dict[str, Value]:
    """An object of the contract whose missing keys are filled with a tool's defaults.

    To take the keys of a page as another tool would have them, give those of ``QUESTION`` alone.

    >>> keys = with_defaults_of("trl", {"method": "lora", "max_length": 4096})
    >>> keys["max_length"], keys["gradient_checkpointing"], keys["loss"], keys["dtype"], keys["lora_r"]
    (4096, True, 'chunked_trl', 'float32', 16)
    """
    found = effective(tool_named(name, given.get("objective")), fixed=given, model=model)
    own = found.origins.keys() - given.keys() - {"model"}
    return {**{key: value for key, value in found.values.items() if key in own}, **given}

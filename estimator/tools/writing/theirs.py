"""A setup in a tool's own keys, found through the table by which they are read.

Each key of ours that the tool would otherwise set to something else is written by its row, and what is written is read
again by the same rows, until all agree. What no row can say is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from estimator.tools.rules import NOTHING, Entry, Tool, Value, effective
from estimator.tools.writing.objects import OBJECTS
from estimator.tools.writing.several_gpus import BESIDE, SHARING
from estimator.values.keys import KEYS
from estimator.values.kinds import show
from estimator.values.later_keys import LATER
from estimator.values.refusals import InputError
from estimator.values.specs import Model

NOT_OF_A_TOOL = frozenset(
    [
        "v",
        "tool",
        "tool_version",
        "gpu",
        "model_class",
        "padded",
        "completion_fraction",
        "max_prompt_length",
        "images_per_example",
        "image_height",
        "image_width",
        "image_sizes",
        "text_tokens",
        "videos_per_example",
        "video_frames",
        "video_height",
        "video_width",
        "num_train_examples",
        "mean_tokens_per_example",
        "usd_per_gpu_hour",
        "mfu",
        "pace",
        "pace_from",
        "pace_shares",
        "optim_state_dtype",
    ]
)
"""Keys that follow from the data, the prices and the model's files, or that only ask what if: no config has them."""
ALWAYS_SAID = (
    "model",
    "method",
    "dtype",
    "mixed_precision",
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "lora_target_modules",
    "optim",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
    "gradient_checkpointing",
    "attn_implementation",
    "num_train_epochs",
    "save_strategy",
)
"""Keys that a new config states even where the tool would do the same: another version may not."""
ALSO_SAID: Mapping[str, tuple[str, ...]] = {
    "verl": (
        *("num_gpus", "strategy", "num_generations", "max_completion_length", "beta", "padded"),
        *("vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode"),
    )
}
"""More of these by tool: what its own examples state."""
_SCORES = tuple(
    f"args.actor_rollout_ref.{part}.log_prob_{key}"
    for part in ("rollout", "ref")
    for key in ("micro_batch_size_per_gpu", "use_dynamic_bsz")
)
NEEDED = frozenset(["args.use_peft", *_SCORES])
"""What a tool needs beside a key that implies it here: load_in_4bit trains nothing without adapters; verl stops
where it is not told how it scores: verl 0.9.1, utils/config.py, ``validate_config``, workers/engine_workers.py:615."""
MOST_ROUNDS = 8
"""How often what was written is read again: ours, a round for each key that depends on another."""
_OF_ADAPTERS = tuple(
    key.name
    for key in KEYS
    if key.facet == "adapters"
    and key.name not in {"method", "model_class"}
    and not key.name.startswith(("bnb_", "freeze_"))
)
_OF_4BIT = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage")
_OF_CHECKPOINTS = (
    "use_reentrant",
    "checkpoint_every_n_layers",
    "offload_checkpoints",
    "selective_checkpointing",
)
_OF_FSDP = ("fsdp_version", "fsdp_state_dict_type", "checkpoint_around_fsdp")
_ASKS = frozenset(["dpo", "kto"])
_GENERATES = frozenset(["grpo", "rloo"])
_OF_OBJECTIVES: Mapping[str, frozenset[str]] = {
    "precompute_ref_log_probs": _ASKS,
    "loss": frozenset(["sft", "orpo", *_ASKS, *_GENERATES]),
    "loss_type": frozenset(["sft", "grpo", *_ASKS]),
    "beta": frozenset(["orpo", *_ASKS, *_GENERATES]),
    **dict.fromkeys(
        (
            "max_completion_length",
            "num_generations",
            "steps_per_generation",
            "num_iterations",
            "use_vllm",
            "vllm_mode",
            "vllm_gpu_memory_utilization",
            "vllm_enable_sleep_mode",
            "vllm_tensor_parallel_size",
            "vllm_data_parallel_size",
            "vllm_max_num_seqs",
            "vllm_max_num_batched_tokens",
            "generation_offload_model",
            "generation_offload_optimizer",
            "use_transformers_continuous_batching",
        ),
        _GENERATES,
    ),
    "num_labels": frozenset(["sequence_classification"]),
    "mini_batch_size": frozenset(["embedding"]),
    "label_smoothing_factor": frozenset(["sft", "sequence_classification"]),
}
"""Keys that only these objectives have a use for."""
TOLD_PROMPTS = frozenset(["verl", "ms_swift"])
"""Tools that are told the longest prompt of a generation, of which its longest row follows."""
PADS = frozenset(["verl"])
"""Tools with a key for whether the rows of a micro-batch are padded."""
USUAL_BETA = {"dpo": 0.1, "kto": 0.1, "orpo": 0.1, "grpo": 0.0, "rloo": 0.05}
"""trl 1.16: trainer/dpo_config.py, kto_config.py, grpo_config.py, rloo_config.py, experimental/orpo/orpo_config.py."""
USUAL_LOSS_TYPE = {"sft": "nll", "dpo": "sigmoid", "kto": "kto", "grpo": "dapo"}
"""trl 1.16, the same files."""


def theirs_of(
    tool: Tool,
    keys: Mapping[str, Value],
    model: Model | None = None,
    parts: Set[str] = frozenset({"args", "accelerate", "deepspeed"}),
    given: Mapping[str, Value] = NOTHING,
    meant: Set[str] = frozenset(),
) -> dict[str, Value]:
    """A setup's keys in a tool's words, by their full names; ``InputError`` names the key that it has no word for.

    Only what the tool would not do by itself is written, in the ``parts`` of a config that may be written. ``given`` is
    what a config says already: of it only that changes which must, for the keys that are ``meant``; others of the setup
    may follow, as a tool has them follow.

    >>> from estimator.tools.known import trl
    >>> keys = {"model": "openai-community/gpt2", "max_length": 512, "loss": "chunked_trl", "dtype": "float32"}
    >>> theirs_of(trl.TOOL, keys)["args.max_length"]
    512
    """
    wanted, written = sayable(keys, tool.name), dict(given)
    if not given:
        stated = (key for key in (*ALWAYS_SAID, *ALSO_SAID.get(tool.name, ())) if key in wanted)
        written = {
            their: value
            for key in stated
            for their, value in next(_ways(tool, key, wanted, parts), {}).items()
        }
    for _ in range(MOST_ROUNDS):
        now = said(tool, written, model)
        wrong = [
            key for key in wanted if now.get(key) != wanted[key] and (not meant or key in meant)
        ]
        if not wrong:
            held = {key: now[key] for key in wanted if key in now}
            return _pruned(tool, written, held, model, given)
        more: dict[str, Value] = {}
        for key in wrong:
            ways = list(_ways(tool, key, wanted, parts))
            done = (
                it for it in ways if said(tool, {**written, **it}, model).get(key) == wanted[key]
            )
            first = ways[0] if ways else {}
            more |= next(done, first) if given else first
        if more.items() <= written.items():
            break
        written |= more
    now = said(tool, written, model)
    if given:
        key = next(key for key in wanted if now.get(key) != wanted[key] and key in meant)
        raise InputError(
            f"these files cannot be told {key} {show(wanted[key])}: it stays {show(now.get(key))} there; "
            "change it by hand."
        )
    raise InputError(_cannot_say(tool, wanted, now, model))


def _pruned(
    tool: Tool,
    written: dict[str, Value],
    wanted: Mapping[str, Value],
    model: Model | None,
    given: Mapping[str, Value],
) -> dict[str, Value]:
    """Without what was written on the way and changes nothing: of a part that is new, switches that are off alone."""
    known = {key.partition(".")[0] for key in given}
    for key, value in [*written.items()]:
        is_new = key.partition(".")[0] not in known
        is_needed = key in NEEDED and (value is not False or key in given)
        if given.get(key) == value or is_needed or (is_new and not _is_idle(key, value)):
            continue
        fewer = {other: it for other, it in written.items() if other != key}
        if key in given:
            fewer[key] = given[key]
        now = said(tool, fewer, model)
        if all(now.get(our) == it for our, it in wanted.items()):
            written = fewer
    return written


def _is_idle(key: str, value: Value) -> bool:
    return value is False or key.startswith("call.")


def said(tool: Tool, written: Mapping[str, Value], model: Model | None) -> dict[str, Value]:
    """What the tool makes of its keys, as far as a config can say it."""
    entries = {key: Entry(key, value) for key, value in written.items()}
    return sayable(effective(tool, entries, model=model).values, tool.name)


def sayable(keys: Mapping[str, Value], tool: str = "") -> dict[str, Value]:
    """A setup's keys with their defaults, without those that it has no use for, and in one spelling.

    ``tool``: by its name, one that has words for keys that others leave to the data.

    >>> "lora_r" in sayable({"method": "full"}), sayable({"method": "lora"})["lora_r"]
    (False, 16)
    """
    values = {**DEFAULTS, **{key: _plain(value) for key, value in keys.items()}}
    objective = values["objective"]
    if values["loss"] is None:
        usual = "liger" if values["use_liger_kernel"] else "standard"
        values["loss"] = "chunked_trl" if objective in _ASKS | _GENERATES else usual
    for key, usual_of in (("beta", USUAL_BETA), ("loss_type", USUAL_LOSS_TYPE)):
        if values[key] is None:
            values[key] = usual_of.get(objective)
    values["steps_per_generation"] = (
        values["steps_per_generation"] or values["gradient_accumulation_steps"]
    )
    if values["optim"] == "sgd_momentum":
        values |= {"optim": "sgd", "optim_args": "momentum=0.9"}
    unused = {*NOT_OF_A_TOOL, *_unused(values)}
    if objective in _GENERATES and tool in TOLD_PROMPTS:
        unused -= {"max_length", "max_prompt_length"}
        prompt = values["max_length"] - values["max_completion_length"]
        values["max_prompt_length"] = values["max_prompt_length"] or prompt
    if tool in PADS:
        unused.discard("padded")
    return {key: value for key, value in values.items() if key not in unused}


def _unused(values: Mapping[str, Value]) -> Iterator[str]:
    method, strategy, objective = values["method"], values["strategy"], values["objective"]
    yield from (key for key, of in _OF_OBJECTIVES.items() if objective not in of)
    if objective in _GENERATES:
        yield "max_length"  # no trainer cuts the prompt of a completion that it writes itself
    if method == "full":
        yield from _OF_ADAPTERS
    if method != "qlora":
        yield from _OF_4BIT
    if method == "qlora":
        yield "load_in_8bit"
    if not values["gradient_checkpointing"]:
        yield from _OF_CHECKPOINTS
    if values["freeze_vision"]:
        yield "vision_gradient_checkpointing"  # each tool has its own way with a frozen tower
    if values["eval_strategy"] == "no":
        yield "per_device_eval_batch_size"
    if strategy not in {"fsdp", "fsdp_grad_op", "hsdp"}:
        yield from _OF_FSDP
    if strategy != "hsdp":
        yield "dp_replicate_size"
    if strategy != "zero3":
        yield "zero3_save_16bit_model"
    if values["num_gpus"] <= values["gpus_per_node"]:
        yield "gpus_per_node"


def _plain(value: Value) -> Value:
    """As JSON has it: words for members of enums, lists for tuples; an empty one is none."""
    if isinstance(value, tuple | list | Mapping) and not value:
        return None
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value


DEFAULTS: Mapping[str, Value] = {
    **{key: value for key, value in LATER.items()},
    **{key.name: _plain(key.default) for key in KEYS},
}
"""Every key of the contract as JSON has its default."""


def _ways(
    tool: Tool, key: str, wanted: Mapping[str, Value], parts: Set[str]
) -> Iterator[dict[str, Value]]:
    """A key of ours by each row that can write it in these parts, the last row first; others of a row as they are."""
    shares = BESIDE.get(tool.name, SHARING)
    for rule in reversed((*OBJECTS.get(tool.name, ()), *tool.rules, shares)):
        if key in rule.ours and rule.write is not None:
            ours = {one: wanted.get(one, DEFAULTS.get(one)) for one in rule.ours}
            found = dict(_flat(rule.write(ours)))
            if found and all(their.partition(".")[0] in parts for their in found):
                yield found


def _flat(values: Mapping[str, Value], before: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        elif value is not None:
            yield f"{before}{key}", value


def _cannot_say(
    tool: Tool, wanted: Mapping[str, Value], now: Mapping[str, Value], model: Model | None
) -> str:
    wrong = [key for key in wanted if now.get(key) != wanted[key]]
    key = "objective" if "objective" in wrong else wrong[0]  # on which others depend
    origin = effective(tool, model=model).origins.get(key)
    because = f" ({origin.rule.says})" if origin is not None and origin.rule.says else ""
    return (
        f"{tool.label} has no word for {key} {show(wanted[key])}: there it is {show(now.get(key))}{because}; "
        "change it, or take another tool."
    )

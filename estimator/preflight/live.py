"""A live Trainer as an object of the contract. Reads attributes only; imports no library.

Names of the contract are Hugging Face's: most keys are attributes of the arguments or of PEFT's config as they stand.
Where an object of the run knows better than its arguments (dtypes of weights, who shares them), the object is asked.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from estimator.sources import catalog
from estimator.sources.repository import CLASSIFIERS, from_config
from estimator.values.keys import DEFAULT, KEYS
from estimator.values.later_keys import LATER
from estimator.values.objective import OBJECTIVES
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal
from estimator.values.specs import Model

OTHER_BUCKET = Refusal(
    "{key} of {found:,} is not modelled in a live Trainer, only what Trainer sets for auto, here {auto:,} elements; "
    "set it to auto.",
    NOT_MODELLED,
)
VALUE_HEAD = Refusal(
    "a model with a value head is not modelled yet in a live Trainer; a classifier of one label scores rows, too.",
    NOT_MODELLED,
)
OTHER_HEAD = Refusal(
    "the head of {kind} is not modelled yet in a live Trainer; heads for words and ForSequenceClassification are.",
    NOT_MODELLED,
)
TWO_DTYPES = Refusal(
    "weights in {less} beside most in {most} are not modelled yet in a live Trainer; load all in one dtype.",
    NOT_MODELLED,
)
OWN_LOSS = Refusal(
    "a compute_loss_func of the run's own is not modelled yet in a live Trainer; transformers' and TRL's losses are.",
    NOT_MODELLED,
)
OWN_WAY = Refusal(
    "{tool}'s {name} is not modelled yet in a live Trainer; leave it out for an estimate of the rest.",
    NOT_MODELLED,
)
OTHER_TRAINER = Refusal("TRL's {name} is not modelled yet; {known} are.", NOT_MODELLED)
OTHER_PEFT = Refusal("PEFT's {kind} is not modelled yet; LORA is.", NOT_MODELLED)
PACKED_ALONE = Refusal(
    "a quantised base without adapters is not modelled yet; add a PEFT config.", NOT_MODELLED
)
DATA_PARALLEL = Refusal(
    "{number} GPUs in one process are DataParallel, which is not modelled yet; run one process for each GPU, or set "
    "CUDA_VISIBLE_DEVICES to one.",
    NOT_MODELLED,
)
OTHER_AXIS = Refusal(
    "DistributedConfig's {names} is not modelled yet; tp_size is, alone and with fsdp_size or dp_replicate_size.",
    NOT_MODELLED,
)
_OTHER_AXES = ("pp_size", "ep_size", "fsdp_mixed_precision", "fsdp_cpu_offload")
HYBRID_SHARDING = Refusal(
    "hybrid sharding of a live Trainer is not modelled yet: its groups are not known.", NOT_MODELLED
)
SEVERAL_ADAPTERS = Refusal(
    "{number} adapters on one model are not modelled yet; train one at a time.", NOT_MODELLED
)
QUANTISED_OTHERWISE = Refusal(
    "weights quantised by {method} are not modelled yet; load them plain or with bitsandbytes.",
    NOT_MODELLED,
)

FUSED_LOSS_SINCE = (1, 15)
"""The first TRL whose SFTTrainer never materialises full logits: trl 1.16, trainer/utils.py, add_fused_lm_head."""
_OF_PEFT = {"r": "lora_r", "target_modules": "lora_target_modules"}
"""PEFT values that the contract spells differently: peft 0.21, tuners/lora/config.py."""
_NOT_ARGUMENTS = frozenset(
    {"dtype", "fp8_backend", "loss", "loss_type", "method", "strategy", "optim_args", "v"}
)
"""Keys that are not trainer arguments, or mean something else there."""
_PACKED = frozenset({"Params4bit", "Int8Params"})
"""Classes of bitsandbytes' packed weights."""
_SAYS_NOTHING = ("quantization_config", "id2label", "label2id", "transformers_version")
"""Config keys to skip: labels, versions, and quantisation, which is read from the weights."""
_OWN_WAYS = {
    "LLaMA-Factory": (
        "finetuning_args",
        ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon"),
    ),
    "axolotl": ("args", ("lisa_n_layers",)),
}
"""Optimizers that a tool makes whatever ``optim`` says, and layers that it trains in turn, where a Trainer has them:
llamafactory 0.9.5, train/trainer_utils.py, ``create_custom_optimizer``; axolotl 0.19, core/builders/causal.py."""
_STAGES = {1: "zero1", 2: "zero2", 3: "zero3"}
_OBJECTIVES = {
    f"{objective.trl.name}Trainer": word for word, objective in OBJECTIVES.items() if objective.trl
}
"""TRL's trainers and their objectives in the contract."""
PROMPT = "prompt_ids"
_SEQUENCES = (
    ("input_ids",),
    (PROMPT, "chosen_ids", "rejected_ids"),
    ("chosen_ids", "rejected_ids"),
    (PROMPT, "completion_ids"),
    ("chosen_input_ids", "rejected_input_ids"),
)
"""Columns of a tokenised dataset that make a row: a prompt and one answer of a pair. trl 1.16, trainer/dpo_trainer.py,
reward_trainer.py, kto_trainer.py, ``DataCollatorFor…``; experimental/orpo/orpo_trainer.py, ``tokenize_row``, where
answers have their prompt."""
OTHERS = 0.01
"""Share of the weights that may have another dtype, such as norms and routers: ours."""
MOST_ROWS = 1_000_000
"""Rows of a tokenised dataset searched for the longest: ours."""


def keys_of(trainer: Any, max_length: int | None = None) -> dict[str, object]:
    """The setup of a live Trainer, as an object of the contract without its GPU; ``InputError`` says what is missing.

    Source: transformers 5.23 training_args.py and trainer.py; trl 1.16 sft_trainer.py; peft 0.21 tuners/lora/config.py;
        accelerate 1.15 state.py.
    """
    args, model = trainer.args, trainer.model
    keys = _arguments(args, _base(model))
    keys |= _task(trainer)
    keys |= _rows(trainer, max_length)
    keys |= _weights(model)
    keys |= _sharing(trainer)
    return {
        "model": _model(_base(model)),
        **{key: value for key, value in keys.items() if value is not None},
    }


def gpu() -> object:
    """The first visible CUDA device as the contract has it; None without one.

    Source: torch 2.13, cuda/__init__.py, get_device_properties.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    named = [
        catalog.gpus()[name] for name in catalog.find_gpus(found.name) if name in catalog.gpus()
    ]
    same = [card for card in named if abs(card.memory_bytes - found.total_memory) < 2**29]
    if not same:
        return {"memory_bytes": int(found.total_memory)}
    return {"like": same[0].name, "memory_bytes": int(found.total_memory)}


# --- arguments ----------------------------------------------------------------------------------


def _arguments(args: Any, model: Any) -> dict[str, object]:
    names = [*(key.name for key in KEYS), *LATER]
    keys = {
        name: _plain(getattr(args, name))
        for name in names
        if name not in _NOT_ARGUMENTS and hasattr(args, name)
    }
    keys["mixed_precision"] = _autocast(args)
    kwargs = _first(args, "activation_checkpointing_kwargs", "gradient_checkpointing_kwargs") or {}
    of_model = bool(
        getattr(model, "is_gradient_checkpointing", False)
    )  # LLaMA-Factory sets it there
    keys["gradient_checkpointing"] = _checkpoints(args) or of_model
    if of_model and not _checkpoints(args):
        kwargs = _checkpoint_call(model)
    keys["use_reentrant"] = kwargs.get("use_reentrant") if keys["gradient_checkpointing"] else None
    keys["selective_checkpointing"] = bool(kwargs.get("selective"))
    keys["offload_checkpoints"] = bool(kwargs.get("offload"))
    keys["checkpoint_every_n_layers"] = kwargs.get("every_n_layers")
    if args.optim_args and "sgd" in str(keys.get("optim")):
        keys["optim_args"] = args.optim_args
    return keys


def _autocast(args: Any) -> str:
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "no"


def _checkpoints(args: Any) -> bool:
    return bool(_first(args, "activation_checkpointing", "gradient_checkpointing"))


def _checkpoint_call(model: Any) -> Mapping[str, Any]:
    """The arguments with which a model's layers are checkpointed.

    Source: transformers 5.23, modeling_utils.py, ``gradient_checkpointing_enable``: a partial of torch's checkpoint.
    """
    for module in model.modules():
        call = getattr(module, "_gradient_checkpointing_func", None)
        call = getattr(call, "__wrapped__", call)  # LLaMA-Factory's around it
        if call is not None:
            found: Mapping[str, Any] = getattr(call, "keywords", {})
            return found
    return {}


def _first(holder: Any, *names: str) -> Any:
    """The first attribute that exists and is not None."""
    values = (getattr(holder, name, None) for name in names)
    return next((value for value in values if value is not None), None)


def _plain(value: object) -> object:
    """A value as JSON has it: members of enums by their values, sets in order."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


# --- what a step is -----------------------------------------------------------------------------


def _task(trainer: Any) -> dict[str, object]:
    classes = [(base.__name__, base.__module__.split(".")[0]) for base in type(trainer).__mro__]
    names = {name for name, _ in classes}
    of_trl = [name for name, package in classes if package == "trl"]
    if of_trl and of_trl[0].endswith("Trainer") and of_trl[0] not in _OBJECTIVES:
        raise OTHER_TRAINER(name=of_trl[0], known=", ".join(sorted(_OBJECTIVES)))
    named = (word for name, word in _OBJECTIVES.items() if name in names)
    objective = OBJECTIVES[next(named, DEFAULT.task.objective)]
    _refuse_own_parts(trainer)
    model = _base(trainer.model)
    if type(model).__name__.endswith("WithValueHead"):  # TRL's, of LLaMA-Factory's reward models
        raise VALUE_HEAD()
    keys: dict[str, object] = {}
    kind = type(model).__name__
    if kind.endswith("ForSequenceClassification"):
        keys["num_labels"] = model.config.num_labels
        if not objective.has_score:
            objective = OBJECTIVES["sequence_classification"]
    elif kind.endswith(CLASSIFIERS):
        raise OTHER_HEAD(kind=kind)
    keys["objective"] = str(objective)
    if objective.is_causal_lm and "SFTTrainer" in names and _trl() >= FUSED_LOSS_SINCE:
        keys["loss"] = "chunked_trl"
    if objective.has_reference and not objective.generates:
        if any(package == "llamafactory" for _, package in classes):
            keys["loss"] = "standard"
        elif of_trl and _trl() < FUSED_LOSS_SINCE:
            keys["loss"] = "selective_trl"
    if objective.loss_types and not objective.is_causal_lm:
        keys["loss_type"] = _one(getattr(trainer.args, "loss_type", None))
        if getattr(trainer.args, "cpo_alpha", None) == 0:
            keys["loss_type"] = (
                "alphapo"  # which CPOConfig writes as simpo, without a cross-entropy
            )
    keys["padding_free"] = bool(getattr(trainer, "padding_free", False))
    return keys


def _refuse_own_parts(trainer: Any) -> None:
    """Refuse a loss or an optimizer that no argument of the Trainer names."""
    loss = getattr(trainer, "compute_loss_func", None)  # TRL sets a text where it has none
    if callable(loss) and getattr(loss, "__module__", "").split(".")[0] != "trl":
        raise OWN_LOSS()
    for tool, (holder, names) in _OWN_WAYS.items():
        for name in names:
            if getattr(getattr(trainer, holder, None), name, None):
                raise OWN_WAY(tool=tool, name=name)


def _one(value: object) -> object:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _trl() -> tuple[int, ...]:
    """TRL's version; (0, 0) where it is not loaded."""
    found = re.match(r"(\d+)\.(\d+)", getattr(sys.modules.get("trl"), "__version__", ""))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _rows(trainer: Any, max_length: int | None) -> dict[str, object]:
    """Tokens in the longest row and of its prompt, whether a batch is padded, and how many rows there are."""
    args, rows = trainer.args, getattr(trainer, "train_dataset", None)
    samples = getattr(args, "sample_packing", False)  # axolotl's, which packs as it draws
    packs = samples or getattr(args, "packing", False)
    limit = max_length or getattr(args, "max_seq_length" if samples else "max_length", None)
    tokens = _tokens(rows)
    if not samples and max_length is None and tokens is not None:
        limit = min(tokens.longest, limit or tokens.longest)
    if limit is None:
        raise InputError(
            "max_length is not known: neither the arguments nor the rows say how many tokens a row has; "
            "give check(trainer, max_length=…), or headroom rehearse --max-length."
        )
    laid_out = packs or getattr(trainer, "padding_free", False)
    of = getattr(args, "pad_to_multiple_of", None)
    collator = getattr(trainer, "data_collator", None)
    length = _multiple(limit, of or getattr(collator, "pad_to_multiple_of", None))
    one_row = samples and not getattr(args, "multipack_real_batches", False)
    answers = 1 if tokens is None else tokens.answers
    several = args.per_device_train_batch_size * answers > 1
    alike = tokens is not None and tokens.shortest == tokens.longest == length
    return {
        **({"packing": bool(one_row), "padding_free": bool(one_row)} if samples else {}),
        "max_length": length,
        **({} if tokens is None else _prompt(tokens, length)),
        "padded": bool(several and not laid_out and not alike),
        **_examples(args, rows),
    }


def _prompt(tokens: _Tokens, length: int) -> dict[str, object]:
    """The tokens of a row that no loss counts, its padding included."""
    scored = tokens.scored
    return {} if scored is None else {"max_prompt_length": max(length - scored, 1)}


def _examples(args: Any, rows: Any) -> dict[str, object]:
    """How many examples the run has; of ``max_steps`` so many as they take."""
    if (steps := getattr(args, "max_steps", -1)) > 0:
        a_step = args.per_device_train_batch_size * args.gradient_accumulation_steps
        return {"num_train_examples": steps * a_step * args.world_size, "num_train_epochs": 1}
    return {"num_train_examples": _count(rows)}


def _count(rows: Any) -> int | None:
    """Rows of a dataset; None where it is none, or a stream."""
    return (len(rows) or None) if hasattr(rows, "__len__") else None


class _Tokens(NamedTuple):
    """How many tokens the rows of a dataset have; a pair is two rows, each with its prompt."""

    shortest: int
    longest: int
    answers: int = 1
    """Rows that an example makes."""
    scored: int | None = None
    """Most tokens of an example's answers, per row; None where prompts are not told apart."""


def _tokens(rows: Any) -> _Tokens | None:
    """The tokens of a tokenised dataset's rows; None where they cannot be looked at."""
    if not 0 < (_count(rows) or 0) <= MOST_ROWS:
        return None
    columns = getattr(rows, "column_names", None) or ()
    parts = next((names for names in _SEQUENCES if {*names} <= {*columns}), ())
    if parts:
        lengths = {name: [len(sequence) for sequence in rows[name]] for name in parts}
        prompts = lengths.pop(PROMPT, None)
        answers = [*lengths.values()]
        before = prompts or [0] * len(answers[0])
        whole = {sum(pair) for answer in answers for pair in zip(before, answer, strict=True)}
        scored = max(-(-sum(row) // len(row)) for row in zip(*answers, strict=True))
        return _Tokens(min(whole), max(whole), len(answers), scored if prompts else None)
    if isinstance(rows, list) and all(
        isinstance(row, Mapping) and "input_ids" in row for row in rows
    ):
        whole = {len(row["input_ids"]) for row in rows}
        return _Tokens(min(whole), max(whole))
    return None


def _multiple(length: int, of: int | None) -> int:
    return -(-length // of) * of if of else length


# --- weights ------------------------------------------------------------------------------------


def _base(model: Any) -> Any:
    """The model beneath PEFT's."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _model(base: Any) -> object:
    """The Hub id where the catalogue has this very model, else the object of its config.json."""
    config = json.loads(base.config.to_json_string(use_diff=False))
    for name in _SAYS_NOTHING:
        config.pop(name, None)
    found = from_config(config).model
    known = catalog.models().get(getattr(base.config, "_name_or_path", "") or "")
    if known is not None and found is not None and _shape(known.model) == _shape(found):
        return known.hub_id
    return config


def _shape(model: Model) -> Model:
    """The model without what only its origin decides."""
    return replace(model, hub_id="", config="", notes=(), stored_width=0)


def _weights(model: Any) -> dict[str, object]:
    """Method, dtypes, quantisation and adapters."""
    base = _base(model)
    keys: dict[str, object] = {"attn_implementation": base.config._attn_implementation}
    adapters = getattr(model, "peft_config", None) or {}
    packed = _quantisation(base)
    floats = [
        (name, weight)
        for name, weight in model.named_parameters()
        if weight.is_floating_point() and type(weight).__name__ not in _PACKED
    ]
    trained = (".lora_", "modules_to_save")
    frozen = [weight for name, weight in floats if not any(word in name for word in trained)]
    keys["dtype"] = _commonest(frozen)
    if not packed:
        _refuse_two_dtypes(frozen)
    if not adapters:
        if packed:
            raise PACKED_ALONE()
        return {**keys, "method": "full"}
    of_adapters = _commonest(weight for name, weight in floats if ".lora_" in name)
    as_the_base = keys["dtype"] == "float32" and not packed
    keys["autocast_adapter_dtype"] = of_adapters == "float32" or as_the_base
    if packed and any(weight.dim() == 1 and _dtype(weight) == "float32" for weight in frozen):
        loaded = _name(getattr(base.config, "dtype", None))
        keys["prepare_model_for_kbit_training"] = loaded != "float32"
        keys["dtype"] = loaded or keys["dtype"]
    keys |= packed | _adapters(adapters)
    keys["lora_target_modules"] = _targets(model, keys.get("lora_target_modules"))
    if keys.get("modules_to_save"):
        keys["modules_to_save"] = _saved(model, keys["modules_to_save"])
    return {**keys, "method": packed.get("method", "lora")}


def _refuse_two_dtypes(weights: Iterable[Any]) -> None:
    """Refuse weights of which more than ``OTHERS`` have another dtype than most, as embeddings that axolotl casts."""
    elements = _elements(weights)
    for dtype, number in elements.most_common()[1:]:
        if number > OTHERS * elements.total():
            raise TWO_DTYPES(less=dtype, most=elements.most_common(1)[0][0])


def _saved(model: Any, named: Any) -> list[str] | None:
    """Those modules that the model has: for a classifier PEFT names "classifier" and "score", and passes over one.

    Source: peft 0.21, peft_model.py, PeftModelForSequenceClassification.
    """
    saved = "\n".join(name for name, _ in model.named_parameters())
    return [module for module in named if f"{module}.modules_to_save." in saved] or None


def _targets(model: Any, named: object) -> object:
    """Modules by the last part of their names, where those named in full are all that end so.

    Source: peft 0.21, tuners/tuners_utils.py, ``_maybe_include_all_linear_layers``: full names, of fewer than 20.
    """
    if not isinstance(named, list) or not any("." in name for name in named):
        return named
    names = [name for name, _ in model.named_parameters()]
    adapted = {name.split(".lora_")[0] for name in names if ".lora_" in name}
    others = {name.rpartition(".")[0].removesuffix(".base_layer") for name in names} - adapted
    ends = {module.rpartition(".")[2] for module in adapted}
    whole = not any(
        module.rpartition(".")[2] in ends for module in others if ".lora_" not in module
    )
    return sorted(ends) if whole else named


def _commonest(parameters: Iterable[Any]) -> str | None:
    """The dtype of most elements; None of none."""
    elements = _elements(parameters)
    return elements.most_common(1)[0][0] if elements else None


def _elements(parameters: Iterable[Any]) -> Counter[str]:
    """How many elements have each dtype."""
    elements: Counter[str] = Counter()
    for parameter in parameters:
        elements[_dtype(parameter)] += parameter.numel()
    return elements


def _dtype(parameter: Any) -> str:
    return _name(parameter.dtype)


def _name(dtype: object) -> str:
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def _quantisation(base: Any) -> dict[str, object]:
    """What bitsandbytes packed the base into; empty: nothing."""
    how = getattr(base.config, "quantization_config", None)
    if how is None:
        return {}
    said = how if isinstance(how, Mapping) else how.to_dict()
    if said.get("load_in_8bit"):
        return {"method": "lora", "load_in_8bit": True}
    if said.get("load_in_4bit"):
        names = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage")
        return {"method": "qlora", **{name: said[name] for name in names if name in said}}
    raise QUANTISED_OTHERWISE(method=said.get("quant_method"))


def _adapters(configs: Mapping[str, Any]) -> dict[str, object]:
    """PEFT's one config, by the contract's names."""
    if len(configs) > 1:
        raise SEVERAL_ADAPTERS(number=len(configs))
    (config,) = configs.values()
    kind = str(_plain(config.peft_type))
    if kind != "LORA":
        raise OTHER_PEFT(kind=kind)
    names = [*(key.name for key in KEYS if key.facet == "adapters"), *LATER]
    keys = {name: _plain(getattr(config, name)) for name in names if hasattr(config, name)}
    keys |= {ours: _plain(getattr(config, theirs)) for theirs, ours in _OF_PEFT.items()}
    return keys


# --- several GPUs -------------------------------------------------------------------------------


def _sharing(trainer: Any) -> dict[str, object]:
    """How many processes there are, and who keeps what."""
    args, number = trainer.args, int(trainer.args.world_size)
    devices = {*(getattr(_base(trainer.model), "hf_device_map", None) or {}).values()}
    if number == 1 and len(devices) > 1:
        return {"num_gpus": len(devices), "strategy": "device_map"}
    if number == 1 and getattr(args, "n_gpu", 1) > 1:
        raise DATA_PARALLEL(number=args.n_gpu)
    if (divided := getattr(_base(trainer.model).config, "distributed_config", None)) is not None:
        return {"num_gpus": number, **_divided(divided)}
    state = trainer.accelerator.state
    keys: dict[str, object] = {"num_gpus": number, "strategy": "ddp" if number > 1 else "none"}
    deepspeed, fsdp = (getattr(state, f"{name}_plugin", None) for name in ("deepspeed", "fsdp"))
    if deepspeed is not None:
        config = deepspeed.deepspeed_config.get("zero_optimization", {})
        return keys | _zero(config, number, _hidden(_base(trainer.model).config))
    if fsdp is not None and number > 1:
        return keys | _fsdp(fsdp)
    return keys


def _divided(config: Any) -> dict[str, object]:
    """A model that ``from_pretrained`` divided by a ``DistributedConfig``; accelerate shards nothing of it.

    Source: transformers 5.23, distributed/configuration_utils.py; trainer.py, ``_prepare_for_training``.
    """
    said = {name: getattr(config, name, None) for name in _OTHER_AXES}
    others = [name for name, value in said.items() if value is True or (value or 1) > 1]
    parts, copies = int(config.tp_size), int(config.dp_replicate_size)
    if others or (parts == 1 and config.dp_size > 1):
        raise OTHER_AXIS(names=", ".join(others) or "fsdp_size without tp_size")
    alone = "fsdp" if config.dp_size > 1 else "none"
    strategy = "hsdp" if copies > 1 else alone
    return {"strategy": strategy, "tp_size": parts, "dp_replicate_size": copies}


def _zero(config: Mapping[str, Any], number: int, hidden: int | None) -> dict[str, object]:
    """Source: deepspeed 0.19.8, runtime/zero/config.py, the buckets' defaults; transformers 5.23,
    integrations/deepspeed.py, ``trainer_config_finalize``, their sizes for ``auto``.
    """
    stage = config.get("stage", 0)
    if number == 1 or stage not in _STAGES:
        return {}
    sizes = {"reduce_bucket_size": (500_000_000, 1.0)}
    if stage == 3:
        sizes["stage3_prefetch_bucket_size"] = (50_000_000, 0.9)
    for key, (default, share) in sizes.items():
        found, auto = config.get(key, default), int(share * (hidden or 0) ** 2)
        if found not in {"auto", auto} and hidden:
            raise OTHER_BUCKET(key=key, found=int(found), auto=auto)
    return {
        "strategy": _STAGES[stage],
        **{
            f"offload_{what}": (config.get(f"offload_{what}") or {}).get("device", "none")
            for what in ("optimizer", "param")
        },
    }


def _hidden(config: Any) -> int | None:
    """The hidden size by which Trainer fills ``auto``."""
    found = _first(config, "hidden_size") or _first(
        getattr(config, "text_config", None), "hidden_size"
    )
    return None if found is None else int(found)


def _fsdp(plugin: Any) -> dict[str, object]:
    version, keeps = plugin.fsdp_version, plugin.reshard_after_forward
    named = str(getattr(getattr(plugin, "sharding_strategy", None), "name", ""))
    if version == 1:
        grad_op, hybrid = named == "SHARD_GRAD_OP", named.startswith("HYBRID")
    else:
        grad_op, hybrid = keeps is False, False
    if hybrid:
        raise HYBRID_SHARDING()
    where = "cpu" if _offloads(plugin.cpu_offload) else "none"
    return {
        "strategy": "fsdp_grad_op" if grad_op else "fsdp",
        "fsdp_version": version,
        "offload_param": where,
        "offload_optimizer": where,
    }


def _offloads(policy: Any) -> bool:
    """Whether FSDP keeps weights on the host: a ``CPUOffload`` of version 1, an ``OffloadPolicy`` of version 2, a bool.

    Source: accelerate 1.15, utils/dataclasses.py:2178, set_cpu_offload; torch 2.13, distributed/fsdp/_fully_shard/
        _fsdp_api.py: ``OffloadPolicy`` offloads nothing, ``CPUOffloadPolicy`` does.
    """
    if hasattr(policy, "offload_params"):
        return bool(policy.offload_params)
    return policy is True or type(policy).__name__ == "CPUOffloadPolicy"

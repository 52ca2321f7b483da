"""A setup as a Python script that trains it, with TRL's SFTTrainer or with transformers' Trainer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from estimator.tools.known.trl import GENERATES
from estimator.tools.lists import listed
from estimator.tools.rules import Value, Values
from estimator.tools.writing.texts import Code, nested, python_call, python_value, yaml
from estimator.tools.writing.writer import ACCELERATE_FILE, SHARE, Said, ToolWriter, only_writes
from estimator.values.objective import OBJECTIVES, TrlTrainer, having

OF_MODEL_CONFIG = frozenset(
    listed("""model_name_or_path dtype attn_implementation use_peft lora_r lora_alpha lora_dropout
    lora_target_modules lora_target_parameters lora_modules_to_save use_dora load_in_4bit load_in_8bit
    bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage""")
)
"""TRL's arguments that are fields of ``ModelConfig``: trl 1.16, trainer/model_config.py."""
OF_LOADING = ("dtype", "attn_implementation")
"""Fields of it that ``from_pretrained`` takes: trl 1.16, trl/scripts/sft.py."""


def _head(about: str, trainer: str, name: Value) -> str:
    sentences = [f"Fine-tune {name} with {trainer}.", *filter(None, [about])]
    text = "\n\n".join(textwrap.fill(sentence, 100) for sentence in sentences).replace('"""', "")
    return f'"""{text}\n"""' if about else f'"""{text}"""'


def with_trl(said: Said) -> str:
    """The script with TRL's trainer: ``ModelConfig`` and the trainer's config, as TRL's own scripts have them.

    Source: trl 1.16, trl/scripts/sft.py and its neighbours; experimental/orpo/orpo_trainer.py.
    """
    args, objective, theirs = said.args, said.objective, said.theirs
    model = {key: value for key, value in args.items() if key in OF_MODEL_CONFIG}
    rest = {key: value for key, value in args.items() if key not in OF_MODEL_CONFIG}
    packs = any(model.get(key) for key in ("load_in_4bit", "load_in_8bit"))
    loading = {"model_init_kwargs": {key: model[key] for key in OF_LOADING if key in model}}
    trainer = _trainer(objective)
    word = trainer.name
    body = _TRL_BODY.replace("DATASET", python_value(said.dataset)).replace("CLASS", word)
    if objective in GENERATES:
        body = body.replace("        args=", "        reward_funcs=accuracy_reward,\n        args=")
    processor = nested(theirs, "processor")
    if processor:
        body = body.replace("        args=", "        processing_class=processor,\n        args=")
    return "\n".join(
        [
            _head(said.about, f"TRL's {word}Trainer", model.get("model_name_or_path")),
            "",
            "from datasets import load_dataset",
            *["from transformers import AutoProcessor"] * bool(processor),
            *_trl_imports(trainer, objective, packs),
            "",
            python_call("ModelConfig", model, "model_config"),
            python_call(
                f"{word}Config", {"output_dir": "output", **rest, **loading}, "training_args"
            ),
            *(_PACKED if packs else ()),
            *([_processor(processor)] if processor else ()),
            _evaluated(body.replace("ROWS", trainer.rows), args, "dataset"),
        ]
    )


def _processor(settings: Values) -> str:
    """The processor with settings of one's own: transformers 5.23, models/auto/processing_auto.py."""
    whole = {"": Code("model_config.model_name_or_path"), **settings}
    made = python_call("AutoProcessor.from_pretrained", whole, "processor")
    return made.replace("    =model", "    model")


def _evaluated(body: str, args: Values, rows: str) -> str:
    """With rows to evaluate on, where a strategy asks for it: Trainer stops without (transformers 5.23, trainer.py)."""
    if args.get("eval_strategy", "no") == "no":
        return body
    before, main, after = body.partition('\nif __name__ == "__main__":\n')
    split = f"parts = {rows}.train_test_split(test_size={SHARE}, seed=0)\n"
    parts = '        train_dataset=parts["train"],\n        eval_dataset=parts["test"],\n'
    after = after.replace(f"        train_dataset={rows},\n", parts)
    return f"{before}{split}{main}{after}"


def _trainer(objective: str) -> TrlTrainer:
    """TRL's trainer of an objective."""
    trainer = OBJECTIVES[objective].trl
    assert trainer is not None  # else TRL's table has no word for it
    return trainer


def _trl_imports(trainer: TrlTrainer, objective: str, packs: bool) -> list[str]:
    own = [f"{trainer.name}Config", f"{trainer.name}Trainer"]
    experimental = trainer.module != "trl"
    names = [*sorted(["ModelConfig", *([] if experimental else own)])]
    names += ["get_kbit_device_map"] * packs + ["get_peft_config"]
    names += ["get_quantization_config"] * packs
    line = f"from trl import {', '.join(names)}"
    whole = ["from trl import (", *(f"    {name}," for name in names), ")"]
    more = [f"from {trainer.module} import {', '.join(own)}"] * experimental
    more += ["from trl.rewards import accuracy_reward"] * (objective in GENERATES)
    return [*(whole if packs else [line]), *more]


_PACKED = (
    'training_args.model_init_kwargs["device_map"] = get_kbit_device_map()',
    'training_args.model_init_kwargs["quantization_config"] = get_quantization_config(model_config)',
)
_TRL_BODY = """\

# Put your own data here: ROWS
dataset = load_dataset(DATASET, split="train")

if __name__ == "__main__":
    trainer = CLASSTrainer(
        model=model_config.model_name_or_path,
        args=training_args,
        train_dataset=dataset,
        peft_config=get_peft_config(model_config),
    )
    trainer.train()
    trainer.save_model()
"""


def with_trainer(said: Said) -> str:
    """The script with transformers' Trainer: each text is a row, cut at ``max_length``.

    Source: transformers 5.23, docs/source/en/tasks/language_modeling.md and sequence_classification.md.
    """
    theirs = said.theirs
    classifies = nested(theirs, "trainer").get("objective") in having("has_score")
    loader = f"AutoModelFor{'SequenceClassification' if classifies else 'CausalLM'}"
    collator = "DataCollatorWithPadding" if classifies else "DataCollatorForLanguageModeling"
    model, args = nested(theirs, "model"), nested(theirs, "args")
    peft, bnb, calls = nested(theirs, "peft"), nested(theirs, "bnb"), nested(theirs, "call")
    name = model.pop("pretrained_model_name_or_path")
    length = nested(theirs, "data").get("max_length", 1024)
    mesh = nested(theirs, "distributed")
    loading: dict[str, Value] = {key: _dtype(key, value) for key, value in model.items()}
    if mesh:
        loading["distributed_config"] = Code(_in_one_line("DistributedConfig", mesh))
    classes = [loader, collator, *["BitsAndBytesConfig"] * bool(bnb)]
    lines = [
        _head(said.about, "transformers' Trainer", name),
        "",
        *_trainer_imports(classes, adapts=bool(peft), prepares=bool(calls.get(PREPARES))),
        *["from transformers.distributed import DistributedConfig"] * bool(mesh),
        "",
    ]
    if bnb:
        packs = {key: _dtype(key, value) for key, value in bnb.items()}
        lines.append(python_call("BitsAndBytesConfig", packs, "quantization"))
        loading["quantization_config"] = Code("quantization")
    lines += [
        f"MODEL = {python_value(name)}",
        f"MAX_LENGTH = {length}",
        "",
        "tokenizer = AutoTokenizer.from_pretrained(MODEL)",
        "tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token",
        python_call(f"{loader}.from_pretrained", {"": Code("MODEL")} | loading, "model").replace(
            "    =MODEL,", "    MODEL,"
        ),
    ]
    if classifies:
        lines.append("model.config.pad_token_id = tokenizer.pad_token_id")
    lines += _adapted(peft, calls)
    lines.append(
        python_call("TrainingArguments", {"output_dir": "output", **args}, "training_args")
    )
    body = _TRAINER_BODY.replace("DATASET", python_value(said.dataset)).replace(
        "COLLATOR", collator
    )
    of_classes = ("COLUMNS", '["text"]'), ("MLM", ""), ("LABELS", ' and a "label"')
    of_texts = ("COLUMNS", "dataset.column_names"), ("MLM", ", mlm=False"), ("LABELS", "")
    for word, text in of_classes if classifies else of_texts:
        body = body.replace(word, text)
    lines.append(_evaluated(body, args, "rows"))
    return "\n".join(lines)


def _in_one_line(name: str, values: Values) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in values.items())})"


PREPARES = "prepare_model_for_kbit_training"


def _trainer_imports(classes: list[str], *, adapts: bool, prepares: bool) -> list[str]:
    of_peft = ["LoraConfig", "get_peft_model", *[PREPARES] * prepares]
    names = sorted([*classes, "AutoTokenizer", "Trainer", "TrainingArguments"])
    return [
        "import torch",
        "from datasets import load_dataset",
        *[f"from peft import {', '.join(of_peft)}"] * adapts,
        "from transformers import (",
        *(f"    {name}," for name in names),
        ")",
    ]


def _adapted(peft: Values, calls: Values) -> Iterator[str]:
    """The model as PEFT prepares it and gives it adapters."""
    if calls.get(PREPARES):
        again = calls.get("use_gradient_checkpointing", True)
        yield f"model = {PREPARES}(model, use_gradient_checkpointing={again})"
    if peft:
        yield python_call("LoraConfig", peft, "peft_config")
        upcasts = calls.get("autocast_adapter_dtype", True)
        keeps = "" if upcasts else ", autocast_adapter_dtype=False"
        yield f"model = get_peft_model(model, peft_config{keeps})"


def _dtype(key: str, value: Value) -> Value:
    """A dtype of torch where a key means one."""
    is_one = "dtype" in key or key == "bnb_4bit_quant_storage"
    return Code(f"torch.{value}") if is_one and isinstance(value, str) else value


_TRAINER_BODY = """\

# Put your own data here: rows of "text"LABELS.
dataset = load_dataset(DATASET, split="train")


def tokenize(rows):
    \"\"\"Cut each text at MAX_LENGTH tokens; the collator pads a batch to its longest row.\"\"\"
    return tokenizer(rows["text"], truncation=True, max_length=MAX_LENGTH)


rows = dataset.map(tokenize, batched=True, remove_columns=COLUMNS)

if __name__ == "__main__":
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=rows,
        data_collator=COLLATOR(tokenizerMLM),
    )
    trainer.train()
    trainer.save_model()
"""


def _command(said: Said) -> str:
    if nested(said.theirs, "accelerate"):
        return f"accelerate launch --config_file {ACCELERATE_FILE} train.py"
    return "python train.py"


def _trl_files(said: Said) -> dict[str, str]:
    """The script, and the same run as TRL's own command reads it: trl 1.16, trl/cli."""
    files, objective = {"train.py": with_trl(said)}, said.objective
    if _trainer(objective).has_script and not nested(said.theirs, "processor"):
        reward = {"reward_funcs": ["accuracy_reward"]} if objective in GENERATES else {}
        whole = {**said.args, **reward, "dataset_name": said.dataset, "output_dir": "output"}
        several = bool(nested(said.theirs, "accelerate"))
        shared = f" --accelerate_config {ACCELERATE_FILE}" if several else ""
        command = f"trl {objective} --config {objective}.yaml{shared}"
        files[f"{objective}.yaml"] = f"# {command}\n{yaml(whole)}"
    return files


TRL = ToolWriter(
    parts=frozenset({"args", "trainer", "processor", "accelerate", "deepspeed", "allocator"}),
    datasets={word: _trainer(word).dataset for word in having("trl")},
    files=_trl_files,
    command=_command,
)

TASKS = {"sequence_classification": "SEQ_CLS"}
"""PEFT's word for an objective: peft 0.21, utils/peft_types.py, ``TaskType``."""


def _method(values: Values) -> Values:
    if values["method"] == "full":
        return {}
    written: dict[str, Value] = {
        "peft.r": values["lora_r"],
        "peft.task_type": TASKS.get(values["objective"], "CAUSAL_LM"),
    }
    if values["method"] == "qlora":
        written |= {"bnb.load_in_4bit": True, "bnb.bnb_4bit_compute_dtype": values["dtype"]}
    elif values["load_in_8bit"]:
        written["bnb.load_in_8bit"] = True
    return written


def _prepared(values: Values) -> Values:
    if not values["prepare_model_for_kbit_training"]:
        return {}
    return {
        "call.prepare_model_for_kbit_training": True,
        "call.use_gradient_checkpointing": values["gradient_checkpointing"],
    }


TRAINER = ToolWriter(
    parts=frozenset(
        listed("args trainer model peft bnb call data distributed accelerate deepspeed allocator")
    ),
    datasets={
        "sft": "roneneldan/TinyStories",  # plain texts
        "sequence_classification": "stanfordnlp/imdb",
    },
    files=lambda said: {"train.py": with_trainer(said)},
    command=_command,
    rows=(
        only_writes(("method", "load_in_8bit", "lora_r", "dtype", "objective"), _method),
        only_writes(("prepare_model_for_kbit_training", "gradient_checkpointing"), _prepared),
    ),
)
"""Objects of PEFT and bitsandbytes, and the calls between them: peft 0.21, utils/other.py,
prepare_model_for_kbit_training; transformers 5.23, utils/quantization_config.py."""

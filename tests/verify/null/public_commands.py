"""What a user would type for each public script, and the folder with the models, rows and metrics that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.verify.null.public_scripts import REAL, ROWS, TEMPLATE, TINY, Play
from tests.verify.null.rehearsed import NAMES, WORDS

AXOLOTL_ROWS = {
    "alpaca": {"type": "alpaca"},
    "chat": {"type": "chat_template", "field_messages": "messages"},
    "pairs": {"type": "chat_template.argilla_chat"},
}
FACTORY_ROWS: Mapping[str, Mapping[str, object]] = {
    "alpaca": {},
    "text": {"columns": {"prompt": "text"}},
    "sharegpt": {
        "ranking": True,
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"},
    },
    "liked": {
        "formatting": "sharegpt",
        "columns": {"messages": "messages", "kto_tag": "label"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
        },
    },
}
SQUAD = "questions"
"""Rows that a script reads as SQuAD has them: under one key."""
METRICS = ("accuracy", "seqeval", "squad")
"""What transformers' scripts load by name before they train, and ask only as they evaluate."""
METRIC = """
import datasets
import evaluate


class Metric(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        raise NotImplementedError("a rehearsal ends before it evaluates")
"""


def prepared(folder: Path) -> None:
    """Both models, all rows, and metrics by their names, since none is fetched."""
    for size, config in (("tiny", TINY), ("real", REAL)):
        model = folder / size
        model.mkdir()
        names = {**NAMES, "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
        for name, content in (
            ("config.json", config),
            ("tokenizer.json", WORDS),
            ("tokenizer_config.json", names),
        ):
            (model / name).write_text(json.dumps(content), encoding="utf-8")
    for name, row in ROWS.items():
        rows = folder / name
        rows.mkdir()
        distinct = [row] if isinstance(row, Mapping) else row
        lines = "".join(f"{json.dumps(one)}\n" for one in distinct) * (400 // len(distinct))
        for path in (rows / "train.jsonl", rows / "test.jsonl"):
            path.write_text(lines, encoding="utf-8")
        whole = json.dumps({"data": [row] * 400}) if name == SQUAD else lines
        _file(folder, name).write_text(whole, encoding="utf-8")
        told = {"local": {"file_name": "train.jsonl", **FACTORY_ROWS.get(name, {})}}
        (rows / "dataset_info.json").write_text(json.dumps(told), encoding="utf-8")
    for name in METRICS:
        (folder / name).mkdir()
        (folder / name / f"{name}.py").write_text(METRIC, encoding="utf-8")


def _file(folder: Path, rows: str) -> Path:
    return folder / f"{rows}.json"


def command(play: Play, size: str, checkouts: Path, folder: Path) -> list[str]:
    """What a user would type."""
    script = checkouts / play.project / play.path
    if play.project == "axolotl":
        return ["axolotl", "train", _for_axolotl(script, play.rows, size, folder)]
    if play.project == "LLaMA-Factory":
        return ["llamafactory-cli", "train", _for_factory(script, play.rows, size, folder)]
    ours = {"model": folder / size, "rows": folder / play.rows, "output": folder / "output"}
    words = play.words.format(**ours, file=_file(folder, play.rows)).split()
    return ["python", str(script), *words, *play.arguments]


def _for_axolotl(script: Path, rows: str, size: str, folder: Path) -> str:
    given = yaml.safe_load(script.read_text(encoding="utf-8"))
    data = {"path": str(folder / rows / "train.jsonl"), "ds_type": "json", **AXOLOTL_ROWS[rows]}
    for name in (
        "test_datasets", "evals_per_epoch", "eval_steps", "flash_attention", "tokenizer_type", "chat_template",
        "flash_attn_fuse_mlp",
    ):  # fmt: skip
        given.pop(name, None)
    given |= {
        "base_model": str(folder / size),
        "datasets": [data],
        "attn_implementation": "sdpa",
        "output_dir": str(folder / "output"),
        "dataset_prepared_path": str(folder / "prepared"),
        "val_set_size": 0,
        "special_tokens": {"pad_token": "<pad>"},
    }
    return _written(folder / "given.yml", given)


def _for_factory(script: Path, rows: str, size: str, folder: Path) -> str:
    given = yaml.safe_load(script.read_text(encoding="utf-8"))
    for name in ("preprocessing_num_workers", "deepspeed"):
        given.pop(name, None)
    given |= {
        "model_name_or_path": str(folder / size),
        "dataset_dir": str(folder / rows),
        "dataset": "local",
        "output_dir": str(folder / "output"),
        "dataloader_num_workers": 0,
    }
    return _written(folder / "given.yaml", given)


def _written(path: Path, given: Mapping[str, object]) -> str:
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    return str(path)

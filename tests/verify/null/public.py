"""Rehearses public training scripts, each with a tiny and a real model, and writes data/rehearsed.csv, worst first.

The scripts are read where they were checked out and run as they are, by their own entry points. Only the model (made
from its config), the data (few rows, made here) and the folder for output are ours; axolotl gets PyTorch's attention,
since flash-attn has no wheel on the package index.

usage: python -m tests.verify.null.public CHECKOUTS [TEXT …]     only plays whose name has one of these
CHECKOUTS has trl, peft, axolotl and LLaMA-Factory, at the revisions below, and the environments' bin folders in
HEADROOM_TRL, HEADROOM_AXOLOTL and HEADROOM_LLAMAFACTORY.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.verify.null.rehearsed import HEADROOM, NAMES, ROOT, WORDS

TABLE = ROOT / "data" / "rehearsed.csv"
REVISIONS = {
    "trl": "f2cd57710",
    "peft": "5d602fdbf",
    "axolotl": "067b021c8",
    "LLaMA-Factory": "ff6d4d12e",
}
ENVIRONMENTS = {"axolotl": "HEADROOM_AXOLOTL", "LLaMA-Factory": "HEADROOM_LLAMAFACTORY"}
CARD = "H100-SXM5-80GB"
STEPS = "2"
COLUMNS = (
    "id", "size", "revision", "gpu", "status", "allocated_bytes", "reserved_bytes", "least_bytes", "estimated_bytes",
    "error", "versions", "sentence",
)  # fmt: skip

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
REAL = TINY | {  # unsloth/Llama-3.2-1B, config.json
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|> {{ message['role'] }} {{ message['content'] }} <|im_end|> "
    "{% endfor %}"
)
LONG, SHORT = "word " * 700, "word " * 200
CHAT = [{"role": "user", "content": SHORT}, {"role": "assistant", "content": LONG}]
ROWS: Mapping[str, Mapping[str, object]] = {
    "chat": {"messages": CHAT},
    "pairs": {"prompt": CHAT[:1], "chosen": CHAT[1:], "rejected": [{**CHAT[1], "content": SHORT}]},
    "triples": {"prompt": CHAT[:1], **dict.fromkeys(("chosen", "rejected", "reference"), CHAT[1:])},
    "labels": {"prompt": CHAT[:1], "completion": CHAT[1:], "label": True},
    "prompts": {"prompt": CHAT[:1]},
    "alpaca": {"instruction": SHORT, "input": "", "output": LONG, "text": LONG},
    "sharegpt": {
        "conversations": [{"from": "human", "value": SHORT}],
        "chosen": {"from": "gpt", "value": LONG},
        "rejected": {"from": "gpt", "value": SHORT},
    },
    "turns": {"conversations": [{"from": "human", "value": SHORT}, {"from": "gpt", "value": LONG}]},
    "liked": {"messages": CHAT, "label": True},
    "text": {"text": LONG},
}


class Play(NamedTuple):
    """One script."""

    project: str
    path: str
    rows: str
    arguments: Sequence[str] = ()
    changes: Mapping[str, object] = {}

    @property
    def id(self) -> str:
        """Its project and place, and what is added."""
        return " ".join([f"{self.project}/{self.path}", *self.arguments])


TRL = [
    "--bf16",
    "True",
    "--report_to",
    "none",
    "--per_device_train_batch_size",
    "2",
    "--gradient_accumulation_steps",
    "2",
]
LORA = ("--use_peft", "--lora_target_modules", "all-linear")
PLAYS = (
    *(Play("trl", f"trl/scripts/{it}.py", rows, more)
      for it, rows in (("sft", "chat"), ("dpo", "pairs"), ("kto", "labels"), ("reward", "pairs"))
      for more in ((), (*LORA, *("--lora_task_type", "SEQ_CLS") * (it == "reward")))),
    Play("trl", "trl/scripts/sft.py", "chat", (*LORA, "--load_in_4bit")),
    Play("trl", "trl/scripts/sft.py", "chat", ("--packing", "--max_length", "2048")),
    Play("trl", "trl/scripts/sft.py", "chat", ("--gradient_checkpointing", "False", "--optim", "adafactor")),
    Play("trl", "trl/scripts/dpo.py", "pairs", ("--precompute_ref_log_probs",)),
    Play("trl", "examples/scripts/orpo.py", "pairs"),
    Play("trl", "examples/scripts/cpo.py", "pairs"),
    Play("trl", "examples/scripts/tpo.py", "triples"),
    Play("trl", "examples/scripts/gkd.py", "chat"),
    Play("trl", "examples/scripts/reward_modeling.py", "pairs"),
    Play("peft", "examples/sft/train.py", "chat", ("--use_peft_lora", "True", "--dataset_text_field", "text")),
    *(Play("axolotl", f"examples/llama-3/{name}", rows) for name, rows in (
        ("lora-1b.yml", "alpaca"), ("qlora-1b.yml", "alpaca"), ("qlora.yml", "alpaca"), ("lora-8b.yml", "alpaca"),
        ("fft-8b.yaml", "alpaca"), ("instruct-lora-8b.yml", "chat"), ("instruct-dpo-lora-8b.yml", "pairs"),
        ("lora-1b-kernels.yml", "alpaca"), ("lora-1b-deduplicate-sft.yml", "alpaca"),
        ("lora-1b-sample-packing-sequentially.yml", "alpaca"),
    )),
    *(Play("LLaMA-Factory", f"examples/{name}.yaml", rows) for name, rows in (
        ("train_lora/qwen3_lora_sft", "alpaca"), ("train_lora/qwen3_lora_dpo", "sharegpt"),
        ("train_lora/qwen3_lora_kto", "liked"), ("train_lora/qwen3_lora_pretrain", "text"),
        ("train_lora/qwen3_lora_reward", "sharegpt"), ("train_qlora/qwen3_lora_sft_otfq", "alpaca"),
        ("train_full/qwen3_full_sft", "alpaca"),
    )),
)  # fmt: skip
ALPACA = {"type": "alpaca"}
AXOLOTL_ROWS = {
    "alpaca": ALPACA,
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


def prepared(folder: Path) -> None:
    """Both models and all rows."""
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
        for split in ("train", "test"):
            (rows / f"{split}.jsonl").write_text(f"{json.dumps(row)}\n" * 400, encoding="utf-8")
        told = {"local": {"file_name": "train.jsonl", **FACTORY_ROWS.get(name, {})}}
        (rows / "dataset_info.json").write_text(json.dumps(told), encoding="utf-8")


def command(play: Play, size: str, checkouts: Path, folder: Path) -> list[str]:
    """What a user would type."""
    script = checkouts / play.project / play.path
    model, rows, output = str(folder / size), str(folder / play.rows), str(folder / "output")
    if play.project in ENVIRONMENTS:
        given = yaml.safe_load(script.read_text(encoding="utf-8"))
        if play.project == "axolotl":
            data = {"path": f"{rows}/train.jsonl", "ds_type": "json", **AXOLOTL_ROWS[play.rows]}
            given |= {"base_model": model, "datasets": [data], "attn_implementation": "sdpa"}
            given |= {"output_dir": output, "dataset_prepared_path": f"{folder}/prepared"}
            given.pop("test_datasets", None)
            given["val_set_size"] = 0
            for name in ("evals_per_epoch", "eval_steps", "flash_attention"):
                given.pop(name, None)
            for name in ("plugins", "tokenizer_type", "chat_template"):
                if name in given and name != "plugins":
                    given.pop(name)
            given["special_tokens"] = {"pad_token": "<pad>"}
            program = ["axolotl", "train"]
        else:
            given |= {"model_name_or_path": model, "dataset_dir": rows, "dataset": "local"}
            given |= {"output_dir": output, "dataloader_num_workers": 0}
            given.pop("preprocessing_num_workers", None)
            given.pop("deepspeed", None)
            program = ["llamafactory-cli", "train"]
        written = folder / f"given.{'yml' if play.project == 'axolotl' else 'yaml'}"
        written.write_text(yaml.safe_dump(given), encoding="utf-8")
        return [*program, str(written)]
    if play.project == "trl":
        named = ["--model_name_or_path", model, "--dataset_name", rows, "--output_dir", output]
        teacher = ["--teacher_model_name_or_path", model] * ("gkd" in play.path)
        return ["python", str(script), *named, *TRL, *teacher, *play.arguments]
    if play.path.endswith("sft/train.py"):
        named = ["--model_name_or_path", model, "--dataset_name", rows, "--splits", "train,test"]
        return [
            "python",
            str(script),
            *named,
            "--output_dir",
            output,
            "--bf16",
            "True",
            "--report_to",
            "none",
            *play.arguments,
        ]
    raise ValueError(f"no command is known for {play.id}")


def rehearse(play: Play, size: str, checkouts: Path) -> dict[str, object]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(folder)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": f"{name}/cache"}
        own = os.environ.get(ENVIRONMENTS.get(play.project, "HEADROOM_TRL"), "")
        environment["PATH"] = os.pathsep.join(filter(None, [own, environment["PATH"]]))
        done = subprocess.run(
            [
                *HEADROOM,
                "--gpu",
                CARD,
                "--steps",
                STEPS,
                "--",
                *command(play, size, checkouts, folder),
            ],
            cwd=ROOT,
            text=True,
            capture_output=True,
            check=False,
            env=environment,
            timeout=600,
        )
        row: dict[str, object] = {
            "id": play.id,
            "size": size,
            "revision": REVISIONS[play.project],
            "gpu": CARD,
            "status": done.returncode,
        }
        if log := os.environ.get("HEADROOM_LOGS"):
            shown = play.id.replace("/", "_").replace(" ", "_")
            Path(log, f"{shown}.{size}.err").write_text(done.stderr, encoding="utf-8")
            Path(log, f"{shown}.{size}.json").write_text(done.stdout, encoding="utf-8")
        if not done.stdout:
            return {**row, "sentence": done.stderr.strip().splitlines()[-1]}
        found = _found(json.loads(done.stdout))
        sentence = str(found["sentence"]).replace(f"{checkouts}/", "").replace(f"{folder}/", "")
        return {**row, **found, "sentence": sentence}


def _found(answer: Mapping[str, Any]) -> dict[str, object]:
    estimated = (answer["estimate"] or {}).get("allocated_bytes")
    whole = answer["with_memory_to_spare"] or answer
    is_whole = answer["fits"] is not None
    error = f"{estimated / whole['allocated_bytes'] - 1:.4f}" if estimated and is_whole else ""
    sentence = "" if error and abs(float(error)) <= 0.01 else answer["comparison"] or ""
    if not is_whole:
        sentence = answer["sentence"]
    return {
        "allocated_bytes": whole["allocated_bytes"],
        "reserved_bytes": whole["reserved_bytes"],
        "least_bytes": answer["least_bytes"],
        "estimated_bytes": estimated,
        "error": error,
        "versions": " ".join(f"{name} {it}" for name, it in answer["versions"].items()),
        "sentence": " ".join(sentence.split()),
    }


def order(row: Mapping[str, object]) -> tuple[bool, bool, float]:
    """Those that did not go through first, then those without an estimate, then by error."""
    error = str(row.get("error") or "")
    return str(row["status"]) == "0", bool(error), -abs(float(error or 0))


def plays(wanted: Sequence[str]) -> Iterator[tuple[Play, str]]:
    """Each script with both sizes."""
    for play in PLAYS:
        for size in ("tiny", "real"):
            if not wanted or any(it in f"{play.id} {size}" for it in wanted):
                yield play, size


def main(checkouts: Path, wanted: Sequence[str]) -> int:
    """Rehearse them, and put their rows into the table."""
    known: dict[tuple[str, str], dict[str, object]] = {}
    if TABLE.exists():
        with TABLE.open(encoding="utf-8") as file:
            known = {(it["id"], it["size"]): dict(it) for it in csv.DictReader(file)}
    for play, size in plays(wanted):
        try:
            row = rehearse(play, size, checkouts)
        except subprocess.TimeoutExpired:
            row = {
                "id": play.id,
                "size": size,
                "revision": REVISIONS[play.project],
                "gpu": CARD,
                "status": 2,
            }
            row["sentence"] = "It took more than ten minutes."
        known[play.id, size] = row
        print(play.id, size, row["status"], row.get("error"), row.get("sentence"), flush=True)
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(known.values(), key=order))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

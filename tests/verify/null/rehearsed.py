"""Rehearses scripts as a user would, and prints what was found beside the estimate.

usage: python -m tests.verify.null.rehearsed PYTHON [TEXT …]     the environment's Python; only plays with one of these
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
ROOT = HERE.parents[2]
HEADROOM = (sys.executable, "-m", "estimator", "rehearse", "--json")

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
WORDS = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordLevel",
        "vocab": {"<pad>": 0, "<eos>": 1, "word": 2},
        "unk_token": "<pad>",
    },
}
NAMES = {"pad_token": "<pad>", "eos_token": "<eos>"}


def zero(stage: int, **more: object) -> dict[str, Any]:
    """DeepSpeed's config with Trainer's sizes, as transformers' documentation writes it."""
    sizes = ["reduce_bucket_size"]
    if stage == 3:
        sizes += ["stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"]
    keys = ["train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"]
    return {
        "zero_optimization": {"stage": stage, **dict.fromkeys(sizes, "auto"), **more},
        "bf16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        **dict.fromkeys(keys, "auto"),
    }


def plays(folder: str) -> Iterator[tuple[str, int, Sequence[str]]]:
    """Card, exit status and command, after Python."""
    yield "RTX 4090", 0, ["loop.py", "4", "4", "1024"]
    yield "RTX 3060 12GB", 1, ["loop.py", "16", "4", "2048"]
    yield "RTX 4090", 0, ["branches.py"]
    yield "RTX 4090", 2, ["branches.py", "wait"]
    yield "RTX 4090", 0, ["experts.py"]
    yield "RTX 4090", 0, ["trainer.py", "16", "4", "2048"]
    yield "H100-SXM5-80GB", 0, ["trainer.py", "16", "4", "2048"]
    yield "RTX 3050 8GB", 1, ["trainer.py", "16", "4", "2048"]
    yield "RTX 4090", 0, ["trainer.py", "16", "2", "2048", "optim=adafactor"]
    for method in ("lora", "qlora", "full"):
        yield "RTX 4090", 0, ["sft.py", folder, "2", "1024", method]
    yield "RTX 3050 8GB", 1, ["sft.py", folder, "2", "1024", "full"]
    small = ["trainer.py", "4", "2", "1024"]
    yield "2x RTX 4090", 0, ["-m", "torch.distributed.run", "--nproc-per-node", "2", *small]
    deepspeed = ["-m", "deepspeed.launcher.runner", "--num_gpus", "2", *small]
    for name in ("zero2", "zero2-offload", "zero3"):
        yield "2x RTX 4090", 0, [*deepspeed, f"deepspeed={folder}/{name}.json"]
    yield "8x RTX 4090", 0, small
    yield "8x RTX 4090", 0, [*small, "fsdp=full_shard auto_wrap"]
    for stage in (1, 2, 3):
        yield "8x RTX 4090", 0, [*small, f"deepspeed={folder}/zero{stage}.json"]


def main(python: str, wanted: Sequence[str]) -> int:
    """Rehearse them; returns 1 if one ended otherwise than it should."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (
            ("config.json", LLAMA),
            ("tokenizer.json", WORDS),
            ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES}),
        ):
            Path(folder, name).write_text(json.dumps(content), encoding="utf-8")
        configs = {f"zero{stage}": zero(stage) for stage in (1, 2, 3)}
        configs["zero2-offload"] = zero(2, offload_optimizer={"device": "cpu"})
        for name, config in configs.items():
            Path(folder, f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
        for card, status, words in plays(folder):
            shown = f"{card}: {' '.join(words)}".replace(f"{folder}/", "").replace(folder, "")
            if wanted and not any(one in shown for one in wanted):
                continue
            command = [
                python,
                *(str(SCRIPTS / word) if word.endswith(".py") else word for word in words),
            ]
            alone = ["--first-rank"] * ("x " in card and "-m" not in words)
            done = subprocess.run(
                [*HEADROOM, "--gpu", card, *alone, "--", *command],
                cwd=ROOT,
                text=True,
                capture_output=True,
                check=False,
            )
            wrong |= done.returncode != status
            print(f"{shown}: {_said(done)}", flush=True)
    return int(wrong)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    if not done.stdout:
        return done.stderr.strip().splitlines()[-1]
    answer: dict[str, Any] = json.loads(done.stdout)
    sizes = [f"{answer[word]:,}" for word in ("allocated_bytes", "reserved_bytes")]
    said = f"status {done.returncode}, allocated and reserved {', '.join(sizes)}"
    if answer["estimate"] is None:
        return f"{said}; no estimate: {answer['estimate_problem']}"
    estimated = answer["estimate"]["allocated_bytes"]
    error = "" if done.returncode else f" ({estimated / answer['allocated_bytes'] - 1:+.2%})"
    return f"{said}; estimate {estimated:,}{error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

"""Estimated time of generation against published GRPO steps, and vLLM's share against TRL's advice.

    python benchmarks/generation.py            # writes docs/generation.md

The first table is data/generation.csv: published steps with their hardware and settings. The second compares the
formula of TRL's Space "recommend-vllm-memory" with ours on twenty setups.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from estimator import Strategy, TrainingSetup, catalog, estimate, vllm_shares  # noqa: E402  run as a script, the package is beside
from estimator.families.model_tree import total_parameters  # noqa: E402
from estimator.values.range import Range  # noqa: E402
from estimator.values.specs import Model  # noqa: E402

TABLE = ROOT / "data" / "generation.csv"
GIB = 2**30


class Published(NamedTuple):
    """One published step with its estimate."""

    row: Mapping[str, str]
    estimated: Range[float]

    @property
    def seconds(self) -> float:
        """Published seconds."""
        return float(self.row["step_seconds"])

    @property
    def is_inside(self) -> bool:
        """Whether the published time is between the two ends."""
        return self.seconds in self.estimated


def setup_of(row: Mapping[str, str]) -> TrainingSetup:
    """A published step as TRL would run it: a vLLM server, ZeRO-3, one generation per step, a reference in the loss."""
    of_each, prompt = int(row["rows"]) // int(row["num_gpus"]), int(row["prompt_tokens"])
    batch = 2 - of_each % 2
    return TrainingSetup(
        objective="grpo",
        beta=0.01,
        gradient_checkpointing=True,
        use_vllm=True,
        vllm_mode="server",
        vllm_tensor_parallel_size=int(row["tensor_parallel_size"]),
        vllm_data_parallel_size=int(row["num_gpus"]) // int(row["tensor_parallel_size"]),
        num_gpus=int(row["num_gpus"]),
        strategy=Strategy.ZERO3,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=of_each // batch,
        num_generations=int(row["num_generations"]),
        max_length=int(row["max_length"]),
        max_prompt_length=prompt,
        max_completion_length=int(row["max_length"]) - prompt,
        mean_tokens_per_example=int(row["mean_tokens"]) if row["mean_tokens"] else None,
    )


def published() -> Iterator[Published]:
    """Every row of the table with its estimate."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            gpu = catalog.gpu(row["gpu"])
            time = estimate(catalog.model(row["model"]), gpu, setup_of(row)).time
            assert time is not None
            yield Published(row, time.step_seconds)


# --- TRL's advice ---------------------------------------------------------------------------------

BUFFER, STEP = 0.2, 20


def trls_advice(model: Model, setup: TrainingSetup, memory: int) -> float:
    """What TRL's Space recommends: weights and one micro-batch's cache, plus a fifth, rounded up to 0.05.

    Source: https://huggingface.co/spaces/trl-lib/recommend-vllm-memory (``recommend_gpu_mem_util``), which
    multiplies billions of parameters by GiB and takes hidden_size / num_attention_heads as the head width.
    """
    ranks = setup.generation.vllm_tensor_parallel_size
    weights = total_parameters(model) / 1e9 * GIB * 2 / ranks
    width = model.num_key_value_heads * model.hidden_size / model.num_attention_heads
    token = 2 * model.num_hidden_layers * width * 2
    cache = token * setup.batch.per_device_train_batch_size * setup.batch.max_length
    return math.ceil((1 + BUFFER) * (weights + cache) / memory * STEP) / STEP


class Advised(NamedTuple):
    """One setup with both answers."""

    name: str
    trls: float
    trls_ends: str
    ours: float | None
    largest: float | None
    rows: int


LONG = {"max_length": 4096, "max_completion_length": 3072}
SHORT = {"max_length": 1024, "max_completion_length": 512}
EIGHT = {"num_gpus": 8, "strategy": "zero3"}
LORA, ASLEEP = {"method": "lora"}, {"vllm_enable_sleep_mode": True}
H100, H200, A100 = "H100-SXM5-80GB", "H200-SXM-141GB", "A100-SXM4-80GB"


def _of(steps: int) -> dict[str, int]:
    return {"gradient_accumulation_steps": steps}


def _split(ranks: int) -> dict[str, int]:
    return {"vllm_tensor_parallel_size": ranks}


SETUPS: Sequence[tuple[str, str, dict[str, Any]]] = [
    ("Qwen/Qwen2.5-0.5B", "L4", SHORT),
    ("Qwen/Qwen2.5-1.5B", "L40S", SHORT),
    ("Qwen/Qwen2.5-1.5B", A100, LONG | _of(8)),
    ("Qwen/Qwen2.5-3B", A100, SHORT),
    ("Qwen/Qwen2.5-3B", H100, LONG | _of(16)),
    ("Qwen/Qwen3-4B", H100, SHORT | LORA),
    ("Qwen/Qwen3-4B", H100, LONG | LORA | _of(8)),
    ("Qwen/Qwen2.5-7B", H100, SHORT | LORA),
    ("Qwen/Qwen2.5-7B", H100, LONG | LORA | _of(8)),
    ("Qwen/Qwen2.5-7B", H200, LONG | _of(8)),
    ("Qwen/Qwen2.5-7B", H100, SHORT | EIGHT),
    ("Qwen/Qwen2.5-7B", H100, LONG | EIGHT | _split(4)),
    ("meta-llama/Llama-3.1-8B", A100, SHORT | LORA),
    ("meta-llama/Llama-3.1-8B", H100, LONG | EIGHT),
    ("meta-llama/Llama-3.1-8B", H100, LONG | EIGHT | ASLEEP),
    ("google/gemma-3-4b-it", H100, LONG | LORA | {"model_class": "text"}),
    ("Qwen/Qwen2.5-14B", H100, LONG | EIGHT),
    ("Qwen/Qwen2.5-14B", H100, LONG | EIGHT | _split(8) | ASLEEP),
    ("Qwen/Qwen3-30B-A3B", H200, SHORT | EIGHT | _split(2) | ASLEEP),
    ("Qwen/Qwen3-32B", H200, SHORT | EIGHT | _split(4) | ASLEEP),
]
"""Model, card and keys of twenty setups: full or LoRA, short and long, one GPU and eight, awake and asleep."""


def advised() -> Iterator[Advised]:
    """Both answers for every setup."""
    for name, card, keys in SETUPS:
        model, gpu = catalog.model(name), catalog.gpu(card)
        setup = TrainingSetup(
            objective="grpo",
            use_vllm=True,
            gradient_checkpointing=True,
            per_device_train_batch_size=8,
            vllm_max_model_length=keys["max_length"],
            **keys,
        )
        found = vllm_shares(model, gpu, setup)
        trls = trls_advice(model, setup, gpu.memory_bytes)
        at = {share.utilisation: share for share in found.shares}.get(trls)
        if at is None or at.verdict is None:
            ends = "vLLM does not start"
        else:
            ends = f"{at.verdict.value.replace('_', ' ')}, {at.rows_low} rows at once"
        yield Advised(
            _named(name, card, keys), trls, ends, found.advised, found.largest, found.rows
        )


def _named(name: str, card: str, keys: Mapping[str, Any]) -> str:
    number = keys.get("num_gpus", 1)
    parts = [name.partition("/")[2], keys.get("method", "full"), f"{number} × {card}"]
    parts += [
        f"{key.removeprefix('vllm_')} {value}" for key, value in keys.items() if key not in _SAID
    ]
    return ", ".join(parts)


_SAID = ("method", "num_gpus", "max_completion_length", "model_class")


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def render() -> str:
    """docs/generation.md."""
    steps, advice = list(published()), list(advised())
    stated = [step for step in steps if step.row["mean_tokens"]]
    inside = sum(one.is_inside for one in stated)
    without = sum(step.is_inside for step in steps) - inside
    beyond = [step for step in steps if not step.is_inside]
    slower = sum(step.seconds > step.estimated.high for step in beyond)
    first = _table(
        ("run", "published, s", "estimated, s", "inside", "source"),
        (
            (
                step.row["id"],
                f"{step.seconds:g}",
                f"{step.estimated.low:.0f} to {step.estimated.high:.0f}",
                "yes" if step.is_inside else "no",
                f"[{step.row['tool']}]({step.row['source']})",
            )
            for step in steps
        ),
    )
    second = _table(
        ("setup", "rows", "TRL's Space", "what that does", "ours", "largest that fits"),
        (
            (
                one.name,
                str(one.rows),
                f"{one.trls:.2f}",
                one.trls_ends,
                "none" if one.ours is None else f"{one.ours:.2f}",
                "none" if one.largest is None else f"{one.largest:.2f}",
            )
            for one in advice
        ),
    )
    fine = sum(
        one.trls_ends.startswith("fits") and f" {one.rows} rows" in one.trls_ends for one in advice
    )
    widths = [step.estimated.high / step.estimated.low for step in steps]
    return f"""# Generation: published and advised

Written by `python benchmarks/generation.py`. The keys are those of `--help`; the code is `estimator/inference/`.

## Seconds of a step

{inside} of {len(stated)} published steps that state the mean length of their rows lie inside the estimated range, and
{without} of {len(steps) - len(stated)} that do not: there every row is counted at the limit. The mean length of
completions decides the seconds: set `mean_tokens_per_example` to the mean of prompt and completion. Of the others
{slower} are slower than the slow end and {len(beyond) - slower} faster than the fast end. No constant is fitted.

NVIDIA's are with Megatron's tensor, pipeline and expert parallelism, and its largest mixture waits in pipeline bubbles;
the estimate trains the same rows under ZeRO-3. Qwen3.5's delta-nets run as in PyTorch. The two ends lie a factor of
{min(widths):.1f} to {max(widths):.1f} apart, mostly because rows may be as long as their mean or as the limit.

{first}

## TRL's advice beside ours

TRL's Space "recommend-vllm-memory" asks for weights and cache, a fifth more, rounded up to 0.05. Of {len(advice)}
setups its number fits and holds every row of a generation in {fine}. The two differ because

- it counts the cache of one micro-batch; vLLM is given a whole generation, `steps_per_generation` micro-batches, and
  those of every GPU of an engine;
- it does not divide the cache by `vllm_tensor_parallel_size`;
- it takes hidden size / heads for a head's width, which is wrong for Qwen3 and Gemma 3, and counts windows in full;
- it multiplies billions of parameters by GiB, which is 7 % too much;
- it knows neither the trainer beside vLLM, nor sleep, nor what the sampler and CUDA graphs take.

"Ours" is the smallest share that holds all rows of a generation, else the largest that fits.

{second}
"""


if __name__ == "__main__":
    (ROOT / "docs" / "generation.md").write_text(render(), encoding="utf-8")
    print("wrote docs/generation.md")

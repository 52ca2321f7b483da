"""verl's overrides as its own examples have them: a shell script with one command.

Source: verl 0.9.1, examples/grpo_trainer/run_qwen3_8b_fsdp.sh; trainer/config/_generated_ppo_trainer.yaml.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

from estimator.tools.known.verl import ACTOR, FSDP, MODEL, ROLLOUT
from estimator.tools.rules import Rule, Value

NOT_IN_ITS_YAML = frozenset(
    [f"{FSDP}.mixed_precision.param_dtype", f"{MODEL}.override_config.attn_implementation"]
)
"""Keys of its dataclasses that its YAML lacks, which Hydra takes after a ``+`` alone: workers/config/engine.py,
``FSDPEngineConfig``; workers/config/model.py, ``HFModelConfig``."""
ORDER = ("algorithm", "data", *map("actor_rollout_ref.{}".format, ("model", "actor", "rollout")))
"""Sections as its examples order them; the others follow."""
LEARNING_RATES = {"full": 1e-6, "lora": 3e-6}
"""Of its examples: examples/grpo_trainer/run_qwen3_8b_fsdp.sh; examples/tuning/lora/run_qwen3_8b_fsdp.sh."""
HEAD = """\
# Data: examples/data_preprocess/gsm8k.py of verl writes these two files; verl rewards gsm8k's answers by itself.
# Put your own in: data.train_files, data.val_files, custom_reward_function.path.
"""
SEVERAL = """\
# Before, once: `ray start --head` on the first machine, `ray start --address=FIRST:6379` on each other; then this on
# the first.
"""


def _write_batch(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Prompts of a generation and of an optimizer's step over all GPUs, and rows of a micro-batch on each.

    Batches are plain: how many tokens made a dynamic one is not known. verl scores with as many rows as it trains.
    """
    rows, copies = values["per_device_train_batch_size"], values["num_generations"]
    each = rows * values["num_gpus"]
    accumulation = values["gradient_accumulation_steps"]
    of_all = each * (values["steps_per_generation"] or accumulation)
    of_step = each * accumulation
    if not copies or of_all % copies or of_step % copies:
        return {}
    asked = ["args.actor_rollout_ref.ref"] if values["beta"] else []
    return {
        "args.data.train_batch_size": of_all // copies,
        f"{ACTOR}.ppo_mini_batch_size": of_step // copies,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": rows,
        f"{ACTOR}.use_dynamic_bsz": False,
        **{f"{part}.log_prob_micro_batch_size_per_gpu": rows for part in (ROLLOUT, *asked)},
        **{f"{part}.log_prob_use_dynamic_bsz": False for part in (ROLLOUT, *asked)},
    }


BATCH = Rule(
    theirs=(),
    ours=(
        *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"),
        *("num_generations", "num_gpus", "beta"),
    ),
    read=lambda theirs, so_far: {},
    write=_write_batch,
)
"""The row that writes what the reader of a batch takes apart."""


def script(theirs: Mapping[str, Value], about: str, folder: str) -> str:
    """The file: what a setup says, and what verl does not start without.

    ``folder``: where ``train.parquet`` and ``test.parquet`` lie, as the shell writes it.

    >>> print(script({"args.trainer.nnodes": 1}, "Fits.", "data").splitlines()[1])
    # Fits.
    """
    own: dict[str, Value] = {key.partition(".")[2]: value for key, value in theirs.items()}
    lora = bool(theirs.get(f"{MODEL}.lora_rank"))
    rest: dict[str, Value] = {
        "data.filter_overlong_prompts": True,
        "data.truncation": "error",
        "actor_rollout_ref.actor.optim.lr": LEARNING_RATES["lora" if lora else "full"],
        "actor_rollout_ref.rollout.name": "vllm",
        **({"actor_rollout_ref.rollout.load_format": "safetensors"} if lora else {}),
        "trainer.logger": ["console"],
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
    }
    words = [override(key, value) for key, value in {**own, **rest}.items()]
    words += [
        f'data.{which}_files="{folder}/{name}.parquet"'
        for which, name in (("train", "train"), ("val", "test"))
    ]
    lines = ["python3 -m verl.trainer.main_ppo", *sorted(words, key=_place)]
    command = " \\\n  ".join(lines)
    comment = f"# {about}\n" if about else ""
    several = SEVERAL if (own.get("trainer.nnodes") or 1) > 1 else ""
    return f"#!/usr/bin/env bash\n{comment}{HEAD}{several}set -x\n\n{command}\n"


def _place(word: str) -> int:
    bare = word.lstrip("'+")
    return [*(bare.startswith(f"{part}.") for part in ORDER), True].index(True)


def override(key: str, value: Value) -> str:
    r"""One override in Hydra's grammar, quoted for the shell.

    >>> override("a.b", True), override("a.c", ["q_proj", "v_proj"])
    ('a.b=True', '\'a.c=["q_proj","v_proj"]\'')
    """
    added = "+" if f"args.{key}" in NOT_IN_ITS_YAML else ""
    return shlex.quote(f"{added}{key}={hydra_value(value)}")


def hydra_value(value: Value) -> str:
    """A value in Hydra's grammar, not yet quoted.

    >>> [hydra_value(value) for value in (1e-05, "org/model-8B", ["q_proj"], "a b")]
    ['1e-05', 'org/model-8B', '["q_proj"]', '"a b"']
    """
    if isinstance(value, str) and re.fullmatch(r"[\w./:@~+-]+", value):
        return value
    if isinstance(value, str | list):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return repr(value)

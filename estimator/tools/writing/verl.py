"""verl's overrides as its own examples have them: a shell script with one command.

Source: verl 0.9.1, examples/grpo_trainer/run_qwen3_8b_fsdp.sh; trainer/config/_generated_ppo_trainer.yaml.
"""

from __future__ import annotations

import json
import re
import shlex

from estimator.tools.known.trl import GENERATES
from estimator.tools.known.verl import ACTOR, FSDP, MODEL, ROLLOUT
from estimator.tools.lists import listed
from estimator.tools.rules import Value, Values
from estimator.tools.writing.several_gpus import SHARDING
from estimator.tools.writing.writer import Stop, ToolWriter, only_writes

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


def _write_batch(values: Values) -> Values:
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


BATCH = only_writes(
    listed("""per_device_train_batch_size gradient_accumulation_steps steps_per_generation num_generations num_gpus
    beta"""),
    _write_batch,
)
"""The row that writes what the reader of a batch takes apart."""


def script(theirs: Values, about: str, folder: str) -> str:
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


def _sharing(values: Values) -> Values:
    """Its own keys: verl 0.9.1, workers/engine/fsdp/transformer_impl.py, ``_build_fsdp_module``."""
    strategy, number = values["strategy"], values["num_gpus"]
    if strategy != "none" and strategy not in SHARDING:
        return {}
    machines = -(-number // values["gpus_per_node"])
    written: dict[str, Value] = {
        "args.trainer.n_gpus_per_node": number // machines,
        "args.trainer.nnodes": machines,
    }
    if strategy == "none":
        return written
    written[f"{ACTOR}.strategy"] = "fsdp2" if values["fsdp_version"] == 2 else "fsdp"
    part = FSDP
    if strategy == "hsdp":
        written[f"{part}.fsdp_size"] = number // values["dp_replicate_size"]
    both = (values["offload_optimizer"], values["offload_param"])
    written[f"{part}.reshard_after_forward"] = strategy != "fsdp_grad_op"
    written[f"{part}.offload_policy"] = both == ("cpu", "cpu")
    return written


def _generates(keys: Values) -> bool:
    return keys.get("objective") in GENERATES


def _rows_of_step(keys: Values) -> int:
    """Rows of one optimizer's step over all GPUs."""
    each = keys["per_device_train_batch_size"] * keys["gradient_accumulation_steps"]
    return int(each * keys["num_gpus"])


STOPS = (
    Stop(
        when=lambda keys: _generates(keys) and _rows_of_step(keys) % keys["num_generations"] != 0,
        says="verl takes whole prompts in a step: change per_device_train_batch_size or gradient_accumulation_steps, "
        "whose product over all num_gpus is no multiple of num_generations.",
        source="verl 0.9.1, trainer/ppo/ray_trainer.py:1352",
    ),
    Stop(
        when=lambda keys: (
            _generates(keys)
            and keys["steps_per_generation"] % keys["gradient_accumulation_steps"] != 0
        ),
        says="verl stops where a generation is not a whole number of steps; make steps_per_generation a multiple of "
        "gradient_accumulation_steps.",
        source="verl 0.9.1, utils/tensordict_utils.py, make_iterator",
    ),
    Stop(
        when=lambda keys: keys.get("method") == "lora" and keys["lora_r"] > 512,
        says="verl stops at lora_r above 512, the most that its vLLM takes; lower it.",
        source="verl 0.9.1, workers/rollout/vllm_rollout/utils.py, get_vllm_max_lora_rank",
    ),
)

PACKED_BY_BNB = frozenset(["adamw_bnb_8bit", "paged_adamw_8bit"])
WRITER = ToolWriter(
    parts=frozenset({"args"}),
    datasets=dict.fromkeys(("grpo", "rloo"), "$HOME/data/gsm8k"),
    files=lambda said: {f"{said.objective}.sh": script(said.theirs, said.about, said.dataset)},
    command=lambda said: f"bash {said.objective}.sh",
    rows=(BATCH,),
    sharing=_sharing,
    states=listed("""num_gpus strategy num_generations max_completion_length beta padded
    vllm_gpu_memory_utilization vllm_tensor_parallel_size vllm_enable_sleep_mode"""),
    # it stops where it is not told how it scores: verl 0.9.1, utils/config.py, ``validate_config``,
    # workers/engine_workers.py:615
    needed=frozenset(
        f"args.actor_rollout_ref.{part}.log_prob_{key}"
        for part in ("rollout", "ref")
        for key in ("micro_batch_size_per_gpu", "use_dynamic_bsz")
    ),
    stops=STOPS,
    extras="[gpu,vllm]",  # verl 0.9, setup.py: flash-attn, liger-kernel; vllm
    packages=lambda keys: ["bitsandbytes"] * (str(keys.get("optim")) in PACKED_BY_BNB),
)

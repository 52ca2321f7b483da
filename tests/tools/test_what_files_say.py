"""Nothing that a file or a command says of a run is lost or guessed in silence."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Imported, read_files


def setup(*texts: str, names: tuple[str, ...] = ("a.yaml", "b.yaml")) -> dict[str, Any]:
    return dict(run(*texts, names=names).setup)


def run(*texts: str, names: tuple[str, ...] = ("a.yaml", "b.yaml")) -> Imported:
    return read_files(dict(zip(names, texts, strict=False)))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--num_processes 4", {"num_gpus": 4, "strategy": "ddp"}),
        ("--num_processes 8 --num_machines 2", {"num_gpus": 8, "gpus_per_node": 4}),
        (
            "--use_fsdp --num_processes 4 --fsdp_version 2",
            {"strategy": "fsdp", "fsdp_version": 2, "num_gpus": 4},
        ),
        ("--use_deepspeed --zero_stage 3 --num_processes 2", {"strategy": "zero3", "num_gpus": 2}),
    ],
)
def test_trl_hands_what_is_not_its_own_to_accelerate(flags: str, expected: dict[str, Any]) -> None:
    """trl 1.16, cli/commands/training.py:64: what the script's classes do not know goes to ``accelerate launch``."""
    found = setup(f"trl sft --model_name_or_path Qwen/Qwen2.5-0.5B {flags}", names=("run.sh",))
    assert expected.items() <= found.items()
    config = "\n".join(
        f"{name}: {value or 'true'}"
        for name, _, value in (it.strip().partition(" ") for it in flags.split("--")[1:])
    )
    files = ("trl sft --config a.yaml", f"model_name_or_path: Qwen/Qwen2.5-0.5B\n{config}")
    assert expected.items() <= setup(*files, names=("run.sh", "a.yaml")).items()


@pytest.mark.parametrize("flag", ["--config-name=my_grpo", "--config-name my_grpo", "-m"])
def test_a_flag_of_hydra_takes_no_overrides(flag: str) -> None:
    """Hydra 1.3: overrides are ``key=value``, wherever they stand."""
    found = setup(
        f"python3 -m verl.trainer.main_ppo {flag} actor_rollout_ref.model.path=Qwen/Qwen3-8B "
        "trainer.nnodes=2 algorithm.adv_estimator=grpo",
        names=("run.sh",),
    )
    assert (found["model"], found["num_gpus"], found["objective"]) == ("Qwen/Qwen3-8B", 16, "grpo")


LLAMAFACTORY = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\n"
SCRIPT = """
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
args = TrainingArguments(deepspeed={"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}})
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            f"{LLAMAFACTORY}deepspeed:\n  zero_optimization:\n    stage: 3\n    offload_param: {{device: cpu}}\n",
            "train.yaml",
        ),
        (SCRIPT, "train.py"),
        (
            "torchrun --nproc_per_node 2 train.py --model_name_or_path Qwen/Qwen3-8B --output_dir x --deepspeed "
            '\'{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}\'',
            "run.sh",
        ),
    ],
)
def test_deepspeed_s_config_may_stand_in_its_argument(text: str, name: str) -> None:
    """transformers 5.23, training_args.py:761: a path, a mapping, or an object's JSON."""
    found = setup(text, names=(name,))
    assert (found["strategy"], found["offload_param"]) == ("zero3", "cpu")

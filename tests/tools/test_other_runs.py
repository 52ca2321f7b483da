"""Unmodelled runs are not estimated as other runs; an older TRL is reported; rows that TRL generates have a length."""

from __future__ import annotations

import pytest

from estimator import estimate, read_files
from estimator.check.files import FoundFile
from estimator.check.reading import read
from estimator.contract.setups import read_setup

MODEL = "HuggingFaceTB/SmolLM2-135M"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "base_model: openai-community/gpt2\nrl: ebft\n",
            "objective 'ebft' is unknown; it is one of sft, cpo, dpo",
        ),
        (
            "model_name_or_path: openai-community/gpt2\nstage: sft\nfinetuning_type: freeze\n",
            "method 'freeze' is unknown; it is one of full, lora, qlora.",
        ),
    ],
)
def test_unmodelled_run_is_not_estimated(text, says):
    (asked,), _ = read([FoundFile(name="run.yaml", content=text.encode())])
    (problem,) = asked.problems
    assert problem.startswith(says)


def test_older_trl_is_reported_with_its_differences():
    script = (
        "from trl import SFTTrainer, SFTConfig\n"
        'SFTTrainer(model="openai-community/gpt2", args=SFTConfig(max_seq_length=512))\n'
    )
    run = read_files({"train.py": script})
    assert run.setup["max_length"] == 512
    (note,) = [note for note in run.notes if "older TRL" in note]
    assert note.startswith("max_seq_length is a word of an older TRL")
    assert "set loss standard" in note
    newer = read_files({"train.py": script.replace("max_seq_length", "max_length")})
    assert not any("older TRL" in note for note in newer.notes)


@pytest.mark.parametrize(
    ("arguments", "length"),
    [
        ("", 512 + 512),  # trl 1.16, grpo_config.py:494; the prompt as TRL 0.24 had it
        ("max_completion_length=1024", 1024 + 512),
        ("max_completion_length=1024, max_prompt_length=2048", 1024 + 2048),
    ],
)
def test_generated_row_length_is_prompt_plus_completion(arguments, length):
    script = (
        "from trl import GRPOTrainer, GRPOConfig\n"
        f'GRPOTrainer(model="openai-community/gpt2", args=GRPOConfig({arguments}))\n'
    )
    assert read_files({"train.py": script}).setup["max_length"] == length


def test_a_module_of_ms_swift_is_its_command_s_word():
    # ms-swift 4.6.0, swift/cli/sft.py, swift/cli/main.py
    flags = "--model openai-community/gpt2 --tuner_type lora"
    for command in ("swift sft", "python -m swift.cli.sft", "python -m swift.cli.main sft"):
        (word, *_) = read_files({"run.sh": f"{command} {flags}"}).keys
        assert (word.key, word.value) == ("sft", "sft"), command
    with pytest.raises(ValueError, match="no command that trains"):
        read_files({"run.sh": "python -m swift.cli.infer --model openai-community/gpt2"})


def test_llamafactory_s_kto_takes_one_row_a_micro_batch_and_trl_s_does_not():
    # llamafactory 0.9.5, train/kto/trainer.py: CustomKTOTrainer calls Trainer.__init__, past TRL's check
    keys = "per_device_train_batch_size: 1\nbf16: true\n"
    model = f"model_name_or_path: {MODEL}\n"
    theirs = f"{model}{keys}stage: kto\nfinetuning_type: lora\ncutoff_len: 512\n"
    fits = read_setup(read_files({"kto.yaml": theirs}).setup)
    assert fits.model is not None
    logits = 512 * 49_152 * 4  # whole, in float32: those of the answers, and of their softmax
    assert sum(estimate(fits.model, None, fits.setup).peak.resident.values()) > 2 * logits
    of_trl = f"trl kto --model_name_or_path {MODEL} --per_device_train_batch_size 1 --beta 0.1"
    stops = read_setup(read_files({"run.sh": of_trl}).setup)
    assert stops.model is not None
    with pytest.raises(ValueError, match="stops at one of 1 row"):
        estimate(stops.model, None, stops.setup)


def test_fsdp_s_own_checkpoints_are_ms_swift_s_too():
    # Trainer, which it extends, has an accelerator that checkpoints: accelerate 1.15, accelerator.py
    fsdp = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_activation_checkpointing: true\n"
    command = "accelerate launch --config_file fsdp.yaml -m swift.cli.sft --model a/b --gradient_checkpointing false"
    run = read_files({"fsdp.yaml": fsdp, "run.sh": command})
    assert run.setup["gradient_checkpointing"] is True

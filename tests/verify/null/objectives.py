"""The real trainer of each objective, with rows of the setup's lengths."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import datasets
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from estimator.values.setup import TrainingSetup
from tests.verify.null import one_gpu, triton_kernels

with triton_kernels.found():
    import trl
    import trl.trainer.utils
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

WORDS = ("<pad>", "<eos>", "word")
PREFERENCES: Mapping[str, tuple[Any, Any]] = {
    "sft": (trl.SFTTrainer, trl.SFTConfig),
    "dpo": (trl.DPOTrainer, trl.DPOConfig),
    "kto": (trl.KTOTrainer, trl.KTOConfig),
    "orpo": (ORPOTrainer, ORPOConfig),
    "reward": (trl.RewardTrainer, trl.RewardConfig),
    "grpo": (trl.GRPOTrainer, trl.GRPOConfig),
    "rloo": (trl.RLOOTrainer, trl.RLOOConfig),
}


def tokenizer() -> Any:
    """One token a word."""
    words = Tokenizer(models.WordLevel({one: i for i, one in enumerate(WORDS)}, unk_token="word"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="word"
    )


def trainer_of(config: Mapping[str, Any], setup: TrainingSetup, answers: one_gpu.Selected) -> Any:
    """The trainer of a setup's objective."""
    objective = setup.task.objective
    model = one_gpu.model_of(config, setup)
    told = one_gpu.arguments(setup, tempfile.mkdtemp())
    if objective == "sequence_classification":
        return _classifier(model, setup, told)
    real_trainer, real_config = PREFERENCES[objective]
    model.config._name_or_path = model.name_or_path = "null/model"
    if objective.generates:
        trainer = _generating(model, setup, told, real_trainer, real_config)
        _let_it_write(trainer, setup, answers)
        return trainer
    rows = datasets.Dataset.from_list([_row(setup)] * one_gpu.rows(setup))
    with reference(config, setup):
        trainer = real_trainer(
            model=model,
            args=real_config(max_length=setup.batch.max_length, **told, **_told(setup)),
            train_dataset=rows,
            processing_class=tokenizer(),
            peft_config=one_gpu.lora_of(setup) if setup.adapters.uses_adapters else None,
        )
    _count_selected(trainer, setup, answers)
    return trainer


def _told(setup: TrainingSetup) -> dict[str, Any]:
    """What only an objective's own config knows."""
    told: dict[str, Any] = {}
    if setup.task.precompute_ref_log_probs:
        told["precompute_ref_log_probs"] = True
    if setup.task.beta is not None:
        told["beta"] = setup.task.beta
    return told


def _prompt(setup: TrainingSetup) -> int:
    return setup.task.max_prompt_length or setup.batch.max_length // 2


def _row(setup: TrainingSetup) -> dict[str, Any]:
    """One example; trainers add an end to each completion."""
    prompt = " ".join(["word"] * _prompt(setup))
    answer = " word" * (setup.batch.max_length - _prompt(setup) - 1)
    match setup.task.objective:
        case "sft":
            scored = round(setup.batch.max_length * setup.task.completion_fraction)
            ids, ignored = [2] * setup.batch.max_length, setup.batch.max_length - scored
            return {"input_ids": ids, "labels": [one_gpu.IGNORED_LABEL] * ignored + [2] * scored}
        case "kto":
            return {"prompt": prompt, "completion": answer, "label": True}
        case _:
            return {"prompt": prompt, "chosen": answer, "rejected": answer}


def _count_selected(trainer: Any, setup: TrainingSetup, answers: one_gpu.Selected) -> None:
    """Let masks of completions select as many tokens as a batch has."""
    collate = trainer.data_collator

    def collated(rows: Any) -> Any:
        batch = collate(rows)
        for name, values in batch.items():
            if name.endswith("completion_mask"):
                answers.of(values[:, 1:] != 0)
            elif name == "labels" and values.dim() == 2:
                answers.of(values[:, 1:] != one_gpu.IGNORED_LABEL)
            elif name == "label":
                answers.of(torch.as_tensor(values).bool())
        return batch

    trainer.data_collator = collated


def _classifier(model: Any, setup: TrainingSetup, told: dict[str, Any]) -> Any:
    import peft

    if setup.adapters.uses_adapters:
        model = peft.get_peft_model(model, one_gpu.lora_of(setup))
    row = {"input_ids": [2] * setup.batch.max_length, "labels": 0}
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**told),
        train_dataset=[row] * one_gpu.rows(setup),
        data_collator=transformers.default_data_collator,
    )


def _generating(
    model: Any, setup: TrainingSetup, told: dict[str, Any], real_trainer: Any, real_config: Any
) -> Any:
    task = setup.task
    prompt = " ".join(["word"] * _prompt(setup))
    return real_trainer(
        model=model,
        args=real_config(
            max_completion_length=task.max_completion_length,
            num_generations=task.num_generations,
            **told,
            **_told(setup),
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt}] * one_gpu.rows(setup)),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        processing_class=tokenizer(),
        peft_config=one_gpu.lora_of(setup) if setup.adapters.uses_adapters else None,
    )


def _let_it_write(trainer: Any, setup: TrainingSetup, answers: one_gpu.Selected) -> None:
    """Every answer ends after as many tokens as it may have."""
    prompt, answer = _prompt(setup), setup.task.max_completion_length
    transformers.generation.utils.StopCheck.__call__ = lambda self, unfinished, _, length: (
        bool(unfinished.max() == 0) or length >= prompt + answer
    )
    generate = trainer._generate_single_turn

    def generated(prompt_ids: list[list[int]], *told: Any, **named: Any) -> Any:
        generate(prompt_ids, *told, **named)
        tokens = [[2] * answer for _ in prompt_ids]
        return (tokens, None) if setup.task.objective == "grpo" else tokens

    trainer._generate_single_turn = generated
    answers.of_each_row(prompt + answer - 1, answer)


@contextmanager
def reference(config: Mapping[str, Any], setup: TrainingSetup) -> Iterator[None]:
    """Trainers that load a reference model by its name get one of the same config, on the GPU as they ask for it."""

    def made(*_: Any, **told: Any) -> Any:
        dtype = told["dtype"]
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(**config),
                dtype=dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype),
                attn_implementation=setup.computation.attn_implementation.value,
            )
        model = model.to_empty(device="cuda")
        model.tie_weights()
        return model.eval()

    files = (trl.trainer.dpo_trainer, trl.trainer.kto_trainer)
    real = files[0].create_model_from_path
    for file in files:
        file.create_model_from_path = made
    yield
    for file in files:
        file.create_model_from_path = real

"""Live trainers of the real libraries are read correctly: transformers' Trainer, TRL's SFTTrainer, PEFT, bitsandbytes.

Models are tiny and random and run on the CPU. Expected values come from the objects themselves (dtypes, counts).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from estimator import catalog, estimate
from estimator.contract.setups import parse
from estimator.preflight import MemoryCheck, check
from estimator.preflight.callback import PeakReading

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
datasets = pytest.importorskip("datasets")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the libraries' own
]
SIZES = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LENGTHS = (12, 20, 32, 16)


def tiny(dtype: Any = None) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).to(dtype)


def rows() -> Any:
    texts = [{"input_ids": [*range(n)], "labels": [*range(n)]} for n in LENGTHS]
    return datasets.Dataset.from_list(texts)


def adapted(model: Any, **changed: Any) -> Any:
    config = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return peft.get_peft_model(model, peft.LoraConfig(**config | changed))


def trainer(folder: Path, model: Any, **changed: Any) -> Any:
    known = {"use_cpu": True, "per_device_train_batch_size": 1, "max_steps": 2, "report_to": "none"}
    arguments = transformers.TrainingArguments(str(folder), **known | changed)
    return transformers.Trainer(model, arguments, train_dataset=rows())


def agrees(keys: Any, model: Any) -> None:
    """The estimate's counts match the model's."""
    answer = estimate(*parse(json.loads(json.dumps(keys))))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert answer.trainable_parameters == trained
    assert answer.total_parameters == model.num_parameters()


def test_full_fine_tuning_is_read(tmp_path):
    found = trainer(tmp_path, tiny(), gradient_accumulation_steps=2, optim="adafactor")
    keys = check(found, show=False).keys
    assert keys["model"]["model_type"] == "llama"
    read = {
        "method": "full",
        "dtype": "float32",
        "mixed_precision": "no",
        "optim": "adafactor",
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": False,
        "max_length": max(LENGTHS),
        "num_gpus": 1,
        "strategy": "none",
        "num_train_examples": 4,  # two steps of two
    }
    assert keys | read == keys
    agrees(keys, found.model)


def test_lora_with_bfloat16_weights_is_read(tmp_path):
    model = adapted(tiny(torch.bfloat16), modules_to_save=["lm_head"])
    found = trainer(tmp_path, model, activation_checkpointing=True)
    keys = check(found, show=False).keys
    kept = {parameter.dtype for name, parameter in model.named_parameters() if "lora_" in name}
    assert kept == {torch.float32}  # as PEFT casts them
    assert keys["autocast_adapter_dtype"] is True
    assert (keys["method"], keys["dtype"], keys["lora_r"]) == ("lora", "bfloat16", 4)
    assert keys["gradient_checkpointing"] is True
    agrees(keys, model)


def test_qlora_with_bitsandbytes_is_read(tmp_path):
    pytest.importorskip("bitsandbytes")
    tiny(torch.bfloat16).save_pretrained(tmp_path / "base")
    packs = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", quantization_config=packs, dtype=torch.bfloat16
    )
    model = adapted(peft.prepare_model_for_kbit_training(base))
    keys = check(trainer(tmp_path, model), show=False).keys
    read = {
        "method": "qlora",
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": False,
        "prepare_model_for_kbit_training": True,
        "dtype": "bfloat16",
    }
    assert keys | read == keys
    agrees(keys, model)


def test_sft_trainer_has_trl_s_defaults(tmp_path):
    trl = pytest.importorskip("trl")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"<eos>": 0, "<pad>": 1}, unk_token="<eos>")
    spoken = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), eos_token="<eos>", pad_token="<pad>"
    )
    arguments = trl.SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    found = trl.SFTTrainer(
        tiny(),
        arguments,
        train_dataset=rows().remove_columns("labels"),
        processing_class=spoken,
        peft_config=peft.LoraConfig(r=4, target_modules="all-linear"),
    )
    keys = check(found, show=False).keys
    read = {
        "loss": "chunked_trl",
        "objective": "sft",
        "gradient_checkpointing": True,  # TRL's default, not Trainer's
        "per_device_train_batch_size": 8,
        "max_length": max(LENGTHS),
        "padded": True,
        "lora_r": 4,
    }
    assert keys | read == keys
    agrees(keys, found.model)


def test_classifier_is_not_read_as_a_language_model(tmp_path):
    config = transformers.LlamaConfig(**SIZES, num_labels=5, pad_token_id=0)
    found = trainer(tmp_path, transformers.LlamaForSequenceClassification(config))
    keys = check(found, show=False).keys
    assert (keys["objective"], keys["num_labels"]) == ("sequence_classification", 5)
    agrees(keys, found.model)


def test_peft_biases_and_ranks_are_read(tmp_path):
    model = adapted(tiny(), bias="all", rank_pattern={"q_proj": 8}, exclude_modules=["o_proj"])
    keys = check(trainer(tmp_path, model), show=False).keys
    assert keys["bias"] == "all"
    agrees(keys, model)


class FakeCounter:
    """Stands in for readings that need a GPU."""

    name = "none"

    def reset(self) -> None:
        """Resets nothing."""

    def read(self) -> PeakReading:
        return PeakReading(2**30, 2**30, 2**30)


def test_callback_of_a_real_run_writes_a_row(tmp_path):
    model = adapted(tiny())
    found = trainer(tmp_path, model, max_steps=3)
    table = tmp_path / "measured.csv"
    callback = MemoryCheck(found, counter=FakeCounter(), rows_file=table)
    assert isinstance(callback, transformers.TrainerCallback)
    found.add_callback(callback)
    found.train()
    assert callback.sentence.startswith("Measured in step 2: 1.00 GiB allocated at the peak, ")
    (row,) = catalog.measurements(table)
    assert f"transformers {transformers.__version__}" in row.versions
    assert row.total_parameters == model.num_parameters()
    agrees(json.loads(row.setup), model)

"""transformers' Trainer. usage: trainer.py LAYERS BATCH LENGTH [KEY=VALUE …]: more of its arguments"""

import sys
import tempfile

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

given = [
    word for word in sys.argv[1:] if not word.startswith("--local_rank=")
]  # the deepspeed command's
LAYERS, BATCH, LENGTH = map(int, given[:3])
MORE = dict(word.split("=") for word in given[3:])

config = AutoConfig.for_model(
    "llama",
    num_hidden_layers=LAYERS,
    hidden_size=2048,
    intermediate_size=8192,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=32000,
)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
tokens = list(range(1, LENGTH + 1))
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=BATCH,
    bf16=True,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    report_to=[],
    **MORE,
)
rows = [{"input_ids": tokens, "labels": tokens}] * 1000
Trainer(model, arguments, train_dataset=rows, data_collator=default_data_collator).train()

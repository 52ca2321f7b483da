"""TRL's SFTTrainer with PEFT, on a model that is in no cache. usage: sft.py FOLDER BATCH LENGTH [lora|qlora|full]"""

import sys
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

FOLDER, BATCH, LENGTH, METHOD = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

packed = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
)
model = AutoModelForCausalLM.from_pretrained(
    FOLDER, dtype=torch.bfloat16, quantization_config=packed if METHOD == "qlora" else None
)
rows = Dataset.from_dict({"input_ids": [[1] * LENGTH] * 1000})
arguments = SFTConfig(
    tempfile.mkdtemp(),
    per_device_train_batch_size=BATCH,
    max_length=LENGTH,
    bf16=True,
    report_to=[],
    pad_token="<pad>",
)
trainer = SFTTrainer(
    FOLDER if METHOD == "text" else model,
    args=arguments,
    train_dataset=rows,
    processing_class=PreTrainedTokenizerFast.from_pretrained(FOLDER),
    peft_config=None if METHOD == "full" else LoraConfig(task_type="CAUSAL_LM"),
)
trainer.train()

"""A plain loop, as people write it. usage: loop.py LAYERS BATCH LENGTH"""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

LAYERS, BATCH, LENGTH = map(int, sys.argv[1:])

config = AutoConfig.for_model(
    "llama",
    num_hidden_layers=LAYERS,
    hidden_size=2048,
    intermediate_size=8192,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=32000,
)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
while True:
    ids = torch.randint(0, config.vocab_size, (BATCH, LENGTH)).to("cuda")
    outputs = model(input_ids=ids, labels=ids)
    outputs.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", outputs.loss.item())

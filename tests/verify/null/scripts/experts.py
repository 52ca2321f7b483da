"""A mixture of experts, whose eager path calls each expert that a token chose. usage: experts.py"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

EXPERTS, CHOSEN, TOKENS = 8, 2, 1024
config = AutoConfig.for_model(
    "mixtral",
    num_hidden_layers=2,
    hidden_size=512,
    intermediate_size=1024,
    num_attention_heads=8,
    num_key_value_heads=8,
    num_local_experts=EXPERTS,
    num_experts_per_tok=CHOSEN,
    vocab_size=3000,
    experts_implementation="eager",
)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
rows: list[int] = []
linear = torch.nn.functional.linear


def counted(inputs, weight, bias=None):
    """The first product of each expert, whose rows are the tokens that chose it."""
    if weight.shape == (2 * config.intermediate_size, config.hidden_size):
        rows.append(len(inputs))
    return linear(inputs, weight, bias)


torch.nn.functional.linear = counted
while True:
    ids = torch.randint(5, 3000, (1, TOKENS)).to("cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    if rows != [TOKENS * CHOSEN // EXPERTS] * EXPERTS * config.num_hidden_layers:
        raise SystemExit("Tokens go to all experts in turn.")
    rows.clear()
    optimizer.step()
    optimizer.zero_grad()

"""A loop that branches on values of the card. usage: branches.py [wait]: and in its second step waits for one"""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY, LENGTH, PADDED = 3000, 64, 24
config = AutoConfig.for_model(
    "llama",
    num_hidden_layers=2,
    hidden_size=512,
    intermediate_size=1024,
    num_attention_heads=8,
    num_key_value_heads=8,
    vocab_size=VOCABULARY,
)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
weights = torch.eye(64, device="cuda")
for factors in (torch.linalg.qr(weights), torch.linalg.svd(weights), torch.linalg.eigh(weights)):
    if factors[0].shape[0] != 64:
        raise SystemExit("cuSOLVER is asked how large its workspaces are.")
step = 0
while True:
    ids = torch.randint(5, VOCABULARY, (2, LENGTH))
    ids[0, LENGTH - PADDED :] = 0
    mask = (ids != 0).to("cuda")
    ids = ids.to("cuda")
    if mask.all() or not mask.any() or ids.max().item() < 5:
        raise SystemExit("The first row is padded.")
    labels = ids.masked_fill(ids == 0, -100)
    if labels[labels != -100].numel() != 2 * LENGTH - PADDED:
        raise SystemExit("All others are trained on.")
    outputs = model(input_ids=ids, attention_mask=mask, labels=labels)
    loss = outputs.loss
    for tokens in (
        outputs.logits.argmax(-1),
        torch.empty(2, LENGTH, dtype=torch.long, device="cuda"),
    ):
        if tokens.any():
            raise SystemExit("A token that nobody computes is the first.")
    if torch.isnan(loss).any() or not torch.isfinite(loss):
        raise SystemExit("A loss is finite.")
    loss.backward()
    if not all(torch.isfinite(parameter.grad).all() for parameter in model.parameters()):
        raise SystemExit("So are gradients.")
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    while step == 2 and "wait" in sys.argv and loss.item() < 0.5:
        pass

"""The setup of a URL without a query, and the same run as the rule of thumb counts it."""

from __future__ import annotations

from collections.abc import Mapping

from estimator import Estimate, contract

TRL_DEFAULTS: Mapping[str, object] = {
    "dtype": "float32",
    "per_device_train_batch_size": 8,
    "gradient_checkpointing": True,
    "loss": "chunked_trl",
    "padded": True,
    "num_train_epochs": 3.0,
    "save_strategy": "steps",
}
"""Defaults of ``SFTTrainer(model="…", train_dataset=…)`` by the contract's keys, where they differ from the contract's
own, for full fine-tuning; ``tool`` ``trl`` says the same, as a test checks. The others are the same: bf16 autocast,
fused AdamW, sdpa, 1,024 tokens.

Source: trl 1.16, trainer/utils.py, ``create_model_from_path`` (a model given by name is loaded in float32);
trainer/base_config.py (``gradient_checkpointing`` true, ``bf16`` true unless fp16 is set); trainer/sft_config.py
(``max_length`` 1024, ``loss_type`` nll) and trainer/sft_trainer.py (the loss in chunks, without whole logits);
and its collator, which pads the rows of a batch; transformers 5.23, training_args.py
(``per_device_train_batch_size`` 8, ``optim`` adamw_torch_fused, ``num_train_epochs`` 3, ``save_strategy`` steps).
"""
TRL_SAYING = "Set as SFTTrainer of TRL 1.16 runs it by default."
EXAMPLE: Mapping[str, object] = {
    "model": "mistralai/Mistral-7B-v0.1",
    "gpu": "A100-SXM4-80GB",
    **TRL_DEFAULTS,
}
"""Full fine-tuning of Mistral-7B on an A100 80GB, as a real tool runs it."""
ARTICLE_NAME = "As the article counts"
ARTICLE: Mapping[str, object] = {
    "method": "full",
    "dtype": "bfloat16",
    "mixed_precision": "no",
    "optim_state_dtype": "float32",
    "per_device_train_batch_size": 1,
    "gradient_checkpointing": False,
    "loss": None,
    "padded": False,
}
"""The run that the rule of thumb is usually explained with: float32 AdamW states on bfloat16 weights."""


def is_as_trl_runs_it(of: Estimate) -> bool:
    """Whether full fine-tuning on one GPU is TRL's by default, whatever its model and card are."""
    facts = contract.write_fields(of.model, of.gpu, of.setup)
    beside = ("model", "gpu", "v")
    return {key: value for key, value in facts.items() if key not in beside} == TRL_DEFAULTS

"""The setup for a URL without a query, and the same run as counted by the rule of thumb."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from estimator import Estimate, Model, TrainingSetup, contract

TRL_DEFAULTS: Mapping[str, object] = {
    "dtype": "float32",
    "per_device_train_batch_size": 8,
    "gradient_checkpointing": True,
    "loss": "chunked_trl",
    "padded": True,
    "num_train_epochs": 3.0,
    "save_strategy": "steps",
}
"""Defaults of ``SFTTrainer(model="…", train_dataset=…)`` for full fine-tuning, by the contract's keys.

Only keys that differ from the contract's defaults are listed. The others agree: bf16 autocast, fused AdamW, sdpa,
1,024 tokens. A test compares these values with ``tool`` ``trl``.

Source: trl 1.16, trainer/utils.py, ``create_model_from_path`` (a model given by name is loaded in float32);
trainer/base_config.py (``gradient_checkpointing`` true, ``bf16`` true unless fp16 is set); trainer/sft_config.py
(``max_length`` 1024, ``loss_type`` nll); trainer/sft_trainer.py (the loss in chunks, without whole logits; its
collator pads the rows of a batch); transformers 5.23, training_args.py
(``per_device_train_batch_size`` 8, ``optim`` adamw_torch_fused, ``num_train_epochs`` 3, ``save_strategy`` steps).
"""
EXAMPLE: Mapping[str, object] = {
    "model": "mistralai/Mistral-7B-v0.1",
    "gpu": "A100-SXM4-80GB",
    **TRL_DEFAULTS,
}
"""Full fine-tuning of Mistral-7B on an A100 80GB, with TRL's defaults."""
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
"""The usual example for the rule of thumb: float32 AdamW states on bfloat16 weights."""


def is_as_trl_runs_it(of: Estimate) -> bool:
    """Whether this is full fine-tuning on one GPU with TRL's defaults, for any model and card."""
    return _is_as_trl_runs_it(of.model, of.setup)


@lru_cache(maxsize=512)
def _is_as_trl_runs_it(model: Model, setup: TrainingSetup) -> bool:
    facts = contract.write_fields(model, None, setup)
    return {key: value for key, value in facts.items() if key not in ("model", "v")} == TRL_DEFAULTS

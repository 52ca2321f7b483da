"""Models that see images under FSDP; tests/test_reference.py compares their steps with traced ones ("image")."""

from __future__ import annotations

from typing import Any

from estimator.contract.setups import parse
from estimator.parallel.sharding import TOWER, fsdp_groups

QWEN2_5: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "tie_word_embeddings": True,
    "text_config": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
}
SMALL = [448, 448]
FSDP = {"strategy": "fsdp", "num_gpus": 2}


def given(
    config: dict[str, Any] | str, length: int, size: list[int], **keys: Any
) -> dict[str, Any]:
    return {
        "model": config,
        "model_class": "image_text",
        "image_sizes": [size],
        "max_length": length,
        "mixed_precision": "no",
        "optim": "sgd",
        **keys,
    }


def test_fsdp_2_gathers_tower_layers_one_by_one_and_the_rest_with_the_root():
    # by ``fsdp2_prepare_model`` itself: 32 vision blocks of 19,702,200 parameters, and a root of 7 tensors
    model, _, setup = parse(given(QWEN2_5, 770, SMALL, **FSDP))
    groups = {group.name: group for group in fsdp_groups(model, setup.adapters)}
    assert groups[TOWER].alike == 32
    assert [module.name for module in groups["root"].modules] == [
        "norm",
        "patch_embed.proj",
        "visual.merger.ln_q",
        "visual.merger.mlp.0",
        "visual.merger.mlp.2",
    ]

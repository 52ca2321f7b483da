"""Steps on images under the strategies that shard weights.

Expected bytes: the third of three steps of transformers 5.23's real classes, sharded by accelerate 1.15's own
``fsdp2_prepare_model`` (torch 2.13) or by DeepSpeed 0.19.6 with Trainer's buckets, rank 0 of a fake process group
unless named, on a stand-in CUDA device that counts every allocation, rounded to 512 bytes; bfloat16 weights, plain SGD,
one row, one image, SDPA.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Component, Phase, estimate
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
QWEN3: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "tie_word_embeddings": True,
    "text_config": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "vision_config": {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "deepstack_visual_indexes": [5, 11, 17],
    },
}
INTERNVL: dict[str, Any] = {
    "model_type": "internvl",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen2",
        "vocab_size": 151674,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    },
    "vision_config": {"num_hidden_layers": 24, "attention_bias": True},
}
SMALL, WIDE = [448, 448], [1080, 1920]
FSDP = {"strategy": "fsdp", "num_gpus": 2}
FROZEN = {"freeze_vision": True, "freeze_projector": True}
CHECKPOINTED = {"gradient_checkpointing": True}
AUTOCAST = {"mixed_precision": "bf16"}
ZERO_3 = {"strategy": "zero3", "num_gpus": 2, **AUTOCAST}


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


TRACED: dict[str, tuple[dict[str, Any], int, int]] = {
    "a trained tower": (given(QWEN2_5, 770, SMALL, **FSDP), 11_578_837_504, 11_653_824_000),
    "a frozen tower that checkpoints pull into backward": (
        given(QWEN2_5, 770, SMALL, **FSDP, **FROZEN, **CHECKPOINTED),
        6_003_955_200,
        9_100_466_688,
    ),
    # each layer keeps rotary tables that FSDP 2 cast for it, and the root a copy of the images
    "tables and images cast": (
        given(QWEN3, 2554, WIDE, **FSDP, **AUTOCAST, **CHECKPOINTED),
        10_265_265_152,
        10_890_474_496,
    ),
    "tables cast, four ranks": (
        given(QWEN2_5, 1282, SMALL, **AUTOCAST, **CHECKPOINTED, strategy="fsdp", num_gpus=4),
        6_883_518_976,
        9_841_528_832,
    ),
    "stage 3, a trained tower": (
        given(QWEN2_5, 770, SMALL, **ZERO_3, **CHECKPOINTED),
        18_442_007_552,
        18_671_149_056,
    ),
    "stage 3, features added to layers": (
        given(QWEN3, 2554, WIDE, **ZERO_3, **CHECKPOINTED),
        15_440_813_056,
        16_166_695_936,
    ),
    "stage 3, positions without a module": (
        given(INTERNVL, 770, SMALL, **ZERO_3),
        14_707_913_728,
        14_938_277_888,
    ),
    # rank 1, which has the text's last layers; rank 0, with the tower, peaks at 22,818,368,512
    "stage 2, the fullest rank": (
        given(QWEN2_5, 770, SMALL, **AUTOCAST, strategy="zero2", num_gpus=2),
        21_989_720_576,
        25_305_105_408,
    ),
    "stage 2, the last of eight ranks": (
        given(INTERNVL, 770, SMALL, **AUTOCAST, **CHECKPOINTED, strategy="zero2", num_gpus=8),
        6_526_961_152,
        6_757_325_312,
    ),
    "returned features in float32": (
        given(INTERNVL, 770, SMALL, **FSDP, **FROZEN, **AUTOCAST, **CHECKPOINTED),
        6_128_396_288,
        8_587_910_144,
    ),
}


def heights(keys: dict[str, Any]) -> tuple[int, int]:
    """Peaks of forward and loss together, and of backward, without the workspace."""
    moments = estimate(*parse(keys)).moments
    found = {Phase.FORWARD: 0, Phase.BACKWARD: 0}
    for moment in moments:
        size = moment.bytes - moment.resident.get(Component.WORKSPACE, 0)
        if moment.phase is not Phase.OPTIMIZER_STEP:
            phase = Phase.BACKWARD if moment.phase is Phase.BACKWARD else Phase.FORWARD
            found[phase] = max(found[phase], size)
    return found[Phase.FORWARD], found[Phase.BACKWARD]


@pytest.mark.parametrize("name", TRACED)
def test_peaks_with_images_match_the_real_step(name: str) -> None:
    keys, forward, backward = TRACED[name]
    assert heights(keys) == (
        pytest.approx(forward, rel=5e-5),
        pytest.approx(backward, rel=5e-5),
    )


def test_fsdp_2_gathers_tower_layers_one_by_one_and_the_rest_with_the_root() -> None:
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


def test_gemma_3_fails_under_fsdp_for_a_class_that_it_lacks() -> None:
    # "Could not find the transformer layer class SiglipTextEmbeddings in the model.": accelerate 1.15, run here
    keys = given("google/gemma-3-4b-it", 770, SMALL, **FSDP)
    with pytest.raises(ValueError, match="the model has no SiglipTextEmbeddings"):
        estimate(*parse(keys))

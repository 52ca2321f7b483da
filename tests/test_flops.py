"""Operations of a micro-batch, by hand and against the literature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import AttnImplementation, Method, TrainingSetup, catalog
from estimator.contract.setups import parse
from estimator.families.model_tree import total_parameters
from estimator.families.modules import TINY_LLAMA
from estimator.time.flops import Work, attended_pairs, matrices, tower_work, work

LLAMA = catalog.model("meta-llama/Llama-3.1-8B")
LAYER = 8 * (8 + 4 + 4) + 8 * 8 + 3 * 8 * 16
"""Elements of a layer's linears in TINY_LLAMA, by hand: q 8, k 4, v 4 wide, o 8 by 8, an MLP of three 8 by 16."""
HEAD = 8 * 10


def counted(setup: TrainingSetup, length: int = 4) -> Work:
    """Work of one example of ``length`` tokens with attention that skips masked pairs."""
    return work(TINY_LLAMA, setup, length, pairs=attended_pairs(TINY_LLAMA, length, skips=True))


def test_full_fine_tuning_takes_six_operations_per_element_and_token():
    assert counted(TrainingSetup()).products == 6 * 4 * (2 * LAYER + HEAD)


def test_frozen_matrix_has_no_weight_gradient():
    assert counted(TrainingSetup(method=Method.LORA)).products == 4 * 4 * (2 * LAYER + HEAD)


def test_adapter_takes_six_operations_per_element_and_token():
    setup = TrainingSetup(method=Method.LORA, lora_r=2, lora_target_modules=("q_proj",))
    # by hand: two layers, A is 2 by 8 and B is 8 by 2
    assert counted(setup).adapters == 6 * 4 * 2 * (2 * 8 + 8 * 2)


def test_flash_attention_takes_seven_products_per_pair():
    # by hand: 4 tokens attend to 1 + 2 + 3 + 4 keys in each of 2 layers; queries are 8 wide; a product is 2 operations;
    # 2 products forward, 5 backward
    assert counted(TrainingSetup()).attention == 2 * 10 * 8 * 2 * (2 + 5)


def test_eager_attention_keeps_its_scores_and_takes_six_products():
    eager = TrainingSetup(attn_implementation=AttnImplementation.EAGER)
    pairs = attended_pairs(TINY_LLAMA, 4, skips=False)
    assert pairs == 2 * 16
    assert work(TINY_LLAMA, eager, 4, pairs=pairs).attention == 32 * 8 * 2 * (2 + 4)


def test_checkpointing_recomputes_the_layers_but_not_the_head():
    again = counted(TrainingSetup(gradient_checkpointing=True))
    assert again.products_again == 2 * 4 * 2 * LAYER
    assert again.attention_again == 2 * 10 * 8 * 2 * 2
    assert again.model == counted(TrainingSetup()).hardware


def test_window_limits_the_keys_a_token_attends_to():
    windowed = replace(TINY_LLAMA, sliding_window=2)
    # by hand: 4 tokens attend to 1 + 2 + 2 + 2 keys
    assert attended_pairs(windowed, 4, skips=True) == 2 * 7


def test_tied_head_counts_like_any_other():
    tied = replace(TINY_LLAMA, tie_word_embeddings=True)
    assert matrices(tied, TrainingSetup().adapters) == matrices(
        TINY_LLAMA, TrainingSetup().adapters
    )


def test_eight_billion_parameters_match_six_n_of_the_literature():
    """Hoffmann et al. 2022, arXiv:2203.15556, appendix F: 6 N D, N without the embedding's rows."""
    setup = TrainingSetup(max_length=8192)
    count = work(LLAMA, setup, 8192, pairs=0).products
    embedding = LLAMA.vocab_size * LLAMA.hidden_size
    assert count == pytest.approx(6 * 8192 * (total_parameters(LLAMA) - embedding), rel=0.001)


def test_attention_is_half_the_count_without_a_causal_mask():
    """Chowdhery et al. 2022, arXiv:2204.02311, appendix B: 12 · L · heads · head_dim · s a token, forward and backward.

    Ours: causal, half of that; with flash attention's backward, 7 products instead of 6.
    """
    length = 8192
    pairs = attended_pairs(LLAMA, length, skips=True)
    count = work(LLAMA, TrainingSetup(max_length=length), length, pairs=pairs).attention
    palm = 12 * LLAMA.num_hidden_layers * LLAMA.query_size * length * length
    assert count == pytest.approx(palm / 2 * 7 / 6, rel=0.001)


SIGLIP = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
TEXT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": TEXT,
    "vision_config": {**SIGLIP, "num_attention_heads": 4, "image_size": 896, "patch_size": 14},
}
INTERNVL = {
    "model_type": "internvl",
    "text_config": {**TEXT, "model_type": "qwen2"},
    "vision_config": {**SIGLIP, "num_attention_heads": 4, "attention_bias": True},
}
LORA_ON_ALL = {
    "method": "lora",
    "lora_r": 8,
    "lora_dropout": 0.0,
    "lora_target_modules": "all-linear",
}


# torch 2.13, torch.utils.flop_counter.FlopCounterMode around forward and backward of transformers 5.23's classes with
# eager attention, on one image of 448 × 448: the tower's operations and the projector's
@pytest.mark.parametrize(
    ("config", "keys", "operations", "error"),
    [
        (GEMMA3, {}, 27_795_652_608 + 6_291_456, 0),
        (INTERNVL, {"gradient_checkpointing": True}, 2_776_041_472 + 31_457_280, 0.002),
        # the first layer's input needs no gradient; there are only two layers
        (INTERNVL, LORA_ON_ALL, 1_979_470_336 + 26_476_544, 0.013),
    ],
    ids=["full", "checkpointed", "lora"],
)
def test_a_tower_takes_as_many_operations_as_torch_counts(config, keys, operations, error):
    images = {"images_per_example": 1, "image_height": 448, "image_width": 448}
    cuts = {"crop_to_patches": False} if config is INTERNVL else {}
    given = {"model": config, "attn_implementation": "eager", "max_length": 512} | images | cuts
    model, _, setup = parse({**given, **keys})
    assert sum(tower_work(model, setup)) == pytest.approx(operations, rel=error)

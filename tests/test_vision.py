"""Vision models: parameters of their towers, activations a step saves, and rows with images.

Bytes per patch and layer are counted by hand from transformers' code: each term is a tensor that backward reads.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate, image_costs
from estimator.contract.setups import parse, read_setup
from estimator.families.model_tree import vision_modules
from estimator.families.modules import module_parameters
from estimator.families.vision_family import VISION, images_of
from estimator.search.free_changes import lossless
from estimator.search.image_changes import image_changes, tower_checkpoints
from estimator.sources import catalog
from estimator.values.specs import Component, Part, Phase
from tests.rows import for_each

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 16}


def qwen2_5(depth: int = 32, **text: Any) -> dict[str, Any]:
    vision = {"depth": depth, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}
    return {"model_type": "qwen2_5_vl", "text_config": {**QWEN2, **text}, "vision_config": vision}


def qwen3(depth: int = 27, **text: Any) -> dict[str, Any]:
    vision = {
        "depth": depth,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "deepstack_visual_indexes": [8, 16, 24] if depth > 24 else [0],
    }
    return {"model_type": "qwen3_vl", "text_config": {**QWEN3, **text}, "vision_config": vision}


def gemma3(depth: int = 27, **text: Any) -> dict[str, Any]:
    vision = {
        "num_hidden_layers": depth,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "image_size": 896,
        "patch_size": 14,
        "vision_use_head": False,
    }
    return {
        "model_type": "gemma3",
        "text_config": {**LLAMA, "model_type": "gemma3_text", "head_dim": 16, **text},
        "vision_config": vision,
    }


def internvl(depth: int = 24, **text: Any) -> dict[str, Any]:
    vision = {"num_hidden_layers": depth, "attention_bias": True}
    return {"model_type": "internvl", "text_config": {**QWEN2, **text}, "vision_config": vision}


def pixtral(depth: int = 24, **text: Any) -> dict[str, Any]:
    return {
        "model_type": "mistral3",
        "text_config": {**LLAMA, "model_type": "mistral", "sliding_window": None, **text},
        "vision_config": {
            "model_type": "pixtral",
            "num_hidden_layers": depth,
            "image_size": 1540,
            "patch_size": 14,
        },
    }


def smolvlm() -> dict[str, Any]:
    vision = {"hidden_size": 768, "image_size": 512, "patch_size": 16, "num_hidden_layers": 2}
    return {
        "model_type": "smolvlm",
        "scale_factor": 4,
        "text_config": LLAMA,
        "vision_config": vision,
    }


def test_a_tower_without_sizes_takes_its_classs_defaults():
    # transformers 5.23, models/qwen2_vl/configuration_qwen2_vl.py, Qwen2VLVisionConfig: mlp_ratio 4
    config = {"model_type": "qwen2_vl", "text_config": QWEN2, "vision_config": {}}
    vision = parse({"model": config})[0].vision
    sizes = vision.tower
    assert (sizes.hidden_size, sizes.intermediate_size) == (1280, 5120)
    assert (sizes.num_hidden_layers, sizes.num_attention_heads) == (32, 16)


def setup(config: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {
        "model": config,
        "mixed_precision": "no",
        "images_per_example": 1,
        "image_height": 448,
        "image_width": 448,
        "text_tokens": 64,
        "max_length": 8192,
        **keys,
    }


def parameters(config: dict[str, Any], part: Part) -> int:
    model, _, _ = parse({"model": config, "images_per_example": 0, "text_tokens": 8})
    return sum(
        n * module_parameters(module) for module, n in vision_modules(model) if module.part is part
    )


# Hub: safetensors.total of each repository less its text part, by tensor names
@pytest.mark.parametrize(
    ("config", "tower", "projector"),
    [
        (qwen2_5(hidden_size=3584), 631_975_680, 44_574_464),  # Qwen/Qwen2.5-VL-7B-Instruct
        (qwen3(hidden_size=4096), 415_891_440, 160_496_896),  # Qwen/Qwen3-VL-8B-Instruct
        (gemma3(hidden_size=2560), 416_866_032, 2_950_272),  # google/gemma-3-4b-it
        (internvl(hidden_size=1536), 304_012_288, 8_662_016),  # OpenGVLab/InternVL3-2B-hf
        (pixtral(hidden_size=5120), 403_305_472, 35_652_608),  # mistralai/Mistral-Small-3.1-24B
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_tower_and_projector_have_the_published_counts(config, tower, projector):
    assert parameters(config, Part.VISION) == tower
    assert parameters(config, Part.PROJECTOR) == projector


SEEING = [entry for entry in catalog.models().values() if entry.model.vision is not None]


@for_each("entry", SEEING)
def test_catalogued_towers_and_projectors_match_the_published_extra_parameters(entry):
    modules = vision_modules(entry.model)
    tower, projector = (
        sum(n * module_parameters(module) for module, n in modules if module.part is part)
        for part in (Part.VISION, Part.PROJECTOR)
    )
    said = entry.published_extra_is
    # test_parameters.py checks that the published count less these parameters is the text part
    assert (
        f"{tower + projector}"
        in said  # "vision tower N and one MTP layer", "towers with their projections N"
        or (f"{tower}" in said and tower + projector == entry.published_extra)
        or entry.model.towers is not None  # with an audio tower: tests/test_towers.py
    )


def test_the_catalogue_has_a_model_of_every_kind_of_tower():
    wrappers = {entry.model.vision.wrapper for entry in SEEING if entry.model.vision}
    assert wrappers == set(VISION)


def saved_per_patch(config: Any, **keys: Any) -> float:
    """Bytes per patch that one more tower layer saves for backward."""
    saved, patches = [], 0
    for depth in (4, 5):
        model, _, read = parse(setup(config(depth), **keys))
        patches = sum(image.patches for image in images_of(model, read.images))
        moment = estimate(model, None, read).phases[Phase.LOSS]
        saved.append(moment.resident[Component.ACTIVATIONS])
    return (saved[1] - saved[0]) / patches


# h: hidden, f: MLP, a: heads. A LayerNorm saves its input 2h and two float32 numbers; a linear's input, 2h or 2f, is
# another tensor. SigLIP: 2 norms (4h + 16), input of q, k, v (2h), q k v and output (8h), input of fc1 (2h), before and
# after the activation (4f), log-sum-exp 4a.
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (gemma3, 16 * 1152 + 4 * 4304 + 4 * 16 + 16),
        # q, k and v stay as one tensor (6h) beside rotated queries and keys (4h); concatenated outputs (2h)
        (qwen3, 22 * 1152 + 4 * 4304 + 4 * 16 + 16),
        # an RMS norm saves float32 x (4h), its output twice (4h) and one number; gate, up, both products (8f)
        (qwen2_5, 30 * 1280 + 8 * 3420 + 4 * 16 + 8),
        # inputs of the two layer scales (4h); 1,025 positions per tile of 1,024 patches
        (internvl, (20 * 1024 + 4 * 4096 + 4 * 16 + 16) * 1025 / 1024),
    ],
)
def test_a_trained_tower_layer_saves_the_bytes_counted_by_hand(config, expected):
    # tensors are rounded up to 512 bytes
    assert saved_per_patch(config) == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize(("config", "expected"), [(gemma3, 2 * 1152), (qwen3, 0)])
def test_checkpointing_pulls_a_frozen_tower_into_backward_from_its_hook_on(config, expected):
    keys = {"freeze_vision": True, "gradient_checkpointing": True}
    assert saved_per_patch(config, **keys) == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize("config", [gemma3, qwen3, qwen2_5, internvl, pixtral])
def test_a_frozen_tower_saves_nothing_without_checkpointing(config):
    assert saved_per_patch(config, freeze_vision=True) == 0


# by hand, as above: 2h per patch if the tower is checkpointed, all that its layer saves if not, nothing if it is frozen
@pytest.mark.parametrize(
    ("text", "tower", "frozen", "expected"),
    [
        (False, True, False, 2 * 1152),
        (True, False, False, 16 * 1152 + 4 * 4304 + 4 * 16 + 16),
        (True, False, True, 0),
        (False, True, True, 2 * 1152),
    ],
)
def test_the_tower_is_checkpointed_apart_from_the_text(text, tower, frozen, expected):
    keys = {"gradient_checkpointing": text, "vision_gradient_checkpointing": tower}
    saved = saved_per_patch(gemma3, **keys, freeze_vision=frozen)
    assert saved == pytest.approx(expected, rel=0.002)


def test_flash_attention_joins_no_outputs_in_a_tower_that_attends_by_image():
    # the joined outputs (2h) of 30h + 8f + 4a + 8 with sdpa
    saved = saved_per_patch(qwen2_5, attn_implementation="flash_attention_2")
    assert saved == pytest.approx(28 * 1280 + 8 * 3420 + 4 * 16 + 8, rel=0.002)
    # rows of the text that end in padding are no rows of the tower
    padded = {"attn_implementation": "flash_attention_2", "padded": True}
    assert saved_per_patch(qwen2_5, **padded) == pytest.approx(saved, rel=0.002)


# liger-kernel 0.8.5, transformers/monkey_patch.py, apply_liger_kernel_to_qwen2_5_vl and _to_gemma3
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # each of two norms keeps x (2h) and its output, instead of x in float32 (4h) and its output twice
        (qwen2_5, 22 * 1280 + 8 * 3420 + 4 * 16 + 8),
        # a LayerNorm in one kernel saves what PyTorch's does
        (gemma3, 16 * 1152 + 4 * 4304 + 4 * 16 + 16),
    ],
)
def test_liger_replaces_the_norms_of_a_towers_layers(config, expected):
    saved = saved_per_patch(config, use_liger_kernel=True)
    assert saved == pytest.approx(expected, rel=0.002)


def test_liger_leaves_a_checkpoint_alone_whose_class_it_does_not_know():
    with_it, without = (
        estimate(*parse(setup({**smolvlm(), "model_type": "idefics3"}, use_liger_kernel=is_on)))
        for is_on in (True, False)
    )
    assert with_it.peak.bytes == without.peak.bytes
    assert any("no kernels for idefics3" in said for said in with_it.assumptions)


def test_frozen_parts_are_not_trained():
    whole = estimate(*parse(setup(gemma3())))
    tower = estimate(*parse(setup(gemma3(), freeze_vision=True)))
    both = estimate(*parse(setup(gemma3(), freeze_vision=True, freeze_projector=True)))
    assert whole.trainable_parameters - tower.trainable_parameters == 416_866_032
    # a norm of 1,152 and a matrix of 1,152 × 64
    assert tower.trainable_parameters - both.trainable_parameters == 1152 + 1152 * 64


def test_all_linear_adapts_the_tower_unless_it_is_frozen():
    keys = {"method": "lora", "lora_r": 8, "lora_target_modules": "all-linear"}
    everywhere = estimate(*parse(setup(gemma3(2), **keys))).trainable_parameters
    text = estimate(*parse(setup(gemma3(2), **keys, freeze_vision=True))).trainable_parameters
    # two layers: four linears of h × h, and h × f both ways; the projector is not a linear
    assert everywhere - text == 2 * 8 * (4 * 2 * 1152 + 2 * (1152 + 4304))


def test_images_add_to_the_text_and_max_length_cuts_the_row():
    # 448² pixels in patches of 14, four per token: 256 tokens, and two markers
    reading = read_setup(setup(qwen2_5(), text_tokens=512))
    assert reading.setup.batch.max_length == 512 + 256 + 2
    assert (
        read_setup(setup(qwen2_5(), text_tokens=512, max_length=600)).setup.batch.max_length == 600
    )


def test_an_image_in_the_batch_gives_every_gemma_3_layer_its_own_mask():
    keys: dict[str, Any] = {
        "freeze_vision": True,
        "text_tokens": 740,
    }  # 1,000 tokens with the image
    shallow, deep = (
        estimate(*parse(setup(gemma3(2, num_hidden_layers=depth), **keys))).phases[Phase.LOSS]
        for depth in (3, 4)
    )
    saved = deep.resident[Component.ACTIVATIONS] - shallow.resident[Component.ACTIVATIONS]
    without = {**keys, "images_per_example": 0, "text_tokens": 1000}
    shallow, deep = (
        estimate(*parse(setup(gemma3(2, num_hidden_layers=depth), **without))).phases[Phase.LOSS]
        for depth in (3, 4)
    )
    flash = deep.resident[Component.ACTIVATIONS] - shallow.resident[Component.ACTIVATIONS]
    # bfloat16 per pair of tokens; 1,000 is a multiple of 8, so rows are not padded
    assert saved - flash == pytest.approx(2 * 1000**2, rel=0.01)


def test_fewer_pixels_are_offered_with_the_resulting_length():
    given = setup(
        qwen2_5(), image_height=2160, image_width=3840, text_tokens=100, max_length=20_000
    )
    model, _, read = parse(given)
    change, freeze = image_changes(model, read)
    assert "now 10,549 tokens of an example" in change.price
    # the class's own limit, 28 · 28 · 1,280 pixels: 1,222 tokens, two markers, the text
    assert {"max_pixels": 1_003_520, "max_length": 1324} in change.options
    (checkpoint,) = tower_checkpoints(model, read)
    assert checkpoint.options == ({"vision_gradient_checkpointing": True},)
    assert freeze.options == ({"freeze_vision": True},)


def test_fewer_pixels_shorten_a_row_of_unknown_text_length():
    given = setup(qwen2_5(), image_height=2160, image_width=3840, text_tokens=None)
    given["max_length"] = 11_000
    model, _, read = parse(given)
    change, *_ = image_changes(model, read)
    # the row is 10,549 image tokens, two markers and 449 of text; the text stays, beside 1,222 image tokens and two
    assert {"max_pixels": 1_003_520, "max_length": 449 + 1222 + 2} in change.options


def test_small_images_enlarged_by_the_processor_are_reported_with_a_fix():
    config = smolvlm()
    model, _, read = parse(setup(config))
    (said,) = image_costs(model, read)
    # 448² becomes 2,048²: 4 × 4 tiles and the overview, of 64 tokens each
    assert (
        "17 tiles and 1,088 tokens. With image_longest_edge 512 it is 1 tile and 64 tokens." in said
    )
    assert image_costs(*parse(setup(config, image_longest_edge=512))[::2]) == []


def test_a_frozen_tower_in_backward_is_reported_with_its_bytes():
    keys = {"freeze_vision": True, "gradient_checkpointing": True}
    model, _, read = parse(setup(gemma3(2), **keys))
    dragged, mask = image_costs(model, read)
    # 4,096 patches × two layers × 1,152 × 2 bytes
    assert "the inputs of its 2 layers stay, 19 MB" in dragged
    # 2 bytes per pair of the row's 64 + 256 + 4 tokens, each row padded to 328
    assert f"{2 * 324 * 328 / 1e6:,.0f} MB" in mask
    assert image_costs(*parse(setup(qwen3(), **keys))[::2]) == []


def test_flash_attention_leaves_out_the_mask_of_gemma_3s_images_and_is_no_lossless_remedy():
    keys = {"freeze_vision": True}
    for kernel, expected in (("sdpa", 0), ("flash_attention_2", 1)):
        model, _, read = parse(setup(gemma3(2), **keys, attn_implementation=kernel))
        said = " ".join(image_costs(model, read))
        assert said.count("attend only to tokens before them") == expected
    card = catalog.gpu("L4")
    model, _, read = parse(setup(gemma3(2), **keys))
    offered = lossless(model, card, read)
    assert not any("FlashAttention" in change.title for change in offered)
    model, _, read = parse(setup(qwen2_5(2), **keys))
    offered = lossless(model, card, read)
    assert any("FlashAttention" in change.title for change in offered)


def test_a_window_that_a_wrapped_config_turns_off_stays_off():
    model, _, _ = parse({"model": pixtral(max_position_embeddings=131_072)})
    assert model.sliding_window == 0  # MistralConfig's default is 4,096


@pytest.mark.parametrize("name", ["google/gemma-4-E2B-it", "google/gemma-3-4b-it"])
def test_the_image_text_class_has_the_causal_classs_towers(name):
    # AutoModelForCausalLM and AutoModelForImageTextToText load these as the same class
    causal = estimate(*parse({"model": name}))
    sees = estimate(*parse({"model": name, "model_class": "image_text"}))
    assert causal.total_parameters == sees.total_parameters

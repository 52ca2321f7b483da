"""The tools' image keys: processor limits and frozen towers, read, written, and reported when unused.

Expected values are the keys' values; LLaMA-Factory's defaults are 768 · 768 and 32 · 32 (llamafactory 0.9.5,
hparams/model_args.py:305), and a token of Qwen3-VL's processor is a square of 32 pixels (patch 16, merged 2 by 2).
"""

from __future__ import annotations

import pytest

from estimator import Fate, read_files
from estimator.sources.repository import from_config
from estimator.tools.defaults import with_defaults_of
from estimator.tools.writing.files import files_of
from tests.test_vision import qwen3

VIDEOS = "Qwen/Qwen2.5-VL-7B-Instruct"
QWEN, GEMMA, TEXT = "Qwen/Qwen3-VL-8B-Instruct", "google/gemma-3-4b-it", "openai-community/gpt2"
KNOWN = {QWEN: from_config(qwen3(hidden_size=4096)).model}
LLAMAFACTORY = "stage: sft\nfinetuning_type: lora\nmodel_name_or_path: "
SWIFT = f"swift sft --model {QWEN} --tuner_type lora"
SCRIPT = """
from transformers import AutoProcessor, Trainer, TrainingArguments, AutoModelForImageTextToText
model = AutoModelForImageTextToText.from_pretrained("{model}")
processor = AutoProcessor.from_pretrained("{model}", {arguments})
Trainer(model=model, args=TrainingArguments(output_dir="x"))
"""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"a.yaml": f"{LLAMAFACTORY}{QWEN}\nimage_max_pixels: 262144\n"},
            {"max_pixels": 262_144, "min_pixels": 1024, "freeze_vision": True},
        ),
        (
            {"a.yaml": f"{LLAMAFACTORY}{QWEN}\nfreeze_vision_tower: false\n"},
            {"max_pixels": 589_824, "freeze_vision": False, "freeze_projector": True},
        ),
        (
            {"a.yaml": f"{LLAMAFACTORY}{GEMMA}\nimage_do_pan_and_scan: true\n"},
            {"do_pan_and_scan": True, "max_pixels": None},
        ),
        ({"a.yaml": f"{LLAMAFACTORY}{TEXT}\n"}, {"max_pixels": None, "freeze_vision": None}),
        ({"a.sh": f"MAX_PIXELS=1003520 {SWIFT}"}, {"max_pixels": 1_003_520}),
        ({"a.sh": f"IMAGE_MAX_TOKEN_NUM=1024 {SWIFT}"}, {"max_pixels": 1024 * 32 * 32}),
        ({"a.sh": f"{SWIFT} --max_pixels 262144 --freeze_vit false"}, {"max_pixels": 262_144}),
        (
            {"a.sh": f"{SWIFT} --freeze_vit false --vit_gradient_checkpointing false"},
            {"gradient_checkpointing": True, "vision_gradient_checkpointing": False},
        ),
        (
            {"a.sh": f"VIDEO_MAX_PIXELS=50176 FPS_MAX_FRAMES=12 {SWIFT.replace(QWEN, VIDEOS)}"},
            {
                "video_max_pixels": 50_176,
                "video_min_pixels": 128 * 28 * 28,
                "cap_pixels_per_frame": True,
                "video_frames": 12,
            },
        ),
        (
            {"a.yaml": f"{LLAMAFACTORY}{VIDEOS}\nvideo_max_pixels: 16384\nvideo_maxlen: 64\n"},
            {"video_max_pixels": 16_384, "video_min_pixels": 56 * 56, "video_frames": 64},
        ),
        # the frozen tower's layers are not checkpointed: llamafactory 0.9.5, model/model_utils/checkpointing.py:100
        ({"a.yaml": f"{LLAMAFACTORY}{QWEN}\n"}, {"vision_gradient_checkpointing": False}),
        (
            {"a.yaml": f"base_model: {QWEN}\nimage_size: 512\nfreeze_mm_modules: true\n"},
            {"image_height": 512, "image_width": 512, "freeze_vision": True},
        ),
        (
            {"a.yaml": f"base_model: {QWEN}\nprocessor_kwargs:\n  max_pixels: 262144\n"},
            {"max_pixels": 262_144},
        ),
        (
            {
                "a.py": SCRIPT.format(
                    model=QWEN, arguments="min_pixels=4096, max_pixels=512 * 28 * 28"
                )
            },
            {"min_pixels": 4096, "max_pixels": 401_408},
        ),
        (
            {"a.py": SCRIPT.format(model=QWEN, arguments='size={"longest_edge": 262144}')},
            {"max_pixels": 262_144},
        ),
    ],
)
def test_processor_limits_are_read(files, expected):
    run = read_files(files, KNOWN)
    assert {key: run.setup.get(key) for key in expected} == expected
    assert not run.of(Fate.UNKNOWN)
    assert not run.of(Fate.NOT_MODELLED)


def test_limit_unknown_to_the_processor_is_reported():
    run = read_files({"a.yaml": f"{LLAMAFACTORY}{GEMMA}\nimage_max_pixels: 262144\n"})
    (said,) = run.of(Fate.NOT_MODELLED)
    assert said.key == "image_max_pixels"
    assert said.says.startswith("Images are resized to this area before gemma3's processor")


def test_limit_for_a_text_model_is_reported():
    run = read_files({"a.yaml": f"{LLAMAFACTORY}{TEXT}\nimage_max_pixels: 262144\n"})
    (said,) = run.of(Fate.NOT_MODELLED)
    assert said.says == "gpt2 is known here without a tower that sees: no image is estimated."


def test_frames_resized_before_a_processor_with_other_limits_are_reported():
    run = read_files({"a.yaml": f"{LLAMAFACTORY}{QWEN}\nvideo_max_pixels: 16384\n"}, KNOWN)
    (said,) = run.of(Fate.NOT_MODELLED)
    assert said.says.startswith("Frames are resized to this area before qwen3_vl's processor")


@pytest.mark.parametrize(
    ("tool", "more", "line"),
    [
        ("llamafactory", {"max_pixels": 262_144}, "image_max_pixels: 262144"),
        ("llamafactory", {"freeze_vision": True}, "freeze_multi_modal_projector: false"),
        ("axolotl", {"max_pixels": 262_144}, "  max_pixels: 262144"),
        ("axolotl", {"freeze_vision": True, "freeze_projector": True}, "freeze_mm_modules: true"),
        ("trl", {"max_pixels": 262_144}, "    processing_class=processor,"),
    ],
)
def test_processor_limits_round_trip(tool, more, line):
    model = KNOWN[QWEN]
    keys = {**with_defaults_of(tool, {"model": QWEN, "method": "lora", "objective": "sft"}, model)}
    keys |= {"freeze_vision": False, "freeze_projector": False, "max_pixels": None, **more}
    keys |= {"lora_target_modules": "all-linear", "vision_gradient_checkpointing": None}
    away = files_of(tool, keys, model)
    assert line in away.files[away.main]
    assert "sft.yaml" not in away.files
    run = read_files({away.main: away.files[away.main]}, KNOWN)
    assert {key: run.setup.get(key) or False for key in more} == more

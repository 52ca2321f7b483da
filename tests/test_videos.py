"""Parts and patches of a video, as transformers' own processors make them, and the step with a video."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from estimator import estimate, images_of
from estimator.contract.setups import parse
from estimator.families.images import videos
from estimator.search.image_changes import image_changes
from estimator.values.specs import Phase
from tests.rows import for_each
from tests.test_vision import internvl, qwen2_5, qwen3, setup, smolvlm

# answers of transformers 5.23's real video processors for videos of black frames; empty: they raise
TABLE = Path(__file__).with_name("reference") / "video_tokens.csv"
ANSWERS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))


@for_each("row", ANSWERS)
def test_video_sizes_match_the_real_processor(row):
    limits: dict[str, Any] = {key: int(row[key]) for key in ("min_pixels", "max_pixels")}
    if row["cap_pixels_per_frame"] == "True":
        limits["cap_pixels_per_frame"] = True
    processor = getattr(videos, row["processor"])(**limits)
    size = int(row["frames"]), int(row["height"]), int(row["width"])
    if not row["patches"]:
        with pytest.raises(ValueError, match="is refused"):
            processor.video_tokens(*size)
        return
    parts = processor.video_tokens(*size)
    assert (len(parts), sum(part.patches for part in parts)) == (
        int(row["parts"]),
        int(row["patches"]),
    )


def video(config: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {**setup(config), "images_per_example": 0, "videos_per_example": 1, **keys}


# by hand: an InternVL frame is one tile of 256 tokens, a SmolVLM frame one of 64; 360 × 640 is 13 × 23 tokens of 28
# pixels for Qwen2.5-VL, 11 × 20 of 32 for Qwen3-VL, and two frames are one part
@pytest.mark.parametrize(
    ("config", "tokens", "markers"),
    [
        (qwen2_5(2), 4 * 299, 2),
        (qwen3(2), 4 * 220, 4 * 2),
        (internvl(2), 8 * 256, 8 * 2),
        (smolvlm(), 8 * 64, 8 * 3),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_eight_frames_become_the_tokens_counted_by_hand(config, tokens, markers):
    model, _, read = parse(video(config, video_frames=8))
    parts = images_of(model, read.images)
    assert sum(part.tokens for part in parts) == tokens
    assert sum(part.markers for part in parts) == markers
    assert read.batch.max_length == 64 + tokens + markers


def test_frames_as_images_take_the_memory_of_as_many_images():
    frames = estimate(*parse(video(internvl(2), video_frames=8)))
    images = setup(internvl(2), images_per_example=8, crop_to_patches=False)
    assert frames.peak.bytes == estimate(*parse(images)).peak.bytes


def test_the_tokens_part_of_gemma_4s_layer_inputs_gets_its_gradient_after_the_towers():
    # traced on transformers 5.23: the tower's backward is no higher than the loss's, as the table's gradient comes last
    keys = {"text_tokens": 256, "video_frames": 8, "video_height": 1080, "video_width": 1920}
    answer = estimate(*parse({**video({}), "model": "google/gemma-4-E2B-it", **keys}))
    assert answer.phases[Phase.BACKWARD].name.startswith("log-softmax backward")


def test_fewer_frames_are_offered():
    model, _, read = parse(video(qwen2_5(2), video_frames=32))
    change = next(image_changes(model, read))
    assert "videos are now 4,784 tokens of an example" in change.price  # 16 parts of 299
    assert change.options[0]["video_frames"] == 16

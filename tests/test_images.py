"""Tokens, markers, patches and tiles of one image, as computed by transformers' own processors."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from estimator.families.images import gemma, idefics3, pixtral, qwen_vl, tiles
from estimator.families.images.image import ImageProcessor
from tests.rows import for_each

PROCESSORS = {
    kind.__name__: kind
    for kind in (
        gemma.Gemma3ImageProcessor,
        gemma.Gemma4ImageProcessor,
        idefics3.Idefics3ImageProcessor,
        pixtral.PixtralImageProcessor,
        qwen_vl.Qwen2VLImageProcessor,
        tiles.InternVLImageProcessor,
        tiles.Llama4ImageProcessor,
    )
}
# answers of transformers 5.23's real processors (their own methods, without pixels); empty: they raise
TABLE = Path(__file__).with_name("reference") / "image_tokens.csv"
ANSWERS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))


def processor(name: str, settings: str) -> ImageProcessor:
    given = dict(pair.split("=") for pair in settings.split())
    return PROCESSORS[name](
        **{
            key: value == "True" if value in {"True", "False"} else int(value)
            for key, value in given.items()
        }
    )


@for_each(
    "row",
    ANSWERS,
)
def test_image_sizes_match_the_real_processor(row):
    asked = processor(row["processor"], row["settings"])
    size = int(row["height"]), int(row["width"])
    if not row["tokens"]:
        with pytest.raises(ValueError, match="crop it"):
            asked.image_tokens(*size)
        return
    answer = asked.image_tokens(*size)
    assert answer[:4] == tuple(int(row[key]) for key in ("tokens", "markers", "patches", "tiles"))


def test_glm_counts_the_area_of_two_frames():
    # by hand: 3,840 × 2,160 × 2 frames are 16.6 M pixels, more than the 11.76 M of the class: shrink by the root of
    # 16,588,800 / 11,760,000, then down to multiples of 28: 1,792 × 3,220, hence 64 × 115 tokens of four patches
    answer = qwen_vl.Glm4vImageProcessor().image_tokens(2160, 3840)
    assert (answer.height, answer.width) == (1792, 3220)
    assert answer.tokens == 64 * 115 == answer.patches / 4


def test_glm_enlarges_images_smaller_than_one_token():
    # 14 × 280 is doubled to 28 × 560; with two frames that is still above the minimum area of 112 × 112
    assert qwen_vl.Glm4vImageProcessor().image_tokens(14, 280).tokens == 20


def test_gemma_4_gives_a_very_thin_image_one_row_within_its_budget():
    # transformers 5.23, image_processing_gemma4.py, get_aspect_ratio_preserving_size: min(400, 2,520 / 9) squares
    answer = gemma.Gemma4ImageProcessor().image_tokens(1, 400)
    assert (answer.tokens, answer.height, answer.width) == (280, 48, 280 * 48)


# transformers 5.23's PixtralImageProcessor, run on such images: it raises where the shorter side becomes 0, though the
# processor's own count of tokens answers
@pytest.mark.parametrize(
    ("size", "tokens"),
    [((1, 1024), 64), ((1, 1025), None), ((3, 4096), None), ((4, 4096), 64), ((1920, 1), None)],
)
def test_an_image_is_refused_where_nothing_is_left_of_its_shorter_side(size, tokens):
    if tokens is None:
        with pytest.raises(ValueError, match="too thin"):
            pixtral.PixtralImageProcessor().image_tokens(*size)
    else:
        assert pixtral.PixtralImageProcessor().image_tokens(*size).tokens == tokens

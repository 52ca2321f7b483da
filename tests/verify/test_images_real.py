"""The sizes to which images are resized, compared with transformers' real functions.

Their modules import torchvision, which has no build for a CPU-only torch, so the functions are cut out of the source.
"""

from __future__ import annotations

import ast
import math
import random
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from estimator.families.images import gemma, idefics3, pixtral, qwen_vl, tiles

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
MODELS = Path(transformers.__file__).parent / "models"
DICE = random.Random(21)
SIZES = [(DICE.randint(20, 4000), DICE.randint(20, 4000)) for _ in range(150)] + [
    (DICE.randint(20, 60), DICE.randint(500, 3900)) for _ in range(50)
]


def functions(path: str) -> dict[str, Any]:
    """The functions of a module, without its imports."""
    tree = ast.parse((MODELS / path).read_text(encoding="utf-8"))
    wanted = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant))
    ]
    space: dict[str, Any] = {
        "math": math,
        "torch": torch,
        "lru_cache": lru_cache,
        "defaultdict": defaultdict,
    }
    space["get_image_size"] = lambda size, _: size
    code = "from __future__ import annotations\n" + "\n".join(ast.unparse(node) for node in wanted)
    exec(code, space)  # the library's own text, not a user's
    return space


@pytest.mark.parametrize(
    ("patch", "least", "most"), [(14, 3136, 12_845_056), (16, 65_536, 1_310_720)]
)
def test_qwen_sizes_match(patch, least, most):
    real = functions("qwen2_vl/image_processing_qwen2_vl.py")["smart_resize"]
    ours = qwen_vl.Qwen2VLImageProcessor(patch_size=patch, min_pixels=least, max_pixels=most)
    for size in SIZES:
        answer = ours.image_tokens(*size)
        assert (answer.height, answer.width) == real(*size, 2 * patch, least, most)


@pytest.mark.parametrize("family", ["glm4v", "glm46v"])
def test_glm_sizes_match(family):
    real = functions(f"{family}/image_processing_{family}.py")["smart_resize"]
    ours = qwen_vl.Glm4vImageProcessor()
    for size in [*SIZES, (10, 400), (3000, 16)]:
        answer = ours.image_tokens(*size)
        expected = real(2, *size, 2, 28, ours.min_pixels, ours.max_pixels)
        assert (answer.height, answer.width) == expected


@pytest.mark.parametrize("budget", [70, 280, 1120])
def test_gemma_4_sizes_match(budget):
    real = functions("gemma4/image_processing_gemma4.py")["get_aspect_ratio_preserving_size"]
    ours = gemma.Gemma4ImageProcessor(max_soft_tokens=budget)
    for size in SIZES:
        answer = ours.image_tokens(*size)
        assert (answer.height, answer.width) == real(*size, 16, 9 * budget, 3)


@pytest.mark.parametrize("most", [4, 12])
def test_internvl_sizes_match(most):
    real = functions("got_ocr2/image_processing_got_ocr2.py")["get_optimal_tiled_canvas"]
    ours = tiles.InternVLImageProcessor(max_patches=most)
    for size in SIZES:
        assert ours.grid(*size) == real(size, (448, 448), 1, most)


@pytest.mark.parametrize("most", [4, 16])
def test_llama_4_sizes_match(most):
    real = functions("llama4/image_processing_llama4.py")
    square = SimpleNamespace(height=336, width=336)
    canvases = torch.tensor(real["find_supported_resolutions"].__wrapped__(most, square))
    ours = tiles.Llama4ImageProcessor(max_patches=most)
    for size in SIZES:
        best = real["get_best_fit"](size, canvases)
        assert ours.canvas(*size) == tuple(int(side) // 336 for side in best)


@pytest.mark.parametrize(("tile", "longest"), [(364, 1456), (512, 2048)])
def test_idefics_3_sizes_match(tile, longest):
    real = functions("idefics3/image_processing_idefics3.py")
    ours = idefics3.Idefics3ImageProcessor(tile=tile, longest_edge=longest)
    for size in SIZES:
        resized = real["_resize_output_size_rescale_to_max_len"](*size, max_len=longest)
        high, wide = real["_resize_output_size_scale_below_upper_bound"](*resized, max_len=4096)
        assert ours.splits(*size) == (math.ceil(high / tile), math.ceil(wide / tile))


@pytest.mark.parametrize(("patch", "merge", "longest"), [(16, 1, 1024), (14, 2, 1540)])
def test_pixtral_sizes_match(patch, merge, longest):
    real = functions("pixtral/image_processing_pixtral.py")["get_resize_output_image_size"]
    ours = pixtral.PixtralImageProcessor(
        patch_size=patch, spatial_merge_size=merge, longest_edge=longest
    )
    for size in SIZES:
        answer = ours.image_tokens(*size)
        assert (answer.height, answer.width) == real(size, (longest, longest), (patch * merge,) * 2)

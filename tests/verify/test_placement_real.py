"""Device maps, compared with accelerate and transformers module by module on the meta device.

Expected maps come from accelerate 1.15, transformers 5.23 and bitsandbytes 0.50, run here. Those of ``CASES`` are in
tests/reference/placements.jsonl, so that tests/test_placement.py checks them without torch.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from test_parameters_meta import IDS, SMALL, TIED, VARIANTS, build

from benchmarks.gpu.configs import config_of
from estimator import catalog
from estimator.parallel.placement import (
    Balance,
    Packing,
    from_pretrained_device_map,
    infer_auto_device_map,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
pytest.importorskip("bitsandbytes")

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "reference" / "placements.jsonl"
CAUSAL, SEEING = "AutoModelForCausalLM", "AutoModelForImageTextToText"

# Without a GPU accelerate warns that device 0 is missing and that no GPU has room for offloaded buffers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Current model requires .* bytes of buffer:UserWarning"),
]


def _case(model: str, max_memory: dict[str, int | str], **keys: object) -> dict[str, object]:
    return {"model": model, "max_memory": max_memory, **keys}


def _seeing(model: str, max_memory: dict[str, int | str], **keys: object) -> dict[str, object]:
    return _case(model, max_memory, model_class="image_text", **keys)


TWO_24 = {"0": "24GiB", "1": "24GiB"}
FOUR_24 = {str(gpu): "24GiB" for gpu in range(4)}
FOUR_80 = {str(gpu): "80GiB" for gpu in range(4)}

CASES = [
    # tied and untied heads
    _case("openai-community/gpt2", {"0": "150MiB", "1": "200MiB", "cpu": "1GiB"}),
    _case("openai-community/gpt2-xl", {"0": "1GB", "1": "1GB", "2": "2GB"}, dtype="float32"),
    _case("meta-llama/Meta-Llama-3-8B", TWO_24),
    _case("meta-llama/Meta-Llama-3-8B", {"0": "10GiB", "1": "10GiB", "cpu": "64GiB"}),
    _case("Qwen/Qwen2.5-0.5B", {"0": "700MiB", "1": "700MiB"}),
    _case("HuggingFaceTB/SmolLM3-3B", {"0": "4GiB", "cpu": "8GiB"}, dtype="float16"),
    _case("google/gemma-2-9b", {"0": "8GiB", "1": "16GiB"}),
    # uneven cards, in bytes, in bits, and one that is full
    _case("meta-llama/Llama-2-7b-hf", {"0": "6GiB", "1": "24GiB"}),
    _case("meta-llama/Llama-2-13b-hf", {"0": 9_000_000_000, "1": "40Gb", "2": "20gb"}),
    _case("mistralai/Mistral-7B-v0.1", {"0": 0, "1": "12GiB", "2": "12GiB"}),
    # no room: smaller than the embedding or than a layer; the rest on the CPU and the disk
    _case("google/gemma-2-9b", {"0": "1GiB", "1": "24GiB", "cpu": "64GiB"}),
    _case("meta-llama/Meta-Llama-3-8B", {"0": "100MiB", "1": "300MiB", "cpu": "64GiB"}),
    _case("mistralai/Mistral-7B-v0.1", {"0": "5GiB", "cpu": "4GiB"}),
    _case("mistralai/Mistral-7B-v0.1", {"cpu": "4GiB", "disk": "1GiB"}),
    _case("meta-llama/Llama-2-70b-hf", {**FOUR_24, "cpu": "32GiB"}),
    # layers that may be split, and other classes that may not; other dtypes
    _case("EleutherAI/pythia-1.4b", {"0": "1GiB", "1": "2GiB"}, no_split_module_classes=[]),
    _case(
        "Qwen/Qwen3-0.6B",
        {"0": "900MiB", "1": "900MiB"},
        no_split_module_classes=["Qwen3Attention", "Qwen3MLP"],
    ),
    _case("Qwen/Qwen3-30B-A3B", {"0": "20GiB", "1": "48GiB"}, no_split_module_classes=[]),
    _case("meta-llama/Meta-Llama-3-8B", {"0": "5GiB", "cpu": "6GiB"}, dtype="int8"),
    _case("meta-llama/Meta-Llama-3-8B", {"0": "3GiB", "1": "3GiB"}, dtype="int4"),
    # mixtures of experts
    _case("mistralai/Mixtral-8x7B-v0.1", {"0": "24GiB", "1": "40GiB", "2": "48GiB"}),
    _case("allenai/OLMoE-1B-7B-0924", {"0": "6GiB", "1": "6GiB", "cpu": "16GiB"}),
    _case("Qwen/Qwen2-57B-A14B", FOUR_80, device_map="auto"),
    _case("mistralai/Mixtral-8x7B-v0.1", FOUR_80, device_map="auto", load_in_4bit=True),
    # other families
    _case("facebook/opt-350m", {"0": "300MiB", "cpu": "1GiB"}),
    _case("facebook/opt-6.7b", {"0": "5GiB", "1": "9GiB"}),
    _case("bigscience/bloom-7b1", {"0": "8GiB", "1": "9GiB"}),
    _case("tiiuae/falcon-40b", {**FOUR_24, "cpu": "16GiB"}),
    _case("EleutherAI/gpt-j-6b", {"0": "8GiB", "cpu": "16GiB"}),
    _case("EleutherAI/gpt-neox-20b", {"0": "20GiB", "1": "24GiB"}),
    _case("mosaicml/mpt-7b", {"0": "6GiB", "1": "10GiB"}),
    _case("microsoft/phi-2", {"0": "3GiB", "1": "3GiB"}),
    _case("microsoft/phi-4", {"0": "16GiB", "1": "16GiB"}),
    _case("stabilityai/stablelm-2-12b", {"0": "12GiB", "1": "16GiB"}),
    _case("CohereLabs/aya-expanse-8b", {"0": "9GiB", "1": "9GiB"}),
    _case("zai-org/GLM-4-9B-0414", {"0": "9GiB", "1": "12GiB"}),
    # the named values of device_map, in both libraries
    _case("meta-llama/Meta-Llama-3-8B", FOUR_24, device_map="auto"),
    _case("meta-llama/Meta-Llama-3-8B", FOUR_24, device_map="auto", library="accelerate"),
    _case("google/gemma-2-9b", FOUR_24, device_map="balanced_low_0"),
    _case("google/gemma-2-9b", FOUR_24, device_map="balanced_low_0", library="accelerate"),
    _case("Qwen/Qwen2.5-7B", FOUR_24, device_map="sequential", dtype="float32"),
    _case("allenai/OLMo-1B-hf", {"0": "1GiB", "1": "1GiB", "cpu": "4GiB"}, device_map="auto"),
    _case("meta-llama/Llama-2-70b-hf", TWO_24, device_map="auto", load_in_4bit=True),
    _case("allenai/OLMo-1B-hf", {"0": "1GiB", "1": "1GiB"}, device_map="auto", load_in_4bit=True),
    _case("tiiuae/falcon-7b", TWO_24, device_map="auto", load_in_8bit=True),
    _case("openai-community/gpt2-xl", TWO_24, device_map="balanced", load_in_8bit=True),
    # vision towers: whole or split, balanced, packed, and beside a tied head
    _seeing("Qwen/Qwen2.5-VL-7B-Instruct", {"0": "10GiB", "1": "10GiB"}),
    _seeing("Qwen/Qwen2.5-VL-7B-Instruct", {"0": "1GiB", "1": "24GiB"}, device_map="sequential"),
    _seeing("Qwen/Qwen2.5-VL-72B-Instruct", TWO_24, device_map="auto", load_in_4bit=True),
    _seeing("Qwen/Qwen3-VL-2B-Instruct", {"0": "700MiB", "1": "2GiB", "2": "4GiB"}),
    _seeing("Qwen/Qwen3-VL-30B-A3B-Instruct", FOUR_24, device_map="auto"),
    _seeing("google/gemma-3-12b-it", TWO_24, device_map="auto"),
    _seeing("google/gemma-3-27b-it", TWO_24, device_map="auto", load_in_8bit=True),
    _seeing("google/gemma-3-4b-it", {"0": "600MiB", "1": "24GiB"}, no_split_module_classes=[]),
    _seeing("OpenGVLab/InternVL3-8B-hf", {"0": "500MiB", "1": "9GiB", "cpu": "16GiB"}),
    _seeing("mistralai/Mistral-Small-3.1-24B-Instruct-2503", FOUR_24, device_map="balanced_low_0"),
    _seeing("mistral-community/pixtral-12b", TWO_24, device_map="auto"),
    _seeing("HuggingFaceTB/SmolVLM2-2.2B-Instruct", {"0": "500MiB", "1": "2GiB", "2": "4GiB"}),
    _seeing("HuggingFaceM4/Idefics3-8B-Llama3", {"0": "600MiB", "1": "24GiB"}),
    _seeing("meta-llama/Llama-4-Scout-17B-16E-Instruct", FOUR_80, device_map="auto"),
    _seeing(
        "meta-llama/Llama-4-Scout-17B-16E-Instruct", {"0": "1GiB", "1": "80GiB", "2": "160GiB"}
    ),
]


@contextmanager
def _in_bfloat16() -> Iterator[None]:
    """As ``from_pretrained`` builds a skeleton: on the meta device, in the requested dtype."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def _skeleton(config: Any, dtype: str = "float32", made_by: str = CAUSAL) -> Any:
    with torch.device("meta"):
        return getattr(transformers, made_by).from_config(config, dtype=getattr(torch, dtype))


def seeing_config(model: str) -> Any:
    """The config of a checkpoint with a tower: its text's, and what data/towers.csv has of the tower."""
    with (ROOT / "data" / "towers.csv").open(encoding="utf-8") as table:
        row = next(row for row in csv.DictReader(table) if row["hub_id"] == model)
    text = config_of(catalog.model(model))
    others = json.loads(row["other_keys"] or "{}") | {
        "text_config": text,
        "vision_config": json.loads(row["vision_config"]),
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    return transformers.AutoConfig.for_model(row["model_type"], **others)


def packed(config: Any, packing: str, made_by: str = CAUSAL) -> tuple[Any, Any]:
    """A skeleton in bfloat16 whose linears bitsandbytes has replaced, and the quantiser."""
    from transformers.quantizers import AutoHfQuantizer

    wanted = transformers.BitsAndBytesConfig(**{packing: True})
    quantizer = AutoHfQuantizer.from_config(wanted)
    with _in_bfloat16():
        real = getattr(transformers, made_by).from_config(config, dtype=torch.bfloat16)
        quantizer.preprocess_model(
            model=real,
            dtype=torch.bfloat16,
            device_map="auto",
            checkpoint_files=None,
            use_kernels=False,
        )
    return real, quantizer


def accelerates(
    real: Any, limits: dict[Any, Any], dtype: str, classes: list[str], balance: Balance
) -> dict[str, Any]:
    of_dtype = accelerate.utils.CustomDtype.INT4 if dtype == "int4" else getattr(torch, dtype)
    keys = {"no_split_module_classes": classes, "dtype": of_dtype}
    limits = dict(limits)
    if balance is not Balance.SEQUENTIAL:
        low_zero = balance is Balance.BALANCED_LOW_0
        limits = accelerate.utils.get_balanced_memory(
            real, max_memory=limits, low_zero=low_zero, **keys
        )
    return dict(accelerate.infer_auto_device_map(real, max_memory=limits, **keys))


def transformers_own(
    real: Any, limits: dict[Any, Any], balance: Balance, quantizer: Any = None
) -> dict[str, Any]:
    from transformers.integrations.accelerate import _get_device_map

    return dict(_get_device_map(real, balance.value, dict(limits), quantizer))


def real_map(request: dict[str, Any]) -> dict[str, Any]:
    sees = request.get("model_class") == "image_text"
    made_by = SEEING if sees else CAUSAL
    if sees:
        config = seeing_config(request["model"])
    else:
        config = transformers.AutoConfig.for_model(**config_of(catalog.model(request["model"])))
    limits = {
        int(name) if name.isdigit() else name: limit
        for name, limit in request["max_memory"].items()
    }
    dtype, word = request.get("dtype", "bfloat16"), request.get("device_map")
    balance = Balance(word) if word else Balance.SEQUENTIAL
    if word and "library" not in request:
        packing = next((name for name in Packing if request.get(name)), None)
        if packing:
            real, quantizer = packed(config, packing, made_by)
            return transformers_own(real, limits, balance, quantizer)
        return transformers_own(_skeleton(config, dtype, made_by), limits, balance)
    real = _skeleton(config, made_by=made_by)
    classes = request.get("no_split_module_classes", list(real._no_split_modules))
    return accelerates(real, limits, dtype, classes, balance)


@pytest.mark.skipif("UPDATE_GOLDEN" not in os.environ, reason="writes the file of golden maps")
def test_golden_maps_are_written():
    lines = [json.dumps({"request": request, "map": real_map(request)}) for request in CASES]
    GOLDEN.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i]['model']}")
def test_golden_map_is_what_the_library_infers(index):
    kept = json.loads(GOLDEN.read_text(encoding="utf-8").splitlines()[index])
    assert kept["request"] == CASES[index]
    assert kept["map"] == real_map(CASES[index])


def _limits(chance: Random, total: int) -> dict[Any, int]:
    """Up to four GPUs, some with no memory, some too small for a layer, and a CPU that may be too small."""
    shares = (0, 0.02, 0.1, 0.3, 0.5, 0.8, 1.3)
    limits: dict[Any, int] = {
        gpu: int(total * chance.choice(shares) * chance.uniform(0.5, 1.5))
        for gpu in range(chance.choice((0, 1, 1, 2, 3, 4)))
    }
    if not limits or chance.random() < 0.7:
        limits["cpu"] = int(total * chance.uniform(0, 1.2))
    return limits


@pytest.mark.parametrize(
    ("model_type", "keys"), [*VARIANTS, ("olmo", SMALL | TIED)], ids=[*IDS, "olmo-tied"]
)
def test_every_family_is_placed_as_by_the_libraries(model_type, keys):
    real, model = build(model_type, keys)
    chance = Random(model_type)
    total = accelerate.utils.compute_module_sizes(real)[""]
    # Gemma 4's towers also have named layers, which the text part lacks
    own = sorted(real._no_split_modules & {type(module).__name__ for module in real.modules()})
    inner = [type(module).__name__ for module in real.modules() if any(module.children())][-1:]
    skeletons = {dtype: _skeleton(real.config, dtype) for dtype in ("float32", "bfloat16")}
    quantisers = {
        packing: packed(build(model_type, keys)[0].config, packing) for packing in Packing
    }
    for _ in range(4):
        limits = _limits(chance, total)
        dtype, classes = (
            chance.choice(("float32", "float16", "int8")),
            chance.choice((own, [], inner)),
        )
        for balance in Balance:
            said = infer_auto_device_map(
                model, limits, dtype=dtype, no_split_module_classes=classes, balance=balance
            )
            assert said == accelerates(real, limits, dtype, classes, balance), (limits, balance)
        for balance in Balance:
            for dtype, skeleton in skeletons.items():
                said = from_pretrained_device_map(model, limits, dtype=dtype, balance=balance)
                assert said == transformers_own(skeleton, limits, balance), (limits, balance)
            for packing, (skeleton, quantizer) in quantisers.items():
                if model_type == "llama4_text":
                    with pytest.raises(ValueError, match="splits Llama 4's stacked experts"):
                        from_pretrained_device_map(model, limits, balance=balance, packing=packing)
                    continue
                try:
                    theirs = transformers_own(skeleton, limits, balance, quantizer)
                except ValueError:
                    with pytest.raises(ValueError, match="transformers refuses modules on the CPU"):
                        from_pretrained_device_map(model, limits, balance=balance, packing=packing)
                else:
                    assert theirs == from_pretrained_device_map(
                        model, limits, balance=balance, packing=packing
                    ), (limits, balance)

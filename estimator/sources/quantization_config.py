"""How a checkpoint stores its weights, read from the ``quantization_config`` of its config.

Keys and defaults are those of transformers 5.23, utils/quantization_config.py, and of the formats' own libraries.
Regular expressions in a config are never run; modules to skip are matched by parts of their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from estimator.values.kinds import WholeNumber
from estimator.values.quantization import Quantization, Scales, StorageRule
from estimator.values.refusals import InputError, about, show

QUANT_STORAGES = ("uint8", "int8", "float16", "bfloat16", "float32", "float64")
"""Storage dtypes of 4-bit weights: transformers 5.23, utils/quantization_config.py, ``BitsAndBytesConfig``."""


def quantization_of(config: Mapping[str, object]) -> Quantization | None:
    """How the weights of this ``config.json`` are stored; None where they are plain floats.

    Raises ``ValueError`` for values that no library accepts.

    >>> quantization_of({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}).name
    'GPTQ 4-bit'
    """
    given = _first_object(config, "quantization_config", "compression_config")
    if not given:
        return None
    return _read(given)


def _first_object(config: Mapping[str, object], *names: str) -> Mapping[str, object]:
    texts = config.get("text_config")
    places = [config, texts] if isinstance(texts, Mapping) else [config]
    found = [place[name] for place in places for name in names if place.get(name) is not None]
    if not found:
        return {}
    if not isinstance(found[0], Mapping):
        raise InputError(f"quantization_config must be an object, not {show(found[0])}.")
    return found[0]


def _read(given: Mapping[str, object]) -> Quantization | None:
    method = given.get("quant_method")
    if method is None and (given.get("load_in_4bit") or given.get("load_in_8bit")):
        method = "bitsandbytes"  # a BitsAndBytesConfig older than quant_method
    skipped = _skipped(given)
    match method:
        case "gptq":
            return _gptq(given, skipped)
        case "awq":
            bits = _whole(given, "bits", "w_bit", default=4, most=8)
            group = _group(given, "group_size", "q_group_size")
            return Quantization(
                name=f"AWQ {bits}-bit",
                storage=StorageRule.AWQ,
                config_class="AwqConfig",
                bits=bits,
                group_size=group,
                has_zero_points=True,
                skipped=skipped,
            )
        case "bitsandbytes":
            return _bitsandbytes(given, skipped)
        case "fp8":
            return _fp8(given, skipped)
        case "fbgemm_fp8":
            return Quantization(
                name="FBGEMM FP8",
                storage=StorageRule.FP8,
                config_class="FbgemmFp8Config",
                bits=8,
                scales=Scales.ROW,
                skipped=skipped,
            )
        case "mxfp4":
            return Quantization(
                name="MXFP4",
                storage=StorageRule.MXFP4,
                config_class="Mxfp4Config",
                can_dequantize=True,
                bits=4,
                group_size=32,
                skipped=skipped,
            )
        case "compressed-tensors":
            return _compressed(given, skipped)
        case str():
            return Quantization(name=show(method), storage=None, skipped=skipped)
        case _:
            raise InputError(f"quant_method must be a name such as gptq, not {show(method)}.")


def _gptq(given: Mapping[str, object], skipped: frozenset[str]) -> Quantization:
    bits = _whole(given, "bits", default=4, most=8)
    return Quantization(
        name=f"GPTQ {bits}-bit",
        storage=StorageRule.GPTQ,
        config_class="GPTQConfig",
        bits=bits,
        group_size=_group(given, "group_size"),
        has_zero_points=True,
        quantized_head=given.get("lm_head") is True,
        skipped=skipped,
    )


def _bitsandbytes(given: Mapping[str, object], skipped: frozenset[str]) -> Quantization | None:
    if given.get("load_in_4bit") is True:
        return Quantization(
            name="bitsandbytes 4-bit",
            storage=StorageRule.BNB_4BIT,
            config_class="BitsAndBytesConfig",
            bits=4,
            double_quant=given.get("bnb_4bit_use_double_quant") is True,
            quant_type=_word(given, "bnb_4bit_quant_type", ("fp4", "nf4")),
            quant_storage=_word(given, "bnb_4bit_quant_storage", QUANT_STORAGES),
            skipped=skipped,
        )
    if given.get("load_in_8bit") is True:
        return Quantization(
            name="bitsandbytes 8-bit",
            storage=StorageRule.BNB_8BIT,
            config_class="BitsAndBytesConfig",
            bits=8,
            skipped=skipped,
        )
    return None  # saved with both load_in_4bit and load_in_8bit off


def _fp8(given: Mapping[str, object], skipped: frozenset[str]) -> Quantization:
    block = given.get("weight_block_size", [128, 128])  # FineGrainedFP8Config's default
    return Quantization(
        name="FP8",
        storage=StorageRule.FP8,
        config_class="FineGrainedFP8Config",
        can_dequantize=True,
        bits=8,
        scales=Scales.TENSOR if block is None else Scales.BLOCK,
        block=(128, 128) if block is None else _block(block, "weight_block_size"),
        skipped=skipped,
    )


def _compressed(given: Mapping[str, object], skipped: frozenset[str]) -> Quantization:
    """compressed-tensors with one scheme for all linears. With several, sizes come from the file headers instead."""
    groups = given.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, Mapping) else []
    first = schemes[0] if schemes else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    named = given.get("format")
    unknown = Quantization(
        name=f"compressed-tensors {named}" if isinstance(named, str) else "compressed-tensors",
        storage=None,
        skipped=skipped,
    )
    if len(schemes) != 1 or not isinstance(weights, Mapping):
        return unknown
    bits = _whole(weights, "num_bits", default=8, most=8)
    strategy = weights.get("strategy", "tensor")
    kinds = {
        "float-quantized": StorageRule.FP8,
        "naive-quantized": StorageRule.FP8 if weights.get("type") == "float" else StorageRule.INT8,
        "int-quantized": StorageRule.INT8,
        "pack-quantized": StorageRule.PACKED,
    }
    if not isinstance(named, str) or named not in kinds or strategy not in list(Scales):
        return unknown
    scales = Scales(str(strategy))
    return Quantization(
        name=f"compressed-tensors {'FP8' if kinds[named] is StorageRule.FP8 else f'{bits}-bit'}",
        storage=kinds[named],
        config_class="CompressedTensorsConfig",
        can_dequantize=True,
        bits=bits,
        group_size=_group(weights, "group_size") if scales is Scales.GROUP else 0,
        scales=scales,
        block=_block(weights.get("block_structure"), "block_structure")
        if scales is Scales.BLOCK
        else (128, 128),
        scale_bytes=2,  # scales in the model's own dtype
        has_zero_points=weights.get("symmetric") is False,
        skipped=skipped,
    )


def _word(given: Mapping[str, object], name: str, words: tuple[str, ...]) -> str:
    """One of the given words; the first is bitsandbytes' default."""
    value = given.get(name) or words[0]
    if value not in words:
        raise InputError(f"{name} must be one of {', '.join(words)}, not {show(value)}.")
    return str(value)


def _whole(given: Mapping[str, object], *names: str, default: int, most: int) -> int:
    name = next((name for name in names if given.get(name) is not None), None)
    if name is None:
        return default
    try:
        read = WholeNumber(most).read(given[name])
    except ValueError as problem:
        raise about(name, problem) from None
    assert isinstance(read, int)
    return read


def _group(given: Mapping[str, object], *names: str) -> int:
    """Weights per scale. GPTQ and AWQ write -1 for a whole row."""
    if any(given.get(name) == -1 for name in names):
        return 0
    return _whole(given, *names, default=128, most=10**6)


def _block(value: object, name: str) -> tuple[int, int]:
    sizes = (
        [one for one in value if type(one) is int and one > 0] if isinstance(value, list) else []
    )
    if len(sizes) != 2 or not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{name} must be two whole numbers such as [128, 128], not {show(value)}.")
    return sizes[0], sizes[1]


def _skipped(given: Mapping[str, object]) -> frozenset[str]:
    keys = ("modules_to_not_convert", "llm_int8_skip_modules", "ignored_layers", "ignore")
    listed = [given[key] for key in keys if isinstance(given.get(key), list)]
    names = [name for names in listed if isinstance(names, list) for name in names]
    return frozenset(_from_layers(name) for name in names if isinstance(name, str))


def _from_layers(name: str) -> str:
    """A module's name starting at its layer, since prefixes differ between families and wrappers.

    >>> _from_layers("model.language_model.layers.3.mlp"), _from_layers("transformer.h.3.attn"), _from_layers("lm_head")
    ('layers.3.mlp', 'layers.3.attn', 'lm_head')
    """
    found = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,4}(?:\.[^ ]*)?)$", name[:300])
    return f"layers.{found[1]}" if found else name

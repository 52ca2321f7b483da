"""Bytes of a checkpoint's weights as stored, with one rule per quantised format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from estimator.families.adapters import is_quantized
from estimator.families.model_tree import layer_modules, outer_modules
from estimator.families.modules import Bare, Linear, Module, weight_shapes
from estimator.families.packed import FLOAT32_BYTES, NESTED_BLOCK, QUANTIZATION_BLOCK
from estimator.values.arithmetic import ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.quantization import Quantization, Scales, StorageRule
from estimator.values.refusals import InputError
from estimator.values.specs import Model

MXFP4_BLOCK = 32
"""Weights that share one exponent: OCP Microscaling Formats (MX) v1.0, table 1."""
INT32_BITS = 32


def stored_bytes(model: Model, quantization: Quantization | None, width: int = 2) -> int:
    """Bytes of the whole model's weights in its files; ``width``: bytes of an unquantised element.

        Σ width · elements of that width, see ``stored_elements``

    Leaves out: the files' headers; buffers that some checkpoints carry (rotary frequencies, GPTQ's zero biases).
    Error: below 0.1 %, from what is left out; tests/test_stored.py compares it with published files.
    Source: derived, from ``stored_elements``.

    >>> from estimator.families.model_tree import total_parameters
    >>> from estimator.families.modules import TINY_LLAMA
    >>> stored_bytes(TINY_LLAMA, None) == 2 * total_parameters(TINY_LLAMA)
    True
    """
    return sum(size * count for size, count in stored_elements(model, quantization, width).items())


def checkpoint_bytes(model: Model) -> int | None:
    """Bytes of the checkpoint's weight files, which are downloaded to disk (whole job).

    None if the files' dtype or format is unknown. Leaves out and error: as ``stored_bytes``.
    Source: derived, from ``stored_bytes``.

    >>> from dataclasses import replace
    >>> from estimator.families.model_tree import total_parameters
    >>> from estimator.families.modules import TINY_LLAMA
    >>> checkpoint_bytes(replace(TINY_LLAMA, stored_width=2)) == 2 * total_parameters(TINY_LLAMA)
    True
    """
    is_unknown = model.quantization is not None and model.quantization.storage is None
    if is_unknown or not model.stored_width:
        return None
    return stored_bytes(model, model.quantization, model.stored_width)


def stored_elements(
    model: Model, quantization: Quantization | None, width: int = 2
) -> Mapping[int, int]:
    """Elements in the files, of the whole model, by their width in bytes.

    Every linear and stack of experts in the layers is quantised, unless the config excludes it; MXFP4 quantises only
    experts. Embeddings, norms, biases and (unless the config says otherwise) the head keep ``width``.

    Leaves out: as ``stored_bytes``.
    Source: derived, from ``matrix_elements``; transformers 5.23, quantizers/base.py, ``get_keys_to_not_convert``.
    """
    counted: Counter[int] = Counter()
    for name, module in _modules(model):
        shapes = weight_shapes(module)
        if quantization is not None and _is_quantized(name, module, quantization):
            *stack, rows, columns = _out_in(module)
            for size, count in matrix_elements(quantization, rows, columns).items():
                counted[size] += count * elements(tuple(stack))
            shapes = shapes[1:]
        counted[width] += sum(elements(shape) for shape in shapes)
    return counted


def matrix_elements(quantization: Quantization, rows: int, columns: int) -> Mapping[int, int]:
    """Elements that store one weight matrix [rows (out), columns (in)], by their width in bytes.

    ======  ==========================================================================================
    GPTQ    int32 weights in·out·b/32; for each group of g inputs a float16 scale and b bits of zero point an
            output, in int32; an int32 group index an input
    AWQ     as GPTQ, without the group index
    bnb 4   uint8 in·out/2; a float32 absmax for 64 weights, or with double quantisation a uint8 each and a float32
            for 256 of those, with a code book of 256 float32; the code of the 16 values
    bnb 8   int8 in·out; a float32 an output
    FP8     one byte a weight; a scale for each block, row or tensor
    MXFP4   uint8 in·out/2; a uint8 exponent for 32 weights
    packed  int32 in·out·b/32, rows rounded up; a scale for each group or row, zero points alike; the shape, int64
    ======  ==========================================================================================

    Leaves out: bitsandbytes' packed JSON of each quant state (below 200 bytes a matrix).
    Source: AutoGPTQ nn_modules/qlinear/qlinear_cuda.py, ``QuantLinear.__init__``; AutoAWQ awq/modules/linear/gemm.py,
    ``WQLinear_GEMM.__init__``; bitsandbytes 0.50, functional.py, ``QuantState.as_dict``; transformers 5.23,
    integrations/finegrained_fp8.py, ``FP8Linear``, fbgemm_fp8.py, ``FbgemmFp8Linear``, and mxfp4.py,
    ``Mxfp4GptOssExperts``; compressed-tensors, compressors/pack_quantized.

    >>> gptq = Quantization(name="GPTQ", storage=StorageRule.GPTQ, bits=4, group_size=128)
    >>> dict(matrix_elements(gptq, 4096, 4096)) == {4: 4096 * 512 + 32 * 512 + 4096, 2: 32 * 4096}
    True
    """
    match quantization.storage:
        case StorageRule.GPTQ | StorageRule.AWQ:
            return _int32_packed(quantization, rows, columns)
        case StorageRule.BNB_4BIT:
            return _bnb_4bit(quantization, rows * columns)
        case StorageRule.BNB_8BIT:
            return {1: rows * columns, FLOAT32_BYTES: rows}
        case StorageRule.MXFP4:
            return {1: ceil_div(rows * columns, 2) + rows * ceil_div(columns, MXFP4_BLOCK)}
        case StorageRule.PACKED:
            return _compressed_packed(quantization, rows, columns)
        case StorageRule.FP8 | StorageRule.INT8:
            scales = _scales(quantization, rows, columns)
            return Counter({1: rows * columns}) + Counter({quantization.scale_bytes: scales})
        case None:
            raise InputError(
                f"how {quantization.name} stores a matrix is unknown here; use the size of the files."
            )


def _int32_packed(quantization: Quantization, rows: int, columns: int) -> Mapping[int, int]:
    bits = quantization.bits
    groups = ceil_div(columns, quantization.group_size or columns)
    weights = columns * bits * rows // INT32_BITS
    zero_points = groups * (rows * bits // INT32_BITS)
    index = columns if quantization.storage is StorageRule.GPTQ else 0
    return {4: weights + zero_points + index, 2: groups * rows}


def _bnb_4bit(quantization: Quantization, count: int) -> Mapping[int, int]:
    blocks = ceil_div(count, QUANTIZATION_BLOCK)
    packed = ceil_div(count, 2)
    if not quantization.double_quant:
        return {1: packed, FLOAT32_BYTES: blocks + 16}
    return {1: packed + blocks, FLOAT32_BYTES: ceil_div(blocks, NESTED_BLOCK) + 256 + 16}


def _compressed_packed(quantization: Quantization, rows: int, columns: int) -> Mapping[int, int]:
    words = rows * ceil_div(columns * quantization.bits, INT32_BITS)
    scales = _scales(quantization, rows, columns)
    zero_points = 0
    if quantization.has_zero_points:
        zero_points = ceil_div(rows * quantization.bits, INT32_BITS) * (scales // rows)
    return {4: words + zero_points, 2: scales, 8: 2}


def _scales(quantization: Quantization, rows: int, columns: int) -> int:
    match quantization.scales:
        case Scales.TENSOR:
            return 1
        case Scales.ROW:
            return rows
        case Scales.GROUP:
            return rows * ceil_div(columns, quantization.group_size or columns)
        case Scales.BLOCK:
            height, width = quantization.block
            return ceil_div(rows, height) * ceil_div(columns, width)


def modules_packed_otherwise(model: Model, adapters: Adapters) -> Iterator[str]:
    """Modules packed in the checkpoint that bitsandbytes would not pack under this setup, or the reverse.

    Source: derived, from the checkpoint's ``llm_int8_skip_modules`` and ``is_quantized``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> from estimator.values.methods import Method
    >>> list(modules_packed_otherwise(TINY_LLAMA, Adapters(method=Method.QLORA)))[0]
    'layers.0.self_attn.q_proj'
    """
    for name, module in _modules(model):
        stored = model.quantization is not None and _is_quantized(name, module, model.quantization)
        if stored != is_quantized(module, adapters):
            yield name


def _modules(model: Model) -> Iterator[tuple[str, Module]]:
    """Every module with its name starting at its layer."""
    yield from ((module.name, module) for module in outer_modules(model))
    for index in range(model.num_hidden_layers):
        for module in layer_modules(model, index):
            yield f"layers.{index}.{module.name}", module


def _is_quantized(name: str, module: Module, quantization: Quantization) -> bool:
    is_stack = _is_stack(module)
    if quantization.storage is None or not (isinstance(module, Linear) or is_stack):
        return False
    if quantization.storage is StorageRule.MXFP4 and not is_stack:
        return False
    if not name.startswith("layers.") and not (name == "lm_head" and quantization.quantized_head):
        return False
    return not (quantization.skipped and _parts(name) & quantization.skipped)


def _is_stack(module: Module) -> bool:
    """All experts of a layer in one tensor [experts, out, in]; the files may hold them separately."""
    return len(weight_shapes(module)[:1]) == 1 and len(weight_shapes(module)[0]) == 3


def _out_in(module: Module) -> tuple[int, ...]:
    if isinstance(module, Linear):
        return (module.out_features, module.in_features)
    if isinstance(module, Bare) and module.stack:
        return (module.stack, module.out_features, module.in_features)
    return weight_shapes(module)[0]


def _parts(name: str) -> frozenset[str]:
    """A module's name and every contiguous run of its parts, any of which a list of modules may contain.

    >>> sorted(_parts("layers.0.mlp"))
    ['0', '0.mlp', 'layers', 'layers.0', 'layers.0.mlp', 'mlp']
    """
    parts = name.split(".")
    starts = range(len(parts))
    return frozenset(
        ".".join(parts[start:end]) for start in starts for end in range(start + 1, len(parts) + 1)
    )

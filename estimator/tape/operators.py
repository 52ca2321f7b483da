"""One rule for each operator: what it allocates, what it saves for backward, what its backward allocates.

``n`` is a tensor's number of elements, ``T`` the tokens of the micro-batch. Only what a needed gradient reads is
saved: a product saves one factor if the other requires a gradient.

Source, where a rule names no other: torch 2.13, tools/autograd/derivatives.yaml (the inputs of backward functions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from estimator.tape.scratch import embedding_backward, rows_summed, softmax_backward
from estimator.tape.tape import ACTIVATIONS, LOGITS, Parameter, Tape, Tensor
from estimator.values.arithmetic import ceil_div

Gradients = list[Tensor | None]
INDEX_BYTES = 8
"""Indices and sort permutations are int64."""


def _gradient(gradients: Gradients) -> Tensor:
    gradient = gradients[0]
    assert gradient is not None
    return gradient


def alias(x: Tensor) -> Tensor:
    """The same tensor under a second owner."""
    return Tensor(x.elements, x.width, x.storage, is_view=x.is_view)


def permuted(x: Tensor) -> Tensor:
    """The same tensor as its operator saves it: transposed, so not contiguous."""
    other = Tensor(x.elements, x.width, x.storage, is_view=True)
    other.is_permuted = True
    return other


def _match(tape: Tape, gradient: Tensor, x: Tensor, *, sums_rows: bool = False) -> Tensor:
    """Reduce a gradient to its input's shape, then cast it to its dtype, as ``validate_outputs`` does.

    ``sums_rows``: the input is one row, which all others share.
    """
    tape.unpacked.clear()
    if gradient.elements != x.elements:
        rows = gradient.elements // x.elements
        gradient = tape.new(x.elements, gradient.width)
        if sums_rows:
            tape.scratch(rows_summed, rows, x.elements)
    if gradient.width != x.width:
        gradient = tape.new(x.elements, x.width)
    return gradient


def cast(tape: Tape, x: Tensor, width: int) -> Tensor:
    """``x.to(dtype)``: a copy of n elements, or ``x`` itself if the dtype is unchanged."""
    if x.width == width:
        return x
    tape.operation = "cast to float32" if width == 4 else "cast to 16 bits"
    from_width, elements = x.width, x.elements
    node = tape.begin("cast backward", [x], lambda t, g: [t.new(elements, from_width)])
    return tape.finish(node, tape.new(elements, width))


def elementwise(
    tape: Tape, x: Tensor, name: str, *, saves: str = "input", backward_copies: int = 1
) -> Tensor:
    """A kernel over n elements that saves its ``input``, its ``output`` or ``nothing``."""
    tape.operation = name
    elements, width = x.elements, x.width

    def backward(t: Tape, g: Gradients) -> Gradients:
        held = [t.new(elements, width) for _ in range(backward_copies)]
        return [held[-1]]

    node = tape.begin(f"{name} backward", [x], backward, [x] if saves == "input" else [])
    out = tape.new(elements, width)
    return tape.finish(node, out, [out] if saves == "output" else [])


def scale(tape: Tape, x: Tensor, name: str = "scale") -> Tensor:
    """Multiply by a number: a new tensor each way, nothing saved."""
    return elementwise(tape, x, name, saves="nothing")


def scale_in_place(tape: Tape, x: Tensor, *, by_tensor: bool = False) -> Tensor:
    """``x *= number``: no allocation in forward, one tensor in backward; a number held in a buffer is saved."""
    elements, width = x.elements, x.width
    saved = [Tensor(1, width, None)] if by_tensor else []
    node = tape.begin("scale backward", [x], lambda t, g: [t.new(elements, width)], saved)
    return tape.finish(node, tape.view(x))


def multiply_in_place(tape: Tape, x: Tensor, name: str, *, is_of_view: bool = False) -> Tensor:
    """``x *= noise``: saves the noise, as large as x; if x is a view, backward also copies the base's gradient.

    Source: torch 2.13, torch/csrc/autograd/functions/tensor.cpp, ``CopySlices::apply``.
    """
    tape.operation = name
    elements, width = x.elements, x.width

    def backward(t: Tape, g: Gradients) -> Gradients:
        around = [t.new(elements, width) for _ in range(2 * is_of_view)]
        product = t.new(elements, width)
        return [around[0] if is_of_view else product]

    noise = tape.new(elements, width)
    node = tape.begin(f"{name}, backward", [x], backward, [noise])
    return tape.finish(node, tape.view(x))


def add_number(tape: Tape, x: Tensor) -> Tensor:
    """Add a number: allocates the output; the gradient passes through."""
    tape.operation = "add"
    return tape.record(
        "add backward", tape.new(x.elements, x.width), [x], lambda t, g: [alias(_gradient(g))]
    )


def add(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """Sum of two tensors (broadcast): saves nothing; both inputs receive the same gradient."""
    tape.operation = "add"
    out = tape.new(max(a.elements, b.elements), max(a.width, b.width))

    def backward(t: Tape, g: Gradients) -> Gradients:
        gradient = _gradient(g)
        return [_match(t, alias(gradient), x) if needed else None for x, needed in shapes]

    shapes = [(_shape(a), a.requires_grad), (_shape(b), b.requires_grad)]
    return tape.record("add backward", out, [a, b], backward)


def _shape(x: Tensor) -> Tensor:
    """A tensor's size without its storage, for a closure that must not keep it alive."""
    return Tensor(x.elements, x.width, None)


def multiply(
    tape: Tape, a: Tensor, b: Tensor, name: str = "product", *, by_row: bool = False
) -> Tensor:
    """Product of two tensors (broadcast): saves each factor that the other's gradient needs.

    ``by_row``: the smaller is one row, by which every row of the other is multiplied.

    Backward: both gradients exist together at the width and size of the product, then each is reduced to its factor's
    shape.
    """
    tape.operation = name
    elements, width = max(a.elements, b.elements), max(a.width, b.width)
    shapes = [(_shape(a), a.requires_grad), (_shape(b), b.requires_grad)]

    def backward(t: Tape, g: Gradients) -> Gradients:
        # autograd computes the gradient of ``other`` before that of ``self``
        full: Gradients = [
            t.new(elements, width) if needed else None for _, needed in reversed(shapes)
        ]
        full.reverse()
        for position, (shape, _) in enumerate(shapes):
            gradient = full[position]
            if gradient is not None:
                full[position] = _match(t, gradient, shape, sums_rows=by_row)
            del gradient
        return full

    save = [b if a.requires_grad else None, a if b.requires_grad else None]
    node = tape.begin(f"{name} backward", [a, b], backward, save)
    return tape.finish(node, tape.new(elements, width))


def subtract(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """Difference of two tensors (broadcast): saves nothing; b's gradient is negated, then reduced to b's shape."""
    tape.operation = "difference"
    elements, width = max(a.elements, b.elements), max(a.width, b.width)
    shapes = [(_shape(a), a.requires_grad), (_shape(b), b.requires_grad)]

    def backward(t: Tape, g: Gradients) -> Gradients:
        (first, needs_first), (second, needs_second) = shapes
        negated = t.new(elements, width) if needs_second else None
        return [
            _match(t, alias(_gradient(g)), first) if needs_first else None,
            None if negated is None else _match(t, negated, second),
        ]

    node = tape.begin("difference backward", [a, b], backward)
    return tape.finish(node, tape.new(elements, width))


def square(tape: Tape, x: Tensor) -> Tensor:
    """``x.pow(2)``; backward holds x, 2x and their product with the gradient at once."""
    return elementwise(tape, x, "square of the norm", backward_copies=3)


def mean(tape: Tape, x: Tensor, rows: int, name: str = "mean of the norm") -> Tensor:
    """Mean or sum over the last dimension, one number a row; backward expands it to x's size."""
    tape.operation = name
    elements, width = x.elements, x.width
    return tape.record(
        f"{name}, backward",
        tape.new(rows, width),
        [x],
        lambda t, g: [t.new(elements, width)],
    )


def rms_norm(tape: Tape, x: Tensor, weight: Parameter, rows: int) -> Tensor:
    """Llama's RMSNorm: x in float32, its mean square, the product, back to the dtype, times the weight.

    Source: transformers 5.23, models/llama/modeling_llama.py, ``LlamaRMSNorm.forward``.
    """
    own, variance = _variance(tape, x, rows)
    unit = normalized(tape, own, rows, variance)
    del own
    out = multiply(tape, weight, cast(tape, unit, x.width), "norm", by_row=True)
    del variance
    return out


def rms_norm_float32(tape: Tape, x: Tensor, weight: Tensor, rows: int, *, one_plus: bool) -> Tensor:
    """RMSNorm whose product with the weight is in float32 and cast last (Gemma: times 1 + weight; OLMo 2).

    Source: transformers 5.23, models/gemma/modeling_gemma.py, ``GemmaRMSNorm``; models/olmo2/modeling_olmo2.py.
    """
    if one_plus:  # Gemma rebinds `output`, so the normalised x is freed after the product
        unit = normalized(tape, cast(tape, x, 4), rows)
        raised = add_number(tape, cast(tape, weight, 4))
        unit = multiply(tape, unit, raised, "norm", by_row=True)
        return cast(tape, unit, x.width)
    own, variance = _variance(tape, x, rows)
    unit = normalized(tape, own, rows, variance)
    del own
    out = cast(tape, multiply(tape, unit, weight, "norm", by_row=True), x.width)
    del variance
    return out


def _variance(tape: Tape, x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """x in float32 and its mean square, which a local name holds until the module returns."""
    x = cast(tape, x, 4)
    return x, mean(tape, square(tape, x), rows)


def rms_norm_by_power(tape: Tape, x: Tensor, weight: Parameter | None, rows: int) -> Tensor:
    """Gemma 4's RMSNorm: float32 throughout; the inverse root is a power, which saves its base.

    Source: transformers 5.23, models/gemma4/modeling_gemma4.py, ``Gemma4RMSNorm``; torch 2.13,
    torch/csrc/autograd/FunctionsManual.cpp, ``pow_backward`` (a power, and two products).
    """
    width = x.width
    unit = normalized(tape, cast(tape, x, 4), rows, by_power=True)
    if weight is not None:
        unit = multiply(tape, unit, cast(tape, weight, 4), "norm", by_row=True)
    return cast(tape, unit, width)


def normalized(
    tape: Tape, x: Tensor, rows: int, variance: Tensor | None = None, *, by_power: bool = False
) -> Tensor:
    """x over the root of its mean square, row by row; ``variance``: that mean square if the caller holds it."""
    shifted = add_number(tape, variance or mean(tape, square(tape, x), rows))
    saves, copies = ("input", 3) if by_power else ("output", 2)
    inverse = elementwise(
        tape, shifted, "inverse root of the norm", saves=saves, backward_copies=copies
    )
    del shifted
    return multiply(tape, x, inverse, "norm")


def l2_norm(tape: Tape, x: Tensor, rows: int) -> Tensor:
    """Llama 4's norm of queries and keys, without a weight: float32 inside, cast back.

    Source: transformers 5.23, models/llama4/modeling_llama4.py, ``Llama4TextL2Norm.forward``.
    """
    return cast(tape, normalized(tape, cast(tape, x, 4), rows), x.width)


def layer_norm_in_steps(tape: Tape, x: Tensor, weight: Parameter, rows: int) -> Tensor:
    """Cohere's LayerNorm in Python, in float32: subtracts the mean twice, for the variance and for the product.

    Source: transformers 5.23, models/cohere/modeling_cohere.py, ``CohereLayerNorm.forward``.
    """
    width, x = x.width, cast(tape, x, 4)
    average = mean(tape, x, rows)
    variance = mean(tape, square(tape, subtract(tape, x, average)), rows)
    centred = subtract(tape, x, average)
    shifted = add_number(tape, variance)
    inverse = elementwise(
        tape, shifted, "inverse root of the norm", saves="output", backward_copies=2
    )
    del shifted
    x = multiply(tape, centred, inverse, "norm")
    del centred, inverse
    x = multiply(tape, cast(tape, weight, 4), x, "norm", by_row=True)
    return cast(tape, x, width)


def layer_norm(
    tape: Tape, x: Tensor, parameters: Sequence[Tensor], rows: int, *, in_float32: bool = False
) -> Tensor:
    """The LayerNorm kernel: saves x, mean and 1/deviation in float32; under autocast it runs in float32.

    OLMo runs it in float32 (``in_float32``) and casts back to the dtype of x.
    Source: transformers 5.23, models/olmo/modeling_olmo.py, ``OlmoLayerNorm.forward``; torch 2.13,
    aten/src/ATen/native/cuda/layer_norm_kernel.cu; aten/src/ATen/autocast_mode.h (float32 list).
    """
    source = x  # the caller holds the uncast input until this returns
    if tape.autocast_active or in_float32:
        weights = [cast(tape, p, 4) for p in reversed(parameters)][::-1]
        x = cast(tape, source, 4)
    else:
        weights = list(parameters)
    tape.operation = "layer norm"
    elements, width = x.elements, x.width
    sizes = [(w.elements, w.width, w.requires_grad) for w in weights]
    needs_x = x.requires_grad

    def backward(t: Tape, g: Gradients) -> Gradients:
        gradients: Gradients = [t.new(elements, width) if needs_x else None]
        return gradients + [t.new(n, w) if needed else None for n, w, needed in sizes]

    node = tape.begin("layer norm backward", [x, *weights], backward, [x, *weights])
    out = tape.new(elements, width)
    statistics = [tape.new(rows, 4), tape.new(rows, 4)]
    out = tape.finish(node, out, statistics)
    return cast(tape, out, source.width) if in_float32 else out


def layer_norm_plus_one(
    tape: Tape, x: Tensor, parameters: Sequence[Parameter], rows: int
) -> Tensor:
    """Nemotron's LayerNorm: the kernel with 1 + weight; under autocast it casts to 16 bits and disables autocast.

    Source: transformers 5.23, models/nemotron/modeling_nemotron.py, ``NemotronLayerNorm1P.forward``.
    """
    weight, *bias = parameters
    raised = add_number(tape, weight)
    if not tape.autocast_active or tape.autocast_width is None:
        return layer_norm(tape, x, [raised, *bias], rows)
    width = tape.autocast_width
    x, *rest = (cast(tape, value, width) for value in (x, raised, *bias))
    with tape.without_autocast():
        return layer_norm(tape, x, rest, rows)


def embedding(tape: Tape, ids: Tensor, weight: Tensor, hidden_size: int, tokens: int) -> Tensor:
    """Look up rows; saves the ids; the gradient is dense, vocabulary × hidden, and compiled is added up in float32.

    Source: torch 2.13, derivatives.yaml, ``embedding``: ``embedding_dense_backward``; _inductor/decomposition.py,
    ``_embedding_dense_backward``.
    """
    tape.operation = "embedding"
    width = weight.width
    elements = weight.gradient_elements if isinstance(weight, Parameter) else weight.elements

    def backward(t: Tape, g: Gradients) -> Gradients:
        t.scratch(embedding_backward, tokens, elements // hidden_size, hidden_size)
        summed = t.new(elements, 4) if t.is_compiled else None
        return [summed if summed is not None and width == 4 else t.new(elements, width)]

    node = tape.begin("embedding gradient", [weight], backward, is_kernel=True)
    return tape.finish(node, tape.new(tokens * hidden_size, weight.width), [ids])


def cast_weight(tape: Tape, weight: Tensor, width: int) -> Tensor:
    """Autocast's 16-bit copy of a weight: cached until autocast ends for a trained parameter, else made per call.

    Source: torch 2.13, aten/src/ATen/autocast_mode.cpp, ``cached_cast``.
    """
    if not (isinstance(weight, Parameter) and weight.requires_grad):
        return cast(tape, weight, width)
    cached = tape.cast_cache.get(weight.key)
    if cached is None:
        cached = (tape.place, cast(tape, weight, width))
        tape.cast_cache[weight.key] = cached
    return cached[1]


def cast_input(tape: Tape, x: Tensor, width: int) -> Tensor:
    """Autocast's 16-bit copy of an activation: made per call, but cached likewise for a float32 leaf.

    Leaves are the input of a reentrant checkpoint's replay, and embeddings that were made to require a gradient.

    A freed leaf's copy stays in the cache, and no other leaf is taken for it.

    Source: torch 2.13, aten/src/ATen/autocast_mode.cpp, ``cached_cast`` (``arg.is_leaf()``; a weak reference keeps the
    address from being used again); utils/checkpoint.py, ``detach_variable``.
    """
    if x.node is None or x.node.leaf is None or x.width == width:
        return cast(tape, x, width)
    key = x.node.leaf.identity
    if key not in tape.cast_cache:
        tape.cast_cache[key] = tape.place, cast(tape, x, width)
    return tape.cast_cache[key][1]


def linear(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    bias: Parameter | None,
    in_features: int,
    out_features: int,
    name: str,
) -> Tensor:
    """``x @ W.T + b``: saves x if W is trained and W if x needs a gradient.

    Backward: the gradients of x and W exist together with the output's; W's is a transposed view.
    Under autocast a float32 input is copied to 16 bits in every call, a weight once.

    DeepSpeed's function always saves both, after its output is allocated. It makes the gradient of x first, and neither
    is a view: DeepSpeed 0.19.8, runtime/zero/linear.py, ``LinearFunctionForZeroStage3``.
    """
    source = x  # the caller holds the uncast input until this returns
    w = weight
    b: Tensor | None = bias
    if tape.autocast_active and tape.autocast_width is not None:
        tape.operation = f"{name}: autocast copies"
        # gcc evaluates the last argument first, which sets the order of the gradients
        b = None if bias is None else cast_weight(tape, bias, tape.autocast_width)
        w = cast_weight(tape, weight, tape.autocast_width)
        x = cast_input(tape, source, tape.autocast_width)
    tape.operation = name
    elements, width, size = x.elements, x.width, w.elements
    rows = elements // in_features
    needs_x, needs_w = x.requires_grad, w.requires_grad
    needs_b = b is not None and b.requires_grad

    def backward(t: Tape, g: Gradients) -> Gradients:
        of_x = t.new(elements, width) if needs_x and (needs_b or t.is_deepspeeds) else None
        if of_x is not None and t.is_deepspeeds:
            t.multiplied()
        gradient = t.new(size, width) if needs_w else None
        t.multiplied()
        if gradient is not None:
            gradient.is_view = not t.is_deepspeeds
        if needs_x and of_x is None:
            of_x = t.new(elements, width)
        if of_x is not None:
            of_x.is_view = not t.is_deepspeeds
        of_b = t.new(out_features, width) if needs_b else None
        if needs_b:
            t.scratch(rows_summed, rows, out_features)
        return [of_x, gradient, of_b]

    inputs = [x, w] if b is None else [x, w, b]
    if tape.is_deepspeeds:
        node = tape.begin(f"{name} backward", inputs, backward)
        out = tape.new(rows * out_features, width)
        tape.multiplied()
        return tape.finish(node, out, [x, w])
    save = [x if needs_w else None, permuted(w) if needs_x else None]
    node = tape.begin(f"{name} backward", inputs, backward, save, is_kernel=True)
    out = tape.new(rows * out_features, width)
    tape.multiplied()
    return tape.finish(node, out)


def product(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    bias: Parameter | None,
    in_features: int,
    out_features: int,
    name: str,
) -> Tensor:
    """``x @ W.T + b`` as two operators: autocast sees a transposed view, so it casts W in every call.

    Source: transformers 5.23, models/falcon/modeling_falcon.py, ``FalconLinear``; torch 2.13,
    aten/src/ATen/autocast_mode.cpp, ``cached_cast`` (leaves only).
    """
    source = weight
    if tape.autocast_active and tape.autocast_width is not None:
        weight = cast(tape, source, tape.autocast_width)
    out = linear(tape, x, weight, None, in_features, out_features, name)
    return out if bias is None else add(tape, out, bias)


def unpacked(tape: Tape, elements: int, width: int, name: str, *, scales: bool = True) -> Tensor:
    """Dequantise a packed weight; ``scales``: its float32 absmax is allocated while the kernel runs (4-bit).

    LLM.int8 has no dequantisation kernel: it multiplies twice in float32.
    Source: bitsandbytes 0.50, functional.py, ``dequantize_4bit``; backends/default/ops.py, ``int8_vectorwise_dequant``.
    """
    tape.operation = f"{name}: dequantised weight"
    beside = tape.new(ceil_div(elements, 64), 4) if scales else tape.new(elements, 4)
    weight = tape.new(elements, width)
    del beside
    return weight


def divide_by_constant(tape: Tape, x: Tensor, constant: Tensor, name: str) -> Tensor:
    """``x / constant``: saves the constant."""
    tape.operation = name
    elements, width = x.elements, max(x.width, constant.width)
    shape = _shape(x)

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [_match(t, t.new(elements, width), shape)]

    node = tape.begin(f"{name} backward", [x], backward, [constant])
    return tape.finish(node, tape.new(elements, width))


def linear_4bit(
    tape: Tape,
    x: Tensor,
    in_features: int,
    out_features: int,
    width: int,
    name: str,
    *,
    nested: bool = True,
) -> Tensor:
    """Bitsandbytes' 4-bit linear: dequantises the weight for the product, in forward and again in backward.

    Saves only the packed weight. ``nested``: its absmax is packed, too (double quantisation), and is unpacked before,
    in forward into a tensor to which the mean is added in another.

    Leaves out: up to 1,536 tokens some cards multiply without a dequantised weight (``_gemm_4bit_use_custom_cuda``).
    Source: bitsandbytes 0.50, autograd/_functions.py, ``MatMul4Bit``; backends/cuda/ops.py,
    ``_dequant_linear_fallback``; nn/modules.py, ``Linear4bit.forward`` (input to the compute dtype, output back to the
    input's).
    """
    source = x  # the caller holds the uncast input until this returns
    x = cast(tape, source, width)
    tape.operation = f"{name}: dequantised weight"
    elements, weights = x.elements, in_features * out_features

    def absmax(t: Tape, count: int) -> list[Tensor]:
        return [t.new(ceil_div(weights, 64), 4) for _ in range(count if nested else 0)]

    def backward(t: Tape, g: Gradients) -> Gradients:
        scales = absmax(t, 1)
        weight = t.new(weights, width)
        del scales
        gradient = t.new(elements, width)
        t.multiplied()
        del weight
        return [gradient]

    node = tape.begin(f"{name} backward", [x], backward, is_kernel=True)
    scales = absmax(tape, 2)
    weight = tape.new(weights, width)
    out = tape.new(elements // in_features * out_features, width)
    tape.multiplied()
    del scales, weight
    return cast(tape, tape.finish(node, out), source.width)


def linear_8bit(tape: Tape, x: Tensor, in_features: int, out_features: int, name: str) -> Tensor:
    """LLM.int8's linear: int8 input times int8 weight, into int32, then float16, then the input's dtype.

    The node holds its input as an attribute, which checkpoints do not drop and the engine does not release. Backward
    dequantises the weight to the input's dtype. Counts no outlier columns.
    Source: bitsandbytes 0.50, autograd/_functions.py, ``MatMul8bitLt`` (``ctx.tensors``); backends/cuda/ops.py,
    ``int8_vectorwise_quant`` and ``int8_mm_dequant``; backends/default/ops.py, ``int8_mixed_scaled_mm``.
    """
    tape.operation = f"{name}: input in 8 bits"
    elements, width = x.elements, x.width
    rows = elements // in_features
    half = x if width == 2 and tape.is_float16 else tape.new(elements, 2)
    scales, packed = tape.new(rows, 4), tape.new(elements, 1)
    magnitudes = tape.new(elements, 2)
    outliers = tape.new(elements, 1)
    del magnitudes
    del outliers, half
    tape.operation = name
    sums = tape.new(rows * out_features, 4)
    out = tape.new(rows * out_features, 2)
    if not (width == 2 and tape.is_float16):
        out = tape.new(rows * out_features, width)
    del sums, scales, packed

    def backward(t: Tape, g: Gradients) -> Gradients:
        weight = t.new(in_features * out_features, width)
        gradient = t.new(elements, width)
        t.multiplied()
        del weight
        return [gradient]

    node = tape.begin(f"{name} backward", [x], backward)
    tape.attach(node, x)
    return tape.finish(node, out)


def convolution(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    elements: int,
    name: str,
    *,
    bias: Parameter | None = None,
) -> Tensor:
    """Depthwise ``F.conv1d``: saves x and the filters, frozen or not; backward allocates the trained ones' gradients.

    The module passes a view of its filters and casts x to their dtype; autocast then casts both. x is channels-last,
    so the kernel makes a contiguous copy while it runs, in forward and in backward.
    Source: transformers 5.23, models/lfm2/modeling_lfm2.py, ``causal_conv1d_fn``; torch 2.13, derivatives.yaml,
    ``convolution``; aten/src/ATen/native/Convolution.cpp, ``_convolution`` and ``convolution_backward``
    (``input.contiguous()``).
    """
    source = cast(tape, x, weight.width)
    inputs: list[Tensor] = [source, weight] if bias is None else [source, weight, bias]
    if tape.autocast_active and tape.autocast_width is not None:
        # gcc evaluates the last argument first
        inputs = [cast(tape, value, tape.autocast_width) for value in reversed(inputs)][::-1]
    x, filters = inputs[:2]
    tape.operation = name
    sizes = [(t.elements, t.width, t.requires_grad) for t in inputs]
    whole, width = x.elements, x.width

    def backward(t: Tape, g: Gradients) -> Gradients:
        copy = t.new(whole, width)
        # gradients of the filters first, then of x, then of the bias
        order = [1, 0, *range(2, len(sizes))]
        made = {index: t.new(*sizes[index][:2]) for index in order if sizes[index][2]}
        del copy
        return [made.get(index) for index in range(len(sizes))]

    node = tape.begin(f"{name} backward", inputs, backward, [x, filters], is_kernel=True)
    copy = tape.new(whole, width)
    out = tape.new(elements, width)
    del copy
    return tape.finish(node, out)


def convolution_of_patches(
    tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None, elements: int
) -> Tensor:
    """A convolution whose stride is its kernel, so that each patch is seen once: saves x and the filters.

    Source: torch 2.13, derivatives.yaml, ``convolution`` (``input`` and ``weight`` are saved whichever is trained).
    """
    inputs: list[Tensor] = [x, weight] if bias is None else [x, weight, bias]
    if tape.autocast_active and tape.autocast_width is not None:
        width = tape.autocast_width
        inputs = [
            cast(tape, value, width) if index == 0 else cast_weight(tape, value, width)
            for index, value in reversed(list(enumerate(inputs)))
        ][::-1]
    tape.operation = "patches"
    sizes = [(t.elements, t.width, t.requires_grad) for t in inputs]

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [t.new(n, w) if needed else None for n, w, needed in sizes]

    node = tape.begin("patches backward", inputs, backward, inputs[:2])
    return tape.finish(node, tape.new(elements, inputs[0].width))


def average(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """``avg_pool2d``: saves x; its gradient is spread over x's size."""
    tape.operation = "average"
    whole, width = x.elements, x.width
    node = tape.begin("average backward", [x], lambda t, g: [t.new(whole, width)], [x])
    return tape.finish(node, tape.new(elements, width))


def masked_scatter(tape: Tape, x: Tensor, features: Tensor) -> Tensor:
    """``x.masked_scatter(mask, features)``: a copy of x; the mask is a byte an element of x where it is expanded.

    The gradient of the features is a ``masked_select``, whose index takes 24 bytes an element of theirs.
    Source: torch 2.13, derivatives.yaml, ``masked_scatter``; aten/src/ATen/native/cuda/IndexKernel.cpp,
    ``masked_scatter__cuda`` (the mask in bytes and its running sum in int64).
    """
    tape.operation = "features into the embeddings"
    elements, width, own = x.elements, x.width, features.elements
    needs_x, needs_features = x.requires_grad, features.requires_grad

    def backward(t: Tape, g: Gradients) -> Gradients:
        first = t.new(elements, width) if needs_x else None
        second = None
        if needs_features:
            index = t.new(3 * own, INDEX_BYTES)
            second = t.new(own, width)
            del index
        return [first, second]

    node = tape.begin("features into the embeddings, backward", [x, features], backward)
    out = tape.new(elements, width)
    positions = tape.new(elements, 1)
    sums = tape.new(elements, INDEX_BYTES)
    del positions, sums
    return tape.finish(node, out)


def added_to_rows(tape: Tape, x: Tensor, features: Tensor, rows: int, width: int) -> Tensor:
    """``x = x.clone(); x[mask] = x[mask] + features``: Qwen3-VL's features between layers of the text.

    Source: transformers 5.23, models/qwen3_vl/modeling_qwen3_vl.py, ``_deepstack_process``; torch 2.13,
    derivatives.yaml, ``index`` and ``index_put_``.
    """
    x = clone(tape, x)
    tape.operation = "features of a layer"
    places = tape.new(2 * rows, INDEX_BYTES)
    picked = gather(tape, x, places, rows * width, "rows of the image")
    values = add(tape, picked, features)
    del picked
    places = tape.new(2 * rows, INDEX_BYTES)
    elements, size, own = x.elements, x.width, values.elements
    needs_values = values.requires_grad

    def backward(t: Tape, g: Gradients) -> Gradients:
        kept = t.new(elements, size)
        return [kept, t.new(own, size) if needs_values else None]

    node = tape.begin("features of a layer, backward", [x, values], backward, [places])
    return tape.finish(node, tape.view(x))


def dropout(tape: Tape, x: Tensor, probability: float) -> Tensor:
    """``native_dropout``: allocates the output and saves a mask of one byte an element; a no-op for p = 0.

    Inductor keeps the float32 numbers that it draws, where a checkpoint's replay and backward are one graph.
    """
    if probability == 0:
        return x
    tape.operation = "dropout"
    elements, width = x.elements, x.width
    if tape.is_compiled:
        with tape.kernels():
            mask = tape.new(elements, 4 if tape.is_replaying else 1)
        node = tape.begin("dropout backward", [x], lambda t, g: [t.new(elements, width)], [mask])
        return tape.finish(node, tape.new(elements, width))
    mask = tape.new(elements, 1)
    out = tape.new(elements, width)
    return tape.record("dropout backward", out, [x], lambda t, g: [t.new(elements, width)], [mask])


def choose(tape: Tape, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``where``: saves the condition, one byte an element; both gradients exist together, zero where not chosen."""
    tape.operation = "choice"
    sizes = [(x.elements, x.width, x.requires_grad) for x in (a, b)]

    def gradient(t: Tape, elements: int, width: int) -> Tensor:
        zero = t.new(1, width)
        chosen = t.new(elements, width)
        del zero
        return chosen

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [gradient(t, n, w) if needed else None for n, w, needed in sizes]

    node = tape.begin("choice backward", [a, b], backward, [condition])
    return tape.finish(node, tape.new(a.elements, a.width))


def masked_fill(tape: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """``masked_fill``: allocates one tensor in forward and one in backward; saves the mask."""
    tape.operation = "masked scores"
    elements, width = x.elements, x.width
    node = tape.begin("masked scores, backward", [x], lambda t, g: [t.new(elements, width)], [mask])
    return tape.finish(node, tape.new(elements, width))


def clone(tape: Tape, x: Tensor) -> Tensor:
    """A copy; the gradient passes through."""
    tape.operation = "copy"
    return tape.record(
        "copy backward", tape.new(x.elements, x.width), [x], lambda t, g: [alias(_gradient(g))]
    )


def reshape_copy(tape: Tape, x: Tensor) -> Tensor:
    """``contiguous()`` of a transposed tensor: a copy forward; its gradient is a view of the incoming one."""
    return clone(tape, x)


def viewed(tape: Tape, x: Tensor, *, copies_gradient: bool = False) -> Tensor:
    """``x.view(...)``: the gradient is a view too, or a copy where its layout allows none."""

    def backward(t: Tape, g: Gradients) -> Gradients:
        gradient = _gradient(g)
        if not copies_gradient:
            return [t.view(gradient)]
        copied = t.new(gradient.elements, gradient.width)
        return [copied]

    return tape.record("view backward", tape.view(x), [x], backward)


def part(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """A slice: a view; its gradient is a zero-filled tensor of x's size."""
    whole, width = x.elements, x.width
    out = tape.view(x, elements)
    return tape.record("slice backward", out, [x], lambda t, g: [t.new(whole, width)])


def pick(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """``x[..., [i], :]``: list indexing copies and saves the index; the gradient is zero-filled, of x's size."""
    tape.operation = "pick"
    whole, width = x.elements, x.width
    index = tape.new(1, INDEX_BYTES)
    node = tape.begin("pick backward", [x], lambda t, g: [t.new(whole, width)], [index])
    return tape.finish(node, tape.new(elements, width))


def split(tape: Tape, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """``split`` or ``chunk``: views; backward allocates one gradient of x's size once all parts' have arrived."""
    whole, width = x.elements, x.width
    parts = [tape.view(x, size) for size in sizes]
    tape.record("split backward", parts[0], [x], lambda t, g: [t.new(whole, width)])
    node = parts[0].node
    if node is not None:
        node.buffers = [None] * len(parts)
        for output, piece in enumerate(parts):
            piece.requires_grad, piece.node, piece.output = True, node, output
    return parts


def concatenate(tape: Tape, parts: Sequence[Tensor]) -> Tensor:
    """``cat``: one new tensor; the gradients are views of the incoming one."""
    tape.operation = "concatenate"
    out = tape.new(sum(p.elements for p in parts), parts[0].width)
    sizes = [(p.elements, p.requires_grad) for p in parts]

    def backward(t: Tape, g: Gradients) -> Gradients:
        whole = _gradient(g)
        return [t.view(whole, size) if needed else None for size, needed in sizes]

    return tape.record("concatenate backward", out, list(parts), backward)


def repeat_heads(tape: Tape, x: Tensor, groups: int) -> Tensor:
    """``repeat_kv``: copies every key-value head for its group of query heads; a no-op for one query head a group.

    Source: transformers 5.23, integrations/sdpa_attention.py, ``repeat_kv``.
    """
    if groups == 1:
        return x
    tape.operation = "repeat key-value heads"
    elements, width = x.elements, x.width
    out = tape.new(elements * groups, width)
    return tape.record(
        "repeat key-value heads backward", out, [x], lambda t, g: [t.new(elements, width)]
    )


def expand_heads(tape: Tape, x: Tensor, groups: int) -> Tensor:
    """Expand one key-value head to every query head: a view; the gradient is summed over them."""
    elements, width = x.elements, x.width
    out = tape.view(x, elements * groups)
    return tape.record("expand backward", out, [x], lambda t, g: [t.new(elements, width)])


def expand(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """``expand``: a view of ``elements`` elements; its gradient is summed into x's shape."""
    own, width = x.elements, x.width
    return tape.record(
        "expand backward", tape.view(x, elements), [x], lambda t, g: [t.new(own, width)]
    )


def largest(tape: Tape, x: Tensor, rows: int) -> Tensor:
    """``max`` of each row: saves the indices, int64; its gradient is scattered into zeros of x's size."""
    tape.operation = "largest of each row"
    elements, width = x.elements, x.width
    values, indices = tape.new(rows, width), tape.new(rows, INDEX_BYTES)
    return tape.record(
        "largest of each row, backward",
        values,
        [x],
        lambda t, g: [t.new(elements, width)],
        [indices],
    )


def clamp(tape: Tape, x: Tensor, *, both_sides: bool) -> Tensor:
    """``clamp``: saves x; backward allocates a one-byte mask of the elements within each bound.

    Source: torch 2.13, torch/csrc/autograd/FunctionsManual.cpp, ``clamp_backward``.
    """
    tape.operation = "clamp"
    elements, width = x.elements, x.width

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [_clamped_gradient(t, elements, width, sides=1 + both_sides)]

    node = tape.begin("clamp backward", [x], backward, [x])
    return tape.finish(node, tape.new(elements, width))


def clamp_in_place(tape: Tape, x: Tensor) -> Tensor:
    """``clamp_`` between two numbers: overwrites x, so a copy of the original is saved for backward.

    Source: torch 2.13, tools/autograd/gen_variable_type.py (``original_self``: a clone, if the formula reads ``self``).
    """
    tape.operation = "clamp: what was there"
    elements, width = x.elements, x.width
    before = tape.new(elements, width) if x.requires_grad and tape.records else None

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [_clamped_gradient(t, elements, width, sides=2)]

    node = tape.begin("clamp backward", [x], backward, [before])
    return tape.finish(node, tape.view(x))


def _clamped_gradient(tape: Tape, elements: int, width: int, *, sides: int) -> Tensor:
    zero = tape.new(1, width)
    inside = [tape.new(elements, 1) for _ in range(sides)]
    gradient = tape.new(elements, width)
    del inside, zero
    return gradient


def pad(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """``F.pad`` with zeros: allocates a larger tensor; backward allocates one of x's size."""
    tape.operation = "padding"
    own, width = x.elements, x.width
    return tape.record(
        "padding backward", tape.new(elements, width), [x], lambda t, g: [t.new(own, width)]
    )


def filled(tape: Tape, parts: Sequence[Tensor], width: int) -> Tensor:
    """Allocate a tensor and copy the parts into its slices, one by one.

    Backward of each copy: a copy of the whole gradient, the slice taken from it, and, except for the first copy, zeros
    of the slice's size that replace it.
    Source: torch 2.13, torch/csrc/autograd/functions/tensor.cpp, ``CopySlices::apply`` and ``CopyBackwards::apply``.
    """
    tape.operation = "copies into one tensor"
    whole = sum(part.elements for part in parts)
    out = tape.new(whole, width)
    for index, x in enumerate(parts):
        below = out if index and out.requires_grad else None
        out = copied_in(tape, tape.view(out), below, x, whole)
    return out


def copied_in(tape: Tape, out: Tensor, below: Tensor | None, x: Tensor, whole: int) -> Tensor:
    """``out[slice] = x``; ``below``: out as earlier copies left it, if these require a gradient."""
    elements, own, width, needed = x.elements, x.width, out.width, x.requires_grad

    def backward(t: Tape, g: Gradients) -> Gradients:
        result = t.new(whole, width)
        piece = t.new(elements, width)
        zeros = None if below_needed is False else t.new(elements, width)
        if own != width and needed:
            piece = t.new(elements, own)
        del zeros
        gradient = piece if needed else None
        return [result, gradient] if below_needed else [gradient]

    below_needed = below is not None
    return tape.record(
        "copy into a slice, backward", out, [x] if below is None else [below, x], backward
    )


def add_in_place(tape: Tape, x: Tensor, b: Tensor, *, is_of_view: bool = False) -> Tensor:
    """``x.add_(b)``: allocates nothing in forward; both inputs receive the same gradient; a view copies the base's.

    Source: torch 2.13, torch/csrc/autograd/functions/tensor.cpp, ``CopySlices::apply``.
    """
    inputs = [(x.requires_grad, _shape(x)), (b.requires_grad, _shape(b))]

    def backward(t: Tape, g: Gradients) -> Gradients:
        gradient = _gradient(g)
        if is_of_view:
            whole, gradient = (t.new(gradient.elements, gradient.width) for _ in range(2))
            own, other = (
                _match(t, summand, like)
                for summand, (_, like) in zip((whole, gradient), inputs, strict=True)
            )
            return [own if inputs[0][0] else None, other if inputs[1][0] else None]
        return [_match(t, alias(gradient), like) if needed else None for needed, like in inputs]

    return tape.record("add backward", tape.view(x), [x, b], backward)


def add_to_slice(tape: Tape, x: Tensor, b: Tensor, elements: int) -> Tensor:
    """``x[1:] += b``: adds into a slice, then copies the slice onto itself; each backward copies the whole gradient.

    Source: torch 2.13, torch/csrc/autograd/functions/tensor.cpp, ``CopySlices::apply`` and ``CopyBackwards::apply``.
    """
    whole, width = x.elements, x.width
    inputs = [(x.requires_grad, _shape(x)), (b.requires_grad, _shape(b))]

    def backward(t: Tape, g: Gradients) -> Gradients:
        result, piece = t.new(whole, width), t.new(elements, width)
        other = _match(t, piece, inputs[1][1]) if inputs[1][0] else None
        del piece
        return [result if inputs[0][0] else None, other]

    summed = tape.record("sum into a slice, backward", tape.view(x), [x, b], backward)
    return copied_in(tape, tape.view(summed), summed, part(tape, summed, elements), whole)


def divide(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``a / b``, broadcast: saves both; b's gradient needs two more temporaries of the quotient's size."""
    tape.operation = "quotient"
    elements, width = max(a.elements, b.elements), max(a.width, b.width)
    shapes = [(_shape(a), a.requires_grad), (_shape(b), b.requires_grad)]

    def backward(t: Tape, g: Gradients) -> Gradients:
        (first, needs_first), (second, needs_second) = shapes
        own = t.new(elements, width) if needs_first else None
        other = None
        if needs_second:
            steps = [t.new(elements, width) for _ in range(2)]
            other = t.new(elements, width)
            del steps
        return [
            None if own is None else _match(t, own, first),
            None if other is None else _match(t, other, second),
        ]

    save = [b if a.requires_grad or b.requires_grad else None, a if b.requires_grad else None]
    node = tape.begin("quotient backward", [a, b], backward, save)
    return tape.finish(node, tape.new(elements, width))


def deviation(tape: Tape, x: Tensor, rows: int) -> Tensor:
    """``std`` of each row: saves x and the result; backward allocates x less its mean and the gradient.

    Three more tensors of one number a row: the variance's gradient, that over the count, and the mean.

    Source: torch 2.13, torch/csrc/autograd/FunctionsManual.cpp, ``std_backward``, ``var_backward``.
    """
    tape.operation = "standard deviation"
    elements, width = x.elements, x.width

    def backward(t: Tape, g: Gradients) -> Gradients:
        of_rows = [t.new(rows, width) for _ in range(3)]
        centred = t.new(elements, width)
        gradient = t.new(elements, width)
        del centred, of_rows
        return [gradient]

    node = tape.begin("standard deviation, backward", [x], backward, [x])
    out = tape.new(rows, width)
    return tape.finish(node, out, [out])


def matmul(
    tape: Tape,
    a: Tensor,
    b: Tensor,
    elements: int,
    name: str,
    *,
    copies: tuple[bool, bool] = (False, False),
) -> Tensor:
    """Batched product of two activations: saves both; both gradients exist together.

    A factor whose batch and heads do not merge into one dimension is copied first (``copies``): torch 2.13,
    aten/src/ATen/native/LinearAlgebra.cpp, ``_matmul_impl`` (``expand`` and ``reshape``).
    """
    if tape.autocast_active and tape.autocast_width is not None:
        b = cast_weight(tape, b, tape.autocast_width)
        a = cast_weight(tape, a, tape.autocast_width)
    sources = a, b  # the uncopied factors stay alive until the product returns
    a, b = (clone(tape, x) if copied else x for x, copied in zip(sources, copies, strict=True))
    tape.operation = name
    width = a.width
    shapes = [(a.elements, a.width, a.requires_grad), (b.elements, b.width, b.requires_grad)]

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [t.new(n, w) if needed else None for n, w, needed in reversed(shapes)][::-1]

    save = [b if a.requires_grad else None, a if b.requires_grad else None]
    node = tape.begin(f"{name} backward", [a, b], backward, save, is_kernel=True)
    return tape.finish(node, tape.new(elements, width))


def scaled_matmul(tape: Tape, a: Tensor, b: Tensor, elements: int, name: str) -> Tensor:
    """``baddbmm`` with ``alpha`` and no bias: saves both; each gradient is a product, then a copy times ``alpha``.

    Source: torch 2.13, derivatives.yaml, ``baddbmm``; torch/csrc/autograd/FunctionsManual.cpp, ``maybe_multiply``.
    """
    tape.operation = name
    shapes = [(a.elements, a.width, a.requires_grad), (b.elements, b.width, b.requires_grad)]

    def backward(t: Tape, g: Gradients) -> Gradients:
        gradients: Gradients = []
        for count, width, needed in shapes:
            unscaled = t.new(count, width) if needed else None
            gradients.append(t.new(count, width) if needed else None)
            del unscaled
        return gradients

    save = [b if a.requires_grad else None, a if b.requires_grad else None]
    node = tape.begin(f"{name} backward", [a, b], backward, save, is_kernel=True)
    return tape.finish(node, tape.new(elements, a.width))


def softmax(tape: Tape, x: Tensor) -> Tensor:
    """Softmax: saves its output; backward allocates one tensor."""
    tape.operation = "softmax"
    elements, width = x.elements, x.width

    def backward(t: Tape, g: Gradients) -> Gradients:
        gradient = t.new(elements, width)
        t.scratch(softmax_backward, elements, width)
        return [gradient]

    node = tape.begin("softmax backward", [x], backward)
    out = tape.new(elements, width)
    return tape.finish(node, out, [out])


def top_k(tape: Tape, x: Tensor, chosen: int) -> tuple[Tensor, Tensor]:
    """The largest values and their int64 indices, which are saved; backward scatters into zeros of x's size."""
    tape.operation = "choice of experts"
    elements, width = x.elements, x.width
    values, indices = tape.new(chosen, width), tape.new(chosen, INDEX_BYTES)
    values = tape.record(
        "choice of experts, backward", values, [x], lambda t, g: [t.new(elements, width)], [indices]
    )
    return values, indices


def gather(tape: Tape, x: Tensor, indices: Tensor, elements: int, name: str) -> Tensor:
    """``x[indices]`` over rows: copies and saves the indices; the gradient is added into zeros of x's size."""
    tape.operation = name
    whole, width = x.elements, x.width
    node = tape.begin(f"{name}, backward", [x], lambda t, g: [t.new(whole, width)], [indices])
    return tape.finish(node, tape.new(elements, width))


def scattered(tape: Tape, x: Tensor, indices: Tensor, elements: int, name: str) -> Tensor:
    """``full_like(…).scatter_``: scatters x into a tensor of -∞; x's gradient is gathered from the output's."""
    tape.operation = name
    own, width = x.elements, x.width
    node = tape.begin(f"{name}, backward", [x], lambda t, g: [t.new(own, width)], [indices])
    return tape.finish(node, tape.new(elements, width))


def repeat(tape: Tape, x: Tensor, times: int) -> Tensor:
    """``x.repeat(times, 1)``: ``times`` copies; the gradient is summed over them."""
    tape.operation = "tokens for every expert"
    own, width = x.elements, x.width
    out = tape.new(own * times, width)
    name = "tokens for every expert, backward"
    return tape.record(name, out, [x], lambda t, g: [t.new(own, width)])


def sum_of_experts(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """Sum over each token's experts, in float32 under autocast; backward expands the gradient over the experts.

    Source: torch 2.13, aten/src/ATen/autocast_mode.h (``sum`` takes a float32 dtype, without a copy of its input).
    """
    tape.operation = "sum over experts"
    whole, width = x.elements, x.width
    out = tape.new(elements, 4 if tape.autocast_active else width)
    return tape.record("sum over experts, backward", out, [x], lambda t, g: [t.new(whole, width)])


def grouped_matmul(
    tape: Tape, x: Tensor, stack: Tensor, in_features: int, out_features: int, name: str
) -> Tensor:
    """Each expert's rows times its matrix: saves x if the stack is trained, the stack if x needs a gradient.

    Autocast does not cover this kernel: x is cast to the stack's dtype, and no 16-bit copy of the stack is made. Sizes
    do not depend on the routing of tokens. Backward: one gradient for the whole stack.
    Source: transformers 5.23, integrations/moe.py, ``_grouped_mm``; torch 2.13, derivatives.yaml, ``_grouped_mm``.
    """
    x = cast(tape, x, stack.width)
    tape.operation = name
    shapes = [(v.elements, v.width, v.requires_grad) for v in (x, stack)]

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [t.new(n, w) if needed else None for n, w, needed in shapes]

    save = [x if stack.requires_grad else None, stack if x.requires_grad else None]
    node = tape.begin(f"{name} backward", [x, stack], backward, save, is_kernel=True)
    return tape.finish(node, tape.new(x.elements // in_features * out_features, x.width))


def folded(tape: Tape, stack: Parameter, b: Tensor, a: Tensor) -> Tensor:
    """``baddbmm``: allocates a stack of frozen weights plus B @ A of every expert; saves both factors.

    Backward needs the gradient of the whole stack and allocates those of the factors, each of which is then scaled.
    Source: peft 0.21, tuners/lora/layer.py, ``_LoraFactorsProxy`` (autocast is off in it); torch 2.13,
    derivatives.yaml, ``baddbmm`` (``maybe_multiply``, which multiplies only where lora_alpha differs from lora_r).
    """
    tape.operation = "adapters folded into the experts"
    sizes = [(b.elements, b.width), (a.elements, a.width)]

    def scaled(t: Tape, elements: int, width: int) -> Tensor:
        product = t.new(elements, width)
        gradient = t.new(elements, width)
        del product
        return gradient

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [scaled(t, *size) for size in sizes]

    name = "adapters folded into the experts, backward"
    node = tape.begin(name, [b, a], backward, [a, b], is_kernel=True)
    return tape.finish(node, tape.new(stack.elements, stack.width))


def log_softmax_loss(tape: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy: log-softmax, then the negative log-likelihood.

    The likelihood's backward zero-fills a float32 tensor of T·V; log-softmax adds its gradient while its output is
    still saved: three float32 copies of the logits at once.
    Source: torch 2.13, aten/src/ATen/native/LossNLL.cpp; transformers 5.23, loss/loss_utils.py.
    """
    tape.operation = "log-softmax"
    elements = logits.elements
    log_probabilities = tape.new(elements, 4, LOGITS)
    log_probabilities = tape.record(
        "log-softmax backward: three copies of the logits in float32",
        log_probabilities,
        [logits],
        lambda t, g: [t.new(elements, 4, LOGITS)],
        [log_probabilities],
    )
    tape.operation = "negative log-likelihood"
    loss = tape.new(1, 4)
    weight = tape.new(1, 4, ACTIVATIONS)
    return tape.record(
        "negative log-likelihood backward",
        loss,
        [log_probabilities],
        lambda t, g: [t.new(elements, 4, LOGITS)],
        [weight, labels],
    )


def call_back(tape: Tape, x: Tensor, call: Callable[[Tensor | None], None]) -> Tensor:
    """The same tensor behind an identity node that runs ``call`` when its gradient arrives."""

    def backward(_: Tape, gradients: Gradients) -> Gradients:
        call(gradients[0])
        return [gradients[0]]

    operation = tape.operation
    out = tape.record("gather", tape.view(x), [x], backward)
    tape.operation = operation
    return out

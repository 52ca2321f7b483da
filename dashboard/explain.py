"""How a figure came about: the formula with this setup's numbers in it, and the very functions that computed it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from estimator.families.liger import kernels, loss_of
from estimator.families.parameters import (
    copied_modules,
    is_quantized,
    modules_with_counts,
    weight_shapes,
)
from estimator.families.registry import architecture
from estimator.families.weights import (
    adapter_tensors,
    buffers,
    int8_bytes,
    module_bytes,
    quantized_bytes,
    tensors_bytes,
    unquantized_width,
)
from estimator.resident.optimizer import optimizer_states, state_rule, step_transient
from estimator.resident.overhead import HANDLES, exchange_bytes, need_bytes, workspace_bytes
from estimator.step.timeline import (
    adapter_bytes,
    gradient_bytes,
    weight_bytes,
)
from estimator.tape import fused, operators
from estimator.tape.attention import attention
from estimator.values.results import Estimate, Held
from estimator.values.specs import Component, Loss, Phase

Function = Callable[..., Any]


class Line(NamedTuple):
    """One term of a sum."""

    what: str
    how: str
    bytes: int


class Explanation(NamedTuple):
    """How the bytes of one component came about."""

    lead: str
    lines: Sequence[Line]
    functions: Sequence[Function]
    """What computed them, the first one first."""


def explain(part: Component | None, of: Estimate) -> Explanation:
    """A component at the peak; None: what lies outside PyTorch's counter."""
    match part:
        case None:
            return _outside(of)
        case Component.WEIGHTS:
            return _weights(of)
        case Component.ADAPTERS:
            return _adapters(of)
        case Component.OPTIMIZER_STATES:
            return _states(of)
        case Component.WORKSPACE:
            return _workspace(of)
        case Component.ACTIVATIONS:
            return _activations(of)
        case Component.GRADIENTS:
            return _gradients(of)
        case Component.LOGITS:
            return _logits(of)
        case _:
            return _temporaries(of)


def docstring(function: Function) -> str:
    """A function's docstring as Markdown."""
    text = inspect.getdoc(function) or ""
    return re.sub(r"``(.+?)``", r"`\1`", text.split("\n>>>")[0])


def source(function: Function) -> str:
    """A function's code as it runs."""
    return inspect.getsource(function)


# --- one component each -------------------------------------------------------------------------


def _weights(of: Estimate) -> Explanation:
    setup = of.setup
    lines = []
    for module, count in modules_with_counts(of.model):
        size = count * module_bytes(module, setup)
        if is_quantized(module, setup):
            width = "8 bits and a scale a row" if setup.has_8bit_base else "4 bits and their scales"
        else:
            width = f"{setup.dtype.bytes} bytes, as loaded"
            if setup.has_packed_base and setup.prepare_model_for_kbit_training:
                width = "4 bytes, after prepare_model_for_kbit_training"
        lines.append(
            Line(module.name, f"{_times(count)}{_shapes(weight_shapes(module))} × {width}", size)
        )
    lines += [
        Line(
            buffer.name,
            f"{_times(buffer.copies)}a buffer, not trained",
            buffer.copies * buffer.bytes,
        )
        for buffer in buffers(of.model)
    ]
    lead = (
        "Every parameter of the model lies on the GPU from loading to the end; "
        "each tensor is rounded up to 512 bytes."
    )
    quantized = (int8_bytes if setup.has_8bit_base else quantized_bytes,)
    return Explanation(
        lead, lines, (weight_bytes, module_bytes, *(quantized if setup.has_packed_base else ()))
    )


def _adapters(of: Estimate) -> Explanation:
    lines = []
    for module, count in modules_with_counts(of.model):
        if tensors := adapter_tensors(module, of.setup):
            shapes = tuple(tensor.shape for tensor in tensors)
            each = sum(tensor.bytes for tensor in tensors)
            lines.append(
                Line(
                    module.name,
                    f"{_times(count)}({_shapes(shapes)}) × {tensors[0].width} bytes",
                    count * each,
                )
            )
    lead = f"Two narrow matrices beside each adapted linear layer, of rank {of.setup.lora_r}."
    width = unquantized_width(of.setup)
    for module, count in copied_modules(of.model, of.setup):
        shapes = weight_shapes(module)
        size = count * tensors_bytes(shapes, width)
        how = f"{_times(count)}({_shapes(shapes)}) × {width} bytes, as loaded"
        lines.append(Line(f"{module.name}, a trained copy", how, size))
    if of.setup.use_dora:
        lead += " DoRA adds one number for each output, its trained length."
    if of.setup.modules_to_save:
        lead += " Beside them the modules that are trained whole: the copy is used, the original lies frozen."
    return Explanation(lead, lines, (adapter_bytes, adapter_tensors, copied_modules))


def _states(of: Estimate) -> Explanation:
    size = of.peak.resident.get(Component.OPTIMIZER_STATES, 0)
    trained = of.trainable_parameters
    lead = (
        f"{of.setup.optim} keeps {size / max(trained, 1):.2f} bytes a trained parameter, "
        "from the end of the first step on."
    )
    line = Line("all trained tensors", f"{trained:,} × {size / max(trained, 1):.2f} bytes", size)
    return Explanation(lead, [line], (optimizer_states, state_rule(of.setup.optim)))


def _workspace(of: Estimate) -> Explanation:
    size = workspace_bytes(of.gpu)
    lead = "cuBLAS keeps scratch memory for each handle, the same at every moment."
    line = Line("cuBLAS", f"{HANDLES} handles × {size // HANDLES:,} bytes", size)
    return Explanation(lead, [line], (workspace_bytes,))


def _outside(of: Estimate) -> Explanation:
    peak = of.decisive.bytes
    exchange = exchange_bytes(of.setup)[1]
    slack = of.need_high_bytes - peak - of.context_high_bytes - of.paged_bytes - exchange
    lines = [
        Line("CUDA context and kernels", "at the most that was read", of.context_high_bytes),
        Line("allocator's slack", f"3 % of the peak of {peak:,} bytes, at the most", slack),
    ]
    if exchange:
        lines.append(Line("NCCL's buffers", "at the most that was read", exchange))
    if of.paged_bytes:
        lines.append(Line("paged states", "if none of them is evicted", of.paged_bytes))
    lead = "Memory that the process takes beside what torch.cuda.max_memory_allocated() counts."
    return Explanation(lead, lines, (need_bytes,))


def _activations(of: Estimate) -> Explanation:
    kept = sum(held.bytes for held in of.timeline.kept_by_a_layer())
    lead = (
        f"One layer keeps {kept:,} bytes from forward to backward, {kept / of.setup.tokens:,.0f} a token; "
        f"{of.model.num_hidden_layers} layers keep {kept * of.model.num_hidden_layers:,}. "
        "Backward frees them layer by layer; below is what is alive at the peak, by the operator that made it."
    )
    fused_ones = kernels(of.model, of.setup)
    norm = fused.rms_norm if fused_ones.norm else operators.rms_norm
    gated = (fused.gated,) if fused_ones.mlp else ()
    return Explanation(
        lead,
        list(_alive(of, Component.ACTIVATIONS)),
        (architecture(of.model).layer, attention, operators.linear, norm, *gated),
    )


def kept_lines(of: Estimate) -> list[Line]:
    """What one layer keeps from forward to backward."""
    return [_line(held) for held in of.timeline.kept_by_a_layer()]


def _gradients(of: Estimate) -> Explanation:
    trained = of.trainable_parameters
    size = of.peak.resident.get(Component.GRADIENTS, 0)
    complete = of.phases[Phase.OPTIMIZER_STEP].resident.get(Component.GRADIENTS, 0)
    lead = (
        f"{trained:,} trained parameters have a gradient each; all together {complete:,} bytes. "
        "They come one by one in backward and go after the step"
        + (
            "; with accumulation they stay from the first micro-step on."
            if of.setup.gradient_accumulation_steps > 1
            else "."
        )
    )
    if loss_of(of.model, of.setup) is Loss.LIGER and not of.setup.uses_adapters:
        lead += " Liger makes the head's with the loss, so that it is there before backward begins."
    lines = list(_alive(of, Component.GRADIENTS))
    if sum(line.bytes for line in lines) != size:
        lines = [Line("all trained tensors", f"{trained:,} parameters, each in its dtype", size)]
    return Explanation(lead, lines, (gradient_bytes,))


LOSSES: Mapping[Loss, tuple[str, Function]] = {
    Loss.LIGER: (
        "Liger makes them for a chunk of tokens at a time, and both gradients of the head with them.",
        fused.linear_cross_entropy,
    ),
    Loss.CHUNKED_TRL: (
        "TRL makes them in one tile of at most 4,096 tokens × 32,768 words, in forward and once more in backward.",
        fused.log_probabilities,
    ),
}


def _logits(of: Estimate) -> Explanation:
    setup, words = of.setup, of.model.vocab_size
    copy = setup.tokens * words * 4
    if (loss := loss_of(of.model, setup)) in LOSSES:
        whole, function = LOSSES[loss]
        lead = f"All logits would be {copy:,} bytes a copy in float32. {whole}"
        return Explanation(lead, list(_alive(of, Component.LOGITS)), (function,))
    lead = (
        f"{setup.per_device_train_batch_size:,} × {setup.max_length:,} tokens × {words:,} words × 4 bytes are "
        f"{copy:,} bytes a copy in float32; the loss makes up to three."
    )
    return Explanation(lead, list(_alive(of, Component.LOGITS)), (operators.log_softmax_loss,))


def _temporaries(of: Estimate) -> Explanation:
    lead = "Tensors that live for one operation, or until the next one has read them."
    if of.peak.phase is Phase.OPTIMIZER_STEP:
        size = of.peak.resident.get(Component.TEMPORARIES, 0)
        return Explanation(lead, [Line(of.peak.name, "at its highest", size)], (step_transient,))
    product: Function = operators.linear
    if of.setup.has_packed_base:
        product = operators.linear_8bit if of.setup.has_8bit_base else operators.linear_4bit
    return Explanation(lead, list(_alive(of, Component.TEMPORARIES)), (product, step_transient))


# --- words --------------------------------------------------------------------------------------


def _alive(of: Estimate, part: Component) -> Iterator[Line]:
    if of.peak.phase is Phase.OPTIMIZER_STEP:
        return
    yield from (_line(held) for held in of.timeline.held(of.peak.phase) if held.component is part)


def _line(held: Held) -> Line:
    name = held.operation or "before the first operator"
    tensors = f"{held.tensors:,} tensor{'s' * (held.tensors != 1)}"
    return Line(name, tensors, held.bytes)


def _times(count: int) -> str:
    return f"{count} × " if count > 1 else ""


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return " + ".join(" × ".join(f"{size:,}" for size in shape) for shape in shapes)

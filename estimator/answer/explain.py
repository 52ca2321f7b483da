"""How a figure was computed: its terms with this setup's numbers, and the functions behind it.

Source: derived, from the functions that each explanation names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from estimator.answer.overflow import starts_with_states
from estimator.families.adapters import is_quantized
from estimator.families.liger import kernels, loss_of
from estimator.families.loaded import made_modules
from estimator.families.model_tree import tied_head
from estimator.families.modules import Module, weight_shapes
from estimator.families.packed import quantized_bytes
from estimator.families.registry import family_of
from estimator.families.weights import Buffer, buffers, tower_buffers
from estimator.inference.colocation import colocated_engine
from estimator.inference.engine import buffer_bytes, engine, engine_weight_bytes, graph_count
from estimator.inference.kv_cache import pages
from estimator.parallel.ddp import bucket_bytes
from estimator.parallel.fsdp1 import FlatUnit
from estimator.parallel.fsdp2 import Fsdp2Group
from estimator.parallel.module_devices import heads_on, module_devices, modules_on
from estimator.parallel.placements import (
    AS_LOADED,
    adapter_bytes,
    gradient_bytes,
    module_bytes,
    weight_bytes,
)
from estimator.parallel.strategies import reference_bytes, resident_memory, rule
from estimator.parallel.tensor_parallel import part_of
from estimator.parallel.tensors import ModelTensor, module_tensors
from estimator.passes import whole_logits
from estimator.passes.batch import passed_rows
from estimator.resident.optimizer import optimizer_states, state_rule, step_transient
from estimator.resident.overhead import (
    CONTEXT_UNKNOWN,
    HANDLES,
    context_bytes,
    exchange_bytes,
    need_bytes,
    workspace_bytes,
)
from estimator.run.device_map import buffers_on
from estimator.step.timeline import structure
from estimator.tape import fused, operators
from estimator.tape.attention import attention
from estimator.values.facets.mesh import Mesh
from estimator.values.losses import Loss
from estimator.values.results import Estimate, HeldTensors
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Offload, Phase

Function = Callable[..., Any]


class Term(NamedTuple):
    """One term of a sum."""

    what: str
    how: str
    bytes: int


class Explanation(NamedTuple):
    """How the bytes of one component were computed."""

    lead: str
    terms: Sequence[Term]
    functions: Sequence[Function]
    """The functions that computed them, most important first."""


def explain(of: Estimate, part: Component | None) -> Explanation:
    """A component at the peak on the fullest GPU; None: memory outside PyTorch's counter."""
    match part:
        case None:
            return _outside(of)
        case Component.WEIGHTS:
            return _weights(of)
        case Component.ADAPTERS:
            return _adapters(of)
        case Component.REFERENCE_MODEL:
            return _reference(of)
        case Component.INFERENCE_ENGINE:
            return _engine(of)
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
        case Component.COMMUNICATION:
            return _communication(of)
        case _:
            return _temporaries(of)


class _Own(NamedTuple):
    """What one GPU has of an unsharded model: all of it, or its part of a device map."""

    modules: Sequence[tuple[Module, int]]
    tied: Sequence[tuple[Module, int]]
    """The head, if it is tied."""
    buffers: Sequence[Buffer]
    layers: int


def _own(of: Estimate) -> _Own:
    model, setup = part_of(of.model, of.setup.mesh.tp_size), of.setup
    gpu = of.run.device
    if gpu is None:
        modules = made_modules(model, setup.adapters)
        tied = [(head, 1) for head in tied_head(model)]
        beside = (*buffers(model), *tower_buffers(model, setup.adapters))
        return _Own(modules, tied, beside, model.num_hidden_layers)
    at = module_devices(model, of.gpu, setup)
    return _Own(
        modules_on(model, at, gpu),
        heads_on(model, at, gpu),
        buffers_on(model, at, gpu),
        len(at.layers_on(gpu)),
    )


def _is_divided(mesh: Mesh) -> bool:
    return mesh.strategy.is_fsdp or mesh.strategy.is_zero


def _whose(mesh: Mesh) -> str:
    if mesh.tp_size > 1:
        return f"The rank's part of every matrix, one of {mesh.tp_size:,}, and every norm"
    return "Every parameter of the model"


def _ranks(mesh: Mesh) -> str:
    """The GPUs of a shard group: ``4 GPUs``, or with hsdp ``4 GPUs of 8``."""
    whole = f" of {mesh.num_gpus:,}" * (mesh.shard_ranks != mesh.num_gpus)
    return f"{mesh.shard_ranks:,} GPUs{whole}"


def _weights(of: Estimate) -> Explanation:
    functions: tuple[Function, ...] = (weight_bytes, module_bytes)
    own = _own(of)
    if _is_divided(of.setup.mesh):
        share, functions = _weight_share(of)
        terms = [share]
        lead = f"This GPU's shard of every parameter, divided among {_ranks(of.setup.mesh)}"
        if of.setup.mesh.strategy.partitions_flat:
            lead = f"{of.setup.mesh.strategy} keeps every parameter in full on each GPU"
        lead += "; weights gathered from other GPUs are added while they are used."
    else:
        terms = [_module_term(module, count, of.setup) for module, count in own.modules]
        lead = (
            f"{_whose(of.setup.mesh)} stays on the GPU from loading to the end; "
            "each tensor is rounded up to 512 bytes."
        )
        if of.devices:
            lead = (
                f"The modules that the device map puts on this GPU, {own.layers} of "
                f"{of.model.num_hidden_layers} layers among them; each tensor is rounded up to 512 bytes."
            )
        if of.setup.adapters.has_4bit_base:
            functions = (*functions, quantized_bytes)
    terms += [
        Term(
            buffer.name,
            f"{_times(buffer.copies)}a buffer, not trained",
            buffer.copies * buffer.bytes,
        )
        for buffer in own.buffers
    ]
    return Explanation(lead, [*terms, *_alive(of, Component.WEIGHTS)], functions)


def _reference(of: Estimate) -> Explanation:
    lead = (
        f"A second model with the same {of.total_parameters:,} parameters in {of.setup.precision.dtype}, which the "
        f"loss of {of.setup.task.objective} evaluates but never trains."
    )
    term = Term(
        "its weights",
        f"as loaded, {of.setup.precision.dtype.bytes} bytes per parameter",
        reference_bytes(of.model, of.setup),
    )
    return Explanation(lead, [term], (reference_bytes,))


def _engine(of: Estimate) -> Explanation:
    """vLLM during the training step: all that it took, or what stays while it sleeps."""
    if of.gpu is None or not of.setup.generation.is_colocated:
        return Explanation(
            "Nothing but training steps runs on the GPU while it trains.", [], (engine,)
        )
    own, share = (
        colocated_engine(of.model, of.gpu, of.setup),
        of.setup.generation.vllm_gpu_memory_utilization,
    )
    if of.setup.generation.vllm_enable_sleep_mode:
        lead = "vLLM sleeps while the step trains: its weights and its cache are freed, the rest stays."
        terms = [
            Term("the sampler's counts", f"of {own.max_num_seqs:,} rows", own.buffers),
            Term("CUDA graphs", "estimated", own.graphs),
        ]
        return Explanation(lead, terms, (buffer_bytes, graph_count))
    lead = (
        f"vLLM takes {share:g} of the whole GPU when it starts, and keeps it while the step trains."
    )
    rest = own.kept - own.weights - own.buffers
    terms = [
        Term("its weights", "16 bits per parameter, a copy of its own", own.weights),
        Term("the sampler's counts", f"of {own.max_num_seqs:,} rows", own.buffers),
        Term("keys and values, CUDA graphs", "all that is left of its share", rest),
    ]
    return Explanation(lead, terms, (engine, engine_weight_bytes, pages))


def _module_term(module: Module, count: int, setup: TrainingSetup) -> Term:
    if is_quantized(module, setup.adapters):
        width = (
            "8 bits and one scale per row"
            if setup.adapters.has_8bit_base
            else "4 bits and their scales"
        )
    elif setup.adapters.has_packed_base and setup.adapters.prepare_model_for_kbit_training:
        width = "4 bytes, after prepare_model_for_kbit_training"
    else:
        width = f"{setup.precision.dtype.bytes} bytes, as loaded"
    how = f"{_times(count)}{_shapes(weight_shapes(module))} × {width}"
    return Term(module.name, how, count * module_bytes(module, setup))


def _weight_share(of: Estimate) -> tuple[Term, tuple[Function, ...]]:
    """What a GPU holds of sharded weights between steps, or of unsharded ones under DeepSpeed."""
    setup = structure(of.setup)
    base = of.total_parameters - of.trainable_parameters * setup.adapters.uses_adapters
    how, what = f"of {base:,} parameters", "shards"
    if setup.mesh.strategy.is_zero:
        what = "DeepSpeed's weights"
        if setup.adapters.uses_adapters:
            how = f"of {of.total_parameters:,} parameters, including adapters"
    elif setup.mesh.uses_fsdp1:
        what = "flat parameters of its units"
    elif setup.mesh.offload_param is not Offload.NONE:
        what = "weights that stay"
    resident = resident_memory(of.model, setup)
    size = resident.weights - sum(buffer.copies * buffer.bytes for buffer in buffers(of.model))
    return Term(what, how, size), (rule(setup.mesh).resident,)


def _adapters(of: Estimate) -> Explanation:
    lead = f"Two narrow matrices for each adapted linear layer, of rank {of.setup.adapters.lora_r}."
    if of.setup.adapters.use_dora:
        lead += " DoRA adds one number per output, its trained magnitude."
    if of.setup.adapters.modules_to_save:
        lead += (
            " Modules in modules_to_save are added: the copy is trained, the original stays frozen."
        )
    alive = _alive(of, Component.ADAPTERS)
    if _is_divided(of.setup.mesh):
        share, functions = _adapter_share(of)
        lead += f" This is one GPU's shard of them, divided among {_ranks(of.setup.mesh)}."
        return Explanation(lead, [share, *alive], functions)
    own = _own(of)
    terms, copies = [], []
    for module, count in (*own.modules, *own.tied):
        added = [t for t in module_tensors(module, of.setup.adapters, count) if t.is_added]
        adapters = [tensor for tensor in added if tensor.is_adapter]
        if adapters:
            terms.append(_added_term(module.name, adapters, of.setup, " bytes"))
        if len(added) > len(adapters):
            copy = [tensor for tensor in added if tensor.is_copy]
            name = f"{module.name}, a trained copy"
            copies.append(_added_term(name, copy, of.setup, " bytes, as loaded"))
    functions = (adapter_bytes, module_tensors)
    return Explanation(lead, [*terms, *copies, *alive], functions)


def _added_term(name: str, tensors: Sequence[ModelTensor], setup: TrainingSetup, unit: str) -> Term:
    """Of some tensors of one module."""
    width = AS_LOADED.width(tensors[0], setup)
    shapes = _shapes([tensor.shape for tensor in tensors])
    how = f"{_times(tensors[0].alike)}({shapes}) × {width}{unit}"
    return Term(name, how, AS_LOADED.bytes(tensors, setup))


def _adapter_share(of: Estimate) -> tuple[Term, tuple[Function, ...]]:
    setup, how = structure(of.setup), f"of {of.trainable_parameters:,} parameters"
    what = "flat parameters of its units" if setup.mesh.uses_fsdp1 else "shards"
    if setup.mesh.strategy.is_zero:  # DeepSpeed counts them with the weights
        what = "among the weights"
    size = resident_memory(of.model, setup).adapters
    return Term(what, how, size), (rule(setup.mesh).resident,)


def _states(of: Estimate) -> Explanation:
    size, trained = of.timeline.resident[Component.OPTIMIZER_STATES], of.trainable_parameters
    when = (
        "from the start"
        if starts_with_states(of.setup.optimisation)
        else "from the end of the first step on"
    )
    each = f"{size / max(trained, 1):.2f} bytes"
    lead = f"{of.setup.optimisation.optim} keeps {each} per trained parameter, {when}."
    how = f"{trained:,} × {each}"
    if of.setup.mesh.num_gpus > 1 and (
        of.setup.mesh.tp_size > 1 or not of.setup.mesh.strategy.keeps_whole
    ):
        lead = f"What {of.setup.optimisation.optim} keeps on one GPU of {of.setup.mesh.num_gpus:,}, {when}."
        how = f"of {trained:,} trained parameters"
    if of.setup.mesh.strategy.is_zero:
        lead += " This includes DeepSpeed's float32 weights, which exist from the start."
    line = Term("all trained tensors", how, size)
    return Explanation(lead, [line], (optimizer_states, state_rule(of.setup.optimisation.optim)))


def _workspace(of: Estimate) -> Explanation:
    size = workspace_bytes(of.gpu)
    lead = "cuBLAS keeps scratch memory for each handle, the same at every moment."
    line = Term("cuBLAS", f"{HANDLES} handles × {size // HANDLES:,} bytes", size)
    return Explanation(lead, [line], (workspace_bytes,))


def _outside(of: Estimate) -> Explanation:
    peak = of.decisive.bytes
    exchange = exchange_bytes(of.setup.mesh).high
    slack = of.need_high_bytes - peak - of.context_bytes.high - of.paged_bytes - exchange
    processes = of.setup.processes_per_gpu
    blocks = f"at most 3 % of the peak of {peak:,} bytes"
    if of.needs.replay is not None:
        blocks = f"least memory of {peak + slack:,} bytes for {peak:,} bytes of tensors"
    read = "the highest reading"
    if of.gpu is not None and context_bytes(of.gpu) != CONTEXT_UNKNOWN:
        read += f" for {of.gpu.multiprocessors} multiprocessors"
    read += f", for each of {processes} processes" * (processes > 1)
    terms = [
        Term("CUDA context and kernels", read, of.context_bytes.high),
        Term("PyTorch's allocator", blocks, slack),
    ]
    if exchange:
        terms.append(Term("NCCL's buffers", "the highest reading", exchange))
    if of.paged_bytes:
        terms.append(Term("paged states", "if none of them is evicted", of.paged_bytes))
    lead = "Memory that the process takes beyond what torch.cuda.max_memory_allocated() counts."
    return Explanation(lead, terms, (need_bytes, context_bytes))


def _activations(of: Estimate) -> Explanation:
    kept = sum(held.bytes for held in of.timeline.kept_by_a_layer())
    layers = _own(of).layers
    lead = (
        f"One layer keeps {kept:,} bytes from forward to backward, {kept / of.setup.batch.tokens:,.0f} per token; "
        f"{layers} layers keep {kept * layers:,}. "
        "Backward frees them layer by layer; below is what is alive at the peak, by the operator that made it."
    )
    fused_ones = kernels(of.model, of.setup.computation, of.setup.adapters)
    norm = fused.rms_norm if fused_ones.norm else operators.rms_norm
    gated = (fused.gated,) if fused_ones.mlp else ()
    return Explanation(
        lead,
        list(_alive(of, Component.ACTIVATIONS)),
        (family_of(of.model).layer.forward, attention, operators.linear, norm, *gated),
    )


def kept_terms(of: Estimate) -> list[Term]:
    """What one layer keeps from forward to backward."""
    return [_term(held) for held in of.timeline.kept_by_a_layer()]


def _gradients(of: Estimate) -> Explanation:
    mesh = of.setup.mesh
    trained = of.trainable_parameters
    divided = _is_divided(mesh) or mesh.tp_size > 1 or bool(of.devices)
    complete = of.phases[Phase.OPTIMIZER_STEP].resident.get(Component.GRADIENTS, 0)
    where = "of them this GPU has" if divided else "all together"
    lead = (
        f"{trained:,} trained parameters have a gradient each; {where} {complete:,} bytes at the optimizer's step. "
        "They are created one by one in backward and freed after the step"
        + (
            "; with accumulation they stay from the first micro-step on."
            if of.setup.batch.gradient_accumulation_steps > 1
            else "."
        )
    )
    if loss_of(of.model, of.setup).fuses_gradient and not of.setup.adapters.uses_adapters:
        lead += " Liger computes the head's gradient with the loss, so it exists before backward begins."
    if of.peak.phase is Phase.OPTIMIZER_STEP:
        how = f"{'of ' * divided}{trained:,} parameters, each in its dtype"
        return Explanation(lead, [Term("all trained tensors", how, complete)], (gradient_bytes,))
    terms = list(_alive(of, Component.GRADIENTS))
    if before := of.timeline.resident[Component.GRADIENTS]:
        how = f"of {trained:,} trained parameters"
        terms.insert(0, Term("held when the micro-step begins", how, before))
    return Explanation(lead, terms, (gradient_bytes,))


def _communication(of: Estimate) -> Explanation:
    """DDP's and DeepSpeed's buckets are permanent; gathers and reductions are temporary."""
    lead = "Buffers through which GPUs exchange weights and gradients."
    terms = list(_alive(of, Component.COMMUNICATION))
    if buffers := of.timeline.resident[Component.COMMUNICATION]:
        terms.insert(0, Term("buckets", "held all the time", buffers))
    mesh = of.setup.mesh
    function: Function = rule(mesh).resident if mesh.strategy.is_zero else Fsdp2Group.gather
    if of.setup.mesh.strategy.averages_in_buckets:
        function = bucket_bytes
    elif of.setup.mesh.uses_fsdp1:
        function = FlatUnit.gather
    return Explanation(lead, terms, (function,))


LOSSES: Mapping[Loss, tuple[str, Function]] = {
    Loss.LIGER: (
        "Liger computes them for one chunk of tokens at a time, together with both gradients of the head.",
        fused.linear_cross_entropy,
    ),
    Loss.SELECTIVE_TRL: (
        "TRL before 1.15 computes them all, and its loss keeps them.",
        whole_logits.ask,
    ),
    Loss.SELECTIVE_VERL: (
        "verl computes those of every token in 16 bits, and backward writes their gradient over them.",
        fused.flash_cross_entropy,
    ),
    Loss.SELECTIVE: (
        "ms-swift computes those of the completions, and its loss keeps one copy of them.",
        whole_logits.ask,
    ),
    Loss.CHUNKED_TRL: (
        "TRL computes them in tiles of at most 4,096 tokens × 32,768 words, in forward and once more in backward.",
        fused.log_probabilities,
    ),
}


def _logits(of: Estimate) -> Explanation:
    setup, words = of.setup, of.model.vocab_size
    rows, length = passed_rows(setup), setup.batch.max_length
    copy = rows * length * words * 4
    if (loss := loss_of(of.model, setup)) in LOSSES:
        whole, function = LOSSES[loss]
        lead = f"A float32 copy of all logits would take {copy:,} bytes. {whole}"
        return Explanation(lead, list(_alive(of, Component.LOGITS)), (function,))
    lead = (
        f"{rows:,} × {length:,} tokens × {words:,} words × 4 bytes are {copy:,} bytes per float32 copy; the loss makes "
        "up to three."
    )
    by: Function = (
        whole_logits.ask if setup.task.objective.has_reference else operators.log_softmax_loss
    )
    return Explanation(lead, list(_alive(of, Component.LOGITS)), (by,))


def _temporaries(of: Estimate) -> Explanation:
    lead = "Tensors that live for one operation, or until the next one reads them."
    if of.peak.phase is Phase.OPTIMIZER_STEP:
        size = of.peak.resident.get(Component.TEMPORARIES, 0)
        return Explanation(lead, [Term(of.peak.name, "at its highest", size)], (step_transient,))
    product: Function = operators.linear
    if of.setup.adapters.has_packed_base:
        product = (
            operators.linear_8bit if of.setup.adapters.has_8bit_base else operators.linear_4bit
        )
    return Explanation(lead, list(_alive(of, Component.TEMPORARIES)), (product, step_transient))


def _alive(of: Estimate, part: Component) -> Iterator[Term]:
    if of.peak.phase is Phase.OPTIMIZER_STEP:
        return
    yield from (_term(held) for held in of.timeline.held(of.peak.phase) if held.component is part)


def _term(held: HeldTensors) -> Term:
    name = held.operation or "before the first operator"
    if held.bytes < 0:
        name = "freed since the micro-step began"
    count = abs(held.tensors)
    tensors = f"{count:,} tensor{'s' * (count != 1)}"
    return Term(name, tensors, held.bytes)


def _times(count: int) -> str:
    return f"{count} × " if count > 1 else ""


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return " + ".join(" × ".join(f"{size:,}" for size in shape) for shape in shapes)

"""From a setup to its estimate: the one function that joins the formulas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from operator import attrgetter

from estimator.answer.assumptions import assumptions, run_assumptions
from estimator.answer.images import check_images
from estimator.families.adapters import is_adapted
from estimator.families.counts import outer_modules, tied_head
from estimator.families.liger import check_liger, loss_of
from estimator.families.module_tree import splits_packed_experts
from estimator.families.modules import Embedding, Linear
from estimator.families.registry import architecture
from estimator.families.towers import has_towers
from estimator.families.wrapped import class_not_found, classes_of
from estimator.inference.colocation import generating
from estimator.inference.refusals import check_generation
from estimator.inference.seconds import time_of
from estimator.inference.trainer_beside import offloaded_bytes
from estimator.objectives.compiled import check_compiled
from estimator.objectives.float8 import (
    check_float8,
    check_float8_card,
    check_float8_tokens,
)
from estimator.objectives.refusals import check_objective, check_rows
from estimator.objectives.registry import as_trained
from estimator.parallel.combinations import (
    beyond_one_machine,
    clipped_in_backward,
    refused,
    shares_between_layers,
)
from estimator.parallel.ddp import finds_unused
from estimator.parallel.fsdp1 import check_units
from estimator.parallel.fsdp2_hooks import check_head
from estimator.parallel.module_devices import ModuleDevices, module_devices
from estimator.parallel.offload import node_bytes
from estimator.parallel.sharding import check_groups, loads_sharded
from estimator.parallel.strategies import resident_memory
from estimator.parallel.tensor_parallel import check_tensor_parallel
from estimator.resident.model import Resident, trainable_tensors
from estimator.resident.optimizer import LOW_RANK_OPTIMIZERS
from estimator.resident.overhead import (
    context_bytes,
    exchange_bytes,
    need_bytes,
    workspace_bytes,
)
from estimator.run.checkpoints import checkpoint, gathers_to_save, save_moment
from estimator.run.device_map import Share, peaks, shares
from estimator.run.loading import load_host_bytes, load_moment
from estimator.run.prequantized import as_loaded
from estimator.run.saving import checkpoints_at_once
from estimator.step.evaluation import evaluation_moment, evaluation_walk
from estimator.step.reserved import NeedInTheAllocator, goes_through, is_replayed, outside
from estimator.step.timeline import Plan, StepTimeline, plan, structure
from estimator.time.cost import energy_kwh, run_cost
from estimator.time.offload_time import node_copies
from estimator.time.rates import missing_rate
from estimator.values.facets.generation import Generation
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.run import TrainingRun
from estimator.values.range import Range
from estimator.values.refusals import NOT_MODELLED, Line, Refusal, Report
from estimator.values.remembered import remembered
from estimator.values.results import DeviceRun, Estimate, Moment, OnDevice
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    AttnImplementation,
    Component,
    Dtype,
    Gpu,
    MixedPrecision,
    Model,
    Phase,
)
from estimator.values.strategies import Strategy

MOST_BYTES = 64 * 2**20
"""Bytes that remembered estimates hold: ours. The records among them are mostly those that are kept anyway."""


def _parts(of: Estimate) -> Iterator[tuple[object, int]]:
    yield from of.timeline.parts
    for run in of.device_runs:
        yield from run.timeline.parts


@remembered(1024, MOST_BYTES, _parts)
def estimate(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Estimate:
    """Peak memory of a training step in bytes per GPU, its components, the verdict; hours and dollars of the whole run.

    Raises ``ValueError`` with one sentence if the architecture is not modelled or the setup contradicts the model.
    """
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    check_float8_card(gpu, setup.precision)
    workspace = workspace_bytes(gpu)
    fixed = per_structure(model, structure(setup), workspace)
    check_sizes(model, setup)
    devices: tuple[OnDevice, ...] = ()
    runs: tuple[DeviceRun, ...] = ()
    if setup.mesh.strategy.places_layers:
        share, devices, runs = _over_devices(model, gpu, setup, workspace)
    else:
        share = _alone(model, gpu, setup, fixed, workspace)
    step, paged = share.timeline.heights(), share.resident.states.paged_bytes
    phases = {**step, **share.beside, Phase.SAVE: share.save}
    counted = phases if gathers_to_save(setup) else {**step, **share.beside}
    decisive = max(counted.values(), key=attrgetter("bytes"))
    context = context_bytes(gpu, setup.processes_per_gpu)
    stated = _need_of(counted, paged, context, setup.mesh)
    saved = checkpoint(model, setup)
    time = cost = energy = None
    if gpu is not None and missing_rate(gpu, setup) is None:
        time = time_of(model, gpu, setup, fixed.whole)
        cost, energy = run_cost(time, gpu, setup), energy_kwh(time, gpu, setup.billed_gpus)
    return Estimate(
        model=model,
        gpu=gpu,
        setup=setup,
        timeline=share.timeline,
        phases=phases,
        peak=max(step.values(), key=attrgetter("bytes")),
        decisive=decisive,
        context_bytes=context,
        needs=NeedInTheAllocator(
            model, gpu, setup, stated, decisive.bytes, outside(setup.mesh, context, paged)
        ),
        paged_bytes=paged,
        host_bytes=_host_bytes(
            fixed,
            setup.run,
            saved.rank0_host_bytes,
            node_copies(model, setup)
            + _waiting_bytes(setup.generation, setup.mesh, fixed.resident),
        ),
        nvme_bytes=fixed.offloaded[1],
        disk_bytes=saved.disk_bytes,
        run_disk_bytes=checkpoints_at_once(setup) * saved.disk_bytes,
        total_parameters=fixed.resident.total_parameters,
        trainable_parameters=fixed.resident.trainable_parameters,
        assumptions=(*assumptions(model, gpu, setup), *run_assumptions(gpu, setup, time)),
        time=time,
        cost=cost,
        energy_kwh=energy,
        devices=devices,
        device_runs=runs,
    )


def _need_of(
    moments: Mapping[Phase, Moment], paged: int, context: Range[int], mesh: Mesh
) -> Range[int]:
    """The need of a run with these highest moments, of which two may set its ends: an engine has no slack."""
    exchange, engine = exchange_bytes(mesh), Component.INFERENCE_ENGINE
    ends = [
        need_bytes(moment.bytes, paged, context, exchange, moment.resident.get(engine, 0))
        for moment in moments.values()
    ]
    return Range(max(end.low for end in ends), max(end.high for end in ends))


def _alone(
    model: Model,
    gpu: Gpu | None,
    setup: TrainingSetup,
    fixed: PerStructure,
    workspace: int,
    *,
    must_start: bool = True,
) -> Share:
    """The share of one GPU: the only one, or the fullest of several that run the same step."""
    more = generating(model, gpu, setup, fixed.resident, fixed.load, must_start=must_start)
    resident = replace(fixed.resident, engine=more.in_steps)
    beside = {Phase.LOAD: fixed.load, **more.moments}
    if setup.run.eval_strategy != "no":
        beside[Phase.EVALUATION] = _with_engine(
            evaluation_moment(model, setup, workspace), more.in_steps
        )
    timeline = StepTimeline(setup, fixed.plan, resident, workspace)
    return Share(0, resident, timeline, beside, _with_engine(fixed.save, more.in_steps))


def _with_engine(moment: Moment, engine: int) -> Moment:
    """The same moment beside an inference engine."""
    if not engine:
        return moment
    return moment._replace(resident={**moment.resident, Component.INFERENCE_ENGINE: engine})


def _over_devices(
    model: Model, gpu: Gpu | None, setup: TrainingSetup, workspace: int
) -> tuple[Share, tuple[OnDevice, ...], tuple[DeviceRun, ...]]:
    """The GPU of a device map that needs most, the memory of every GPU, and each one's part of the run."""
    at = module_devices(model, gpu, setup)
    found = {share.gpu: share for share in shares(model, setup, at, workspace)}
    devices = []
    for number, share in found.items():
        step = share.timeline.heights()
        decisive = max((*step.values(), *share.beside.values()), key=attrgetter("bytes"))
        devices.append(
            OnDevice(
                number,
                at.layers_on(number),
                at.outside_on(number),
                {part: size for part, size in share.resident.sizes(0).items() if size},
                max(step.values(), key=attrgetter("bytes")),
                need_bytes(decisive.bytes, share.resident.states.paged_bytes, context_bytes(gpu)),
            )
        )
    fullest = max(devices, key=lambda device: device.need.high).device
    runs = (
        DeviceRun(number, share.timeline, {**share.beside, Phase.SAVE: share.save})
        for number, share in found.items()
    )
    return found[fullest], tuple(devices), tuple(runs)


class PerStructure:
    """Results independent of batch and length, cached per structure; those that only ``estimate`` needs are lazy.

    Raises ``ValueError`` if the architecture is not modelled or the structure contradicts itself.
    """

    def __init__(self, model: Model, structure: TrainingSetup, workspace: int) -> None:
        self._model, self._structure, self._workspace = model, structure, workspace
        self.plan, self.resident = _on_any_card(model, structure)

    @cached_property
    def whole(self) -> Resident:
        """Resident memory of one GPU without sharding, which sets the traffic."""
        same = self._structure
        if not same.mesh.strategy.shards_states:
            return self.resident
        alone = same.replace(strategy=Strategy.NONE, num_gpus=1, dp_replicate_size=1)
        return resident_memory(self._model, alone)

    @cached_property
    def load(self) -> Moment:
        """The highest moment of loading."""
        if not loads_sharded(self._structure):
            loaded = load_moment(self._model, self._structure, self._workspace)
            return _with_reference(loaded, self.resident.reference)
        parts = {
            Component.WEIGHTS: self.resident.weights,
            Component.ADAPTERS: self.resident.adapters,
            Component.REFERENCE_MODEL: self.resident.reference,
        }
        return Moment(Phase.LOAD, "the last shard arrives", parts)

    @cached_property
    def offloaded(self) -> tuple[int, int]:
        """Bytes offloaded per machine: to its memory and to its NVMe."""
        return node_bytes(self._model, self._structure)

    @cached_property
    def save(self) -> Moment:
        """The highest moment while a checkpoint is written.

        Below the step's peak unless weights are gathered: beside weights and states it holds only copies of experts,
        which are smaller than their gradients.
        """
        return save_moment(self._model, self._structure, self.resident, self._workspace)

    @cached_property
    def load_host_bytes(self) -> int:
        """Bytes on the host while loading."""
        return load_host_bytes(self._model, self._structure)


def _with_reference(loaded: Moment, reference: int) -> Moment:
    """The same after a reference model has also been loaded, in the same way."""
    if not reference:
        return loaded
    parts = {**loaded.resident, Component.REFERENCE_MODEL: reference}
    return Moment(Phase.LOAD, "the reference model arrives", parts)


@lru_cache(maxsize=1024)
def _on_any_card(model: Model, structure: TrainingSetup) -> tuple[Plan, Resident]:
    """What no card changes of a structure that is not refused."""
    _check(model, structure)
    return plan(model, structure), resident_memory(model, structure)


per_structure = lru_cache(maxsize=2048)(PerStructure)
"""The same, remembered."""


def fits(model: Model, gpu: Gpu, setup: TrainingSetup) -> bool:
    """Whether the verdict of ``estimate`` is that the setup fits, without computing its moments.

    Raises ``ValueError`` as ``estimate`` does.
    """
    if bound(model, gpu, setup) > gpu.memory_bytes:
        return False
    if not is_replayed(model, gpu, setup):
        return True
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    highest, paged = _sizes(model, workspace_bytes(gpu), setup)
    beside = outside(setup.mesh, context_bytes(gpu), paged).high
    return goes_through(model, gpu, setup, gpu.memory_bytes - beside, highest)


def bound(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> int:
    """Bytes without which a setup does not fit, whatever PyTorch's allocator makes of its tensors.

    ``need``'s high end, without the slack of published runs where the run is replayed. Raises ``ValueError`` as
    ``estimate`` does.
    """
    if not is_replayed(model, gpu, setup):
        return need(model, gpu, setup).high
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    check_float8_card(gpu, setup.precision)
    highest, paged = _sizes(model, workspace_bytes(gpu), setup)
    return highest + outside(setup.mesh, context_bytes(gpu), paged).high


def need(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Range[int]:
    """Bytes needed per GPU, with the allocator's slack of published runs, without computing moments.

    Of a run that is replayed, ``estimate`` has the allocator's own least memory instead.

    Raises ``ValueError`` as ``estimate`` does, but not where vLLM does not start on this GPU: it needs more than that.
    """
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    check_float8_card(gpu, setup.precision)
    if setup.mesh.strategy.places_layers:
        found = _over_devices_sizes(
            model, workspace_bytes(gpu), setup, module_devices(model, gpu, setup)
        )
        needs = [need_bytes(*sizes, context_bytes(gpu)) for sizes in found]
        return max(needs, key=lambda ends: ends.high)
    workspace = workspace_bytes(gpu)
    if not setup.task.objective.generates:
        sizes = _sizes(model, workspace, setup)
        return need_bytes(*sizes, context_bytes(gpu), exchange_bytes(setup.mesh))
    fixed = per_structure(model, structure(setup), workspace)
    check_sizes(model, setup)
    share = _alone(model, gpu, setup, fixed, workspace, must_start=False)
    phases = {**share.timeline.heights(), **share.beside}
    if gathers_to_save(setup):
        phases[Phase.SAVE] = share.save
    context = context_bytes(gpu, setup.processes_per_gpu)
    return _need_of(phases, share.resident.states.paged_bytes, context, setup.mesh)


@lru_cache(maxsize=8192)
def _over_devices_sizes(
    model: Model, workspace: int, setup: TrainingSetup, at: ModuleDevices
) -> tuple[tuple[int, int], ...]:
    """Peak and paged states of each GPU of a device map."""
    per_structure(model, structure(setup), workspace)
    check_sizes(model, setup)
    return tuple(
        (peak, resident.states.paged_bytes) for peak, resident in peaks(model, setup, at, workspace)
    )


@lru_cache(maxsize=8192)
def _sizes(model: Model, workspace: int, setup: TrainingSetup) -> tuple[int, int]:
    """Highest moment and paged states: of the GPU only the size of its workspace matters to them."""
    fixed = per_structure(model, structure(setup), workspace)
    check_sizes(model, setup)
    timeline = StepTimeline(setup, fixed.plan, fixed.resident, workspace)
    peak = max(timeline.peak_bytes, fixed.load.bytes)
    if setup.run.eval_strategy != "no":
        peak = max(peak, evaluation_walk(model, setup, workspace).peak_bytes)
    if gathers_to_save(setup):
        peak = max(peak, fixed.save.bytes)
    return peak, fixed.resident.states.paged_bytes


def _host_bytes(fixed: PerStructure, run: TrainingRun, saving: int, copies: int) -> int:
    """Bytes that the host needs at most: while loading, or for a checkpoint on top of what is offloaded."""
    offloaded = fixed.offloaded[0] + copies
    if run.save_strategy == "no":
        return max(fixed.load_host_bytes, offloaded)
    return max(fixed.load_host_bytes, offloaded + saving)


def _waiting_bytes(generation: Generation, mesh: Mesh, resident: Resident) -> int:
    """What a machine's GPUs offload while vLLM generates."""
    gpus = min(mesh.num_gpus, mesh.gpus_per_node)
    return gpus * sum(offloaded_bytes(generation, resident))


def is_refused(model: Model, setup: TrainingSetup) -> bool:
    """Whether ``need`` refuses the setup on any GPU (a yes or no), told without a step."""
    try:
        model, setup = as_trained(model, setup)
        setup = as_loaded(model, setup)
        _check(model, structure(setup))
        check_sizes(model, setup)
    except ValueError:
        return True
    return False


def least_need(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> int:
    """Lower bound of the need in bytes per GPU for any batch, length or kernel: that of the optimizer's step."""
    model, setup = as_trained(model, setup)
    setup = as_loaded(model, setup)
    step = resident_memory(model, structure(setup)).step_bytes
    if setup.mesh.strategy.places_layers:  # the fullest GPU holds at least an even share
        step //= setup.mesh.num_gpus
    return need_bytes(step, 0, context_bytes(gpu), exchange_bytes(setup.mesh)).low


NO_FLASH = Refusal(
    "attn_implementation flash_attention_2 does not support the {lacks} of {model_type}; use sdpa.",
    Line("transformers", "modeling_utils.py", 1594, "does not support Flash Attention"),
)
OTHER_FLASH = Refusal(
    "attn_implementation flash_attention_2 does not support the {lacks} of {model_type}, so transformers uses another "
    "kernel (vllm-flash-attn3), which is not modelled yet; use eager.",
    NOT_MODELLED,
)
FLASH_IN_FLOAT32 = Refusal(
    "attn_implementation flash_attention_2 takes 16-bit inputs only; use sdpa, or bf16 mixed precision.",
    Report(
        "https://github.com/Dao-AILab/flash-attention/blob/v2.8.3/csrc/flash_attn/flash_api.cpp"
    ),
)
SPLIT_EXPERTS = Refusal(
    "{packing} is not modelled yet for {model_type}, whose experts transformers splits before quantising them; use "
    "method lora on a 16-bit base.",
    NOT_MODELLED,
)
WEIGHT_READ = Refusal(
    "{packing} fails in {model_type}, whose forward multiplies by the weight of {weight} directly, which is no longer "
    "a matrix once packed ('a and b must have same reduction dim'); use method lora on a 16-bit base.",
    Line(
        "transformers",
        "models/gemma3n/modeling_gemma3n.py",
        1060,
        "all_coefs = torch.nn.functional.linear(modalities, weight, bias=None) + 1.0",
    ),
)
SHARES_BETWEEN_LAYERS = Refusal(
    "strategy {strategy} is not modelled yet for {model_type}, whose layers share embeddings, or keys and values; use "
    "none or ddp.",
    NOT_MODELLED,
)
ROUTER_LOSS_OVER_DEVICES = Refusal(
    "output_router_logits under device_map is not modelled yet; set it to false in the config, or use strategy fsdp.",
    NOT_MODELLED,
)
NOTHING_TO_PROJECT = Refusal(
    "optim {optim} projects gradients of nn.Linear layers, and {model_type} trains none; use another optimizer.",
    Line("transformers", "trainer_optimizer.py", 154, "No target modules found for"),
)
BEYOND_LEARNED_POSITIONS = Refusal(
    "max_length {max_length} exceeds the {limit} positions that {model_type} has learned; lower it.",
    Line("transformers", "models/gpt2/modeling_gpt2.py", 574, "self.wpe(position_ids)"),
)


CLASS_NOT_FOUND = Refusal(
    "strategy {strategy} fails with {made}, which AutoModelForCausalLM loads: accelerate looks for each class that "
    "transformers does not split, and the model has no {missing}; take model_class text.",
    Line("accelerate", "utils/fsdp_utils.py", 953, "Could not find the transformer layer class"),
)
UNUSED_IN_DDP = Refusal(
    "strategy ddp fails at the second step of {made}, whose towers get no gradient in a step on text: with "
    "gradient_checkpointing Trainer does not make DDP look for unused parameters; take model_class text, or turn "
    "gradient_checkpointing off.",
    Line("transformers", "trainer.py", 754, "find_unused = not (self.model.is_activation"),
)
TOWERS_LATER = Refusal(
    "strategy {strategy} is not modelled yet for {made}, which AutoModelForCausalLM loads with its towers; take "
    "model_class text.",
    NOT_MODELLED,
)


def _check_towers(model: Model, setup: TrainingSetup) -> None:
    if not has_towers(model, setup.adapters):
        return
    strategy, made = setup.mesh.strategy, classes_of(model.model_type).made
    missing = class_not_found(model)
    if strategy.is_fsdp and missing:
        raise CLASS_NOT_FOUND(strategy=strategy, made=made, missing=missing)
    if strategy.averages_in_buckets and not finds_unused(setup):
        raise UNUSED_IN_DDP(made=made)
    if not strategy.keeps_whole:
        raise TOWERS_LATER(strategy=strategy, made=made)


def _check(model: Model, setup: TrainingSetup) -> None:
    family = architecture(model)
    check_objective(model, setup)
    check_liger(model, setup)
    check_compiled(model, setup)
    check_units(model, setup.adapters, setup.mesh)
    check_groups(model, setup)
    check_head(model, setup)
    check_tensor_parallel(model, setup.mesh)
    _check_outer_adapters(model, setup)
    check_float8(model, setup)
    if problem := refused(setup):
        raise problem
    is_flash = setup.computation.attn_implementation is AttnImplementation.FLASH_ATTENTION_2
    if is_flash and family.flash_lacks:
        record = OTHER_FLASH if family.eager_only else NO_FLASH
        raise record(lacks=family.flash_lacks, model_type=model.model_type)
    packing = "load_in_8bit" if setup.adapters.has_8bit_base else "method qlora"
    if splits_packed_experts(model) and setup.adapters.has_packed_base:
        raise SPLIT_EXPERTS(packing=packing, model_type=model.model_type)
    if family.reads_weights and setup.adapters.has_packed_base:
        raise WEIGHT_READ(packing=packing, model_type=model.model_type, weight=family.reads_weights)
    if shares_between_layers(model, setup.mesh):
        raise SHARES_BETWEEN_LAYERS(strategy=setup.mesh.strategy, model_type=model.model_type)
    _check_towers(model, setup)
    check_images(model, setup)
    if setup.mesh.strategy.places_layers and model.output_router_logits:
        raise ROUTER_LOSS_OVER_DEVICES()
    if setup.optimisation.optim in LOW_RANK_OPTIMIZERS and not any(
        tensor.is_linear for tensor in trainable_tensors(model, setup)
    ):
        raise NOTHING_TO_PROJECT(optim=setup.optimisation.optim, model_type=model.model_type)
    in_float32 = (
        setup.precision.dtype is Dtype.FLOAT32
        and setup.precision.mixed_precision is MixedPrecision.NO
    )
    if in_float32 and is_flash:
        raise FLASH_IN_FLOAT32()


LATER = Refusal(
    "lora_target_modules names {name}, whose adapter is not modelled yet with {what}; leave it out, or {instead}.",
    NOT_MODELLED,
)


def _check_outer_adapters(model: Model, setup: TrainingSetup) -> None:
    """Refuses adapters on the embedding and the head if their step is not modelled."""
    for module in (*outer_modules(model), *tied_head(model)):
        if not isinstance(module, Linear | Embedding) or not is_adapted(module, setup.adapters):
            continue
        is_head = module.name == "lm_head"
        if not (is_head or isinstance(module, Embedding)):
            continue
        loss, strategy = loss_of(model, setup), setup.mesh.strategy
        if not strategy.keeps_whole:
            raise LATER(name=module.name, what=f"strategy {strategy}", instead="use strategy ddp")
        if is_head and not loss.calls_head:
            raise LATER(name=module.name, what=f"loss {loss}", instead="use loss standard")
        if isinstance(module, Embedding) and setup.adapters.use_dora:
            raise LATER(name=module.name, what="use_dora", instead="turn use_dora off")


def check_sizes(model: Model, setup: TrainingSetup) -> None:
    """Refuse what a structure cannot tell: a batch, a length or a number of GPUs that the rest forbids."""
    if problem := beyond_one_machine(setup) or clipped_in_backward(setup.optimisation):
        raise problem
    check_rows(setup)
    check_float8_tokens(setup.precision, setup.batch)
    check_generation(model, setup)
    if 0 < model.position_limit < setup.batch.max_length:
        raise BEYOND_LEARNED_POSITIONS(
            max_length=setup.batch.max_length,
            limit=model.position_limit,
            model_type=model.model_type,
        )

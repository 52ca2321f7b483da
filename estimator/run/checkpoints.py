"""Bytes of one of Trainer's checkpoints under each strategy, and GPU memory while it is saved.

Source: as in ``estimator.run.saving`` and ``estimator.run.sharded_saving``.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

from estimator.families.loaded import made_modules
from estimator.families.model_tree import outer_modules
from estimator.families.packed import FLOAT32_BYTES
from estimator.families.weights import adapter_width, unquantized_width
from estimator.parallel.computed import computed_width
from estimator.parallel.fsdp1 import largest_unit_bytes, nested_units_bytes, trained_width
from estimator.parallel.placements import Replicate, unsharded
from estimator.parallel.sharding import SHARDED, sharded_groups, sharded_width
from estimator.parallel.strategies import at_rest, resident_memory
from estimator.parallel.tensor_parallel import largest_whole_bytes
from estimator.parallel.tensors import ModelTensor, module_tensors
from estimator.parallel.zero_partitions import SUB_GROUP
from estimator.resident.model import Resident
from estimator.run.saving import (
    checkpoint_bytes,
    save_host_bytes,
    saves_when,
    taken_apart_bytes,
)
from estimator.run.sharded_saving import (
    Saving,
    fsdp_full,
    fsdp_sharded,
    tensor_parallel,
    zero3_divided,
    zero3_gathered,
    zero_replicated,
)
from estimator.step.timeline import structure
from estimator.values.arithmetic import ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import SHARDED_STATE_DICT, Component, Model, Offload, Phase


def checkpoint(model: Model, setup: TrainingSetup) -> Saving:
    """Bytes of one of Trainer's checkpoints: additional bytes on the fullest GPU, bytes on hosts and on disk.

    Source: derived, from the strategy's formula in ``run.sharded_saving``. If every GPU has a full copy, only rank 0
    saves: ``taken_apart_bytes``, ``save_host_bytes`` and ``checkpoint_bytes``.

    >>> from estimator.families.model_tree import total_parameters
    >>> from estimator.families.modules import TINY_LLAMA
    >>> only = TrainingSetup(save_only_model=True)
    >>> checkpoint(TINY_LLAMA, only).disk_bytes == 2 * total_parameters(TINY_LLAMA)
    True
    """
    return _checkpoint(model, at_rest(structure(setup)), setup.run.save_only_model)


def gathers_to_save(setup: TrainingSetup) -> bool:
    """Whether saving gathers sharded tensors on the GPU.

    Source: as in ``estimator.run.sharded_saving``.
    """
    if saves_when(setup.run) == "no":
        return False
    if setup.mesh.tp_size > 1:
        return True
    if setup.mesh.strategy.is_fsdp:
        return setup.mesh.uses_fsdp1 or setup.run.fsdp_state_dict_type != SHARDED_STATE_DICT
    return setup.mesh.strategy.gathers_modules and (
        setup.adapters.uses_adapters or setup.run.zero3_save_16bit_model
    )


def save_moment(model: Model, setup: TrainingSetup, resident: Resident, workspace: int) -> Moment:
    """Bytes alive on the fullest GPU while Trainer saves: weights, states, the workspace, and what saving adds.

    Gradients have been freed (``zero_grad`` sets them to None), and tensors are copied to the host to be written. Files
    store experts separately, so all layers' gates and ups are split first, which copies them on the GPU unless the
    strategy moved them to the host before. With adapters only these are saved. Sharded tensors are gathered one tensor
    or module at a time.

    Source: transformers 5.23, trainer.py, ``_maybe_log_save_evaluate`` after ``optimizer.step`` and ``zero_grad``;
    core_model_loading.py, ``revert_weight_conversion`` and ``Chunk.convert``; safetensors 0.8, torch.py,
    ``_to_ndarray``; torch 2.13, serialization.py, ``_save`` (each storage through the host); ``checkpoint``.
    """
    sizes, added = resident.sizes(workspace), checkpoint(model, setup).gpu_bytes
    divided = setup.mesh.strategy.shards_states or setup.mesh.tp_size > 1
    sizes[Component.COMMUNICATION if divided else Component.TEMPORARIES] += added
    name = "gathering weights to save" if divided and added else "saving a checkpoint"
    return Moment(Phase.SAVE, name, {c: n for c, n in sizes.items() if n})


@lru_cache(maxsize=1024)
def _checkpoint(model: Model, structure: TrainingSetup, only_model: bool) -> Saving:
    setup = structure.replace(save_only_model=only_model)
    if setup.mesh.tp_size > 1:
        weights = unsharded(model, setup).weights
        largest = largest_whole_bytes(model, setup.mesh, setup.precision.dtype.bytes)
        if setup.mesh.strategy.is_fsdp:
            return fsdp_full(weights, largest, weights, 0, 0, only_model=True)
        return tensor_parallel(weights, largest)
    if setup.mesh.strategy.is_fsdp:
        return _fsdp(model, setup)
    if setup.mesh.strategy.is_zero:
        return _zero(model, setup)
    resident = resident_memory(model, structure)
    copies = 0 if setup.adapters.uses_adapters else taken_apart_bytes(model, setup)
    host = save_host_bytes(model, setup, resident)
    return Saving(copies, host, 0, checkpoint_bytes(resident, setup))


def _alone(model: Model, setup: TrainingSetup) -> Resident:
    """What one rank would hold on its own: the whole model in the strategy's dtypes."""
    return resident_memory(
        model,
        structure(setup).replace(
            num_gpus=1,
            dp_replicate_size=1,
            offload_optimizer=Offload.NONE,
            offload_param=Offload.NONE,
        ),
    )


def _fsdp(model: Model, setup: TrainingSetup) -> Saving:
    """A tied head has its own name, so it is gathered and written in addition to its embedding.

    This also holds for checkpoints of adapters that a run resumes from: only the first name of a frozen weight is left
    out (torch 2.13,
    distributed/checkpoint/state_dict.py, ``ignore_frozen_params``).
    """
    whole = _alone(model, setup)
    if setup.mesh.uses_fsdp1:
        adapts = setup.adapters.uses_adapters
        loaded = adapter_width(setup) if adapts else unquantized_width(setup)
        trained = whole.trainable_parameters * trained_width(setup.precision, loaded)
    else:
        trained = _trained_bytes(model, setup)
    states = whole.states.resident_bytes
    tied = sum(
        sharded_width(tensor, setup) * elements(tensor.shape)
        for tensor in _tied(model, setup.adapters)
    )
    named = trained if setup.adapters.uses_adapters else trained + tied
    if setup.run.fsdp_state_dict_type == SHARDED_STATE_DICT:
        gathered = nested_units_bytes(model, setup) if setup.mesh.uses_fsdp1 else 0
        return fsdp_sharded(named, states, setup.mesh.shard_ranks, gathered)
    return fsdp_full(
        gathered=whole.weights + whole.adapters + tied,
        largest=largest_unit_bytes(model, setup)
        if setup.mesh.uses_fsdp1
        else largest_gathered_bytes(model, setup),
        exported=named,
        resumed=trained + tied,
        states=states,
        only_model=setup.run.save_only_model,
    )


def _trained_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of all trained tensors, unsharded, in the dtype of their shards."""
    return sum(
        tensor.alike * sharded_width(tensor, setup) * elements(tensor.shape)
        for tensor in chain.from_iterable(sharded_groups(model, setup.adapters))
        if tensor.trained
    )


def largest_gathered_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes on the GPU of the largest tensor that FSDP2 gathers for a full state dict, padded like its shards.

        max over tensors  ranks · ⌈rows / ranks⌉ · columns · p     p: bytes per element of the stored shard, or of a
        wider state

    Source: torch 2.13, distributed/tensor/placement_types.py, ``Shard._to_replicate_tensor``.
    """
    largest, state = 0, setup.optimisation.optim_state_dtype
    for tensor in chain.from_iterable(sharded_groups(model, setup.adapters)):
        held, width = SHARDED.held(tensor, setup), sharded_width(tensor, setup)
        if isinstance(SHARDED.placement(tensor, setup), Replicate):
            continue
        if tensor.packed_width:
            largest = max(largest, elements(tensor.shape) * tensor.packed_width)
            continue
        if state is not None and not setup.adapters.uses_adapters:
            width = max(width, state.bytes)
        largest = max(largest, elements(held.shape) * setup.mesh.shard_ranks * width)
    return largest


def _tied(model: Model, adapters: Adapters) -> list[ModelTensor]:
    """The weight that a tied head shares with its embedding."""
    modules = outer_modules(model)[: int(model.is_tied)]
    return [
        one for module in modules for one in module_tensors(module, adapters) if not one.is_added
    ]


def _zero(model: Model, setup: TrainingSetup) -> Saving:
    whole, size = _alone(model, setup), computed_width(setup.precision)
    trained = whole.trainable_parameters * size
    states = whole.states.resident_bytes + whole.states.paged_bytes
    part = ceil_div(whole.trainable_parameters, setup.mesh.num_gpus)
    if setup.mesh.strategy.partitions_flat:
        tied = sum(elements(tensor.shape) for tensor in _tied(model, setup.adapters))
        cloned = whole.weights + tied * size
        kept = 0 if setup.run.save_only_model else states
        return zero_replicated(cloned, trained, kept, FLOAT32_BYTES * part)
    storage = FLOAT32_BYTES * min(part, SUB_GROUP)
    if not (setup.adapters.uses_adapters or setup.run.zero3_save_16bit_model):
        return zero3_divided(states, storage)
    kept = 0 if setup.run.save_only_model else states
    return zero3_gathered(trained, _largest_module_bytes(model, setup), kept, storage)


def _largest_module_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of the largest module's own weights, each padded to whole partitions, as ZeRO-3 gathers them."""
    ranks, size = setup.mesh.num_gpus, computed_width(setup.precision)

    def gathered(tensor: ModelTensor) -> int:
        if tensor.packed_width:
            return tensor.numel * tensor.packed_width
        return ranks * ceil_div(tensor.numel, ranks) * size

    tensors = (
        module_tensors(module, setup.adapters) for module, _ in made_modules(model, setup.adapters)
    )
    return max(sum(gathered(one) for one in of if not one.is_added) for of in tensors)

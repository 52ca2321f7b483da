"""What saving takes on the GPU, the host and disk: Trainer's checkpoints, and merging adapters into the model."""

from __future__ import annotations

import math

from estimator.families.adapters import adapter_shapes, is_quantized
from estimator.families.loaded import made_modules, tower_parameters
from estimator.families.model_tree import gate_up_stacks, total_parameters
from estimator.families.modules import weight_shapes
from estimator.families.packed import FLOAT32_BYTES, QUANTIZATION_BLOCK, quantized_bytes
from estimator.families.weights import (
    adapter_width,
    tensors_bytes,
    unquantized_width,
)
from estimator.parallel.placements import trainable_tensors
from estimator.parallel.tensors import Alike
from estimator.resident.model import Resident
from estimator.resident.optimizer import state_rule
from estimator.time.lengths import lengths
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.precision import Precision
from estimator.values.facets.run import TrainingRun
from estimator.values.methods import Method
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Dtype, Model, Phase

FILE_BYTES = 50 * 10**9
"""Maximum bytes of one weights file: transformers 5.23, modeling_utils.py, ``save_pretrained(max_shard_size="50GB")``.
"""
SAVE_STEPS = 500
"""Optimizer steps between checkpoints: transformers 5.23, training_args.py, ``save_steps``."""


def taken_apart_bytes(model: Model, setup: TrainingSetup, modules: Alike | None = None) -> int:
    """Bytes of the copies of experts that ``save_pretrained`` makes on the GPU: every layer's gates and ups.

        L · experts · 2 · i · h · p

    Source: transformers 5.23, core_model_loading.py, ``Chunk.convert`` (``contiguous`` of each half of a stack).
    """
    return tensors_bytes(gate_up_stacks(model, modules), unquantized_width(setup))


def checkpoint_bytes(resident: Resident, setup: TrainingSetup) -> int:
    """Bytes of one checkpoint on disk: trained weights, and optimizer states unless ``save_only_model``.

        trained · p  +  states

    Leaves out: tokenizer, config, random states and headers (some MB).
    Source: transformers 5.23, trainer.py, ``_save_checkpoint``; peft 0.21, ``save_pretrained`` (only adapters).
    """
    return trained_bytes(resident, setup) + saved_states_bytes(resident, setup.run)


def trained_bytes(resident: Resident, setup: TrainingSetup) -> int:
    """Bytes of the saved weights: all of the model's, with tied ones once, or adapters and ``modules_to_save``.

    Source: transformers 5.23, modeling_utils.py, ``save_pretrained``; peft 0.21, ``get_peft_model_state_dict``.
    """
    if setup.adapters.uses_adapters:
        return resident.adapters
    return resident.trainable_parameters * unquantized_width(setup)


def saved_states_bytes(resident: Resident, run: TrainingRun) -> int:
    """Bytes of ``optimizer.pt``; 0 with ``save_only_model``.

    Source: transformers 5.23, trainer.py, ``_save_optimizer_and_scheduler``.
    """
    if run.save_only_model:
        return 0
    return resident.states.resident_bytes + resident.states.paged_bytes


def saves_when(run: TrainingRun) -> str:
    """When Trainer saves: ``no``, ``steps`` or ``epoch``; ``best`` at most as often as it evaluates (no count).

    Source: transformers 5.23, trainer.py, ``_maybe_log_save_evaluate``.

    >>> saves_when(TrainingRun(save_strategy="best", eval_strategy="steps"))
    'steps'
    """
    return run.eval_strategy if run.save_strategy == "best" else run.save_strategy


def checkpoints_at_once(setup: TrainingSetup) -> int:
    """The maximum number of a run's checkpoints on disk at the same time.

    One per epoch, or one per 500 steps and one at the end (``saves_when``). The oldest is deleted only after the next
    is written, so briefly there is one more than ``save_total_limit``.

    Source: transformers 5.23, trainer_callback.py, ``DefaultFlowCallback``; trainer_utils.py, ``rotate_checkpoints``.

    >>> checkpoints_at_once(TrainingSetup(num_train_epochs=3, save_total_limit=1))
    2
    """
    when = saves_when(setup.run)
    if when == "no":
        return 0
    made = math.ceil(setup.run.num_train_epochs)
    if when == "steps":
        steps = ceil_div(lengths(setup).rows_per_epoch, setup.effective_batch_size)
        made = ceil_div(math.ceil(steps * setup.run.num_train_epochs), SAVE_STEPS)
    return made if setup.run.save_total_limit is None else min(made, setup.run.save_total_limit + 1)


def save_host_bytes(model: Model, setup: TrainingSetup, resident: Resident) -> int:
    """Host bytes for saving a checkpoint: one file of weights, then one tensor's states at a time.

        max( min(trained · p, 50 GB),  states of the largest tensor )

    Source: safetensors 0.8, torch.py, ``save_file`` (a file's tensors are all on the host before it is written);
    torch 2.13, serialization.py, ``_save``.
    """
    weights = min(trained_bytes(resident, setup), FILE_BYTES)
    return weights if setup.run.save_only_model else max(weights, largest_state_bytes(model, setup))


def largest_state_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of the largest tensor's optimizer states.

    Source: derived, from ``state_rule``.
    """
    rule = state_rule(setup.optimisation.optim)
    of_each = (rule(tensor, tensor.width) for tensor in trainable_tensors(model, setup))
    return max(states.resident_bytes + states.paged_bytes for states in of_each)


# --- adapters merged into the base ----------------------------------------------------------------


def merge_moment(model: Model, setup: TrainingSetup, resident: Resident, workspace: int) -> Moment:
    """The highest moment of ``merge_and_unload`` and of saving its result, in bytes on one GPU.

    After training, without the optimizer: weights, adapters, and temporary copies of one module at a time.
    Source: derived, from ``merging_module_bytes`` and ``taken_apart_bytes``.
    """
    beside = max(merging_module_bytes(model, setup), taken_apart_bytes(model, setup))
    sizes = {
        Component.WEIGHTS: resident.weights,
        Component.ADAPTERS: resident.adapters,
        Component.TEMPORARIES: beside,
        Component.WORKSPACE: workspace,
    }
    return Moment(Phase.SAVE, "merging the adapters", {c: n for c, n in sizes.items() if n})


def merging_module_bytes(model: Model, setup: TrainingSetup) -> int:
    """Additional bytes on the GPU while the largest adapted module, of n weights, is merged.

        16 bits   2 · a · n            B @ A, and B @ A times the scale     a: bytes per element of an adapter
        4 bits    (p + a + 2m) · n + scales + packed     dequantised base, the scaled product, their sum, and the sum
                                       again from the host, packed again       m: the wider of p and a
        8 bits    (4 + 2a + 2 + 1) · n         the same with a float32 base, packed via float16
        experts   2 · a · n, or a · n + p · n after the cast to the stack's dtype, which is less
        DoRA      (a + w + 2m) · n     the scaled product, a copy of the base, their sum, and the scaled sum; another
                                       w · n for the result if w < m, and two for a packed base, which is unpacked for
                                       the merge and for DoRA    w: p, 4 for 8 bits; m: the wider of w, a

    Source: peft 0.21, tuners/lora/layer.py, ``Linear.merge``, ``get_delta_weight``, ``_unmerged_base_weight`` and
    ``ParamWrapper.merge``; tuners/lora/bnb.py, ``Linear4bit.merge`` and ``Linear8bitLt.merge`` (their locals live until
    they return); tuners/lora/variants.py, ``DoraLinearVariant.merge_unsafe`` and ``merge_safe`` (with a graph, which
    keeps the sum).
    """
    return max(
        (
            _merging(
                elements(weight_shapes(module)[0]),
                setup,
                packed=is_quantized(module, setup.adapters),
            )
            for module, _ in made_modules(model, setup.adapters)
            if adapter_shapes(module, setup.adapters)
        ),
        default=0,
    )


def _merging(count: int, setup: TrainingSetup, *, packed: bool) -> int:
    width, base = adapter_width(setup), setup.precision.dtype.bytes
    product = allocated(count * width)
    if setup.adapters.use_dora:
        return _merging_dora(count, setup, packed=packed)
    if not packed:
        return 2 * product
    if setup.adapters.has_8bit_base:
        again = allocated(count * Dtype.FLOAT16.bytes) + allocated(count)
        return allocated(count * FLOAT32_BYTES) + 2 * product + again
    double_quant = setup.adapters.bnb_4bit_use_double_quant
    total = allocated(count * max(width, base))
    scales = allocated(ceil_div(count, QUANTIZATION_BLOCK) * FLOAT32_BYTES)
    again = total + quantized_bytes(count, double_quant=double_quant)
    return allocated(count * base) + product + total + again + (2 * scales if double_quant else 0)


def _merging_dora(count: int, setup: TrainingSetup, *, packed: bool) -> int:
    width, base = adapter_width(setup), setup.precision.dtype.bytes
    if packed and setup.adapters.has_8bit_base:
        base = FLOAT32_BYTES
    elif not packed:
        base = unquantized_width(setup)
    wider = max(width, base)
    copies = 1 + (base < wider) + 2 * packed
    return (
        allocated(count * width) + copies * allocated(count * base) + 2 * allocated(count * wider)
    )


def merged_bytes(model: Model, adapters: Adapters, precision: Precision, resident: Resident) -> int:
    """Bytes of the merged model's files: in the loaded format, so a packed base stays packed.

    Source: peft 0.21, tuners/lora/bnb.py, ``Linear4bit.merge`` (packs again); transformers 5.23,
    quantizers/quantizer_bnb_4bit.py.
    """
    if not adapters.has_packed_base:
        return (total_parameters(model) + tower_parameters(model, adapters)) * precision.dtype.bytes
    return resident.weights


def in_16_bits(setup: TrainingSetup) -> TrainingSetup:
    """The setup with an unpacked 16-bit base, as reloaded to merge the adapters of a packed one."""
    dtype = Dtype.BFLOAT16 if setup.precision.dtype is Dtype.FLOAT32 else setup.precision.dtype
    return setup.replace(
        method=Method.LORA,
        load_in_8bit=False,
        dtype=dtype,
        prepare_model_for_kbit_training=False,
    )

"""A setup as a strategy changes it before the model computes, and as a second model has it, which is not trained."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from estimator.families.packed import FLOAT32_BYTES
from estimator.values.facets.precision import Precision
from estimator.values.methods import Method
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, MixedPrecision, Offload


def loads_sharded(setup: TrainingSetup) -> bool:
    """Whether each GPU loads only its shards, so that loading never needs more than a step.

    A quantised model under ZeRO-3 is on each GPU in full until DeepSpeed shards it: transformers 5.23,
    quantizers/quantizer_bnb_4bit.py, ``update_device_map``, and modeling_utils.py, ``get_init_context``.
    Source: accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_load_full_state_dict``; DeepSpeed 0.19.6,
    runtime/zero/partition_parameters.py, ``Init``.
    """
    return setup.mesh.strategy.is_fsdp or sharded_on_init(setup)


def sharded_on_init(setup: TrainingSetup) -> bool:
    """Whether each weight is sharded when the model is created, as at stage 3 for all but quantised models.

    DeepSpeed then casts nothing, so PEFT's adapters stay float32, and it replaces ``linear`` by its own function.
    Source: transformers 5.23, modeling_utils.py, ``get_init_context`` (``needs_zero3_init``); DeepSpeed 0.19.6,
    runtime/engine.py, ``_cast_module_mixed_precision`` (``is_zero_init_model``); runtime/zero/partition_parameters.py,
    ``_enable_mem_efficient_linear``.
    """
    return setup.mesh.strategy.gathers_modules and not (
        setup.adapters.has_4bit_base or setup.adapters.load_in_8bit
    )


def computed(setup: TrainingSetup) -> TrainingSetup:
    """The setup as the forward pass sees it: under mixed precision all sharded weights are gathered in 16 bits.

    This includes adapters and what PEFT cast to float32, so no operator casts a weight again.

    Source: accelerate 1.15, utils/dataclasses.py, ``set_mixed_precision`` (``param_dtype``, ``reduce_dtype``);
    DeepSpeed 0.19.6, runtime/engine.py, ``_configure_distributed_model`` (``module.bfloat16()``).
    """
    divided = setup.mesh.strategy.shards_states
    # each micro-step reduces its gradients, or adds them to the flat buffer
    if setup.mesh.strategy.shards_gradients and (
        setup.mesh.strategy.is_zero or setup.mesh.uses_fsdp1
    ):
        setup = replace(setup, batch=setup.batch.without_accumulation())
    if setup.mesh.strategy.is_zero and setup.precision.mixed_precision is not MixedPrecision.NO:
        # accelerate 1.15, _prepare_deepspeed: no autocast for a model that DeepSpeed has cast
        setup = setup.replace(mixed_precision=MixedPrecision.NO)
        divided_in_16_bits = True
    else:
        divided_in_16_bits = setup.precision.mixed_precision is not MixedPrecision.NO
    if not divided or not divided_in_16_bits or setup.mesh.loads_divided:
        return setup  # transformers 5.23, distributed/fsdp.py: no policy by itself, and autocast as on one GPU
    autocasts = setup.precision.mixed_precision is not MixedPrecision.NO
    return setup.replace(
        dtype=Dtype.BFLOAT16,
        mixed_precision=MixedPrecision.BF16 if autocasts else MixedPrecision.NO,
        autocast_adapter_dtype=setup.adapters.autocast_adapter_dtype and sharded_on_init(setup),
        prepare_model_for_kbit_training=False,
    )


def computed_width(precision: Precision) -> int:
    """Bytes per element of the weights used in computation: 2 under bf16 or fp16, else 4.

    Source: DeepSpeed 0.19.6, runtime/engine.py, ``_cast_module_mixed_precision`` and ``__check_params``.
    """
    return FLOAT32_BYTES if precision.mixed_precision is MixedPrecision.NO else 2


AUTOCAST = MappingProxyType(
    {MixedPrecision.BF16: Dtype.BFLOAT16, MixedPrecision.FP16: Dtype.FLOAT16}
)
"""What each autocast computes in."""
NO_MODULE = "nothing"
"""Names no module of any family, so that no layer is adapted."""


def as_frozen(setup: TrainingSetup) -> TrainingSetup:
    """The setup of a model that is loaded as the trained one is, without adapters, and never trained.

    A full model is whole, whatever ``load_in_8bit`` says. LLaMA-Factory casts what it trains to float32, and leaves
    this one in autocast's dtype. verl offloads it.

    Source: derived; trl 1.16, models/utils.py (``model.eval()``); verl 0.9.1, workers/engine/fsdp/transformer_impl.py,
    ``_build_fsdp_module`` (``CPUOffload`` where ``forward_only``); llamafactory 0.9.5, model/patcher.py
    (``compute_dtype``), model/adapter.py:313 (``is_trainable``).

    >>> as_frozen(TrainingSetup(gradient_checkpointing=True)).computation.gradient_checkpointing
    False
    """
    dtype = setup.precision.dtype
    if setup.task.given_loss.takes_whole_logits:
        dtype = AUTOCAST.get(setup.precision.mixed_precision, dtype)
    rests = setup.task.given_loss.is_verls and setup.mesh.strategy.is_fsdp
    return setup.replace(
        offload_param=Offload.CPU if rests else setup.mesh.offload_param,
        dtype=dtype,
        method=setup.adapters.method if setup.adapters.uses_adapters else Method.LORA,
        load_in_8bit=setup.adapters.load_in_8bit and setup.adapters.uses_adapters,
        lora_target_modules=(NO_MODULE,),
        target_parameters=None,
        bias="none",
        modules_to_save=None,
        use_dora=False,
        gradient_checkpointing=False,
        gradient_accumulation_steps=1,
    )

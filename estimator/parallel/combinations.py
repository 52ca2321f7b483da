"""Which strategies a setup allows: one refusal for each combination that cannot run or is not modelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from estimator.resident.optimizer import LOW_BIT_OPTIMIZERS, LOW_RANK_OPTIMIZERS
from estimator.resident.optimizer import RULES as RULES_OF_OPTIMIZERS
from estimator.values.arithmetic import ceil_div
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.optimisation import Optimisation
from estimator.values.refusals import (
    CONTRADICTION,
    NOT_MODELLED,
    Cause,
    Line,
    Refusal,
    RefusedError,
    Report,
)
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    SHARDED_STATE_DICT,
    Dtype,
    MixedPrecision,
    Model,
    Offload,
    Optimizer,
)
from estimator.values.strategies import Strategy

BITSANDBYTES = frozenset(
    {
        Optimizer.ADAMW_BNB_8BIT,
        Optimizer.PAGED_ADAMW_8BIT,
        Optimizer.PAGED_ADAMW_32BIT,
        Optimizer.LION_32BIT,
        Optimizer.LION_8BIT,
    }
)
ADAM = frozenset({Optimizer.ADAMW_TORCH, Optimizer.ADAMW_TORCH_FUSED})

ELEMENTWISE = ADAM | {Optimizer.SGD, Optimizer.SGD_MOMENTUM}
ON_FLAT_PARTS = ELEMENTWISE | BITSANDBYTES | {Optimizer.ADAFACTOR}

OFFLOADS = ("offload_optimizer", "offload_param")
SHARING_KEYS = (
    "num_gpus",
    "strategy",
    "dp_replicate_size",
    "tp_size",
    "fsdp_version",
    "checkpoint_around_fsdp",
    *OFFLOADS,
)
"""The keys that distribute the work over GPUs; at their defaults nothing is refused."""


class CombinationRule(NamedTuple):
    """A refused combination, and its sentence."""

    breaks: Callable[[TrainingSetup], bool]
    sentence: str
    """Format string over the setup ``s``."""
    cause: Cause

    @property
    def refusal(self) -> Refusal:
        """The refusal that the user sees."""
        return Refusal(self.sentence, self.cause)


def _offloads(mesh: Mesh) -> bool:
    return {mesh.offload_optimizer, mesh.offload_param} != {Offload.NONE}


def _uses_nvme(mesh: Mesh) -> bool:
    return Offload.NVME in (mesh.offload_optimizer, mesh.offload_param)


def shares_between_layers(model: Model, mesh: Mesh) -> bool:
    """Whether a strategy shards a model whose layers share more than a mask.

    Source: derived; transformers 5.23, models/gemma4/modeling_gemma4.py, ``Gemma4TextModel.forward``.
    """
    return not mesh.strategy.keeps_whole and bool(
        model.num_kv_shared_layers or model.hidden_size_per_layer_input
    )


def _unscaled(setup: TrainingSetup) -> bool:
    """Whether a GradScaler would see 16-bit gradients, which have the dtype of the trained tensors.

    Strategies that shard weights keep trained tensors and their gradients in float32: accelerate 1.15, accelerator.py,
    ``prepare_model`` (FSDP 1, also with 4-bit weights) and utils/fsdp_utils.py, ``fsdp2_prepare_model`` (FSDP 2, but
    not with 4-bit weights). DeepSpeed 0.19.8 has its own scaler.
    """
    if (
        setup.precision.dtype is Dtype.FLOAT32
        or setup.precision.mixed_precision is not MixedPrecision.FP16
    ):
        return False
    in_float32 = setup.mesh.uses_fsdp1 or (
        setup.mesh.strategy.is_fsdp and not setup.adapters.has_4bit_base
    )
    return not in_float32 and not setup.mesh.strategy.is_zero


# torch 2.13, amp/grad_scaler.py, _unscale_grads_; aten/src/ATen/native/cuda/AmpKernels.cu (no bfloat16: pytorch issue
# 127176)
UNSCALED = "under mixed_precision fp16 (PyTorch's GradScaler refuses to unscale {s.precision.dtype} gradients)"
OR_BF16 = "or take dtype bfloat16 with mixed_precision bf16."

GRAD_SCALER = Line("torch", "amp/grad_scaler.py", 275, "Attempting to unscale FP16 gradients.")
FSDP_OFFLOAD = Line(
    "torch",
    "distributed/fsdp/_fully_shard/_fsdp_api.py",
    183,
    "class CPUOffloadPolicy(OffloadPolicy)",
)
ONE_DTYPE = Line(
    "torch", "distributed/fsdp/_flat_param.py", 814, "Must flatten tensors with uniform dtype"
)

FULL_FINETUNE = Report(
    "https://github.com/pytorch/torchtune/blob/v0.6.1/recipes/full_finetune_single_device.py"
)

RULES = (
    CombinationRule(
        lambda s: _unscaled(s) and not s.adapters.uses_adapters,
        f"dtype {{s.precision.dtype}} cannot be trained {UNSCALED}; load the weights in float32, {OR_BF16}",
        GRAD_SCALER,
    ),
    CombinationRule(
        lambda s: (
            _unscaled(s) and s.adapters.uses_adapters and not s.adapters.autocast_adapter_dtype
        ),
        f"Adapters in {{s.precision.dtype}} cannot be trained {UNSCALED}; set autocast_adapter_dtype true, {OR_BF16}",
        GRAD_SCALER,
    ),
    CombinationRule(
        lambda s: (
            _unscaled(s)
            and bool(s.adapters.modules_to_save)
            and not (s.adapters.has_packed_base and s.adapters.prepare_model_for_kbit_training)
        ),
        f"modules_to_save copies modules in {{s.precision.dtype}}, which cannot be trained {UNSCALED}; leave "
        f"modules_to_save out, {OR_BF16}",
        GRAD_SCALER,
    ),
    CombinationRule(
        lambda s: s.mesh.num_gpus > 1 and s.mesh.strategy.is_alone and s.mesh.tp_size == 1,
        "num_gpus {s.mesh.num_gpus} needs a strategy for sharing the work; take ddp, fsdp or zero3.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: s.mesh.num_gpus == 1 and s.mesh.strategy.fewest_gpus > 1,
        "strategy {s.mesh.strategy} needs several GPUs, and num_gpus is 1; raise num_gpus, or take strategy none.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: s.mesh.dp_replicate_size > 1 and not s.mesh.strategy.has_groups,
        "dp_replicate_size {s.mesh.dp_replicate_size} is for strategy hsdp; leave it at 1.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.has_groups
            and (
                s.mesh.dp_replicate_size == 1
                or s.mesh.num_gpus % s.mesh.dp_replicate_size != 0
                or (s.mesh.shard_ranks == 1 and s.mesh.tp_size == 1)
            )
        ),
        "hsdp shards inside dp_replicate_size groups of equal size: with {s.mesh.num_gpus} GPUs dp_replicate_size "
        "must be a divisor above 1 and below {s.mesh.num_gpus}, not {s.mesh.dp_replicate_size}.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: _offloads(s.mesh) and not s.mesh.strategy.shards_states,
        "strategy {s.mesh.strategy} keeps everything on the GPU; offload_param and offload_optimizer work with "
        "zero3 or fsdp.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.places_layers
            and (s.computation.use_liger_kernel or s.task.given_loss.fuses_gradient)
        ),
        # github.com/linkedin/Liger-Kernel/issues/593 and 1303: Triton launches on the process' current GPU
        "Liger's kernels always launch on the first GPU, even for tensors on another (Liger-Kernel issue 1303), so "
        "device_map fails; leave use_liger_kernel and loss at their defaults.",
        Report("https://github.com/linkedin/Liger-Kernel/issues/1303"),
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.places_layers
            and (s.task.given_loss.tiles_logits or s.task.given_loss.chunks_sequence)
        ),
        "loss {s.task.loss} under device_map is not modelled yet; take loss standard.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: s.mesh.strategy.is_fsdp and _uses_nvme(s.mesh),
        "FSDP offloads to CPU memory only; take cpu, or strategy zero3.",
        FSDP_OFFLOAD,
    ),
    CombinationRule(
        lambda s: s.mesh.strategy.is_fsdp and s.mesh.offload_param is not s.mesh.offload_optimizer,
        "FSDP offloads weights and optimizer states together (CPUOffloadPolicy); set offload_param and "
        "offload_optimizer both to cpu, or both to none.",
        FSDP_OFFLOAD,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.partitions_flat
            and (s.mesh.offload_param is not Offload.NONE or _uses_nvme(s.mesh))
        ),
        "DeepSpeed offloads weights, and anything to NVMe, only at stage 3; take zero3, or only offload_optimizer cpu.",
        Line("deepspeed", "runtime/zero/config.py", 160, "Valid only with stage 3."),
    ),
    CombinationRule(
        lambda s: s.mesh.offload_optimizer is not Offload.NONE and s.optimisation.optim not in ADAM,
        "An offloaded optimizer runs on the CPU, where optim {s.optimisation.optim} is not modelled yet; take "
        "adamw_torch.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            (s.task.given_loss.chunks_sequence and (s.mesh.uses_fsdp1 or s.mesh.strategy.is_zero))
            or (s.task.given_loss.tiles_logits and s.mesh.uses_fsdp1)
        ),
        "loss {s.task.loss} under {s.mesh.strategy} is not modelled yet; take loss liger or standard, or strategy ddp.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: s.mesh.fsdp_version == 1 and not s.mesh.strategy.is_fsdp,
        "fsdp_version 1 is for strategy fsdp, and strategy is {s.mesh.strategy}; leave it at 2.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: s.mesh.checkpoint_around_fsdp and not s.mesh.uses_fsdp1,
        "checkpoint_around_fsdp is for FSDP 1 under transformers before 4.52; leave it out, or set fsdp_version 1.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: s.mesh.uses_fsdp1 and _offloads(s.mesh),
        "Offloading under fsdp_version 1 is not modelled yet; leave it at none, or take fsdp_version 2.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.uses_fsdp1
            and s.adapters.has_4bit_base
            and s.adapters.bnb_4bit_quant_storage != s.precision.dtype.value
        ),
        # torch 2.13, _flat_param.py, _validate_tensors_to_flatten: floats only, of one dtype
        "FSDP 1 flattens a layer's tensors into one of a single dtype: set bnb_4bit_quant_storage to "
        "{s.precision.dtype}, the value of dtype, not {s.adapters.bnb_4bit_quant_storage}, or take fsdp_version 2.",
        ONE_DTYPE,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.uses_fsdp1
            and s.adapters.has_4bit_base
            and s.adapters.prepare_model_for_kbit_training
        ),
        "FSDP 1 flattens a layer's tensors into one of a single dtype, but prepare_model_for_kbit_training casts "
        "the norms to float32; leave it out (as TRL does for sharded 4-bit weights).",
        ONE_DTYPE,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.uses_fsdp1
            and s.adapters.has_4bit_base
            and s.precision.mixed_precision is MixedPrecision.NO
            and s.adapters.autocast_adapter_dtype
        ),
        # transformers 5.23, distributed/fsdp.py, update_fsdp_plugin_peft; peft 0.21, _cast_input_dtype
        "With a 4-bit base Trainer makes FSDP 1 gather adapters in {s.adapters.bnb_4bit_quant_storage}, while PEFT "
        "passes float32 "
        "inputs to float32 adapters; set mixed_precision bf16, or autocast_adapter_dtype false.",
        Line("transformers", "distributed/fsdp.py", 284, "set_mixed_precision("),
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.is_fsdp
            and s.mesh.fsdp_version == 2
            and s.optimisation.optim in BITSANDBYTES
        ),
        # github.com/bitsandbytes-foundation/bitsandbytes/issues/1633: illegal memory access
        "optim {s.optimisation.optim} crashes on FSDP2's shards (bitsandbytes issue 1633); take adamw_torch_fused, "
        "or zero2.",
        Report("https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1633"),
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.is_fsdp
            and s.mesh.fsdp_version == 2
            and RULES_OF_OPTIMIZERS[s.optimisation.optim].sums_rows
        ),
        "optim {s.optimisation.optim} on FSDP2's shards is not modelled yet; take adamw_torch_fused.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.adapters.modules_to_save is not None
            and (s.mesh.uses_fsdp1 or s.mesh.strategy.is_zero)
        ),
        "modules_to_save under {s.mesh.strategy} is not modelled yet; leave it out, or take ddp.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: s.adapters.has_8bit_base and s.mesh.strategy.is_fsdp and s.mesh.fsdp_version == 2,
        # torch 2.13, _fsdp_param.py, _init_sharded_param makes it an nn.Parameter; bitsandbytes 0.50, nn/modules.py,
        # Linear8bitLt.forward: "'Parameter' object has no attribute 'CB'"
        "FSDP 2 makes LLM.int8's weights plain parameters, without bitsandbytes' scales ('Parameter' object has no "
        "attribute 'CB'); take method qlora, or strategy ddp.",
        Line("bitsandbytes", "nn/modules.py", 1182, "if self.weight.CB is not None:"),
    ),
    CombinationRule(
        lambda s: s.adapters.has_8bit_base and s.mesh.uses_fsdp1,
        # torch 2.13, _flat_param.py, _validate_tensors_to_flatten
        "FSDP 1 cannot flatten integer dtype tensors such as LLM.int8's weights; take method qlora with "
        "bnb_4bit_quant_storage {s.precision.dtype}, or strategy ddp.",
        Line(
            "torch", "distributed/fsdp/_flat_param.py", 811, "Cannot flatten integer dtype tensors"
        ),
    ),
    CombinationRule(
        lambda s: (
            (
                s.adapters.use_dora
                and s.mesh.strategy.shards_states
                and (s.mesh.uses_fsdp1 or s.mesh.strategy.is_zero or s.adapters.has_packed_base)
            )
            or (s.adapters.load_in_8bit and s.mesh.strategy.is_zero)
        ),
        "use_dora and load_in_8bit under {s.mesh.strategy} are not modelled yet; take strategy ddp.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            (s.mesh.strategy.is_fsdp and s.optimisation.optim not in ELEMENTWISE)
            or (s.mesh.strategy.is_zero and s.optimisation.optim not in ON_FLAT_PARTS)
        ),
        "optim {s.optimisation.optim} under {s.mesh.strategy} is not modelled yet; take adamw_torch_fused.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.gathers_modules
            and s.mesh.offload_param is not Offload.NONE
            and s.adapters.has_4bit_base
        ),
        "offload_param with method qlora is not modelled yet under zero3; take "
        "offload_param none, or fsdp.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.is_zero
            and s.precision.mixed_precision is MixedPrecision.NO
            and (s.precision.dtype is not Dtype.FLOAT32 or s.adapters.has_4bit_base)
        ),
        # DeepSpeed 0.19.6, runtime/engine.py, __check_params: it returns before the check, so such a run starts
        "mixed_precision no with 16-bit weights under {s.mesh.strategy} is not modelled yet; set mixed_precision "
        "bf16, or dtype float32.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.gathers_modules
            and s.adapters.has_4bit_base
            and s.adapters.bnb_4bit_quant_storage == "uint8"
        ),
        "zero3 shards 4-bit weights only in a float storage dtype; set bnb_4bit_quant_storage to bfloat16.",
        Report("https://huggingface.co/docs/peft/accelerate/deepspeed"),
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.is_fsdp
            and s.run.save_only_model
            and s.run.fsdp_state_dict_type == SHARDED_STATE_DICT
        ),
        # transformers 5.23, trainer.py, _validate_args
        "Trainer refuses save_only_model with fsdp_state_dict_type SHARDED_STATE_DICT; take FULL_STATE_DICT.",
        Line(
            "transformers",
            "trainer.py",
            912,
            "save_only_model option is not compatible with FSDP state dict type",
        ),
    ),
    CombinationRule(
        lambda s: s.optimisation.optimizer_in_bwd and s.batch.gradient_accumulation_steps > 1,
        "Gradient accumulation is not supported with optimizer_in_bwd, torchtune refuses it; set "
        "gradient_accumulation_steps to 1, or optimizer_in_bwd false.",
        FULL_FINETUNE,
    ),
    CombinationRule(
        lambda s: s.optimisation.optimizer_in_bwd and s.adapters.uses_adapters,
        "optimizer_in_bwd is of torchtune's full fine-tuning alone; set it false, or take method full.",
        FULL_FINETUNE,
    ),
    CombinationRule(
        lambda s: (
            s.optimisation.optimizer_in_bwd and s.precision.mixed_precision is MixedPrecision.FP16
        ),
        "optimizer_in_bwd has no scaler, and torchtune refuses fp16; take mixed_precision bf16 or no.",
        FULL_FINETUNE,
    ),
    CombinationRule(
        lambda s: s.optimisation.optimizer_in_bwd and not s.mesh.strategy.is_alone,
        "optimizer_in_bwd under {s.mesh.strategy} is not modelled yet; set it false, or take strategy none.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.optimisation.optimizer_in_bwd
            and s.optimisation.optim in LOW_RANK_OPTIMIZERS | LOW_BIT_OPTIMIZERS
        ),
        "optim {s.optimisation.optim} with optimizer_in_bwd is not modelled yet; take adamw_torch_fused.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: s.batch.is_joined and s.batch.padded,
        "packing and padding_free leave no padding; set padded false.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: s.batch.packing and bool(s.images.images_per_example),
        "Packing is not supported for examples with images, TRL refuses it; set packing false.",
        Line("trl", "trainer/sft_trainer.py", 781, "Packing is not supported for vision datasets."),
    ),
    CombinationRule(
        lambda s: s.batch.padding_free and bool(s.images.images_per_example),
        "padding_free is not supported for examples with images, TRL refuses it; set it false.",
        Line("trl", "trainer/sft_trainer.py", 785, "Padding-free training is yet not supported"),
    ),
    CombinationRule(
        lambda s: s.adapters.uses_adapters and s.adapters.lora_bias and s.adapters.use_dora,
        "lora_bias is not supported with use_dora, PEFT refuses it; turn one of them off.",
        Line("peft", "tuners/lora/config.py", 1088, "lora_bias=True is not supported for DoRA"),
    ),
    CombinationRule(
        lambda s: (
            s.adapters.uses_adapters
            and s.adapters.layers_to_transform is not None
            and isinstance(s.adapters.lora_target_modules, str)
        ),
        "layers_to_transform cannot go with lora_target_modules {s.adapters.lora_target_modules}, PEFT refuses it; "
        "list the modules.",
        Line(
            "peft", "tuners/lora/config.py", 1041, "cannot be used when `target_modules` is a str"
        ),
    ),
    CombinationRule(
        lambda s: s.adapters.by_layer and not s.mesh.strategy.keeps_whole,
        "Adapters that differ between layers are not modelled yet under {s.mesh.strategy}; leave "
        "layers_to_transform and numbers of layers out, or take strategy ddp.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.adapters.uses_adapters
            and s.adapters.bias != "none"
            and (s.adapters.has_packed_base or not s.mesh.strategy.keeps_whole)
        ),
        "bias {s.adapters.bias} is modelled beside a base of 16 or 32 bits on one GPU and under ddp only; leave it "
        "at none.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.adapters.uses_adapters
            and s.adapters.lora_bias
            and (s.mesh.uses_fsdp1 or s.mesh.strategy.gathers_modules)
        ),
        "lora_bias under {s.mesh.strategy} is not modelled yet; turn it off, or take strategy ddp.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.computation.selective_checkpointing and not s.computation.gradient_checkpointing
        ),
        "selective_checkpointing requires gradient_checkpointing, TRL refuses it without; turn both on, or both off.",
        Line("trl", "trainer/sft_trainer.py", 1088, "requires `gradient_checkpointing=True`."),
    ),
    CombinationRule(
        lambda s: s.computation.selective_checkpointing and s.computation.use_reentrant,
        "selective_checkpointing requires checkpoints that are not reentrant, TRL refuses others; set use_reentrant "
        "false.",
        Line("trl", "trainer/sft_trainer.py", 1092, "requires non-reentrant gradient"),
    ),
    CombinationRule(
        # transformers 5.23, trainer.py calls activation_checkpointing_enable, which a PeftModel hands to its base,
        # past the wrapper that TRL puts around gradient_checkpointing_enable
        lambda s: s.computation.selective_checkpointing and s.adapters.uses_adapters,
        "selective_checkpointing fails with method {s.adapters.method} ('Unexpected keyword arguments: selective'), "
        "because Trainer turns checkpointing on in the base model, past TRL; leave it out, or take method full.",
        Line("torch", "utils/checkpoint.py", 502, "Unexpected keyword arguments"),
    ),
    CombinationRule(
        lambda s: (
            s.mesh.checkpoint_around_fsdp
            and (s.computation.checkpoint_every_n_layers > 1 or s.computation.offload_checkpoints)
        ),
        "checkpoint_around_fsdp is for transformers before 4.52, which has neither checkpoint_every_n_layers nor "
        "offload_checkpoints; leave it out.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: s.computation.activation_offloading and s.mesh.strategy.places_layers,
        "activation_offloading under device_map is not modelled yet; take offload_checkpoints.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.computation.activation_offloading
            and (not s.computation.gradient_checkpointing or s.computation.use_reentrant)
            and s.mesh.strategy.shards_weights
        ),
        "activation_offloading under {s.mesh.strategy} is not modelled yet without checkpoints that are not reentrant "
        "(gathered weights are offloaded too); set gradient_checkpointing true and use_reentrant false, or take "
        "strategy ddp.",
        NOT_MODELLED,
    ),
)


BESIDE_PARTS = frozenset({Strategy.FSDP, Strategy.HSDP})
"""Strategies that share ranks' parts: DistributedConfig's ``fsdp_size`` and ``dp_replicate_size``."""


def _adapts_rows(adapters: Adapters) -> bool:
    """Whether an adapter is on a linear that ranks divide by its inputs."""
    named = adapters.lora_target_modules
    return isinstance(named, str) or any(
        name.rpartition(".")[2] in ("o_proj", "down_proj") for name in named or ()
    )


IN_PLACE = frozenset({Optimizer.ADAMW_TORCH_FUSED})
"""Optimizers whose step makes no temporaries, of DTensors neither."""
TENSOR_PARALLEL_RULES = (
    CombinationRule(
        lambda s: s.mesh.tp_size > s.mesh.num_gpus,
        "tp_size {s.mesh.tp_size} needs as many GPUs, and num_gpus is {s.mesh.num_gpus}; set num_gpus "
        "{s.mesh.tp_size}.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: s.mesh.num_gpus % s.mesh.tp_size != 0,
        "tp_size {s.mesh.tp_size} does not divide num_gpus {s.mesh.num_gpus}; choose a divisor.",
        CONTRADICTION,
    ),
    CombinationRule(
        lambda s: (
            s.mesh.tp_size < s.mesh.num_gpus
            if s.mesh.strategy.is_alone
            else s.mesh.strategy not in BESIDE_PARTS or s.mesh.uses_fsdp1
        ),
        "tp_size {s.mesh.tp_size} with num_gpus {s.mesh.num_gpus} and strategy {s.mesh.strategy}: transformers divides "
        "layers over all processes, or over those that FSDP 2 leaves ('The parallel mesh requires {s.mesh.tp_size} "
        "processes'); take strategy fsdp or hsdp with fsdp_version 2, or num_gpus {s.mesh.tp_size} with strategy none.",
        Line("transformers", "distributed/utils.py", 316, "The parallel mesh requires"),
    ),
    CombinationRule(
        lambda s: (
            s.mesh.strategy.is_fsdp and not s.mesh.strategy.has_groups and s.mesh.shard_ranks == 1
        ),
        "tp_size {s.mesh.tp_size} leaves strategy {s.mesh.strategy} one of {s.mesh.num_gpus} GPUs to shard over; raise "
        "num_gpus, or take strategy none.",
        CONTRADICTION,
    ),
    CombinationRule(
        # transformers 5.23, trainer.py, _defer_fsdp_gradient_reduction: each micro-step scatters, the last one averages
        lambda s: s.mesh.strategy.has_groups and s.batch.gradient_accumulation_steps > 1,
        "Gradient accumulation under hsdp with tp_size is not modelled yet; take strategy fsdp, or set "
        "gradient_accumulation_steps to 1.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: _offloads(s.mesh),
        "offload_param with tp_size is not modelled yet; take none.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: (
            s.adapters.uses_adapters
            and not s.adapters.has_packed_base
            and (s.mesh.strategy.is_fsdp or _adapts_rows(s.adapters))
        ),
        "method {s.adapters.method} with tp_size fails in the first forward pass under fsdp and with adapters on "
        "o_proj or down_proj: PEFT makes them as large as a part ('shape ... is invalid for input of size'); set "
        "tp_size 1, or take method full.",
        Line("peft", "tuners/tuners_utils.py", 186, "= module.weight.to_local().shape"),
    ),
    CombinationRule(
        lambda s: s.adapters.uses_adapters or s.adapters.has_packed_base,
        "method {s.adapters.method} with tp_size is not modelled yet; take method full, or strategy fsdp.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: not s.task.objective.is_causal_lm or s.task.smooths_labels,
        "tp_size is modelled for objective sft without label smoothing alone; take it, or strategy fsdp.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: s.task.loss not in (None, "standard") or s.computation.use_liger_kernel,
        "A fused loss or Liger's kernels with tp_size is not modelled yet; take loss standard and use_liger_kernel "
        "false.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: s.computation.torch_compile or s.precision.uses_fp8,
        "torch_compile or FP8 with tp_size is not modelled yet; leave them out.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: s.optimisation.optim not in IN_PLACE or s.optimisation.optimizer_in_bwd,
        "optim {s.optimisation.optim} with tp_size is not modelled yet; take adamw_torch_fused.",
        NOT_MODELLED,
    ),
    CombinationRule(
        lambda s: s.computation.activation_offloading or s.computation.offload_checkpoints,
        "Offloaded activations with tp_size are not modelled yet; leave them out.",
        NOT_MODELLED,
    ),
)
"""What does not go with ranks that divide every layer."""


def offload_targets(strategy: Strategy) -> tuple[tuple[Offload, ...], tuple[Offload, ...]]:
    """The offload targets that a strategy allows for optimizer states, and those for weights.

    >>> offload_targets(Strategy.ZERO2)[1]
    (<Offload.NONE: 'none'>,)
    """
    here, host = (Offload.NONE,), tuple(Offload)
    if not strategy.gathers_modules:
        host = (Offload.NONE, Offload.CPU)
    return host if strategy.shards_states else here, host if strategy.shards_weights else here


def _parts(mesh: Mesh, strategy: Strategy, num_gpus: int, copies: int) -> int:
    """Ranks of a layer: all GPUs where there is no strategy, as many as before where FSDP 2 has the others."""
    if strategy.is_alone:
        return num_gpus if mesh.tp_size > 1 else 1
    others, rest = divmod(num_gpus, mesh.tp_size * copies)
    keeps = {strategy, mesh.strategy} <= BESIDE_PARTS and not (rest or mesh.uses_fsdp1)
    return mesh.tp_size if keeps and others * copies > 1 else 1


def sharing(
    mesh: Mesh, strategy: Strategy, num_gpus: int, dp_replicate_size: int = 1
) -> dict[str, Any]:
    """The keys of ``SHARING_KEYS`` for a setup on ``num_gpus`` GPUs under a strategy.

    Keys that the strategy does not support return to their defaults: FSDP's version under another strategy, and an
    offload target that it lacks. FSDP offloads weights and states together or not at all.

    >>> offloaded = TrainingSetup(strategy=Strategy.ZERO2, num_gpus=2, offload_optimizer=Offload.CPU)
    >>> [sharing(offloaded.mesh, it, 2)["offload_optimizer"].value for it in (Strategy.ZERO3, Strategy.DDP)]
    ['cpu', 'none']
    """
    rests = mesh.offload_optimizer, mesh.offload_param
    places, parts = offload_targets(strategy), _parts(mesh, strategy, num_gpus, dp_replicate_size)
    has_them = all(rest in allowed for rest, allowed in zip(rests, places, strict=True))
    if not has_them or parts > 1 or (strategy.is_fsdp and rests[0] is not rests[1]):
        rests = Offload.NONE, Offload.NONE
    return {
        "num_gpus": num_gpus,
        "strategy": strategy,
        "dp_replicate_size": dp_replicate_size,
        "tp_size": parts,
        "fsdp_version": mesh.fsdp_version if strategy.is_fsdp else 2,
        "checkpoint_around_fsdp": mesh.checkpoint_around_fsdp and strategy.is_fsdp,
        **dict(zip(OFFLOADS, rests, strict=True)),
    }


def refused(setup: TrainingSetup) -> RefusedError | None:
    """Why this setup cannot run with its strategy; None if it can."""
    rules = (*RULES, *TENSOR_PARALLEL_RULES) if setup.mesh.tp_size > 1 else RULES
    for rule in rules:
        if rule.breaks(setup):
            return rule.refusal(s=setup)
    return None


def refusal(setup: TrainingSetup) -> str | None:
    """The same in one sentence."""
    problem = refused(setup)
    return None if problem is None else str(problem)


CLIPPED_IN_BACKWARD = Refusal(
    "Gradient clipping is not supported with optimizer_in_bwd, torchtune refuses it; set max_grad_norm to 0, or "
    "optimizer_in_bwd false.",
    FULL_FINETUNE,
)


def clipped_in_backward(optimisation: Optimisation) -> RefusedError | None:
    """Why gradients that die in backward cannot be clipped; None if they are not. Not part of a structure."""
    if not optimisation.optimizer_in_bwd or not optimisation.max_grad_norm:
        return None
    return CLIPPED_IN_BACKWARD()


NO_STATES_OF_PARTS = Refusal(
    "Trainer cannot save the optimizer's states with tp_size; set save_only_model true, or save_strategy no.",
    Line("transformers", "trainer.py", 638, "Resuming is not supported for models sharded at load"),
)


def saves_states_of_parts(setup: TrainingSetup) -> RefusedError | None:
    """Why the optimizer's states of ranks that divide every layer are not saved; None if it is not asked for. Not part
    of a structure.
    """
    only_weights = setup.run.save_only_model or setup.run.save_strategy == "no"
    return None if setup.mesh.tp_size == 1 or only_weights else NO_STATES_OF_PARTS()


BEYOND_ONE_MACHINE = Refusal(
    "device_map is one process on one machine of gpus_per_node {gpus_per_node} GPUs, and num_gpus is "
    "{num_gpus}; lower num_gpus, raise gpus_per_node, or take strategy fsdp.",
    CONTRADICTION,
)


def beyond_one_machine(mesh: Mesh) -> RefusedError | None:
    """Why a device map cannot span so many GPUs; None if it can. Not part of a structure, which ignores machines."""
    if not mesh.strategy.places_layers or mesh.num_gpus <= mesh.gpus_per_node:
        return None
    return BEYOND_ONE_MACHINE(gpus_per_node=mesh.gpus_per_node, num_gpus=mesh.num_gpus)


def sharing_keys(setup: TrainingSetup, way: Strategy, number: int) -> dict[str, Any]:
    """The keys that shard a setup over ``number`` GPUs, with the same effective batch or the next divisible one."""
    keys = sharing(setup.mesh, way, number)
    if setup.adapters.has_4bit_base and not setup.adapters.shards_packed:
        keys["bnb_4bit_quant_storage"] = str(setup.precision.dtype)
    of_each = ceil_div(setup.effective_batch_size, number // keys["tp_size"])
    most = min(setup.batch.per_device_train_batch_size, of_each)
    batch = next(size for size in range(most, 0, -1) if of_each % size == 0)
    keys["per_device_train_batch_size"] = batch
    keys["gradient_accumulation_steps"] = of_each // batch
    return {key: value for key, value in keys.items() if setup.value(key) != value}


def refused_by_run(setup: TrainingSetup) -> RefusedError | None:
    """Why a run cannot go by keys that are not part of a structure; None if it can."""
    return (
        beyond_one_machine(setup.mesh)
        or clipped_in_backward(setup.optimisation)
        or saves_states_of_parts(setup)
    )

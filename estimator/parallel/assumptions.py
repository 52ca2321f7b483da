"""Sentences about assumptions on several GPUs and offload."""

from __future__ import annotations

from estimator.parallel.sharding import upcasts_trained
from estimator.values.facets.batch import Batch
from estimator.values.facets.mesh import Mesh
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, Offload

DEVICE_MAP = (
    'The layers are placed as from_pretrained(device_map="auto") places them on free GPUs of this kind: it balances '
    "only the weights and reserves nothing for training. One GPU works at a time; each batch passes through all of "
    "them.",
    "accelerate's hooks copy hidden states from GPU to GPU, the mask and the rotary tables again for every layer on "
    "another GPU, and all logits back to the first GPU.",
)


def sharing_sentences(setup: TrainingSetup) -> list[str]:
    """Assumptions about the strategy that may surprise: sentences, no bytes.

    Source: as ``estimator.parallel.sharding``, ``fsdp`` and ``zero`` have it.
    """
    if setup.mesh.num_gpus == 1:
        return offload_sentences(setup.batch, setup.mesh)
    sentences = [f"All memory figures are for the fullest of {setup.mesh.num_gpus:,} GPUs."]
    if setup.mesh.tp_size > 1:
        sentences.append(
            f"Every layer is divided over {setup.mesh.tp_size} GPUs that work on the same rows, as transformers' "
            "DistributedConfig does; each has the whole logits and the whole embedding's gradient."
        )
    if setup.mesh.strategy.averages_in_buckets:
        sentences.append(
            "DDP keeps a second copy of every gradient in its buckets, which is Trainer's default."
        )
    if setup.mesh.strategy.places_layers:
        sentences += DEVICE_MAP
    if setup.mesh.strategy.is_fsdp:
        sentences += _fsdp(setup)
    if setup.mesh.strategy.is_zero:
        sentences.append(
            'DeepSpeed\'s buckets are as Trainer fills "auto", h² elements; its own default of 500 million elements '
            "takes up to 1 GB more."
        )
    if setup.mesh.strategy.gathers_modules and setup.adapters.uses_adapters:
        sentences.append(
            "ZeRO-3 prefetches while fewer than 10⁹ elements are gathered (stage3_max_live_parameters, DeepSpeed's own "
            "value). With a larger lora_r, a large weight such as the embedding may be gathered later, and the peak be "
            "lower."
        )
    return sentences + offload_sentences(setup.batch, setup.mesh)


def _threads(mesh: Mesh) -> list[str]:
    """What is assumed of the threads that step the optimizer, if the setup does not say it."""
    if mesh.num_cpu_threads_per_process is not None:
        return []
    return [
        "That takes from one thread per process, as torchrun and accelerate launch set OMP_NUM_THREADS, to all cores "
        "of the machine, as DeepSpeed's launcher leaves it; num_cpu_threads_per_process narrows the time."
    ]


def offload_sentences(batch: Batch, mesh: Mesh) -> list[str]:
    """Assumptions about offload that may surprise: sentences, no bytes.

    Source: as ``estimator.parallel.offload`` has it.
    """
    away = {mesh.offload_optimizer, mesh.offload_param}
    if away == {Offload.NONE}:
        return []
    sentences = [
        f"A machine has at most {mesh.gpus_per_node} GPUs, whose processes share its memory, CPU and disks. "
        "PyTorch rounds pinned memory up to powers of two, which is counted."
    ]
    if mesh.offload_optimizer is not Offload.NONE:
        by = "PyTorch's own AdamW" if mesh.strategy.is_fsdp else "DeepSpeedCPUAdam"
        sentences.append(f"The optimizer runs on the CPU ({by}), and the GPU waits for it.")
        sentences += _threads(mesh)
    if mesh.strategy.is_fsdp and batch.gradient_accumulation_steps == 1:
        sentences.append(
            "FSDP2 sends each group's gradients to the host as soon as they are reduced."
        )
    if Offload.NVME in away:
        sentences.append(
            "NVMe is one SSD at the slow end and eight striped ones at the fast end; reads and writes do not overlap "
            "the step (pipeline_read and pipeline_write are off by default)."
        )
    if mesh.offload_optimizer is Offload.NVME:
        sentences.append(
            "Every process pins four buffers for a sub-group's states, up to 16 GB with DeepSpeed's default "
            "sub_group_size of "
            "10⁹. A smaller sub_group_size takes less."
        )
    if mesh.offload_param is Offload.NVME:
        sentences.append(
            "DeepSpeed's buffer_size is 100 million elements, or a rank's partition of the largest tensor if that is "
            "more."
        )
    return sentences


_FSDP1 = (
    "FSDP is version 1 as accelerate 1.15 runs it, with use_orig_params and without prefetching: each layer is one "
    "flat "
    "parameter and each adapter matrix another; the embedding and the head stay gathered from forward to backward."
)
_FSDP2 = (
    "FSDP is version 2 as accelerate 1.15 runs it: each layer is one group, and so are the embedding and the "
    "head. The head stays gathered from forward to backward."
)


def _fsdp(setup: TrainingSetup) -> list[str]:
    sentences = [
        _FSDP1
        if setup.mesh.uses_fsdp1
        else _FSDP2.replace("accelerate 1.15", "transformers 5.23")
        if setup.mesh.loads_divided
        else _FSDP2
    ]
    if (
        setup.mesh.checkpoint_around_fsdp
        and setup.computation.use_reentrant
        and setup.adapters.uses_adapters
    ):
        sentences.append(
            "FSDP 1 inside a reentrant checkpoint keeps the input of every frozen layer, and its gradient, until the "
            "end "
            "of backward. use_reentrant false avoids this, and so does transformers from 4.52 on."
        )
    if upcasts_trained(setup) and setup.precision.dtype is not Dtype.FLOAT32:
        sentences.append(
            "Under mixed precision accelerate casts trained weights to float32 before sharding, so gradients and "
            "states are float32 too."
        )
    if setup.batch.gradient_accumulation_steps > 1 and not setup.reduces_every_micro_step:
        sentences.append(
            "With accumulation, Trainer synchronises only at the last micro-step. Until then every GPU holds unsharded "
            "gradients."
        )
    if setup.task.given_loss.chunks_sequence and not setup.mesh.uses_fsdp1:
        sentences.append(
            "torchtune's loss is in accelerate's groups here; its own recipes gather embedding and head with the root."
        )
    if setup.adapters.has_4bit_base and not setup.adapters.shards_packed:
        sentences.append(
            "Packed 4-bit weights are not sharded; set bnb_4bit_quant_storage to bfloat16 to shard them."
        )
    return sentences

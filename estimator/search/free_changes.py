"""Changes on the same GPUs that leave the result as it is, except by rounding; cheapest first.

They keep the method, the GPUs and the tokens of an optimizer step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import starmap
from typing import Any, NamedTuple

from estimator.families.liger import fuses_head, loss_of
from estimator.families.vision_family import masks_text
from estimator.parallel.combinations import ADAM, OFFLOADS, sharing_keys
from estimator.parallel.network import joins
from estimator.resident.optimizer import RULES
from estimator.search.image_changes import tower_checkpoints
from estimator.step.reserved import is_replayed
from estimator.values.facets.computation import Computation
from estimator.values.facets.generation import Generation
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.run import TrainingRun
from estimator.values.keys import LARGEST
from estimator.values.losses import Loss
from estimator.values.setup import TrainingSetup
from estimator.values.specs import AttnImplementation, Dtype, Gpu, MixedPrecision, Model, Optimizer
from estimator.values.strategies import Strategy

Keys = Mapping[str, Any]


class Change(NamedTuple):
    """One kind of change: its title, its cost, and its options."""

    title: str
    price: str
    options: tuple[Keys, ...]
    """Fields of the setup to set; the smallest change first. Empty: the setup leaves nothing to change."""
    last_saves_most: bool = True
    """Whether each option needs less memory than the one before it."""
    always_saves: bool = True
    """Whether it never needs more memory than without it."""
    instead_of: str = ""
    """A key that no other change sets beside this one."""


def free_changes(model: Model, gpu: Gpu, setup: TrainingSetup) -> Iterator[Change]:
    """Changes that a setup still allows and that its result does not notice, the cheapest first.

    Prices: checkpointing runs each layer's forward twice, a third of a step's arithmetic at most (Chen et al. 2016,
    arXiv:1604.06174).
    """
    if setup.run.eval_strategy != "no" and setup.run.per_device_eval_batch_size > 1:
        yield Change(
            "Evaluation batch {per_device_eval_batch_size}",
            "The same metrics; evaluation takes a little longer.",
            tuple(_smaller_evaluations(setup.run)),
        )
    if setup.run.eval_strategy != "no" and setup.run.compute_metrics:
        yield Change(
            "Logits to the host after every evaluation batch",
            "The same metrics; evaluation waits for the copies.",
            ({"eval_accumulation_steps": 1},),
        )
    yield from starmap(Change, tower_checkpoints(model, setup))
    yield from _kernels(model, gpu, setup)
    half = AUTOCAST.get(setup.precision.mixed_precision)
    if (
        half is not None
        and setup.precision.dtype is Dtype.FLOAT32
        and setup.adapters.uses_adapters
        and not setup.adapters.has_4bit_base
    ):
        yield base_in(half, f"The base is frozen, and autocast multiplies it in {half} anyway")
    yield from _losses(model, setup)
    yield from _references(setup)
    if setup.task.objective.generates:
        yield from _generations(setup.generation, setup.mesh)
    yield from _divisions(setup, gpu)
    yield Change(
        "Micro-batch {per_device_train_batch_size}, accumulation {gradient_accumulation_steps}",
        f"The same effective batch of {setup.effective_batch_size:,}; smaller products use the GPU less well.",
        tuple(_smaller(setup)),
    )
    if setup.optimisation.optim in ADAM and not RULES[setup.optimisation.optim].is_fused:
        yield Change(
            "Fused AdamW",
            "The same arithmetic in one kernel, and faster.",
            ({"optim": Optimizer.ADAMW_TORCH_FUSED},),
        )
    yield from _checkpointing(setup.computation)
    if setup.computation.gradient_checkpointing:
        yield from _checkpoints(setup.computation, setup.mesh)
    yield from _segments(model, gpu, setup)


AUTOCAST = {MixedPrecision.BF16: Dtype.BFLOAT16, MixedPrecision.FP16: Dtype.FLOAT16}
"""The dtype in which autocast multiplies."""


def base_in(half: Dtype, why: str) -> Change:
    """A frozen base in 16 bits, and why its results stay what they are."""
    return Change(
        f"Base weights in {half}", f"{why}; adapters stay as they are.", ({"dtype": half},)
    )


def lossless(model: Model, gpu: Gpu, setup: TrainingSetup) -> Iterator[Change]:
    """Those that do not touch how a batch is split, generated or shared; each has one option."""
    yield from _kernels(model, gpu, setup)
    yield from _losses(model, setup)
    yield from _checkpointing(setup.computation)


def splits(setup: TrainingSetup) -> Iterator[Keys]:
    """The keys of every micro-batch with the accumulation that keeps the effective batch, the smallest first.

    What is generated at once stays the same too.

    >>> [keys["per_device_train_batch_size"] for keys in splits(TrainingSetup(gradient_accumulation_steps=6))]
    [1, 2, 3, 6]
    """
    batch = setup.batch.per_device_train_batch_size
    size = batch * setup.batch.gradient_accumulation_steps
    for rows in range(1, min(size, LARGEST["per_device_train_batch_size"]) + 1):
        # of an embedding's row, the others of its micro-batch are the negatives
        if size % rows or (setup.task.objective.compares_rows and rows != batch):
            continue
        keys = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": size // rows}
        steps = setup.task.steps_per_generation
        if steps is not None:
            if batch * steps % rows:
                continue
            keys["steps_per_generation"] = batch * steps // rows
        yield keys


def _smaller(setup: TrainingSetup) -> Iterator[Keys]:
    """The splits of fewer rows than the setup's, the largest first.

    >>> [keys["per_device_train_batch_size"] for keys in _smaller(TrainingSetup(per_device_train_batch_size=4))]
    [2, 1]
    """
    now = setup.batch.per_device_train_batch_size
    for keys in reversed([*splits(setup)]):
        if keys["per_device_train_batch_size"] < now:
            yield keys


def halves(whole: int, least: int) -> Iterator[int]:
    """A half, a quarter and so on, while they are at least ``least``.

    >>> list(halves(1024, 256))
    [512, 256]
    """
    while (whole := whole // 2) >= least:
        yield whole


KEPT_WHOLE = 64
"""MiB from which blocks are kept whole: of 32 to 1,024, the one with which the fewest runs needed more and the most
less (as ``_segments``)."""


def _segments(model: Model, gpu: Gpu, setup: TrainingSetup) -> Iterator[Change]:
    """Segments that grow, or else large blocks that are not split, where a replay says what that is worth. Last, since
    most config files cannot say it.

    Of 92 runs played on PyTorch's own allocator with and without segments that grow, each needed less: 2.6 % in the
    median, 19 % at most. Of 37 replayed ones (every third of data/played.csv), 34 needed less with blocks of 64 MiB
    kept whole: 3.7 % in the median, 16 % at most, and up to 2.8 % less than with segments that grow; one needed 0.9 %
    more. ``torch_empty_cache_steps`` is not offered: 15 of them need more with it, and none less than with these.
    """
    if setup.allocator.expandable_segments or not is_replayed(model, gpu, setup):
        return
    if gpu.vendor in ("", "NVIDIA"):
        yield Change(
            "Expandable segments",
            "The same result and speed: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before PyTorch starts, on "
            "Linux.",
            ({"expandable_segments": True},),
        )
    if setup.allocator.max_split_size_mb is None:
        yield Change(
            "Blocks of {max_split_size_mb} MiB kept whole",
            f"The same result: PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:{KEPT_WHOLE} before PyTorch starts; it asks "
            "the driver for blocks more often.",
            ({"max_split_size_mb": KEPT_WHOLE},),
            last_saves_most=False,
            always_saves=False,
            instead_of="expandable_segments",
        )


def _kernels(model: Model, gpu: Gpu, setup: TrainingSetup) -> Iterator[Change]:
    kernels = {
        AttnImplementation.EAGER: (AttnImplementation.SDPA, AttnImplementation.FLASH_ATTENTION_2),
        AttnImplementation.SDPA: (AttnImplementation.FLASH_ATTENTION_2,),
        AttnImplementation.FLASH_ATTENTION_2: (),
    }[setup.computation.attn_implementation]
    for kernel in kernels:
        if kernel.is_flash and (masks_text(model, setup) or not gpu.supports_bf16):
            continue  # it leaves the mask out, which is another result, and runs on Ampere or newer
        wants = "; needs the package flash-attn and an Ampere GPU or newer" * kernel.is_flash
        yield Change(
            f"Attention by {kernel.label}",
            f"The same result, and faster{wants}.",
            ({"attn_implementation": kernel},),
        )


def _checkpointing(computation: Computation) -> Iterator[Change]:
    if not computation.gradient_checkpointing:
        yield Change(
            "Gradient checkpointing",
            "Each layer's forward runs a second time in backward; the same result.",
            ({"gradient_checkpointing": True},),
        )


def _checkpoints(computation: Computation, mesh: Mesh) -> Iterator[Change]:
    """Checkpointing that keeps less on the GPU."""
    if computation.checkpoint_every_n_layers > 1:
        yield Change(
            "Checkpointing in every layer",
            "The other layers are also recomputed; the same result.",
            ({"checkpoint_every_n_layers": 1},),
        )
    if computation.selective_checkpointing:
        yield Change(
            "Checkpointing without saved attention outputs",
            "Attention is also recomputed; the same result.",
            ({"selective_checkpointing": False},),
        )
    if not computation.offload_checkpoints and not mesh.checkpoint_around_fsdp:
        yield Change(
            "Checkpoints on the host",
            "Each layer's input is copied to host memory and back while the GPU waits; the same result.",
            ({"offload_checkpoints": True},),
        )


def _losses(model: Model, setup: TrainingSetup) -> Iterator[Change]:
    """A loss that never holds all logits: Liger's, with its other kernels, if it supports the family, else TRL's.

    Prices: Liger computes the head's gradients with the loss, by the same products (Hsu et al. 2024,
    arXiv:2410.10989); trl 1.16, kernels/chunked_logprob.py, recomputes the logits in backward.
    """
    is_whole = setup.task.given_loss.takes_whole_logits or setup.task.given_loss.selects
    if is_whole and setup.task.objective.has_reference:
        yield Change(
            "TRL's trainer with its fused head",
            "The same loss up to rounding; needs TRL 1.15 or newer by itself. Backward recomputes the logits.",
            ({"loss": Loss.CHUNKED_TRL},),
        )
    if not loss_of(model, setup).takes_whole_logits or not setup.task.objective.is_causal_lm:
        return
    if fuses_head(model, setup.adapters):
        keys: dict[str, Any] = (
            {} if setup.computation.use_liger_kernel else {"use_liger_kernel": True}
        )
        yield Change(
            "Liger's fused kernels and loss",
            "The same result up to rounding; needs the package liger-kernel. The full logits never exist.",
            (keys | ({} if setup.task.loss is None else {"loss": None}),),
            always_saves=False,  # of few tokens, the head's gradient of its own takes more than their logits
        )
    else:
        yield Change(
            "TRL's loss in tiles",
            "The same result up to rounding; needs SFTTrainer of TRL 1.16 or newer. Backward recomputes the logits.",
            ({"loss": Loss.CHUNKED_TRL},),
        )


def _references(setup: TrainingSetup) -> Iterator[Change]:
    """What an objective can do without: its reference model on the GPU, all rows at once."""
    objective = setup.task.objective
    if setup.task.asks_reference and not objective.generates:
        leaves = ", and then leaves the GPU" if setup.keeps_reference else ""
        yield Change(
            "Reference precomputed",
            f"The same result: the reference is asked once about every example, before training{leaves}.",
            (
                {"precompute_ref_log_probs": True}
                | ({"loss": Loss.CHUNKED_TRL} if setup.task.given_loss.freezes_reference else {}),
            ),
        )
    if objective.compares_rows:
        yield Change(
            "GradCache with {mini_batch_size} rows at once",
            "The same result: CachedMultipleNegativesRankingLoss, whose forward runs twice.",
            tuple(
                {"mini_batch_size": size}
                for size in halves(
                    setup.task.mini_batch_size or setup.batch.per_device_train_batch_size, 1
                )
            ),
        )


STEPS_OF_SHARE = 20
"""Shares of the GPU that are tried: every twentieth below the setup's."""


def _generations(generation: Generation, mesh: Mesh) -> Iterator[Change]:
    """Less for generation beside training: a smaller share, turns instead of a sum, a gather for each layer.

    Prices: vllm 0.33, v1/core/sched/scheduler.py (rows that do not fit wait); trl 1.16, generation/vllm_generation.py
    (weights are pushed again after each sleep).
    """
    if generation.is_colocated:
        now = round(100 * generation.vllm_gpu_memory_utilization)
        step = 100 // STEPS_OF_SHARE
        yield Change(
            "A share of {vllm_gpu_memory_utilization:g} for vLLM",
            "The same result; with less cache fewer rows are generated at once, which may take longer.",
            tuple(
                {"vllm_gpu_memory_utilization": share / 100}
                for share in range((now - 1) // step * step, 0, -step)
            ),
            last_saves_most=False,  # vLLM does not start with too small a share
        )
        if not generation.vllm_enable_sleep_mode:
            yield Change(
                "vLLM sleeps while the step trains",
                "The same result; its weights are pushed again before each generation.",
                ({"vllm_enable_sleep_mode": True},),
            )
    elif (
        not generation.use_vllm
        and mesh.strategy.gathers_modules
        and generation.ds3_gather_for_generation
    ):
        yield Change(
            "Generation that gathers layer by layer",
            "The same result; every token gathers the model again, which is slow.",
            ({"ds3_gather_for_generation": False},),
        )


def traffic(gpu: Gpu, mesh: Mesh) -> str:
    """What a strategy that shards weights sends, and over which link."""
    crossing = "Every layer's weights cross the links three times per step"
    if not gpu.interconnect_gb_per_s:
        return f"{crossing}."
    if joins(gpu, mesh):
        return f"{crossing}, at {gpu.interconnect_gb_per_s:,.0f} GB/s both ways together."
    return f"{crossing}, which are PCIe between these cards and may set the speed."


_STRONGER = {
    Strategy.DDP: (Strategy.ZERO2, Strategy.FSDP, Strategy.ZERO3),
    Strategy.ZERO1: (Strategy.ZERO2, Strategy.FSDP, Strategy.ZERO3),
    Strategy.ZERO2: (Strategy.FSDP, Strategy.ZERO3),
    Strategy.FSDP_GRAD_OP: (Strategy.FSDP,),
    Strategy.HSDP: (Strategy.FSDP, Strategy.ZERO3),
}
"""Strategies that shard more than the given one, the cheaper first."""


def _divisions(setup: TrainingSetup, gpu: Gpu) -> Iterator[Change]:
    """The same GPUs, with more of the model sharded.

    Prices: ZeRO's stages 1 and 2 exchange as much as DDP, twice the model per step; stage 3 and FSDP 1.5 times as much
    (Rajbhandari et al. 2020, arXiv:1910.02054, section 7).
    """
    for way in _STRONGER.get(setup.mesh.strategy, ()):
        sent = traffic(gpu, setup.mesh) if way.shards_weights else "no more traffic."
        keys = sharing_keys(setup, way, setup.mesh.num_gpus)
        shards = setup.keeps_reference and way.shards_weights
        reference = " The reference is sharded too." if shards else ""
        yield Change(
            f"{way.label} instead of {setup.mesh.strategy}",
            f"The same GPUs: {sent[0].lower()}{sent[1:]}{reference}{brought_back(keys)}",
            (keys,),
        )


def brought_back(keys: Keys) -> str:
    """A sentence if the keys end an offload; else empty."""
    return " Offloaded tensors move back to the GPUs." if keys.keys() & OFFLOADS else ""


def _smaller_evaluations(run: TrainingRun) -> Iterator[Keys]:
    size = run.per_device_eval_batch_size
    while size > 1:
        size //= 2
        yield {"per_device_eval_batch_size": size}

"""What to change so that a setup fits, ordered by what a change costs in speed and quality.

A remedy is proposed only if the same estimate says that the changed setup fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any, NamedTuple

from estimator.answer.estimate import need
from estimator.families.adapters import default_targets, refused_targets
from estimator.families.liger import fuses_head, loss_of
from estimator.families.vision_family import masks_text
from estimator.objectives.batch import prompt_tokens
from estimator.parallel.combinations import ADAM, OFFLOADS, refusal, sharing
from estimator.parallel.network import joins
from estimator.search.fewest_gpus import WAYS, GpuSet, fewest_gpus, sharing_keys
from estimator.search.image_changes import image_changes
from estimator.search.limits import holds, may_hold, smallest_gpu
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.optimisation import Optimisation
from estimator.values.facets.run import TrainingRun
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    AttnImplementation,
    Dtype,
    Gpu,
    Loss,
    Method,
    MixedPrecision,
    Model,
    Objective,
    Offload,
    Optimizer,
    Strategy,
    Verdict,
)

MOST_TOGETHER = 3
"""Maximum changes in one remedy. Our choice."""
MOST_SHOWN = 6
"""Maximum remedies, in addition to a larger GPU and more GPUs. Our choice."""

MOST_WORK = 1_600_000
"""Changed setups tried at most, times the squared layers. Our choice: 250 with 80 layers, which find all that there
are; 100 with 126; beyond ``DEEPEST`` times the cubed layers: 12 with 250, one with 1,000."""
DEEPEST = 126
"""Layers of the catalogue's deepest model, Llama-3.1-405B."""

SHORTEST_COMPLETION = 64
"""Tokens of a completion that a remedy still offers: ours."""

Keys = Mapping[str, Any]


class Change(NamedTuple):
    """One kind of change: its title, its cost, and its options."""

    title: str
    price: str
    options: tuple[Keys, ...]
    """Fields of the setup to set; the smallest change first."""


class Remedy(NamedTuple):
    """A change, or several together, that makes the setup fit."""

    title: str
    price: str
    keys: Keys
    """Keys to set, by the contract's names."""
    saved_bytes: int
    """Reduction of the need's high end per GPU; 0 for a larger GPU."""
    need_high_bytes: int
    """High end of the need per GPU after the change."""

    @property
    def text(self) -> str:
        """Title and price in one line."""
        return f"{self.title}. {self.price}"


def remedies(of: Estimate, gpus: Iterable[Gpu]) -> tuple[Remedy, ...]:
    """Changes that make the setup fit its GPU; the smallest of ``gpus`` that holds it unchanged; more of the same GPU.

    Empty if it fits already or no GPU is given. Changes are combined only where no single one is enough.
    """
    if of.gpu is None or of.verdict is Verdict.FITS:
        return ()
    found: list[Remedy] = []
    for level in _levels(of, of.gpu):
        found = found or list(level)
    others = (gpu for gpu in gpus if gpu.name != of.gpu.name)  # which may be named by its machine
    larger = smallest_gpu(of.model, others, of.setup)
    return (
        *found[:MOST_SHOWN],
        *([] if larger is None else [_on(larger, of)]),
        *_sets(of, of.gpu),
    )


def cheapest_change(of: Estimate) -> Remedy | None:
    """The first of ``remedies`` that keeps the kind and number of GPUs, found without the others; None: there is none.

    >>> from estimator.values.setup import TrainingSetup
    >>> from estimator.answer.estimate import estimate
    >>> from estimator.sources import catalog
    >>> gpt2, card = catalog.model("openai-community/gpt2"), catalog.gpu("RTX 3060 12GB")
    >>> large = TrainingSetup(per_device_train_batch_size=16)
    >>> cheapest_change(estimate(gpt2, card, large)).title
    'Micro-batch 4, accumulation 4'
    """
    if of.gpu is None or of.verdict is Verdict.FITS:
        return None
    for level in _levels(of, of.gpu):
        if (found := next(level, None)) is not None:
            return found
    return None


def _levels(of: Estimate, gpu: Gpu) -> Iterator[Iterator[Remedy]]:
    """What fits with one change, with two, with three; cheapest first at each level."""
    changes = list(_changes(of.model, of.setup, gpu))
    layers = of.model.num_hidden_layers
    trials = iter(range(max(1, MOST_WORK * min(layers, DEEPEST) // layers**3)))
    for together in range(1, MOST_TOGETHER + 1):
        groups = combinations(changes, together)
        yield (remedy for group in groups for remedy in _fitting(of, gpu, group, trials))


def _on(gpu: Gpu, of: Estimate) -> Remedy:
    high = need(of.model, gpu, of.setup)[1]
    price = "The setup stays as it is."
    number = of.setup.num_gpus
    title = "A larger GPU" if number == 1 else f"{number} larger GPUs"
    return Remedy(f"{title}: {gpu.name}", price, {"gpu": gpu.name}, 0, high)


def _sets(of: Estimate, gpu: Gpu) -> list[Remedy]:
    """More of the same GPU under each of ``WAYS``; with checkpointing if more GPUs alone are never enough."""
    ways: tuple[dict[str, Any], ...] = ({}, {"gradient_checkpointing": True})
    for first in ways:
        setup = replace(of.setup, **first)
        found = [fewest_gpus(of.model, gpu, setup, way) for way in WAYS]
        remedies = [_together(of, first, it) for it in found if it is not None]
        if remedies or of.setup.gradient_checkpointing:
            return remedies
    return []


def _together(of: Estimate, first: dict[str, Any], found: GpuSet) -> Remedy:
    """Prices: see ``_divisions``."""
    setup = found.setup
    title = f"{setup.num_gpus} × {found.gpu.name} with {_NAMES[setup.strategy]}"
    price = f"{setup.num_gpus} GPUs to pay for. {_traffic(found.gpu, setup.mesh)}{_brought_back(found.keys)}"
    if setup.num_gpus > setup.gpus_per_node:
        price += f" More than {setup.gpus_per_node} span several machines, so the network between them sets the speed."
    if setup.effective_batch_size != of.setup.effective_batch_size:
        price += f" The effective batch grows to {setup.effective_batch_size:,}."
    if first:
        title = f"Gradient checkpointing + {title}"
        price = f"Each layer's forward runs a second time in backward. {price}"
    high = need(of.model, found.gpu, setup)[1]
    return Remedy(title, price, {**first, **found.keys}, of.need_high_bytes - high, high)


def _fitting(
    of: Estimate, gpu: Gpu, group: Sequence[Change], trials: Iterator[int]
) -> Iterator[Remedy]:
    """The smallest combination of a group's options that fits, if any, while there are ``trials`` left."""
    for options in product(*(change.options for change in group)):
        keys = {key: value for option in options for key, value in option.items()}
        if len(keys) < sum(map(len, options)):
            return  # the options set a key twice
        setup = _changed(of.setup, keys)
        if setup is None or not may_hold(of.model, gpu, setup):
            continue
        if next(trials, None) is None:
            return
        if not holds(of.model, gpu, setup):
            continue
        high = need(of.model, gpu, setup)[1]
        yield Remedy(
            _joined([change.title for change in group], options),
            " ".join(change.price for change in group),
            keys,
            of.need_high_bytes - high,
            high,
        )
        return


def _joined(titles: Sequence[str], options: Sequence[Keys]) -> str:
    return " + ".join(title.format(**option) for title, option in zip(titles, options, strict=True))


def _changed(setup: TrainingSetup, keys: Keys) -> TrainingSetup | None:
    try:
        changed = replace(setup, **keys)
    except ValueError:
        return None
    return changed if refusal(changed) is None else None


def _changes(model: Model, setup: TrainingSetup, gpu: Gpu) -> Iterator[Change]:
    """Changes that a setup still allows on a GPU, the cheapest first.

    Prices: checkpointing runs each layer's forward twice, a third of a step's arithmetic at most (Chen et al. 2016,
    arXiv:1604.06174); 8-bit states reach the results of 32-bit ones (Dettmers et al. 2021, arXiv:2110.02861); LoRA
    learns less and forgets less (Biderman et al. 2024, arXiv:2405.09673); QLoRA reaches 16-bit LoRA's results and
    unpacks each weight before its product (Dettmers et al. 2023, arXiv:2305.14314).
    """
    half = Dtype.BFLOAT16 if gpu.supports_bf16 else Dtype.FLOAT16
    if setup.eval_strategy != "no" and setup.per_device_eval_batch_size > 1:
        yield Change(
            "Evaluation batch {per_device_eval_batch_size}",
            "The same metrics; evaluation takes a little longer.",
            tuple(_smaller_evaluations(setup.run)),
        )
    if setup.eval_strategy != "no" and setup.compute_metrics:
        yield Change(
            "Logits to the host after every evaluation batch",
            "The same metrics; evaluation waits for the copies.",
            ({"eval_accumulation_steps": 1},),
        )
    yield from (Change(*it) for it in image_changes(model, setup))
    yield from _kernels(model, setup)
    if setup.dtype is Dtype.FLOAT32 and setup.method is Method.LORA:
        yield Change(
            f"Base weights in {half}",
            "The base is frozen, and most checkpoints are stored in 16 bits; adapters stay as they are.",
            ({"dtype": half},),
        )
    yield from _losses(model, setup)
    yield from _references(setup)
    if setup.objective.generates:
        yield from _generations(setup)
    yield from _divisions(setup, gpu)
    if splits := tuple(_splits(setup)):
        yield Change(
            "Micro-batch {per_device_train_batch_size}, accumulation {gradient_accumulation_steps}",
            f"The same effective batch of {setup.effective_batch_size:,}; smaller products use the GPU less well.",
            splits,
        )
    yield from _optimizers(setup)
    yield from _checkpointing(setup)
    if setup.gradient_checkpointing:
        yield from _checkpoints(setup)
    if setup.objective.generates:
        yield from _shorter_generations(setup)
    if setup.dtype is Dtype.FLOAT32 and setup.method is Method.FULL and gpu.supports_bf16:
        yield Change(
            "Weights in bfloat16",
            "Updates smaller than a 256th of a weight are rounded away; watch the loss.",
            ({"dtype": Dtype.BFLOAT16},),
        )
    if setup.method is Method.FULL:
        yield Change(
            f"LoRA of rank {setup.lora_r}{_where(model, setup)}",
            "Trains small adapters instead of all weights; learns less if the task is far from pretraining."
            + " The reference is then the base without them, no second model."
            * setup.keeps_reference,
            ({"method": Method.LORA, **_with_adapters(model, setup)},),
        )
    if setup.method is not Method.QLORA:
        wide = setup.dtype is Dtype.FLOAT32
        base = half if wide else setup.dtype
        yield Change(
            f"QLoRA of rank {setup.lora_r}{_where(model, setup)}{f', the rest in {half}' * wide}",
            "Adapters over a 4-bit base; results close to LoRA's. Each weight is dequantised whenever it is used.",
            ({"method": Method.QLORA, "dtype": base, **_with_adapters(model, setup)},),
        )

    if moved := tuple(offloaded(setup, gpu)):
        yield Change(
            "Offload to the CPU under {strategy}",
            "The same result: the CPU runs the optimizer, and zero3 and fsdp keep the weights there too, so the link "
            "between GPU and host sets the speed.",
            moved,
        )


def lossless(model: Model, setup: TrainingSetup) -> Iterator[Change]:
    """Changes on the same GPUs that do not affect the result except by rounding, cheapest first; without offload."""
    yield from _kernels(model, setup)
    yield from _losses(model, setup)
    yield from _checkpointing(setup)


STEPS_OF_SHARE = 20
"""Shares of the GPU that are tried: every twentieth below the setup's."""


def _generations(setup: TrainingSetup) -> Iterator[Change]:
    """Less for generation beside training: a smaller share, turns instead of a sum, or GPUs of its own.

    Prices: vllm 0.33, v1/core/sched/scheduler.py (rows that do not fit wait); trl 1.16, generation/vllm_generation.py
    (weights are pushed again after each sleep); trainer/grpo_trainer.py (a prompt's rows are generated together).
    """
    if setup.generation.is_colocated:
        now = round(100 * setup.vllm_gpu_memory_utilization)
        step = 100 // STEPS_OF_SHARE
        lower = tuple(
            {"vllm_gpu_memory_utilization": share / 100}
            for share in range((now - 1) // step * step, 0, -step)
        )
        if lower:
            yield Change(
                "A share of {vllm_gpu_memory_utilization:g} for vLLM",
                "The same result; with less cache fewer rows are generated at once, which may take longer.",
                lower,
            )
        if not setup.vllm_enable_sleep_mode:
            yield Change(
                "vLLM sleeps while the step trains",
                "The same result; its weights are pushed again before each generation.",
                ({"vllm_enable_sleep_mode": True},),
            )
        yield Change(
            "vLLM on GPUs of its own",
            "The same result; more GPUs to pay for, which wait while the others train.",
            ({"vllm_mode": "server"},),
        )
    elif (
        not setup.use_vllm and setup.strategy is Strategy.ZERO3 and setup.ds3_gather_for_generation
    ):
        yield Change(
            "Generation that gathers layer by layer",
            "The same result; every token gathers the model again, which is slow.",
            ({"ds3_gather_for_generation": False},),
        )
    steps = setup.steps_per_generation or setup.gradient_accumulation_steps
    if steps > 1 and not setup.use_vllm:
        yield Change(
            "{steps_per_generation} micro-batches of a generation",
            "Less is generated at once, more often; TRL then asks the policy once more for its log-probabilities.",
            tuple({"steps_per_generation": fewer} for fewer in range(steps // 2, 0, -1)),
        )


def _shorter_generations(setup: TrainingSetup) -> Iterator[Change]:
    """Less to generate and to train on: shorter completions, fewer of a prompt.

    Prices: Shao et al. 2024, arXiv:2402.03300, section 4.1 (a group's mean is the baseline); trl 1.16,
    trainer/grpo_trainer.py (a completion that is cut off ends without its answer).
    """
    completion, prompt = setup.max_completion_length, prompt_tokens(setup)
    yield Change(
        "Completions of {max_completion_length:,} tokens",
        "Longer answers are cut off, and seldom rewarded.",
        tuple(
            {"max_completion_length": shorter, "max_length": prompt + shorter}
            for shorter in _halves(completion, SHORTEST_COMPLETION)
        ),
    )
    rows, group = setup.per_device_train_batch_size, setup.num_generations
    yield Change(
        "{num_generations} completions of a prompt, micro-batch {per_device_train_batch_size}",
        "A group's mean and spread are rougher estimates with fewer completions; more prompts need as many steps more.",
        tuple(
            {"num_generations": fewer, "per_device_train_batch_size": rows * fewer // group}
            for fewer in _halves(group, 2)
            if rows * fewer % group == 0
        ),
    )


def _halves(whole: int, least: int) -> Iterator[int]:
    """A half, a quarter and so on, while they are at least ``least``.

    >>> list(_halves(1024, 256))
    [512, 256]
    """
    while (whole := whole // 2) >= least:
        yield whole


def _kernels(model: Model, setup: TrainingSetup) -> Iterator[Change]:
    kernels = {
        AttnImplementation.EAGER: (AttnImplementation.SDPA, AttnImplementation.FLASH_ATTENTION_2),
        AttnImplementation.SDPA: (AttnImplementation.FLASH_ATTENTION_2,),
        AttnImplementation.FLASH_ATTENTION_2: (),
    }[setup.attn_implementation]
    for kernel in kernels:
        if kernel is AttnImplementation.FLASH_ATTENTION_2 and masks_text(model, setup):
            continue  # it leaves the mask out, which is another result
        name = "SDPA" if kernel is AttnImplementation.SDPA else "FlashAttention 2"
        wants = (
            "" if name == "SDPA" else "; needs the package flash-attn and an Ampere GPU or newer"
        )
        yield Change(
            f"Attention by {name}",
            f"The same result, and faster{wants}.",
            ({"attn_implementation": kernel},),
        )


def _checkpointing(setup: TrainingSetup) -> Iterator[Change]:
    if not setup.gradient_checkpointing:
        yield Change(
            "Gradient checkpointing",
            "Each layer's forward runs a second time in backward; the same result.",
            ({"gradient_checkpointing": True},),
        )


def _checkpoints(setup: TrainingSetup) -> Iterator[Change]:
    """Checkpointing that keeps less on the GPU."""
    if setup.checkpoint_every_n_layers > 1:
        yield Change(
            "Checkpointing in every layer",
            "The other layers are also recomputed; the same result.",
            ({"checkpoint_every_n_layers": 1},),
        )
    if setup.selective_checkpointing:
        yield Change(
            "Checkpointing without saved attention outputs",
            "Attention is also recomputed; the same result.",
            ({"selective_checkpointing": False},),
        )
    if not setup.offload_checkpoints and not setup.checkpoint_around_fsdp:
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
    is_whole = setup.freezes_reference or setup.loss in (Loss.SELECTIVE_TRL, Loss.SELECTIVE_VERL)
    if is_whole and setup.objective.has_reference:
        yield Change(
            "TRL's trainer with its fused head",
            "The same loss up to rounding; needs TRL 1.15 or newer by itself. Backward recomputes the logits.",
            ({"loss": Loss.CHUNKED_TRL},),
        )
    if loss_of(model, setup) is not Loss.STANDARD or setup.objective is not Objective.SFT:
        return
    if fuses_head(model, setup.adapters):
        keys: dict[str, Any] = {} if setup.use_liger_kernel else {"use_liger_kernel": True}
        yield Change(
            "Liger's fused kernels and loss",
            "The same result up to rounding; needs the package liger-kernel. The full logits never exist.",
            (keys | ({} if setup.loss is None else {"loss": None}),),
        )
    else:
        yield Change(
            "TRL's loss in tiles",
            "The same result up to rounding; needs SFTTrainer of TRL 1.16 or newer. Backward recomputes the logits.",
            ({"loss": Loss.CHUNKED_TRL},),
        )


def _references(setup: TrainingSetup) -> Iterator[Change]:
    """What an objective can do without: its reference model on the GPU, all rows at once, long prompts."""
    objective = setup.objective
    if setup.asks_reference and not objective.generates:
        leaves = ", and then leaves the GPU" if setup.keeps_reference else ""
        yield Change(
            "Reference precomputed",
            f"The same result: the reference is asked once about every example, before training{leaves}.",
            (
                {"precompute_ref_log_probs": True}
                | ({"loss": Loss.CHUNKED_TRL} if setup.freezes_reference else {}),
            ),
        )
    if setup.keeps_reference and objective.generates:
        yield Change(
            "No reference model (beta 0)",
            "GRPO's default; nothing then holds the answers near the model that training began with.",
            ({"beta": 0.0},),
        )
    if objective is Objective.EMBEDDING:
        yield Change(
            "GradCache with {mini_batch_size} rows at once",
            "The same result: CachedMultipleNegativesRankingLoss, whose forward runs twice.",
            tuple(
                {"mini_batch_size": size}
                for size in _halves(setup.mini_batch_size or setup.per_device_train_batch_size, 1)
            ),
        )
    prompt = prompt_tokens(setup)
    if objective.is_preference and prompt > 1:
        completion = setup.max_length - prompt
        yield Change(
            "Prompts of {max_prompt_length} tokens",
            "Longer prompts are cut; answers stay whole.",
            tuple(
                {"max_prompt_length": shorter, "max_length": completion + shorter}
                for shorter in (prompt // 2, prompt // 4)
                if shorter > 0
            ),
        )


_NAMES = {
    Strategy.ZERO2: "ZeRO-2",
    Strategy.ZERO3: "ZeRO-3",
    Strategy.FSDP: "FSDP",
}


def _traffic(gpu: Gpu, mesh: Mesh) -> str:
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
    for way in _STRONGER.get(setup.strategy, ()):
        traffic = "no more traffic." if way is Strategy.ZERO2 else _traffic(gpu, setup.mesh)
        keys = sharing_keys(setup, way, setup.num_gpus)
        shards = setup.keeps_reference and way in (Strategy.ZERO3, Strategy.FSDP)
        reference = " The reference is sharded too." if shards else ""
        yield Change(
            f"{_NAMES[way]} instead of {setup.strategy}",
            f"The same GPUs: {traffic[0].lower()}{traffic[1:]}{reference}{_brought_back(keys)}",
            (keys,),
        )


def _brought_back(keys: Keys) -> str:
    return " Offloaded tensors move back to the GPUs." if keys.keys() & OFFLOADS else ""


def offloaded(setup: TrainingSetup, gpu: Gpu) -> Iterator[Keys]:
    """States on the host, then weights too, under the setup's FSDP strategy, else under ZeRO (one GPU is enough).

    Prices: Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload), which runs on one GPU as on several.
    """
    if setup.optim not in ADAM:
        return
    own = setup.strategy
    ways = (own,) if own.is_fsdp else (Strategy.ZERO2, Strategy.ZERO3)
    for way in ways:
        keys = sharing(setup.mesh, way, setup.num_gpus, setup.dp_replicate_size)
        rests = OFFLOADS[:1] if way is Strategy.ZERO2 else OFFLOADS
        keys |= dict.fromkeys(rests, Offload.CPU) | _real_states(setup.optimisation)
        is_pure = setup.mixed_precision is MixedPrecision.NO and setup.dtype is not Dtype.FLOAT32
        if way.is_zero and is_pure:  # not modelled without float32 master weights
            keys["mixed_precision"] = (
                MixedPrecision.BF16 if gpu.supports_bf16 else MixedPrecision.FP16
            )
        changed = {key: value for key, value in keys.items() if getattr(setup, key) != value}
        if OFFLOADS[0] in changed or OFFLOADS[1] in changed:
            yield changed | {"strategy": way}


def _smaller_evaluations(run: TrainingRun) -> Iterator[Keys]:
    size = run.per_device_eval_batch_size
    while size > 1:
        size //= 2
        yield {"per_device_eval_batch_size": size}


def _splits(setup: TrainingSetup) -> Iterator[Keys]:
    """Smaller micro-batches with more accumulation, at the same effective batch."""
    if (
        setup.objective is Objective.EMBEDDING
    ):  # a row's negatives are the others of its micro-batch
        return
    size = setup.per_device_train_batch_size * setup.gradient_accumulation_steps
    for batch in range(setup.per_device_train_batch_size - 1, 0, -1):
        if size % batch == 0:
            yield {
                "per_device_train_batch_size": batch,
                "gradient_accumulation_steps": size // batch,
            }


def _where(model: Model, setup: TrainingSetup) -> str:
    targets = _with_adapters(model, setup).get("lora_target_modules")
    return f" on {', '.join(targets)}" if isinstance(targets, tuple) else ""


def _with_adapters(model: Model, setup: TrainingSetup) -> Keys:
    """Keys that change with the method: the optimizer's real states, and other targets if PEFT refuses the setup's."""
    adapted = replace(setup, method=Method.LORA)
    keys: dict[str, Any] = dict(_real_states(setup.optimisation))
    if refused_targets(model, adapted.adapters):
        keys["lora_target_modules"] = default_targets(model, adapted)
    return keys


def _real_states(optimisation: Optimisation) -> dict[str, Any]:
    """Reset a what-if dtype of the states to the optimizer's default."""
    return {} if optimisation.optim_state_dtype is None else {"optim_state_dtype": None}


_EIGHT_BIT = {
    Optimizer.ADAMW_TORCH_FUSED: Optimizer.ADAMW_BNB_8BIT,
    Optimizer.ADAMW_TORCH: Optimizer.ADAMW_BNB_8BIT,
    Optimizer.PAGED_ADAMW_32BIT: Optimizer.PAGED_ADAMW_8BIT,
    Optimizer.LION_32BIT: Optimizer.LION_8BIT,
    Optimizer.PAGED_LION_32BIT: Optimizer.PAGED_LION_8BIT,
    Optimizer.ADEMAMIX: Optimizer.ADEMAMIX_8BIT,
    Optimizer.PAGED_ADEMAMIX_32BIT: Optimizer.PAGED_ADEMAMIX_8BIT,
    Optimizer.RMSPROP_BNB: Optimizer.RMSPROP_BNB_8BIT,
}


def _optimizers(setup: TrainingSetup) -> Iterator[Change]:
    if setup.optim is Optimizer.ADAMW_TORCH:
        yield Change(
            "Fused AdamW",
            "The same arithmetic in one kernel, and faster.",
            ({"optim": Optimizer.ADAMW_TORCH_FUSED},),
        )
    if setup.optim_state_dtype is Dtype.FLOAT32 and setup.dtype is not Dtype.FLOAT32:
        yield Change(
            f"Optimizer states in {setup.dtype}",
            "As Trainer keeps them; small second moments lose precision.",
            ({"optim_state_dtype": None},),
        )
    if setup.optim in _EIGHT_BIT:
        yield Change(
            "8-bit optimizer states",
            "Blocks of 256 values share a scale; published results match those of 32-bit states.",
            ({"optim": _EIGHT_BIT[setup.optim], **_real_states(setup.optimisation)},),
        )

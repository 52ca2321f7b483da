"""What to change so that a setup fits: first what its result does not notice, then what costs least quality and speed.

A remedy is proposed only if the same estimate says that the changed setup fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, product, starmap
from typing import Any, NamedTuple

from estimator.answer.estimate import estimate
from estimator.answer.needs import is_refused
from estimator.families.adapters import default_targets, refused_targets
from estimator.parallel.combinations import ADAM, OFFLOADS, refusal, sharing
from estimator.search.free_changes import (
    AUTOCAST,
    Change,
    Keys,
    base_in,
    brought_back,
    free_changes,
    halves,
    traffic,
)
from estimator.search.image_changes import image_changes
from estimator.search.limits import WAYS, GpuSet, fewest_gpus, holds, may_hold, smallest_gpu
from estimator.values.facets.batch import Batch
from estimator.values.facets.optimisation import Optimisation
from estimator.values.facets.precision import Precision
from estimator.values.facets.run import TrainingRun
from estimator.values.methods import Method
from estimator.values.results import Estimate, Remedy
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, Gpu, MixedPrecision, Model, Offload, Optimizer, Verdict
from estimator.values.strategies import Strategy

MOST_TOGETHER = 3
"""Changes in one remedy that affect the result, and free ones of which every combination is tried. Our choice."""
MOST_SHOWN = 6
"""Maximum remedies on the same GPUs. Our choice."""

MOST_TRIALS = 150
"""Changed setups tried at most. Our choice: twice as many as those that end a search."""
IMAGES_COST = 3
"""Trials that take as long as one with an image tower. Our choice."""
MOST_WORK = 200_000_000
"""Changed setups tried at most, times the cubed layers: 100 with 126, 12 with 250, one of more than 584. Our choice."""

SHORTEST_ROW = 1024
"""Tokens of a packed row that a remedy still offers: ours."""
SHORTEST_COMPLETION = 64
"""Tokens of a completion that a remedy still offers: ours."""


def remedies(of: Estimate, gpus: Iterable[Gpu]) -> tuple[Remedy, ...]:
    """Changes that make the setup fit its GPU; if none do, the smallest of ``gpus`` that holds it, and more GPUs.

    Changes that leave the result as it is come first, as many as it takes; a change of the result only where they are
    not enough. Empty if the setup fits already or no GPU is given.
    """
    if of.gpu is None or of.verdict is Verdict.FITS:
        return ()
    for level in _levels(of, of.gpu):
        if found := tuple(islice(level, MOST_SHOWN)):
            return found
    others = (gpu for gpu in gpus if gpu.name != of.gpu.name)  # which may be named by its machine
    larger = smallest_gpu(of.model, others, of.setup)
    return (*([] if larger is None else [_on(larger, of)]), *_sets(of, of.gpu))


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


Picked = tuple[tuple[Change, Keys], ...]
"""Changes, each with one of its options."""


def _levels(of: Estimate, gpu: Gpu) -> Iterator[Iterator[Remedy]]:
    """What fits by free changes alone, the fewest first; then with one, two and three that affect the result.

    With each of these come the free changes that it cannot do without.
    """
    layers = of.model.num_hidden_layers
    most = MOST_TRIALS // (IMAGES_COST if of.setup.images.shows_any else 1)
    trials = iter(range(max(1, min(most, MOST_WORK // layers**3))))
    search = _Search(of, gpu, _possible(free_changes(of.model, gpu, of.setup)), trials)
    if (every := search.with_everything(())) is not None:
        for number in range(1, MOST_TOGETHER + 1):
            yield search.of_free(number)
        yield iter([search.pruned(every, 0)])
    others = _possible(_changes(of.model, of.setup, gpu))
    for affecting in range(1, MOST_TOGETHER + 1):
        able = search.able(combinations(others, affecting))
        yield (search.pruned(every, affecting) for every in able)


def _possible(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Those with an option: a completion that is short already, or a group of five in rows of two, has none."""
    return tuple(change for change in changes if change.options)


class _Search(NamedTuple):
    """A setup that does not fit, and how many changed ones may still be tried."""

    of: Estimate
    gpu: Gpu
    free: tuple[Change, ...]
    trials: Iterator[int]

    def able(self, groups: Iterable[Sequence[Change]]) -> Iterator[Picked]:
        """The groups that fit with everything that is free, each with its mildest options that do."""
        for group in groups:
            most = tuple(change.options[-1] for change in group)
            if self.with_everything(tuple(zip(group, most, strict=True))) is None:
                continue
            for options in product(*(change.options for change in group)):
                every = self.with_everything(tuple(zip(group, options, strict=True)))
                if every is not None:
                    yield every
                    break

    def of_free(self, number: int) -> Iterator[Remedy]:
        """So many of the free changes, each group with its smallest options that fit."""
        for group in combinations(self.free, number):
            for options in product(*(change.options for change in group)):
                if self.fits(picked := tuple(zip(group, options, strict=True))):
                    yield self.made(picked)
                    break

    def pruned(self, every: Picked, affecting: int) -> Remedy:
        """Without the free changes that it can do without, the costliest first, and the rest no larger than needed."""
        kept = [*every]
        for pick in reversed(every):
            at = kept.index(pick)
            change, chosen = pick
            fewer = (*kept[:at], *kept[at + 1 :])
            if pick not in every[:affecting] and self.fits(fewer):
                kept = [*fewer]
                continue
            for option in change.options[: change.options.index(chosen)]:
                smaller = (*kept[:at], (change, option), *kept[at + 1 :])
                if self.fits(smaller):
                    kept = [*smaller]
                    break
        return self.made((*kept[affecting:], *kept[:affecting]))

    def with_everything(self, group: Picked) -> Picked | None:
        """A group with all that is free, at its most; None if that does not fit."""
        if self._setup(group) is None:
            return None
        added: Picked = ()
        for change in reversed(self.free):
            for option in change.options[::-1] if change.last_saves_most else ():
                if self._setup((*group, (change, option), *added)) is not None:
                    added = ((change, option), *added)
                    break
        sure = tuple(pick for pick in added if pick[0].always_saves)
        for those in (added, sure) if len(sure) < len(added) else (added,):
            if self.fits((*group, *those)):
                return (*group, *those)
        for change in self.free:
            for option in () if change.last_saves_most else change.options:
                picked = (*group, *added, (change, option))
                if self.fits(picked):
                    return picked
        return None

    def fits(self, picked: Picked) -> bool:
        """Whether the changed setup fits, while there are trials left."""
        setup = self._setup(picked)
        if setup is None or not may_hold(self.of.model, self.gpu, setup):
            return False
        return next(self.trials, None) is not None and holds(self.of.model, self.gpu, setup)

    def _setup(self, picked: Picked) -> TrainingSetup | None:
        """The changed setup; None if two options set one key or exclude each other, or it is refused."""
        keys = _keys_of(picked)
        if len(keys) < sum(len(option) for _, option in picked):
            return None
        if any(change.instead_of in keys for change, _ in picked):
            return None
        changed = changed_setup(self.of.setup, keys)
        if changed is None or is_refused(self.of.model, changed):
            return None
        runs = changed.runs_on(self.gpu) or not self.of.setup.runs_on(self.gpu)
        return changed if runs else None

    def made(self, picked: Picked) -> Remedy:
        """What fits, in words and keys."""
        keys = _keys_of(picked)
        high = _needed(self.of.model, self.gpu, replace(self.of.setup, **keys))
        return Remedy(
            " + ".join(change.title.format(**option) for change, option in picked),
            " ".join(change.price for change, _ in picked),
            keys,
            self.of.need_high_bytes - high,
            high,
        )


def _keys_of(picked: Picked) -> dict[str, Any]:
    return {key: value for _, option in picked for key, value in option.items()}


def _on(gpu: Gpu, of: Estimate) -> Remedy:
    high = _needed(of.model, gpu, of.setup)
    price = "The setup stays as it is."
    number = of.setup.mesh.num_gpus
    title = "A larger GPU" if number == 1 else f"{number} larger GPUs"
    return Remedy(f"{title}: {gpu.name}", price, {"gpu": gpu.name}, 0, high)


def _sets(of: Estimate, gpu: Gpu) -> list[Remedy]:
    """More of the same GPU under each of ``WAYS``; with checkpointing if more GPUs alone are never enough."""
    ways: tuple[dict[str, Any], ...] = ({}, {"gradient_checkpointing": True})
    for first in ways:
        setup = replace(of.setup, **first)
        found = [fewest_gpus(of.model, gpu, setup, way) for way in WAYS]
        remedies = [_together(of, first, gpus) for gpus in found if gpus is not None]
        if remedies or of.setup.computation.gradient_checkpointing:
            return remedies
    return []


def _together(of: Estimate, first: dict[str, Any], found: GpuSet) -> Remedy:
    """Prices: see ``free_changes``."""
    setup = found.setup
    title = f"{setup.mesh.num_gpus} × {found.gpu.name} with {setup.mesh.strategy.label}"
    price = f"{setup.mesh.num_gpus} GPUs to pay for. {traffic(found.gpu, setup.mesh)}{brought_back(found.keys)}"
    per_node = setup.mesh.gpus_per_node
    if setup.mesh.num_gpus > per_node:
        price += f" More than {per_node} span several machines, so the network between them sets the speed."
    if setup.effective_batch_size != of.setup.effective_batch_size:
        price += f" The effective batch grows to {setup.effective_batch_size:,}."
    if first:
        title = f"Gradient checkpointing + {title}"
        price = f"Each layer's forward runs a second time in backward. {price}"
    high = _needed(of.model, found.gpu, setup)
    return Remedy(title, price, {**first, **found.keys}, of.need_high_bytes - high, high)


def _needed(model: Model, gpu: Gpu, setup: TrainingSetup) -> int:
    return estimate(model, gpu, setup).need_high_bytes


def changed_setup(setup: TrainingSetup, keys: Keys) -> TrainingSetup | None:
    """The setup with some keys changed; None if they exclude each other."""
    try:
        changed = replace(setup, **keys)
    except ValueError:
        return None
    return changed if refusal(changed) is None else None


def _changes(model: Model, setup: TrainingSetup, gpu: Gpu) -> Iterator[Change]:
    """Changes that affect the result, the GPUs or most of the hours, the cheapest first.

    Prices: 8-bit states reach the results of 32-bit ones (Dettmers et al. 2021, arXiv:2110.02861); LoRA learns less and
    forgets less (Biderman et al. 2024, arXiv:2405.09673); QLoRA reaches 16-bit LoRA's results and unpacks each weight
    before its product (Dettmers et al. 2023, arXiv:2305.14314).
    """
    yield from starmap(Change, image_changes(model, setup))
    half = Dtype.BFLOAT16 if gpu.supports_bf16 else Dtype.FLOAT16
    is_lora = setup.adapters.uses_adapters and not setup.adapters.has_4bit_base
    if (
        is_lora
        and setup.precision.dtype is Dtype.FLOAT32
        and setup.precision.mixed_precision not in AUTOCAST
    ):
        yield base_in(half, "The base is frozen, and most checkpoints are stored in 16 bits")
    yield from _shorter_rows(setup.batch, setup.run)
    yield from _prompts_and_references(setup)
    if setup.task.objective.generates:
        yield from _generations(setup)
    yield from _optimizers(setup.precision, setup.optimisation)
    if setup.task.objective.generates:
        yield from _shorter_generations(setup)
    if (
        setup.precision.dtype is Dtype.FLOAT32
        and not setup.adapters.uses_adapters
        and gpu.supports_bf16
    ):
        yield Change(
            "Weights in bfloat16",
            "Updates smaller than a 256th of a weight are rounded away; watch the loss.",
            ({"dtype": Dtype.BFLOAT16},),
        )
    if not setup.adapters.uses_adapters:
        yield Change(
            f"LoRA of rank {setup.adapters.lora_r}{_where(model, setup)}",
            "Trains small adapters instead of all weights; learns less if the task is far from pretraining."
            + " The reference is then the base without them, no second model."
            * setup.keeps_reference,
            ({"method": Method.LORA, **with_adapters(model, setup)},),
        )
    if not setup.adapters.has_4bit_base:
        wide = setup.precision.dtype is Dtype.FLOAT32
        base = half if wide else setup.precision.dtype
        yield Change(
            f"QLoRA of rank {setup.adapters.lora_r}{_where(model, setup)}{f', the rest in {half}' * wide}",
            "Adapters over a 4-bit base; results close to LoRA's. Each weight is dequantised whenever it is used.",
            ({"method": Method.QLORA, "dtype": base, **with_adapters(model, setup)},),
        )

    yield Change(
        "Offload to the CPU under {strategy}",
        "The same result: the CPU runs the optimizer, and zero3 and fsdp keep the weights there too, so the link "
        "between GPU and host sets the speed.",
        tuple(offloaded(setup, gpu)),
    )


def _shorter_rows(batch: Batch, run: TrainingRun) -> Iterator[Change]:
    """Shorter packed rows and more accumulation: the same tokens a step, if no example is longer than a row.

    Source: trl 1.16, data_utils.py, ``pack_dataset`` (bfd cuts what is longer than a row).
    """
    if not batch.packing:
        return
    least = max(SHORTEST_ROW, run.mean_tokens_per_example or 1)
    shorter = tuple(
        {
            "max_length": length,
            "gradient_accumulation_steps": batch.gradient_accumulation_steps * times,
        }
        for length in halves(batch.max_length, least)
        for times in [batch.max_length // length]
        if length * times == batch.max_length
    )
    yield Change(
        "Packed rows of {max_length:,} tokens, accumulation {gradient_accumulation_steps}",
        "The same tokens a step; what an example has beyond its row is cut.",
        shorter,
    )


def _generations(setup: TrainingSetup) -> Iterator[Change]:
    """GPUs of its own for generation, or less generated at once.

    Prices: trl 1.16, trainer/grpo_trainer.py (a prompt's rows are generated together).
    """
    if setup.generation.is_colocated:
        yield Change(
            "vLLM on GPUs of its own",
            "The same result; more GPUs to pay for, which wait while the others train.",
            ({"vllm_mode": "server"},),
        )
    steps = setup.task.steps_per_generation or setup.batch.gradient_accumulation_steps
    if steps > 1 and not setup.generation.use_vllm:
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
    completion, prompt = setup.task.max_completion_length, setup.prompt_tokens
    yield Change(
        "Completions of {max_completion_length:,} tokens",
        "Longer answers are cut off, and seldom rewarded.",
        tuple(
            {"max_completion_length": shorter, "max_length": prompt + shorter}
            for shorter in halves(completion, SHORTEST_COMPLETION)
        ),
    )
    rows, group = setup.batch.per_device_train_batch_size, setup.task.num_generations
    yield Change(
        "{num_generations} completions of a prompt, micro-batch {per_device_train_batch_size}",
        "A group's mean and spread are rougher estimates with fewer completions; more prompts need as many steps more.",
        tuple(
            {"num_generations": fewer, "per_device_train_batch_size": rows * fewer // group}
            for fewer in halves(group, 2)
            if rows * fewer % group == 0
        ),
    )


def _prompts_and_references(setup: TrainingSetup) -> Iterator[Change]:
    """A reference that an objective can do without, and shorter prompts."""
    objective = setup.task.objective
    if setup.keeps_reference and objective.generates:
        yield Change(
            "No reference model (beta 0)",
            "GRPO's default; nothing then holds the answers near the model that training began with.",
            ({"beta": 0.0},),
        )
    prompt = setup.prompt_tokens
    if objective.is_preference and prompt > 1:
        completion = setup.batch.max_length - prompt
        yield Change(
            "Prompts of {max_prompt_length} tokens",
            "Longer prompts are cut; answers stay whole.",
            tuple(
                {"max_prompt_length": shorter, "max_length": completion + shorter}
                for shorter in (prompt // 2, prompt // 4)
                if shorter > 0
            ),
        )


def offloaded(setup: TrainingSetup, gpu: Gpu) -> Iterator[Keys]:
    """States on the host, then weights too, under the setup's FSDP strategy, else under ZeRO (one GPU is enough).

    Prices: Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload), which runs on one GPU as on several.
    """
    if setup.optimisation.optim not in ADAM:
        return
    own = setup.mesh.strategy
    ways = (own,) if own.is_fsdp else (Strategy.ZERO2, Strategy.ZERO3)
    for way in ways:
        keys = sharing(setup.mesh, way, setup.mesh.num_gpus, setup.mesh.dp_replicate_size)
        rests = OFFLOADS if way.shards_weights else OFFLOADS[:1]
        keys |= dict.fromkeys(rests, Offload.CPU) | _real_states(setup.optimisation)
        is_pure = (
            setup.precision.mixed_precision is MixedPrecision.NO
            and setup.precision.dtype is not Dtype.FLOAT32
        )
        if way.is_zero and is_pure:  # not modelled without float32 master weights
            keys["mixed_precision"] = (
                MixedPrecision.BF16 if gpu.supports_bf16 else MixedPrecision.FP16
            )
        changed = {key: value for key, value in keys.items() if setup.value(key) != value}
        if OFFLOADS[0] in changed or OFFLOADS[1] in changed:
            yield changed | {"strategy": way}


def _where(model: Model, setup: TrainingSetup) -> str:
    targets = with_adapters(model, setup).get("lora_target_modules")
    return f" on {', '.join(targets)}" if isinstance(targets, tuple) else ""


def with_adapters(model: Model, setup: TrainingSetup) -> Keys:
    """Keys that change with the method: the optimizer's real states, and other targets if PEFT refuses the setup's."""
    adapted = setup.replace(method=Method.LORA)
    keys: dict[str, Any] = dict(_real_states(setup.optimisation))
    if refused_targets(model, adapted.adapters):
        keys["lora_target_modules"] = default_targets(model, adapted.adapters)
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


def _optimizers(precision: Precision, optimisation: Optimisation) -> Iterator[Change]:
    if optimisation.optim_state_dtype is Dtype.FLOAT32 and precision.dtype is not Dtype.FLOAT32:
        yield Change(
            f"Optimizer states in {precision.dtype}",
            "As Trainer keeps them; small second moments lose precision.",
            ({"optim_state_dtype": None},),
        )
    if optimisation.optim in _EIGHT_BIT:
        yield Change(
            "8-bit optimizer states",
            "Blocks of 256 values share a scale; published results match those of 32-bit states.",
            ({"optim": _EIGHT_BIT[optimisation.optim], **_real_states(optimisation)},),
        )

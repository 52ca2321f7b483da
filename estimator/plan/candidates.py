"""Every setup that answers a question, in arrays: what it needs, how long it takes and what it costs."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product

import numpy as np
from numpy.typing import NDArray

from estimator.contract.setups import NONE_KNOWN, Reading, read_setup
from estimator.grid.arrays import Numbers, Reals, Some
from estimator.grid.needs import Needs, needs_on_each
from estimator.grid.runs import runs
from estimator.plan.question import MOST_ROWS, Offer, Question
from estimator.plan.recipes import Candidates, Recipe
from estimator.time.rates import missing_rate
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.methods import Method
from estimator.values.range import Range
from estimator.values.refusals import InputError
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, MixedPrecision, Model

MOST_CANDIDATES = 2_000_000
"""Setups of one question at most: ours, what fits in memory and in patience."""


Progress = Callable[[float, Callable[[], Candidates]], None]
"""Is called with the share of a question that is done, and what gives the setups that are computed already."""


def candidates(
    question: Question,
    known: Mapping[str, Model] = NONE_KNOWN,
    progress: Progress | None = None,
    *,
    are_bounded: bool = False,
) -> Candidates:
    """Every setup that a question allows, with bytes, hours and dollars as ``estimate`` says of each.

    Hours and dollars on machines that may be taken away are those times ``Offer.stretched``.

    ``known``: models by id that are not in the catalogue. ``progress`` follows; of each strategy in turn, the simplest
    first, all models and methods are computed, so that an answer soon stands. ``are_bounded``: with lower bounds of the
    bytes, from which ``pick`` finds the same as from the needs; only the recipes that may be taken are played.
    Raises ``InputError`` with one sentence if nothing can be computed.

    Source: derived, from ``needs`` and ``runs``.
    """
    refused: Counter[str] = Counter()
    untimed: dict[str, str] = {}
    asked = list(_structures(question, known, refused))
    if not asked:
        raise InputError(_why_nothing(refused))
    table, cards = _Table(), [offer.priced for offer in question.offers]
    with uncollected():
        for done, (model, setup, places) in enumerate(asked):
            for group in _by_node(question.offers, places):
                cells = _cells(
                    question,
                    [question.offers[place] for place in group],
                    setup.adapters,
                    setup.mesh,
                )
                if len(cells[0]):
                    of_node = setup.replace(gpus_per_node=question.offers[group[0]].gpus_per_node)
                    gpus = [question.offers[place].gpu for place in group]
                    needed = needs_on_each(
                        model,
                        gpus,
                        of_node,
                        _asked_of(of_node.adapters, cells),
                        plays=not are_bounded,
                    )
                    _read(question, cards, model, of_node, group, cells, needed, table, untimed)
            if table.count > MOST_CANDIDATES:
                raise InputError(
                    f"The question has more than {MOST_CANDIDATES:,} setups; try fewer cards, values or models."
                )
            if progress is not None:
                progress((done + 1) / len(asked), lambda: table.all(question, refused, untimed))
    found = table.all(question, refused, untimed)
    found.bounded.update(range(len(found.recipes)) if are_bounded else ())
    return found


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the cyclic garbage collector, which takes a third of the time while steps are recorded and finds little.

    So do lists of a run's requests.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _why_nothing(refused: Counter[str]) -> str:
    said = f" {refused.most_common(1)[0][0]}" if refused else ""
    return f"No setup can be computed for this question.{said}"


def _structures(
    question: Question, known: Mapping[str, Model], refused: Counter[str]
) -> Iterator[tuple[Model, TrainingSetup, list[int]]]:
    """Every combination that is tried and the offers it is for, read by the contract with its tool's defaults."""
    seen: set[tuple[str, bool, TrainingSetup]] = set()
    tried = dict(question.tried)
    sharing = tried.pop("strategy", ())
    for has_bf16 in (True, False):
        places = [
            at for at, offer in enumerate(question.offers) if offer.gpu.supports_bf16 is has_bf16
        ]
        those = [question.offers[place] for place in places]
        alone = any(1 in offer.counts for offer in those)
        strategies = [*["none"] * alone, *list(sharing) * any(offer.most > 1 for offer in those)]
        for strategy, name, method in product(strategies, question.models, question.methods):
            for values in product(*tried.values()):
                keys = {
                    **question.keys,
                    **dict(zip(tried, values, strict=True)),
                    **_asked(question),
                    "model": name,
                    "tool": question.tool,
                    "method": method.value,
                    "strategy": strategy,
                    "num_gpus": 1 if strategy == "none" else 2,
                }
                if strategy == "none" and any(
                    keys.get(key) not in (None, "none")
                    for key in ("offload_optimizer", "offload_param")
                ):
                    continue
                for reading in _readings(keys, known, refused, has_bf16=has_bf16):
                    found = (str(name), has_bf16, reading.setup)
                    if reading.model is not None and found not in seen:
                        seen.add(found)
                        yield reading.model, reading.setup, places


def _readings(
    keys: Mapping[str, object],
    known: Mapping[str, Model],
    refused: Counter[str],
    *,
    has_bf16: bool,
) -> list[Reading]:
    """One combination in each precision that can be trained; in its tool's own where no other can."""
    found = []
    for precisions in (_precisions(keys, has_bf16=has_bf16), ({},)):
        for precision in precisions:
            reading = read_setup({**keys, **precision}, known)
            if reading.model is None:
                raise InputError(" ".join(reading.problems))
            if reading.problems:
                refused[" ".join(reading.problems)] += 1
            else:
                found.append(reading)
        if found or {} in precisions:
            break
    return found


def _precisions(keys: Mapping[str, object], *, has_bf16: bool) -> tuple[Mapping[str, object], ...]:
    """Keys of the precisions that are tried: what the question says, else 16-bit weights.

    Trained weights are tried in the tool's own precision too, which 16 bits round at each update; a frozen base is only
    larger in it. Cards without bfloat16 (Volta, Turing) train in float16, under its autocast.

    >>> _precisions({"method": "full"}, has_bf16=True), _precisions({"method": "lora"}, has_bf16=False)
    (({}, {'dtype': 'bfloat16'}), ({'mixed_precision': 'fp16', 'dtype': 'float16'},))
    """
    dtype, autocast = keys.get("dtype"), keys.get("mixed_precision")
    if not has_bf16 and (autocast not in (None, FP16) or dtype == "bfloat16"):
        return ({},)  # as asked; its hours are unknown
    under: Mapping[str, object] = {} if has_bf16 else {"mixed_precision": FP16}
    if dtype:
        return (under,)
    in_16_bits = "float16" if FP16 in (autocast, *under.values()) else "bfloat16"
    own = under if has_bf16 else {**under, "dtype": "float32"}
    halved = {**under, "dtype": in_16_bits}
    return (halved,) if Method(str(keys["method"])).has_adapters else (own, halved)


FP16 = MixedPrecision.FP16.value


def _asked(question: Question) -> dict[str, object]:
    """What the question says in its own words, by the contract's names."""
    is_short = question.mean_tokens < question.row_tokens
    rows: dict[str, dict[str, object]] = {
        "padded": {"padded": is_short, "packing": False, "padding_free": False},
        "packed": {"packing": True},
        "padding_free": {"padding_free": True, "packing": False},
    }
    return {
        **rows[question.rows],
        "max_length": question.row_tokens,
        "mean_tokens_per_example": question.mean_tokens,
        "num_train_examples": question.num_train_examples,
        "num_train_epochs": question.num_train_epochs,
    }


def _by_node(offers: Sequence[Offer], places: Sequence[int]) -> list[list[int]]:
    """Places of some offers by the GPUs of a machine: in their setups alone."""
    groups: dict[int, list[int]] = {}
    for place in places:
        groups.setdefault(offers[place].gpus_per_node, []).append(place)
    return list(groups.values())


def _cells(
    question: Question, offers: Sequence[Offer], adapters: Adapters, mesh: Mesh
) -> list[Numbers]:
    """GPUs, micro-batch, accumulation and rank of each setup, whose product is exactly the effective batch."""
    alone = mesh.num_gpus == 1
    counts = sorted({count for offer in offers for count in offer.counts if (count == 1) == alone})
    ranks = question.ranks if adapters.uses_adapters else question.ranks[:1]
    rows = question.micro_batches or range(1, MOST_ROWS + 1)
    found = [
        (count, batch, question.effective_batch // (count * batch), rank)
        for count in counts
        for batch in rows
        if question.effective_batch % (count * batch) == 0
        for rank in ranks
    ]
    return list(np.array(found, np.int64).reshape(-1, 4).T)


def _asked_of(adapters: Adapters, cells: Sequence[Numbers]) -> dict[str, Numbers]:
    """The cells by key, as ``needs`` and ``runs`` take them."""
    gpus, batches, accumulation, ranks = cells
    ranked = {"lora_r": ranks} if adapters.uses_adapters else {}
    return {
        "per_device_train_batch_size": batches,
        "gradient_accumulation_steps": accumulation,
        "num_gpus": gpus,
        **ranked,
    }


def _read(
    question: Question,
    cards: Sequence[Gpu],
    model: Model,
    setup: TrainingSetup,
    group: Sequence[int],
    cells: Sequence[Numbers],
    needs_on_offers: Sequence[Needs],
    table: _Table,
    untimed: dict[str, str],
) -> None:
    """The setups of one structure on some offers.

    ``cards``: those of the offers, with their listings.
    """
    gpus, asked = cells[0], _asked_of(setup.adapters, cells)
    for place, needed in zip(group, needs_on_offers, strict=True):
        offer = question.offers[place]
        had = np.isin(gpus, offer.counts) & ~needed.refused
        if not had.any():
            continue
        recipe = Recipe(model=model, offer=place, setup=setup)
        begins = needed.low_bytes[had] <= offer.gpu.memory_bytes
        those = {key: column[had] for key, column in asked.items()}
        ends = _timed(model, offer, cards[place], setup, those, begins)
        if (why := missing_rate(offer.gpu, setup)) is not None:
            untimed.setdefault(offer.gpu.name, why)
        numbers = [column[had] for column in (*cells, needed.low_bytes, needed.high_bytes)]
        table.add(recipe, offer.gpu.memory_bytes, numbers, ends)


def _timed(
    model: Model,
    offer: Offer,
    card: Gpu,
    setup: TrainingSetup,
    asked: Mapping[str, Numbers],
    begins: Some,
) -> Reals:
    """[4, cells]: hours and dollars, low and high, of the setups that may fit, which begin; NaN for the others."""
    ends = np.full((4, len(begins)), np.nan)
    if begins.any():
        found = runs(model, card, setup, **{key: column[begins] for key, column in asked.items()})
        ends[:, begins] = (*found.hours, *found.dollars)
    if offer.interruptions_per_hour:
        counts = asked["num_gpus"].tolist()
        ends *= np.array([offer.stretched(count) for count in counts])
    return ends


class _Table:
    """Columns that grow recipe by recipe."""

    def __init__(self) -> None:
        self.count = 0
        self._recipes: list[Recipe] = []
        self._capacities: list[int] = []
        self._numbers: list[NDArray[np.int64]] = []
        self._ends: list[Reals] = []

    def add(self, recipe: Recipe, capacity: int, numbers: Sequence[Numbers], ends: Reals) -> None:
        self._recipes.append(recipe)
        self._capacities.append(capacity)
        self._numbers.append(np.stack(numbers))
        self._ends.append(ends)
        self.count += ends.shape[1]

    def all(
        self, question: Question, refused: Mapping[str, int], untimed: Mapping[str, str]
    ) -> Candidates:
        sizes = [ends.shape[1] for ends in self._ends]
        recipe = np.repeat(np.arange(len(sizes)), sizes)
        numbers = np.concatenate([np.empty((6, 0), np.int64), *self._numbers], axis=1)
        ends = np.concatenate([np.empty((4, 0)), *self._ends], axis=1)
        gpus, batches, accumulation, ranks, low, high = numbers
        return Candidates(
            question=question,
            recipes=tuple(self._recipes),
            recipe=recipe,
            num_gpus=gpus,
            micro_batch=batches,
            accumulation=accumulation,
            rank=ranks,
            low_bytes=low,
            high_bytes=high,
            capacity_bytes=np.array(self._capacities, np.int64)[recipe],
            hours=Range(*ends[:2]),
            dollars=Range(*ends[2:]),
            refused=dict(refused),
            untimed=untimed,
        )

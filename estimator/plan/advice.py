"""What to take, what the next dollar buys, and why the others fail: an answer from the arrays of a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from estimator.answer.estimate import estimate
from estimator.grid.arrays import Numbers, Reals, Some
from estimator.grid.needs import needs
from estimator.plan import words
from estimator.plan.candidates import uncollected
from estimator.plan.front import equal_to, front_of, overlap, stairs_of
from estimator.plan.question import Question
from estimator.plan.recipes import Candidates
from estimator.plan.teams import JobOption

SAME_DOLLARS = 1.02
"""Times the cheapest, up to which dollars are the same: ours, the last of two digits."""
MOST_MISSES = 12
"""Near misses that are named: ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stair:
    """A point of the front that is faster than every cheaper one, cheapest first."""

    place: int
    """Its place in the candidates."""
    alike: tuple[int, ...]
    """Faster, dearer points of the front that cannot be told from it: both brackets overlap."""
    dollars_more: float
    """Than the stair before, by the middles; 0 for the first."""
    hours_less: float
    is_surely_faster: bool
    """Whether its bracket of hours lies wholly below that of the stair before."""
    is_surely_dearer: bool
    text: str
    """What the step buys, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """The setup of some cards that comes closest to what is asked, and what it lacks; 0 where it lacks nothing."""

    place: int
    bytes_over: int
    """Of the high end of the need above the card's memory."""
    hours_over: float
    """Of the slow end above the deadline."""
    dollars_over: float
    """Of the dear end above the budget."""
    may_do: bool
    """Whether the low ends meet everything, so that it may do."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer to a question."""

    question: Question
    candidates: Candidates
    kept: Some
    """Which candidates pass the caller's filters."""
    meets: Some
    """Which of these fit, and meet deadline and budget with the worse ends of their brackets."""
    may_meet: Some
    """Which of these fit, and meet both with the better ends."""
    front: Numbers
    """Places of those that fit and that no other beats in dollars, hours and headroom; cheapest first."""
    stairs: tuple[Stair, ...]
    recommended: int | None
    """The fastest of the cheapest (to ``SAME_DOLLARS``) of those that meet everything, or else of those that may; None:
    none may."""
    is_sure: bool
    """Whether the recommended one meets everything with the worse ends."""
    sentence: str
    reasons: tuple[str, ...]
    misses: tuple[NearMiss, ...]
    notes: tuple[str, ...]
    """What the answer leaves out: cards without a price or a speed, cut examples, refused combinations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """What ``advise`` recommends, alone."""

    question: Question
    candidates: Candidates
    kept: Some
    recommended: int | None
    is_sure: bool

    @property
    def sentence(self) -> str:
        """The recommendation, or why there is none."""
        return words.recommendation(
            self.candidates, self.question, self.recommended, self.kept, is_sure=self.is_sure
        )


def pick(found: Candidates, question: Question | None = None, where: Some | None = None) -> Pick:
    """The recommendation of ``advise`` for a tenth of its time: the allocator brings through the cheapest alone.

    Source: derived. Of setups that fit and cost the same, none beats the fastest, cheapest and roomiest.
    """
    asked = found.question if question is None else question
    kept = np.ones(len(found), np.bool_) if where is None else where
    place: int | None
    while True:
        _, meets, may_meet = _meeting(found, asked, kept)
        is_sure = bool((meets & ~np.isnan(found.middle_dollars)).any())
        among = np.flatnonzero(meets if is_sure else may_meet)
        among = among[~np.isnan(found.middle_dollars[among])]
        if not len(among):
            place = None
            break
        least = int(among[np.argmin(found.middle_dollars[among])])
        same = among[found.middle_dollars[among] <= SAME_DOLLARS * found.middle_dollars[least]]
        columns = -found.headroom[same], found.middle_dollars[same], found.middle_hours[same]
        place = int(same[np.lexsort(columns)[0]])
        rough = {*found.recipe[[least, place]].tolist()} & found.bounded
        for recipe in rough:
            _play(found, recipe)
        if rough:
            continue
        new = {least, place} - found.settled
        if not new:
            break
        for one in new:
            _settle(found, one)
    return Pick(question=asked, candidates=found, kept=kept, recommended=place, is_sure=is_sure)


def _play(found: Candidates, number: int) -> None:
    """Give the setups of a recipe their needs in place of bounds."""
    recipe, places = found.recipes[number], np.flatnonzero(found.recipe == number)
    ranked = {"lora_r": found.rank[places]} if recipe.setup.adapters.uses_adapters else {}
    needed = needs(
        recipe.model,
        found.question.offers[recipe.offer].gpu,
        recipe.setup,
        num_gpus=found.num_gpus[places],
        per_device_train_batch_size=found.micro_batch[places],
        gradient_accumulation_steps=found.accumulation[places],
        **ranked,
    )
    found.low_bytes[places], found.high_bytes[places] = needed.low_bytes, needed.high_bytes
    found.bounded.remove(number)


def _settle(found: Candidates, place: int) -> None:
    """Give a setup the need of its estimate."""
    one = estimate(found.of(place).model, found.gpu(place), found.setup(place))
    with uncollected():
        found.low_bytes[place], found.high_bytes[place] = one.need_low_bytes, one.need_high_bytes
    found.settled.add(place)


def _meeting(found: Candidates, asked: Question, kept: Some) -> tuple[Some, Some, Some]:
    """Which of these fit; which also meet deadline and budget with their worse ends; which with their better ends."""
    fits = found.fits & kept
    deadline = np.inf if asked.deadline_hours is None else asked.deadline_hours
    budget = np.inf if asked.budget_usd is None else asked.budget_usd
    with np.errstate(invalid="ignore"):
        meets = fits & (found.hours.high <= deadline) & (found.dollars.high <= budget)
        may_meet = fits & (found.hours.low <= deadline) & (found.dollars.low <= budget)
    return fits, meets, may_meet


def advise(
    found: Candidates, question: Question | None = None, where: Some | None = None
) -> Advice:
    """The answer from candidates that are already computed; fast, so that filters act at once.

    ``question``: with another deadline or budget. ``where``: which candidates are considered.

    Source: derived; the front as ``front_of``, ties of brackets as ``equal_to``.
    """
    asked = found.question if question is None else question
    kept = np.ones(len(found), np.bool_) if where is None else where
    front = _front(found, kept)
    fits, meets, may_meet = _meeting(found, asked, kept)
    hours = found.middle_hours
    is_sure = bool((meets & ~np.isnan(found.middle_dollars)).any())
    among = meets if is_sure else may_meet
    best = _front(found, among) if (among != fits).any() else front
    fits, meets, may_meet = (found.fits & those for those in (kept, meets, may_meet))
    recommended = _cheapest(found, best)
    stairs = _stairs(found, front, hours)
    return Advice(
        question=asked,
        candidates=found,
        kept=kept,
        meets=meets,
        may_meet=may_meet,
        front=front,
        stairs=stairs,
        recommended=recommended,
        is_sure=is_sure,
        sentence=words.recommendation(found, asked, recommended, kept, is_sure=is_sure),
        reasons=_reasons(found, asked, recommended, kept, fits, meets, may_meet),
        misses=_misses(found, asked, kept, meets),
        notes=words.notes(found, asked, kept),
    )


def _front(found: Candidates, kept: Some) -> Numbers:
    """The front of those that fit, each of which PyTorch's allocator brings through."""
    while True:
        fits = found.fits & kept
        front = front_of(
            np.where(fits, found.middle_dollars, np.nan), found.middle_hours, found.headroom
        )
        new = [place for place in front.tolist() if place not in found.settled]
        if not new:
            return front
        for place in new:
            _settle(found, place)


def _cheapest(found: Candidates, front: Numbers) -> int | None:
    """Of a front, cheapest first, the fastest of those that cost the same."""
    if not len(front):
        return None
    same = front[found.middle_dollars[front] <= SAME_DOLLARS * found.middle_dollars[front[0]]]
    return int(same[np.argmin(found.middle_hours[same])])


def _stairs(found: Candidates, front: Numbers, hours: Reals) -> tuple[Stair, ...]:
    """Stairs that can be told apart; those that cannot be told from the one before are named with it."""
    groups: list[list[int]] = []
    for place in stairs_of(front, hours).tolist():
        if groups and equal_to(found.hours, found.dollars, groups[-1][0])[place]:
            groups[-1].append(place)
        else:
            groups.append([place])
    stairs: list[Stair] = []
    for place, *alike in groups:
        if not stairs:
            stairs.append(
                Stair(
                    place=place,
                    alike=tuple(alike),
                    dollars_more=0.0,
                    hours_less=0.0,
                    is_surely_faster=False,
                    is_surely_dearer=False,
                    text=words.first_stair(found, place),
                )
            )
            continue
        before = stairs[-1].place
        faster = not overlap(found.hours, before)[place]
        dearer = not overlap(found.dollars, before)[place]
        stairs.append(
            Stair(
                place=place,
                alike=tuple(alike),
                dollars_more=float(found.middle_dollars[place] - found.middle_dollars[before]),
                hours_less=float(found.middle_hours[before] - found.middle_hours[place]),
                is_surely_faster=bool(faster),
                is_surely_dearer=bool(dearer),
                text=words.stair(
                    found, before, place, is_faster=bool(faster), is_dearer=bool(dearer)
                ),
            )
        )
    return tuple(stairs)


def _reasons(
    found: Candidates,
    asked: Question,
    recommended: int | None,
    kept: Some,
    fits: Some,
    meets: Some,
    may_meet: Some,
) -> tuple[str, ...]:
    if recommended is None:
        return ()
    among = meets if meets[recommended] else may_meet
    said = [words.cheapest_of(found, asked, int(among.sum()), int(fits.sum()))]
    equals = equal_to(found.hours, found.dollars, recommended) & among
    equals[recommended] = False
    if equals.any():
        others = np.flatnonzero(equals)
        order = others[np.argsort(found.middle_dollars[others], kind="stable")]
        said.append(words.equals(found, recommended, order.tolist()))
        roomiest = int(others[np.argmax(found.headroom[others])])
        if found.headroom[roomiest] > found.headroom[recommended]:
            said.append(words.roomiest(found, roomiest))
    with np.errstate(invalid="ignore"):
        tight = kept & found.may_fit & ~found.fits
        tight &= found.middle_dollars * SAME_DOLLARS < found.middle_dollars[recommended]
    if tight.any():
        places = np.flatnonzero(tight)
        said.append(
            words.cheaper_but_tight(found, int(places[np.argmin(found.high_bytes[places])]))
        )
    cheaper = fits & ~meets & (found.middle_dollars < found.middle_dollars[recommended])
    if cheaper.any():
        places = np.flatnonzero(cheaper)
        nearest = int(places[np.argmin(found.hours.high[places])])
        said.append(words.cheaper_but_late(found, asked, nearest))
    return tuple(said)


def _misses(found: Candidates, asked: Question, kept: Some, meets: Some) -> tuple[NearMiss, ...]:
    """For each number of cards of an offer that meets nothing, the setup that comes closest."""
    if not len(found):
        return ()
    offers = found.offers
    group = offers * (int(found.num_gpus.max()) + 1) + found.num_gpus
    met = np.unique(group[meets])
    open_ = np.flatnonzero(kept & ~np.isin(group, met))
    if not len(open_):
        return ()
    over = np.maximum(0, found.high_bytes - found.capacity_bytes)
    with np.errstate(invalid="ignore", divide="ignore"):
        late = _beyond(found.hours.high, asked.deadline_hours)
        dear = _beyond(found.dollars.high, asked.budget_usd)
        shares = [
            beyond / limit if limit else np.zeros_like(beyond)
            for beyond, limit in ((late, asked.deadline_hours), (dear, asked.budget_usd))
        ]
    score = np.where(
        over > 0, over / found.capacity_bytes, np.nan_to_num(np.maximum(*shares), nan=np.inf)
    )
    order = open_[
        np.lexsort((found.middle_dollars[open_], score[open_], over[open_] > 0, group[open_]))
    ]
    _, first = np.unique(group[order], return_index=True)
    places = order[first]
    nearest = places[np.lexsort((score[places], over[places] > 0))]
    tight = found.may_fit
    misses = []
    for place in nearest[:MOST_MISSES].tolist():
        beyond = (int(over[place]), float(late[place]), float(dear[place]))
        starts = _starts(found, asked, place) and bool(tight[place])
        misses.append(
            NearMiss(
                place=place,
                bytes_over=beyond[0],
                hours_over=beyond[1],
                dollars_over=beyond[2],
                may_do=starts,
                text=words.miss(found, asked, place, beyond, may_do=starts),
            )
        )
    return tuple(misses)


def _beyond(high: Reals, limit: float | None) -> Reals:
    if limit is None:
        return np.zeros_like(high)
    return np.where(np.isnan(high), np.nan, np.maximum(0.0, high - limit))


def _starts(found: Candidates, asked: Question, place: int) -> bool:
    """Whether the low ends meet deadline and budget."""
    limits: Sequence[tuple[float, float | None]] = (
        (float(found.hours.low[place]), asked.deadline_hours),
        (float(found.dollars.low[place]), asked.budget_usd),
    )
    return all(limit is None or low <= limit for low, limit in limits)


def options_of(answer: Advice) -> tuple[JobOption, ...]:
    """For each number of cards of each offer the fastest setup that fits, by its slow end; the cheaper of equals.

    Source: derived.
    """
    found = answer.candidates
    usable = np.flatnonzero(
        found.fits & answer.kept & ~np.isnan(found.hours.high) & ~np.isnan(found.dollars.high)
    )
    if not len(usable):
        return ()
    group = found.offers * (int(found.num_gpus.max()) + 1) + found.num_gpus
    order = usable[
        np.lexsort((found.dollars.high[usable], found.hours.high[usable], group[usable]))
    ]
    _, first = np.unique(group[order], return_index=True)
    return tuple(
        JobOption(
            pool=found.offer(place).gpu.name,
            num_gpus=int(found.num_gpus[place]),
            hours=float(found.hours.high[place]),
            dollars=float(found.dollars.high[place]),
            place=place,
        )
        for place in order[first].tolist()
    )

"""Setups in arrays, as a question's answer has them: what each needs, how long it takes and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from estimator.contract.setups import write_fields
from estimator.grid.arrays import Numbers, Reals, Some
from estimator.plan.question import Offer, Question
from estimator.values.range import Range, by_end
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Setups on one kind of card that differ in GPUs, micro-batch, accumulation and rank only."""

    model: Model
    offer: int
    """Its place among the question's offers."""
    setup: TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Setups, one per place of each array; bytes per GPU, hours and US dollars of the whole run (NaN: unknown)."""

    question: Question
    recipes: tuple[Recipe, ...]
    recipe: Numbers
    """The place in ``recipes``."""
    num_gpus: Numbers
    micro_batch: Numbers
    accumulation: Numbers
    rank: Numbers
    low_bytes: Numbers
    high_bytes: Numbers
    capacity_bytes: Numbers
    hours: Range[Reals]
    dollars: Range[Reals]
    refused: Mapping[str, int]
    """Sentences about combinations that no one can train, and how many there are of each."""
    untimed: Mapping[str, str]
    """Why an offer has no time, by the name of its card."""
    settled: set[int] = field(default_factory=set)
    """Places whose need is that of their estimate, which replays them; that of others has published runs' slack."""
    bounded: set[int] = field(default_factory=set)
    """Recipes whose bytes are lower bounds."""

    def __len__(self) -> int:
        return len(self.recipe)

    @property
    def fits(self) -> Some:
        """Which fit surely: as ``Verdict.FITS``."""
        return self.high_bytes <= self.capacity_bytes

    @property
    def may_fit(self) -> Some:
        """Which fit or are tight."""
        return self.low_bytes <= self.capacity_bytes

    @property
    def headroom(self) -> Reals:
        """Share of the card that stays free at the high end of the need; negative where it does not fit."""
        return (self.capacity_bytes - self.high_bytes) / self.capacity_bytes

    @property
    def middle_hours(self) -> Reals:
        """The geometric mean of both ends, as of an estimate."""
        return np.sqrt(self.hours.low * self.hours.high)

    @property
    def middle_dollars(self) -> Reals:
        """The geometric mean of both ends, as of an estimate."""
        return np.sqrt(self.dollars.low * self.dollars.high)

    def hours_of(self, place: int) -> Range[float]:
        """The hours of one."""
        return by_end(lambda every: float(every[place]), self.hours)

    def dollars_of(self, place: int) -> Range[float]:
        """The US dollars of one."""
        return by_end(lambda every: float(every[place]), self.dollars)

    @property
    def offers(self) -> Numbers:
        """The place of each one's offer among the question's."""
        return np.array([recipe.offer for recipe in self.recipes], np.int64)[self.recipe]

    def of(self, place: int) -> Recipe:
        """The recipe of one."""
        return self.recipes[int(self.recipe[place])]

    def offer(self, place: int) -> Offer:
        """The offer of one."""
        return self.question.offers[self.of(place).offer]

    def gpu(self, place: int) -> Gpu:
        """The card of one, with the listings of its offer."""
        return self.offer(place).priced

    def setup(self, place: int) -> TrainingSetup:
        """The whole setup of one: ``estimate`` of it and of ``gpu`` says the same as the arrays."""
        recipe = self.of(place)
        ranked: dict[str, Any] = (
            {"lora_r": int(self.rank[place])} if recipe.setup.adapters.uses_adapters else {}
        )
        return recipe.setup.replace(
            num_gpus=int(self.num_gpus[place]),
            per_device_train_batch_size=int(self.micro_batch[place]),
            gradient_accumulation_steps=int(self.accumulation[place]),
            **ranked,
        )

    def keys(self, place: int) -> dict[str, object]:
        """The object of the contract, which a link, a file and a tool's config are written from."""
        offer = self.offer(place)
        written = write_fields(self.of(place).model, offer.gpu, self.setup(place))
        if offer.usd_per_gpu_hour is not None:
            written["usd_per_gpu_hour"] = offer.usd_per_gpu_hour
        return written

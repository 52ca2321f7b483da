"""A planner's question: what is trained, on how much text, what must hold, and which cards can be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from estimator.sources import catalog
from estimator.time.cost import cheapest
from estimator.time.interruptions import stretched
from estimator.values.arithmetic import ceil_div
from estimator.values.keys import LARGEST
from estimator.values.methods import Method
from estimator.values.refusals import InputError, show
from estimator.values.specs import Gpu, Price

MOST_HAD = 1024
"""GPUs of one offer at most: ours, as ``num_gpus`` of a setup may be larger but no listing rents more by the hour."""
MOST_LIMIT = 1e6
"""Hours of a deadline, US dollars of a budget or of a GPU-hour, and epochs at most: ours."""
MOST_INTERRUPTIONS = 10.0
"""Per machine and hour: ours, beyond it next to nothing gets done."""
SPOT = "spot"
OWNED = "owned"
"""The provider of a card without rent."""
WEEK = 168.0
"""Hours."""
SLOTS = 84
"""Slots of a schedule's horizon: ours, two hours each in a week; starts lie at the beginning of one."""
SHARING = ("ddp", "zero2", "zero3", "fsdp")
"""Strategies tried on several GPUs."""
TRIED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "strategy": SHARING,
        "gradient_checkpointing": (False, True),
        "use_liger_kernel": (False, True),
        "offload_optimizer": ("none", "cpu"),
        "offload_param": ("none", "cpu"),
    }
)
"""Keys and values that are tried: none of them changes what is learned, but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLengths:
    """How many tokens the examples have. The longest decides memory, the mean decides time."""

    mean: float
    longest: int
    quantiles: tuple[tuple[float, int], ...] = ()
    """Rising (share of the examples, tokens that these do not exceed); empty: only mean and longest are known."""

    def __post_init__(self) -> None:
        if not 1 <= self.longest <= 2**24:
            raise InputError(
                f"the longest example has from 1 to {2**24} tokens, not {self.longest}."
            )
        if not 0 < self.mean <= self.longest:
            raise InputError(
                f"the mean length must be above 0 and at most the longest, {self.longest}, not {show(self.mean)}."
            )

    @classmethod
    def of_quantiles(cls, quantiles: Mapping[float, int]) -> TokenLengths:
        """Lengths from some percentiles, with straight lines between them, from 0 tokens at the 0th percentile.

        The last is the longest, at share 1.

        >>> TokenLengths.of_quantiles({0.5: 100, 1.0: 300}).mean
        125.0
        """
        points = tuple(sorted(quantiles.items()))
        if not points or points[-1][0] != 1:
            raise InputError("percentiles need the longest example too; give max.")
        if any(not 0 <= share <= 1 for share, _ in points):
            raise InputError("a percentile is from p0 to p100.")
        if any(right[1] < left[1] for left, right in pairwise(points)):
            raise InputError("a higher percentile cannot be shorter; correct the lengths.")
        mean = _mean_up_to(points, points[-1][1])
        return cls(mean=mean, longest=points[-1][1], quantiles=points)

    @classmethod
    def counted(cls, lengths: list[int]) -> TokenLengths:
        """Lengths from a count of each example; kept as percentiles, with the exact mean.

        >>> TokenLengths.counted([10, 20, 60])
        TokenLengths(mean=30.0, longest=60, quantiles=((0.0, 10), ...(1.0, 60)))
        """
        if not lengths:
            raise InputError("there are no examples; give at least one length.")
        rising = sorted(lengths)
        if rising[0] < 1:
            raise InputError(f"an example has {rising[0]} tokens; a length is at least 1.")
        shares = [*(percent / 100 for percent in range(101)), 0.995, 0.999]
        last = len(rising) - 1
        points = tuple((share, rising[round(share * last)]) for share in sorted(shares))
        return cls(mean=sum(rising) / len(rising), longest=rising[-1], quantiles=points)

    @property
    def possible_means(self) -> tuple[float, float]:
        """The least and the greatest mean that the percentiles allow, in tokens.

        >>> TokenLengths.of_quantiles({0.5: 100, 1.0: 300}).possible_means
        (50.0, 200.0)
        """
        steps = list(pairwise(_from_zero(self.quantiles)))
        least = sum((high - low) * shorter for (low, shorter), (high, _) in steps)
        return least, sum((high - low) * longer for (low, _), (high, longer) in steps)

    def mean_within(self, context: int) -> float:
        """Mean tokens of an example after rows are cut at a context.

        With mean and longest alone, the mean is taken as it is, and at most the context.

        >>> TokenLengths.of_quantiles({0.5: 100, 1.0: 300}).mean_within(200)
        112.5
        """
        if context >= self.longest or not self.quantiles:
            return min(self.mean, float(context))
        # what the lines miss of a counted mean is missed by the same share here
        whole = _mean_up_to(self.quantiles, self.longest)
        return min(_mean_up_to(self.quantiles, context) * self.mean / whole, float(context))

    def expected_longest(self, rows: int, context: int) -> float | None:
        """Tokens that the longest of so many random examples has on average, cut at a context; None: unknown.

            Σ over the lines between percentiles of ∫ length(u) · rows · u^(rows - 1) du

        Source: derived, the mean of the highest of independent draws.

        >>> even = TokenLengths.of_quantiles({1.0: 300})
        >>> even.expected_longest(1, 300), even.expected_longest(2, 300), even.expected_longest(2, 150)
        (150.0, 200.0, 137.5)
        """
        if not self.quantiles:
            return None
        total = 0.0
        for (low, shorter), (high, longer) in pairwise(_cut(self.quantiles, context)):
            if high > low:
                weight = high**rows - low**rows
                first = rows / (rows + 1) * (high ** (rows + 1) - low ** (rows + 1))
                total += shorter * weight
                total += (longer - shorter) / (high - low) * (first - low * weight)
        return total

    def cut_by(self, context: int) -> float | None:
        """Share of the examples that are longer than a context; None: unknown.

        >>> TokenLengths.of_quantiles({0.5: 100, 1.0: 300}).cut_by(200)
        0.25
        """
        if context >= self.longest:
            return 0.0
        if not self.quantiles:
            return None
        points = _from_zero(self.quantiles)
        for (low, shorter), (high, longer) in pairwise(points):
            if longer > context:
                within = (context - shorter) / (longer - shorter) if longer > shorter else 0.0
                return 1 - (low + max(0.0, within) * (high - low))
        return 0.0


def _from_zero(points: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
    return points if points[0][0] == 0 else ((0.0, 0), *points)


def _cut(points: tuple[tuple[float, int], ...], context: int) -> list[tuple[float, int]]:
    """Percentiles of the lengths after longer rows are cut."""
    found: list[tuple[float, int]] = []
    for (low, shorter), (high, longer) in pairwise(_from_zero(points)):
        found.append((low, min(shorter, context)))
        if shorter < context < longer:
            found.append((low + (context - shorter) / (longer - shorter) * (high - low), context))
        found.append((high, min(longer, context)))
    return found


def _mean_up_to(points: tuple[tuple[float, int], ...], context: int) -> float:
    """The integral of the shorter of length and context over the share of examples."""
    total = 0.0
    for (low, shorter), (high, longer) in pairwise(_from_zero(points)):
        if longer <= context:
            total += (high - low) * (shorter + longer) / 2
        elif shorter >= context:
            total += (high - low) * context
        else:
            within = (context - shorter) / (longer - shorter)
            rising = within * (shorter + context) / 2
            total += (high - low) * (rising + (1 - within) * context)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A kind of card that can be had: how many, and for how much."""

    gpu: Gpu
    most: int = 8
    """How many can be had at once."""
    is_owned: bool = False
    """Without rent: its hours cost nothing, unless ``usd_per_gpu_hour`` says what they cost you."""
    usd_per_gpu_hour: float | None = None
    """Your own price; None: the cheapest listing that the next three allow."""
    provider: str = ""
    """Empty: any."""
    region: str = ""
    """Empty: any."""
    commitment: str = ""
    """As a listing says it; empty: on demand, or a marketplace."""
    gpus_per_node: int = 8
    """In one machine."""
    spot_share: float | None = None
    """A spot price as a share of the listing; None: the listing's own."""
    interruptions_per_hour: float = 0.0
    """How often one machine is taken away, on the average."""
    checkpoint_hours: float = 1.0
    """Between two checkpoints, whose work is lost when a machine is taken away: ours."""
    restart_hours: float = 0.25
    """Until the job runs again: ours."""
    listings: tuple[Price, ...] | None = None
    """Of a price list of one's own, which may have none; None: the catalogue's."""

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MOST_HAD:
            raise InputError(f"most must be from 1 to {MOST_HAD} GPUs, not {self.most}.")
        if self.spot_share is not None and not 0 < self.spot_share <= 1:
            raise InputError(
                f"spot_share must be above 0 and at most 1, not {show(self.spot_share)}."
            )
        if (self.usd_per_gpu_hour or 0) > MOST_LIMIT:
            raise InputError(
                f"usd_per_gpu_hour is at most {MOST_LIMIT:,.0f}, not {show(self.usd_per_gpu_hour)}."
            )
        if self.gpus_per_node < 1:
            raise InputError("gpus_per_node must be at least 1.")
        if not 0 <= self.interruptions_per_hour <= MOST_INTERRUPTIONS:
            raise InputError(
                f"interruptions_per_hour must be from 0 to {MOST_INTERRUPTIONS:g}, "
                f"not {show(self.interruptions_per_hour)}."
            )
        if not (0 < self.checkpoint_hours <= 24 and 0 <= self.restart_hours <= 24):
            raise InputError(
                "checkpoint_hours and restart_hours are at most 24, the first above 0."
            )

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of GPUs that are tried: powers of 2, whole machines, and all.

        >>> Offer(gpu=Gpu(name="card", memory_bytes=2**34), most=12).counts
        (1, 2, 4, 8, 12)
        """
        powers = {2**power for power in range(self.most.bit_length())}
        machines = set(range(self.gpus_per_node, self.most + 1, self.gpus_per_node))
        return tuple(sorted({*powers, *machines, self.most}))

    @property
    def priced(self) -> Gpu:
        """The card with the listings of this offer alone."""
        if self.is_owned or self.usd_per_gpu_hour is not None:
            own = Price(
                provider=OWNED if self.is_owned else self.provider or "your price",
                usd_per_gpu_hour=self.usd_per_gpu_hour or 0.0,
                date="",
            )
            return replace(self.gpu, prices=(own,))
        known = self.listings
        if known is None:
            known = catalog.listings_of(self.gpu)
        meant = tuple(filter(self._is_meant, known))
        if self.spot_share is not None:
            meant = tuple(
                replace(
                    price,
                    usd_per_gpu_hour=price.usd_per_gpu_hour * self.spot_share,
                    commitment=f"spot at {self.spot_share:g} of {price.commitment}",
                )
                for price in meant
            )
        return replace(self.gpu, prices=meant)

    def _is_meant(self, price: Price) -> bool:
        if not self.commitment and price.commitment not in catalog.UNBOUND:
            return False
        asked = (
            (self.provider, price.provider),
            (self.region, price.region),
            (self.commitment, price.commitment),
        )
        return all(not mine or mine.lower() == its.lower() for mine, its in asked)

    @property
    def is_interruptible(self) -> bool:
        """Whether its machines may be taken away."""
        is_spot = self.commitment.lower() == SPOT or self.spot_share is not None
        return is_spot or self.interruptions_per_hour > 0

    def stretched(self, num_gpus: int) -> float:
        """Expected hours per hour of work on so many GPUs (no unit): any machine that is taken away stops the job.

        Source: ``interruptions.stretched``.

        >>> Offer(gpu=Gpu(name="card", memory_bytes=2**34)).stretched(8)
        1.0
        """
        machines = ceil_div(num_gpus, self.gpus_per_node)
        rate = self.interruptions_per_hour * machines
        return stretched(rate, self.checkpoint_hours, self.restart_hours)

    def price(self, num_gpus: int) -> Price | None:
        """The listing that so many are rented by; None: none is known."""
        return cheapest(self.priced, num_gpus)

    @property
    def name(self) -> str:
        """The card, and whose it is.

        >>> Offer(gpu=Gpu(name="card", memory_bytes=2**34), is_owned=True).name
        'card (owned)'
        """
        said = [OWNED] if self.is_owned else [self.provider, self.region, self.commitment]
        more = ", ".join(filter(None, said))
        card = f"{self.gpu.name} of {self.gpu.instance}" if self.gpu.instance else self.gpu.name
        return f"{card} ({more})" if more else card


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be trained, what may not be traded, and what can be had.

    Checkpointing, accumulation, fused losses, sharding and offload are always allowed: they change no result.
    """

    models: tuple[object, ...]
    """As the contract has ``model``: Hub ids, or objects of config.json; the answer compares them."""
    offers: tuple[Offer, ...]
    num_train_examples: int = 10_000
    num_train_epochs: float = 1.0
    lengths: TokenLengths = TokenLengths(mean=1024.0, longest=1024)
    context: int | None = None
    """Tokens of a row, which may not be less; None: the longest example. Longer examples are cut."""
    rows: str = "padded"
    """``padded``: one example a row; ``packed``: TRL's packing; ``padding_free``."""
    effective_batch: int = 64
    """Rows of one optimizer step over all GPUs: micro-batch × accumulation × GPUs, exactly."""
    methods: tuple[Method, ...] = (Method.LORA,)
    """Methods whose results are good enough."""
    ranks: tuple[int, ...] = (16,)
    """Ranks of the adapters that are good enough; the lowest is the cheapest."""
    deadline_hours: float | None = None
    budget_usd: float | None = None
    tool: str = "trl"
    """Whose defaults the other keys take."""
    keys: Mapping[str, object] = field(default_factory=dict)
    """Other keys of a setup that are fixed, by the contract's names: precision, targets, optimizer."""
    tried: Mapping[str, tuple[object, ...]] = field(default_factory=lambda: TRIED)
    """Keys of a setup, by the contract's names, and the values that are tried."""
    micro_batches: tuple[int, ...] = ()
    """Empty: every one that divides the effective batch, up to ``MOST_ROWS``."""

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError("model is missing; give a Hub id, or several.")
        if not self.offers:
            raise InputError("cards is missing; name at least one card that can be had.")
        if not self.methods:
            raise InputError("methods is empty; name at least one of full, lora and qlora.")
        if self.rows not in ROWS:
            raise InputError(f"rows must be one of {', '.join(ROWS)}, not {show(self.rows)}.")
        if self.num_train_examples < 1 or self.num_train_epochs <= 0:
            raise InputError("there must be at least one example, and more than 0 epochs.")
        if not 1 <= self.effective_batch <= 2**20:
            raise InputError(
                f"effective_batch must be from 1 to {2**20}, not {self.effective_batch}."
            )
        for name in ("deadline_hours", "budget_usd"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MOST_LIMIT:
                raise InputError(f"{name} must be from 0 to {MOST_LIMIT:,.0f}, not {show(value)}.")
        most: tuple[tuple[str, str, float], ...] = (
            ("examples", "num_train_examples", self.num_train_examples),
            ("epochs", "num_train_epochs", self.num_train_epochs),
            ("lora_r", "lora_r", max(self.ranks, default=1)),
            ("context", "max_length", self.context or 1),
        )
        for name, key, value in most:
            if value > LARGEST.get(key, MOST_LIMIT):
                raise InputError(
                    f"{name} is at most {LARGEST.get(key, MOST_LIMIT):,.0f}, not {show(value)}."
                )
        if not self.ranks or min(self.ranks) < 1:
            raise InputError("lora_r must be at least 1.")

    @property
    def row_tokens(self) -> int:
        """Tokens of a row: ``max_length``."""
        return self.lengths.longest if self.context is None else self.context

    @property
    def mean_tokens(self) -> int:
        """Mean tokens of an example after it is cut, rounded."""
        return max(1, round(self.lengths.mean_within(self.row_tokens)))


ROWS = ("padded", "packed", "padding_free")
"""How examples become rows."""
MOST_ROWS = 256
"""Largest micro-batch that is tried: ours, the slider's."""

"""A plan in words: names of setups, the recommendation, steps and misses. Bytes become GiB in the contract's text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.answer.estimate import estimate
from estimator.contract.units import gib
from estimator.grid.arrays import Some
from estimator.parallel.offload import offloads
from estimator.plan.question import Offer, Question
from estimator.plan.recipes import Candidates
from estimator.time.lengths import expected_longest
from estimator.tools.defaults import tool_named
from estimator.values.range import Range
from estimator.values.specs import Dtype, Price

SAME_SHARE = 0.02
"""Share of the dollars that is no difference: ours, the last of two digits."""
AN_HOUR = 0.995
"""Hours below which minutes are said: ours, what two digits of hours show as one."""
A_MINUTE = 0.995
"""Minutes below which seconds are said, likewise."""
MOST_NAMED = 3
"""Things that one sentence names: ours."""


def hours(value: float) -> str:
    """A number of hours, to two digits.

    >>> hours(13.4), hours(2.25), hours(0.5)
    ('13', '2.2', '0.50')
    """
    return (
        f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
    )


def duration(value: float) -> str:
    """Hours, or minutes below one hour, or seconds below one minute.

    >>> duration(2.25), duration(0.06), duration(1 / 60), duration(0.0074 / 60)
    ('2.2 hours', '3.6 minutes', '1 minute', '0.44 seconds')
    """
    if value >= AN_HOUR:
        return f"{hours(value)} hours"
    number, unit = (60 * value, "minute") if 60 * value >= A_MINUTE else (3600 * value, "second")
    said = f"{number:.2g}"
    return f"{said} {unit}" if said == "1" else f"{said} {unit}s"


def usd(value: float) -> str:
    """US dollars.

    >>> usd(1234.5), usd(12.3), usd(0.456)
    ('$1,234', '$12', '$0.46')
    """
    return f"${value:,.0f}" if value >= 9.95 else f"${value:.2f}"


def span(ends: Range[float], unit: str = "") -> str:
    """A bracket of hours, or of US dollars with ``unit`` $.

    >>> span(Range(2, 3.5)), span(Range(0.06, 0.22)), span(Range(10, 20), "$"), span(Range(0, 0), "$")
    ('2.0 to 3.5 hours', '3.6 to 13 minutes', '$10 to $20', '$0.00')
    >>> span(Range(0.001, 0.002)), span(Range(0.001, 0.06)), span(Range(0.06, 2))
    ('3.6 to 7.2 seconds', '3.6 seconds to 3.6 minutes', '0.06 to 2.0 hours')
    """
    low, high = ends
    if unit == "$":
        first, last = usd(low), usd(high)
        return first if first == last else f"{first} to {last}"
    last = duration(high)
    if high >= AN_HOUR:
        first = hours(low)
    else:
        first, unit = duration(low).split()
        if unit.rstrip("s") != last.split()[1].rstrip("s"):
            first = f"{first} {unit}"
    return last if last.startswith(f"{first} ") else f"{first} to {last}"


def cards(found: Candidates, place: int) -> str:
    """The cards of one: ``2 × L4``."""
    return f"{found.num_gpus[place]} × {found.offer(place).name}"


def title(found: Candidates, place: int) -> str:
    """One setup in a line: cards, method, weights, strategy, switches, micro-batch × accumulation."""
    setup = found.setup(place)
    method = setup.adapters.method.phrase
    parts = [
        cards(found, place),
        f"{method} r {setup.adapters.lora_r}" if setup.adapters.uses_adapters else method,
    ]
    if len(found.question.models) > 1:
        parts.insert(1, found.of(place).model.hub_id)
    parts.append(f"{setup.precision.dtype} weights")
    if setup.mesh.num_gpus > 1:
        parts.append(setup.mesh.strategy.label)
    if setup.computation.gradient_checkpointing:
        parts.append("checkpointing")
    if setup.computation.use_liger_kernel:
        parts.append("Liger")
    moved = [
        word
        for word, where in (
            ("optimizer", setup.mesh.offload_optimizer),
            ("weights", setup.mesh.offload_param),
        )
        if where.value != "none"
    ]
    if moved:
        parts.append(f"{' and '.join(moved)} on the host")
    for key in found.question.tried:
        if key not in _SAID:
            parts.append(f"{key} {_plain(setup.value(key))}")
    parts.append(f"micro-batch {found.micro_batch[place]} × {found.accumulation[place]}")
    return ", ".join(parts)


_SAID = frozenset(
    {
        "dtype",
        "strategy",
        "gradient_checkpointing",
        "use_liger_kernel",
        "offload_optimizer",
        "offload_param",
    }
)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def terms(found: Candidates, place: int) -> str:
    """Hours and dollars of one."""
    time = span(found.hours_of(place))
    if found.offer(place).is_owned and not found.dollars.high[place]:
        return f"{time}, no rent"
    money = span(found.dollars_of(place), "$")
    return f"{time}, {money}"


def free(found: Candidates, place: int) -> str:
    """Memory that stays free, in percent and GiB."""
    left = int(found.capacity_bytes[place] - found.high_bytes[place])
    return f"{100 * share_free(found, place):.0f} % of each card ({gib(left)} GiB)"


def share_free(found: Candidates, place: int) -> float:
    """``Candidates.headroom`` of one, without computing that of all."""
    capacity = int(found.capacity_bytes[place])
    return (capacity - int(found.high_bytes[place])) / capacity


def rent(offer: Offer, num_gpus: int) -> str:
    """What a GPU-hour costs and whose listing that is; empty for an owned card without a price."""
    price: Price | None = offer.price(num_gpus)
    if price is None or (offer.is_owned and not price.usd_per_gpu_hour):
        return ""
    whose = ", ".join(filter(None, (price.provider, price.commitment, price.date)))
    return f"${price.usd_per_gpu_hour:.2f} per GPU-hour ({whose})"


def recommendation(
    found: Candidates, asked: Question, place: int | None, kept: Some, *, is_sure: bool
) -> str:
    """What to take of those that are kept, in one sentence."""
    if place is None:
        limits = _limits(asked)
        if not (found.fits & kept).any():
            places = np.unique(found.recipe[kept]).tolist()
            held = " and ".join(
                dict.fromkeys(str(found.recipes[number].setup.precision.dtype) for number in places)
            )
            return (
                f"No setup fits these cards with {rows_in_words(asked)} and weights in {held}; the nearest misses say "
                "by how much."
            )
        return (
            f"No setup that fits meets {limits}; the nearest misses say by how much."
            if limits
            else ("No setup that fits has both a price and a speed; give usd_per_gpu_hour.")
        )
    at = rent(found.offer(place), int(found.num_gpus[place]))
    at = f" at {at}" if at else ""
    said = f"Take {title(found, place)}, {_held(found, asked, place)}: {terms(found, place)}{at}; "
    said += f"{free(found, place)} stay free."
    return said if is_sure else f"{said[:-1]}; {_unless(found, asked, place)}."


def recommended_setup(found: Candidates, asked: Question, place: int, *, is_sure: bool) -> str:
    """What ``recommendation`` says beyond the cards, hours and dollars."""
    setup = title(found, place).partition(", ")[2]
    at = rent(found.offer(place), int(found.num_gpus[place]))
    said = [f"{setup}, {_held(found, asked, place)}", f"{free(found, place)} stay free"]
    said += [at] if at else []
    if not is_sure:
        said.append(_unless(found, asked, place))
    return "; ".join(said) + "."


def rows_in_words(asked: Question) -> str:
    """How long the rows are that decide the memory."""
    return f"rows of {asked.row_tokens:,} tokens"


def _held(found: Candidates, asked: Question, place: int) -> str:
    """What a setup is computed at beyond its title: the rows, the tool, the host's memory if it decides."""
    tool = tool_named(asked.tool, asked.keys.get("objective"))
    said = f"{rows_in_words(asked)}, other defaults of {tool.label}"
    return f"{said}, {host}" if (host := on_the_host(found, place)) else said


def on_the_host(found: Candidates, place: int) -> str:
    """The memory that a machine needs where it holds what the cards do not; empty elsewhere."""
    setup = found.setup(place)
    if not offloads(setup.mesh):
        return ""
    answer = estimate(found.of(place).model, found.gpu(place), setup)
    return f"{gib(answer.host_bytes)} GiB of memory in each machine"


def _unless(found: Candidates, asked: Question, place: int) -> str:
    return f"at the worse ends it misses {_missed(found, asked, place)}"


def _limits(asked: Question) -> str:
    limits = []
    if asked.deadline_hours is not None:
        limits.append(f"the deadline of {duration(asked.deadline_hours)}")
    if asked.budget_usd is not None:
        limits.append(f"the budget of {usd(asked.budget_usd)}")
    return " and ".join(limits)


def _missed(found: Candidates, asked: Question, place: int) -> str:
    said = []
    if asked.deadline_hours is not None and found.hours.high[place] > asked.deadline_hours:
        over = float(found.hours.high[place]) - asked.deadline_hours
        said.append(f"the deadline by {duration(over)}")
    if asked.budget_usd is not None and found.dollars.high[place] > asked.budget_usd:
        said.append(f"the budget by {usd(float(found.dollars.high[place]) - asked.budget_usd)}")
    return " and ".join(said)


def cheapest_of(found: Candidates, asked: Question, among: int, fitting: int) -> str:
    """Of how many it is the cheapest."""
    limits = _limits(asked)
    meeting = f", of which {among:,} meet {limits}" if limits else ""
    return (
        f"It is likely the cheapest, and the fastest for the same dollars: {len(found):,} setups were computed, "
        f"{fitting:,} fit{meeting}."
    )


def equals(found: Candidates, place: int, others: Sequence[int]) -> str:
    """Which others cannot be told from the recommended one."""
    names: dict[str, None] = dict.fromkeys(cards(found, other) for other in others)
    own = cards(found, place)
    elsewhere = [card for card in names if card != own]
    count = "1 other may" if len(others) == 1 else f"{len(others):,} others may"
    said = f"{count} be as good, since the ranges of hours and dollars overlap"
    if not elsewhere:
        return f"{said}; all are on {own}."
    more = f" and {len(elsewhere) - MOST_NAMED} more" if len(elsewhere) > MOST_NAMED else ""
    return f"{said}; some are on {', '.join(elsewhere[:MOST_NAMED])}{more}."


def roomiest(found: Candidates, place: int) -> str:
    """Which of those equals leaves the most memory free."""
    return f"The roomiest of these is {title(found, place)}, where {free(found, place)} stay free."


def cheaper_but_late(found: Candidates, asked: Question, place: int) -> str:
    """The fastest of those that are cheaper and miss something."""
    missed = _missed(found, asked, place)
    return f"Cheaper ones may miss {missed or 'what is asked'}: {title(found, place)}, {terms(found, place)}."


def cheaper_but_tight(found: Candidates, place: int) -> str:
    """A cheaper one that fits at the low end of its need only."""
    over = int(found.high_bytes[place] - found.capacity_bytes[place])
    return (
        f"A cheaper one is tight, {gib(over)} GiB short at the high end of its need: {title(found, place)}, "
        f"{terms(found, place)}."
    )


def first_stair(found: Candidates, place: int) -> str:
    """The cheapest."""
    return f"Likely the cheapest: {title(found, place)}, {terms(found, place)}."


def stair(found: Candidates, before: int, place: int, *, is_faster: bool, is_dearer: bool) -> str:
    """What the next dollars buy."""
    more = float(found.middle_dollars[place] - found.middle_dollars[before])
    less = float(found.middle_hours[before] - found.middle_hours[place])
    if more <= SAME_SHARE * float(found.middle_dollars[before]):
        price = "For the same dollars"
        gain = f"{'' if is_faster else 'perhaps '}{duration(less)} less"
        return f"{price}, {gain}: {title(found, place)}, {terms(found, place)}."
    price = f"{usd(more)} more" if is_dearer else f"Perhaps {usd(more)} more"
    gain = duration(less) if is_faster else f"perhaps {duration(less)}"
    each = f", {usd(more / less)} per hour saved" if less > 0 and is_faster and is_dearer else ""
    doubt = "" if is_faster else " (their brackets overlap)"
    return f"{price} saves {gain}{doubt}{each}: {title(found, place)}, {terms(found, place)}."


def miss(
    found: Candidates,
    asked: Question,
    place: int,
    beyond: tuple[int, float, float],
    *,
    may_do: bool,
) -> str:
    """Why the nearest setup of some cards fails."""
    over, late, dear = beyond
    if over > 0:
        if found.may_fit[place]:
            return (
                f"{title(found, place)}: tight, {gib(over)} GiB short at the high end of its need."
            )
        return f"{title(found, place)}: {gib(over)} GiB too large for each card."
    if np.isnan(found.hours.high[place]):
        why = found.untimed.get(found.offer(place).gpu.name, "No time is known.")
        return f"{title(found, place)}: {why}"
    if np.isnan(found.dollars.high[place]):
        return f"{title(found, place)}: no price is known; give usd_per_gpu_hour."
    said = []
    if late > 0:
        said.append(f"{duration(late)} late ({terms(found, place)})")
    if dear > 0:
        said.append(f"{usd(dear)} above the budget")
    worse = " at the worse end of its bracket" if may_do else ""
    return f"{title(found, place)}: {' and '.join(said)}{worse}."


def _padding(found: Candidates, asked: Question, kept: Some) -> str:
    """How long the rows of the smallest and of the largest micro-batch become."""
    sizes = np.unique(found.micro_batch[kept & found.may_fit])
    said = []
    for rows in sorted({int(size) for size in (*sizes[:1], *sizes[-1:]) if size > 1}):
        longest = expected_longest(rows, asked.mean_tokens, asked.row_tokens)
        more = f"that of {rows} is taken at {longest:,} tokens"
        counted = asked.lengths.expected_longest(rows, asked.row_tokens)
        said.append(more if counted is None else f"{more} ({counted:,.0f} by your percentiles)")
    if not said:
        return ""
    return (
        "Rows are padded to the longest of their micro-batch, as lengths that fall off exponentially from their mean "
        f"{asked.mean_tokens:,} to {asked.row_tokens:,} would have it: {', '.join(said)}; padding_free or packed rows "
        "have no padding."
    )


def notes(found: Candidates, asked: Question, kept: Some) -> tuple[str, ...]:
    """What the answer leaves out or assumes."""
    said = []
    row = asked.row_tokens
    cut = asked.lengths.cut_by(row)
    if cut is None:
        said.append(f"Examples longer than {row:,} tokens are cut; how many is unknown.")
    elif cut > 0:
        said.append(
            f"{100 * cut:.2g} % of the examples are longer than {row:,} tokens and are cut."
        )
    if asked.rows == "padded" and asked.mean_tokens < row:
        said += filter(None, [_padding(found, asked, kept)])
    if any(
        not recipe.setup.adapters.uses_adapters and recipe.setup.precision.dtype is Dtype.BFLOAT16
        for recipe in found.recipes
    ):
        said.append(
            "Trained weights in bfloat16 round every update to 8 bits; keys: {dtype: float32} holds all to float32."
        )
    offers = found.offers
    for place, offer in enumerate(asked.offers):
        of_it = (offers == place) & kept
        unsplit = [count for count in offer.counts if asked.effective_batch % count]
        if unsplit:
            named = ", ".join(map(str, unsplit))
            said.append(
                f"{asked.effective_batch} rows a step cannot be split evenly over {named} × {offer.gpu.name}."
            )
        if offer.is_interruptible:
            said.append(_interrupted(offer))
        if offer.gpu.name in found.untimed:
            said.append(found.untimed[offer.gpu.name])
        elif of_it.any() and np.isnan(found.middle_dollars[of_it & found.may_fit]).any():
            said.append(
                f"No price is known for {offer.name} on some numbers of GPUs; give usd_per_gpu_hour."
            )
    refused = sum(found.refused.values())
    if refused:
        most = max(found.refused, key=found.refused.__getitem__)
        said.append(f"{refused:,} combinations cannot be trained; the most often: {most}")
    return tuple(dict.fromkeys(said))


def _interrupted(offer: Offer) -> str:
    if not offer.interruptions_per_hour:
        return f"{offer.name} may be taken away; give interruptions_per_hour, for none is counted."
    longer = 100 * (offer.stretched(1) - 1)
    return (
        f"{offer.name}: {offer.interruptions_per_hour:g} interruptions per machine and hour, checkpoints every "
        f"{offer.checkpoint_hours:g} h and {offer.restart_hours:g} h to restart make one machine's run "
        f"{longer:.2g} % longer, which is counted."
    )

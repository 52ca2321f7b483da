"""Scenarios side by side: what differs, what follows, which is best. Pure: scenarios go in, texts and dicts come out.

Of a bracket the middle is compared, the geometric mean of its ends. Hours and dollars are compared among those that
fit; a run that does not fit takes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any, NamedTuple

from dashboard import theme
from dashboard.figures.memory_bars import Figure, capacity_marks, peak_parts, scale, stacked
from dashboard.words import wording
from estimator import catalog
from estimator.answer.estimate import estimate
from estimator.contract.scenarios import Scenario, keep, read, unknown_model
from estimator.contract.setups import write_fields
from estimator.search.ranking import rank_gpus
from estimator.values.keys import KEYS
from estimator.values.results import Estimate
from estimator.values.specs import LARGEST, Method, Model, Verdict

LABELS: Mapping[str, str] = {
    "model": "Model",
    "gpu": "GPU",
    "method": "Method",
    "dtype": "Weights",
    "mixed_precision": "Autocast",
    "optim": "Optimizer",
    "optim_state_dtype": "Optimizer states",
    "per_device_train_batch_size": "Micro-batch",
    "gradient_accumulation_steps": "Accumulation",
    "max_length": "Context",
    "gradient_checkpointing": "Checkpointing",
    "attn_implementation": "Attention",
    "lora_r": "Rank",
    "lora_dropout": "Dropout",
    "lora_target_modules": "Adapters on",
    "autocast_adapter_dtype": "Adapters in float32",
    "num_train_examples": "Examples",
    "num_train_epochs": "Epochs",
    "mean_tokens_per_example": "Mean tokens",
    "usd_per_gpu_hour": "Dollars a GPU-hour",
}
"""Keys as the controls call them; another is called by its own name."""
ADAPTERS_ONLY = ("lora_", "autocast_adapter", "use_dora", "modules_to_save")
QLORA_ONLY = ("bnb_", "prepare_model")
NONE = "–"
NOTHING_SAID: Mapping[str, str] = {}
QUALITY: Mapping[Method, str] = {
    Method.FULL: "trains every weight: learns most, and forgets most of what it knew.",
    Method.LORA: "trains small adapters: learns less where the task is far from pretraining, and forgets less "
    "(Biderman et al. 2024).",
    Method.QLORA: "trains the same adapters over a 4-bit base: results close to LoRA's (Dettmers et al. 2023); each "
    "weight is unpacked before its product, so steps are slower.",
}
"""What a method does to the result; that is not computed here, so it is told with its source."""
CARDS = 5
"""GPUs, and contexts, that a preset lays side by side."""


class Entry(NamedTuple):
    """One scenario and its estimate, or the sentence that refuses it."""

    name: str
    estimate: Estimate | None
    problem: str = ""


class Cell(NamedTuple):
    """One scenario's figure in a row."""

    text: str
    best: bool = False
    beside: str = ""
    """Against the first scenario."""


class Row(NamedTuple):
    """One property of all scenarios."""

    label: str
    cells: tuple[Cell, ...]


def entries(
    scenarios: Sequence[Scenario],
    known: Mapping[str, Model],
    context: int | None = None,
    said: Mapping[str, str] = NOTHING_SAID,
) -> list[Entry]:
    """Each scenario estimated; all at another context where one is given.

    ``known`` holds models of the Hub by their ids, and ``said`` what is said of those that it has not given.
    """
    return [_entry(it, known, context, said) for it in scenarios]


def _entry(
    scenario: Scenario, known: Mapping[str, Model], context: int | None, said: Mapping[str, str]
) -> Entry:
    reading = read(scenario, known)
    if reading.model is None and (waiting := said.get(unknown_model(scenario, known))):
        return Entry(scenario.name, None, waiting)
    if reading.model is None:
        return Entry(
            scenario.name, None, " ".join(reading.problems) or "The model is not known yet."
        )
    setup = reading.setup
    try:
        if context is not None:
            setup = replace(setup, max_length=context)
        return Entry(scenario.name, estimate(reading.model, reading.gpu, setup))
    except ValueError as refusal:
        return Entry(scenario.name, None, str(refusal))


# --- what differs, and what follows -------------------------------------------------------------


def differences(shown: Sequence[Entry]) -> list[Row]:
    """The keys in which the scenarios differ, and no others; a dash where a key has no meaning."""
    return [
        Row(LABELS.get(key, key), tuple(Cell(text) for text in texts))
        for key, texts in differing(shown).items()
    ]


def differing(shown: Sequence[Entry]) -> dict[str, list[str]]:
    """The same by key, each with its texts."""
    written = [
        {}
        if it.estimate is None
        else write_fields(it.estimate.model, it.estimate.gpu, it.estimate.setup)
        for it in shown
    ]
    default = {key.name: key.default for key in KEYS}
    rows: dict[str, list[str]] = {}
    for key in ("model", "gpu", *default):
        texts = [
            _value(it.estimate, key, given.get(key, default.get(key)))
            for it, given in zip(shown, written, strict=True)
        ]
        if len({text for text in texts if text != NONE}) > 1:
            rows[key] = texts
    return rows


def _value(of: Estimate | None, key: str, value: object) -> str:
    if of is None:
        return NONE
    if key.startswith(ADAPTERS_ONLY) and not of.setup.uses_adapters:
        return NONE
    if key.startswith(QLORA_ONLY) and of.setup.method is not Method.QLORA:
        return NONE
    if key == "model":
        return of.model.hub_id or f"own {of.model.model_type}"
    if key == "gpu":
        return of.gpu.name if of.gpu else "none"
    if key == "method":
        return wording.METHODS[of.setup.method]
    match value:
        case bool():
            return "on" if value else "off"
        case list() | tuple():
            return ", ".join(str(item) for item in value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,g}"
        case None:
            return "default"
        case _:
            return str(value)


def results(shown: Sequence[Entry], within: float | None = None) -> list[Row]:
    """Verdict, need, headroom, hours and cost, the best of each marked; and who is done within some hours."""
    rows = [
        Row("Verdict", tuple(Cell(_verdict(it)) for it in shown)),
        Row("Need", _cells(shown, _need, _need_text, _gib_more)),
        Row("Headroom", _cells(shown, _no_headroom, _headroom_text)),
        Row("Hours", _cells(shown, hours, _hours_text, _times)),
        Row("Cost", _cells(shown, dollars, _dollars_text, _times)),
    ]
    if within is not None:
        rows.append(Row(f"Within {within:,g} h", tuple(Cell(_in_time(it, within)) for it in shown)))
    return rows


def _cells(
    shown: Sequence[Entry],
    measure: Callable[[Estimate], float | None],
    say: Callable[[Estimate], str],
    beside: Callable[[float, float], str] | None = None,
) -> tuple[Cell, ...]:
    """The smallest is the best, where there is more than one to choose from."""
    found = [None if it.estimate is None else measure(it.estimate) for it in shown]
    known = [value for value in found if value is not None]
    least = min(known) if len(known) > 1 and max(known) > min(known) else None
    first = found[0] if found else None
    return tuple(
        Cell(
            NONE if it.estimate is None else say(it.estimate),
            value is not None and value == least,
            beside(value, first)
            if beside and number and value is not None and first is not None
            else "",
        )
        for number, (it, value) in enumerate(zip(shown, found, strict=True))
    )


def _verdict(it: Entry) -> str:
    if it.estimate is None:
        return "refused"
    if it.estimate.verdict is None:
        return "no GPU"
    return wording.sign(it.estimate.verdict)


def _need(of: Estimate) -> float:
    return float(of.need_high_bytes)


def _need_text(of: Estimate) -> str:
    return wording.between(of.need_low_bytes, of.need_high_bytes)


def _gib_more(value: float, first: float) -> str:
    more = round(value - first)
    return (
        "the same"
        if abs(more) < wording.GIB // 20
        else f"{'+' if more > 0 else '−'}{wording.gib(abs(more))}"
    )


def _no_headroom(of: Estimate) -> float | None:
    return None if of.gpu is None else float(-of.headroom_bytes)


def _headroom_text(of: Estimate) -> str:
    if of.gpu is None:
        return NONE
    usable = of.gpu.memory_bytes
    if of.verdict is Verdict.DOES_NOT_FIT:
        said = f"{wording.between(of.need_low_bytes - usable, of.need_high_bytes - usable)} short"
    elif of.verdict is Verdict.TIGHT:
        said = f"{wording.gib(usable - of.need_low_bytes)} free at best"
    else:
        said = f"{wording.gib(usable - of.need_high_bytes)} free"
    return f"{said} of {wording.number(usable)}"


def hours(of: Estimate) -> float | None:
    """The middle of the run's hours; None where it does not fit or nothing is known."""
    if of.time is None or not of.can_run:
        return None
    return math.sqrt(of.time.total_hours_low * of.time.total_hours_high)


def _hours_text(of: Estimate) -> str:
    if of.time is None or not of.can_run:
        return NONE
    return wording.duration(of.time.total_hours_low, of.time.total_hours_high)


def dollars(of: Estimate) -> float | None:
    """The middle of the run's US dollars; None where it does not fit or nothing is known."""
    if of.cost is None or not of.can_run:
        return None
    return math.sqrt(of.cost.cost_usd_low * of.cost.cost_usd_high)


def _dollars_text(of: Estimate) -> str:
    if of.cost is None or not of.can_run:
        return NONE
    return wording.dollars(of.cost.cost_usd_low, of.cost.cost_usd_high)


def _times(value: float, first: float) -> str:
    ratio = value / first if first else 1.0
    return f"{ratio:.2f} ×"


def _in_time(it: Entry, within: float) -> str:
    of = it.estimate
    if of is None or of.time is None:
        return NONE
    if of.verdict is Verdict.DOES_NOT_FIT:
        return "✕ does not fit"
    if of.time.total_hours_high <= within:
        return "✓ yes"
    return "≈ perhaps" if of.time.total_hours_low <= within else "✕ no"


# --- sentences ----------------------------------------------------------------------------------


def answers(
    shown: Sequence[Entry], within: float | None = None, context: int | None = None
) -> list[str]:
    """What a meeting asks: the cheapest and the fastest that fit, in time; and what another method loses."""
    return [*_what_if(context), *_best(shown, within), *_methods(shown)]


def _what_if(context: int | None) -> Iterator[str]:
    if context is not None:
        yield f"What if: every scenario at {context:,} tokens of context instead of its own."


def _best(shown: Sequence[Entry], within: float | None) -> Iterator[str]:
    fitting = [it for it in shown if it.estimate and it.estimate.verdict is Verdict.FITS]
    if not fitting:
        held = [it for it in shown if it.estimate and it.estimate.gpu]
        if held:
            yield f"None of {len(held)} scenarios surely fits its card."
        return
    answered = [it for it in shown if it.estimate]
    if len(fitting) < len(answered):
        one = len(fitting) == 1
        yield f"{len(fitting)} of {len(answered)} {'fits' if one else 'fit'}: {_list(fitting)}."
    if within is not None:
        late = [it for it in fitting if _in_time(it, within).startswith("✕")]
        sure = [it for it in fitting if _in_time(it, within) == "✓ yes"]
        known = sure or [
            it for it in fitting if it not in late and it.estimate and it.estimate.time
        ]
        if not known:
            yield f"None that fits is done within {within:,g} hours."
            return
        how = "surely" if sure else "perhaps, and none surely,"
        cheapest = _least(known, dollars) or _least(known, hours)
        if cheapest is not None:
            yield f"Cheapest that fits and is {how} done within {within:,g} hours: {_told(cheapest)}."
        return
    for word, measure in (("Cheapest", dollars), ("Fastest", hours)):
        if (best := _least(fitting, measure)) is not None:
            yield f"{word} that fits: {_told(best)}."


def _least(among: Sequence[Entry], measure: Callable[[Estimate], float | None]) -> Entry | None:
    known = [
        (value, it) for it in among if it.estimate and (value := measure(it.estimate)) is not None
    ]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def best(shown: Sequence[Entry]) -> int:
    """The place of the one to look at first: the cheapest that fits, else the first that can be estimated."""
    fitting = [it for it in shown if it.estimate and it.estimate.verdict is Verdict.FITS]
    found = _least(fitting, dollars) or next((it for it in shown if it.estimate), None)
    return 0 if found is None else list(shown).index(found)


def _told(it: Entry) -> str:
    assert it.estimate is not None
    return f"“{it.name}”, {wording.run(it.estimate)}"


def _list(several: Sequence[Entry]) -> str:
    return ", ".join(f"“{it.name}”" for it in several)


def _methods(shown: Sequence[Entry]) -> Iterator[str]:
    used = list(dict.fromkeys(it.estimate.setup.method for it in shown if it.estimate))
    if len(used) > 1:
        for method in used:
            yield f"{wording.METHOD_NOUNS[method]} {QUALITY[method]}{_against_lora(shown, method)}"


def _against_lora(shown: Sequence[Entry], method: Method) -> str:
    """What QLoRA saves and costs where LoRA of the same setup stands beside it."""
    if method is not Method.QLORA:
        return ""
    for it in shown:
        for other in shown:
            of, lora = it.estimate, other.estimate
            if of is None or lora is None or of.setup.method is not method:
                continue
            same = (of.model, of.gpu, replace(of.setup, method=Method.LORA))
            if same == (lora.model, lora.gpu, lora.setup):
                need = _gib_more(float(of.need_high_bytes), float(lora.need_high_bytes))
                mine, its = hours(of), hours(lora)
                time = f" and {_times(mine, its)} the hours" if mine and its else ""
                return f" “{it.name}” against “{other.name}”: {need}{time}."
    return ""


def assumptions(shown: Sequence[Entry]) -> list[str]:
    """What is assumed of all, once; and of some, with their names."""
    estimated = [it for it in shown if it.estimate]
    who: dict[str, list[Entry]] = {}
    for it in estimated:
        for sentence in it.estimate.assumptions if it.estimate else ():
            who.setdefault(sentence, []).append(it)
    return [
        sentence if len(names) == len(estimated) else f"{_list(names)}: {sentence}"
        for sentence, names in who.items()
    ]


RANGE = (
    "Need is a bracket: the peak that PyTorch allocates, the CUDA context, and up to 3 % that the allocator cannot "
    "reuse; “fits” means that its high end does. Hours and dollars are brackets that nine of ten published runs lie "
    "inside."
)
"""What the two ends of a figure mean."""


# --- the table as HTML --------------------------------------------------------------------------


def table_html(shown: Sequence[Entry], parts: Mapping[str, Sequence[Row]]) -> str:
    """Rows of properties under headings, a column a scenario; the best has a star and weight, not colour alone."""
    first, *_ = parts
    names = "".join(f'<th scope="col">{escape(it.name)}</th>' for it in shown)
    span = len(shown) + 1
    body = ""
    for head, rows in parts.items():
        if head != first:
            body += f'<tr class="hr-part"><th scope="rowgroup" colspan="{span}">{escape(head)}</th></tr>'
        body += "".join(
            f'<tr><th scope="row">{escape(row.label)}</th>{"".join(map(_cell_html, row.cells))}</tr>'
            for row in rows
        )
    return (
        '<div class="hr-scroll" tabindex="0" role="region" aria-label="The scenarios as a table">'
        f'<table class="hr-compare"><thead><tr><th scope="col">{escape(first)}</th>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell_html(cell: Cell) -> str:
    beside = f"<small>{escape(cell.beside)}</small>" if cell.beside else ""
    if cell.best:
        return f'<td class="hr-best"><b>★ {escape(cell.text)}</b>{beside}</td>'
    return f"<td>{escape(cell.text)}{beside}</td>"


def answers_html(sentences: Sequence[str]) -> str:
    """The sentences as a list."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="hr-answers">{items}</ul>'


def refusal_html(it: Entry) -> str:
    """Why a scenario has no bar."""
    return f"<b>{escape(it.name)}</b>: {escape(it.problem)}"


def legend_html(shown: Sequence[Entry]) -> str:
    """What the colours are, and the line."""
    there = {label for _, it in bars(shown) for label, size in peak_parts(it).items() if size}
    parts = [it for it in (*theme.COMPONENTS.values(), theme.RESERVE) if it.label in there]
    said = "".join(
        f'<span><i class="hr-swatch" style="background:{it.fill};outline:1.5px solid {it.colour};'
        f'outline-offset:-1.5px"></i>{escape(it.label)}</span>'
        for it in parts
    )
    if any(of.gpu for _, of in bars(shown)):
        said += '<span><i class="hr-line"></i>what the card has</span>'
    return f'<p class="hr-legend">{said}</p>'


def verdict_html(it: Entry, is_best: bool, sentences: Sequence[str]) -> str:
    """One scenario for the projector: its name, its verdict in the largest type, and what the run takes."""
    of = it.estimate
    if of is None:
        return f'<div class="hr-stage"><p class="hr-who">{escape(it.name)}</p><p>{escape(it.problem)}</p></div>'
    saying = wording.verdict(of)
    light, dark = theme.NEUTRAL
    if of.verdict is not None:
        light, dark = theme.VERDICTS[of.verdict].colour, theme.VERDICTS_ON_DARK[of.verdict]
    mark = " ★ cheapest that fits" * (
        is_best and of.verdict is Verdict.FITS and dollars(of) is not None
    )
    need = ""  # without a card the largest type says it
    if of.gpu:
        need = f"needs {wording.between(of.need_low_bytes, of.need_high_bytes)}"
        need += f", {of.gpu.name} has {wording.gib(of.gpu.memory_bytes)}"
    asked = next((sentence for sentence in sentences if "within" in sentence), "")
    return (
        f'<div class="hr-stage" role="status" style="--hr: light-dark({light}, {dark})">'
        f'<p class="hr-who">{escape(it.name)}{mark}</p><p class="hr-big">{escape(saying.word)}</p>'
        f'<p class="hr-need">{escape(need)}</p><p class="hr-need">{escape(wording.run(of))}</p>'
        f'<p class="hr-asked">{escape(asked)}</p></div>'
    )


# --- the figure ---------------------------------------------------------------------------------


def bars(shown: Sequence[Entry]) -> list[tuple[str, Estimate]]:
    """Those that have a bar."""
    return [(it.name, it.estimate) for it in shown if it.estimate is not None]


def figure(
    shown: Sequence[Entry], *, dark: bool = False, large: bool = False, chosen: int | None = None
) -> Figure:
    """Each scenario's peak stacked by component, all on one scale, each with its own capacity as a line.

    Its name, card and need stand above a bar, where a phone has room for them. ``large``: for the projector.
    """
    look = theme.DARK if dark else theme.LIGHT
    found = bars(shown)
    count = max(len(found), 1)
    sizes = [it.need_high_bytes for _, it in found]
    sizes += [it.gpu.memory_bytes for _, it in found if it.gpu]
    end = scale(max(sizes, default=1))
    text = 15
    row = 62
    if large:
        row = max(58, min(118, STAGE_PIXELS // count))
        text = 24 if row > 80 else 20
    return {
        "data": [
            stacked([it for _, it in found], end, text - 1, BAR),
            *capacity_marks([it for _, it in found], look, row * CAPACITY_SIZE),
            _names(shown, look, text, chosen),
        ],
        "layout": {
            "barmode": "overlay",
            "height": 78 + row * count,
            "margin": {"l": 8, "r": 12, "t": 34, "b": 44},
            "showlegend": False,
            "hovermode": "closest",
            "dragmode": False,
            "xaxis": {
                "range": [0, end],
                "fixedrange": True,
                "automargin": False,
                "ticksuffix": " GiB",
                "showticksuffix": "last",
                "tickangle": 0,
                "gridcolor": theme.GRID,
                "zeroline": False,
                "nticks": 5,
                "tickfont": {"size": text - 1, "color": look.ink},
            },
            "yaxis": {
                "range": [count - 0.62, -0.62],
                "fixedrange": True,
                "automargin": False,
                "visible": False,
            },
        },
    }


CAPACITY_SIZE = 0.43
"""Of the marker that is a card's line, as a share of its row: Plotly draws it 1.4 times as long."""
BAR = 0.5
"""Height of a bar, as a share of its row."""
STAGE_PIXELS = 480
"""Height that all bars share on the projector: what 1,080 leave below the verdict."""
SHOWN_OF_NAME = 30
"""Characters of a name above its bar: ours, what a phone holds; the table has it whole."""


def _names(shown: Sequence[Entry], look: theme.Look, size: int, chosen: int | None) -> Figure:
    """Plotly's text knows some HTML; what a name holds is none."""
    marked = None if chosen is None else shown[chosen].name
    found = bars(shown)
    return {
        "type": "scatter",
        "mode": "text",
        "name": "Need",
        "y": [place - 0.41 for place in range(len(found))],
        "x": [0] * len(found),
        "text": [
            f"{'▸ ' * (name == marked)}<b>{escape(cut(name))}</b>  {escape(total(it))}"
            for name, it in found
        ],
        "textposition": "middle right",
        "textfont": {"size": size, "color": look.ink},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def cut(text: str) -> str:
    """A text short enough to stand beside a bar."""
    return text if len(text) <= SHOWN_OF_NAME else f"{text[: SHOWN_OF_NAME - 1]}…"


def total(it: Estimate) -> str:
    """What stands at a bar: its need of what its card has, and the verdict's sign."""
    sign = f" {wording.SIGNS[it.verdict]}" if it.verdict else ""
    of = f" of {wording.number(it.gpu.memory_bytes)}" if it.gpu else ""
    return f"{wording.number(it.need_high_bytes)}{of} GiB{sign}"


def figure_alt(shown: Sequence[Entry]) -> str:
    """The figure in words."""
    said = "; ".join(
        f"{name}: needs {wording.gib(it.need_high_bytes)}"
        + (f" of {wording.gib(it.gpu.memory_bytes)} on {it.gpu.name}" if it.gpu else "")
        for name, it in bars(shown)
    )
    return f"GPU memory of each scenario at its peak, stacked by component: {said}."


# --- presets ------------------------------------------------------------------------------------


def three_methods(of: Estimate) -> list[Scenario]:
    """Full fine-tuning, LoRA and QLoRA of the same setup, as far as the model can be trained so."""
    return list(_varied(of, [(wording.METHODS[it], {"method": it}) for it in Method]))


def five_gpus(of: Estimate) -> list[Scenario]:
    """The same setup on its own card and on the cheapest that hold it, by size; where few do, on the largest too."""
    ranking = rank_gpus(of.model, of.setup, catalog.gpus_like(of.gpu))
    fitting = [it for it in ranking.estimates if it.verdict is Verdict.FITS and it.cost]
    cheapest = sorted(fitting, key=lambda it: dollars(it) or 0.0)
    largest = sorted(ranking.estimates, key=lambda it: -(it.gpu.memory_bytes if it.gpu else 0))
    cards = [of.gpu, *(it.gpu for it in [*cheapest, *largest])]
    chosen = [gpu for gpu in dict.fromkeys(cards) if gpu is not None][:CARDS]
    chosen.sort(key=lambda gpu: gpu.memory_bytes)
    own = replace(of.setup, usd_per_gpu_hour=None, mfu=None)
    return [keep(gpu.name, of.model, gpu, own) for gpu in chosen]


def five_contexts(of: Estimate) -> list[Scenario]:
    """The same setup at its context, at one half and at doublings, as far as the model has positions."""
    most = of.model.position_limit or LARGEST["max_length"]
    own = of.setup.max_length
    lengths = [
        it
        for it in (own // 2, own, own * 2, own * 4, own * 8, own // 4, own // 8)
        if 1 <= it <= most
    ]
    chosen = sorted(lengths[:CARDS])
    return list(_varied(of, [(f"{it:,} tokens", {"max_length": it}) for it in chosen]))


def _varied(of: Estimate, changes: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Scenario]:
    for name, keys in changes:
        also: tuple[Mapping[str, Any], ...] = ({}, {"lora_dropout": 0.0})
        for more in also:  # PEFT refuses dropout on stacked experts
            try:
                setup = replace(of.setup, **keys, **more)
                estimate(of.model, of.gpu, setup)
            except ValueError:
                continue
            yield keep(name, of.model, of.gpu, setup)
            break


PRESETS: Mapping[str, Callable[[Estimate], list[Scenario]]] = {
    "Full, LoRA, QLoRA": three_methods,
    "Five GPUs": five_gpus,
    "Five contexts": five_contexts,
}
"""Comparisons of one setup, by the name on their button."""


def proposed_name(of: Estimate) -> str:
    """What a setup is called where nobody has named it."""
    where = f" on {of.gpu.name}" if of.gpu else ""
    return f"{wording.short_name(of.model.hub_id)[:28]}, {wording.METHODS[of.setup.method]}{where}"[
        :60
    ]

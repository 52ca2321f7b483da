"""Results as text. GiB and GB exist here only; everything else counts in bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from dashboard import theme
from dashboard.estimate.alternatives import Place
from dashboard.estimate.explanation import Line
from estimator.answer.overflow import room_bytes, runs_out, starts_with_states
from estimator.answer.verdict import beyond_the_step, smaller_evaluation
from estimator.parallel.offload import offloads
from estimator.proof.accuracy import Facet, Kin
from estimator.resident.stored import checkpoint_bytes
from estimator.run.loading import MERGED_ON_LOADING
from estimator.run.sharded_saving import write_seconds
from estimator.run.stages import Stage
from estimator.search.fewest_gpus import MOST_GPUS
from estimator.search.remedies import Remedy
from estimator.values.results import Estimate, Moment, RunTime, Shown
from estimator.values.specs import (
    SHARDED_STATE_DICT,
    STEP_PHASES,
    Component,
    Dtype,
    Gpu,
    Method,
    MixedPrecision,
    Model,
    Phase,
    Strategy,
    TrainingSetup,
    Verdict,
)

GIB = 2**30
GB = 10**9

PHASES: Mapping[Phase, str] = {
    Phase.FORWARD: "Forward",
    Phase.LOSS: "Loss",
    Phase.BACKWARD: "Backward",
    Phase.OPTIMIZER_STEP: "Optimizer step",
    Phase.LOAD: "Loading",
    Phase.EVALUATION: "Evaluation",
    Phase.SAVE: "Save",
}
METHODS: Mapping[Method, str] = {Method.FULL: "Full", Method.LORA: "LoRA", Method.QLORA: "QLoRA"}
METHOD_NOUNS: Mapping[Method, str] = {
    Method.FULL: "Full fine-tuning",
    Method.LORA: "LoRA",
    Method.QLORA: "QLoRA",
}
STRATEGIES: Mapping[Strategy, str] = {Strategy.FSDP: "FSDP", Strategy.ZERO3: "ZeRO-3"}
PRECISIONS: Mapping[str, tuple[Dtype, MixedPrecision]] = {
    "bfloat16": (Dtype.BFLOAT16, MixedPrecision.NO),
    "bfloat16 with autocast": (Dtype.BFLOAT16, MixedPrecision.BF16),
    "float32 with bfloat16 autocast": (Dtype.FLOAT32, MixedPrecision.BF16),
    "float32": (Dtype.FLOAT32, MixedPrecision.NO),
    "float16": (Dtype.FLOAT16, MixedPrecision.NO),
}
MEANINGS: Mapping[Component, str] = {
    Component.WEIGHTS: "The model's parameters, there from loading to the end.",
    Component.ADAPTERS: "The low-rank matrices that LoRA trains beside the frozen weights.",
    Component.GRADIENTS: "One number for each trained parameter; grows during backward, gone after the step.",
    Component.OPTIMIZER_STATES: "What the optimizer remembers of each trained parameter, from its first step on.",
    Component.ACTIVATIONS: "What forward keeps for backward; freed layer by layer as backward passes.",
    Component.LOGITS: "A score for each token and each word of the vocabulary, and the loss's copies of them.",
    Component.TEMPORARIES: "Tensors that live for one operation.",
    Component.COMMUNICATION: "Buffers that GPUs exchange data through.",
    Component.WORKSPACE: "Scratch memory of the matrix library (cuBLAS).",
}
WHAT_IF_HTML = (
    '<p class="hr-text"><b>Float32 states on 16-bit weights are a what-if.</b> No Trainer run has them: AdamW keeps '
    "its states in the dtype of the weights. What really runs is one of these two; a click opens it.</p>"
)
SIGNS: Mapping[Verdict, str] = {Verdict.FITS: "✓", Verdict.TIGHT: "≈", Verdict.DOES_NOT_FIT: "✕"}


def in_gib(size: int) -> float:
    """Bytes as GiB, for an axis; to the thousandth, so that equal setups draw equal figures."""
    return round(size / GIB, 3)


def number(size: int) -> str:
    """Bytes as a number of GiB without the unit: ``54.0``, ``1,208``, ``<0.1``.

    >>> number(54 * GIB), number(1), number(0), number(1208 * GIB)
    ('54.0', '<0.1', '0', '1,208')
    """
    if size == 0:
        return "0"
    if 0 < size < GIB / 20:
        return "<0.1"
    return f"{size / GIB:,.1f}" if size < 1000 * GIB else f"{size / GIB:,.0f}"


def gib(size: int) -> str:
    """Bytes as GiB: ``54.0 GiB``."""
    return f"{number(size)} GiB"


def gb(size: int) -> str:
    """Bytes as the decimal GB of the rule of thumb, without the unit: ``14.5``."""
    return f"{size / GB:,.1f}"


def between(low: int, high: int) -> str:
    """A bracket: ``81.4 to 83.5 GiB``, or one number where both ends read the same."""
    return gib(high) if number(low) == number(high) else f"{number(low)} to {gib(high)}"


def duration(low_hours: float, high_hours: float) -> str:
    """A bracket of time in the unit that its high end calls for: minutes, hours or days.

    >>> duration(0.2, 0.5), duration(3.14, 6.9), duration(60, 100), duration(2, 2)
    ('12 to 30 minutes', '3.1 to 6.9 hours', '2.5 to 4.2 days', '2.0 hours')
    """
    if high_hours < 1:
        low, high = f"{60 * low_hours:.0f}", f"{60 * high_hours:.0f}"
        unit = "minutes"
    elif high_hours < 72:
        low, high, unit = f"{low_hours:.1f}", f"{high_hours:.1f}", "hours"
    else:
        low, high, unit = f"{low_hours / 24:,.1f}", f"{high_hours / 24:,.1f}", "days"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"


def dollars(low: float, high: float) -> str:
    """A bracket of US dollars: ``$8 to 19``; cents below ten dollars.

    >>> dollars(8.4, 19.2), dollars(0.844, 1.9), dollars(3, 3)
    ('$8 to 19', '$0.84 to 1.90', '$3.00')
    """
    places = 2 if high < 10 else 0
    first, last = f"{low:,.{places}f}", f"{high:,.{places}f}"
    return f"${last}" if first == last else f"${first} to {last}"


def run(estimate: Estimate) -> str:
    """Time and money of the run in a few words: ``3.1 to 6.9 hours, $8 to 19``; empty where unknown or never run."""
    if estimate.time is None or not estimate.can_run:
        return ""
    words = duration(estimate.time.total_hours_low, estimate.time.total_hours_high)
    if estimate.cost is not None:
        words += f", {dollars(estimate.cost.cost_usd_low, estimate.cost.cost_usd_high)}"
    return words


def run_sentence(estimate: Estimate) -> str:
    """What the whole run takes, for the manager who asks second; empty where unknown or never run."""
    time, cost = estimate.time, estimate.cost
    if time is None or not estimate.can_run:
        return ""
    setup = estimate.setup
    would = "takes" if estimate.verdict is Verdict.FITS else "would take"
    epochs = f"{setup.num_train_epochs:g} epoch{'s' * (setup.num_train_epochs != 1)}"
    sentence = (
        f"The run of {setup.num_train_examples:,} examples, {epochs}, {would} "
        f"{duration(time.total_hours_low, time.total_hours_high)}"
    )
    if cost is None:
        return f"{sentence}."
    at = f"${cost.usd_per_gpu_hour:.2f} a GPU-hour"
    where = f"your {at}"
    if listing := cost.price:
        starts, old = listing.commitment == "marketplace", listing.is_old
        where = (
            f"{'starting at ' * starts}{at} at {listing.provider}, {listing.date}{', old' * old}"
        )
    return f"{sentence} and {dollars(cost.cost_usd_low, cost.cost_usd_high)} ({where})."


def plain(sentence: str) -> str:
    r"""A sentence for an element that reads Markdown: what an address brought is no image and no link.

    >>> print(plain("optim '![x](https://example.org/x.png)' is unknown."))
    optim '!\[x](https://example.org/x.png)' is unknown.
    """
    return sentence.replace("[", "\\[")


def share(part: int, whole: int) -> str:
    """A share in whole percent: ``66 %``, ``<1 %``.

    >>> share(2, 3), share(1, 1000), share(0, 5)
    ('67 %', '<1 %', '0 %')
    """
    percent = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def count(parameters: int) -> str:
    """A parameter count: ``7.24 billion``."""
    for unit, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if parameters >= unit:
            return f"{parameters / unit:.3g} {name}"
    return f"{parameters:,}"


def short_name(hub_id: str) -> str:
    """The model's name without its owner."""
    return hub_id.rpartition("/")[2] or "this model"


def effective_batch(setup: TrainingSetup) -> str:
    """The live sentence under accumulation.

    >>> effective_batch(TrainingSetup(per_device_train_batch_size=4, gradient_accumulation_steps=8))
    'Effective batch 32 = 4 × 8 on 1 GPU; 10,000 examples are 313 steps an epoch.'
    """
    size = setup.effective_batch_size
    steps = -(-setup.num_train_examples // size)
    gpus = "on 1 GPU" if setup.num_gpus == 1 else f"× {setup.num_gpus:,} GPUs"
    return (
        f"Effective batch {size:,} = {setup.per_device_train_batch_size:,} × "
        f"{setup.gradient_accumulation_steps:,} {gpus}; "
        f"{setup.num_train_examples:,} examples are {steps:,} step{'s' * (steps != 1)} an epoch."
    )


def batch_limit(limit: int, evaluating: bool, _model: Model, setup: TrainingSetup) -> str:
    """How far the micro-batch can go at this length; a sentence and a space, for one that follows."""
    tokens = f"{setup.max_length:,} tokens"
    if limit == 0 and evaluating:
        return f"Training fits at {tokens}, evaluation does not: {smaller_evaluation(setup)}. "
    if limit == 0:
        return f"Not even 1 fits at {tokens}. "
    return f"Up to {limit:,} fit at {tokens}. "


def context_limit(limit: int, evaluating: bool, model: Model, setup: TrainingSetup) -> str:
    """How far the context can go at this micro-batch, or the evaluation that ends it."""
    batch = f"micro-batch {setup.per_device_train_batch_size:,}"
    ends = f"; evaluation fits no longer one: {smaller_evaluation(setup)}" if evaluating else ""
    if limit == 0:
        return f"No length fits at {batch}{ends}."
    if limit == model.position_limit:
        return f"Up to {limit:,} tokens: the model has learned no more positions."
    beyond = 0 < model.max_position_embeddings < limit
    made_for = f"; the model was made for {model.max_position_embeddings:,}" if beyond else ""
    return f"Up to {limit:,} tokens fit at {batch}{made_for}{ends}."


def precision(setup: TrainingSetup) -> str:
    """The name of the pair of weights and autocast."""
    for name, pair in PRECISIONS.items():
        if pair == (setup.dtype, setup.mixed_precision):
            return name
    return f"{setup.dtype} with {setup.mixed_precision} autocast"


def setup_line(estimate: Estimate) -> str:
    """The setup in one line, for a reader who does not see the controls."""
    setup = estimate.setup
    states = f", {setup.optim_state_dtype} states" if setup.optim_state_dtype else ""
    extras = " · checkpointing" if setup.gradient_checkpointing else ""
    rank = f" r={setup.lora_r}" if setup.uses_adapters else ""
    return (
        f"{short_name(estimate.model.hub_id)} · {METHODS[setup.method]}{rank} · {precision(setup)} · "
        f"{setup.optim}{states} · {setup.per_device_train_batch_size} × {setup.max_length:,} tokens{extras}"
    )


# --- the verdict --------------------------------------------------------------------------------


class Saying(NamedTuple):
    """The verdict in words."""

    word: str
    """Sign, word and room: ``✕ Does not fit: 2.3 GiB short``."""
    sentence: str
    when: str
    capacity: str


def moment(m: Moment) -> str:
    """When it is: ``backward (gradients of layer 3)``."""
    return f"{PHASES[m.phase].lower()} ({m.name})"


def capacity_note(gpu: Gpu) -> str:
    """Why an "80 GB" card has 79.1 GiB."""
    usable = gib(gpu.memory_bytes)
    derived = " This figure is derived, not read from a card." if gpu.memory_is_derived else ""
    if not gpu.nameplate_gb:
        return f"{gpu.name} leaves programs {usable}.{derived}"
    return (
        f"“{gpu.nameplate_gb:g} GB” is the name on the box; the driver keeps a part for itself and leaves "
        f"programs {usable} (1 GiB is 2³⁰ bytes).{derived}"
    )


def elsewhere(estimate: Estimate) -> str:
    """What offload takes of a machine, in one sentence with a space before it; nothing without offload."""
    if not offloads(estimate.setup):
        return ""
    nvme = f" and {gib(estimate.nvme_bytes)} of NVMe" if estimate.nvme_bytes else ""
    return (
        f" Each machine needs {gib(estimate.host_bytes)} of memory{nvme}, with what is offloaded."
    )


def verdict(estimate: Estimate) -> Saying:
    """What a manager reads: does it fit, what it needs, what there is, what is left or lacking."""
    low, high = estimate.need_low_bytes, estimate.need_high_bytes
    need = between(low, high)
    subject = f"{METHOD_NOUNS[estimate.setup.method]} of {short_name(estimate.model.hub_id)}"
    beyond = beyond_the_step(estimate.decisive, estimate.setup)
    peak = beyond or f"Memory is highest in {moment(estimate.peak)}."
    peak += elsewhere(estimate)
    gpu = estimate.gpu
    if gpu is None or estimate.verdict is None:
        return Saying(
            f"Needs {need}",
            f"{subject} needs {need} on one GPU. Choose a GPU to see whether it fits.",
            peak,
            "",
        )
    usable = gpu.memory_bytes
    number = estimate.setup.num_gpus
    which = "the fullest" if estimate.devices else "each"
    where = f" on {which} of {number} GPUs by {estimate.setup.strategy}" if number > 1 else ""
    offer = f"{subject} needs {need}{where}; one {gpu.name} has {gib(usable)} usable"
    word = f"{SIGNS[estimate.verdict]} {theme.VERDICTS[estimate.verdict].label}"
    if estimate.verdict is Verdict.FITS:
        room = gib(usable - high)
        saying = Saying(f"{word}: {room} free", f"{offer}, so {room} are left.", peak, "")
    elif estimate.verdict is Verdict.TIGHT:
        saying = Saying(
            f"{word}: {gib(usable - low)} free at best",
            f"{offer}. How the allocator places blocks decides; do not count on it.",
            peak,
            "",
        )
    else:
        short = gib(low - usable)
        saying = Saying(
            f"{word}: {short} short",
            f"{offer}, at least {short} too little.",
            f"{runs_out(estimate)} {peak}",
            "",
        )
    return saying._replace(capacity=capacity_note(gpu))


def trust_sentence(estimate: Estimate, kin: Kin) -> str:
    """How far measured runs of this kind lay from our estimate; where there are none, what was measured instead."""
    setup, trust = estimate.setup, kin.trust
    if trust is None:
        return f"No run of {_method(setup)} was measured."
    runs = f"{trust.runs} measured run{'s' * (trust.runs != 1)}"
    off = f"{_off(trust.median)} off in the median, {_off(trust.largest)} at most."
    if not kin.unlike:
        return f"{runs} of this kind ({_measured(kin)}): {off}"
    lacks = [
        said
        for facet, said in (
            (Facet.STRATEGY, _shared(setup)),
            (Facet.FAMILY, f"with layers as {estimate.model.model_type} has them"),
            (Facet.CARD, f"on {_generation(estimate.gpu)}"),
        )
        if facet in kin.unlike
    ]
    return f"No run of {_method(setup)} was measured {' '.join(lacks)}. Nearest: {runs} ({_measured(kin)}), {off}"


def _measured(kin: Kin) -> str:
    """What was measured: method, strategy, models and cards."""
    first = kin.runs[0].setup
    families = sorted({run.model.model_type for run in kin.runs if run.model is not None})
    cards = sorted({run.reading.gpu.name for run in kin.runs if run.reading.gpu is not None})
    shared = sorted({_shared(run.setup) for run in kin.runs})
    said = f"{_method(first)} {' and '.join(shared)}, {' and '.join(families)}"
    return f"{said}, {' and '.join(cards)}" if cards else said


def _method(setup: TrainingSetup) -> str:
    """The method inside a sentence: ``full fine-tuning``, ``QLoRA``."""
    return METHOD_NOUNS[setup.method].replace("Full", "full")


def _shared(setup: TrainingSetup) -> str:
    """By which strategy: ``on one GPU``, ``under FSDP 1``, ``under zero2 with offload``."""
    if setup.strategy is Strategy.NONE:
        return "on one GPU"
    way = setup.strategy.value
    if setup.strategy.is_fsdp:
        version = 1 if setup.uses_fsdp1 else 2
        way = f"FSDP {version}" if setup.strategy is Strategy.FSDP else f"{way} of FSDP {version}"
    return f"under {way}{' with offload' * offloads(setup)}"


def _generation(gpu: Gpu | None) -> str:
    return "any card" if gpu is None else f"a card of {gpu.vendor}'s {gpu.architecture} generation"


def _off(error: float) -> str:
    return "<0.1 %" if error < 0.0005 else f"{100 * error:.1f} %"


def verdict_html(estimate: Estimate, kin: Kin) -> str:
    """The verdict as a coloured panel; the words say all that the colour says."""
    saying = verdict(estimate)
    if estimate.verdict is None:
        light, dark = theme.NEUTRAL
    else:
        light = theme.VERDICTS[estimate.verdict].colour
        dark = theme.VERDICTS_ON_DARK[estimate.verdict]
    return (
        f'<div class="hr-verdict" role="status" style="--hr: light-dark({light}, {dark})">'
        f'<p class="hr-word">{escape(saying.word)}</p>'
        f'<p class="hr-say">{escape(saying.sentence)}</p>'
        f'<p class="hr-run">{escape(run_sentence(estimate))}</p>'
        f'<p class="hr-small hr-setup">{escape(setup_line(estimate))}</p>'
        f'<p class="hr-small">{escape(saying.when)} {escape(saying.capacity)} '
        f"{escape(trust_sentence(estimate, kin))}</p></div>"
    )


# --- the ledger ---------------------------------------------------------------------------------


def reserve_meaning(estimate: Estimate) -> str:
    """What stands between the allocated peak and the need."""
    return (
        f"The CUDA context ({between(estimate.context_low_bytes, estimate.context_high_bytes)}) and what "
        "the allocator may waste; the high end."
    )


def shown_meaning(shown: Shown) -> str:
    """What nvidia-smi may show, and why it decides nothing."""
    return (
        f"May show {between(shown.low, shown.high)}, as in measured runs: the allocator keeps freed "
        "blocks while there is room."
    )


def _row(colour: str | None, name: str, size: str, part: str, what: str, kind: str = "") -> str:
    swatch = f'<span class="hr-swatch" style="background:{colour}"></span>' if colour else ""
    return (
        f'<tr class="{kind}"><td class="hr-name-cell">{swatch}{name}</td><td class="hr-n">{escape(size)}</td>'
        f'<td class="hr-n">{escape(part)}</td><td class="hr-what">{escape(what)}</td></tr>'
    )


def ledger_html(estimate: Estimate) -> str:
    """The peak as a table: each component, its GiB, its share of the peak, what it is."""
    whole = estimate.peak.bytes
    need = estimate.need_high_bytes
    rows = [
        _row(part.colour, part.label, number(size), share(size, whole), MEANINGS[component])
        for component, part in theme.COMPONENTS.items()
        if (size := estimate.peak.resident.get(component, 0))
    ]
    rows.append(
        _row(
            None,
            "Allocated by PyTorch",
            number(whole),
            "100 %",
            "What torch.cuda.max_memory_allocated() reports.",
            "hr-sum",
        )
    )
    if beyond := beyond_the_step(estimate.decisive, estimate.setup):
        label = f"{PHASES[estimate.decisive.phase]} beyond that"
        rows.append(_row(None, label, number(estimate.decisive.bytes - whole), "", beyond))
    rows.append(
        _row(
            theme.RESERVE.colour,
            theme.RESERVE.label,
            number(need - estimate.decisive.bytes),
            "",
            reserve_meaning(estimate),
        )
    )
    rows.append(_row(None, "Needed", number(need), "", "What the card must have.", "hr-sum"))
    if estimate.shown is not None:
        rows.append(_row(None, "nvidia-smi", "", "", shown_meaning(estimate.shown)))
    head = (
        '<tr><th scope="col">At the peak</th><th scope="col" class="hr-n">GiB</th>'
        '<th scope="col" class="hr-n">Share</th><th scope="col" class="hr-what">What it is</th></tr>'
    )
    return f'<table class="hr-table"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


# --- the rule of thumb --------------------------------------------------------------------------


def rule_of_thumb(estimate: Estimate) -> str:
    """Our figure beside the rule of thumb, in the rule's own GB; both from the same parameter count."""
    setup, peak = estimate.setup, estimate.peak
    if setup.method is not Method.FULL:
        trained = count(estimate.trainable_parameters)
        return (
            "The rule of thumb (2 bytes a parameter for weights, 8 for AdamW, 10 to 20 GB for the rest) is one "
            f"for full fine-tuning. Here {trained} of {count(estimate.total_parameters)} parameters are trained; "
            "only these have gradients and optimizer states."
        )
    weights = estimate.total_parameters * setup.dtype.bytes
    states = estimate.total_parameters * 8
    low, high = weights + states + 10 * GB, weights + states + 20 * GB
    if setup.num_gpus > 1 and setup.strategy is not Strategy.DDP:
        return (
            f"The rule of thumb says {gb(weights)} + {gb(states)} + 10 to 20 = {gb(low)} to {gb(high)} GB for one GPU "
            f"that holds the whole model. Here {setup.num_gpus:,} share it under {setup.strategy}, so the rule says "
            f"nothing of one of them; the fullest peaks at {gb(peak.bytes)} GB, which is {gib(peak.bytes)}."
        )
    gradients = peak.resident.get(Component.GRADIENTS, 0)
    held = (Component.ACTIVATIONS, Component.LOGITS)
    summit = max(
        (m for m in estimate.moments if m.phase in STEP_PHASES),
        key=lambda m: sum(m.resident.get(c, 0) for c in held),
    )
    highest = sum(summit.resident.get(c, 0) for c in held)
    left = sum(peak.resident.get(c, 0) for c in held)
    return (
        f"The rule of thumb says {gb(weights)} + {gb(states)} + 10 to 20 = {gb(low)} to {gb(high)} GB: "
        f"{setup.dtype.bytes} bytes a parameter for weights, 8 for AdamW in float32, and a guess for activations. "
        f"It forgets gradients: {gb(gradients)} GB at the peak. And it counts activations at the wrong moment: with "
        f"the logits they reach {gb(highest)} GB in {moment(summit)}, but at the peak, in {moment(peak)}, "
        f"{f'{gb(left)} GB' if left > GB // 20 else 'hardly any'} of them are left. "
        f"Our peak is {gb(peak.bytes)} GB, which is {gib(peak.bytes)}."
    )


def rule_of_thumb_html(estimate: Estimate) -> str:
    """The comparison as a paragraph with a heading."""
    return f'<h2 class="hr-head">Beside the rule of thumb</h2><p class="hr-text">{escape(rule_of_thumb(estimate))}</p>'


def assumptions_html(estimate: Estimate) -> str:
    """What the estimate takes for granted."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in estimate.assumptions)
    return f'<h2 class="hr-head">What is assumed</h2><ul class="hr-text">{items}</ul>'


def proposal_html(estimate: Estimate, name: str) -> str:
    """A setup that a click opens: its name, its need as its bar shows it, its verdict."""
    return _card(name, estimate.verdict, f"needs {gib(estimate.need_high_bytes)}")


def sign(verdict: Verdict) -> str:
    """The verdict's sign and word: ``✓ fits``."""
    return f"{SIGNS[verdict]} {theme.VERDICTS[verdict].label.lower()}"


def _card(name: str, verdict: Verdict | None, *lines: str) -> str:
    said = "" if verdict is None else f' <span class="hr-{verdict}">{sign(verdict)}</span>'
    rest = "".join(f"<br>{escape(line)}" for line in lines)
    return f"<b>{escape(name)}</b>{said}{rest}"


# --- cards and remedies -------------------------------------------------------------------------


def card_html(method: Method, estimate: Estimate, smallest: Place | str) -> str:
    """One method of the chosen model: its verdict here, its need, and the smallest card or cards that hold it.

    ``smallest``: or why no number of cards can share it.
    """
    need = f"needs {gib(estimate.need_high_bytes)}"
    if estimate.verdict is Verdict.FITS:
        need += f", {gib(estimate.headroom_bytes)} free"
    where = f"none alone, nor {MOST_GPUS} together"
    if isinstance(smallest, str):
        where = "none alone; sharing it is refused" if smallest else where
    else:
        number = smallest.setup.num_gpus
        cards = f"{number} × {smallest.gpu.name}" if number > 1 else smallest.gpu.name
        where = f"smallest: {cards}, {gib(smallest.headroom_bytes)} free"
        if smallest.keys:
            way = STRATEGIES.get(smallest.setup.strategy, smallest.setup.strategy)
            where = (
                f"{'none alone' if estimate.setup.num_gpus == 1 else 'smallest'}: {cards}, {way}"
            )
    return _card(METHODS[method], estimate.verdict, need, where, *_run_line(estimate))


def _run_line(estimate: Estimate) -> list[str]:
    """Hours and dollars, or why there are none; no line for what cannot run."""
    return [run(estimate) or _no_time(estimate)] if estimate.can_run else []


def _no_time(estimate: Estimate) -> str:
    return "hours not known" if estimate.gpu is not None else "choose a GPU for hours"


def remedy_html(it: Remedy, before: Estimate, after: Estimate) -> str:
    """A change that makes it fit: what, what it saves, what it costs in time, in dollars and in quality."""
    saves = f"saves {gib(it.saved_bytes)}, " if it.saved_bytes else ""
    needs = f"{saves}needs {gib(it.need_high_bytes)}; {added(before, after)}"
    return (
        f"<b>{escape(it.title)}</b>: {needs}<br><small>{escape(it.price)}{elsewhere(after)}</small>"
    )


MANY_TIMES_PERCENT = 200
"""From here on a longer run is said as a multiple."""


def added(before: Estimate, after: Estimate) -> str:
    """What a change does to the run's time, and what the run then takes; by the middles of the brackets."""
    if before.time is None or after.time is None:
        return "time not known"
    ratio = _middle(after.time) / _middle(before.time)
    percent = round(100 * (ratio - 1))
    if percent == 0:
        change = "as long as before"
    elif percent >= MANY_TIMES_PERCENT:
        change = f"{ratio:.0f} times as long"
    else:
        change = f"{'+' if percent > 0 else '−'}{abs(percent)} % time"
    return f"{change}, {run(after)}"


def _middle(time: RunTime) -> float:
    return math.sqrt(time.total_hours_low * time.total_hours_high)


def remedies_head(estimate: Estimate, found: int) -> str:
    """What stands above the remedies, and what cannot help here."""
    assert estimate.gpu is not None
    setup = estimate.setup
    head = "What to change" if found else "No change of this setup makes it fit one card"
    load, step = (estimate.phases[phase].bytes for phase in (Phase.LOAD, Phase.OPTIMIZER_STEP))
    room = room_bytes(estimate)
    if load > room:
        note = f"Loading alone takes {gib(load)}, and tensors can have {gib(room)}: no batch and no context helps."
    elif step > room:
        note = (
            f"Weights, gradients and optimizer states alone take {gib(step)}, and tensors can have {gib(room)}: no "
            "smaller batch, shorter context or more accumulation makes that fit."
        )
    elif setup.per_device_train_batch_size == 1:
        note = (
            "The micro-batch is 1 already. Accumulation changes the effective batch, not the memory: "
            "it saves some only where it allows a smaller micro-batch."
        )
    else:
        note = "Accumulation by itself saves nothing; it lets the micro-batch shrink at the same effective batch."
    return f'<h2 class="hr-head">{head}</h2><p class="hr-text">{escape(note)}</p>'


# --- how far, and through the step --------------------------------------------------------------


def map_html(estimate: Estimate) -> str:
    """What the map of batch and context shows."""
    assert estimate.gpu is not None
    return (
        f'<p class="hr-text">GiB free (+) or lacking (−) on {escape(estimate.gpu.name)} for each micro-batch and '
        "context. Below the dashed line it fits. The frame is this setup; a click sets both sliders.</p>"
    )


def map_alt(
    batches: Sequence[int], lengths: Sequence[int], headroom: Sequence[Sequence[int | None]]
) -> str:
    """The map in words: for each context the largest of the shown batches that fits."""
    sentences = []
    for column, length in enumerate(lengths):
        rooms = {batch: row[column] for batch, row in zip(batches, headroom, strict=True)}
        known = {batch: room for batch, room in rooms.items() if room is not None}
        fitting = [batch for batch, room in known.items() if room >= 0]
        most = f"up to {fitting[-1]}" if fitting else "none" if known else "cannot be trained"
        sentences.append(f"{length:,} tokens {most}")
    return f"Largest micro-batch that fits, of those shown: {', '.join(sentences)}."


def step_html(estimate: Estimate) -> str:
    """What the picture of two steps explains."""
    text = "Every moment of two training steps, one after the other."
    made = estimate.phases[Phase.OPTIMIZER_STEP].resident.get(Component.OPTIMIZER_STATES, 0)
    if made and starts_with_states(estimate.setup):
        text += f" The optimizer states ({gib(made)}) are there before the first."
    elif made:
        text += (
            f" The optimizer makes its states ({gib(made)}) at the end of the first step; from then on all else stands "
            "on top of them."
        )
    return f'<p class="hr-text">{escape(f"{text} {runs_out(estimate)}")}</p>'


def step_alt(estimate: Estimate) -> str:
    """The picture of two steps in words."""
    phases = ", ".join(
        f"{PHASES[phase].lower()} {gib(estimate.phases[phase].bytes)}" for phase in STEP_PHASES
    )
    return (
        f"Memory through the second step, highest in each phase: {phases}; the peak of {gib(estimate.peak.bytes)} "
        f"comes in {moment(estimate.peak)}."
    )


# --- the GPUs -----------------------------------------------------------------------------------


def gpu_row(it: Estimate) -> dict[str, object]:
    """One card as a row of the table; plain numbers, so that they can be sorted."""
    assert it.gpu is not None
    assert it.verdict is not None
    time, cost = (it.time, it.cost) if it.can_run else (None, None)
    return {
        "GPU": it.gpu.name,
        "Verdict": sign(it.verdict),
        "Usable": in_gib(it.gpu.memory_bytes),
        "Headroom": in_gib(it.headroom_bytes),
        "Hours, fast": None if time is None else round(time.total_hours_low, 2),
        "Hours, slow": None if time is None else round(time.total_hours_high, 2),
        "Dollars, low": None if cost is None else round(cost.cost_usd_low, 2),
        "Dollars, high": None if cost is None else round(cost.cost_usd_high, 2),
        "Memory is": "derived" if it.gpu.memory_is_derived else "read",
    }


def gpus_head(estimate: Estimate, rows: Sequence[Estimate]) -> str:
    """The table in one sentence."""
    fitting = [row for row in rows if row.verdict is Verdict.FITS]
    if not fitting:
        return f"None of {len(rows)} cards holds it: it needs {gib(estimate.need_high_bytes)}."
    smallest = fitting[0]
    assert smallest.gpu is not None
    return (
        f"{len(fitting)} of {len(rows)} cards hold it; the smallest is {smallest.gpu.name} with "
        f"{gib(smallest.headroom_bytes)} to spare. Choose a row to take that card."
    )


# --- time and money -----------------------------------------------------------------------------


def time_html(estimate: Estimate, fastest: Estimate | None, cheapest: Estimate | None) -> str:
    """Why a step takes as long as it does, and what follows for the run."""
    time = estimate.time
    if time is None and estimate.gpu is None:
        return '<p class="hr-text">Choose a GPU to see how long the run takes on it.</p>'
    best = [
        f"{name} card that holds it: {one.gpu.name}, {run(one)}."
        for name, one in (("Fastest", fastest), ("Cheapest", cheapest))
        if one is not None and one.gpu is not None
    ]
    if estimate.gpu is not None and not estimate.can_run:
        said = f"It does not fit {estimate.gpu.name}, so there are no hours and no dollars of it."
        return "".join(f'<p class="hr-text">{escape(line)}</p>' for line in (said, *best))
    if time is None:
        said = next(
            (it for it in estimate.assumptions if it.startswith("No time")), "No time is known."
        )
        return f'<p class="hr-text">{escape(said)}</p>'
    rows = [
        _row(None, escape(part.name), seconds(part.low_seconds), seconds(part.high_seconds), "")
        for part in time.parts
    ]
    ends = seconds(time.step_seconds_low), seconds(time.step_seconds_high)
    rows.append(_row(None, "One optimizer step", *ends, "", "hr-sum"))
    table = (
        '<table class="hr-table"><thead><tr><th scope="col">Seconds of a step</th>'
        '<th scope="col" class="hr-n">Fast</th><th scope="col" class="hr-n">Slow</th>'
        '<th class="hr-what"></th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    lines = [
        f"{time.total_steps:,} steps; {time.tokens_per_second_low:,.0f} to {time.tokens_per_second_high:,.0f} tokens a "
        f"second, which is {100 * time.mfu_low:.0f} to {100 * time.mfu_high:.0f} % of the card's dense rate.",
    ]
    if estimate.energy_kwh_low is not None and estimate.energy_kwh_high is not None:
        lines.append(
            f"Energy: {estimate.energy_kwh_low:,.1f} to {estimate.energy_kwh_high:,.1f} kWh at the board's rated power."
        )
    lines += best
    said = "".join(f'<p class="hr-text">{escape(line)}</p>' for line in lines)
    return said + table


def pareto_html(front: Sequence[Estimate]) -> str:
    """What the chart of dollars and hours shows."""
    return (
        '<h2 class="hr-head">Dollars against hours, every card that holds it</h2>'
        f'<p class="hr-text">No other card beats the {len(front)} joined ones in both. Points are the middles of their '
        "brackets, at the cheapest listing known; a ring marks the chosen card.</p>"
    )


def pareto_alt(front: Sequence[Estimate]) -> str:
    """The same in words."""
    cards = "; ".join(f"{it.gpu.name}: {run(it)}" for it in front if it.gpu)
    return f"Cards that no other beats in both hours and dollars: {cards}."


def seconds(value: float) -> str:
    """Seconds with three figures.

    >>> seconds(0.01234), seconds(1.2345), seconds(123.4)
    ('0.0123', '1.23', '123')
    """
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


# --- how it was computed ------------------------------------------------------------------------


def lines_html(lines: Sequence[Line], head: str) -> str:
    """The terms of a sum as a table, with their total."""
    rows = [_row(None, escape(line.what), gib_or_bytes(line.bytes), "", line.how) for line in lines]
    total = sum(line.bytes for line in lines)
    rows.append(_row(None, "Together", gib_or_bytes(total), "", f"{total:,} bytes", "hr-sum"))
    return (
        f'<table class="hr-table"><thead><tr><th scope="col">{escape(head)}</th><th scope="col" class="hr-n">Size</th>'
        '<th scope="col" class="hr-n"></th><th scope="col" class="hr-what">How</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def gib_or_bytes(size: int) -> str:
    """A size that stays readable when small: ``1.5 GiB``, ``12.3 MiB``, ``512 bytes``."""
    if size < 0:
        return f"−{gib_or_bytes(-size)}"
    if size >= GIB:
        return f"{size / GIB:,.2f} GiB"
    if size >= 2**20:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size:,} bytes"


# --- loading, evaluating, saving ----------------------------------------------------------------


def acts_html(estimate: Estimate, acts: Sequence[Stage]) -> str:
    """What a run does beside its steps: GPU, host and disk in GiB, the highest on the GPU in bold."""
    highest = max(act.gpu_bytes for act in acts)
    several = estimate.setup.num_gpus > 1
    columns = (
        ("GPU", "Host, rank 0", "Host, others", "Disk") if several else ("GPU", "Host", "Disk")
    )
    rows = [
        f'<tr class="{"hr-sum" if act.gpu_bytes == highest else ""}"><td class="hr-name-cell">{escape(act.name)}</td>'
        + "".join(
            f'<td class="hr-n">{"–" if size is None else number(size)}</td>'
            for size in (
                act.gpu_bytes,
                act.host_bytes,
                *([act.other_host_bytes] if several else []),
                act.disk_bytes,
            )
        )
        + "</tr>"
        for act in acts
    ]
    head = "".join(f'<th scope="col" class="hr-n">{where}</th>' for where in columns)
    lead = beyond_the_step(estimate.decisive, estimate.setup) or (
        "Nothing that this run does beside its steps needs more of the GPU than its steps do."
    )
    beyond = [act.name for act in acts if act.gpu_bytes > estimate.decisive.bytes]
    if any(name.startswith("Evaluate") for name in beyond):
        lead += (
            " An evaluation would, and none is planned: with eval_strategy this verdict counts it."
        )
    if any(name.startswith("Merge") for name in beyond):
        lead += " Merging the adapters afterwards would; it can be done on the CPU."
    return (
        f'<p class="hr-text">{escape(lead)}</p>'
        f'<table class="hr-table hr-acts{" hr-several" * several}"><thead><tr>'
        f'<th scope="col">GiB at the highest</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _loading(setup: TrainingSetup) -> str:
    """Where from_pretrained puts the weights, and what spares the host where something does."""
    if setup.method is Method.QLORA:
        return "A 4-bit base goes to the GPU tensor by tensor."
    first = "Without a device_map, from_pretrained puts all weights there first"
    if setup.strategy is Strategy.NONE:
        return f"{first}; device_map={{'': 0}} loads straight to the GPU."
    if setup.strategy is Strategy.DDP:
        return f"{first}; device_map={{'': PartialState().process_index}} loads straight to each process' GPU."
    return ""


def saving_html(estimate: Estimate, kept_a_batch: int, disk_gb_per_second: float) -> str:
    """What the table cannot say: the disk of a run, the seconds of a checkpoint, what metrics keep on the GPU."""
    setup = estimate.setup
    at_best = write_seconds(estimate.disk_bytes, disk_gb_per_second * GB)
    writing = f"{seconds(at_best)} seconds at best, while training waits"
    if estimate.run_disk_bytes == estimate.disk_bytes:
        disk = f"The run leaves one checkpoint of {gib(estimate.disk_bytes)}, written in {writing}."
    elif estimate.run_disk_bytes:
        together = estimate.run_disk_bytes // estimate.disk_bytes
        disk = (
            f"At most {together} checkpoints lie on the disk together, {gib(estimate.run_disk_bytes)}; each is written "
            f"in {writing}."
        )
    else:
        disk = "This run saves no checkpoints (save_strategy is no)."
    lines = [
        disk,
        *shared_saving(setup),
        f"Host: one process, beside Python and CUDA's libraries. {_loading(setup)}",
        (
            ""
            if setup.eval_strategy != "no"
            else "The row of an evaluation says what one would take. "
        )
        + "Without compute_metrics Trainer keeps no logits. With it each evaluation batch leaves "
        f"{gib(kept_a_batch)} of them on the GPU, and to join them takes as much again; eval_accumulation_steps moves "
        "them to the host.",
    ]
    if estimate.model.model_type in MERGED_ON_LOADING and not setup.strategy.divides:
        lines.append(
            "Files hold experts one by one: to save them, transformers takes every layer's gates and ups apart on the "
            "GPU before it writes."
        )
    if setup.uses_adapters:
        lines.append(
            "Merging is after training, when the optimizer is gone; the adapters are saved without the base."
        )
    return "".join(f'<p class="hr-text">{escape(line)}</p>' for line in lines)


def download(estimate: Estimate) -> str:
    """What the checkpoint's files take, in a sentence; empty where that is not known."""
    size, stored = checkpoint_bytes(estimate.model), estimate.model.quantization
    if size is None:
        return ""
    form = f", stored as {escape(stored.name)}" if stored else ""
    return f"The checkpoint's files hold {gib(size)}{form}: so much is downloaded and stays on the disk."


def shared_saving(setup: TrainingSetup) -> list[str]:
    """Who gathers and who writes a checkpoint where GPUs share the model, and which key changes that."""
    match setup.strategy:
        case Strategy.DDP:
            return ["Rank 0 saves its own copy; the other processes wait."]
        case strategy if strategy.is_fsdp and setup.fsdp_state_dict_type == SHARDED_STATE_DICT:
            return [
                "Each process writes its own shards (fsdp_state_dict_type is SHARDED_STATE_DICT). Trainer.save_model "
                "writes no model then: accelerate merge-weights makes one of a checkpoint."
            ]
        case strategy if strategy.is_fsdp:
            return [
                "Every tensor is gathered on the GPUs, one after another, and copied to the host of rank 0, which "
                "comes to hold the whole model, then all states. With fsdp_state_dict_type SHARDED_STATE_DICT each "
                "process copies its own shards instead."
            ]
        case Strategy.ZERO1 | Strategy.ZERO2:
            return [
                "Every process copies all weights to its host, so that "
                f"{min(setup.num_gpus, setup.gpus_per_node)} in one machine take as many copies; rank 0 writes the "
                "model and each its own states."
            ]
        case Strategy.ZERO3 if setup.uses_adapters:
            return [
                "The adapters are gathered module by module, frozen weights with them; each process writes its states."
            ]
        case Strategy.ZERO3 if setup.zero3_save_16bit_model:
            return [
                "16-bit weights are gathered module by module and copied to the host of rank 0 "
                "(zero3_save_16bit_model is on); each process writes its own states."
            ]
        case Strategy.ZERO3:
            return [
                "Each process writes its own float32 weights and states, and nobody a model: zero_to_fp32.py makes one "
                "of them, or zero3_save_16bit_model writes 16-bit weights as well. save_only_model changes nothing."
            ]
        case _:
            return []

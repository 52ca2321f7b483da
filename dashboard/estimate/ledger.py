"""The memory at the peak by component, the assumptions, and the comparison with the rule of thumb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from dashboard import theme
from dashboard.estimate.computed_once import computed_once
from dashboard.words import markup, rule_of_thumb, terms, units
from dashboard.words.verdicts import allocator_adds
from estimator import (
    Component,
    Estimate,
    Gpu,
    Model,
    Moment,
    Shown,
    TrainingSetup,
    beyond_the_step,
    estimate,
    shown,
)

MEANINGS: Mapping[Component, str] = {
    Component.WEIGHTS: "The model's parameters, held from loading to the end.",
    Component.ADAPTERS: "The low-rank matrices that LoRA trains on top of the frozen weights.",
    Component.REFERENCE_MODEL: "A frozen copy of the model that the loss evaluates. It stays throughout the run.",
    Component.INFERENCE_ENGINE: "What vLLM keeps of the GPU: its own weights, its cache of keys and values.",
    Component.GRADIENTS: "One number per trained parameter, computed in backward and freed after the step.",
    Component.OPTIMIZER_STATES: "What the optimizer keeps per trained parameter, from its first step on.",
    Component.ACTIVATIONS: "What forward saves for backward, freed layer by layer as backward runs.",
    Component.LOGITS: "A score for every token and every word of the vocabulary, and the loss's copies of them.",
    Component.TEMPORARIES: "Tensors that live for one operation.",
    Component.COMMUNICATION: "Buffers for the data that GPUs exchange.",
    Component.WORKSPACE: "Scratch memory of the matrix library (cuBLAS).",
}


def reserve_meaning(estimate: Estimate) -> str:
    """Explains the difference between the allocated peak and the need."""
    context = units.between(*estimate.context_bytes)
    return f"The CUDA context ({context}) at its high end, and {allocator_adds(estimate)}."


def tensors_meaning(estimate: Estimate) -> str:
    """What PyTorch reports for the sum of tensors."""
    replay = estimate.needs.replay
    said = "this, or a little more" if replay is None else units.gib(replay.allocated)
    return f"torch.cuda.max_memory_allocated() counts blocks: {said}."


def shown_meaning(on_card: Shown) -> str:
    """The range that nvidia-smi may show, and why it does not affect the verdict."""
    return (
        f"May show {units.between(on_card.low, on_card.high)}, as in measured runs: the allocator keeps freed "
        "blocks while there is room."
    )


def section_html(of: Estimate) -> str:
    """The table, and the collapsible texts below it."""
    return _section_html(of.model, of.gpu, of.setup)


@computed_once(maxsize=512)
def _section_html(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> str:
    of = estimate(model, gpu, setup)
    return ledger_html(of) + rule_of_thumb_html(of) + assumptions_html(of)


def ledger_html(estimate: Estimate) -> str:
    """The peak as a table: each component, its GiB, its share of the peak, and a description."""
    whole = estimate.peak.bytes
    need = estimate.need_high_bytes
    rows = component_rows(estimate.peak)
    rows.append(
        markup.row(
            None,
            "All tensors",
            units.number(whole),
            "100 %",
            tensors_meaning(estimate),
            "hr-sum",
        )
    )
    if beyond := beyond_the_step(estimate.decisive, estimate.setup):
        label = f"{terms.PHASES[estimate.decisive.phase]} beyond that"
        rows.append(
            markup.row(None, label, units.number(estimate.decisive.bytes - whole), "", beyond)
        )
    rows.append(
        markup.row(
            theme.RESERVE.colour,
            theme.RESERVE.label,
            units.number(need - estimate.decisive.bytes),
            "",
            reserve_meaning(estimate),
        )
    )
    rows.append(markup.row(None, "Needed", units.number(need), "", "", "hr-sum"))
    if (on_card := shown(estimate)) is not None:
        monitor = "nvidia-smi" if estimate.gpu is None else estimate.gpu.monitor
        rows.append(markup.row(None, monitor, "", "", shown_meaning(on_card)))
    return _table("At the peak", rows)


def component_rows(moment: Moment) -> list[str]:
    """What is alive at a moment: each component, its GiB, its share, and a description."""
    return [
        markup.row(
            part.colour,
            part.label,
            units.number(size),
            units.share(size, moment.bytes),
            MEANINGS[component],
        )
        for component, part in theme.COMPONENTS.items()
        if (size := moment.resident.get(component, 0))
    ]


def moment_html(moment: Moment, title: str) -> str:
    """What is alive at one moment of the run, as a table."""
    whole = markup.row(None, "All tensors", units.number(moment.bytes), "100 %", "", "hr-sum")
    return _table(title, [*component_rows(moment), whole])


def _table(title: str, rows: Sequence[str]) -> str:
    head = (
        f'<tr><th scope="col">{escape(title)}</th><th scope="col" class="hr-n">GiB</th>'
        '<th scope="col" class="hr-n">Share</th><th scope="col" class="hr-what">What it is</th></tr>'
    )
    return f'<table class="hr-table"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def rule_of_thumb_html(estimate: Estimate) -> str:
    """The comparison with the rule of thumb, as collapsible details."""
    text = escape(rule_of_thumb.sentence(estimate))
    return markup.details(
        "rule", "Compared with the rule of thumb", f'<p class="hr-text">{text}</p>'
    )


def assumptions_html(estimate: Estimate) -> str:
    """The assumptions of the estimate."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in estimate.assumptions)
    return markup.details("assumed", "Assumptions", f'<ul class="hr-text">{items}</ul>')

"""Sentences: which scenario is best, what is assumed, what the ranges mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from dashboard import theme
from dashboard.compare import entry, results_table
from dashboard.compare.entry import ComparedEntry
from dashboard.words import one_line, units, verdicts
from estimator import Method, Verdict


def answers(
    shown: Sequence[ComparedEntry], within: float | None = None, context: int | None = None
) -> list[str]:
    """The cheapest and fastest scenarios that fit, those within the deadline, and QLoRA beside LoRA."""
    return [*_what_if(context), *_best(shown, within), *_against_lora(shown)]


def _what_if(context: int | None) -> Iterator[str]:
    if context is not None:
        yield f"What if: every scenario at {context:,} tokens of context instead of its own."


def _best(shown: Sequence[ComparedEntry], within: float | None) -> Iterator[str]:
    fitting = [one for one in shown if one.estimate and one.estimate.verdict is Verdict.FITS]
    if not fitting:
        held = [one for one in shown if one.estimate and one.estimate.gpu]
        if held:
            yield f"None of the {len(held)} scenarios is certain to fit its GPU."
        return
    if len(fitting) == 1 < sum(one.estimate is not None for one in shown):
        yield f"Only {_list(fitting)} fits."
    if within is not None:
        late = [one for one in fitting if results_table.in_time(one, within).startswith("✕")]
        sure = [one for one in fitting if results_table.in_time(one, within) == "✓ yes"]
        known = sure or [
            one for one in fitting if one not in late and one.estimate and one.estimate.time
        ]
        if not known:
            yield f"No fitting scenario finishes within {within:,g} hours."
            return
        how = "certain to be" if sure else "possibly (none is certain to be)"
        cheapest = entry.least(known, entry.dollars) or entry.least(known, entry.hours)
        if cheapest is not None:
            yield f"Cheapest that fits and is {how} done within {within:,g} hours: {_told(cheapest)}."
        return
    cheapest, fastest = (entry.least(fitting, dollar) for dollar in (entry.dollars, entry.hours))
    if cheapest is not None and cheapest is fastest:
        yield f"Cheapest and fastest that fits: {_told(cheapest)}."
        return
    for word, best in (("Cheapest", cheapest), ("Fastest", fastest)):
        if best is not None:
            yield f"{word} that fits: {_told(best)}."


def _told(one: ComparedEntry) -> str:
    assert one.estimate is not None
    return f"“{one.name}”, {one_line.run(one.estimate)}"


def _list(several: Sequence[ComparedEntry]) -> str:
    return ", ".join(f"“{one.name}”" for one in several)


def _against_lora(shown: Sequence[ComparedEntry]) -> Iterator[str]:
    """Savings and costs of each QLoRA against LoRA of the same setup, if both are compared."""
    for one in shown:
        for other in shown:
            of, lora = one.estimate, other.estimate
            if of is None or lora is None or not of.setup.adapters.has_4bit_base:
                continue
            same = (of.model, of.gpu, of.setup.replace(method=Method.LORA))
            if same == (lora.model, lora.gpu, lora.setup):
                need = results_table.gib_more(
                    float(of.need_high_bytes), float(lora.need_high_bytes)
                )
                mine, its = entry.hours(of), entry.hours(lora)
                time = f" and {results_table.times(mine, its)} the hours" if mine and its else ""
                yield f"“{one.name}” against “{other.name}”: {need}{time}."
                break


def assumptions(shown: Sequence[ComparedEntry]) -> list[str]:
    """Shared assumptions once; the others with the names of their scenarios."""
    estimated = [one for one in shown if one.estimate]
    who: dict[str, list[ComparedEntry]] = {}
    for one in estimated:
        for sentence in one.estimate.assumptions if one.estimate else ():
            who.setdefault(sentence, []).append(one)
    return [
        sentence if len(names) == len(estimated) else f"{_list(names)}: {sentence}"
        for sentence, names in who.items()
    ]


def answers_html(sentences: Sequence[str]) -> str:
    """The sentences as one paragraph."""
    return f'<p class="hr-answers">{escape(" ".join(sentences))}</p>'


def assumptions_html(sentences: Sequence[str]) -> str:
    """The sentences as an HTML list."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="hr-text">{items}</ul>'


def refusal_html(one: ComparedEntry) -> str:
    """Why a scenario has no bar."""
    return f"<b>{escape(one.name)}</b>: {escape(one.problem)}"


def verdict_html(one: ComparedEntry, is_best: bool, sentences: Sequence[str]) -> str:
    """One scenario for the projector: its name, its verdict in the largest type, and the run's time and cost."""
    of = one.estimate
    if of is None:
        return f'<div class="hr-stage"><p class="hr-who">{escape(one.name)}</p><p>{escape(one.problem)}</p></div>'
    saying = verdicts.verdict(of)
    light, dark = theme.NEUTRAL
    if of.verdict is not None:
        light, dark = theme.VERDICTS[of.verdict].colour, theme.VERDICTS_ON_DARK[of.verdict]
    mark = "; the cheapest that fits" * (
        is_best and of.verdict is Verdict.FITS and entry.dollars(of) is not None
    )
    need = ""  # without a card the verdict line already gives the need
    if of.gpu:
        need = f"needs {units.between(of.need_low_bytes, of.need_high_bytes)}"
        need += f", {of.gpu.name} has {units.gib(of.gpu.memory_bytes)}"
    asked = next((sentence for sentence in sentences if "within" in sentence), "")
    return (
        f'<div class="hr-stage" role="status" style="--hr: light-dark({light}, {dark})">'
        f'<p class="hr-who">{escape(one.name)}{mark}</p><p class="hr-big">{escape(saying.word)}</p>'
        f'<p class="hr-need">{escape(need)}</p><p class="hr-need">{escape(one_line.run(of))}</p>'
        f'<p class="hr-asked">{escape(asked)}</p></div>'
    )

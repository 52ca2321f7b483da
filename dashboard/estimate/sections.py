"""The four parts below the hero figure. Only what is open is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import theme
from dashboard.address import parts
from dashboard.estimate import (
    best_way,
    explanation,
    headroom_map,
    layer_placement,
    ledger,
    method_cards,
    more_gpus,
    remedies,
    rulers,
    saving,
    start,
    take_away,
    through_the_run,
    time_and_money,
    vllm_share,
    what_if,
    which_gpu,
)
from dashboard.state import actions, configs, models
from dashboard.widgets import drawing, proposal_cards, slider_rows
from dashboard.words import markup
from estimator import (
    COUNTS,
    BestWay,
    Component,
    Estimate,
    Gpu,
    Model,
    Rung,
    Strategy,
    TrainingSetup,
    Verdict,
    batch_rungs,
    best_ways,
    catalog,
    context_rungs,
    estimate,
    explain,
    fewer_checkpoints,
    kept_logits_bytes,
    kept_terms,
    own_step,
    pareto,
    ranks,
    sharing,
    stages,
    why_left_on_the_cpu,
)
from estimator import best_way as best_way_on


def draw_rulers(answer: Estimate, look: object) -> None:
    """How long a context and how large a micro-batch fits, change by change, as they are found.

    Every change that is drawn may end the run: a visitor who moves on does not wait for the others.
    """
    place = st.empty()
    if answer.gpu is None:
        return
    on = answer.model, answer.gpu, answer.setup
    found: dict[str, list[Rung]] = {}
    try:
        for key, rungs in (
            ("max_length", context_rungs(*on, NEARLY)),
            ("per_device_train_batch_size", batch_rungs(*on, NEARLY)),
        ):
            found[key] = []
            for rung in rungs:
                found[key].append(rung)
                _draw_rulers(place, answer, found, look)
    except ValueError:  # a setup that is estimated, but no smaller one
        return
    _draw_rulers(place, answer, found, look, is_done=True)


def _draw_rulers(
    place: DeltaGenerator,
    answer: Estimate,
    found: Mapping[str, Sequence[Rung]],
    look: object,
    is_done: bool = False,
) -> None:
    bases, drawn = slider_rows.bases(look), []
    for key, rungs in found.items():
        proposal_cards.propose(key, rulers.proposals(rungs))
        drawn.append(rulers.ruler_html(key, rungs, answer, bases[key], is_done))
    place.html(f'<div class="hr-edge">{"".join(drawn)}</div>')


NEARLY = 16
"""How far a change goes is drawn to a sixteenth, which no ruler shows; the setup's own limits are exact."""


def draw_run(answer: Estimate) -> None:
    """Memory through the run."""
    state, of = st.session_state, (answer.model, answer.gpu, answer.setup)
    before = _shown_before(of)
    st.html(through_the_run.run_html(answer, before))
    figure = through_the_run.silhouette(answer, before, dark=drawing.is_dark())
    drawing.plot(
        figure,
        "run",
        through_the_run.run_alt(answer),
        on_pick=lambda number: state.update({"run picked": (of, number)}),
    )
    shown, number = state.get("run picked", (None, None))
    if shown == of:
        st.html(through_the_run.picked_html(answer, number))


def _shown_before(of: tuple[Model, Gpu | None, TrainingSetup]) -> Estimate | None:
    """The answer that the silhouette showed before this one; None on a first visit."""
    state = st.session_state
    if state.get("run drawn") != of:
        state["run before"], state["run drawn"] = state.get("run drawn"), of
    return estimate(*state["run before"]) if state["run before"] else None


def draw_what_if(answer: Estimate) -> None:
    """For optimizer states that no Trainer run has: the two nearest real setups."""
    if not what_if.is_what_if(answer):
        return
    neighbours = {
        name: (method_cards.changed(answer, keys), keys)
        for name, keys in what_if.real_neighbours(answer).items()
    }
    proposals = [
        proposal_cards.Proposal(name, what_if.proposal_html(neighbour, name), keys)
        for name, (neighbour, keys) in neighbours.items()
        if neighbour is not None
    ]
    st.html(
        what_if.WHAT_IF_HTML + proposal_cards.cards_html("neighbours", "Open", proposals),
    )


def draw_remedies(answer: Estimate) -> None:
    """Changes that make it fit, each with a button that applies it."""
    if answer.gpu is None:
        return
    if answer.verdict is Verdict.FITS:
        _draw_could_also(answer)
        return
    found = remedies.proposed(answer.model, answer.gpu, answer.setup)
    proposals = [proposal_cards.Proposal(remedy.title, text, remedy.keys) for remedy, text in found]
    cards = proposal_cards.cards_html("remedies", "Apply", proposals)
    st.html(remedies.remedies_head(answer, len(found)) + cards)


def _draw_could_also(answer: Estimate) -> None:
    assert answer.gpu is not None
    on = answer.model, answer.gpu
    number = answer.setup.mesh.num_gpus
    way = best_way_on(*on, number, answer.setup) if number in COUNTS else None
    spare = fewer_checkpoints(*on, answer.setup)
    found = best_way.could_also(answer, way, spare)
    if not found:
        return
    proposals = [
        proposal_cards.Proposal(title, f"<b>{escape(title)}</b>: {escape(why)}", keys)
        for title, why, keys in found
    ]
    cards = proposal_cards.cards_html("others", "Apply", proposals)
    st.html(f'<h2 class="hr-head">You could also</h2>{cards}')


def draw(answer: Estimate) -> None:
    """The switch between the parts, the open one, and what unfolds in it."""
    labels, key = list(parts.PARTS), parts.PART_KEY
    if st.session_state.get(key, labels[0]) is None:
        st.session_state[key] = labels[0]
    chosen = st.segmented_control(
        "More about this setup",
        labels,
        default=labels[0],
        required=True,
        key=key,
        bind="query-params",
        label_visibility="collapsed",
    )
    # an empty ``section=`` in the address chooses nothing, though the widget requires a choice (streamlit 1.67)
    part = chosen or labels[0]
    with st.container(
        key=f"part-{labels.index(part)}"
    ):  # one of its own, so that none shows another's text
        FIRST[part](answer)
        for label in parts.PARTS[part]:
            if label != parts.VLLM or vllm_share.applies(answer):
                _unfolding(label, answer)


def _unfolding(label: str, answer: Estimate) -> None:
    """What is computed only while it is open, which the link remembers."""
    box = st.expander(label, key=parts.key(label), on_change="rerun", bind="query-params")
    if box.open:
        with box:
            UNFOLDING[label](answer)


def _why(answer: Estimate) -> None:
    st.html(ledger.section_html(answer))
    start.offer(answer)


def _best(answer: Estimate) -> None:
    if answer.gpu is None:
        st.info("Choose a GPU to see what it can do at best.")
        return
    with st.spinner("Trying every card."):
        ways = best_ways(answer.model, catalog.gpus_like(answer.gpu), answer.setup)
    st.dataframe(
        [best_way.row(way) for way in ways],
        key="best ways",
        hide_index=True,
        height=460,
        placeholder="–",
        on_select=lambda: _take_way(ways),
        selection_mode="single-row",
        column_config={
            "Context, up to": st.column_config.NumberColumn(format="localized"),
            "Batch, up to": st.column_config.NumberColumn(format="localized"),
            "Hours, up to": st.column_config.NumberColumn(format="%.1f"),
            "Dollars, up to": st.column_config.NumberColumn(format="dollar"),
            "Dollars per GPU-hour": st.column_config.NumberColumn(format="dollar"),
        },
        alt="For each kind and number of GPUs the gentlest method that fits, how far it goes, and what it costs",
    )
    st.html(f'<p class="hr-small">{best_way.NOTE}</p>')


def _take_way(ways: Sequence[BestWay]) -> None:
    rows = st.session_state["best ways"].selection.rows
    if rows and ways[rows[0]].answer is not None:
        actions.take(best_way.keys(ways[rows[0]]))


def _limits(answer: Estimate) -> None:
    if answer.gpu is None:
        st.info("Choose a GPU to see how far this setup can go.")
        return
    around = headroom_map.around(answer)
    setup = answer.setup
    st.html(headroom_map.map_html(answer))
    current = setup.batch.per_device_train_batch_size, setup.batch.max_length
    figure = headroom_map.headroom_map(
        around.batches, around.lengths, around.headroom, current, dark=drawing.is_dark()
    )
    words = headroom_map.map_alt(around.batches, around.lengths, around.headroom)
    drawing.plot(figure, "map", words, on_pick=_take_cell)


def _take_cell(cell: tuple[int, int]) -> None:
    batch, length = cell
    actions.take({"per_device_train_batch_size": int(batch), "max_length": int(length)})


def _gpus(answer: Estimate) -> None:
    rows, _ = which_gpu.every_gpu(answer)
    st.html(f'<p class="hr-text">{which_gpu.gpus_head(rows)}</p>')
    table = [which_gpu.gpu_row(row) for row in rows]
    gib = st.column_config.NumberColumn(format="%.1f GiB")
    hours = st.column_config.NumberColumn(format="%.1f h")
    dollars = st.column_config.NumberColumn(format="dollar")
    st.dataframe(
        table,
        key="gpus",
        hide_index=True,
        placeholder="–",
        height=560,
        on_select=lambda: _take_gpu([row.gpu.name for row in rows if row.gpu]),
        selection_mode="single-row",
        column_config={
            "Usable": gib,
            "Headroom": gib,
            "Hours, fast": hours,
            "Hours, slow": hours,
            "Dollars, low": dollars,
            "Dollars, high": dollars,
        },
        alt="Every GPU of the catalogue with its verdict and headroom for this setup",
    )


def _take_gpu(names: list[str]) -> None:
    rows = st.session_state["gpus"].selection.rows
    if rows and names[rows[0]] in catalog.gpus():
        actions.take({"gpu": names[rows[0]]})


def _many(answer: Estimate) -> None:
    curves = more_gpus.on_more_gpus(answer)
    st.html(more_gpus.head_html(curves, answer))
    figure = more_gpus.curves_figure(curves, answer, dark=drawing.is_dark())
    drawing.plot(figure, "many", more_gpus.alt(curves), on_pick=partial(_take_count, answer.setup))
    st.html(
        more_gpus.table_html(curves, answer)
        + more_gpus.refusals_html(curves)
        + more_gpus.ranks_html(ranks(answer))
    )


def _where(answer: Estimate) -> None:
    placed = layer_placement.over_devices(answer)
    if isinstance(placed, str):
        _where_with_tower(answer, placed)
        return
    left_over = why_left_on_the_cpu(placed.model, placed.gpu, placed.setup)
    st.html(layer_placement.head_html(placed, answer, left_over))
    drawing.plot(
        layer_placement.figure(placed, dark=drawing.is_dark()),
        "where",
        layer_placement.alt(placed),
    )
    st.html(layer_placement.table_html(placed))
    if placed is not answer and left_over is None:
        keys = sharing(answer.setup.mesh, Strategy.DEVICE_MAP, placed.setup.mesh.num_gpus)
        st.button("Train over this device map", on_click=actions.take, args=(keys,), key="take map")


def _where_with_tower(answer: Estimate, refused: str) -> None:
    """Placement alone, where a step over the map is refused."""
    placed = layer_placement.with_tower(answer)
    if placed is None or isinstance(placed, str):
        st.info(markup.plain(placed or refused))
        return
    st.html(layer_placement.tower_head_html(placed, refused))
    drawing.plot(
        layer_placement.tower_figure(placed, answer.gpu, dark=drawing.is_dark()),
        "where",
        layer_placement.tower_alt(placed),
    )
    st.html(layer_placement.tower_table_html(placed))


def _take_count(setup: TrainingSetup, point: tuple[int, str, int]) -> None:
    number, strategy, groups = point
    actions.take(sharing(setup.mesh, Strategy(strategy), int(number), int(groups)))


def _time(answer: Estimate) -> None:
    rows, best = which_gpu.every_gpu(answer)
    st.html(time_and_money.time_html(answer, best.fastest, best.cheapest))
    _own_step(answer)
    fitting = [row for row in rows if row.verdict is Verdict.FITS]
    front = pareto(fitting)
    if not front:
        return
    st.html(time_and_money.pareto_html(front))
    figure = time_and_money.cost_against_time(fitting, front, answer, dark=drawing.is_dark())
    drawing.plot(figure, "cost", time_and_money.pareto_alt(front))


def _share(answer: Estimate) -> None:
    with st.spinner("Trying every share."):
        found = vllm_share.of(answer)
    st.html(vllm_share.head_html(found, answer))
    st.html(vllm_share.legend_html(found))
    figure = vllm_share.figure(found, answer, dark=drawing.is_dark())
    drawing.plot(figure, "share", vllm_share.alt(found), on_pick=_take_share)
    if found.advised is not None:
        keys = {"vllm_gpu_memory_utilization": found.advised}
        label = f"Set it to {found.advised:.2f}"
        st.button(label, on_click=actions.take, args=(keys,), key="take share")
    st.dataframe(
        vllm_share.rows(found, answer),
        key="shares",
        hide_index=True,
        alt="Shares of the GPU for vLLM with verdict, need, rows at once and seconds of a step",
    )


def _take_share(share: float) -> None:
    actions.take({"vllm_gpu_memory_utilization": float(share)})


def _own_step(answer: Estimate) -> None:
    """Input for a measured step, which narrows the seconds of every setup on that machine."""
    if answer.time is None or not answer.can_run:
        return
    said = st.text_input(
        "A step of this setup took, on your machine",
        placeholder="1.25, 1.25s/it, or Trainer's line with train_samples_per_second",
        help="Seconds of one optimizer step. They narrow the range for every other setup on that machine, and travel "
        "in the link.",
        max_chars=1000,
        key="own step",
    )
    if said and said != st.session_state.get("taken step"):
        try:
            keys = own_step(answer, said)
        except ValueError as problem:
            st.warning(markup.plain(str(problem)))
        else:
            st.session_state["taken step"] = said
            actions.take(keys)
    if answer.setup.run.pace is not None:
        st.html(f'<p class="hr-text">{escape(time_and_money.own_step_line(answer))}</p>')
        st.button("Forget this step", on_click=_forget_step, key="forget step")


def _forget_step() -> None:
    st.session_state["own step"] = st.session_state["taken step"] = ""
    actions.put({"pace": None, "pace_from": None, "pace_shares": None})


def _saving(answer: Estimate) -> None:
    st.html(saving.stages_html(answer, stages(answer)))
    speed = st.number_input(
        "Disk write speed, GB/s",
        0.05,
        100.0,
        1.0,
        0.5,
        key="disk speed",
        persist_state="session",
        help="A SATA SSD writes about 0.5 GB/s, an NVMe SSD 1 to 5, a network disk often 0.1 to 1.",
        width=320,
    )
    kept = kept_logits_bytes(answer.model, answer.setup, 1)
    st.html(saving.saving_html(answer, kept, speed))


def _computed(answer: Estimate) -> None:
    there: Mapping[str, Component | None] = {
        part.label: component
        for component, part in theme.COMPONENTS.items()
        if answer.peak.resident.get(component)
    } | {theme.RESERVE.label: None}
    chosen = st.segmented_control(
        "Component",
        list(there),
        default=next(iter(there)),
        required=True,
        key="explained",
        label_visibility="collapsed",
    )
    if chosen not in there:  # the part that was open is now empty
        chosen = next(iter(there))
    told = explain(answer, there[chosen])
    lead = (
        f"{told.lead} {saving.download(answer)}"
        if there[chosen] is Component.WEIGHTS
        else told.lead
    )
    st.html(f'<p class="hr-text">{lead}</p>{explanation.terms_html(told.terms, chosen)}')
    if there[chosen] is Component.ACTIVATIONS:
        st.html(explanation.terms_html(kept_terms(answer), "What one layer keeps"))
    st.html('<h2 class="hr-head">The code that computed it</h2>')
    for function in told.functions:
        st.markdown(explanation.docstring(function))
        st.code(explanation.source(function), language="python")


def _own_files(answer: Estimate, own: configs.OwnRun) -> None:
    known = {**models.known(), **models.in_use()}
    try:
        change = take_away.own_files(answer, own.files, own.found, known)
    except ValueError as problem:
        st.info(markup.plain(str(problem)))
        return
    st.html(
        f'<p class="hr-text">{escape(take_away.own_lead(answer, change, own.found, known))}</p>'
    )
    if change.diff:
        st.code(change.diff, language="diff")
    for name, text in change.files.items():
        st.download_button(
            f"Download {name}",
            text,
            name if "." in name else "changed.txt",
            "text/plain",
            on_click="ignore",
            key=f"take own {name}",
        )


def _take_away(answer: Estimate) -> None:
    own = configs.current()
    labels = ({take_away.OWN: ""} if own else {}) | take_away.tools()
    key, state = "own to take away" if own else "tool to take away", st.session_state
    if not state.get(f"{key} chosen"):
        state[key] = take_away.OWN if own else take_away.first_tool(answer)
    chosen = st.segmented_control(
        "Tool",
        list(labels),
        required=True,
        key=key,
        label_visibility="collapsed",
        on_change=lambda: state.update({f"{key} chosen": True}),
    )
    assert chosen is not None  # one is always chosen
    if own is not None and chosen == take_away.OWN:
        _own_files(answer, own)
        return
    try:
        away = take_away.files(answer, labels[chosen])
    except ValueError as problem:
        st.info(markup.plain(str(problem)))
        return
    st.html(f'<p class="hr-text">{take_away.NOTE}</p>')
    st.code(away.command, language="bash")
    if rehearsal := take_away.rehearsal(answer, away):
        st.html(f'<p class="hr-text">{take_away.REHEARSE}</p>')
        st.code(rehearsal, language="bash")
    tabs = st.tabs(list(away.files))
    for tab, (name, text) in zip(tabs, away.files.items(), strict=True):
        with tab:
            st.code(text, language=take_away.language(name), height=420)
            st.download_button(
                f"Download {name}", text, name, "text/plain", on_click="ignore", key=f"take {name}"
            )
    st.download_button(
        "Download all (zip)",
        away.archive(),
        "headroom.zip",
        "application/zip",
        on_click="ignore",
        key="take all",
    )


FIRST: Mapping[str, Callable[[Estimate], None]] = {
    parts.WHY: _why,
    parts.WHAT_ELSE: _gpus,
    parts.TIME: _time,
    parts.TAKE_AWAY: _take_away,
}
"""What each part begins with."""
UNFOLDING: Mapping[str, Callable[[Estimate], None]] = {
    "How computed": _computed,
    "Where the layers sit": _where,
    "How many GPUs": _many,
    "Best way": _best,
    "How far": _limits,
    parts.VLLM: _share,
    "Saving and loading": _saving,
}
"""What unfolds in the parts, by label."""

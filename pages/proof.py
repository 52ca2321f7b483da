"""Accuracy: every measured reading and every traced step beside its estimate."""

from collections.abc import Sequence

import streamlit as st

from dashboard.accuracy import calibration_figure, evidence
from dashboard.site import router
from dashboard.widgets import drawing
from dashboard.widgets.drawing import is_dark
from estimator import Comparison, accuracy, calibration, calibration_in_fp8, catalog, replays

GIB = st.column_config.NumberColumn(format="%.2f GiB")
SOURCE = st.column_config.LinkColumn(display_text="source")
COLUMNS = {
    "Measured": GIB,
    "Estimated": GIB,
    "Estimated need": GIB,
    evidence.PLAYED["allocated"]: GIB,
    evidence.PLAYED["least"]: GIB,
    "Holds": GIB,
    "Open": st.column_config.LinkColumn(display_text="open the setup"),
    "Source": SOURCE,
}


def chart(comparisons: Sequence[Comparison], key: str, *, by_method: bool = False) -> None:
    """A figure, and what is known of the point that was clicked."""
    state, picked = st.session_state, f"{key} picked"
    drawing.plot(
        evidence.figure(comparisons, dark=is_dark(), by_method=by_method),
        key,
        evidence.figure_alt(comparisons),
        on_pick=lambda point: state.update({picked: point}),
    )
    by_key = {evidence.key(comparison): comparison for comparison in comparisons}
    if picked in state and state[picked] in by_key:
        st.html(evidence.picked_html(by_key[state[picked]]))


def table(comparisons: Sequence[Comparison], what: str) -> None:
    """Every reading, worst first."""
    st.dataframe(
        [evidence.row(one) for one in evidence.worst_first(comparisons)],
        hide_index=True,
        placeholder="–",
        column_config=COLUMNS,
        alt=f"{what} with their estimates and errors, worst first",
    )


router.route()
st.title("Accuracy")
measured, traced = accuracy.stored_measured(), accuracy.stored_traced()
st.html(evidence.summary_html(accuracy.summaries((*measured, *traced))))
with st.container(horizontal=True, key="narrow"):
    chosen = {
        facet: st.multiselect(
            facet,
            evidence.choices(facet, (*measured, *traced)),
            placeholder="All",
            select_all=False,  # which Enter would take before the first match
        )
        for facet in evidence.FACETS
    }
measured_shown = evidence.narrowed(measured, chosen)
traced_shown = evidence.narrowed(traced, chosen)
refused = evidence.refused(measured_shown)
left, right = st.columns(2)
with left:
    st.header(f"Measured on GPUs: {len(measured_shown)} readings", anchor=False)
    chart(measured_shown, "measured")
with right:
    st.header(f"Traced without a GPU: {len(traced_shown)} steps", anchor=False)
    chart(traced_shown, "traced", by_method=True)
of_measured, of_traced, of_played, of_refused, of_left_out, of_ran = st.tabs(
    [
        "Measured, worst first",
        "Traced, worst first",
        "Played on PyTorch's allocator, worst first",
        f"Refused: {len(refused)}",
        "Left out",
        "Ran, though estimated not to fit",
    ]
)
with of_measured:
    table(measured_shown, "Measured readings")
with of_played:
    played = replays.stored()
    st.html(evidence.played_html(replays.spreads(played), len(played)))
    st.dataframe(
        [evidence.played_row(run) for run in sorted(played, key=lambda run: -run.worst)],
        hide_index=True,
        column_config=COLUMNS,
        alt="Runs played on PyTorch's own allocator, with the errors of ours, worst first",
    )
with of_refused:
    st.dataframe(
        [evidence.refused_row(one) for one in refused],
        hide_index=True,
        placeholder="–",
        column_config=COLUMNS,
        alt="Measured readings of setups that the estimator refuses, with its reason",
    )
with of_left_out:
    st.html(evidence.left_out_html(catalog.left_out()))
st.header("Need, and what nvidia-smi shows", anchor=False)
st.html(evidence.need_html(accuracy.agreement(evidence.CAPACITIES), accuracy.beyond_allocated()))
with of_traced:
    table(traced_shown, "Traced steps")
with of_ran:
    published = accuracy.stored_published()
    ran = accuracy.overestimated()
    st.html(evidence.overestimated_html(ran, len(published)))
    st.dataframe(
        [evidence.overestimated_row(one) for one in ran],
        hide_index=True,
        placeholder="–",
        column_config=COLUMNS,
        alt="Published runs that ran, although their estimate does not fit, and what they had",
    )
st.header("Seconds of a step, and published speeds", anchor=False)
with st.spinner("Timing the published runs, once."):
    found = calibration()
st.html(evidence.speeds_head(found, calibration_in_fp8()))
drawing.plot(
    calibration_figure.figure(found, dark=is_dark()), "calibration", calibration_figure.alt(found)
)
st.html(f'<p class="hr-small">{calibration_figure.CAPTION}</p>')
st.html(evidence.speeds_html(found))

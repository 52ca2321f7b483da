"""What a rehearsal of this setup found, on a page that its link opened (`headroom rehearse`)."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard.address import links
from dashboard.words import markup, units
from estimator import Estimate, contract


def draw(answer: Estimate) -> None:
    """The rehearsal beside the estimate, as long as the page shows the setup that was rehearsed."""
    text = st.query_params.get(contract.REHEARSED)
    if text is None:
        return
    try:
        peaks = contract.read_rehearsal(text, links.query(answer))
    except ValueError as problem:
        st.warning(markup.plain(str(problem)), icon=":material/link_off:")
        return
    if peaks is not None:
        st.html(f'<p class="hr-text">{escape(sentence(peaks, answer))}</p>')


def sentence(peaks: contract.RehearsedPeaks, answer: Estimate) -> str:
    """Both peaks, and the least memory for PyTorch of both."""
    said = contract.write_estimate(answer)
    parts = [
        ("allocated at the peak", peaks.allocated, said["allocated_bytes"]),
        ("the least that PyTorch needs", peaks.least, said["least_bytes"]),
    ]
    both = [
        f"{units.gib(here)} {what}"
        + (f" (estimated {units.gib(there)})" if isinstance(there, int) else "")
        for what, here, there in parts
        if here is not None
    ]
    evaluates = answer.setup.run.eval_strategy != "no"
    ends = " A rehearsal ends before it evaluates, which the estimate includes." * evaluates
    return f"Rehearsed with your script: {', '.join(both)}.{ends}"

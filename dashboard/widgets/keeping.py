"""Buttons that add a setup to the comparison, copy its link, or present it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial

import streamlit as st

from dashboard.figures import share_card
from dashboard.state import comparison
from dashboard.words import markup
from estimator import Estimate


def draw(answer: Callable[[], Estimate | str]) -> None:
    """Draws buttons that add this setup to the comparison, copy its link, and present it."""
    with st.container(horizontal=True, key="keeping", gap="small"):
        if st.button("Keep for comparison", key="keep"):
            _ask_for_name(answer())
        copy_button()
        present_button(1)
        _picture(answer())
    say_problems()


@dataclass(slots=True)
class OnScreen:
    """The answer that a visitor sees: a download reads it here, since the thread that makes a file has no session."""

    answer: Estimate | str


def follow(answer: Estimate | str) -> None:
    """Records the answer that the page now shows, or the sentence that refuses it."""
    _on_screen(answer).answer = answer


def _on_screen(answer: Estimate | str) -> OnScreen:
    seen: OnScreen = st.session_state.setdefault("on screen", OnScreen(answer))
    return seen


def _picture(answer: Estimate | str) -> None:
    """Offers a self-contained picture of this setup."""
    seen, link = _on_screen(answer), (st.context.url or "").partition("?")[0]
    with st.popover(
        "Picture", key="picture", help="One picture to share: verdict, bars, hours and dollars."
    ):
        for kind, mime in (("PNG", "image/png"), ("SVG", "image/svg+xml")):
            st.download_button(
                f"Save as {kind}",
                partial(_drawn, seen, kind, link),
                f"headroom.{kind.lower()}",
                mime,
                on_click="ignore",
                key=f"picture {kind}",
            )


def _drawn(seen: OnScreen, kind: str, link: str) -> bytes | str:
    """The picture of what is on screen; ``ValueError`` for a refusal, which has none."""
    if isinstance(seen.answer, str):
        raise ValueError(seen.answer)
    draw = share_card.png if kind == "PNG" else share_card.svg
    return draw(seen.answer, date.today().isoformat(), link)


def say_problems() -> None:
    """Reports the parts of a link or file that were dropped."""
    for problem in comparison.problems():
        st.warning(markup.plain(problem), icon=":material/link_off:")


@st.dialog("Keep for comparison")
def _ask_for_name(of: Estimate | str) -> None:
    if isinstance(of, str):
        st.write(of.replace("[", "\\["))
        return
    proposed = comparison.proposed_name(of)
    name = st.text_input("Name", proposed, max_chars=60, key=f"name {len(comparison.scenarios())}")
    if st.button("Keep", type="primary", key="keep it"):
        if refusal := comparison.add(name, of):
            st.error(refusal.replace("[", "\\["))
        else:
            st.rerun()


def present_button(at: int) -> None:
    """A button that enters presentation mode."""
    st.button(
        "Present",
        on_click=comparison.turn,
        kwargs={"present": at},
        key="present",
        help="Large type and few controls, for a projector. Esc leaves it.",
    )


def leave_button() -> None:
    """A button that leaves presentation mode."""
    st.button(
        "Leave", on_click=comparison.turn, kwargs={"present": None}, shortcut="Escape", key="leave"
    )


COPY = """<button id="hr-copy" type="button" class="hr-copy">Copy the link</button>
<script data-of="headroom">
(() => {
  const button = document.getElementById("hr-copy");
  button.onclick = async () => {
    const link = window.location.href;
    try { await navigator.clipboard.writeText(link); }
    catch { const box = document.createElement("textarea"); box.value = link; document.body.append(box);
            box.select(); document.execCommand("copy"); box.remove(); }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy the link"; }, 2000);
  };
})();
</script>"""
"""Copies the browser's own URL, which contains everything. No visitor's text is inserted into the script."""


def copy_button() -> None:
    """A button that copies the URL."""
    st.html(COPY, width="content", unsafe_allow_javascript=True)

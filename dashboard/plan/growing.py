"""What the page shows while the setups of a question are computed: how far it is, and the best of them so far."""

from __future__ import annotations

import time
from collections.abc import Callable

from streamlit.delta_generator import DeltaGenerator

from dashboard.plan import filters, words
from estimator import Candidates, Pick, Question, pick

SAID = "Computing every setup."
EVERY_SECONDS, EVERY_SHARE = 0.5, 0.2
"""Between two answers from what is computed: ours, at most five, each of a tenth of a second."""


class Growing:
    """Follows the progress of ``candidates``: under the button, and over the answer with what is best so far."""

    def __init__(
        self, question: Question, under_the_button: DeltaGenerator, over_the_answer: DeltaGenerator
    ) -> None:
        self._question = question
        self._places = under_the_button, over_the_answer
        self._begun: tuple[tuple[DeltaGenerator, ...], DeltaGenerator] | None = None
        self._last = time.monotonic(), 0.0

    def __call__(self, share: float, so_far: Callable[[], Candidates]) -> None:
        """The share that is done, and the setups that are computed."""
        if self._begun is None:
            button, answer = self._places
            above = answer.container()
            self._begun = (button, above.empty()), above.empty()
        bars, panel = self._begun
        for bar in bars:
            bar.progress(share, SAID)
        at, last = self._last
        if share - last >= EVERY_SHARE and time.monotonic() - at >= EVERY_SECONDS:
            found = so_far()
            if len(found):
                best, each = picks(found, self._question)
                panel.html(words.growing_html(best, each))
            self._last = time.monotonic(), share

    def end(self) -> None:
        """The answer stands."""
        if self._begun is not None:
            for place in self._places:
                place.empty()


def picks(
    found: Candidates, question: Question, kept: filters.Filters | None = None
) -> tuple[Pick, list[tuple[str, Pick]]]:
    """What to take of those that pass the filters, and with each method by its name."""
    mask = (kept or filters.Filters()).mask(found)
    each = [
        (name, pick(found, question, mask & filters.Filters((name,)).mask(found)))
        for name in filters.choices(found)[0]
    ]
    return pick(found, question, mask), each

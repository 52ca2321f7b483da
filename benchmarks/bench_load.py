"""Fifty people who each let a slider go once a second, beside a bare page in the same run.

    python benchmarks/bench_load.py [--visitors 50] [--seconds 180] [--rate 1]

Each visitor is a websocket that speaks Streamlit's protocol: it opens the page on a setup of its own, one of five
kinds, and then moves the slider Micro-batch or Context, so that no answer was computed for another. It asks for nothing
below the figure, as a browser does only when that is looked at or the visitor pauses. Printed are, for our page and for
``floor_page.py``:

- figure: from sending a value until the figure has arrived (median, 95th percentile, milliseconds);
- answer: from sending a value to the end of the script run that answers it (the same);
- CPU: of the server process for each move (milliseconds), whatever else the machine does, in the second half of the
  time, when nobody opens the page;
- opened: how long a newcomer's first run takes in the first half (milliseconds);
- memory: of the server before the visitors, with them, and after they have left (MB);
- errors: connections that broke or answered with an exception.

Linux only (``/proc``). Prints; judges nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.typing import Origin, Subprotocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_slider import serve  # run as a script, the package is beside its folder

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
FIGURES = ("bidi_component", "plotly_chart")
"""Elements that are figures; a move redraws no other of these kinds."""
QUIET = 0.005
"""Seconds without a message after which everything has been read."""
PATIENCE = 120.0
"""Seconds after which an answer counts as an error."""
PAGES = (
    ("ours", "serve.py", ("per_device_train_batch_size", "max_length")),
    ("bare", "benchmarks/floor_page.py", ("batch",)),
)
"""A page, its script, and the keys of its sliders."""
KINDS = (
    {"model": "mistralai/Mistral-7B-v0.1", "gpu": "A100-SXM4-80GB"},
    {"model": "Qwen/Qwen3-8B", "gpu": "L40S", "method": "lora"},
    {"model": "meta-llama/Llama-3.1-8B", "gpu": "RTX 4090", "method": "qlora"},
    {"model": "Qwen/Qwen2.5-3B", "gpu": "L4", "method": "lora", "objective": "dpo"},
    {"model": "Qwen/Qwen3-4B", "gpu": "A100-SXM4-40GB", "num_gpus": 4, "strategy": "fsdp"},
)
"""What visitors have; each with a context and a number of examples that no other has."""


def query(number: int) -> str:
    """The setup of a visitor as a link's query.

    >>> query(0)
    'model=mistralai%2FMistral-7B-v0.1&gpu=A100-SXM4-80GB&max_length=1000&num_train_examples=10000'
    """
    own = {"max_length": 1000 + 16 * number, "num_train_examples": 10_000 + number}
    return urlencode({**KINDS[number % len(KINDS)], **own})


@dataclass
class Load:
    """What the visitors of one page saw."""

    figures: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    errors: int = 0


@dataclass
class ServedSlider:
    """A slider as the server describes it."""

    id: str = ""
    fragment: str = ""
    value: float = 0
    low: float = 0
    high: float = 0
    options: Sequence[str] = ()
    """Of a slider over words; its value is then one of these."""


class Visitor:
    """One open page."""

    def __init__(
        self, socket: websockets.ClientConnection, keys: Sequence[str], number: int, load: Load
    ) -> None:
        self._socket = socket
        self._key = keys[number // len(KINDS) % len(keys)]
        self._query = query(number) if len(keys) > 1 else ""
        self._load = load
        self.slider = ServedSlider()
        self._sent_at = self._figure_at = 0.0

    async def run(self, message: BackMsg) -> float:
        """Send a message and read until its run has ended; returns the milliseconds.

        What runs after that, such as parts that follow a figure, is read before the next message.
        """
        while await self._next(QUIET):
            pass
        self._sent_at = time.perf_counter()
        await self._socket.send(message.SerializeToString())
        while await self._next(PATIENCE) != "script_finished" or not self.slider.id:
            pass
        return (time.perf_counter() - self._sent_at) * 1000

    async def _next(self, seconds: float) -> str:
        """The kind of the next message; empty if none comes in that time and only a short while is given."""
        try:
            raw = await asyncio.wait_for(self._socket.recv(), seconds)
        except TimeoutError:
            if seconds == PATIENCE:
                raise
            return ""
        assert isinstance(raw, bytes)
        said = ForwardMsg()
        said.ParseFromString(raw)
        self._read(said)
        if said.script_finished == ForwardMsg.FINISHED_EARLY_FOR_RERUN:
            return "goes on"
        return str(said.WhichOneof("type"))

    def _read(self, said: ForwardMsg) -> None:
        if said.WhichOneof("type") != "delta" or said.delta.WhichOneof("type") != "new_element":
            return
        element = said.delta.new_element
        if element.WhichOneof("type") == "exception":
            self._load.errors += 1
        if element.WhichOneof("type") in FIGURES:
            self._figure_at = time.perf_counter()
        if element.WhichOneof("type") == "slider" and element.slider.id.endswith(f"-{self._key}"):
            found = element.slider
            if not self.slider.id:
                self.slider.value = found.default[0]
            self.slider.id, self.slider.fragment = found.id, said.delta.fragment_id
            self.slider.low, self.slider.high = found.min, found.max
            self.slider.options = list(found.options)

    async def open(self) -> float:
        """The page's first run."""
        message = BackMsg()
        message.rerun_script.query_string = self._query
        return await self.run(message)

    async def move(self) -> float:
        """The slider's next value."""
        slider, message = self.slider, BackMsg()
        slider.value = slider.value + 1 if slider.value < slider.high else slider.low
        state = message.rerun_script.widget_states.widgets.add()
        state.id = slider.id
        if slider.options:
            state.string_array_value.data.append(slider.options[int(slider.value)])
        else:
            state.double_array_value.data.append(slider.value)
        if slider.fragment:
            message.rerun_script.fragment_id = slider.fragment
        took = await self.run(message)
        self._load.figures.append((self._figure_at - self._sent_at) * 1000)
        return took


async def visit(
    url: str, keys: Sequence[str], number: int, load: Load, *, moves: int, rate: float
) -> None:
    """Open the page as one of many, and let a slider go ``rate`` times a second."""
    address = url.replace("http", "ws", 1) + "/_stcore/stream"
    try:
        async with websockets.connect(
            address, max_size=None, origin=Origin(url), subprotocols=[Subprotocol("streamlit")]
        ) as socket:
            visitor = Visitor(socket, keys, number, load)
            load.opened.append(await visitor.open())
            await asyncio.sleep(random.random() / rate)
            for _ in range(moves):
                took = await visitor.move()
                load.answers.append(took)
                await asyncio.sleep(max(0.0, 1 / rate - took / 1000))
    except (OSError, TimeoutError, websockets.WebSocketException):
        load.errors += 1


def cpu_seconds(process: int) -> float:
    """CPU time of a process so far, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def child() -> int:
    """The server, the only process that this one has started."""
    me = os.getpid()
    return int(Path(f"/proc/{me}/task/{me}/children").read_text(encoding="utf-8").split()[-1])


def megabytes(process: int) -> float:
    """Resident memory of a process, in MB."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


async def measured(
    name: str, url: str, process: int, keys: Sequence[str], asked: argparse.Namespace
) -> str:
    """One page under load, as a line of the table."""
    alone = Load()
    come = itertools.count()
    for number in itertools.islice(come, 2 * len(KINDS)):  # each kind, with either slider
        await visit(url, keys, number, alone, moves=2, rate=5)
    before, begun, opens = megabytes(process), time.perf_counter(), True
    load, newcomers = Load(), Load()
    moves = int(asked.seconds * asked.rate)
    visitors = [
        asyncio.create_task(visit(url, keys, number, load, moves=moves, rate=asked.rate))
        for number in itertools.islice(come, asked.visitors)
    ]
    while opens:
        await asyncio.sleep(2)
        await visit(url, keys, next(come), newcomers, moves=0, rate=1)
        opens = time.perf_counter() - begun < asked.seconds / 2
    cpu, earlier = cpu_seconds(process), len(load.answers)
    await asyncio.gather(*visitors)
    during = megabytes(process)
    spent = (cpu_seconds(process) - cpu) / max(1, len(load.answers) - earlier)
    await asyncio.sleep(3)
    return (
        f"{name:6}{len(load.answers):7}{at(load.figures, 50):9.0f}{at(load.figures, 95):7.0f}"
        f"{at(load.answers, 50):9.0f}{at(load.answers, 95):7.0f}{1000 * spent:8.1f}"
        f"{at(newcomers.opened, 50):9.0f}{before:8.0f}{during:6.0f}{megabytes(process):6.0f}"
        f"{load.errors + newcomers.errors:8}"
    )


def at(times: Sequence[float], percent: int) -> float:
    """A percentile; 0 of nothing."""
    return statistics.quantiles(times, n=100)[percent - 1] if len(times) > 1 else sum(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--visitors", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--rate", type=float, default=1.0)
    asked = parser.parse_args()
    print(f"{asked.visitors} visitors, {asked.rate:g} moves a second each, {asked.seconds:g} s\n")
    print(
        "page    moves   figure    p95   answer    p95 CPU/move  opened  memory (before, with, after)  errors"
    )
    for name, script, keys in PAGES:
        with serve(script) as url:
            print(asyncio.run(measured(name, url, child(), keys, asked)), flush=True)


if __name__ == "__main__":
    main()

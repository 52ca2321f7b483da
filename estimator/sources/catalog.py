"""The shipped facts: the only module that reads ``data/``.

Models and accelerators by name, and measurements, in the order of their files. An unknown name is refused with similar
names; nothing is guessed.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from difflib import SequenceMatcher
from fractions import Fraction
from functools import lru_cache
from math import inf, log
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from estimator.families.model_tree import total_parameters
from estimator.families.reader import MOST_LAYERS
from estimator.families.registry import check_modelled
from estimator.families.towers import with_towers
from estimator.families.vision_family import with_vision
from estimator.sources.own_tables import NAMED_BY, filled, own_rows, with_own, wrong_files
from estimator.sources.quantization_config import quantization_of
from estimator.values.quantization import Quantization
from estimator.values.refusals import InputError
from estimator.values.specs import (
    COUNTS,
    HOST_RATES,
    RATES,
    STEP_PHASES,
    DeltaNet,
    Gpu,
    Machine,
    Model,
    Phase,
    Price,
    StateSpace,
)

_PACKAGE = Path(__file__).resolve().parent.parent
DATA = next(folder for folder in (_PACKAGE / "data", _PACKAGE.parent / "data") if folder.is_dir())
"""The tables: inside the installed package, else next to it in the repository."""

ALIKE = 0.7
"""Similarity from which a spelling is suggested: 1 is equal, 0 has nothing in common."""

MIG_PERCENT_LEFT: Mapping[Fraction, int] = MappingProxyType(
    {Fraction(1, 8): 86, Fraction(1, 4): 92, Fraction(1, 2): 97}
)
"""Memory of a MIG slice without a reading, in percent of its share of the card's memory, by that share. Not above any
reading in data/mig.csv (0.869, 0.923 and 0.993)."""

ABOUT_AS_LARGE = 0.1
"""Tolerance of a search by size, as a share of it: "7b" finds 7.6 billion."""

COUNTERS = ("allocated", "reserved", "device")
"""Byte counters: allocated and reserved by torch's allocator; the driver's total over all processes."""
MOMENTS = ("before", "after_load", *(phase.value for phase in STEP_PHASES), "peak")
"""When a counter was read: before and after loading the model, its maximum in each phase of a step, and over all."""

LAYER_LETTERS = {
    "c": "conv",
    "e": "moe",
    "f": "full_attention",
    "l": "linear_attention",
    "m": "mlp",
    "s": "sliding_attention",
}
MLP_LETTERS = {"d": "dense", "s": "sparse"}
ROPE_LETTERS = {"r": False, "n": True}
ABOUT = frozenset({"hub_id", "source", "retrieved"})
"""Columns that identify a row and its source."""


SomeRow = TypeVar("SomeRow", Model, Gpu, Price)

_gpu_of: Callable[..., Gpu] = Gpu
_changed: Callable[..., Gpu] = replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefault:
    """One row of ``data/tool_defaults.csv``: the default of a key."""

    tool: str
    """The package on PyPI."""
    version: str
    key: str
    value: Any
    file: str
    """Path in the wheel."""
    line: int

    @property
    def source(self) -> str:
        """Package, version, file and line."""
        return f"{self.tool} {self.version}, {self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """One row of ``data/models.csv``."""

    model: Model
    family: str
    published_parameters: int | None
    """Elements that the Hub counts in the repository; None: no exact count is published."""
    published_extra: int
    """Elements of the published count that are not trained: stored buffers, second copies, towers."""
    published_extra_is: str
    license: str
    gated: str
    """``yes``, ``no`` or ``unknown``."""
    source: str

    @property
    def hub_id(self) -> str:
        """Its repository on the Hub."""
        return self.model.hub_id

    @property
    def parameters(self) -> int:
        """Our own count, in elements."""
        return _parameters(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row of ``data/measurements.csv``: readings of one setup on a real GPU."""

    id: str
    setup: str
    """The setup as JSON, an object of the contract including its GPU."""
    gpu: str
    """The card's name according to its driver."""
    outcome: str
    """``measured`` or ``out_of_memory``."""
    measured: str
    """The steps that were read, and how."""
    readings: Mapping[str, Mapping[str, int]]
    """Bytes, by counter and moment; without those that were not read."""
    total_parameters: int | None
    trainable_parameters: int | None
    versions: str
    source: str
    retrieved: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One row of ``data/traced.csv``: one step of the real libraries, its tensors counted without a GPU."""

    id: str
    model_name: str
    setup: str
    """The setup as JSON, an object of the contract including its GPU."""
    peak_bytes: int
    phases: Mapping[Phase, int]
    """The peak of each phase of the step, in bytes."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRun:
    """One row of ``data/played.csv``: a run on PyTorch's own allocator without a GPU (bytes)."""

    id: str
    setup: str
    """The setup as JSON, an object of the contract including its GPU."""
    allocated_bytes: int
    reserved_bytes: int
    least_bytes: int
    """The least memory of a card on which the run goes through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """One row of ``data/out_of_memory.csv``: the figures of one of PyTorch's out-of-memory messages (bytes)."""

    gpu: str
    several_gpus: bool
    capacity_bytes: int
    process_bytes: int
    """GPU memory of the process, all libraries together."""
    allocated_bytes: int
    unallocated_bytes: int
    """Reserved by PyTorch but unallocated."""
    tried_bytes: int
    source: str

    @property
    def outside_bytes(self) -> int:
        """Bytes outside PyTorch's allocator: context, kernels, other libraries."""
        return self.process_bytes - self.allocated_bytes - self.unallocated_bytes


@lru_cache(maxsize=1)
def models() -> Mapping[str, CatalogModel]:
    """Every catalogued model by its Hub id (counts in elements).

    Source: data/models.csv, by row.

    >>> models()["openai-community/gpt2"].published_parameters
    137022720
    """
    rows = _rows("models.csv")
    return MappingProxyType({row["hub_id"]: _catalog_model(row) for row in rows})


@lru_cache(maxsize=1)
def gpus() -> Mapping[str, Gpu]:
    """Every catalogued accelerator by name (memory in bytes).

    Source: data/gpus.csv, by row.

    >>> gpus()["A100-SXM4-80GB"].memory_bytes < 80 * 2**30
    True
    """
    return MappingProxyType({row["name"]: _gpu(row) for row in _rows("gpus.csv")})


@lru_cache(maxsize=1)
def tool_defaults() -> Mapping[tuple[str, str], ToolDefault]:
    """Defaults of the training tools, by package and ``class.key``.

    Source: data/tool_defaults.csv, by row; ``benchmarks/tool_defaults.py`` reads it out of the wheels.

    >>> tool_defaults()["trl", "SFTConfig.max_length"].value
    1024
    """
    rows = _rows("tool_defaults.csv")
    return MappingProxyType({(row["tool"], row["key"]): _tool_default(row) for row in rows})


def _tool_default(row: Mapping[str, str]) -> ToolDefault:
    return ToolDefault(
        tool=row["tool"],
        version=row["version"],
        key=row["key"],
        value=json.loads(row["default"]),
        file=row["file"],
        line=int(row["line"]),
    )


@lru_cache(maxsize=1)
def tool_versions() -> Mapping[str, str]:
    """The version of each package whose defaults were read, by package.

    Source: data/tool_defaults.csv.

    >>> sorted(tool_versions())[:3]
    ['accelerate', 'axolotl', 'llamafactory']
    """
    return MappingProxyType({default.tool: default.version for default in tool_defaults().values()})


def gpus_like(gpu: Gpu | None) -> list[Gpu]:
    """Alternatives to a GPU, and itself: its vendor's accelerators that are rented out or in one's own table, or all
    if none is; NVIDIA's if no GPU is given or its vendor is unknown.

    Source: data/gpus.csv and data/prices.csv.

    >>> [card.name for card in gpus_like(gpus()["Instinct MI210"])][:2]
    ['Instinct MI210', 'Instinct MI300X']
    """
    vendor = gpu.vendor if gpu is not None and gpu.vendor else "NVIDIA"
    cards = [card for card in gpus().values() if card.vendor == vendor]
    named = {row.get("name", "") for row in own_rows("gpus.csv")}
    if gpu is not None:
        named.add(gpu.name)
    rented = any(card.prices for card in cards)
    return [card for card in cards if card.prices or card.name in named or not rented]


@lru_cache(maxsize=1)
def slices() -> Mapping[str, Gpu]:
    """Every MIG slice by its card's name and the profile name that torch reports (memory in bytes).

        memory     read, else share of the card's · 86 to 97 %
        speed      rates · share of the SMs; bandwidth · share of the memory
        price      the card's divided by its slices, if it is rented singly; power likewise

    Leaves out: interference between slices of one card.

    Error: none if the SMs were read; else the guide's sevenths, up to 18 % too many (an eighth of an H100
        has 16 of its 132 SMs) and 27 % too few (1g.20gb has 26).
    Source: data/mig.csv, by row.

    >>> slices()["A100-SXM4-80GB MIG 3g.40gb"].bf16_dense_tflops
    121.33
    """
    return MappingProxyType(
        {part.name: part for part in (_slice(gpus()[row["gpu"]], row) for row in _rows("mig.csv"))}
    )


UNBOUND = ("on demand", "marketplace")
"""Commitments of listings that bind nobody and that are not taken back; others are taken where they are asked for."""


@lru_cache(maxsize=1)
def prices() -> Mapping[str, tuple[Price, ...]]:
    """Rental prices of each GPU by its name that bind nobody, the cheapest first (US dollars per GPU-hour).

    Source: data/prices.csv, by row whose commitment is one of ``UNBOUND``.

    >>> prices()["A10G"][0].provider
    'AWS'
    """
    unbound = {
        name: tuple(price for price in known if price.commitment in UNBOUND)
        for name, known in listings().items()
    }
    return MappingProxyType({name: known for name, known in unbound.items() if known})


@lru_cache(maxsize=1)
def listings() -> Mapping[str, tuple[Price, ...]]:
    """All rental prices of each GPU by its name, the cheapest first (US dollars per GPU-hour): reserved and spot too.

    Source: data/prices.csv, by row.

    >>> sorted({it.commitment for it in listings()["A100-PCIe-80GB"]})
    ['on demand', 'reserved', 'spot']
    """
    return by_gpu(_rows("prices.csv"))


def by_gpu(rows: Iterable[Mapping[str, str]]) -> Mapping[str, tuple[Price, ...]]:
    """Rows of a table of prices as listings of each GPU by its name, the cheapest first (US dollars per GPU-hour).

    Source: data/README.md, prices.csv.

    >>> by_gpu([{"gpu": "L4", "provider": "ours", "usd_per_gpu_hour": "0.5"}])["L4"][0].min_gpus
    1
    """
    found: dict[str, list[Price]] = {}
    for row in rows:
        found.setdefault(row["gpu"], []).append(_price(row))
    return MappingProxyType(
        {
            name: tuple(sorted(known, key=lambda price: (price.usd_per_gpu_hour, price.provider)))
            for name, known in found.items()
        }
    )


class RuleOfThumb(NamedTuple):
    """Advice on memory that people follow."""

    advice: str
    says_gb: float
    """10⁹ bytes of one GPU."""
    setup: Mapping[str, object]
    """An object of the contract that the advice is about."""
    source: str
    retrieved: str
    note: str


@lru_cache(maxsize=1)
def rules_of_thumb() -> tuple[RuleOfThumb, ...]:
    """Advice that people follow, in the order of the table (GB, 10⁹ bytes).

    Source: data/rules_of_thumb.csv, by row.

    >>> rules_of_thumb()[0].says_gb
    3.5
    """
    return tuple(
        RuleOfThumb(
            advice=row["advice"],
            says_gb=float(row["says_gb"]),
            setup=json.loads(row["setup"]),
            source=row["source"],
            retrieved=row["retrieved"],
            note=row["note"],
        )
        for row in _rows("rules_of_thumb.csv")
    )


@lru_cache(maxsize=1)
def machines() -> Mapping[str, tuple[Machine, ...]]:
    """Machines with each GPU by its name, the slowest network per GPU first (10⁹ bits a second).

    Source: data/machines.csv, by row.

    >>> [machine.network_gbit_per_s for machine in machines()["A100-SXM4-80GB"]]
    [100.0, 400.0, 1600.0]
    """
    known: dict[str, list[Machine]] = {}
    for row in _rows("machines.csv"):
        known.setdefault(row["gpu"], []).append(
            Machine(
                name=row["machine"],
                gpus=int(row["gpus"]),
                network_gbit_per_s=float(row["network_gbit_per_s"]),
                note=row["note"],
                source=row["source"],
            )
        )
    return MappingProxyType(
        {
            name: tuple(sorted(them, key=lambda machine: machine.network_gbit_per_s / machine.gpus))
            for name, them in known.items()
        }
    )


def published_speeds() -> list[dict[str, str]]:
    """Published training speeds, a mapping a row, as ``estimator.proof.accuracy`` reads them (tokens per second and
    GPU).

    Source: data/throughput.csv, by row.

    >>> len(published_speeds()) > 250
    True
    """
    return _rows("throughput.csv")


def measurements(table: Path = DATA / "measurements.csv") -> tuple[Measurement, ...]:
    """Every reading of a real GPU (memory in bytes), from the shipped table or one with the same columns.

    Source: data/measurements.csv, by row.

    >>> {row.outcome for row in measurements()} <= {"measured", "out_of_memory"}
    True
    """
    return tuple(_measurement(row) for row in _rows(table))


def played() -> tuple[PlayedRun, ...]:
    """Every run on PyTorch's own allocator without a GPU (bytes).

    Source: data/played.csv, by row.

    >>> all(row.allocated_bytes < row.least_bytes <= row.reserved_bytes for row in played())
    True
    """
    return tuple(
        PlayedRun(
            id=row["id"],
            setup=row["setup"],
            allocated_bytes=int(row["allocated_bytes"]),
            reserved_bytes=int(row["reserved_bytes"]),
            least_bytes=int(row["least_bytes"]),
        )
        for row in _rows("played.csv")
    )


def left_out() -> list[dict[str, str]]:
    """Published readings left out of ``measurements``, each with the reason, one mapping per row (as published).

    Source: data/left_out.csv, by row.

    >>> all(row["reason"] for row in left_out())
    True
    """
    return _rows("left_out.csv")


def estimated() -> list[dict[str, str]]:
    """What the estimates of measured, traced and published runs come to, one mapping per row (memory in bytes).

    Source: data/estimated.csv, which ``make docs`` computes.

    >>> all(row["refusal"] or int(row["estimated_bytes"]) for row in estimated())
    True
    """
    return _rows("estimated.csv")


def replayed() -> list[dict[str, str]]:
    """What the runs of ``played`` come to on our own allocator, one mapping per row (bytes).

    Source: data/replayed.csv, which ``make docs`` computes.

    >>> {row["id"] for row in replayed()} == {row.id for row in played()}
    True
    """
    return _rows("replayed.csv")


def has_own_rows() -> bool:
    """Whether ``HEADROOM_DATA`` names tables with rows of one's own (source: that folder)."""
    return any(map(own_rows, NAMED_BY))


def traced_steps() -> tuple[TracedStep, ...]:
    """Every traced step (memory in bytes).

    Source: data/traced.csv, by row.

    >>> max(step.peak_bytes for step in traced_steps()) > 2**36
    True
    """
    return tuple(
        TracedStep(
            id=row["id"],
            model_name=row["model_name"],
            setup=row["setup"],
            peak_bytes=int(row["peak_bytes"]),
            phases={phase: int(row[f"{phase}_bytes"]) for phase in STEP_PHASES},
            source=row["source"],
        )
        for row in _rows("traced.csv")
    )


def out_of_memory() -> tuple[OutOfMemory, ...]:
    """Figures of out-of-memory messages on context and allocator (memory in bytes).

    Source: data/out_of_memory.csv, by row.

    >>> min(message.outside_bytes for message in out_of_memory()) > 0
    True
    """
    return tuple(
        OutOfMemory(
            gpu=row["gpu"],
            several_gpus=_flag(row["several_gpus"]),
            **{
                name: int(row[name])
                for name in (
                    "capacity_bytes",
                    "process_bytes",
                    "allocated_bytes",
                    "unallocated_bytes",
                    "tried_bytes",
                )
            },
            source=row["source"],
        )
        for row in _rows("out_of_memory.csv")
    )


def model(hub_id: str) -> Model:
    """The catalogued model of this Hub id or address; upper and lower case do not matter.

    Source: data/models.csv.

    >>> model("meta-llama/llama-3.1-8b").num_hidden_layers
    32
    """
    return models()[_found("model", as_hub_id(hub_id), models())].model


def as_hub_id(asked: str) -> str:
    """The Hub id in the user's input, without the Hub's address or a page's path around it.

    Source: https://huggingface.co's addresses, owner/name/tree/revision.

    >>> as_hub_id(" https://huggingface.co/Qwen/Qwen2.5-7B/blob/main/config.json ")
    'Qwen/Qwen2.5-7B'
    """
    text = asked.strip()[:1000]
    address = re.fullmatch(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/+([^?#]*).*", text)
    return "/".join(address[1].strip("/").split("/")[:2]) if address else text


def model_in_folder(path: str) -> str | None:
    """The id of the catalogued model that a folder is named after, as ``git clone`` names it; None if there is none.

    Source: data/models.csv; of two owners' equal names the first.

    >>> model_in_folder("/data/models/qwen2.5-7B-Instruct/"), model_in_folder("../output/checkpoint-500")
    ('Qwen/Qwen2.5-7B-Instruct', None)
    """
    name = re.split(r"[/\\]", path.rstrip("/\\"))[-1].casefold()
    return next((hub_id for hub_id in models() if _last_part(hub_id) == name), None)


def _last_part(hub_id: str) -> str:
    return hub_id.rpartition("/")[2].casefold()


def gpu(name: str) -> Gpu:
    """The accelerator or MIG slice that a name means: its own name, its driver's, or any that matches one card only.

    Named by a cloud's machine type, it has that machine's prices alone.

    Source: data/gpus.csv, data/mig.csv, data/instances.csv and data/machines.csv.

    >>> gpu("l4").nameplate_gb, gpu("4090").name, gpu("NVIDIA H100 80GB HBM3").name
    (24.0, 'GeForce RTX 4090', 'H100-SXM5-80GB')
    >>> [(it.provider, it.usd_per_gpu_hour) for it in gpu("p5.48xlarge").prices]
    [('AWS', 6.88)]
    """
    if name in gpus():
        return gpus()[name]
    known = {**gpus(), **slices()}
    found = find_gpus(name)
    if len(found) == 1:
        return _of_a_cloud(known[found[0]], _instances().get(_split(name).name))
    if found:
        shown = ", ".join(found[:MOST_NAMED]) + ", …" * (len(found) > MOST_NAMED)
        raise InputError(f"GPU {name[:100]!r} may be {shown}; name one of them.")
    raise InputError(_unknown("GPU", name, gpus(), gpus_near(name)))


def _of_a_cloud(card: Gpu, machine: _Instance | None) -> Gpu:
    if machine is None or not machine.provider:
        return card
    return replace(card, instance=machine.name, prices=of_machine(card.prices, machine))


def listings_of(gpu: Gpu) -> tuple[Price, ...]:
    """All listings of a GPU, reserved and spot too; of a cloud's machine type, that machine's (US dollars).

    Source: data/prices.csv, by row.

    >>> {it.provider for it in listings_of(gpu("p4d.24xlarge"))}
    {'AWS'}
    """
    known = listings().get(gpu.name, gpu.prices)
    return (
        of_machine(known, _instances()[_as_instance(gpu.instance.casefold())])
        if gpu.instance
        else known
    )


def of_machine(prices: Iterable[Price], machine: _Instance) -> tuple[Price, ...]:
    """The listings of a machine's own provider, without those of its other machines."""
    name = _as_instance(machine.name.casefold())
    return tuple(
        price
        for price in prices
        if price.provider.casefold() == machine.provider.casefold()
        and _as_instance(price.instance.casefold()) in ("", name)
    )


MOST_NAMED = 8
"""Maximum cards listed in a sentence. Our choice."""
_OF_THE_MAKER = frozenset(
    {"nvidia", "amd", "intel", "tesla", "graphics", "generation", "edition", "gpu", "mig"}
)
"""Words that users and drivers may add to a card's name."""
_LEFT_OUT = frozenset({"geforce", "rtx", "gtx", "radeon", "rx", "instinct", "arc", "apple", "gb10"})
"""Words of a card's name that users may leave out: lines of products that share no number, and a DGX Spark's chip."""
_MOUNTS_AND_SIZES = re.compile(r"pcie|sxm\d?|nvl|\d+gb")
"""Words that users may leave out as well: a name with several of them means several cards."""
_SAME = {"mobile": "laptop"}
"""Words for the same thing."""
_JOINED = (
    (r"(geforce|quadro|rtx|gtx|rx|gaudi|super|pcie|sxm\d?|nvl)", r" \1 "),
    (r"(?<![a-z\d.])mi[ -](?=\d)", "mi"),
    (r"(?<![a-z\d.])(\d{4})s(?![a-z\d])", r"\1 super"),
    (r"(?<![a-z\d.])(\d{4})m(?![a-z\d])", r"\1 laptop"),
    (r"(?<![a-z\d.])(\d{4})(?=[a-z])", r"\1 "),
    (r"(?<![a-z\d.])(ti|m\d)(?=\d|max|pro|ultra)", r"\1 "),
    (r"([a-z])(?=\d+gb)", r"\1 "),
    (r"(?<![a-z\d.])(\d+) ?g(?:i?b)?(?![a-z\d.])", r"\1gb"),
)
"""How words are written together: "RTX4060Ti16G" is "rtx", "4060", "ti" and "16gb"; "4070S" is Vast.ai's 4070 SUPER."""


def find_gpus(text: str) -> tuple[str, ...]:
    """Names of the accelerators and MIG slices that a text may mean, in the order of the files; a single one is a
    match.

    A name matches if it has every word of the text, regardless of case, order and maker, and the text every word of
    the name but its line of products, mounting and memory: "4060" is no 4060 Ti, and "A100 40GB" matches two cards. A
    cloud's name for a machine means the card in it. ``gpus_meant`` gives their number, as in "4x H100" or "H100:4".

    Source: data/gpus.csv, data/mig.csv, data/instances.csv and data/machines.csv, by row.

    >>> find_gpus("A100 40GB")
    ('A100-PCIe-40GB', 'A100-SXM4-40GB')
    >>> find_gpus("8x H100 SXM"), find_gpus("p4de.24xlarge"), find_gpus("A30 MIG 1g.6gb")
    (('H100-SXM5-80GB',), ('A100-SXM4-80GB',), ('A30 MIG 1g.6gb',))
    """
    asked = _split(text).name
    if asked in _gpu_names():
        return _gpu_names()[asked]
    words = _gpu_words(asked)
    return tuple(name for name, gpu in _words_of_gpus().items() if gpu.needed <= words <= gpu.all)


def gpus_near(text: str) -> tuple[str, ...]:
    """Names that are near one that means no accelerator, best first: those with all its words and more, else those
    spelled similarly.

    Source: derived.

    >>> gpus_near("RTX PRO 4000")
    ('RTX PRO 4000 Blackwell', 'RTX PRO 4000 Blackwell SFF')
    """
    words = _gpu_words(_split(text).name)
    longer = [name for name in gpus() if words and words <= _words_of_gpus()[name].all]
    if longer:
        return tuple(longer)
    return tuple(
        _spelled_like(" ".join(words), gpus()) or _spelled_like(text.casefold(), _instances())
    )


class GpusMeant(NamedTuple):
    """How many accelerators a name means (counts)."""

    number: int
    of_a_machine: int | None
    """Accelerators in one machine, if the name is a cloud's machine type."""


def gpus_meant(text: str) -> GpusMeant | None:
    """How many accelerators a name means: its own number, a machine's, or their product; None: no number given.

    Source: data/instances.csv and data/machines.csv, by row; "4x H100" is common usage, "H100:4" is SkyPilot's and
    Slurm's notation.

    >>> gpus_meant("4x A100-80GB").number, gpus_meant("H100:8").number, gpus_meant("RTX 4090")
    (4, 8, None)
    >>> gpus_meant("2x p4d.24xlarge")
    GpusMeant(number=16, of_a_machine=8)
    """
    times, asked = _split(text)
    machine = _instances().get(asked)
    if times is None and machine is None:
        return None
    of_a_machine = machine.gpus if machine else None
    return GpusMeant((times or 1) * (of_a_machine or 1), of_a_machine)


class _Asked(NamedTuple):
    times: int | None
    name: str


def _split(text: str) -> _Asked:
    """The number in a name, and the name as in the tables."""
    asked = text.strip()[:100].casefold()
    for pattern in (
        r"(?P<times>[0-9]{1,3}) ?[x×*] ?(?P<name>.+)",
        r"(?P<times>[0-9]{1,2}) (?P<name>[a-z].+)",
        r"(?P<name>.+?)(?: ?:| [x×*]) ?(?P<times>[0-9]{1,3})",
    ):
        found = re.fullmatch(pattern, asked)
        if found and int(found["times"]):
            return _Asked(int(found["times"]), _as_instance(found["name"]))
    return _Asked(None, _as_instance(asked))


def _as_instance(name: str) -> str:
    """Normalises Azure's names, which may have ``Standard_``, spaces or underscores."""
    return name.removeprefix("standard_").replace("_", " ").strip()


class _Instance(NamedTuple):
    name: str
    gpu: str
    gpus: int
    provider: str
    """Empty: sold, not rented out (a DGX)."""


@lru_cache(maxsize=1)
def _instances() -> Mapping[str, _Instance]:
    """Machine types by name, in lower case."""
    named = []
    for gpu, those in machines().items():
        for machine in those:
            name, _, provider = machine.name.partition(" (")
            named.append(_Instance(name, gpu, machine.gpus, provider.removesuffix(")")))
    named += [
        _Instance(row["instance"], row["gpu"], int(row["gpus"]), row["provider"])
        for row in _rows("instances.csv")
    ]
    return {_as_instance(instance.name.casefold()): instance for instance in named}


@lru_cache(maxsize=1)
def _gpu_names() -> Mapping[str, tuple[str, ...]]:
    """What each full name means, in lower case: catalogue, driver and cloud machine names."""
    names: dict[str, list[str]] = {}
    for card in (*gpus().values(), *slices().values()):
        for name in {_as_instance(card.name.casefold()), _as_instance(card.device_name.casefold())}:
            names.setdefault(name, []).append(card.name)
    for name, machine in _instances().items():
        names.setdefault(name, []).append(machine.gpu)
    names.pop("", None)
    return {
        name: (those[0],) if name == those[0].casefold() else tuple(those)
        for name, those in names.items()
    }


def cards_with(memory_bytes: int, text: str = "") -> list[Gpu]:
    """NVIDIA's cards with this memory, the nearest first, those that a text names before all others (bytes).

    Source: data/gpus.csv.

    >>> [card.name for card in cards_with(25_400_000_000, "on my rtx 3090 it dies")][:1]
    ['GeForce RTX 3090']
    """
    said = _gpu_words(re.sub(r"(?<!\S)\d{1,3} ?[x×*] ?", " ", text))  # 2x3090

    def rank(card: Gpu) -> tuple[bool, int]:
        is_named = _words_of_gpus()[card.name].needed <= said
        return not is_named, abs(card.memory_bytes - memory_bytes)

    alike = (
        card
        for card in gpus().values()
        if card.vendor == "NVIDIA" and card.has_memory(memory_bytes)
    )
    return sorted(alike, key=rank)


class _Words(NamedTuple):
    needed: frozenset[str]
    """Words without which a name means another product."""
    all: frozenset[str]


@lru_cache(maxsize=1)
def _words_of_gpus() -> Mapping[str, _Words]:
    """The words of each card and slice."""
    cards = {name: _words_of(card) for name, card in gpus().items()}
    parts = {
        name: _Words(*(those | _gpu_words(name.rsplit(" ", 1)[1]) for those in cards[part.like]))
        for name, part in slices().items()
    }
    return {**cards, **parts}


def _words_of(card: Gpu) -> _Words:
    """A card's words; what stands in brackets after its name is none of the product's."""
    written = _gpu_words(f"{card.name} {card.device_name} {card.nameplate_gb:g}GB")
    mounts = {"sxm" for word in written if word.startswith("sxm")}
    named = _gpu_words(card.name.split(" (")[0])
    needed = frozenset(word for word in named if not _MOUNTS_AND_SIZES.fullmatch(word))
    product = needed - _LEFT_OUT
    is_line = len(product) == 1 and min(product).isalpha()  # a Titan is one of several
    return _Words(needed if is_line else product, written | mounts)


def _gpu_words(name: str) -> frozenset[str]:
    """The words of a card's name, without its maker's: "RTX4090" is two words, "80 GB" one."""
    text = name.casefold()
    for joined, apart in _JOINED:
        text = re.sub(joined, apart, text)
    words = re.findall(r"[a-z0-9.]+", text)
    return frozenset(_SAME.get(word, word) for word in words) - _OF_THE_MAKER


def search(text: str, most: int = 20) -> tuple[CatalogModel, ...]:
    """Models that match every word of a text, by name, family or size (``7b``, ``500M``), best first.

    A word matches a name or family with a word that starts with it; a size also matches parameter counts within a
    tenth. If no model matches every word, those with similarly spelled names. An empty text returns the first of the
    file.

    Source: data/models.csv.

    >>> [entry.hub_id for entry in search("qwen 7b")][:2]
    ['Qwen/Qwen1.5-7B', 'Qwen/Qwen2-7B']
    """
    words = re.findall(r"[a-z0-9.]+", text[:100].casefold())
    if not words:
        return tuple(models().values())[:most]
    scores = {name: _fit(words, entry) for name, entry in models().items()}
    asked = text.strip().casefold()
    fitting = sorted(
        (name for name in scores if scores[name]),
        key=lambda name: (name.casefold() != asked, -scores[name]),
    )
    if fitting:
        return tuple(models()[name] for name in fitting[:most])
    return tuple(models()[name] for name in _spelled_like(text[:100].casefold(), models(), most))


def _fit(words: Sequence[str], entry: CatalogModel) -> float:
    """How well every word matches; 0 if one does not. Full words of the name count most, sizes by count least."""
    of_name = _words(entry.hub_id)
    of_both = of_name | _words(entry.family)
    fits = []
    for word in words:
        if word in of_name:
            fits.append(1.0)
        elif word in of_both or any(one.startswith(word) for one in of_both):
            fits.append(0.8)
        elif any(word in one for one in of_both if len(word) > 2):
            fits.append(0.6)
        elif (size := _size(word)) and abs(entry.parameters / size - 1) <= ABOUT_AS_LARGE:
            fits.append(0.4)
        else:
            return 0.0
    return sum(fits) / len(fits)


def _words(name: str) -> set[str]:
    """The words of a name: its runs of letters, digits and dots, and the runs of only letters or digits within them.

    >>> sorted(_words("Qwen2.5-7B"))
    ['2.5', '7b', 'qwen', 'qwen2.5']
    """
    runs = re.findall(r"[a-z0-9.]+", name.casefold())
    parts = (re.fullmatch(r"([a-z]+)([0-9][0-9.]*)", run) for run in runs)
    return {*runs, *(part for found in parts if found for part in found.groups())}


@lru_cache(maxsize=1024)
def _parameters(model: Model) -> int:
    return total_parameters(model)


def _size(word: str) -> float:
    """The parameters that a word such as ``7b`` or ``350m`` means; 0: none."""
    found = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)(b|m)", word)
    return float(found[1]) * {"b": 10**9, "m": 10**6}[found[2]] if found else 0.0


def nearest(dimensions: Mapping[str, int]) -> CatalogModel:
    """The catalogued model whose dimensions are nearest, by the sum of the logarithms of their ratios.

    Dimensions are counts by the names of ``Model`` (``hidden_size``, ``num_hidden_layers``, …), or ``parameters``.

    Source: derived: a model twice as wide is as far off as one half as wide.

    >>> nearest({"hidden_size": 4000, "num_hidden_layers": 32, "vocab_size": 32000}).hub_id
    'meta-llama/Llama-2-7b-hf'
    """
    return min(models().values(), key=lambda entry: _distance(entry, dimensions))


def _distance(entry: CatalogModel, dimensions: Mapping[str, int]) -> float:
    total = 0.0
    for name, asked in dimensions.items():
        size = entry.parameters if name == "parameters" else getattr(entry.model, name)
        total += abs(log(asked / size)) if asked > 0 and size > 0 else inf
    return total


def _found(kind: str, name: str, known: Mapping[str, object]) -> str:
    """The known name that differs only in case; else ``InputError`` with similar names."""
    if name in known:
        return name
    by_case = {key.casefold(): key for key in known}
    if name.casefold() in by_case:
        return by_case[name.casefold()]
    raise InputError(_unknown(kind, name, known, _spelled_like(name.casefold(), known)))


def _unknown(kind: str, name: str, known: Mapping[str, object], near: Sequence[str]) -> str:
    if not near:
        hint = f"the catalogue has {len(known)}"
    else:
        hint = f"similar names: {', '.join(near[:MOST_NAMED])}" + ", …" * (len(near) > MOST_NAMED)
    return f"{kind} {name!r} is not in the catalogue; {hint}; choose one of those."


def _spelled_like(name: str, known: Iterable[str], most: int = 4) -> list[str]:
    """Known names of similarly spelled words, best first."""
    by_case = {key.casefold(): key for key in known}
    return [by_case[key] for key in _near(name, by_case, most)]


def _near(name: str, known: Mapping[str, str], most: int) -> list[str]:
    """Names with similarly spelled words, best first, and the shorter first among equals."""
    words = re.findall("[a-z0-9.]+", name[:100])
    scores = {key: _likeness(words, key) for key in known}
    best = sorted(known, key=lambda key: (-scores[key], len(key)))
    return [key for key in best[:most] if scores[key] >= ALIKE]


def _likeness(words: Sequence[str], key: str) -> float:
    """From 0 to 1: how well the words match those of ``key``, on average."""
    found = re.findall("[a-z0-9.]+", key)
    best = [max(SequenceMatcher(None, word, other).ratio() for other in found) for word in words]
    return sum(best) / len(best) if best else 0.0


def _rows(table: str | Path) -> list[dict[str, str]]:
    shipped = _shipped(table)
    return with_own(table, shipped, _blank(table)) if isinstance(table, str) else shipped


def _shipped(table: str | Path) -> list[dict[str, str]]:
    with (DATA / table).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _blank(table: str) -> Mapping[str, str]:
    """What an empty cell of one's own tables means."""
    if table == "models.csv":
        return _BLANK_MODEL
    return {"is_old": "false", "memory_is_derived": "false", "nameplate_gb": "0", "min_gpus": "1"}


_BLANK_MODEL: Mapping[str, str] = MappingProxyType(
    {
        field.name: json.dumps(field.default)
        for field in fields(Model)
        if type(field.default) in (bool, int, float)
    }
    | {"published_extra_parameters": "0", "gated": "unknown", "parallel_residual": "false"}
)


@lru_cache(maxsize=1)
def wrong_tables() -> tuple[str, ...]:
    """What is wrong with one's own tables (``HEADROOM_DATA``), in a sentence a row; empty if nothing is.

    Source: derived; every row is read once, as the catalogue reads it.
    """
    shipped = {table: _shipped(table) for table in NAMED_BY}
    wrong = list(wrong_files({table: rows[0] for table, rows in shipped.items()}))
    if wrong:
        return tuple(wrong)
    cards = {row["name"] for table in (shipped["gpus.csv"], own_rows("gpus.csv")) for row in table}
    for table, by in NAMED_BY.items():
        for number, own in enumerate(own_rows(table), 2):
            row = filled(own, shipped[table][0], _blank(table))
            try:
                if not row[by]:
                    raise InputError(f"{by} is empty; fill it in.")
                if table == "prices.csv" and row["gpu"] not in cards:
                    raise InputError(_unknown_card(row["gpu"], cards))
                _check_cells(table, row)
            except ValueError as problem:
                wrong.append(f"{table}, line {number} ({row[by]}): {problem}")
    return tuple(wrong)


def _unknown_card(name: str, cards: Iterable[str]) -> str:
    near = _spelled_like(name.casefold(), cards)
    hint = f"similar names: {', '.join(near)}" if near else "the catalogue has no such card"
    return f"gpu {name} is unknown; {hint}; correct it, or add its row to gpus.csv."


def _check_cells(table: str, row: Mapping[str, str]) -> None:
    """Reads a row; ``ValueError`` names the first cell that cannot be read."""
    if table == "models.csv":
        check_modelled(row["model_type"])
        model = _cell_by_cell(_model, row)
        if not 0 < model.num_hidden_layers <= MOST_LAYERS:
            raise InputError(f"num_hidden_layers must be from 1 to {MOST_LAYERS}.")
        total_parameters(model)
    elif table == "gpus.csv":
        _cell_by_cell(_gpu, row)
    else:
        price = _cell_by_cell(_price, row)
        if not 0 < price.usd_per_gpu_hour < inf:
            raise InputError("usd_per_gpu_hour must be above 0.")
        try:
            date.fromisoformat(price.date)
        except ValueError:
            raise InputError(f"date {price.date!r} is no day; write it as 2026-10-04.") from None


def _cell_by_cell(read: Callable[[Mapping[str, str]], SomeRow], row: Mapping[str, str]) -> SomeRow:
    """What a row is read as; ``InputError`` names the cell at which that fails."""
    last = [""]

    class Followed(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            last[0] = name
            return super().__getitem__(name)

    try:
        return read(Followed(row))
    except InputError:
        raise
    except (ValueError, AssertionError, KeyError):
        cell = row.get(last[0], "")
        said = f"{cell!r} cannot be read" if cell else "it is empty"
        raise InputError(f"{last[0]}: {said}; write it as data/README.md says.") from None


def _catalog_model(row: Mapping[str, str]) -> CatalogModel:
    return CatalogModel(
        model=_model(row),
        family=row["family"],
        published_parameters=_count(row["published_parameters"]),
        published_extra=int(row["published_extra_parameters"]),
        published_extra_is=row["published_extra_is"],
        license=row["license"],
        gated=row["gated"],
        source=row["source"],
    )


def _model(row: Mapping[str, str]) -> Model:
    model = Model(
        hub_id=row["hub_id"],
        model_type=row["model_type"],
        vocab_size=int(row["vocab_size"]),
        hidden_size=int(row["hidden_size"]),
        intermediate_size=int(row["intermediate_size"]),
        num_hidden_layers=int(row["num_hidden_layers"]),
        num_attention_heads=int(row["num_attention_heads"]),
        num_key_value_heads=int(row["num_key_value_heads"]),
        head_dim=int(row["head_dim"]),
        tie_word_embeddings=_flag(row["tie_word_embeddings"]),
        max_position_embeddings=int(row["max_position_embeddings"]),
        hidden_act=row["hidden_act"],
        attention_bias=_flag(row["attention_bias"]),
        attention_output_bias=_flag(row["attention_output_bias"]),
        mlp_bias=_flag(row["mlp_bias"]),
        lm_head_bias=_flag(row["lm_head_bias"]),
        qk_norm=_flag(row["qk_norm"]),
        learned_positions=int(row["learned_positions"]),
        word_embed_proj_dim=int(row["word_embed_proj_dim"]),
        do_layer_norm_before=_flag(row["do_layer_norm_before"]),
        partial_rotary_factor=float(row["partial_rotary_factor"]),
        sliding_window=int(row["sliding_window"]),
        layer_types=tuple(LAYER_LETTERS[letter] for letter in row["layer_types"]),
        no_rope_layers=tuple(ROPE_LETTERS[letter] for letter in row["no_rope_layers"]),
        parallel_residual=_flag(row["parallel_residual"]),
        new_decoder_architecture=_flag(row["new_decoder_architecture"]),
        num_ln_in_parallel_attn=int(row["num_ln_in_parallel_attn"]),
        norms_without_weight=_flag(row["norms_without_weight"]),
        attn_logit_softcapping=_flag(row["attn_logit_softcapping"]),
        final_logit_softcapping=_flag(row["final_logit_softcapping"]),
        embd_pdrop=float(row["embd_pdrop"]),
        attn_pdrop=float(row["attn_pdrop"]),
        resid_pdrop=float(row["resid_pdrop"]),
        num_experts=int(row["num_experts"]),
        num_experts_per_tok=int(row["num_experts_per_tok"]),
        moe_intermediate_size=int(row["moe_intermediate_size"]),
        shared_expert_intermediate_size=int(row["shared_expert_intermediate_size"]),
        norm_topk_prob=_flag(row["norm_topk_prob"]),
        mlp_layer_types=tuple(MLP_LETTERS[letter] for letter in row["mlp_layer_types"]),
        expert_groups=int(row["expert_groups"]),
        q_lora_rank=int(row["q_lora_rank"]),
        kv_lora_rank=int(row["kv_lora_rank"]),
        qk_nope_head_dim=int(row["qk_nope_head_dim"]),
        qk_rope_head_dim=int(row["qk_rope_head_dim"]),
        v_head_dim=int(row["v_head_dim"]),
        delta_net=_delta_nets().get(row["hub_id"]),
        state_space=_state_spaces().get(row["hub_id"]),
        quantization=(quantization := _stored_as().get(row["hub_id"])),
        stored_width=2 if quantization else 0,  # unquantised tensors of these are bfloat16
        **_by_layer().get(row["hub_id"], {}),
    )
    config = _wrappers().get(row["hub_id"], {})
    return with_vision(with_towers(model, config), config)


@lru_cache(maxsize=1)
def _wrappers() -> Mapping[str, Mapping[str, object]]:
    """Configs of checkpoints with towers from data/towers.csv, by Hub id."""
    return {row["hub_id"]: _wrapper(row) for row in _rows("towers.csv")}


def _wrapper(row: Mapping[str, str]) -> Mapping[str, object]:
    audio: Mapping[str, object] | None = {} if row["audio_config"] == "true" else None
    return {
        **(json.loads(row["other_keys"]) if row["other_keys"] else {}),
        "model_type": row["model_type"],
        "text_config": {},
        "vision_config": json.loads(row["vision_config"]),
        "audio_config": audio,
    }


@lru_cache(maxsize=1)
def _delta_nets() -> Mapping[str, DeltaNet]:
    """The sizes of data/delta_nets.csv by Hub id."""
    return {row["hub_id"]: DeltaNet(**_sizes(row)) for row in _rows("delta_nets.csv")}


@lru_cache(maxsize=1)
def _state_spaces() -> Mapping[str, StateSpace]:
    """The sizes of data/state_spaces.csv by Hub id."""
    return {row["hub_id"]: StateSpace(**_sizes(row)) for row in _rows("state_spaces.csv")}


@lru_cache(maxsize=1)
def _stored_as() -> Mapping[str, Quantization]:
    """How the quantised checkpoints of data/stored.csv are stored, by Hub id."""
    read = {
        row["hub_id"]: quantization_of(
            {"quantization_config": json.loads(row["quantization_config"])}
        )
        for row in _rows("stored.csv")
    }
    return {hub_id: found for hub_id, found in read.items() if found}


@lru_cache(maxsize=1)
def _by_layer() -> Mapping[str, Any]:
    """What else the models of data/layers.csv have: fields of ``Model`` by Hub id."""
    return {row["hub_id"]: _sizes(row) for row in _rows("layers.csv")}


def _sizes(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: _number_or_flag(cell) for name, cell in row.items() if name not in ABOUT}


def _number_or_flag(cell: str) -> int | bool:
    return int(cell) if cell.isdecimal() else _flag(cell)


def _gpu(row: Mapping[str, str]) -> Gpu:
    return _gpu_of(
        name=row["name"],
        memory_bytes=int(row["memory_bytes"]),
        memory_is_derived=_flag(row["memory_is_derived"]),
        nameplate_gb=float(row["nameplate_gb"]),
        vendor=row["vendor"],
        architecture=row["architecture"],
        compute_capability=row["compute_capability"],
        supports_bf16=_flag(row["supports_bf16"]),
        **{name: _number(row[name]) for name in RATES},
        **{name: _count(row[name]) for name in COUNTS},
        **{name: _number(row[name]) for name in HOST_RATES},
        source=row["source"],
        device_name=row["device_name"],
        prices=prices().get(row["name"], ()),
        machines=machines().get(row["name"], ()),
    )


def _slice(card: Gpu, row: Mapping[str, str]) -> Gpu:
    of_memory, of_sms, number = (
        Fraction(row["memory_share"]),
        Fraction(row["sm_share"]),
        int(row["instances"]),
    )
    share = {
        "memory_bandwidth_gb_per_s": of_memory,
        "tdp_w": Fraction(1, number),
        **dict.fromkeys((name for name in RATES if "tflops" in name), of_sms),
    }
    rates = {name: _part(getattr(card, name), share.get(name)) for name in RATES}
    read = _count(row["memory_bytes"])
    percent = of_memory * MIG_PERCENT_LEFT[of_memory]
    left = card.memory_bytes * percent.numerator // (100 * percent.denominator)
    return _changed(
        card,
        name=f"{card.name} MIG {row['profile']}",
        device_name=f"{card.device_name} MIG {row['profile']}" if card.device_name else "",
        like=card.name,
        slices=number,
        multiprocessors=None
        if card.multiprocessors is None
        else int(card.multiprocessors * of_sms),
        memory_bytes=left if read is None else read,
        memory_is_derived=read is None,
        nameplate_gb=0.0,
        source=row["source"],
        prices=tuple(
            replace(
                price,
                usd_per_gpu_hour=price.usd_per_gpu_hour / number,
                max_gpus=price.max_gpus and price.max_gpus * number,
            )
            for price in card.prices
            if price.min_gpus == 1
        ),
        machines=(),
        **rates,
    )


def _part(rate: float | None, share: Fraction | None) -> float | None:
    """A share of a rate, to 0.01; None: the slice has none of it, or it is unknown."""
    return None if rate is None or share is None else round(rate * float(share), 2)


def _price(row: Mapping[str, str]) -> Price:
    return Price(
        provider=row["provider"],
        usd_per_gpu_hour=float(row["usd_per_gpu_hour"]),
        min_gpus=int(row.get("min_gpus") or 1),
        max_gpus=int(row["max_gpus"]) if row.get("max_gpus") else None,
        instance=row.get("instance") or "",
        date=row.get("date") or "",
        region=row.get("region") or "",
        commitment=row.get("commitment") or UNBOUND[0],
        is_old=_flag(row.get("is_old") or "false"),
        note=row.get("note") or "",
        source=row.get("source") or "",
    )


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def _measurement(row: Mapping[str, str]) -> Measurement:
    cells = {
        counter: {moment: row[f"{counter}_{moment}_bytes"] for moment in MOMENTS}
        for counter in COUNTERS
    }
    return Measurement(
        id=row["id"],
        setup=row["setup"],
        gpu=row["gpu"],
        outcome=row["outcome"],
        measured=row["measured"],
        readings={
            counter: {moment: int(cell) for moment, cell in read.items() if cell}
            for counter, read in cells.items()
        },
        total_parameters=_count(row["total_parameters"]),
        trainable_parameters=_count(row["trainable_parameters"]),
        versions=row["versions"],
        source=row["source"],
        retrieved=row["retrieved"],
        note=row["note"],
    )


def _count(cell: str) -> int | None:
    return int(cell) if cell else None


def _flag(cell: str) -> bool:
    assert cell in {"true", "false"}, cell
    return cell == "true"

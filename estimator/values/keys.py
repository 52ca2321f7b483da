"""The keys of the JSON contract, collected from the facets that declare them.

The contract, links, command-line flags and the page's widgets all read this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimator.values.declaration import Key, rows
from estimator.values.kinds import Flag, Kind, Number, ShortText, WholeNumber
from estimator.values.setup import FACETS, READ_INTO_OTHERS, TrainingSetup
from estimator.values.specs import COUNTS, HOST_RATES, NETWORK, RATE_SPAN, RATES

DEFAULT = TrainingSetup()

GROUPS: Mapping[str, tuple[Key, ...]] = MappingProxyType(
    {
        title: (
            *(replace(row, facet=facet) for row in rows(of)),
            *READ_INTO_OTHERS.get(facet, ()),
        )
        for facet, (of, title) in FACETS.items()
    }
)
"""All keys except ``model`` and ``gpu``, grouped as the help lists them."""

KEYS: tuple[Key, ...] = tuple(key for group in GROUPS.values() for key in group)

BY_NAME: Mapping[str, Key] = MappingProxyType(
    {name: key for key in KEYS for name in (key.name, *key.aliases)}
)
"""Each key by its name and aliases."""

LARGEST: Mapping[str, int] = MappingProxyType(
    {key.name: key.kind.high for key in KEYS if isinstance(key.kind, WholeNumber)}
)
"""The maximum of each integer key. Our choice, far above any real run; the minimum is 1."""

SYNONYMS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (
            *("world_size", "num_processes", "nproc_per_node", "n_gpus", "n_gpu", "gpus"),
            *("devices", "dp_size", "dp_shard_size", "data_parallel_size", "dp"),
        ),
        "num_gpus",
    )
)
"""Other tools' names for a key that do not resemble ours, in ``plain`` spelling."""

GPU_KEYS: Mapping[str, Kind] = MappingProxyType(
    {
        "name": ShortText(),
        "memory_bytes": WholeNumber(10**15),
        "memory_is_derived": Flag(),
        "nameplate_gb": Number(1_000_000),
        "vendor": ShortText(),
        "architecture": ShortText(),
        "compute_capability": ShortText(),
        "supports_bf16": Flag(),
        **dict.fromkeys((*RATES, NETWORK), Number(RATE_SPAN[1], low=RATE_SPAN[0], nullable=True)),
        **dict.fromkeys(HOST_RATES, Number(RATE_SPAN[1], low=RATE_SPAN[0], nullable=True)),
        **{name: WholeNumber(most, nullable=True) for name, most in COUNTS.items()},
        "source": ShortText(),
    }
)
"""The keys of a custom GPU other than ``like``: the fields of ``Gpu`` that do not need the catalogue."""

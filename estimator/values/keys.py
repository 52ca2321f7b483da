"""The table of the JSON contract: one row a key, as the facets of a setup declare them.

Everything that knows a key reads it here: the contract, links, the flags of the command line and their help, and the
page's widgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimator.values.declaration import Key, rows
from estimator.values.kinds import Flag, Kind, Number, Text, WholeNumber
from estimator.values.setup import FACETS, READ_INTO_OTHERS, TrainingSetup
from estimator.values.specs import NETWORK, RATE_SPAN, RATES

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
"""The keys of a setup but ``model`` and ``gpu``, as the help lists them."""

KEYS: tuple[Key, ...] = tuple(key for group in GROUPS.values() for key in group)

BY_NAME: Mapping[str, Key] = MappingProxyType(
    {name: key for key in KEYS for name in (key.name, *key.aliases)}
)
"""Each key by its name and by its other names."""

LARGEST: Mapping[str, int] = MappingProxyType(
    {key.name: key.kind.high for key in KEYS if isinstance(key.kind, WholeNumber)}
)
"""The largest whole number that each count of a setup may be: ours, far above any run; the smallest is 1."""

SYNONYMS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (
            *("world_size", "num_processes", "nproc_per_node", "n_gpus", "n_gpu", "gpus"),
            *("devices", "dp_size", "dp_shard_size", "data_parallel_size", "dp"),
        ),
        "num_gpus",
    )
)
"""Keys that others use and that look like none here, in ``plain`` spelling."""

GPU_KEYS: Mapping[str, Kind] = MappingProxyType(
    {
        "name": Text(),
        "memory_bytes": WholeNumber(10**15),
        "memory_is_derived": Flag(),
        "nameplate_gb": Number(1_000_000),
        "vendor": Text(),
        "architecture": Text(),
        "compute_capability": Text(),
        "supports_bf16": Flag(),
        **dict.fromkeys((*RATES, NETWORK), Number(RATE_SPAN[1], low=RATE_SPAN[0], nullable=True)),
        "source": Text(),
    }
)
"""The keys of a GPU of one's own, beside ``like``: the fields of ``Gpu`` but what only the catalogue knows."""

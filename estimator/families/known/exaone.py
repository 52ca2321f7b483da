"""EXAONE 4: norms after attention and MLP, as in OLMo 2.

Source: transformers 5.23, models/exaone4, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families.config_class import ConfigClass, Why, WindowKeys
from estimator.families.config_keys import WINDOWS
from estimator.families.config_rules import fixed_biases, patterned
from estimator.families.family import NORMS_BESIDE, Family
from estimator.families.known.olmo import AFTER
from estimator.families.layer_kinds import FULL_ATTENTION, SLIDING
from estimator.families.layers import GATED_MLP, NORMED_ATTENTION, decoder_layer
from estimator.families.reader import MOST_LAYERS, Config


def _unlisted(read: Config, layers: int) -> tuple[str, ...]:
    """A pattern by letters, or every n-th layer sees everything."""
    pattern = read.values.get("sliding_window_pattern")
    if isinstance(pattern, str) and set(pattern) == {"L", "G"}:
        return tuple(
            SLIDING if pattern[layer % len(pattern)] == "L" else FULL_ATTENTION
            for layer in range(layers)
        )
    every = read.whole("sliding_window_pattern", default=4, most=MOST_LAYERS)
    return patterned(read, every, layers)


def _turned(read: Config, kinds: tuple[str, ...], window: int) -> tuple[bool, ...]:
    """``or self.is_sliding``, modeling_exaone4.py."""
    return tuple(kind == SLIDING for kind in kinds) if window else (True,)


FAMILIES = (
    Family(
        model_type="exaone4",
        config=ConfigClass(
            key_value_heads=32,
            biases=fixed_biases(False, False, False),
            windows=WindowKeys(default=4096, unlisted=_unlisted),
            rotary_layers=_turned,
        ),
        prefix="Exaone4",
        layer=decoder_layer(NORMED_ATTENTION, GATED_MLP, before=("", ""), after=AFTER),
        liger=replace(NORMS_BESIDE, heads_first=True),
        unread={Why.OFF: f"{WINDOWS} sliding_window_pattern"},
    ),
)

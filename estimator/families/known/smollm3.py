"""SmolLM3: Llama's layer, some layers without rotary embeddings.

Source: transformers 5.23, models/smollm3, modeling_*.py.
"""

from __future__ import annotations

from estimator.families.config_keys import WINDOWS
from estimator.families.config_rules import attention_biases, listed_rotary
from estimator.families.family import ConfigClass, Family, Kernels, Why, WindowKeys
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.layer_kinds import FULL_ATTENTION, SLIDING
from estimator.families.reader import Config


def _unlisted(read: Config, layers: int) -> tuple[str, ...]:
    turned = listed_rotary(read, layers)
    return tuple(FULL_ATTENTION if rotary else SLIDING for rotary in turned)


def _turned(read: Config, kinds: tuple[str, ...], window: int) -> tuple[bool, ...]:
    return listed_rotary(read, len(kinds))


FAMILIES = (
    Family(
        model_type="smollm3",
        config=ConfigClass(
            tied=True,
            key_value_heads=4,
            biases=attention_biases(has_mlp_key=True),
            windows=WindowKeys(is_switched=True, unlisted=_unlisted),
            rotary_layers=_turned,
        ),
        prefix="SmolLM3",
        layer=LLAMA_LAYER,
        like="llama",
        liger=Kernels(),
        unread={Why.OFF: f"{WINDOWS} no_rope_layer_interval"},
        has_tp_plan=True,
    ),
)

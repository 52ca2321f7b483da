"""SmolLM3: Llama's layer, some layers without rotary embeddings.

Source: transformers 5.23, models/smollm3, modeling_*.py.
"""

from __future__ import annotations

from estimator.families.config_class import ConfigClass, Why, WindowKeys
from estimator.families.config_keys import WINDOWS
from estimator.families.config_rules import attention_biases, by_rotary, listed_rotary
from estimator.families.family import Family, Kernels
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.layer_kinds import FULL_ATTENTION, SLIDING

FAMILIES = (
    Family(
        model_type="smollm3",
        config=ConfigClass(
            tied=True,
            key_value_heads=4,
            biases=attention_biases(has_mlp_key=True),
            windows=WindowKeys(is_switched=True, unlisted=by_rotary(FULL_ATTENTION, SLIDING)),
            rotary_layers=listed_rotary,
        ),
        prefix="SmolLM3",
        layer=LLAMA_LAYER,
        like="llama",
        liger=Kernels(),
        unread={Why.OFF: f"{WINDOWS} no_rope_layer_interval"},
        has_tp_plan=True,
    ),
)

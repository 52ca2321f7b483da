"""SmolLM3: Llama's layer, some layers without rotary embeddings.

Source: transformers 5.23, models/smollm3, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import layouts
from estimator.families.config_keys import WINDOWS
from estimator.families.family import Family, FamilyModules, Kernels, TreeLayout, Why
from estimator.families.known.llama import LLAMA_STEP, llama_modules

FAMILIES = (
    Family(
        model_type="smollm3",
        modules=FamilyModules(llama_modules),
        tree=TreeLayout("SmolLM3", layouts.LLAMA),
        architecture=LLAMA_STEP,
        liger=Kernels(),
        unread={Why.OFF: f"{WINDOWS} no_rope_layer_interval"},
    ),
)

"""InternLM 3: Llama's layer; its class is the repository's own.

Source: the repository's own modeling_internlm3.py.
"""

from __future__ import annotations

from estimator.families import layouts
from estimator.families.family import Family, FamilyModules, TreeLayout
from estimator.families.known.llama import LLAMA_STEP, llama_modules

FAMILIES = (
    Family(
        model_type="internlm3",
        modules=FamilyModules(llama_modules),
        tree=TreeLayout("InternLM3", layouts.LLAMA),
        architecture=LLAMA_STEP,
    ),
)

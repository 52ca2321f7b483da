"""Seed-OSS: Llama's layer with dropouts.

Source: transformers 5.23, models/seed_oss, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import layouts
from estimator.families.family import Family, FamilyModules, TreeLayout
from estimator.families.known.llama import LLAMA_STEP, llama_modules

FAMILIES = (
    Family(
        model_type="seed_oss",
        modules=FamilyModules(llama_modules),
        tree=TreeLayout("SeedOss", layouts.LLAMA),
        architecture=LLAMA_STEP,
    ),
)

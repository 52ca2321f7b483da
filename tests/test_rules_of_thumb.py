"""The rules-of-thumb page agrees with the estimates."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from estimator import catalog

ROOT = Path(__file__).resolve().parent.parent


def test_the_rules_of_thumb_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location(
        "generate_rules_of_thumb", ROOT / "docs" / "generate_rules_of_thumb.py"
    )
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    written = (ROOT / "docs" / "rules_of_thumb.md").read_text(encoding="utf-8")
    assert written == generator.render(), "docs/rules_of_thumb.md is behind; run `make docs`"


def test_each_rule_has_a_number_and_a_source():
    rules = catalog.rules_of_thumb()
    assert len(rules) == 20
    assert len({rule.advice for rule in rules}) == 20
    assert all(rule.says_gb > 0 and rule.source.startswith("https://") for rule in rules)

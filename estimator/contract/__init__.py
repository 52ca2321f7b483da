"""How setups and estimates are written and read: one flat JSON object, links, scenarios, text for the terminal."""

from estimator.contract.estimates import write_estimate, write_shares
from estimator.contract.links import (
    REHEARSED,
    RehearsedPeaks,
    read_rehearsal,
    write_link,
    write_rehearsal,
)
from estimator.contract.scenarios import (
    LONGEST_WRITTEN,
    MOST_SCENARIOS,
    VERSION,
    ReadScenarios,
    Scenario,
    free_name,
    read,
    read_file,
    read_texts,
    scenario_of,
    sound_name,
    unknown_model,
    write_file,
    write_text,
)
from estimator.contract.setups import (
    MODEL_MISSING,
    Reading,
    gpu_keys,
    parse,
    read_link,
    read_setup,
    write_fields,
)
from estimator.contract.text import verdict
from estimator.contract.units import amount
from estimator.tools.defaults import QUESTION
from estimator.values.csv_text import csv_text
from estimator.values.declaration import Key, Section, Widget
from estimator.values.json_text import read_object
from estimator.values.keys import BY_NAME, DEFAULT, KEYS, default_of
from estimator.values.kinds import Choice, Flag, Kind, Number, WholeNumber

__all__ = [
    "BY_NAME",
    "DEFAULT",
    "KEYS",
    "LONGEST_WRITTEN",
    "MODEL_MISSING",
    "MOST_SCENARIOS",
    "QUESTION",
    "REHEARSED",
    "VERSION",
    "Choice",
    "Flag",
    "Key",
    "Kind",
    "Number",
    "ReadScenarios",
    "Reading",
    "RehearsedPeaks",
    "Scenario",
    "Section",
    "WholeNumber",
    "Widget",
    "amount",
    "csv_text",
    "default_of",
    "free_name",
    "gpu_keys",
    "parse",
    "read",
    "read_file",
    "read_link",
    "read_object",
    "read_rehearsal",
    "read_setup",
    "read_texts",
    "scenario_of",
    "sound_name",
    "unknown_model",
    "verdict",
    "write_estimate",
    "write_fields",
    "write_file",
    "write_link",
    "write_rehearsal",
    "write_shares",
    "write_text",
]

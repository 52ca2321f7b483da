"""A key is one row of the table; JSON, link, flag and widget all set it to the same value.

No test here names a key, so that a new row is tested with the others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.state import question
from estimator import __main__ as command_line
from estimator import contract
from estimator.contract.scenarios import CODES, Scenario, read_texts, write_text
from estimator.contract.setups import (
    Reading,
    parse,
    read_link,
    read_setup,
    write_fields,
)
from estimator.tools.defaults import version_of
from estimator.values.declaration import Key, Section, Widget
from estimator.values.keys import DEFAULT, KEYS
from estimator.values.kinds import (
    Choice,
    Flag,
    ImageSizes,
    Indices,
    Momentum,
    Names,
    Number,
    Percentages,
    Ranks,
    ShortText,
    Version,
    WholeNumber,
)
from estimator.values.setup import KEY_FACET
from tests.beside import BESIDE
from tests.rows import for_each

MODEL = "mistralai/Mistral-7B-v0.1"
WORDS = {"strategy": "ddp"}
"""Where the second word of a list is not for every setup."""
EVERY_KEY = for_each("key", KEYS)


def another(key: Key) -> Any:
    """A JSON value other than the key's default; the default if only that is modelled."""
    if key.modelled:
        return key.default
    if isinstance(key.widget, Widget) and key.widget.steps:
        return next(step for step in key.widget.steps[1:] if step != key.default)
    match key.kind:
        case Choice(words=words):
            return WORDS.get(key.name) or str(next(word for word in words if word != key.default))
        case Flag():
            return not key.default
        case WholeNumber(low=low):
            return max(2, low) if key.default != 2 else low
        case Number(high=high):
            return 0.25 if high <= 1 else 2.5
        case Names():
            return ["lm_head"] if key.kind.nullable else ["q_proj", "v_proj"]
        case Indices():
            return [0, 3]
        case Ranks():
            return {"q_proj": 8, "layers.2.mlp.up_proj": 32}
        case Momentum():
            return "momentum=0.5"
        case ImageSizes():
            return [[224, 224], [448, 336]]
        case Version():
            return 1
        case Percentages():
            return "60/10/20/0/10"
        case ShortText():
            return version_of("trl")
        case _:
            raise AssertionError(f"a value of {key.name} must be thought of")


def asked(key: Key) -> dict[str, object]:
    """A valid object with the key set to another value than its default."""
    return {"model": MODEL, **BESIDE.get(key.name, {}), key.name: another(key)}


def said(key: Key) -> Reading:
    """What the contract reads from that object."""
    reading = read_setup(asked(key))
    assert reading.problems == ()
    return reading


@EVERY_KEY
def test_a_row_states_the_origin_of_its_default_and_the_meaning_of_null(key):
    assert (key.null != "") is key.kind.nullable
    assert key.default_sentence.startswith(f"{key.default_from} default: ")
    is_whole = key.default in {0.0, 1.0}  # written without its decimal point
    points = 0 if is_whole else str(key.default).count(".")
    assert key.default_sentence.count(".") == 1 + points
    assert key.help
    assert key.widget, "a widget, or why there is none"


@EVERY_KEY
def test_json_round_trips(key):
    setup = said(key).setup
    if key.in_setup and not key.modelled:
        assert setup.value(key.name) != key.default
        assert getattr(getattr(setup, KEY_FACET[key.name]), key.name) is setup.value(key.name)
    written = write_fields(*parse(asked(key)))
    assert parse(json.loads(json.dumps(written)))[2] == setup


@EVERY_KEY
def test_a_link_sets_the_same_value_by_name_and_by_code(key):
    texts = {
        name: [value]
        if isinstance(value, str)
        else [one if isinstance(one, str) else json.dumps(one) for one in value]
        if isinstance(value, list)
        else [json.dumps(value)]
        for name, value in asked(key).items()
    }
    assert read_link(texts) == said(key)
    written = write_text(Scenario("it", asked(key)))
    assert f"~{CODES.get(key.name, key.name)}." in written
    (found,) = read_texts([written]).scenarios
    assert parse(found.setup)[2] == said(key).setup


def test_link_codes_are_unique():
    assert len(set(CODES.values())) == len(CODES)
    assert not set(CODES.values()) & {name for key in KEYS for name in (key.name, *key.aliases)}


@EVERY_KEY
def test_a_flag_sets_the_same_value(key):
    model = asked(key)["model"]
    arguments = [model if isinstance(model, str) else json.dumps(model)]
    for name, value in asked(key).items():
        flag = name.replace("_", "-")
        if name == "model":
            continue
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            parts = value if isinstance(value, list) else [value]
            text = ",".join(part if isinstance(part, str) else json.dumps(part) for part in parts)
            arguments += [f"--{flag}", text]
    assert read_link(command_line._read_arguments(arguments)) == said(key)


# --- widgets ------------------------------------------------------------------------------------

PAGE = """
import streamlit as st
from dashboard.address import unbound
from dashboard.state import opening, question
from dashboard.widgets import sidebar

unbound.arrive("estimate")
opening.open_address()
sidebar.draw()
st.session_state["setup"] = question.reading().setup
"""
SHAPES = {
    "number": "number_input",
    "options": "multiselect",
    "segments": "button_group",
    "select": "selectbox",
    "slider": "select_slider",
    "toggle": "toggle",
}


def sidebar(key: Key) -> AppTest:
    """The fully expanded sidebar, for a setup that allows the key."""
    page = AppTest.from_string(PAGE, default_timeout=60)
    page.query_params["model"] = MODEL
    for name, value in BESIDE.get(key.name, {}).items():
        page.query_params[name] = json.dumps(value).strip('"')
    page.session_state["method drawn"] = (
        DEFAULT.adapters.method
    )  # otherwise it collapses what a method does not need
    for section in Section:
        if section is not Section.ALWAYS:
            page.session_state[f"{section} open"] = True
    page.run()
    assert not page.exception
    return page


def its_widget(page: AppTest, key: Key) -> Any:
    assert isinstance(key.widget, Widget)
    return next(
        element
        for element in page.get(SHAPES[key.widget.shape])
        if element.key in {key.name, f"{key.name} box"}
    )


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.section is not None], ids=lambda key: str(key.name)
)
def test_its_widget_shows_the_default_and_sets_value_and_address(key):
    page = sidebar(key)
    drawn = its_widget(page, key)
    assert isinstance(key.widget, Widget)
    assert drawn.label == key.widget.label
    assert drawn.help == key.sentences
    value = said(key).setup.value(key.name)
    shown = str(value) if isinstance(value, str) else value
    drawn.set_value(list(value) if isinstance(value, tuple) else shown).run()
    assert not page.exception
    assert page.session_state["setup"].value(key.name) == value
    if key.section is not Section.ALWAYS:  # AppTest binds no widget to its address
        assert read_link(page.query_params).setup.value(key.name) == value


def test_a_setup_is_read_again_only_after_a_change():
    key = next(key for key in KEYS if isinstance(key.kind, Flag) and key.section is Section.ALWAYS)
    question._read_text.cache_clear()  # what visitors of other tests have read
    with patch.object(contract, "read_setup", wraps=contract.read_setup) as read:
        page = sidebar(key)
        first = read.call_count
        assert first <= 2, "the address, and what it was written as"
        page.run()
        assert read.call_count == first
        its_widget(page, key).set_value(not key.default).run()
        assert read.call_count == first + 1
    assert page.session_state["setup"] == replace(DEFAULT, **{key.name: not key.default})

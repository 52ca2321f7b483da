"""The comparison without a browser: figures, sentences, files and the page."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch
from urllib.parse import parse_qs

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from dashboard.compare import entry, findings, peaks_figure, presets, report, results_table
from dashboard.compare.entry import ComparedEntry
from dashboard.state import comparison
from dashboard.words import origin, terms
from estimator import Method, TrainingSetup, catalog, estimate
from estimator.contract.scenarios import MOST_SCENARIOS, Scenario, scenario_of, write_text
from estimator.values.keys import LARGEST
from tests.test_start_page import text

ROOT = Path(__file__).resolve().parent.parent
MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
LORA = TrainingSetup(method=Method.LORA)
HOSTILE = "=cmd|' /C calc'!A0 <img src=x onerror=alert(1)>"


def of(gpu: str = "A100-SXM4-80GB", **keys):
    return estimate(MISTRAL, catalog.gpu(gpu), replace(LORA, **keys))


def three():
    return entry.entries(presets.three_methods(of()), {})


def open_compare(*scenarios: Scenario, **address: object) -> AppTest:
    """The page at an address; AppTest can only start on the first page."""
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=240)
    page.run()
    page.switch_page("pages/compare.py").run()
    if scenarios:
        page.query_params["s"] = [write_text(scenario) for scenario in scenarios]
    for key, value in address.items():
        page.query_params[key] = value
    with patch("dashboard.address.unbound.has_been_gone_to", return_value=True):
        page.run()
    assert not page.exception
    return page


def button(page: AppTest, key: str):
    return next(element for element in page.button if element.key == key)


# --- its sentences ------------------------------------------------------------------------------


def test_differences_table_lists_only_differing_keys():
    rows = results_table.differences(three())
    assert [row.label for row in rows] == ["Method"]
    assert [cell.text for cell in rows[0].cells] == ["Full", "LoRA", "QLoRA"]


def test_inapplicable_key_is_a_dash_and_no_difference():
    shown = [
        ComparedEntry("full", of(method=Method.FULL, lora_r=16)),
        ComparedEntry("lora", of(lora_r=64)),
    ]
    assert "lora_r" not in results_table.differing(shown), "full fine-tuning has no rank"
    shown.append(ComparedEntry("more", of(lora_r=8)))
    assert results_table.differing(shown)["lora_r"] == ["–", "64", "8"]
    packed = [
        ("lora", of()),
        *((word, of(method=Method.QLORA, bnb_4bit_quant_type=word)) for word in ("nf4", "fp4")),
    ]
    found = results_table.differing([ComparedEntry(*one) for one in packed])
    assert found["bnb_4bit_quant_type"] == ["–", "nf4", "fp4"], "a 16-bit base is not packed"


def test_best_of_each_row_is_marked_and_unfit_setups_have_no_hours():
    """Full fine-tuning of Mistral-7B does not fit an L4."""
    rows = {row.label: row.cells for row in results_table.results(three())}
    assert [cell.best for cell in rows["Hours"]] == [False, True, False]
    free = [cell.best for row in ("Need", "Headroom") for cell in rows[row]]
    assert not any(free), "unused memory is no virtue"
    short = entry.entries(
        [scenario_of("no", MISTRAL, catalog.gpu("L4"), replace(LORA, method=Method.FULL))], {}
    )
    both = [*short, *three()[1:]]
    assert not results_table.results(both)[3].cells[0].best
    assert entry.hours(short[0].estimate) is None


def test_cheapest_setup_that_meets_a_deadline_is_named():
    """The upper bound of the hours decides: it must meet the deadline in the worst case."""
    shown = [
        ComparedEntry("slow and cheap", of("L40S", num_train_examples=100_000)),
        ComparedEntry("fast and dear", of("H100-SXM5-80GB", num_train_examples=100_000)),
    ]
    slow, fast = (one.estimate.time.total_hours.high for one in shown)
    assert fast < slow
    said = " ".join(findings.answers(shown, within=(fast + slow) / 2))
    if shown[0].estimate.time.total_hours.low > (fast + slow) / 2:
        assert "“slow and cheap”" not in said
    assert "certain to be done within" in said
    assert "“fast and dear”" in said
    assert "No fitting scenario finishes within" in " ".join(findings.answers(shown, within=0.1))


def test_qlora_loss_is_stated_next_to_lora_of_the_same_setup():
    said = findings.answers(three())[-1]
    lora, qlora = three()[1].estimate, three()[2].estimate
    saved = lora.need_high_bytes - qlora.need_high_bytes
    assert saved > 0
    assert f"−{saved / 2**30:.1f} GiB" in said
    assert said.startswith("“QLoRA” against “LoRA”: ")
    named = [f"“{one.name}”" for one in three()]
    every = findings.answers(three())
    assert all(any(name in one for name in named) for one in every), (
        "no sentence is true of any setup"
    )


def test_a_second_setup_is_named_by_what_differs_from_the_first(monkeypatch):
    kept = [scenario_of(terms.proposed_name(of()), MISTRAL, of().gpu, LORA)]
    monkeypatch.setattr(comparison, "scenarios", lambda: tuple(kept))
    assert comparison.proposed_name(of(max_length=4096)) == f"{kept[0].name}, context 4,096"
    assert comparison.proposed_name(of(method=Method.QLORA)).startswith("Mistral-7B-v0.1, QLoRA on")
    assert comparison.proposed_name(of()) == f"{kept[0].name} 2"
    long = of(max_length=4096, gradient_checkpointing=not LORA.computation.gradient_checkpointing)
    assert comparison.proposed_name(long).startswith("LoRA, context 4,096, checkpointing"), "in 60"


def test_the_cheapest_that_is_the_fastest_is_named_once():
    every = findings.answers(three())
    assert sum(one.startswith("Cheapest and fastest that fits: “LoRA”") for one in every) == 1
    assert not [one for one in every if one.startswith(("Cheapest that", "Fastest"))]


def test_what_if_at_another_context_leaves_scenarios_unchanged():
    kept = presets.three_methods(of())
    at_4k = entry.entries(kept, {}, 4096)
    assert {one.estimate.setup.batch.max_length for one in at_4k} == {4096}
    assert at_4k[1].estimate == of(max_length=4096)
    assert "4,096 tokens" in findings.answers(at_4k, context=4096)[0]


def test_presets_vary_one_key():
    assert [method.setup.get("method", "full") for method in presets.three_methods(of())] == [
        "full",
        "lora",
        "qlora",
    ]
    cards = presets.five_gpus(of())
    assert len({card.setup["gpu"] for card in cards}) == 5
    assert "A100-SXM4-80GB" in {card.setup["gpu"] for card in cards}
    lengths = [context.setup.get("max_length", 1024) for context in presets.five_contexts(of())]
    assert lengths == [512, 1024, 2048, 4096, 8192]


def test_refused_scenario_shows_its_reason_and_the_others_stay():
    shown = entry.entries(
        [Scenario("gone", {"model": "someone/else"}), *presets.three_methods(of())], {}
    )
    assert shown[0].estimate is None
    assert shown[0].problem
    assert len(entry.bars(shown)) == 3
    assert "“gone” is refused" in report.write_html(report.Subject(shown, "2026-11-21"))


# --- the figure ---------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
def test_plotly_accepts_the_figure_with_a_capacity_for_each_bar(large):
    shown = entry.entries(presets.five_gpus(of()), {})
    drawn = peaks_figure.figure(shown, large=large, chosen=1 if large else None)
    go.Figure(drawn)
    capacity = next(trace for trace in drawn["data"] if trace["name"] == "Capacity")
    assert capacity["x"] == [round(one.estimate.gpu.memory_bytes / 2**30, 3) for one in shown]
    for place, one in enumerate(shown):
        bars = drawn["data"][0]
        whole = sum(x for x, y in zip(bars["x"], bars["y"], strict=True) if y == place)
        assert whole == pytest.approx(one.estimate.need_high_bytes / 2**30, abs=0.01)


# --- exported files -----------------------------------------------------------------------------


def subject(name: str = "one") -> report.Subject:
    shown = [ComparedEntry(name, of()), ComparedEntry("two", of("L4"))]
    return report.Subject(shown, "2026-11-21", "http://localhost:8501/compare?v=1", within=10.0)


@pytest.mark.parametrize(
    "write", [report.write_html, report.write_csv, report.write_json, report.write_markdown]
)
def test_each_file_states_version_date_assumptions_and_range(write):
    written = write(subject())
    assert origin.RELEASE in written
    assert "2026-11-21" in written
    assert "Every example is 1,024 tokens long" in written
    assert "nine of ten published runs" in written


def test_release_matches_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == origin.RELEASE


def test_name_from_a_link_is_escaped_in_html_csv_and_markdown():
    of_hostile = subject(HOSTILE[:60])
    page = report.write_html(of_hostile)
    assert "<img" not in page
    assert "<script" not in page
    rows = list(csv.reader(io.StringIO(report.write_csv(of_hostile))))
    assert rows[1][0].startswith("'=cmd")
    assert not any(cell[:1] in {"=", "+", "@", "\t"} for row in rows for cell in row)
    assert "<img" not in report.write_markdown(of_hostile)
    assert json.loads(report.write_json(of_hostile))["scenarios"][0]["name"] == HOSTILE[:60]
    assert "<img" not in results_table.table_html(
        of_hostile.shown, {"Results": results_table.results(of_hostile.shown)}
    )
    drawn = json.dumps(peaks_figure.figure(of_hostile.shown), ensure_ascii=False)
    assert "<img" not in drawn


def test_json_contains_the_contract_s_estimate():
    written = json.loads(report.write_json(subject()))
    assert written["scenarios"][0]["estimate"]["need_high_bytes"] == of().need_high_bytes
    assert written["scenarios"][0]["setup"]["model"] == MISTRAL.hub_id


def test_report_is_self_contained():
    page = report.write_html(subject())
    assert "src=" not in page
    assert "url(" not in page
    assert page.count("<svg") == 1


# --- the page -----------------------------------------------------------------------------------


def test_link_opens_the_page_with_its_scenarios():
    page = open_compare(*presets.three_methods(of()))
    assert "✓ fits" in text(page)
    spec = json.loads(page.get("bidi_component")[0].proto.json)[0]["figure"]
    assert "QLoRA" in json.dumps(spec["data"])


def test_page_says_what_a_damaged_link_lost():
    page = open_compare(Scenario("good", {"model": MISTRAL.hub_id, "gpu": "L4"}), within="soon")
    assert "within must be a number" in text(page)
    assert "good" in text(page)


def test_presets_duplicate_remove_and_undo_work():
    page = open_compare()
    button(page, "preset Full, LoRA, QLoRA").click().run()
    assert not page.exception
    button(page, "duplicate").click().run()
    assert "Full 2" in text(page)
    button(page, "remove").click().run()
    button(page, "undo kept").click().run()
    button(page, "undo kept").click().run()
    assert "Full 2" not in text(page)
    assert len(page.query_params["s"]) == 3
    assert "1" in page.query_params["v"]


def test_rename_to_a_name_that_breaks_links_is_refused_with_a_sentence():
    page = open_compare(*presets.three_methods(of()))
    name = next(widget for widget in page.text_input if widget.label == "Name")
    name.set_value("a~b").run()
    assert "without ~" in text(page)


NO_GPU = Scenario("A", {"model": "openai-community/gpt2"})
REFUSED = Scenario(
    "B",
    {
        "model": "openai-community/gpt2",
        "dtype": "float32",
        "mixed_precision": "no",
        "attn_implementation": "flash_attention_2",
    },
)


@pytest.mark.parametrize("scenario", [NO_GPU, REFUSED], ids=["no GPU", "refused"])
@pytest.mark.parametrize("present", [False, True])
def test_comparison_without_an_answer_can_be_left(scenario, present):
    page = open_compare(scenario, **({"present": "1"} if present else {}))
    drawn = [one for one in page.get("bidi_component")]
    assert len(drawn) == (scenario is NO_GPU), "a need is a bar; a refusal is none"
    assert "what the GPU has" not in text(page)
    if scenario is REFUSED:
        assert "flash_attention_2 takes 16-bit inputs only" in text(page)
    button(page, "leave" if present else "remove").click().run()
    assert not page.exception
    assert ("No setups yet" in text(page)) != present


def test_presentation_says_what_it_dropped():
    page = open_compare(present="1", s=[write_text(NO_GPU), "B~m.no/such/model"])
    assert "Scenario 2 was dropped" in page.warning[0].value
    assert button(page, "leave")


@pytest.mark.parametrize("number", [1, 1024, 100_000, 1_000_000, 1_048_576])
def test_shared_context_round_trips_through_the_address(number):
    page = open_compare(NO_GPU, context=str(number), within="24.5")
    assert page.query_params["context"] == str(number)
    assert page.query_params["within"] == "24.5"
    assert not page.warning


@given(
    context=st.none() | st.integers(1, LARGEST["max_length"]),
    within=st.none() | st.floats(0, 1_000_000, exclude_min=True),
    present=st.none() | st.integers(1, MOST_SCENARIOS),
)
def test_every_number_round_trips_through_the_address(context, within, present):
    written = comparison.written_numbers(comparison.Document((), None, context, within, present))
    read = {
        key: kind.read(kind.from_text(written[key][0])) if written[key] else None
        for key, kind in comparison.NUMBERS.items()
    }
    assert read == {"context": context, "within": within, "present": present}


def test_presentation_shows_one_verdict_and_three_keys():
    page = open_compare(*presets.three_methods(of()), present="2")
    assert "hr-big" in text(page)
    assert "LoRA" in text(page)
    assert {element.key for element in page.button} == {"Left", "Right", "leave"}


def test_old_links_still_open():
    lines = (ROOT / "tests" / "reference" / "links.jsonl").read_text("utf-8").splitlines()
    old = json.loads(lines[1])
    page = open_compare(**{key: values for key, values in parse_qs(old["query"]).items()})
    assert not page.warning
    assert old["scenarios"][0]["name"] in text(page)

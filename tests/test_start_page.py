"""The start page as a visitor reads it, without a browser. The estimator's own tests check the verdicts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from unittest.mock import patch
from urllib.parse import parse_qsl

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.address.example import EXAMPLE, TRL_DEFAULTS
from dashboard.estimate import hero_figure, what_if
from dashboard.state import heard, session
from dashboard.widgets import proposal_cards
from estimator import Method, TrainingSetup, catalog, contract, estimate
from estimator.values.declaration import Section
from estimator.values.keys import KEYS
from tests.beside import BESIDE

ROOT = Path(__file__).resolve().parent.parent


def open_page(**address: str) -> AppTest:
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    for key, value in address.items():
        page.query_params[key] = value
    page.run()
    assert not page.exception
    return page


def text(page: AppTest) -> str:
    pieces = [element.proto.body for element in page.get("html")]
    pieces += [
        element.value
        for kind in ("markdown", "warning", "error", "caption")
        for element in page.get(kind)
    ]
    return re.sub(r'<span class="hr-whole">(.*?)</span>', r"\1", "\n".join(pieces))


def figure(page: AppTest, name: str = "hero") -> dict:
    sent = (json.loads(element.proto.json)[0] for element in page.get("bidi_component"))
    return next(message["figure"] for message in sent if message.get("name") == name)


def sizes(drawn: dict, label: str) -> list[float]:
    """Lengths in GiB of one component's segments, bar by bar."""
    bars = drawn["data"][0]
    return [
        x
        for x, text in zip(bars["x"], bars["hovertext"], strict=True)
        if text.startswith(f"{label}:")
    ]


def click_card(page, card):
    """What the browser's click on a card starts; ``card``: its group and name."""
    assert f'data-proposal="{escape(card)}"' in text(page)
    page.session_state[proposal_cards.TAKEN] = card
    page.run()
    assert not page.exception


def setting(page: AppTest, key: str) -> object:
    """The value of a contract key, whether or not its widget is drawn."""
    if key in session.BOUND:
        return page.session_state[key]
    return page.session_state["unbound"].get(key, TrainingSetup().value(key))


def widget(page: AppTest, key: str):
    return next(
        element
        for kind in WIDGETS
        for element in page.get(kind)
        if getattr(element, "key", None) == key
    )


def move(page: AppTest, key: str, value: object) -> None:
    """Move a control, then rerun the whole page: a move reruns only fragments, and AppTest forgets the rest."""
    widget(page, key).set_value(value).run()
    assert not page.exception
    page.run()
    assert not page.exception


WIDGETS = (
    "select_slider",
    "selectbox",
    "segmented_control",
    "toggle",
    "button_group",
    "multiselect",
    "number_input",
)


def test_the_page_opens_on_the_example_and_says_when_and_by_how_much_it_does_not_fit():
    page = open_page()
    said = text(page)
    assert "As the article counts" not in text(open_page(section="Take away")), (
        "only where asked why"
    )
    assert "Does not fit" in said
    assert "Mistral-7B-v0.1" in said
    assert "A100-SXM4-80GB" in said
    assert "79.1 GiB" in said, "what an 80 GB card leaves to programs"
    assert "backward" in said
    assert "rule of thumb" in said
    keys = {
        f"st-key-{getattr(element, 'key', '')}".replace(" ", "-")
        for k in WIDGETS
        for element in page.get(k)
    }
    leads = set(re.findall(r'data-leads="([^"]+)"', said))
    behind = set(re.findall(r'data-leads="([^"]+)" data-within="st-key-drawer st-key', said))
    assert len(leads) == 8
    assert behind == {"st-key-num_gpus-box"}
    assert leads - behind <= keys, "each word of the setup's sentence leads to a widget"


def test_the_page_opens_with_trls_defaults_and_one_click_gives_the_articles_count():
    page = open_page()
    assert ", as TRL trains." in text(page)
    for key, value in TRL_DEFAULTS.items():
        assert setting(page, key) == value
    page.button(key="other count").click().run()
    assert not page.exception
    assert setting(page, "optim_state_dtype") == "float32"
    said = text(page)
    assert "A what-if: no tool keeps float32 states for 16-bit weights." in said
    # 14.5 GB each of weights and gradients, 57.9 GB of states: the article's 86.9 GB, 81.0 GiB
    assert "needs 82." in said
    page.button(key="other count").click().run()
    assert ", as TRL trains." in text(page)


def test_the_sentence_offers_bfloat16_where_trls_float32_alone_does_not_fit():
    """14.5 GB of weights, as much of gradients and 29 GB of states in bfloat16 fit into 79 GiB; in float32 not."""
    page = open_page()
    assert "TRL loads float32; " in text(page)
    click_card(page, "offer bfloat16")
    assert "✓ Fits" in text(page)
    assert "TRL loads float32" not in text(page)
    small = {"dtype": "float32", "model": "meta-llama/Llama-3.1-70B", "gpu": "L4"}
    assert "it fits</button>" not in text(open_page(**small)), "not in bfloat16, either"


def test_the_example_matches_trls_full_fine_tuning_defaults():
    facts = {key: EXAMPLE[key] for key in ("model", "gpu")}
    _, _, by_tool = contract.parse({**facts, "tool": "trl"})
    _, _, ours = contract.parse(dict(EXAMPLE))
    of_adapters = {"lora_target_modules": "all-linear", "bnb_4bit_use_double_quant": True}
    assert replace(by_tool, **of_adapters) == ours


@pytest.mark.parametrize("change", [{"model": "Qwen/Qwen3-8B"}, {"method": "lora"}])
def test_changing_model_or_method_ends_a_what_if_and_the_page_says_so(change):
    page = open_page(**WHAT_IF)
    assert setting(page, "optim_state_dtype") == "float32"
    for key, value in change.items():
        move(page, "model box" if key == "model" else key, value)
    assert setting(page, "optim_state_dtype") is None
    assert "float32 states were a what-if for full fine-tuning of Mistral-7B-v0.1" in text(page)


def test_an_address_may_set_a_what_if_for_any_model():
    page = open_page(**WHAT_IF | {"model": "Qwen/Qwen3-8B"})
    page.run()
    assert setting(page, "optim_state_dtype") == "float32"


WHAT_IF = {
    "model": "mistralai/Mistral-7B-v0.1",
    "gpu": "A100-SXM4-80GB",
    "mixed_precision": "no",
    "optim_state_dtype": "float32",
}


def test_one_click_replaces_the_what_if_with_bfloat16_states():
    page = open_page(**WHAT_IF)
    click_card(page, "neighbours bfloat16 states too")
    assert "Fits" in text(page)
    assert setting(page, "optim_state_dtype") is None
    answer = estimate(catalog.model("openai-community/gpt2"), catalog.gpu("T4"), TrainingSetup())
    assert not [name for name in what_if.real_neighbours(answer) if "bfloat16" in name]


def test_the_figures_stack_phases_and_methods_with_one_capacity_line():
    page = open_page()
    drawn, methods = figure(page), figure(page, "method-peaks")
    line = next(shape for shape in drawn["layout"]["shapes"] if shape.get("name") == "capacity")
    assert line["x0"] == pytest.approx(catalog.gpu("A100-SXM4-80GB").memory_bytes / 2**30, abs=0.02)
    weights = sizes(drawn, "Weights")
    assert (len(weights), len(sizes(methods, "Weights"))) == (5, 3)
    # TRL loads a model given by name in float32: four bytes per parameter
    assert weights[0] == pytest.approx(4 * 7_241_732_096 / 2**30, abs=0.01)


def test_moving_a_control_twice_resets_no_other():
    page = open_page(
        model="Qwen/Qwen3-8B",
        method="lora",
        lora_r="64",
        gradient_checkpointing="true",
        max_length="2048",
    )
    for batch in (2, 4):
        move(page, "per_device_train_batch_size", batch)
    kept = {
        key: setting(page, key)
        for key in ("model", "lora_r", "gradient_checkpointing", "max_length")
    }
    assert kept == {
        "model": "Qwen/Qwen3-8B",
        "lora_r": 64,
        "gradient_checkpointing": True,
        "max_length": 2048,
    }
    assert widget(page, "per_device_train_batch_size").value == 4


def test_a_damaged_address_opens_with_its_valid_keys_and_names_the_others():
    page = open_page(
        model="Qwen/Qwen3-8B",
        method="qlroa",
        max_length="-3",
        lora_r="32",
        bogus="1",
        gpu="H1000",
        rehearsed="7",
    )
    warnings = "\n".join(warning.value for warning in page.warning)
    for word in ("qlroa", "max_length", "bogus", "H1000", "rehearsed must be three sizes"):
        assert word in warnings
    assert page.session_state["model"] == "Qwen/Qwen3-8B"
    assert setting(page, "lora_r") == 32


def test_a_rehearsals_link_shows_both_results_while_the_setup_is_the_rehearsed_one():
    link = contract.write_link(catalog.model("openai-community/gpt2"), None, TrainingSetup())
    peaks = contract.RehearsedPeaks(3 * 2**30, 4 * 2**30, 5 * 2**29)
    query = dict(parse_qsl(contract.write_rehearsal(link, peaks)))
    page = open_page(**query)
    assert "Rehearsed with your script: 3.0 GiB allocated at the peak (estimated " in text(page)
    assert ", 2.5 GiB the least that PyTorch needs" in text(page)
    move(page, "max_length", 512)
    assert "Rehearsed with" not in text(page)


@pytest.mark.parametrize(
    "nasty", ["<script>alert(1)</script>", "9" * 400, "NaN", "\x00", "../../etc/passwd", ""]
)
def test_hostile_address_values_give_sentences_and_no_traceback(nasty):
    keys = ("model", "gpu", "max_length", "lora_dropout")
    page = open_page(**dict.fromkeys(keys, nasty))
    warnings = "\n".join(warning.value for warning in page.warning)
    assert [key for key in keys if key not in warnings and nasty] == []
    assert "<script>" not in "\n".join(element.proto.body for element in page.get("html"))
    assert page.get("bidi_component")


def test_a_setup_that_cannot_run_gives_one_sentence():
    page = open_page(
        model="openai-community/gpt2",
        dtype="float32",
        mixed_precision="no",
        attn_implementation="flash_attention_2",
    )
    assert [error.value for error in page.error] == [
        "attn_implementation flash_attention_2 takes 16-bit inputs only; use sdpa, or bf16 mixed precision."
    ]


@pytest.mark.parametrize("method", Method)
def test_the_hero_figure_is_valid_plotly(method):
    model, gpu = catalog.model("Qwen/Qwen3-0.6B"), catalog.gpu("L4")
    methods = {m: estimate(model, gpu, TrainingSetup(method=m)) for m in Method}
    for dark in (False, True):
        for written in (
            hero_figure.hero(methods[method], dark=dark),
            hero_figure.methods(methods[method], methods, dark=dark),
        ):
            assert go.Figure(written).to_dict()[
                "data"
            ]  # raises on a key or value unknown to Plotly


# --- expanders ----------------------------------------------------------------------------------

ALWAYS = (
    "num_gpus",
    "strategy",
    "tp_size",
    "dp_replicate_size",
    "offload_optimizer",
    "offload_param",
)
ALWAYS += ("optimizer_in_bwd", "selective_checkpointing")
ONLY_SOMETIMES = {"network", *BESIDE} - {*ALWAYS}
"""Widgets that are drawn only for some setups; tests/test_every_key.py draws each for one."""
EXPANDERS = {
    section: [key.name for key in KEYS if key.section is section and key.name not in ONLY_SOMETIMES]
    for section in Section
    if section is not Section.ALWAYS
}
"""The widgets of each expander that are drawn for every setup."""


REENTRANT = {
    "num_gpus": "2",
    "strategy": "fsdp",
    "fsdp_version": "1",
    "gradient_checkpointing": "true",
    "use_reentrant": "true",
}


def keys_drawn(page: AppTest) -> set[str]:
    return {
        element.key.removesuffix(" box")
        for kind in WIDGETS
        for element in page.get(kind)
        if str(getattr(element, "key", "")).endswith(" box")
    } - {"model", "gpu"}


def all_drawn(page: AppTest) -> set[str]:
    """Names of widgets; one that the address is bound to has its key's name."""
    return {element.key for kind in (*WIDGETS, "text_input") for element in page.get(kind)}


@pytest.mark.parametrize("label", EXPANDERS)
def test_an_expanders_widgets_exist_only_while_it_is_open(label):
    page = open_page()
    assert not keys_drawn(page) & set(EXPANDERS[label])
    page.session_state[f"{label} open"] = True
    page.run()
    assert not page.exception
    assert set(EXPANDERS[label]) <= keys_drawn(page)


def all_open(**address: str) -> AppTest:
    page = open_page(**{**MISTRAL, **address})
    for label in EXPANDERS:
        page.session_state[f"{label} open"] = True
    page.run()
    assert not page.exception
    return page


def test_every_contract_key_has_a_widget_or_a_reason_for_none():
    reasons = {key.name: key.widget for key in KEYS if key.section is None}
    assert all(isinstance(reason, str) and reason for reason in reasons.values()), reasons
    page = all_open(gpu="A100-SXM4-80GB")
    assert set(session.BOUND) - ONLY_SOMETIMES <= all_drawn(page)
    assert keys_drawn(page) == {name for names in EXPANDERS.values() for name in names}
    assert not ONLY_SOMETIMES & all_drawn(page)


def test_the_network_speed_is_set_on_the_card_and_can_be_cleared():
    page = all_open(num_gpus="16", strategy="fsdp", gpu="A100-SXM4-80GB")
    before = page.session_state["gpu"]
    move(page, "network box", 12.5)
    assert json.loads(page.session_state["gpu"]) == {"like": before, "network_gb_per_s": 12.5}
    assert widget(page, "network box").value == 12.5
    assert not page.error
    move(page, "network box", None)
    assert page.session_state["gpu"] == before


def test_choosing_fsdp2_resets_checkpoint_around_fsdp():
    page = all_open(**REENTRANT)
    move(page, "checkpoint_around_fsdp box", True)
    assert not page.error
    move(page, "fsdp_version box", 2)
    assert setting(page, "checkpoint_around_fsdp") is False
    assert not page.error


def test_a_method_opens_its_expanders():
    assert not keys_drawn(open_page(method="full", **MISTRAL))
    assert keys_drawn(open_page(method="lora", **MISTRAL)) == set(EXPANDERS["LoRA"])
    both = {*EXPANDERS["LoRA"], *EXPANDERS["Quantisation"]}
    assert keys_drawn(open_page(method="qlora", **MISTRAL)) == both


MISTRAL = {"model": "mistralai/Mistral-7B-v0.1"}


@pytest.mark.parametrize(
    ("key", "value", "spelled"),
    [
        ("lora_target_modules", ["q_proj", "v_proj"], ["q_proj", "v_proj"]),
        ("lora_dropout", 0.1, "0.1"),
        ("use_dora", True, "true"),
        ("dtype", "float32", "float32"),
        ("checkpoint_around_fsdp", True, "true"),
    ],
)
def test_an_expander_widget_sets_and_resets_its_key_and_the_address(key, value, spelled):
    """One widget of each shape; ``tests/test_every_key.py`` sets each key's."""
    address = REENTRANT if key == "checkpoint_around_fsdp" else {"method": "qlora"}
    page = all_open(**address)
    before = widget(page, f"{key} box").value
    move(page, f"{key} box", value)
    assert setting(page, key) == (tuple(value) if isinstance(value, list) else value)
    assert page.query_params[key] == spelled
    move(page, f"{key} box", before)
    assert setting(page, key) == TrainingSetup().value(key)
    assert key not in page.query_params


FAR_FROM_DEFAULT = {
    "method": "qlora",
    "num_gpus": "4",
    "strategy": "hsdp",
    "dp_replicate_size": "2",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "lora_r": "64",
    "lora_dropout": "0.1",
    "lora_target_modules": "q_proj",
    "modules_to_save": "lm_head",
    "autocast_adapter_dtype": "false",
    "bnb_4bit_use_double_quant": "false",
    "bnb_4bit_quant_storage": "bfloat16",
    "mean_tokens_per_example": "700",
    "save_total_limit": "2",
    "num_train_epochs": "3",
    "loss": "chunked_trl",
    "eval_strategy": "epoch",
    "mixed_precision": "no",
}


def as_a_browser_first_shows(widget) -> object:
    """The value shown and sent back by a browser that missed all earlier messages: the set value, or the default."""
    proto, kind = widget.proto, type(widget).__name__
    match kind:
        case "SelectSlider":
            return proto.options[int((proto.raw_value if proto.set_value else proto.default)[0])]
        case "Selectbox":
            if proto.set_value:
                return proto.raw_value if proto.HasField("raw_value") else None
            return proto.options[proto.default] if proto.HasField("default") else None
        case "ButtonGroup":
            return proto.options[(proto.value if proto.set_value else proto.default)[0]].content
        case "Multiselect":
            names = [proto.options[at] for at in proto.default]
            return list(proto.raw_values) if proto.set_value else names
        case "NumberInput":
            field = "value" if proto.set_value else "default"
            return getattr(proto, field) if proto.HasField(field) else None
    return proto.value if proto.set_value else proto.default


@pytest.mark.parametrize("address", [{}, FAR_FROM_DEFAULT], ids=["defaults", "far from them"])
def test_an_expander_widget_shows_its_keys_value_even_if_its_first_message_is_lost(address):
    """A run may overtake the message that sets a widget; the browser then shows, and sends back, its default."""
    page = open_page(**{**MISTRAL, **address})
    for label in EXPANDERS:
        page.session_state[f"{label} open"] = True
    for _ in range(2):  # the second run sends only the widgets' own state
        page.run()
    seen = 0
    for kind in WIDGETS:
        for element in page.get(kind):
            if str(element.key).endswith(" box") and element.key not in ("model box", "gpu box"):
                value = element.value
                number = isinstance(value, int | float) and not isinstance(value, bool)
                shown = as_a_browser_first_shows(element)
                same = float(shown) == value if number else shown == value
                assert same, f"{element.key} is {value!r}, and a browser shows {shown!r}"
                seen += 1
    assert seen >= sum(len(keys) for keys in EXPANDERS.values())


@pytest.mark.parametrize(
    ("key", "value", "becomes"),
    [
        ("num_gpus", 4, (4, "fsdp", 1)),
        ("strategy", "zero3", (2, "zero3", 1)),
        ("strategy", "hsdp", (4, "hsdp", 2)),
    ],
)
def test_gpus_and_strategy_are_set_and_reset_together(key, value, becomes):
    page = open_page(**MISTRAL)
    page.session_state["Several GPUs open"] = True
    page.run()
    move(page, f"{key} box", value)
    keys = ("num_gpus", "strategy", "dp_replicate_size")
    assert tuple(setting(page, name) for name in keys) == becomes
    assert "GPUs" in text(page)
    assert not page.error
    move(page, "num_gpus box", 1)
    assert tuple(setting(page, name) for name in keys) == (1, "none", 1)


@pytest.mark.parametrize(
    ("start", "moves", "becomes"),
    [
        ((1, "none"), [("num_gpus", 2), ("num_gpus", 1024)], (1024, "fsdp")),
        ((1, "none"), [("num_gpus", 2), ("num_gpus", 3), ("num_gpus", 4)], (4, "fsdp")),
        ((1, "none"), [("num_gpus", 2), ("fsdp_version", 1)], (2, "fsdp")),
        ((2, "zero3"), [("num_gpus", 1), ("num_gpus", 2), ("num_gpus", 3)], (3, "fsdp")),
        ((2, "fsdp"), [("strategy", "hsdp"), ("strategy", "ddp")], (4, "ddp")),
    ],
)
def test_a_change_that_overtakes_the_last_answer_brings_the_other_boxes_as_they_were(
    start, moves, becomes
):
    """A browser sends every box with each change, and may not have heard yet what the last one set.

    Here each of ``moves`` is sent with the other boxes' values from before the first.
    """
    page = open_page(num_gpus=str(start[0]), strategy=start[1], **MISTRAL)
    page.session_state["Several GPUs open"] = True
    page.run()
    moved = {key for key, _ in moves}
    old = {
        f"{word} box": setting(page, word) for word in ("num_gpus", "strategy") if word not in moved
    }
    old[heard.FIELD] = page.session_state[heard.FIELD]
    for key, value in moves:
        for other, before in old.items():
            widget(page, other).set_value(before)
        move(page, f"{key} box", value)
        assert old.items() - {(one, page.session_state[one]) for one in old}, "one is set"
    assert (setting(page, "num_gpus"), setting(page, "strategy")) == becomes
    move(page, "strategy box", "none")
    assert setting(page, "num_gpus") == 1, "once it has heard, the browser brings a choice"


def test_ranks_of_a_layer_are_all_gpus_and_follow_their_number():
    page = open_page(method="full", num_gpus="2", strategy="fsdp", **MISTRAL)
    page.session_state["Several GPUs open"] = True
    page.run()
    keys = ("num_gpus", "strategy", "tp_size", "save_only_model")
    for box, value, becomes in (
        ("tp_size box", 4, (4, "none", 4, True)),
        ("num_gpus box", 2, (2, "none", 2, True)),
        ("strategy box", "zero3", (2, "zero3", 1, True)),
        ("tp_size box", 2, (2, "none", 2, True)),
        ("tp_size box", 1, (2, "fsdp", 1, True)),
        ("num_gpus box", 8, (8, "fsdp", 1, True)),
        ("tp_size box", 2, (8, "fsdp", 2, True)),
        ("num_gpus box", 4, (4, "fsdp", 2, True)),
        ("strategy box", "hsdp", (4, "hsdp", 2, True)),
        ("num_gpus box", 6, (6, "hsdp", 1, True)),
        ("tp_size box", 4, (4, "none", 4, True)),
    ):
        move(page, box, value)
        assert tuple(setting(page, key) for key in keys) == becomes, box
        assert "tensor parallelism" in text(page) or becomes[2] == 1
        assert "not modelled" not in text(page)


def test_a_link_to_ranks_of_a_layer_that_saves_states_is_refused_as_it_stands_and_mended_by_a_click():
    page = open_page(method="full", gpu="A100-SXM4-80GB", num_gpus="2", tp_size="2", **MISTRAL)
    (error,) = page.error
    assert "set save_only_model true" in error.value
    assert not page.warning
    assert "Fits" not in text(page)
    assert "Does not fit" not in text(page), "no verdict on one GPU"
    assert (setting(page, "num_gpus"), setting(page, "tp_size")) == (2, 2)
    page.button(key="mend").click().run().run()
    assert not page.error
    assert not page.warning
    assert "on each of 2 GPUs by tensor parallelism" in text(page)


def test_offload_targets_follow_the_strategy():
    page = open_page(num_gpus="8", strategy="fsdp", gradient_checkpointing="true", **MISTRAL)
    page.session_state["Several GPUs open"] = True
    page.run()
    keys = ("offload_optimizer", "offload_param")
    move(page, "offload_param box", "cpu")
    assert tuple(setting(page, key) for key in keys) == (
        "cpu",
        "cpu",
    )  # FSDP offloads both or neither
    assert not page.error
    assert "of CPU memory, offloaded tensors included" in text(page)
    move(page, "strategy box", "zero3")
    move(page, "offload_optimizer box", "nvme")
    assert tuple(setting(page, key) for key in keys) == ("nvme", "cpu")
    assert "of NVMe" in text(page)
    move(page, "strategy box", "zero2")
    assert tuple(setting(page, key) for key in keys) == ("none", "none")
    assert "offloaded" not in text(page)


def test_lora_settings_return_after_full_even_with_their_expander_closed():
    page = open_page(method="lora", lora_r="64", lora_target_modules="q_proj", **MISTRAL)
    before = figure(page)
    move(page, "method", "full")
    page.session_state["LoRA open"] = False
    page.run()
    assert page.query_params["lora_r"] == "64"
    move(page, "method", "lora")
    assert figure(page) == before
    assert widget(page, "lora_r box").value == 64


def test_going_back_to_an_address_sets_widgets_in_closed_expanders_too():
    page = open_page(**MISTRAL)
    page.session_state["Run: examples, price open"] = True
    page.run()
    move(page, "num_train_examples box", 50_000)
    del page.query_params["num_train_examples"]
    with patch("dashboard.address.unbound.has_been_gone_to", return_value=True):
        page.run()
    assert setting(page, "num_train_examples") == 10_000
    assert widget(page, "num_train_examples box").value == 10_000


def test_a_model_with_a_layer_peft_rejects_still_has_its_three_cards():
    page = open_page(model="nvidia/Nemotron-H-8B-Base-8K", gpu="H100-SXM5-80GB")
    assert 'data-proposal="methods qlora"' in text(page)
    click_card(page, "methods lora")
    assert "LoRA of Nemotron-H-8B-Base-8K needs" in text(page)


def test_one_models_default_lora_targets_are_not_carried_to_the_next():
    page = open_page(model="mistralai/Mixtral-8x7B-v0.1", method="lora")
    assert "lora_target_modules" not in page.query_params
    page.selectbox[0].select("openai-community/gpt2").run()  # GPT-2 has no q_proj
    assert not page.exception
    assert not page.error
    assert "lora_target_modules" not in page.query_params


def test_the_start_page_imports_no_table_library():
    # they take a second and 70 MB: Streamlit imports them for tables, an icon, and a component's dict
    code = (
        "import sys\n"
        "from streamlit.testing.v1 import AppTest\n"
        f"page = AppTest.from_file({str(ROOT / 'app.py')!r}, default_timeout=60).run()\n"
        "assert not page.exception and page.get('bidi_component')\n"
        "print(sorted({'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"

"""What the page says after the verdict. Its numbers are tested where they are computed."""

from __future__ import annotations

import re
from html import escape
from itertools import cycle

import pytest

from dashboard.address import parts
from dashboard.address.example import EXAMPLE
from dashboard.estimate.remedies import remedies_head
from estimator import Method, TrainingSetup, Verdict, catalog, contract, estimate
from estimator.search.limits import largest_micro_batch, longest_context
from estimator.search.remedies import remedies
from tests.test_start_page import click_card, figure, open_page, setting, text

LLAMA_ON_4090 = {"model": "meta-llama/Llama-3.1-8B", "gpu": "GeForce RTX 4090"}


def click(page, key):
    page.button(key=key).click().run()
    assert not page.exception
    page.run()
    assert not page.exception


def test_each_method_card_names_the_smallest_gpu_its_free_memory_and_the_run():
    said = text(open_page())
    for name in ("Full", "LoRA", "QLoRA"):
        assert f"<b>{name}</b>" in said
    assert said.count("smallest:") == 3
    assert said.count("hours, $") + said.count("minutes, $") >= 3


def test_one_click_opens_a_card_and_undo_reverts_it():
    page = open_page()
    before = figure(page)["data"]
    click_card(page, "methods qlora")
    assert page.session_state["method"] == "qlora"
    click(page, "undo last")
    assert page.session_state["method"] == "full"
    assert figure(page)["data"] == before
    assert page.button(key="undo last").disabled


def test_one_click_opens_several_gpus_if_one_is_too_small():
    page = open_page(model="meta-llama/Llama-3.1-70B", gpu="H100-SXM5-80GB")
    assert "not on one GPU: 32 × H100-SXM5-80GB, FSDP" in text(page)
    click_card(page, "methods full")
    assert (setting(page, "num_gpus"), setting(page, "strategy")) == (32, "fsdp")
    assert "✓ Fits" in text(page)
    click(page, "undo last")
    assert (setting(page, "num_gpus"), setting(page, "strategy")) == (1, "none")


def test_the_micro_batch_hint_names_an_evaluation_that_does_not_fit():
    many = {"eval_strategy": "epoch", "per_device_eval_batch_size": "64"}
    page = open_page(model="mistralai/Mistral-7B-v0.1", gpu="L4", method="qlora", **many)
    said = text(page)
    assert "evaluation does not: lower per_device_eval_batch_size, now 64." in said
    assert "Not even micro-batch 1 fits" not in said


def test_reset_returns_to_the_example_and_can_be_undone():
    page = open_page(**LLAMA_ON_4090, method="lora", lora_r="64", max_length="4096")
    click(page, "reset to example")
    for key, value in EXAMPLE.items():
        assert setting(page, key) == value
    assert setting(page, "lora_r") == TrainingSetup().adapters.lora_r
    click(page, "undo last")
    assert setting(page, "lora_r") == 64
    assert page.session_state["model"] == LLAMA_ON_4090["model"]


def test_one_click_shrinks_the_evaluation_until_it_fits():
    keys = {"gpu": "L4", "method": "lora", "gradient_checkpointing": "true"}
    many = {"eval_strategy": "epoch", "per_device_eval_batch_size": "32"}
    page = open_page(model="mistralai/Mistral-7B-v0.1", **keys, **many)
    assert not page.exception
    assert "Evaluation needs more than training" in text(page)
    click_card(page, "remedies Evaluation batch 16")
    assert "Fits" in text(page)
    click(page, "undo last")
    assert "Evaluation needs more than training" in text(page)


def test_every_remedy_on_the_page_makes_it_fit_in_one_click():
    model, gpu = catalog.model(LLAMA_ON_4090["model"]), catalog.gpu(LLAMA_ON_4090["gpu"])
    proposed = remedies(estimate(model, gpu, TrainingSetup()), catalog.gpus_like(gpu))
    assert proposed
    for remedy in proposed:
        page = open_page(**LLAMA_ON_4090)
        assert "Does not fit" in text(page)
        assert escape(remedy.price) in text(page)
        click_card(page, f"remedies {remedy.title}")
        assert "✓ Fits" in text(page)


def test_a_setup_that_fits_is_offered_no_remedy():
    page = open_page(**LLAMA_ON_4090, method="qlora")
    assert "✓ Fits" in text(page)
    assert "What to change" not in text(page)


@pytest.mark.usefixtures("rulers")
def test_the_rulers_show_how_far_the_setup_goes():
    said = text(open_page(model="Qwen/Qwen3-8B", gpu="L40S", method="lora", max_length="2048"))
    model, gpu = catalog.model("Qwen/Qwen3-8B"), catalog.gpu("L40S")
    setup = TrainingSetup(method=Method.LORA, max_length=2048)
    context, batch = (
        re.search(rf'data-slider="{key}".*?as it is <small>([\d,]+)</small>', said)[1]
        for key in ("max_length", "per_device_train_batch_size")
    )
    assert context == f"{longest_context(model, gpu, setup):,}"
    assert batch == f"{largest_micro_batch(model, gpu, setup):,}"


@pytest.mark.usefixtures("rulers")
def test_one_click_on_a_band_of_a_ruler_applies_its_change():
    page = open_page(model="Qwen/Qwen3-8B", gpu="L40S", method="lora", max_length="2048")
    last = re.findall(r'data-proposal="(max_length \d)" aria-label="Apply QLoRA', text(page))[-1]
    click_card(page, last)
    assert setting(page, "method") == "qlora"


@pytest.mark.parametrize("gpu", [{"gpu": "H200-SXM-141GB"}, {}], ids=["a GPU", "none"])
@pytest.mark.parametrize(
    ("part", "method", "model"),
    [*zip(parts.PARTS, cycle(Method), cycle([EXAMPLE["model"], "mistralai/Mixtral-8x7B-v0.1"]))],
)
def test_every_part_opens_by_its_link_with_all_that_unfolds_in_it(part, method, model, gpu):
    labels = {label for label in parts.PARTS[part] if label != parts.VLLM}
    unfolded = {parts.key(label): "true" for label in labels}
    page = open_page(model=model, method=method, lora_dropout="0", section=part, **unfolded, **gpu)
    assert "is no key" not in text(page)
    assert "Needs" in text(page) or gpu
    assert labels <= {box.label for box in page.get("expander") if box.proto.expanded}


def test_the_gpu_table_lists_the_whole_catalogue():
    page = open_page(model="Qwen/Qwen3-8B", gpu="L4", method="qlora", section="Which GPU")
    table = page.dataframe[0].value
    assert sorted(table["GPU"]) == sorted(catalog.gpus())
    assert {"✓ fits", "✕ does not fit"} <= set(table["Verdict"])


def test_without_a_remedy_the_page_says_what_was_tried_and_which_context_fits():
    asked = {"model": "Qwen/Qwen3.5-9B", "gpu": "T4", "method": "qlora", "max_length": 262_144}
    of = estimate(*contract.parse(asked))
    assert not remedies(of, catalog.gpus_like(of.gpu))
    head = remedies_head(of, 0)
    assert "all free changes with up to 3 others, larger cards, and up to 64 GPUs" in head
    fits = int(re.search(r"A context of ([\d,]+) tokens would fit", head)[1].replace(",", ""))
    for length, verdict in ((fits, Verdict.FITS), (fits + 1, Verdict.TIGHT)):
        assert estimate(*contract.parse(asked | {"max_length": length})).verdict is verdict


def test_the_page_says_that_accumulation_cannot_help_a_card_full_of_weights():
    said = text(open_page(**LLAMA_ON_4090))
    assert "no smaller batch, shorter context or more accumulation makes that fit" in said


def test_measured_runs_are_shown_beside_the_verdict():
    said = text(open_page(method="full", gpu="A100-SXM4-80GB"))
    assert (
        "measured runs of this kind (full fine-tuning on one GPU, llama and mistral, A100" in said
    )

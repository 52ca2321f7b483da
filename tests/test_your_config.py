"""The section "Your config" as a visitor uses it, without a browser."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.estimate import config_lists
from estimator import TOOLS, read_files
from tests.test_own_error import PLAYED
from tests.test_start_page import open_page, setting, text

LLAMA = "meta-llama/Llama-3.1-8B"
COMMAND = (
    f"accelerate launch --num_processes 4 trl sft --model_name_or_path {LLAMA} --use_peft "
    "--per_device_train_batch_size 2 --max_length 4096 --neftune_noise_alpha 5 --seed 1 --colour blue"
)


def paste(page: AppTest, typed: str) -> AppTest:
    page.text_area(key="run text").set_value(typed)
    page.button(key="take run").click().run()
    assert not page.exception
    return page


def test_a_pasted_command_becomes_the_pages_setup():
    page = paste(open_page(), COMMAND)
    assert setting(page, "model") == LLAMA
    assert setting(page, "method") == "lora"
    assert setting(page, "max_length") == 4096
    assert setting(page, "per_device_train_batch_size") == 2
    assert setting(page, "num_gpus") == 4
    assert setting(page, "strategy") == "ddp"
    assert setting(page, "gradient_checkpointing") is True
    assert setting(page, "dtype") == "float32"
    assert setting(page, "loss") == "chunked_trl"
    assert setting(page, "gpu") == "A100-SXM4-80GB", "the page's own, since no config names one"
    assert page.query_params["model"] == LLAMA


def test_a_pasted_issue_becomes_the_setup_of_its_command_and_its_config():
    issue = (
        "Hi, I get an OOM with this. My a.yaml is:\n\nmodel_name_or_path: /data/Qwen2.5-7B-Instruct\nmax_length: 2048\n"
        "output_dir: out\n\nand I don't know what to change in `trl sft --config a.yaml --use_peft`.\n"
    )
    page = paste(open_page(), issue)
    assert setting(page, "model") == "Qwen/Qwen2.5-7B-Instruct"
    assert (setting(page, "method"), setting(page, "max_length")) == ("lora", 2048)
    assert "/data/Qwen2.5-7B-Instruct is taken for Qwen/Qwen2.5-7B-Instruct" in text(page)


def test_a_pasted_error_is_explained_on_its_own_card_until_it_is_closed():
    page = paste(
        open_page(model="meta-llama/Llama-3.2-1B", max_length="2048"), f"on a 3090: {PLAYED}"
    )
    assert setting(page, "gpu") == "GeForce RTX 3090"
    assert "could not get another 3.91 GiB. No tensor of this setup has that size" in text(page)
    page.button(key="forget error").click().run()
    assert "Your error" not in text(page)
    assert setting(page, "max_length") == 2048


def test_what_would_explain_an_error_is_one_click():
    sizes = {"per_device_train_batch_size": "2", "max_length": "2048", "gpu": "GeForce RTX 4090"}
    page = paste(open_page(model="meta-llama/Llama-3.2-1B", **sizes), PLAYED)
    assert "Any of these would explain it:" in text(page)
    page.button(key="explains per_device_train_batch_size 4").click().run()
    assert setting(page, "per_device_train_batch_size") == 4
    assert "This setup stops at the same request." in text(page)


def test_every_key_is_listed_and_tool_defaults_show_their_source_line():
    page = paste(open_page(), COMMAND)
    (lists,) = [
        widget for widget in page.expander if widget.label.startswith("Your config, read as")
    ]
    assert "1 not modelled yet, 1 unknown" in lists.label
    said = text(page)
    for key in ("neftune_noise_alpha", "colour", "max_length", "seed"):
        assert f"<code>{key}</code>" in said
    assert "Noise is added to the embedded tokens. Likely more memory. (line 1)" in said
    assert "trl 1.16.0, trl/trainer/base_config.py:" in said


@pytest.mark.parametrize(
    "typed", ["", "max_length: [1", "services: {a: 1}", "ls -l", "a = = 1\nimport x"]
)
def test_unreadable_text_gives_one_sentence_and_leaves_the_page_unchanged(typed):
    page = open_page(model=LLAMA, max_length="2048", method="lora")
    page = paste(page, typed)
    assert setting(page, "max_length") == 2048
    assert setting(page, "model") == LLAMA
    assert "The page keeps what it had." in text(page)


def test_a_pasted_config_can_be_undone():
    page = paste(open_page(model=LLAMA, max_length="2048"), COMMAND)
    page.button(key="undo last").click().run()
    assert not page.exception
    assert setting(page, "max_length") == 2048


def test_an_unknown_model_is_looked_up_on_the_hub():
    with patch("dashboard.state.models.ask") as ask:
        page = paste(open_page(), "trl sft --model_name_or_path me/unknown --max_length 512")
    ask.assert_called_once_with("me/unknown")
    assert setting(page, "max_length") == 512
    assert setting(page, "model") == "mistralai/Mistral-7B-v0.1", "until the Hub has answered"


@pytest.mark.parametrize("tool", list(TOOLS))
def test_one_click_applies_a_tools_defaults(tool):
    page = open_page(model=LLAMA, max_length="2048", method="lora", per_device_train_batch_size="2")
    page.button(key=f"as {tool}").click().run()
    assert not page.exception
    assert setting(page, "max_length") == 2048, "it is of the question"
    assert setting(page, "per_device_train_batch_size") == 2
    checkpointed = {"trl", "llamafactory", "unsloth", "torchtune", "ms_swift", "verl"}
    assert setting(page, "gradient_checkpointing") is (tool in checkpointed)


def test_text_of_a_file_is_escaped():
    found = read_files({"a": "trl sft --colour '<script>x</script>' --max_length '<b>'"})
    html = config_lists.lists_html(found)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html

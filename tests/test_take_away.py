"""The section "Take away": the files that run the setup on the page."""

from __future__ import annotations

import ast
import io
import re
import zipfile
from html import unescape

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.estimate import take_away
from estimator import catalog, contract, estimate, read_files
from estimator.contract.setups import parse
from estimator.tools.sayable import sayable
from tests.test_start_page import click_card, open_page, text
from tests.test_your_config import paste

SETUP = {"model": "meta-llama/Llama-3.1-8B", "method": "lora", "loss": "chunked_trl"}


def codes(page: AppTest) -> list[str]:
    return [element.value for element in page.get("code")]


def test_the_section_shows_the_setups_command_and_files():
    page = open_page(**SETUP, gpu="A100-SXM4-80GB", lora_r="8", section="Take away")
    command, rehearsal, script, config, requirements = codes(page)
    assert command == "python train.py"
    assert rehearsal == 'headroom rehearse --gpu "A100-SXM4-80GB" -- python train.py'
    assert "lora_r=8," in script
    ast.parse(script)
    assert "Fits: needs" in script.replace("\n", " ")  # the verdict is in its header
    assert "lora_r: 8" in config
    assert "trl==" in requirements
    run = read_files({"train.py": script})
    here = parse({**SETUP, "gpu": "A100-SXM4-80GB", "lora_r": 8})
    assert sayable(run.setup) == sayable(contract.write_fields(*here))


def test_one_click_switches_the_tool():
    page = open_page(model="meta-llama/Llama-3.1-8B", method="lora", section="Take away")
    page.segmented_control(key="tool to take away").set_value("Trainer").run()
    assert "from transformers import (" in codes(page)[1]


def test_a_setup_a_tool_cannot_express_gives_one_sentence_and_no_file():
    page = open_page(**SETUP | {"loss": "standard"}, section="Take away")
    page.segmented_control(key="tool to take away").set_value("TRL's SFTTrainer").run()
    assert codes(page) == []
    assert "TRL's SFTTrainer has no word for loss 'standard'" in page.info[0].value
    assert "Traceback" not in text(page)


def test_the_section_opens_on_the_first_tool_that_has_the_setups_loss():
    verl = {"objective": "grpo", "tool": "verl", "num_generations": "8"}
    page = open_page(model="Qwen/Qwen2.5-1.5B", gpu="H100-SXM5-80GB", section="Take away", **verl)
    assert page.segmented_control(key="tool to take away").value == "verl"
    assert codes(page)[0] == "bash grpo.sh"
    here = {"model": "openai-community/gpt2", "objective": "dpo"}
    of = {loss: estimate(*parse({**here, "loss": loss})) for loss in (None, "selective")}
    assert [take_away.tools()[take_away.first_tool(value)] for value in of.values()] == [
        "trl",
        "ms_swift",
    ]


@pytest.mark.parametrize("tool", take_away.tools().values())
def test_the_archive_contains_every_file_and_the_command(tool):
    keys = {**SETUP, "gpu": "A100-SXM4-80GB", "tool": tool}
    keys.pop("loss")
    if tool == "verl":
        keys |= {"objective": "grpo", "num_generations": 8}
    answer = estimate(*parse(keys))
    away = take_away.files(answer, tool)
    zipped = zipfile.ZipFile(io.BytesIO(away.archive()))
    assert zipped.namelist() == [*away.files, "run.sh"]
    assert zipped.read("run.sh").decode() == f"{away.command}\n"
    assert away.archive() == away.archive()
    assert all(take_away.language(name) for name in away.files)


def test_a_model_without_a_name_is_refused():
    model = parse({"model": {"like": "openai-community/gpt2", "num_hidden_layers": 3}})[0]
    answer = estimate(model, catalog.gpu("L4"), parse({"model": "openai-community/gpt2"})[2])
    with pytest.raises(ValueError, match="the model has no name that a file could load it by"):
        take_away.files(answer, "trainer")


# --- the visitor's files --------------------------------------------------------------------------

COMMAND = "trl sft --model_name_or_path meta-llama/Llama-3.1-8B --dtype bfloat16 --use_peft true --max_length 4096"


def test_a_remedy_is_shown_as_a_diff_of_the_visitors_command():
    """16 rows of 4,096 tokens do not fit an RTX 4090; after one click on a remedy the page shows the new command."""
    page = open_page(model="openai-community/gpt2", gpu="GeForce RTX 4090", section="Take away")
    page = paste(page, f"{COMMAND} --per_device_train_batch_size 16 --load_in_4bit true")
    assert "Your files say what the page shows" in text(page)
    assert codes(page) == []
    card = re.search(r'data-proposal="(remedies [^"]+)"', text(page))
    assert card
    click_card(page, unescape(card[1]))
    page.run()
    (diff,) = codes(page)
    assert "-trl sft" in diff
    assert "+trl sft" in diff
    assert "This line makes it fit." in text(page)


def test_the_visitors_files_are_offered_before_the_tools():
    page = paste(open_page(model="openai-community/gpt2", section="Take away"), COMMAND)
    switch = page.segmented_control(key="own to take away")
    assert switch.options[:2] == ["Your files", "TRL's SFTTrainer"]
    switch.set_value("TRL's SFTTrainer").run()
    assert codes(page)[0] == "python train.py"

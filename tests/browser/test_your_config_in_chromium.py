"""The section "Your config" in a real browser: the files of one run are dropped together, and the page shows it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.test_in_chromium import WAIT, addressed, visitor

pytestmark = pytest.mark.browser
SCRIPT = b"""
from trl import SFTConfig, SFTTrainer
args = SFTConfig("out", max_length=2048, per_device_train_batch_size=2, gradient_accumulation_steps=8)
trainer = SFTTrainer("meta-llama/Llama-3.2-1B", args=args)
"""
ACCELERATE = b"compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 2\n"


def test_dropped_files_set_the_page_and_its_link(browser, address):
    with visitor(browser, address) as page:
        page.get_by_role("button", name="Your config").first.click()
        page.locator("input[type=file]:visible, input[type=file]").last.set_input_files(
            [
                {"name": "train.py", "mimeType": "text/x-python", "buffer": SCRIPT},
                {"name": "accelerate.yaml", "mimeType": "text/yaml", "buffer": ACCELERATE},
            ]
        )
        lists = page.get_by_text("Your config, read as TRL's SFTTrainer")
        lists.wait_for(timeout=WAIT)
        page.wait_for_url(re.compile("Llama-3.2-1B"), timeout=WAIT)
        addressed(page, "num_gpus=2", "strategy=ddp")
        page.keyboard.press("Escape")
        lists.click()
        page.get_by_text(re.compile("keys that the tool sets without being asked")).click()
        source = page.get_by_text(re.compile(r"trl 1\.\d+\.\d+, trl/trainer/base_config\.py:\d+"))
        expect(source.first).to_be_visible(timeout=WAIT)

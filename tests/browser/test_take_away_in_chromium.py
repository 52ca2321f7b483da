"""Downloaded files equal those shown on the page."""

from __future__ import annotations

import zipfile

import pytest

pytestmark = pytest.mark.browser

SETUP = "model=meta-llama%2FLlama-3.1-8B&method=lora&loss=chunked_trl&gpu=A100-SXM4-80GB&section=Take+away"


def test_the_script_and_the_archive_can_be_downloaded(browser, address, tmp_path):
    with browser.visit() as page:
        page.goto(f"{address}/?{SETUP}")
        button = page.get_by_role("button", name="Download train.py")
        button.wait_for(timeout=60_000)
        with page.expect_download() as script:
            button.click()
        assert script.value.suggested_filename == "train.py"
        assert "SFTTrainer" in script.value.path().read_text(encoding="utf-8")
        with page.expect_download() as whole:
            page.get_by_role("button", name="Download all (zip)").click()
        with zipfile.ZipFile(whole.value.path()) as zipped:
            assert zipped.namelist() == ["train.py", "sft.yaml", "requirements.txt", "run.sh"]

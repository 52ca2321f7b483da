"""User tables of cards, models and prices beside the shipped ones, and a sentence for each wrong row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimator import catalog

ROOT = Path(__file__).resolve().parent.parent
SOUND = {
    "models.csv": "hub_id,model_type,vocab_size,hidden_size,intermediate_size,num_hidden_layers,num_attention_heads,"
    "num_key_value_heads,head_dim,max_position_embeddings,hidden_act\n"
    "us/our-2b,llama,32000,2048,8192,24,16,8,128,8192,silu\n",
    "gpus.csv": "name,memory_bytes,vendor,supports_bf16,memory_bandwidth_gb_per_s,bf16_dense_tflops\n"
    "Our 48GB,50000000000,NVIDIA,true,900,150\n",
    "prices.csv": "gpu,provider,usd_per_gpu_hour,date\nOur 48GB,Our cluster,0.8,2026-11-01\n"
    "L4,Our cluster,0.3,2026-11-01\n",
}
ASKS = """
from estimator import catalog
print(*catalog.wrong_tables(), sep="\\n")
if not catalog.wrong_tables():
    print(catalog.gpus()["Our 48GB"].prices[0].usd_per_gpu_hour)
    print([it.provider for it in catalog.gpus()["L4"].prices])
    print(len(catalog.gpus()["H100-SXM5-80GB"].prices) > 1)
    print(catalog.models()["us/our-2b"].parameters)
"""


def told(folder: Path, tables: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    for name, text in tables.items():
        (folder / name).write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, *(command or ("-c", ASKS))],
        cwd=ROOT,
        env={**os.environ, "HEADROOM_DATA": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_user_rows_join_the_shipped_ones_and_user_prices_replace_them(tmp_path):
    # 2 · 32,000 · 2,048 + 24 · (2,048 · 2,048 · 3 + 3 · 2,048 · 8,192 + 2 · 2,048) + 2,048
    parameters = 2 * 32000 * 2048 + 24 * (3 * 2048**2 + 3 * 2048 * 8192 + 2 * 2048) + 2048
    lines = ["", "0.8", "['Our cluster']", "True", str(parameters)]
    assert told(tmp_path, SOUND).stdout.splitlines() == lines


@pytest.mark.parametrize(
    ("table", "said", "instead", "sentence"),
    [
        ("models.csv", "2048", "many", "hidden_size: 'many' cannot be read"),
        ("models.csv", "llama", "llamma", "llamma"),
        ("models.csv", "24", "2000", "num_hidden_layers"),
        ("gpus.csv", "true", "yes", "supports_bf16: 'yes' cannot be read"),
        ("gpus.csv", "50000000000", "", "memory_bytes: it is empty"),
        ("gpus.csv", "50000000000", "-5", "memory_bytes must be between"),
        ("prices.csv", "L4", "L44", "gpu L44 is unknown; similar names: L4"),
        ("prices.csv", "0.3", "0.3,,,,,,,,,,,,,,,,,,", "has more cells than the first line"),
        ("prices.csv", "0.3", "-1", "usd_per_gpu_hour must be above 0."),
        ("prices.csv", "2026-11-01", "soon", "date 'soon' is no day"),
        (
            "gpus.csv",
            "vendor",
            "vendr",
            "gpus.csv has a column 'vendr' that Headroom does not know",
        ),
    ],
)
def test_each_wrong_row_gives_one_sentence(table, said, instead, sentence, tmp_path, monkeypatch):
    for name, text in (SOUND | {table: SOUND[table].replace(said, instead, 1)}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("HEADROOM_DATA", str(tmp_path))
    catalog.wrong_tables.cache_clear()
    wrong = catalog.wrong_tables()
    catalog.wrong_tables.cache_clear()
    (line,) = [line for line in wrong if sentence in line]
    assert line.startswith(table)


def test_starting_with_a_wrong_table_fails_with_its_sentences(tmp_path):
    wrong = {"prices.csv": SOUND["prices.csv"].replace("0.3", "free")}
    command = told(tmp_path, wrong, "-m", "estimator", "openai-community/gpt2")
    page = told(tmp_path, wrong, "-c", "import serve")
    sentence = "usd_per_gpu_hour: 'free' cannot be read; write it as data/README.md says."
    for refused in (command, page):
        assert refused.returncode
        assert refused.stderr.strip().splitlines()[-1].endswith(sentence)
    nowhere = told(tmp_path / "nowhere", {}, "-m", "estimator", "openai-community/gpt2")
    assert "which is no folder" in nowhere.stderr

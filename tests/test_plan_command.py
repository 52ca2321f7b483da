"""``headroom plan``: questions in files, counted lengths, answers as text, JSON and CSV, exit statuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from estimator import estimate
from estimator.__main__ import main
from estimator.contract.setups import parse
from estimator.plan import files
from estimator.plan.files import count_texts, price_list
from estimator.plan.report import COLUMNS
from estimator.tools.imported import read_files

QUESTION = """
model: Qwen/Qwen3-0.6B
examples: 20000
lengths: {p50: 400, max: 2048}
effective_batch: 8
methods: [lora]
try: {strategy: [ddp], use_liger_kernel: [false], offload_optimizer: [none], offload_param: [none]}
cards: [{gpu: L4, most: 2}]
"""


def _asked(folder: Path, more: str = "") -> str:
    path = folder / "question.yaml"
    path.write_text(QUESTION + more, encoding="utf-8")
    return str(path)


def test_text_contains_the_recommendation_and_the_front(tmp_path, capsys):
    assert main(["plan", _asked(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Take ")
    assert "The front, " in said
    assert "*1" in said or "*2" in said


def test_json_points_match_their_estimates(tmp_path, capsys):
    assert main(["plan", _asked(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    best = answer["recommended"]
    one = estimate(*parse(best["setup"]))
    assert best["need_high_bytes"] == one.need_high_bytes
    assert best["dollars_high"] == pytest.approx(one.cost.cost_usd.high)
    assert answer["question"]["effective_batch"] == 8


def test_csv_has_one_line_per_point(tmp_path, capsys):
    assert main(["plan", _asked(tmp_path), "--csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) > 2
    assert {len(row) for row in rows} == {len(COLUMNS)}


def test_take_away_writes_files_of_the_chosen_point(tmp_path, capsys):
    asked = _asked(tmp_path)
    folder = tmp_path / "run"
    assert main(["plan", asked, "--json", "--take-away", "0", str(folder)]) == 0
    best = json.loads(capsys.readouterr().out)["recommended"]["setup"]
    texts = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".txt"}
    read = read_files(texts).setup
    for key in ("model", "max_length", "per_device_train_batch_size", "method"):
        assert read[key] == best.get(key, 1 if key.startswith("per") else None), key
    assert main(["plan", asked, "--take-away", "0", str(folder)]) == 2
    assert "name another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        ("deadline_hours: 0.001\n", 1, "No setup that fits meets the deadline"),
        ("dead_line: 3\n", 2, "did you mean"),
    ],
)
def test_a_missed_deadline_exits_with_1_and_a_bad_question_with_2(
    tmp_path, capsys, more, status, says
):
    assert main(["plan", _asked(tmp_path, more)]) == status
    said = capsys.readouterr()
    assert says in said.out + said.err


def test_a_missing_question_is_refused(capsys):
    assert main(["plan", "nowhere.yaml"]) == 2
    assert "nowhere.yaml cannot be read" in capsys.readouterr().err


def test_lengths_are_counted_in_a_file_next_to_the_question(tmp_path, capsys):
    lines = [json.dumps({"num_tokens": tokens}) for tokens in (100, 200, 600)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    path = tmp_path / "question.yaml"
    asked = QUESTION.replace("{p50: 400, max: 2048}", "{file: train.jsonl}")
    path.write_text(asked.replace("examples: 20000\n", ""), encoding="utf-8")
    assert main(["plan", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["question"]["examples"] == 3
    assert answer["question"]["lengths"]["mean"] == 300.0
    assert answer["recommended"]["setup"]["max_length"] == 600
    assert answer["notes"][0] == "Counted from the column num_tokens of train.jsonl."


def test_text_lengths_without_a_tokenizer_are_a_range():
    rows = [{"messages": [{"role": "user", "content": "é" * 50}]}, {"messages": []}]
    found = count_texts("\n".join(map(json.dumps, rows)).encode(), "chat.jsonl")
    # 100 bytes at 5 and at 2.5 bytes per token; an empty example has one token
    assert (found.low.longest, found.high.longest) == (20, 40)
    assert found.low.quantiles[0] == (0.0, 1)
    assert not found.is_exact
    assert "a guess" in found.how


def test_csv_and_parquet_files_are_counted_alike():
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    columns = {"prompt": ["ab", "abcd"], "completion": ["cd", "ef"]}
    plain = b"prompt,completion\nab,cd\nabcd,ef\n"
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer)
    from_csv = count_texts(plain, "a.csv")
    from_parquet = count_texts(buffer.getvalue(), "a.parquet")
    assert (from_csv.low, from_csv.high) == (from_parquet.low, from_parquet.high)
    assert from_csv.examples == 2


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        (b"", "a.jsonl", "has no rows"),
        (b"{", "a.jsonl", "line 1: no JSON"),
        (b"[1]", "a.json", "must be an object"),
        (b'{"colour": "red"}', "a.jsonl", "none of which is known"),
        (b"text\n\xff", "a.csv", "not UTF-8"),
        (b"PAR1", "a.parquet", "is no parquet file"),
        (b"x", "a.docx", "is no file of examples"),
        (b"text\na,b\n", "a.csv", "line 2: it has more cells than the first line names"),
        (b"text\nb\n" + b"a" * 200_000, "a.csv", "line 3: no CSV .field larger than field limit"),
        (b"," * 1000, "a.csv", "more than 1,000 columns"),
        (b"[" * 2_000_001, "a.jsonl", "line 1: it has more than 2,000,000 objects and lists"),
    ],
)
def test_an_invalid_file_is_refused(content, name, says):
    with pytest.raises(ValueError, match=says):
        count_texts(content, name)


def test_messages_may_be_nested_900_deep():
    deep = b'{"messages": ' + b"[" * 900 + b'"twelve bytes"' + b"]" * 900 + b"}"
    assert count_texts(deep, "a.jsonl").high.longest == 5  # 12 bytes at 2.5 a token


def test_a_file_is_counted_only_as_far_as_it_may_unpack(monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    packed = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["a" * 1000] * 2000}), packed)
    assert len(packed.getvalue()) < 5000, "one value, of which each row is a copy"
    assert count_texts(packed.getvalue(), "a.parquet").examples == 2000
    monkeypatch.setattr(files, "MOST_UNPACKED", 2**20)
    with pytest.raises(ValueError, match="unpacks to more than 1 MiB"):
        count_texts(packed.getvalue(), "a.parquet")
    monkeypatch.setattr(files, "MOST_EXAMPLES", 1)
    with pytest.raises(ValueError, match="more than 1 rows"):
        count_texts(b"text\na\nb\n", "a.csv")


def test_an_unknown_column_or_an_unreadable_tokenizer_is_refused():
    with pytest.raises(ValueError, match="has no column 'body'; it has text"):
        count_texts(b'{"text": "a"}', "a.jsonl", column="body")
    with pytest.raises(ValueError, match="tokenizer"):
        count_texts(b'{"text": "a"}', "a.jsonl", tokenizer=b"{}")


def test_a_given_price_list_replaces_the_shipped_one(tmp_path, capsys):
    prices = tmp_path / "prices.csv"
    prices.write_text("gpu,provider,usd_per_gpu_hour\nL4,our cluster,0.01\n", encoding="utf-8")
    assert main(["plan", _asked(tmp_path), "--prices", str(prices), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "at $0.01 per GPU-hour (our cluster, on demand)" in answer["sentence"]
    prices.write_text("gpu,provider,usd_per_gpu_hour\nT4,our cluster,0.01\n", encoding="utf-8")
    assert main(["plan", _asked(tmp_path), "--prices", str(prices), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert any("No price is known for L4" in note for note in answer["notes"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpu,provider\nL4,us\n", "line 2: usd_per_gpu_hour is missing"),
        ("gpu,provider,usd_per_gpu_hour\nL4,us,much\n", "must be numbers"),
        ("gpu,provider,usd_per_gpu_hour\nL4,us,-1\n", "a price is from 0"),
        ("gpu,provider,usd_per_gpu_hour\nL444,us,1\n", "L444"),
        ("gpu,provider,usd_per_gpu_hour\n", "has no prices"),
        ("gpu,provider,usd_per_gpu_hour\nL4,us,1,2\n", "line 2: it has more cells"),
    ],
)
def test_an_invalid_price_list_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        price_list(text.encode(), "prices.csv")

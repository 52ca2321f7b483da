"""``headroom check``: files in, verdicts and an exit status out."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest

from estimator import catalog, estimate
from estimator.__main__ import main
from estimator.check import command, files
from estimator.contract.setups import parse
from estimator.search.remedies import cheapest_change, remedies

GPT2 = {"model": "openai-community/gpt2", "method": "full"}
LARGE = {"model": "mistralai/Mistral-7B-v0.1", "method": "lora", "max_length": 4096}


def write(folder: Path, **setups: object) -> list[str]:
    """A file a setup; their paths in order."""
    paths = [folder / f"{name}.json" for name in setups]
    for path, setup in zip(paths, setups.values(), strict=True):
        path.write_text(setup if isinstance(setup, str) else json.dumps(setup), encoding="utf-8")
    return [str(path) for path in paths]


def test_status_is_0_where_it_fits_1_where_not_2_where_it_was_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fits, too_large, broken = write(tmp_path, fits=GPT2, large=LARGE, broken="{")
    card = ("--gpu", "RTX 4090")
    assert main(["check", fits, *card]) == 0
    assert "Fits: needs " in capsys.readouterr().out
    assert main(["check", too_large, *card]) == 1
    assert "Does not fit: needs " in capsys.readouterr().out
    assert main(["check", broken, *card]) == 2
    assert "is not valid JSON" in capsys.readouterr().out
    assert main(["check", fits, too_large, *card]) == 1
    assert main(["check", fits, too_large, broken, *card]) == 2


def test_tight_is_1_and_says_what_tight_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = write(tmp_path, run=LARGE | {"gradient_checkpointing": True})
    answer = estimate(*parse(json.loads(Path(path).read_text(encoding="utf-8"))))
    between = (answer.need_low_bytes + answer.need_high_bytes) // 2
    card = json.dumps({"memory_bytes": between})
    assert main(["check", path, "--gpu", card]) == 1
    said = capsys.readouterr().out
    assert "Tight: needs" in said
    assert "Tight: between the low end and the high end" in said


def test_keys_beside_the_file_stand_above_it(tmp_path: Path) -> None:
    (path,) = write(tmp_path, run=LARGE)
    assert main(["check", path, "--gpu", "RTX 4090"]) == 1
    less = ("--max-length", "512", "--gradient-checkpointing")
    assert main(["check", "--gpu", "RTX 4090", path, *less]) == 0


def test_change_that_is_shown_mends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = write(tmp_path, run=LARGE | {"per_device_train_batch_size": 4})
    main(["check", path, "--gpu", "RTX 4090", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "does_not_fit"
    mended = estimate(*parse({**said["setup"], **said["change"]["keys"]}))
    assert mended.verdict == "fits"
    assert mended.need_high_bytes == said["change"]["need_high_bytes"]
    main(["check", path, "--gpu", "RTX 4090"])
    lines = capsys.readouterr().out.splitlines()
    for key, value in said["change"]["keys"].items():
        assert f"    {key}: {str(value).lower() if isinstance(value, bool) else value}" in lines


@pytest.mark.parametrize("batch", [2, 8])
def test_cheapest_change_is_the_first_remedy(batch: int) -> None:
    setup = LARGE | {"per_device_train_batch_size": batch, "gpu": "RTX 4090"}
    answer = estimate(*parse(setup))
    assert cheapest_change(answer) == remedies(answer, catalog.gpus_like(answer.gpu))[0]


def test_folder_is_a_table_of_all_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep", b=LARGE)
    write(tmp_path, a=GPT2, c="[]")
    (tmp_path / "notes.txt").write_text("no run", encoding="utf-8")
    assert main(["check", str(tmp_path), "--gpu", "RTX 4090"]) == 2
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert [line.split()[0].rpartition("/")[2] for line in lines[2:5]] == [
        "a.json",
        "c.json",
        "b.json",
    ]
    assert "Of 3 runs on GeForce RTX 4090: 1 fit, 1 do not fit, 1 could not be read." in said
    assert "notes.txt" not in said


def test_sweep_of_200_files_takes_seconds(tmp_path: Path) -> None:
    """A sweep is one structure at many sizes: 5 seconds with the machine to itself, at most 60 beside others."""
    runs = {
        f"run_{batch}_{length}": LARGE
        | {"per_device_train_batch_size": batch, "max_length": length}
        for batch in range(1, 21)
        for length in range(256, 2816, 256)
    }
    write(tmp_path, **runs)
    began = time.perf_counter()
    output = io.StringIO()
    command.run([str(tmp_path)], {"gpu": "RTX 4090"}, output, as_json=True)
    answers = [json.loads(line) for line in output.getvalue().splitlines()]
    assert len(answers) == 200
    assert all(it["change"] for it in answers if it["status"])
    assert time.perf_counter() - began < 60


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.json", "--gpu", "L4"], "nowhere.json cannot be read: no such file"),
        (["--gpu", "L4"], "FILE"),
        (["a.json", "--gpus", "2"], "did you mean --num-gpus?"),
        (["a.json", "--lora-r", "8", "--lora-r", "9"], "lora_r comes 2 times; give it once."),
    ],
)
def test_what_is_wrong_with_the_command_is_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["check", *arguments])
    except SystemExit as end:
        status = end.code  # type: ignore[assignment]
    assert status == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


def test_card_must_be_named_and_several_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = write(tmp_path, run=GPT2)
    assert main(["check", path]) == 2
    assert "gpu is missing; name the card" in capsys.readouterr().out
    assert main(["check", path, "--gpu", "A100 40GB"]) == 2
    assert "may be A100-PCIe-40GB, A100-SXM4-40GB; name one" in capsys.readouterr().out


def test_file_that_is_too_large_is_no_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST_FILE", 100)
    (tmp_path / "large.json").write_bytes(b" " * 101)
    with pytest.raises(ValueError, match="is larger than"):
        files.found([str(tmp_path / "large.json")])


def test_help_says_what_the_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    said = capsys.readouterr().out
    assert "exit status: 0 all fit, 1 some do not, 2 some could not be read." in said
    assert "--max-length" in said

"""``headroom check``: files in, verdicts and an exit status out."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from estimator import catalog, estimate
from estimator.__main__ import main
from estimator.check import command, files
from estimator.contract.setups import parse
from estimator.search.remedies import cheapest_change, remedies
from tests.counted import A_SECOND, counted

GPT2 = {"model": "openai-community/gpt2", "method": "full"}
LARGE = {"model": "mistralai/Mistral-7B-v0.1", "method": "lora", "max_length": 4096}


def write(folder: Path, **setups: object) -> list[str]:
    """Writes one file per setup; returns their paths in order."""
    paths = [folder / f"{name}.json" for name in setups]
    for path, setup in zip(paths, setups.values(), strict=True):
        path.write_text(setup if isinstance(setup, str) else json.dumps(setup), encoding="utf-8")
    return [str(path) for path in paths]


def test_exit_status_is_0_if_it_fits_1_if_not_2_if_unreadable(tmp_path, capsys):
    fits, too_large, broken = write(tmp_path, fits=GPT2, large=LARGE, broken="{")
    card = ("--gpu", "RTX 4090")
    assert main(["check", fits, *card]) == 0
    assert "Fits: needs " in capsys.readouterr().out
    assert main(["check", too_large, *card]) == 1
    assert "Does not fit: needs " in capsys.readouterr().out
    assert main(["check", broken, *card]) == 2
    assert "broken.json, line 1: no JSON" in capsys.readouterr().out
    assert main(["check", fits, too_large, *card]) == 1
    assert main(["check", fits, too_large, broken, *card]) == 2


def test_tight_exits_1_and_explains_tight(tmp_path, capsys):
    (path,) = write(tmp_path, run=LARGE | {"gradient_checkpointing": True})
    answer = estimate(*parse(json.loads(Path(path).read_text(encoding="utf-8"))))
    between = (answer.need_low_bytes + answer.need_high_bytes) // 2
    card = json.dumps({"memory_bytes": between})
    assert main(["check", path, "--gpu", card]) == 1
    said = capsys.readouterr().out
    assert "Tight: needs" in said
    assert "Tight: between the low end and the high end" in said


def test_command_line_keys_override_the_file(tmp_path):
    (path,) = write(tmp_path, run=LARGE)
    assert main(["check", path, "--gpu", "RTX 4090"]) == 1
    less = ("--max-length", "512", "--gradient-checkpointing")
    assert main(["check", "--gpu", "RTX 4090", path, *less]) == 0


def test_suggested_change_makes_the_run_fit(tmp_path, capsys):
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
def test_suggested_change_is_the_first_remedy(batch):
    setup = LARGE | {"per_device_train_batch_size": batch, "gpu": "RTX 4090"}
    answer = estimate(*parse(setup))
    assert cheapest_change(answer) == remedies(answer, catalog.gpus_like(answer.gpu))[0]


def test_folder_gives_a_table_of_all_its_runs(tmp_path, capsys):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep", b=LARGE)
    write(tmp_path, a=GPT2, c="{", rows="[]")
    (tmp_path / "notes.txt").write_text("no run", encoding="utf-8")
    assert main(["check", str(tmp_path), "--gpu", "RTX 4090"]) == 2
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert [line.split()[0].rpartition("/")[2] for line in lines[2:5]] == [
        "a.json",
        "c.json",
        "b.json",
    ]
    assert "Of 3 runs on GeForce RTX 4090: 1 fit, 1 do not fit, 1 without an estimate." in said
    assert "notes.txt" not in said
    assert said.splitlines()[-1].endswith("rows.json.")  # ignored: data, not a broken config


def test_a_sweep_of_files_takes_little_more_than_one(tmp_path):
    """A sweep is one structure at many sizes."""
    runs = {
        f"run_{batch}_{length}": LARGE
        | {"per_device_train_batch_size": batch, "max_length": length}
        for batch in range(1, 6)
        for length in range(256, 2816, 256)
    }
    write(tmp_path, **runs)
    output = io.StringIO()
    with counted() as work:
        command.run([str(tmp_path)], {"gpu": "RTX 4090"}, output, as_json=True)
    assert work.units < 15 * A_SECOND
    answers = [json.loads(line) for line in output.getvalue().splitlines()]
    assert len(answers) == 50
    assert all(answer["change"] for answer in answers if answer["status"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.json", "--gpu", "L4"], "nowhere.json cannot be read: no such file"),
        (["--gpu", "L4"], "FILE"),
        (["a.json", "--gpus", "2"], "did you mean --num-gpus?"),
        (["a.json", "--lora-r", "8", "--lora-r", "9"], "lora_r is given 2 times; give it once."),
    ],
)
def test_wrong_command_gets_one_sentence(arguments, says, capsys):
    try:
        status = main(["check", *arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


def test_gpu_is_required_and_ambiguous_names_are_listed(tmp_path, capsys):
    (path,) = write(tmp_path, run=GPT2)
    assert main(["check", path]) == 2
    assert "gpu is missing; name the card" in capsys.readouterr().out
    assert main(["check", path, "--gpu", "A100 40GB"]) == 2
    assert "may be A100-PCIe-40GB, A100-SXM4-40GB; name one" in capsys.readouterr().out
    paths = write(tmp_path, run=GPT2, other=GPT2)
    assert main(["check", *paths, "--gpu", "A100 40GB"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("may be A100-PCIe-40GB, A100-SXM4-40GB") == 1


def test_launched_processes_are_data_parallel(tmp_path, capsys):
    """Several processes without FSDP or DeepSpeed, and no key that names a strategy."""
    path = tmp_path / "run.sh"
    path.write_text(
        "NPROC_PER_NODE=2 swift sft --model Qwen/Qwen2.5-0.5B --tuner_type lora", encoding="utf-8"
    )
    assert main(["check", str(path), "--gpu", "H100-SXM5-80GB"]) in (0, 1)
    assert "needs a strategy" not in capsys.readouterr().out


def test_oversized_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_FILE", 100)
    (tmp_path / "large.json").write_bytes(b" " * 101)
    with pytest.raises(ValueError, match="is larger than"):
        files.found([str(tmp_path / "large.json")])


def test_a_large_file_or_a_pipe_in_a_folder_is_left_out_and_a_named_pipe_refused(tmp_path, capsys):
    write(tmp_path, run=GPT2)
    with (tmp_path / "rows.json").open("wb") as rows:
        rows.truncate(files.LARGEST_FILE + 1)  # a sparse file
    os.mkfifo(tmp_path / "pipe.yaml")
    assert main(["check", str(tmp_path), "--gpu", "L4"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("rows.json.")
    assert main(["check", str(tmp_path / "pipe.yaml"), "--gpu", "L4"]) == 2
    assert "pipe.yaml is no regular file" in capsys.readouterr().err


def test_help_explains_the_exit_status(capsys):
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    said = capsys.readouterr().out
    assert "exit status: 0 all fit, 1 some do not, 2 some could not be read or estimated." in said
    assert "--max-length" in said


# --- a tool's own files ---------------------------------------------------------------------------

SFT = """\
model_name_or_path: meta-llama/Llama-3.1-8B
use_peft: true
dtype: bfloat16
per_device_train_batch_size: 1
max_length: 1024
"""
SCRIPT = """\
from trl import SFTConfig, SFTTrainer

args = SFTConfig(output_dir="out", per_device_train_batch_size=2, max_length=512)
trainer = SFTTrainer(model="openai-community/gpt2", args=args, train_dataset=None)
trainer.train()
"""
FSDP = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n"


def put(folder: Path, **files: str) -> dict[str, str]:
    """Writes files by keyword; the last underscore of a keyword becomes the dot."""
    paths = {name: folder / ".".join(name.rsplit("_", 1)) for name in files}
    for name, path in paths.items():
        path.write_text(files[name], encoding="utf-8")
    return {name: str(path) for name, path in paths.items()}


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    main(["check", *arguments, "--json"])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_tool_config_is_read_with_the_tools_defaults(tmp_path, capsys):
    path = put(tmp_path, sft_yaml=SFT)["sft_yaml"]
    assert main(["check", path, "--gpu", "RTX 4090"]) == 0
    said = capsys.readouterr().out
    assert "Set by trl 1.16.0 itself: " in said
    assert "gradient_checkpointing true" in said
    assert "bnb_4bit" not in said  # nothing is packed


def test_unmodelled_and_unknown_keys_are_reported_with_their_line(tmp_path, capsys):
    path = put(tmp_path, sft_yaml=SFT + "neftune_noise_alpha: 5\nwarp_drive: on\n")["sft_yaml"]
    main(["check", path, "--gpu", "RTX 4090"])
    said = capsys.readouterr().out
    assert "Not modelled yet: neftune_noise_alpha, sft.yaml line 6: " in said
    assert "(more memory)" in said
    assert "Unknown: warp_drive, sft.yaml line 7: " in said


def test_accelerate_file_named_with_a_script_applies_to_it(tmp_path, capsys):
    paths = put(tmp_path, train_py=SCRIPT, fsdp_yaml=FSDP)
    (run,) = asked(capsys, *paths.values(), "--gpu", "L4")
    assert run["files"] == [*paths.values()]
    setup = run["setup"]
    assert isinstance(setup, dict)
    assert (setup["strategy"], setup["num_gpus"]) == ("fsdp", 4)
    (alone,) = asked(capsys, paths["train_py"], "--gpu", "L4")
    assert alone["files"] == [paths["train_py"]]
    (together,) = asked(capsys, *paths.values(), "--gpu", "L4", "--together")
    assert together["setup"] == setup


def test_files_in_a_folder_are_matched_to_their_runs(tmp_path, capsys):
    """run.sh runs a script under fsdp.yaml; sft.yaml is a separate run; util.py is not a run."""
    launch = "accelerate launch --config_file fsdp.yaml train.py\n"
    put(tmp_path, sft_yaml=SFT, fsdp_yaml=FSDP, train_py=SCRIPT, run_sh=launch, util_py="x = 1\n")
    runs = asked(capsys, str(tmp_path), "--gpu", "L4")
    files = {tuple(Path(file).name for file in run["files"]) for run in runs}
    assert files == {("sft.yaml",), ("run.sh", "fsdp.yaml", "train.py")}
    main(["check", str(tmp_path), "--gpu", "L4"])
    assert "No runs, and left out: " in (said := capsys.readouterr().out)
    assert "util.py" in said.splitlines()[-1]


def test_gpu_count_in_the_name_applies_unless_the_files_set_one(tmp_path, capsys):
    paths = put(tmp_path, train_py=SCRIPT, fsdp_yaml=FSDP)
    (run,) = asked(capsys, paths["train_py"], "--gpu", "4x L4")
    assert run["setup"]["num_gpus"] == 4
    assert run["setup"]["strategy"] == "ddp"
    (run,) = asked(capsys, *paths.values(), "--gpu", "8x L4")
    assert "8 GPUs, but num_gpus is 4" in str(run["error"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x00\x01binary", "is no text"),
        (b"a: [1, 2", "line"),
        (b"hello: 1\n", "is no config that is known here"),
        (SFT.encode() + b"bf16: true\nfp16: true\n", "are both on"),
        (b"x: !!python/object/apply:os.system [ls]\n", ""),
    ],
)
def test_unreadable_file_gets_one_sentence(content, says, tmp_path, capsys):
    (tmp_path / "run.yaml").write_bytes(content)
    assert main(["check", str(tmp_path / "run.yaml"), "--gpu", "L4"]) == 2
    said = capsys.readouterr().out
    assert says in said
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1


def test_change_is_shown_as_a_diff_that_makes_the_file_fit(tmp_path, capsys):
    text = SFT.replace("batch_size: 1", "batch_size: 16  # ours").replace("1024", "4096")
    path = put(tmp_path, sft_yaml=text)["sft_yaml"]
    assert main(["check", path, "--gpu", "RTX 4090"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"+++ {path}" in lines
    for gone in (line[1:] for line in lines if line[:1] == "-" and line[:3] != "---"):
        assert gone in text
        text = text.replace(f"{gone}\n", "")
    text += "".join(f"{line[1:]}\n" for line in lines if line[:1] == "+" and line[:3] != "+++")
    Path(path).write_text(text, encoding="utf-8")
    assert main(["check", path, "--gpu", "RTX 4090"]) == 0


def test_local_model_is_read_from_its_config(tmp_path, capsys, monkeypatch):
    sizes = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    config = {"model_type": "llama", "num_attention_heads": 2, **sizes}
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    put(tmp_path, sft_yaml=SFT.replace("meta-llama/Llama-3.1-8B", "./base"))
    monkeypatch.chdir(tmp_path)
    (run,) = asked(capsys, "sft.yaml", "--gpu", "L4")
    assert run["verdict"] == "fits"
    assert run["peak_bytes"] < 2**30  # three layers of 64
    (tmp_path / "base" / "config.json").write_text("{", encoding="utf-8")
    (run,) = asked(capsys, "sft.yaml", "--gpu", "L4")
    assert "config.json is not valid JSON" in str(run["error"])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (SFT.replace("meta-llama/Llama-3.1-8B", "nobody/nothing"), "Or ask the Hub for it: --hub."),
        (SFT + "fsdp: full_shard\n", 'Or say how many there are: --gpu "8x A100-SXM4-80GB".'),
    ],
)
def test_refusal_of_a_file_gives_a_hint(text, hint, tmp_path, capsys):
    path = put(tmp_path, sft_yaml=text)["sft_yaml"]
    assert main(["check", path, "--gpu", "L4"]) == 2
    assert hint in capsys.readouterr().out


def test_folder_without_a_run_is_reported(tmp_path, capsys):
    put(tmp_path, util_py="x = 1\n")
    assert main(["check", str(tmp_path), "--gpu", "L4"]) == 2
    assert "none of 1 files says what is trained" in capsys.readouterr().err

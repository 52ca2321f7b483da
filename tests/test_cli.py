"""The command line as a process: every line gets an answer, errors are one sentence, never a traceback."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

import estimator.__main__ as command
from dashboard.address.example import EXAMPLE
from estimator.answer.estimate import estimate
from estimator.contract.setups import parse, write_fields
from estimator.values.keys import KEYS
from estimator.values.kinds import Flag
from estimator.values.methods import Method
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Gpu, Model
from tests.test_own_error import PLAYED

ROOT = Path(__file__).resolve().parent.parent
MISTRAL = "mistralai/Mistral-7B-v0.1"
A100 = "A100-SXM4-80GB"
LLAMA = (
    '{"model_type": "llama", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, '
    '"num_hidden_layers": 2, "num_attention_heads": 2}'
)


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """What the command reads and writes, in this process."""
    given, written, said = (io.TextIOWrapper(io.BytesIO(content)) for content in (stdin, b"", b""))
    with (
        patch.object(sys, "argv", ["headroom", *arguments]),
        patch.object(sys, "stdin", given),
        redirect_stdout(written),
        redirect_stderr(said),
    ):
        try:
            status = command.console()
        except SystemExit as left:
            status = int(left.code or 0)
    for stream in (written, said):
        stream.flush()
    out, err = (stream.buffer.getvalue() for stream in (written, said))
    return subprocess.CompletedProcess(arguments, status, out, err)


def run_as_process(
    *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "estimator", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        timeout=60,
    )
    assert b"Traceback" not in done.stderr + done.stdout
    return done


def refuse_constant(name: str) -> object:
    raise AssertionError(f"{name} is not JSON")


def answers(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, object]]:
    """One object per line, as strict JSON."""
    lines = done.stdout.decode("ascii").splitlines()
    return [json.loads(line, parse_constant=refuse_constant) for line in lines]


# --- 150 bad lines and more ---------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """A line that cannot be estimated, and the word that its error must contain."""

    line: bytes
    names: str


def setup(key: str, value: str) -> str:
    """A line that is valid except for one key, whose value is raw JSON."""
    return f'{{"model": "{MISTRAL}", "{key}": {value}}}'


def bad(line: str, names: str) -> Bad:
    return Bad(line.encode(), names)


WRONG_VALUES = ("-1", '"wings"', "NaN", "1e400", "[[]]", "{}", "1" * 5000)
NOT_WRONG = {("rank_pattern", "{}"), ("pace_from", '"wings"'), ("lora_target_modules", '"wings"')}
"""No pattern, any text, and an expression that full fine-tuning does not read."""

FROM_THE_TABLE = [
    bad(setup(key.name, value), key.name)
    for key in KEYS
    for value in WRONG_VALUES
    if (key.name, value) not in NOT_WRONG
] + [bad(setup(key.name, "true"), key.name) for key in KEYS if not isinstance(key.kind, Flag)]

BY_HAND = [
    # not a setup at all
    bad("", "line"),
    bad("   ", "line"),
    bad("{", "line"),
    bad("}", "line"),
    bad("null", "null"),
    bad("[]", "line"),
    bad("42", "line"),
    bad('"model"', "line"),
    bad(f"{{'model': '{MISTRAL}'}}", "line"),
    bad(f'{{"model": "{MISTRAL}",}}', "line"),
    bad(f'{{"model": "{MISTRAL}"}} {{}}', "line"),
    bad(f'{{"model": "{MISTRAL}"}} # why not', "line"),
    bad("[" * 100_000, "line"),
    bad('{"model":' * 100_000, "line"),
    bad(f'{{"model": "{"x" * 1_100_000}"}}', "line"),
    Bad(b'{"model": "\xff\xfe"}', "line"),
    Bad(b"\x00\x01\x02", "line"),
    Bad(b"\xef\xbb\xbf", "line"),
    bad("python -m estimator", "line"),
    bad(f'{{"model": "{MISTRAL}", "model": "{MISTRAL}"}}', "model"),
    bad(f'{{"model": "{MISTRAL}", "lora_r": 8, "lora_r": 8}}', "lora_r"),
    # others that are JSON are in tests/reference/refusals.jsonl
    bad('{"model": "\\ud800"}', "model"),
    bad(f'{{"model": {LLAMA[:-1]}, "hidden_size": 9}}}}', "hidden_size"),
]
GOOD = json.dumps({"model": MISTRAL, "gpu": A100, "method": "lora"}).encode()


@pytest.fixture(scope="module")
def bad_lines() -> list[Bad]:
    return [*FROM_THE_TABLE, *BY_HAND]


@pytest.fixture(scope="module")
def conversation(bad_lines: list[Bad]) -> subprocess.CompletedProcess[bytes]:
    """All bad lines in one run, each followed by a good one."""
    return run_as_process(
        "--json", stdin=b"".join(line.line + b"\n" + GOOD + b"\n" for line in bad_lines)
    )


def test_there_are_at_least_150_distinct_bad_lines(bad_lines):
    assert len({line.line for line in bad_lines}) == len(bad_lines) >= 150


def test_every_bad_line_gets_a_sentence_that_names_the_field(bad_lines, conversation):
    said = answers(conversation)[::2]
    assert len(said) == len(bad_lines)
    for line, answer in zip(bad_lines, said, strict=True):
        assert list(answer) == ["error"], line.line[:200]
        sentence = answer["error"]
        assert line.names in sentence, (line.line[:200], sentence)
        assert "please report it" not in sentence, (line.line[:200], sentence)
        assert sentence.endswith((".", "?")), sentence
        assert len(sentence) < 800, sentence


def test_good_lines_between_bad_ones_get_the_same_answer_as_alone(conversation):
    alone = answers(run("--json", stdin=GOOD))
    assert "peak_bytes" in alone[0]
    assert all(answer == alone[0] for answer in answers(conversation)[1::2])


def test_one_bad_line_sets_exit_status_1(conversation):
    assert conversation.returncode == 1
    assert conversation.stderr == b""
    assert run("--json", stdin=GOOD + b"\n" + GOOD).returncode == 0


def test_empty_input_gives_empty_output():
    done = run("--json")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_windows_line_endings_and_byte_order_mark_are_accepted():
    done = run("--json", stdin=b"\xef\xbb\xbf" + GOOD + b"\r\n" + GOOD + b"\r\n")
    assert done.returncode == 0
    assert len(answers(done)) == 2


def test_answers_are_written_line_by_line():
    with subprocess.Popen(
        [sys.executable, "-m", "estimator", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        for _ in range(2):
            process.stdin.write(GOOD + b"\n")
            process.stdin.flush()
            assert b"peak_bytes" in process.stdout.readline()
        process.stdin.close()


def test_an_error_is_explained_from_a_log_or_as_it_is(tmp_path):
    """A change that would explain it is written as a flag: TRL's own loss against Trainer's."""
    llama, log = "meta-llama/Llama-3.2-1B", tmp_path / "train.log"
    log.write_text(f"Epoch 1\n{PLAYED}\n")
    sizes = ("--max-length=2048", "--per-device-train-batch-size=4", "--dtype=bfloat16")
    for given in (str(log), PLAYED):
        out = run(
            llama, "--gpu=RTX 4090", *sizes, "--no-gradient-checkpointing", f"--error={given}"
        )
        said = out.stdout.decode().splitlines()[-1]
        assert said.startswith("Your error: PyTorch held 21.57 GiB of tensors")
        assert said.endswith("It would be explained by --loss standard.")
    assert b"--error has no out-of-memory message" in run(llama, "--error=train.log").stderr


def test_remedies_are_written_only_on_request():
    setup = json.dumps({"model": MISTRAL, "gpu": A100, "dtype": "float32"}).encode()
    (plain,) = answers(run("--json", stdin=setup))
    (said,) = answers(run("--json", "--remedies", stdin=setup))
    assert plain.pop("remedies") == []
    offered = said.pop("remedies")
    assert said == plain
    # 16 bytes for each of 7.24 billion parameters are 108 GiB: only a frozen base fits 79
    assert {"method": "lora"} in [remedy["keys"] for remedy in offered]


def test_closed_pipe_prints_no_traceback():
    with subprocess.Popen(
        [sys.executable, "-m", "estimator", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate((GOOD + b"\n") * 3, timeout=60)
    assert said == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a full device")
@pytest.mark.parametrize("flags", [["--json"], ["openai-community/gpt2"], ["check", "{folder}"]])
def test_a_full_disk_gets_one_sentence(flags, tmp_path, monkeypatch, capsys):
    (tmp_path / "run.json").write_bytes(GOOD)
    with Path("/dev/full").open("w", buffering=1) as full, (tmp_path / "run.json").open() as lines:
        monkeypatch.setattr(
            sys, "argv", ["headroom", *(flag.format(folder=tmp_path) for flag in flags)]
        )
        monkeypatch.setattr(sys, "stdin", lines)
        monkeypatch.setattr(sys, "stdout", full)
        assert command.console() == 2
    assert capsys.readouterr().err == "the answer cannot be written: no space left on device.\n"


def test_internal_error_affects_one_line_and_prints_no_traceback(monkeypatch, capsys):
    def fail_on_lora(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Estimate:
        if setup.adapters.method is Method.LORA:
            raise KeyError("wings")
        return estimate(model, gpu, setup)

    monkeypatch.setattr(command, "estimate", fail_on_lora)
    sound = json.dumps({"model": MISTRAL}).encode()
    answered = io.StringIO()
    assert command.answer_lines(io.BytesIO(GOOD + b"\n" + sound), answered) == 1
    first, second = (json.loads(line) for line in answered.getvalue().splitlines())
    sentence = "The estimator failed on this setup (KeyError: 'wings'); please report it."
    assert first == {"error": sentence}
    assert "peak_bytes" in second
    assert command.main([MISTRAL, "--method", "lora"]) == 2
    assert capsys.readouterr().err == sentence + "\n"


# --- output for people --------------------------------------------------------------------------


def test_table_shows_the_ledger_the_phases_and_the_verdict():
    done = run(MISTRAL, "--gpu", A100, "--method", "qlora", "--tool", "trainer")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert text.startswith(
        f"{MISTRAL}: qlora, bfloat16, adamw_torch_fused, 1 x 1,024 tokens; other keys as"
    )
    assert re.search(r"^weights +\d+\.\d\d +\d+\.\d %$", text, re.MULTILINE)
    assert re.search(r"^optimizer step +\d+\.\d\d$", text, re.MULTILINE)
    assert re.search(
        rf"^Fits: needs [\d.]+ to [\d.]+ GiB, {A100} has 79.\d\d GiB", text, re.MULTILINE
    )


def test_flags_leave_the_rest_to_trl_as_the_pages_first_setup_does_and_say_so():
    first = write_fields(*parse(EXAMPLE))
    by_flags = write_fields(*parse({"tool": command.USUAL_TOOL, "model": MISTRAL, "gpu": A100}))
    of_adapters = {
        "lora_target_modules",
        "bnb_4bit_use_double_quant",
    }  # which full fine-tuning has none of
    assert {key: flag for key, flag in by_flags.items() if key not in of_adapters} == first


def test_columns_of_the_table_add_up():
    text = run(MISTRAL).stdout.decode()
    # trl 1.16: ModelConfig.dtype float32, Trainer's batch of 8
    whose = "other keys as TRL's SFTTrainer 1.16.0 has them"
    assert text.startswith(
        f"{MISTRAL}: full, float32, adamw_torch_fused, 8 x 1,024 tokens; {whose}\n"
    )
    names = "|".join(component.value.replace("_", " ") for component in Component)
    sizes = [float(size) for size in re.findall(rf"^(?:{names}) +([\d.]+) +", text, re.MULTILINE)]
    (total,) = re.findall(r"^all +([\d.]+) +100.0 %$", text, re.MULTILINE)
    assert sum(sizes) == pytest.approx(float(total), abs=0.005 * len(sizes))


def test_flags_equal_their_keys():
    flags = "--max-length 512 --gradient-checkpointing --method lora --lora-target-modules q_proj,v_proj"
    keys = {
        "model": MISTRAL,
        "max_length": 512,
        "gradient_checkpointing": True,
        "method": "lora",
        "lora_target_modules": ["q_proj", "v_proj"],
    }
    (answer,) = answers(run("--json", stdin=json.dumps(keys).encode()))
    trained = f"of which {answer['trainable_parameters']:,} are trained"
    text = run(MISTRAL, *flags.split(), "--tool", "trainer").stdout.decode()
    assert trained in text
    assert f"{answer['peak_bytes'] / 2**20 / 1024:.2f}" in text


def test_help_lists_every_key_with_its_default():
    done = run("--help")
    text = done.stdout.decode()
    assert done.returncode == 0
    for key in KEYS:
        assert f"--{key.name.replace('_', '-')}" in text
    assert "[adamw_torch_fused]" in text
    assert max(len(line) for line in text.splitlines()) <= 120


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "model is missing; give a Hub id such as mistralai/Mistral-7B-v0.1, or --help."),
        (["wings/Wings"], "model 'wings/Wings' is not in the catalogue; "),
        ([MISTRAL, "--gpu", "A100"], "gpu 'A100' may be A100-PCIe-40GB, A100-SXM4-40GB, "),
        ([MISTRAL, "--max-length", "many"], "max_length must be a whole number from 1 to 16777216"),
        ([MISTRAL, "--max-length", "-5"], "max_length must be a whole number from 1 to 16777216"),
        ([MISTRAL, "--max-length"], "argument --max-length: expected one argument; see --help."),
        (
            [MISTRAL, "--max-lenght=5"],
            "'--max-lenght' is not understood; did you mean --max-length",
        ),
        (
            [MISTRAL, "--tensor-parallel-size", "4"],
            "tensor_parallel_size 4 is not modelled yet as such",
        ),
        ([MISTRAL, "--expert-parallel"], "expert_parallel true is not modelled yet: "),
        ([MISTRAL, "--strategy", "megatron"], "strategy 'megatron' is not modelled yet: "),
        ([MISTRAL, "--world-size", "8"], "'--world-size' is not understood; did you mean --num-gp"),
        ([MISTRAL, "another"], "'another' is not understood; see --help."),
        ([MISTRAL, "--padded", "--no-padded"], "padded is given 2 times; give it once."),
        ([MISTRAL, "--num-gpus", "8", "--tool", "trainer"], "num_gpus 8 needs a strategy"),
        (["--json", MISTRAL], "--json reads setups from standard input; leave out model."),
    ],
)
def test_errors_are_one_sentence_on_stderr(arguments, sentence, capsys):
    try:
        status: object = command.main(arguments)
    except SystemExit as left:
        status = left.code
    shown = capsys.readouterr()
    assert (status, shown.out) == (2, "")
    assert shown.err.startswith(sentence)
    assert shown.err.count("\n") == 1


def test_terminal_without_unicode_causes_no_traceback():
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert run_as_process(MISTRAL, environment=environment).returncode == 0
    assert run_as_process("\N{GREEK SMALL LETTER MU}", environment=environment).returncode == 2

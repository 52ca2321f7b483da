"""Rehearsals: what is asked, what is refused, and how a process's report is read. `make rehearsed` plays real ones."""

from __future__ import annotations

import csv
import ctypes
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode

import pytest

from estimator.contract import read_link, read_rehearsal
from estimator.rehearse import command, running
from estimator.rehearse.beside import Beside, beside
from estimator.rehearse.card import card_named, told
from estimator.rehearse.ledger import KEPT, STATES, STEP, WEIGHTS, WORKSPACES
from estimator.rehearse.on_path.headroom_inside import (
    asked,
    build,
    card,
    computed,
    kernels,
    ranks,
    record,
    saving,
    server,
    trainers,
    weights,
)
from estimator.rehearse.rehearsed import Rehearsed, decisive, read, status_of
from estimator.rehearse.text import AGREES, RehearsalAnswer, as_json, describe, link, needed
from estimator.resident.optimizer import Trainable, between_kernels
from estimator.values.refusals import InputError
from estimator.values.specs import Optimizer

GIB = 2**30


def peak(phase: str, step: int, gib: float) -> dict[str, Any]:
    sizes = {"allocated": int(gib * GIB), "reserved": int((gib + 1) * GIB)}
    sizes["held"] = sizes["reserved"]
    return {"phase": phase, "step": step, "device": 0, **sizes}


REPORT: dict[str, Any] = {
    "rank": 0,
    "world_size": 1,
    "command": ["train.py"],
    "versions": {"torch": "2.13.0"},
    "steps": 2,
    "ended": "steps",
    "exception": "",
    "phases": [
        peak("loading", 0, 2),
        peak("forward", 1, 5),
        peak("backward", 1, 6),
        peak("optimizer", 1, 8),
        peak("forward", 2, 9),
        peak("backward", 2, 10),
        peak("optimizer", 2, 8),
    ],
    "out_of_memory": [],
    "is_compiled": False,
    "notes": [],
    "reads": {},
    "keys": None,
    "keys_problem": "",
    "ends": [],
    "asked": {"settings": {}, "workspaces": 0, "devices": [], "places": []},
}
LINE = {"file": "train.py", "line": 12, "function": "main", "text": "loss.backward()"}
RAN_OUT = {
    "asked": 64 * 2**20,
    "allocated": 7 * GIB,
    "reserved": 7 * GIB,
    "free": 2**20,
    "device": 0,
    "phase": "backward",
    "step": 1,
    "line": LINE,
    "library_line": {**LINE, "file": "/env/site-packages/accelerate/accelerator.py"},
    "module": "",
}
CARD, _ = card_named("RTX 3050 8GB")


def answer(
    run: Rehearsed, beside: Beside | None = None, roomy: Rehearsed | None = None
) -> RehearsalAnswer:
    return RehearsalAnswer(run=run, gpu=CARD, beside=beside or Beside(), roomy=roomy)


def said(run: Rehearsed, beside: Beside | None = None) -> str:
    return describe(answer(run, beside))


def test_a_run_that_took_its_steps_fits_and_shows_each_phases_peak():
    run = read(REPORT)
    assert status_of(run) == 0
    text = said(run)
    assert text.startswith("Fits: 2 steps went through, with 10.00 GiB allocated and 11.00 GiB")
    rows = {line.split("  ")[0]: line.split()[-2:] for line in text.splitlines()}
    assert rows["backward"] == ["6.00", "10.00"]
    assert rows["loading"] == ["2.00", "-"]


def test_a_run_without_memory_names_the_line_the_phase_and_the_size():
    report = {
        **REPORT,
        "steps": 0,
        "ended": "exception",
        "exception": "OutOfMemoryError: CUDA",
        "out_of_memory": [RAN_OUT],
    }
    run = read(report)
    assert status_of(run) == 1
    assert said(run).startswith(
        "Does not fit: step 1's backward at train.py:12 `loss.backward()`, in accelerate/accelerator.py:12 "
        "`loss.backward()` asks for 64.0 MiB with 7.00 GiB allocated and 7.00 GiB reserved, of 7.57 GiB that "
    )
    assert as_json(answer(run))["fits"] is False
    compiled = read({**report, "is_compiled": True})  # which would keep less
    assert status_of(compiled) == 2
    assert said(compiled).startswith("Cannot say: without torch.compile step 1's backward at")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"ended": "exception", "exception": "KeyError: 'text'"},
            "stopped after 2 steps with KeyE",
        ),
        ({"ended": "exit", "steps": 0}, "without an optimizer step, with 10.00 GiB allocated"),
        (
            {"ended": "exception", "exception": "ImportError: FlashAttention2 has been toggled on"},
            "toggled on Install flash-attn here as on the card's machine, or rehearse with attn_implementation sdpa",
        ),
    ],
)
def test_of_a_run_that_failed_or_never_stepped_nothing_is_said(changed, sentence):
    run = read({**REPORT, **changed})
    assert status_of(run) == 2
    assert sentence in said(run)
    assert as_json(answer(run))["fits"] is None


def test_memory_that_the_script_gets_by_without_is_no_death():
    run = read({**REPORT, "out_of_memory": [RAN_OUT]})
    assert status_of(run) == 0
    assert "Memory ran out 1 times, which the script caught: step 1's backward" in said(run)


def test_the_rank_that_ran_out_decides():
    fuller = read({**REPORT, "rank": 1, "phases": [peak("forward", 1, 20)]})
    dead = {"ended": "exception", "exception": "OutOfMemoryError: CUDA", "out_of_memory": [RAN_OUT]}
    assert decisive([read(REPORT), fuller]).rank == 1
    assert decisive([read({**REPORT, **dead}), fuller]).rank == 0


KEYS = {"model": "openai-community/gpt2", "max_length": 512, "per_device_train_batch_size": 1}


def test_the_live_trainers_estimate_stands_beside_and_the_phase_that_differs_is_named():
    found = beside(read({**REPORT, "keys": KEYS}), CARD.name)
    assert found.estimate.gpu == CARD
    text = said(read({**REPORT, "keys": KEYS}), found)
    assert " %:\n" in text
    allocated = found.allocated
    alike = {"phase": "backward", "step": 1, "device": 0, "reserved": 0, "held": 2 * allocated}
    report = {**REPORT, "steps": 1, "phases": [{**alike, "allocated": allocated * 1.005}]}
    assert " allocated, -0.5 %: they agree." in said(read(report), found)
    same = {**report, "phases": [{**alike, "allocated": allocated + 1}]}
    assert " allocated, 0.0 %: they agree." in said(read(same), found)
    report = {**REPORT, "steps": 1, "phases": [{**alike, "allocated": allocated * 1.02}]}
    assert "they agree" not in said(read(report), found)


def test_where_vllm_sleeps_the_peaks_are_what_the_card_held():
    """PyTorch counts 10 GiB in the backward pass, of which vLLM has given four back to the card."""
    asleep = [peak("loading", 0, 2), {**peak("backward", 1, 10), "held": 6 * GIB}]
    run = read({**REPORT, "phases": asleep})
    assert run.sleeps
    assert (run.allocated, run.reserved, run.least) == (6 * GIB, 6 * GIB, None)
    assert run.peaks(1) == {"backward": 6 * GIB}
    assert "vLLM gives its memory back while it sleeps" in said(run)
    awake = read(REPORT)
    assert not awake.sleeps
    assert "vLLM" not in said(awake)


def test_the_estimate_beside_a_vllm_that_sleeps_is_the_highest_of_all_moments():
    """Awake it has half of the card as it generates; in the step it has nothing."""
    keys = {
        **KEYS,
        "objective": "grpo",
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.5,
    }
    found = beside(read({**REPORT, "keys": {**keys, "vllm_enable_sleep_mode": True}}), CARD.name)
    assert found.problem == ""
    assert found.allocated > found.estimate.peak.bytes
    assert found.allocated > 0.5 * CARD.memory_bytes


def test_an_evaluation_that_no_rehearsal_reaches_stands_apart():
    """64 rows are evaluated at once: the steps' estimate stays, and the other is said."""
    plain = beside(read({**REPORT, "keys": KEYS}), CARD.name)
    keys = {**KEYS, "eval_strategy": "steps", "per_device_eval_batch_size": 64}
    found = beside(read({**REPORT, "keys": keys}), CARD.name)
    assert (found.allocated, found.phases) == (plain.allocated, plain.phases)
    assert plain.evaluated is None
    assert found.evaluated > found.allocated
    assert "Its evaluations are not rehearsed; with them the estimate is" in said(
        read(REPORT), found
    )


# --- the requests and the peak ------------------------------------------------------------------

MIB = 2**20
MODEL, LOGITS = {**LINE, "text": "model = load()"}, {**LINE, "text": "outputs = model(x)"}
TIMES = [("loading", 10), ("forward", 20), ("backward", 30), ("optimizer", 40), ("forward", 50)]


def recorded(*rows: tuple[int, int, int, int, int]) -> dict[str, Any]:
    """A report with these requests: what (0 asks, 1 gives back), key, MiB, time, place."""
    columns = {
        name: [row[at] * (MIB if name == "size" else 1) for row in rows]
        for at, name in enumerate(("what", "key", "size", "time", "place"))
    }
    device = {"is_whole": True, **columns, "stream": [0] * len(rows), "held": {"outputs": [3]}}
    places = [{"line": one, "library_line": None} for one in (MODEL, LOGITS)]
    return {
        **REPORT,
        "phases": [peak("backward", 2, 1)],
        "ends": [(time, phase, 1) for phase, time in TIMES],
        "asked": {"settings": {}, "workspaces": 60, "devices": [device], "places": places},
    }


RUN = recorded(
    (0, 0, 100, 5, 0),  # weights
    (0, 1, 40, 15, 1),  # logits, which outlive their backward pass
    (0, 2, 30, 25, -1),  # gradients, until the optimizer
    (0, 4, 64, 26, -1),  # a temporary of the backward pass
    (1, 4, 0, 27, -1),
    (0, 5, 8, 28, -1),  # a workspace of cuBLAS
    (0, 6, 50, 35, -1),  # states
    (1, 2, 0, 45, -1),
    (0, 3, 40, 46, 1),  # the next logits, while the first are still there
    (1, 1, 0, 47, -1),
    (1, 5, 0, 61, -1),
)


def test_the_peak_is_told_apart_by_when_its_tensors_were_made_and_how_long_they_stayed():
    run = read(RUN)
    # of MiB alive: 100, 140, 170, 234, 170, 178, 228, 198, 238 (the peak), 198
    assert {name: kind.bytes // MIB for name, kind in run.ledger.items()} == {
        WEIGHTS: 100,
        STATES: 50,
        STEP: 40,
        KEPT: 40,
        WORKSPACES: 8,
    }
    assert "The script keeps `outputs` after the backward pass" in said(run)
    assert "0.04 GiB, made at train.py:12 `outputs = model(x)`." in said(run)


def test_looking_for_tensors_in_a_variable_runs_none_of_its_own_code(monkeypatch):
    """transformers' mappings of models import each as their values are asked for."""

    class Tensor:
        is_cuda = True

        def untyped_storage(self) -> SimpleNamespace:
            return SimpleNamespace(data_ptr=lambda: 7)

    class Lazy(dict[str, object]):
        def values(self) -> NoReturn:
            raise AssertionError("its own code")

    nothing = type("Parameter", (), {})
    torch = SimpleNamespace(Tensor=Tensor, nn=SimpleNamespace(Parameter=nothing))
    monkeypatch.setattr(record.here, "torch", torch)
    assert [*asked._addresses(Lazy(outputs=[Tensor()]))] == [7]


def test_the_least_memory_is_that_on_which_the_same_requests_go_through():
    """Requests of 10 MiB or more have segments of their own, 100, 40, 30 and 64. The workspace and the states share the
    64. For the second 40 none is free: on a full card the gradients' 30 go back first."""
    least = read(RUN).least
    assert 0 <= least - (100 + 40 + 64 + 40) * MIB < MIB
    assert "is 0.24 GiB; the smallest card with it: " in needed(answer(read(RUN)))
    idle = {
        name: [] if isinstance(column, list) else column
        for name, column in RUN["asked"]["devices"][0].items()
    }
    both = {**RUN["asked"], "devices": [*RUN["asked"]["devices"], idle]}
    assert (
        read({**RUN, "asked": both}).least == least
    )  # another rank's device, of which nothing was asked
    many = {**RUN["asked"]["devices"][0]}
    many["stream"] = [at % 5 for at, _ in enumerate(many["stream"])]
    spread = read({**RUN, "asked": {**RUN["asked"], "devices": [many]}})
    assert needed(answer(spread)).endswith(
        "the requests are on 5 streams, of which 4 can be replayed."
    )
    cut = {**RUN["asked"]["devices"][0], "is_whole": False}
    assert read({**RUN, "asked": {**RUN["asked"], "devices": [cut]}}).least is None


def test_a_run_that_dies_is_told_what_it_needs_by_the_same_with_memory_to_spare():
    dead = read(
        {
            **RUN,
            "ended": "exception",
            "exception": "OutOfMemoryError: CUDA",
            "out_of_memory": [RAN_OUT],
        }
    )
    assert needed(answer(dead)) == ""
    assert needed(answer(dead, roomy=read(RUN))).startswith(
        "With memory to spare 2 steps go through, with 1.00 GiB allocated and 2.00 GiB reserved at the peak. The least"
    )
    found = as_json(answer(dead, roomy=read(RUN)))
    assert found["fits"] is False
    assert found["least_bytes"] == read(RUN).least


# --- what is asked ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu", "L4"], "the command to rehearse is missing; put it after --"),
        (["--gpu", "L4", "--steps", "0", "--", "true"], "steps must be a whole number from 1 to"),
        (["--gpu", "L4", "--value", "train.py=1", "--", "true"], "value must be a line and a numb"),
        (["--gpu", "L5", "--", "true"], "L5"),
        (["--gpu", "MI300X", "--", "true"], "MI300X cannot be rehearsed"),
        (["--gpu", "L4", "--", "no-such-program"], "no-such-program is not found"),
    ],
)
def test_a_wrong_request_gets_a_sentence(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        command.run(arguments, io.StringIO())


def test_the_card_is_told_as_the_driver_would_report_it():
    card_of_two = told(*card_named("2x A100-SXM4-80GB"))
    assert card_of_two["NULL_DEVICES"] == "2"
    assert card_of_two["NULL_CAPABILITY"] == "80"
    assert int(card_of_two["NULL_MEMORY"]) < int(card_of_two["NULL_TOTAL"])


def test_the_users_environment_stays_but_for_the_cards_of_the_machine():
    own = {"PYTHONPATH": "/theirs", "WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": ""}
    found = running.environment(own, {}, "/reports", 4, read_weights=False)
    assert found["PYTHONPATH"] == os.pathsep.join([str(running.ON_PATH), "/theirs"])
    assert found["WANDB_MODE"] == "offline"
    assert "CUDA_VISIBLE_DEVICES" not in found


def test_python_begins_as_ever_and_a_command_without_torch_is_told_apart(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'began')!r}, 'w')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (tmp_path / "said").open("w") as said, monkeypatch.context() as context:
        context.setattr(sys, "stderr", said)
        with pytest.raises(InputError, match="ended with status 3, and no Python that it started"):
            command.run(["--gpu", "L4", "--", sys.executable, "-c", "exit(3)"], io.StringIO())
    assert (tmp_path / "began").exists()


def test_values_that_the_script_reads_are_listed_with_how_to_say_others():
    text = said(read({**REPORT, "reads": {"train.py:12 `if loss.item() < 1:`": 0.0}}))
    assert "reads these values of the card (--value FILE:LINE=VALUE says another)" in text
    assert "- train.py:12 `if loss.item() < 1:`: 0.0" in text


# --- inside the user's process ------------------------------------------------------------------


class _Ended(Exception):
    pass


def test_a_line_that_reads_on_and_on_while_no_step_is_taken_ends_the_run(monkeypatch):
    here = record.RunRecord()
    monkeypatch.setattr(computed, "here", here)
    monkeypatch.setattr(computed, "MOST_READS", 3)

    def finish(ended: str) -> NoReturn:
        raise _Ended(ended)

    monkeypatch.setattr(record, "finish", finish)
    for _ in range(3):
        computed.stop_if_it_waits("train.py:12", LINE)
    here.ends.append((1, "forward", 1))  # another phase: it may read as often again
    for _ in range(3):
        computed.stop_if_it_waits("train.py:12", LINE)
    with pytest.raises(_Ended, match="exception"):
        computed.stop_if_it_waits("train.py:12", LINE)
    assert here.exception.startswith("a loop that waits for a value: train.py:12 `loss.backward()`")


def test_longer_rows_come_first_where_rows_are_drawn_at_random():
    rows = [{"input_ids": [1] * length} for length in (3, 9, 5)]

    class RandomSampler:
        data_source = rows

    assert [*trainers.longest_first(lambda _: RandomSampler())(None)] == [1, 2, 0]
    in_order = object()
    assert trainers.longest_first(lambda _: in_order)(None) is in_order


class _RefusedHereError(Exception):
    pass


@pytest.fixture
def _refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(sentence: str) -> NoReturn:
        raise _RefusedHereError(sentence)

    monkeypatch.setattr(record, "refuse", refuse)


@pytest.mark.usefixtures("_refuses")
@pytest.mark.parametrize(
    ("version", "cuda", "sentence"),
    [
        ("2.13.0+cpu", "None", "torch 2.13.0\\+cpu in .* is built without CUDA"),
        ("2.3.1+cu121", "'12.1'", "torch 2.3.1\\+cu121 is older than 2.4"),
        ("2.4.0+cu118", "'11.8'", "is built for CUDA 11.8; CUDA 12 and 13 can be rehearsed"),
        ("2.13.0+cu130", "'13.0'", "no C\\+\\+ compiler is here; install g\\+\\+"),
    ],
)
def test_a_torch_that_cannot_be_rehearsed_is_refused_in_a_sentence(
    version, cuda, sentence, tmp_path, monkeypatch
):
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    tools = {"readelf": "/usr/bin/readelf", "nm": "/usr/bin/nm"}
    monkeypatch.setattr(build.shutil, "which", tools.get)
    with pytest.raises(_RefusedHereError, match=sentence):
        card.insert(ModuleSpec("torch", None, origin=str(torch / "__init__.py")))


@pytest.fixture(scope="module")
def null(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    """The card that is not there, alone: 1,000 MiB, of which 10 are the context's."""
    compiler = next(filter(None, map(shutil.which, build.COMPILERS)), None)
    if compiler is None:
        pytest.skip("no C++ compiler is here")
    library = tmp_path_factory.mktemp("null") / "libnull.so"
    options = ["-w", "-std=c++17", "-fPIC", "-shared", "-DCUDA_VERSION=13000"]
    subprocess.run([compiler, *options, str(build.SOURCE), "-o", str(library)], check=True)
    card = {"NULL_NAME": "a card", "NULL_CAPABILITY": "89", "NULL_DEVICES": "2"}
    sizes = {"NULL_MEMORY": str(990 * MIB), "NULL_TOTAL": str(1000 * MIB)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**card, **sizes}.items():
            patch.setenv(name, value)
        yield ctypes.CDLL(str(library))


def test_nvml_says_what_the_card_is(null):
    """vLLM asks it, before it asks torch, whether there is a card."""
    assert null.nvmlInitWithFlags(0) == 0
    count, device = ctypes.c_uint(), ctypes.c_void_p()
    assert null.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    assert count.value == 2
    assert null.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(device)) == 0
    name, index = ctypes.create_string_buffer(96), ctypes.c_uint()
    major, minor = ctypes.c_int(), ctypes.c_int()
    null.nvmlDeviceGetName(device, name, 96)
    null.nvmlDeviceGetIndex(device, ctypes.byref(index))
    null.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    assert (name.value, index.value, major.value, minor.value) == (b"a card", 1, 8, 9)
    memory = (ctypes.c_ulonglong * 3)()
    null.nvmlDeviceGetMemoryInfo(device, memory)
    assert [*memory] == [1000 * MIB, 990 * MIB, 10 * MIB]


def test_a_stream_is_capturing_from_the_begin_to_the_end_of_a_graph(null):
    stream, other, graph = ctypes.c_void_p(1), ctypes.c_void_p(2), ctypes.c_void_p()
    status, id_of = ctypes.c_int(), ctypes.c_ulonglong()

    def is_capturing(of: ctypes.c_void_p) -> bool:
        null.cudaStreamGetCaptureInfo(of, ctypes.byref(status), ctypes.byref(id_of), None)
        return bool(status.value)

    assert not is_capturing(stream)
    null.cudaStreamBeginCapture(stream, 0)
    assert is_capturing(stream)
    assert id_of.value
    assert not is_capturing(other)
    null.cudaStreamEndCapture(stream, ctypes.byref(graph))
    assert graph.value
    assert not is_capturing(stream)


def test_the_most_that_a_card_held_is_told_phase_by_phase(null):
    null.null_take_most.restype = ctypes.c_size_t
    large, small = ctypes.c_void_p(), ctypes.c_void_p()
    null.cudaMalloc(ctypes.byref(large), ctypes.c_size_t(6 * MIB))
    null.cudaMalloc(ctypes.byref(small), ctypes.c_size_t(MIB))
    null.cudaFree(large)
    assert null.null_take_most(0) == 7 * MIB
    assert null.null_take_most(0) == MIB
    null.cudaFree(small)


def test_vllm_makes_its_weights_from_the_config_unless_they_are_to_be_read(monkeypatch):
    monkeypatch.setattr(record, "here", record.RunRecord())
    ways = {"auto": "reads", "safetensors": "reads", "dummy": "makes", "sharded_state": "reads"}
    loaders = SimpleNamespace(_LOAD_FORMAT_TO_MODEL_LOADER={**ways, "hf": "reads"})
    monkeypatch.setenv("HEADROOM_READ_WEIGHTS", "1")
    weights.load_nothing(loaders)
    assert loaders._LOAD_FORMAT_TO_MODEL_LOADER["auto"] == "reads"
    monkeypatch.setenv("HEADROOM_READ_WEIGHTS", "0")
    weights.load_nothing(loaders)
    made = {name for name, way in loaders._LOAD_FORMAT_TO_MODEL_LOADER.items() if way == "makes"}
    assert {"auto", "hf", "safetensors"} <= made
    assert "sharded_state" not in made


def test_a_vllm_server_that_is_not_there_answers_with_tokens_of_zeros(monkeypatch):
    monkeypatch.setattr(record, "here", record.RunRecord())
    asked: list[str] = []
    client: Any = type("VLLMClient", (), dict.fromkeys(server.SENDERS, asked.append))
    trl: Any = SimpleNamespace(VLLMClient=client)
    server.answer(trl)
    found = client()
    found.check_server(240)
    given = {"prompt": [[5, 6], [7]], "n": 2, "max_tokens": 3}
    choices = found._post("http://localhost:8000/v1/completions", json=given)["choices"]
    assert [one["prompt_token_ids"] for one in choices] == [[5, 6], [5, 6], [7], [7]]
    assert [one["token_ids"] for one in choices] == [[0, 0, 0]] * 4
    assert found._post("http://localhost:8000/update_weights", json={}) == {}
    assert asked == []
    assert [*record.here.notes] == [
        "The vLLM server is not there: every token is the first of the vocabulary, and weights go nowhere."
    ]
    others: Any = SimpleNamespace(VLLMClient=type("VLLMClient", (), {"post": asked.append}))
    server.answer(others)  # another version's, of which nothing is known
    assert not hasattr(others.VLLMClient, "_post")


def test_ranks_exchange_objects_by_the_store_at_which_they_met(monkeypatch):
    """Twice: the second exchange does not find the first one's objects."""
    kept: dict[str, bytes] = {}
    store = SimpleNamespace(set=kept.__setitem__, get=kept.__getitem__)

    def rank(number: int) -> SimpleNamespace:
        return SimpleNamespace(
            get_process_group_ranks=lambda group: [0, 1],
            get_rank=lambda: number,
            _get_default_store=lambda: store,
        )

    group = SimpleNamespace(group_name="all")
    monkeypatch.setattr(ranks, "_exchanges", {})
    for texts in (["a", "b"], ["c", "d"]):
        counted = dict(ranks._exchanges)
        with pytest.raises(KeyError):  # rank 1 has not come yet: a real store waits for it
            ranks.exchanged(rank(0), texts[0], group)
        for number in (1, 0):  # each counts in its own process
            monkeypatch.setattr(ranks, "_exchanges", dict(counted))
            assert ranks.exchanged(rank(number), texts[number], group) == texts
    monkeypatch.setenv("HEADROOM_ALONE", "1")
    assert ranks.exchanged(rank(0), "mine", group) == ["mine", "mine"]


def test_flashinfers_kernels_are_not_compiled_and_its_plans_are_there():
    """vLLM on a B200 attends by them; before it calls a kernel it asserts that there is a plan."""

    class JitSpec:
        def build_and_load(self) -> NoReturn:
            raise AssertionError("nvcc is asked")

    flashinfer: Any = SimpleNamespace(JitSpec=JitSpec)
    kernels.build_nothing(flashinfer)
    module: Any = JitSpec().build_and_load()
    assert module.plan(1, 2) is not None
    assert module.paged_run(1, out=2) is None


class _Counters:
    """torch._C's counters of one device: a peak since the last reset."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def use(self, now: int) -> None:
        self.now, self.peak = now, max(self.peak, now)

    def reset(self, device: int) -> None:
        self.peak = self.now

    def read(self, device: int) -> dict[str, Any]:
        return {kind: {"all": {"peak": self.peak}} for kind in record.Peaks.KINDS}


def test_phases_and_the_scripts_own_readings_do_not_disturb_each_other():
    counters = _Counters()
    c = SimpleNamespace(_cuda_resetPeakMemoryStats=counters.reset, _cuda_memoryStats=counters.read)
    peaks = record.Peaks(c)

    def read_by_the_script() -> int:
        return int(c._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"])

    counters.use(50)
    counters.use(10)
    assert peaks.take(0) == (50, 50)
    counters.use(20)
    assert peaks.take(0) == (20, 20)
    assert read_by_the_script() == 50  # no phase of ours resets what the script reads
    counters.use(40)
    counters.use(30)
    c._cuda_resetPeakMemoryStats(0)
    assert read_by_the_script() == 30
    assert peaks.take(0) == (40, 40)  # nor does the script's reset hide a phase's peak


def test_a_step_ends_where_the_next_forward_pass_begins(monkeypatch):
    here = record.RunRecord()
    peaks = SimpleNamespace(take=lambda device: (1, 1))
    here.torch = SimpleNamespace(
        cuda=SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1)
    )
    here.peaks = peaks
    monkeypatch.setattr(record, "here", here)
    then = ["forward", "backward", "forward", "optimizer", "optimizer", "forward"]  # two optimizers
    for name in then:
        record.close(here.now, name)
    assert [(phase["phase"], phase["step"]) for phase in here.phases] == [
        ("loading", 0),
        ("forward", 1),
        ("backward", 1),
        ("forward", 1),
        ("optimizer", 1),
        ("optimizer", 1),
    ]
    assert here.step == 2


def test_weights_of_zeros_are_written_over_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "here", record.RunRecord())
    written: list[object] = []
    torch = SimpleNamespace(save=lambda what, where: written.append(where))
    saving.write_no_files(torch)
    in_memory = io.BytesIO()
    torch.save({}, str(tmp_path / "model.pt"))
    torch.save({}, tmp_path / "model.pt")
    with (tmp_path / "model.pt").open("wb") as file:
        torch.save({}, file)
    assert written == []
    torch.save({}, in_memory)
    assert written == [in_memory]
    assert [*record.here.notes] == ["torch.save is not done in a rehearsal: the weights are zeros."]


def test_what_runs_in_the_users_process_imports_no_library():
    code = "from estimator.rehearse.on_path.headroom_inside import begin; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "transformers", "estimator.preflight"} & {*done.stdout.split()}


def test_the_link_opens_the_trainers_setup_with_the_rehearsals_peaks():
    keys = {**KEYS, "eval_strategy": "steps"}
    run = read({**REPORT, "keys": keys})
    found = RehearsalAnswer(
        run=run, gpu=CARD, beside=beside(run, CARD.name), page="http://localhost:8501/"
    )
    address, _, query = link(found).partition("?")
    assert address == "http://localhost:8501/"
    given = dict(parse_qsl(query))
    peaks = read_rehearsal(given.pop("rehearsed"), urlencode(given))
    assert peaks == (
        10 * GIB,
        11 * GIB,
        None,
    )  # nothing was recorded of which the least could be said
    reading = read_link(given)
    assert reading.problems == ()
    assert reading.setup.run.eval_strategy == "steps"
    assert link(answer(read(REPORT))) == ""  # without an estimate


def test_the_answer_as_json_is_one_object():
    assert json.loads(json.dumps(as_json(answer(read(REPORT)))))["fits"] is True


TABLE = Path(__file__).parents[1] / "data" / "rehearsed.csv"


def test_rehearsed_public_scripts_agree_with_their_estimates_or_say_of_what_they_differ():
    """data/rehearsed.csv, played with PyTorch's CUDA build on a card that is not there."""
    rows = [*csv.DictReader(TABLE.read_text("utf-8").splitlines())]
    through = [row for row in rows if row["status"] == "0"]
    assert len({row["id"].split()[0] for row in through}) >= 40
    errors = [abs(float(row["error"])) for row in through if row["error"]]
    assert sum(error <= AGREES for error in errors) >= 0.9 * len(errors)
    far = [row for row in rows if not row["error"] or abs(float(row["error"])) > AGREES]
    assert [row["id"] for row in far if not row["sentence"]] == []


@pytest.mark.parametrize(
    ("optim", "codes"),
    [(Optimizer.ADAMW_TORCH_8BIT, 4096 * 64), (Optimizer.ADAMW_TORCH_4BIT, 4096 * 32)],
)
def test_a_low_bit_step_takes_what_the_estimate_takes(monkeypatch, optim, codes):
    taken: list[int] = []
    torch = SimpleNamespace(
        float32=4,
        int64=8,
        nn=SimpleNamespace(Module=type),
        compile=lambda *_, **__: None,
        empty=lambda size, dtype, device: taken.append(size * dtype),
    )
    kernels.compile_nothing(torch)

    def single_param_adam() -> None: ...

    monkeypatch.setattr(single_param_adam, "__module__", "torchao.optim.adam")
    weight = SimpleNamespace(dim=lambda: 2, numel=lambda: 4096 * 64, device="cuda")
    moment = SimpleNamespace(
        codes=SimpleNamespace(numel=lambda: codes), scale=SimpleNamespace(numel=lambda: 1024)
    )
    torch.compile(single_param_adam)(weight, None, None, moment)
    assert tuple(taken) == between_kernels(Trainable((4096, 64), 2, 1), optim)

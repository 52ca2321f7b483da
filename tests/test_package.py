"""The package as people install it: wheel and sdist are built here, and the wheel is tested in its own environment.

Nothing is downloaded: the environment has only the wheel and finds its dependencies where these tests do.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this tree's wheel and sdist."""
    folder = tmp_path_factory.mktemp("built")
    _call(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with the wheel and nothing else of ours."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home)
    python = home / "bin" / "python"
    install = ("-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", "-q")
    _call(sys.executable, *install, str(next(built.glob("*.whl"))))
    (packages,) = home.glob("lib/python*/site-packages")
    beside = f"{sysconfig.get_path('purelib')}\nimport witness\n"
    (packages / "beside.pth").write_text(beside, encoding="utf-8")
    (packages / "witness.py").write_text(WITNESS, encoding="utf-8")
    return home / "bin"


WITNESS = """
import os
import socket
import sys


def see(event, given):
    told = os.environ.get("WITNESS")
    looked_up = event.startswith(("socket.getaddrinfo", "socket.gethostby", "socket.sendto"))
    connected = event == "socket.connect" and given[0].type == socket.SOCK_STREAM
    if told and (looked_up or connected):
        where = given[0] if looked_up else given[1]
        with open(told, "a", encoding="utf-8") as kept:
            kept.write(f"{event} {where}\\n")


sys.addaudithook(see)
"""
"""Writes down every name that a process looks up and every connection that it opens. A UDP socket that is connected
and sends nothing (how Streamlit finds its network interface) is not one."""


def _call(*command: str, cwd: Path | None = None, status: int = 0, given: str = "") -> str:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=clean, input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_wheel_has_every_module_every_page_and_every_table(built):
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    ours = {
        str(path.relative_to(ROOT))
        for folder in ("estimator", "dashboard")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert ours <= names
    assert {f"estimator/data/{path.name}" for path in (ROOT / "data").iterdir()} <= names
    assert {f"headroom/pages/{path.name}" for path in (ROOT / "pages").glob("*.py")} <= names
    assert {"headroom/app.py", "headroom/.streamlit/config.toml"} <= names


def test_wheel_installs_only_our_three_packages(built):
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    first = {name.split("/")[0] for name in names}
    assert {one for one in first if not one.startswith("headroom-")} == {
        "dashboard",
        "estimator",
        "headroom",
    }


def test_sdist_builds_the_same_wheel(built, tmp_path):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build = ("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheel"))
    _call(sys.executable, *build, cwd=source)
    (again,) = (tmp_path / "wheel").glob("*.whl")
    (first,) = built.glob("*.whl")
    assert _contents(again) == _contents(first)


def _contents(wheel: Path) -> dict[str, int]:
    return {member.filename: member.CRC for member in zipfile.ZipFile(wheel).infolist()}


def test_installed_command_answers_like_the_repository(installed, tmp_path):
    asked = ("openai-community/gpt2", "--gpu", "RTX 4090", "--method", "lora")
    here = _call(sys.executable, "-m", "estimator", *asked, cwd=ROOT)
    assert _call(str(installed / "headroom"), "estimate", *asked, cwd=tmp_path) == here
    where = _call(
        str(installed / "python"), "-c", "import estimator; print(estimator.__file__)", cwd=tmp_path
    )
    assert str(installed.parent) in where  # otherwise this would test the repository


def test_installed_command_estimates_and_places(installed, tmp_path):
    line = '{"model": "openai-community/gpt2", "gpu": "L4"}\n'
    answer = _call(str(installed / "headroom"), "estimate", "--json", cwd=tmp_path, given=line)
    assert json.loads(answer)["fits"] is True
    request = '{"model": "openai-community/gpt2", "max_memory": {"0": "24GiB", "cpu": "64GiB"}}'
    placed = _call(str(installed / "headroom"), "placement", request, cwd=tmp_path)
    assert json.loads(placed)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The witness's file of the served page."""
    return tmp_path_factory.mktemp("asked") / "asked"


@pytest.fixture(scope="module")
def served(installed: Path, asked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the installed page, which listens on every address, as in the image."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = ("--server.port", str(port), "--server.address", "0.0.0.0")
    command = [str(installed / "headroom"), "serve", *flags]
    with subprocess.Popen(
        command,
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env={**os.environ, "WITNESS": str(asked)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    ) as page:
        _wait(f"http://127.0.0.1:{port}/_stcore/health")
        yield f"127.0.0.1:{port}"
        page.terminate()


def _wait(health: str) -> None:
    for _ in range(120):
        try:
            with urllib.request.urlopen(health, timeout=5) as answer:
                assert answer.read() == b"ok"
                return
        except OSError:
            time.sleep(0.25)
    pytest.fail("the installed page does not answer")


def test_installed_page_is_served_with_headers_that_keep_it_to_itself(served):
    with urllib.request.urlopen(f"http://{served}", timeout=5) as answer:
        assert b"<html" in answer.read()
        policy = answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'self';" in policy
    assert "http" not in policy.partition("frame-ancestors")[0], "no other host is allowed"


def test_server_finds_its_pages_and_asks_no_host_while_it_starts_and_serves_and_refuses(
    served, asked
):
    """Streamlit 1.67 would ask checkip.amazonaws.com at its start and at a websocket of another origin."""
    stream = f"ws://{served}/_stcore/stream"
    with pytest.raises(InvalidStatus, match="403"):
        connect(stream, origin=Origin("http://elsewhere.example"))
    with connect(stream, origin=Origin(f"http://{served}"), max_size=None) as visitor:
        visitor.send(BackMsg(rerun_script={"query_string": ""}).SerializeToString())
        said, drawn = ForwardMsg(), set()
        while not _finished(said):
            said = ForwardMsg.FromString(visitor.recv(timeout=60))
            drawn.add(said.delta.new_element.WhichOneof("type"))
    assert "bidi_component" in drawn, "the start page, with its figure"
    assert "exception" not in drawn
    lines = asked.read_text(encoding="utf-8").splitlines() if asked.exists() else []
    assert [line for line in lines if "127.0.0.1" not in line] == []


def _finished(said: ForwardMsg) -> bool:
    """Whether a run has ended, and not to start again at once, as a first one does."""
    ended = said.WhichOneof("type") == "script_finished"
    return ended and said.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY

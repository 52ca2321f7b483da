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
    (packages / "beside.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return home / "bin"


def _call(*command: str, cwd: Path | None = None, status: int = 0, given: str = "") -> str:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=clean, input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_wheel_has_every_module_every_page_and_every_table(built: Path) -> None:
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


def test_wheel_installs_only_our_three_packages(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    first = {name.split("/")[0] for name in names}
    assert {it for it in first if not it.startswith("headroom-")} == {
        "dashboard",
        "estimator",
        "headroom",
    }


def test_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build = ("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheel"))
    _call(sys.executable, *build, cwd=source)
    (again,) = (tmp_path / "wheel").glob("*.whl")
    (first,) = built.glob("*.whl")
    assert _contents(again) == _contents(first)


def _contents(wheel: Path) -> dict[str, int]:
    return {it.filename: it.CRC for it in zipfile.ZipFile(wheel).infolist()}


def test_installed_command_answers_like_the_repository(installed: Path, tmp_path: Path) -> None:
    asked = ("openai-community/gpt2", "--gpu", "RTX 4090", "--method", "lora")
    here = _call(sys.executable, "-m", "estimator", *asked, cwd=ROOT)
    assert _call(str(installed / "headroom"), "estimate", *asked, cwd=tmp_path) == here
    where = _call(
        str(installed / "python"), "-c", "import estimator; print(estimator.__file__)", cwd=tmp_path
    )
    assert str(installed.parent) in where  # otherwise this would test the repository


def test_installed_command_estimates_and_places(installed: Path, tmp_path: Path) -> None:
    line = '{"model": "openai-community/gpt2", "gpu": "L4"}\n'
    answer = _call(str(installed / "headroom"), "estimate", "--json", cwd=tmp_path, given=line)
    assert json.loads(answer)["fits"] is True
    request = '{"model": "openai-community/gpt2", "max_memory": {"0": "24GiB", "cpu": "64GiB"}}'
    placed = _call(str(installed / "headroom"), "placement", request, cwd=tmp_path)
    assert json.loads(placed)


@pytest.fixture
def served(installed: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the installed page."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = ("--server.port", str(port), "--server.address", "localhost")
    command = [str(installed / "headroom"), "serve", *flags]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as page:
        yield f"http://localhost:{port}"
        page.terminate()


def test_installed_page_is_served(served: str) -> None:
    for _ in range(120):
        try:
            with urllib.request.urlopen(f"{served}/_stcore/health", timeout=5) as answer:
                assert answer.read() == b"ok"
                break
        except OSError:
            time.sleep(0.25)
    with urllib.request.urlopen(served, timeout=5) as answer:
        assert b"<html" in answer.read()


def test_installed_page_finds_its_router_and_pages(installed: Path, tmp_path: Path) -> None:
    """Run as Streamlit runs it, without a browser."""
    script = """
from streamlit.testing.v1 import AppTest
from dashboard.site.router import APP
page = AppTest.from_file(str(APP), default_timeout=60).run()
assert not page.exception, page.exception
assert "headroom" == APP.parent.name
print(len(page.main.children))
"""
    assert int(_call(str(installed / "python"), "-c", script, cwd=tmp_path)) > 0

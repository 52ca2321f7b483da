"""The deployment files name existing files, packages, hashes and ports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dashboard.plan import form

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
LOCKED = dict(re.findall(r"^([a-z0-9-]+)==([^ \\;]+)", LOCK, re.M))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_requirement_is_locked_with_version_and_hash():
    required = dict(re.findall(r"^([a-z0-9_.-]+)==(\S+)", text("requirements.txt"), re.M))
    assert {
        name.replace("_", "-").replace(".", "-"): value for name, value in required.items()
    }.items() <= (LOCKED.items())
    entries = re.split(r"^(?=[a-z0-9])", re.sub(r"^ *#.*\n", "", LOCK, flags=re.M), flags=re.M)[1:]
    assert len(entries) == len(LOCKED) > 30
    assert all("--hash=sha256:" in entry for entry in entries)


def test_image_copies_existing_files_and_the_whole_package():
    image, ignored = text("Dockerfile"), text(".dockerignore")
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", image, re.M)
        for name in line.split()[:-1]
    }
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name.split('/')[0]}" in ignored.split(), name
    packaged = tomllib.loads(text("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert copied >= {*packaged["packages"], *packaged["force-include"]}
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", image, re.M), "not root"
    assert "--require-hashes" in image
    assert "/_stcore/health" in image


def test_compose_runs_the_two_replicas_of_the_proxy():
    from ruamel.yaml import YAML

    services = YAML(typ="safe").load(text("compose.yaml"))["services"]
    replicas = re.findall(r"server (\w+):8501", text("deploy/nginx.conf"))
    assert replicas == [name for name in services if name != "proxy"]
    assert len(replicas) == 2
    assert all(services[name]["read_only"] for name in replicas)


def test_space_and_systemd_unit_use_the_image_port():
    (port,) = re.findall(r"^EXPOSE (\d+)$", text("Dockerfile"), re.M)
    assert f"\napp_port: {port}\n" in text("deploy/space.md")
    assert f"--server.port {port}" in text("deploy/headroom.service")


@pytest.mark.parametrize("name", ["deploy/slim.py", "deploy/audit.py"])
def test_image_scripts_import_only_the_standard_library(name):
    for node in ast.walk(ast.parse(text(name))):
        if isinstance(node, ast.Import):
            assert all(name.name.split(".")[0] in sys.stdlib_module_names for name in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.module
            assert node.module.split(".")[0] in sys.stdlib_module_names


def test_slim_removes_copies_and_tests_and_pip_only_if_named(tmp_path):
    # the loader reads libhighs.so.1 and libarrow_python.so.2600 (readelf -d: NEEDED, in the wheels of the lock)
    kept = ("highspy/libhighs.so.1", "pyarrow/libarrow_python.so.2600", "pandas/_testing/a.py")
    gone = ("highspy/libhighs.so.1.15.1", "pyarrow/libarrow_python.so", "pandas/tests/a.py")
    packages = tmp_path / "lib" / "python3.13" / "site-packages"
    for name in (*kept, *gone, "pip/a.py", "pip-26.0.dist-info/METADATA"):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text("12345")
    for installers, left in (
        ((), {*kept, "pip/a.py", "pip-26.0.dist-info/METADATA"}),
        (("pip",), {*kept}),
    ):
        command = [sys.executable, str(ROOT / "deploy" / "slim.py"), str(tmp_path), *installers]
        assert (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0 MB\n"
        )
        assert {
            str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()
        } == left


def test_telemetry_and_error_details_are_off():
    config = tomllib.loads(text(".streamlit/config.toml"))
    assert config["browser"]["gatherUsageStats"] is False
    assert config["client"]["showErrorDetails"] == "none"
    assert "HF_HUB_DISABLE_TELEMETRY=1" in text("Dockerfile")
    assert "HF_HUB_DISABLE_IMPLICIT_TOKEN=1" in text("Dockerfile")


def test_server_and_proxy_let_the_largest_upload_of_a_widget_through():
    # streamlit 1.67 ends a request body above server.maxUploadSize, whatever a widget's own limit
    server = tomllib.loads(text(".streamlit/config.toml"))["server"]["maxUploadSize"]
    proxy = int(re.findall(r"client_max_body_size (\d+)m;", text("deploy/nginx.conf"))[0])
    assert form.MOST_MEGABYTES <= server < proxy

"""Builds one library that stands for all of NVIDIA's, by the names and versions that PyTorch asks for.

Needs a C++ compiler and binutils, and nothing of NVIDIA's. Runs under the user's Python, 3.9 or newer.

usage: python build.py PACKAGES FOLDER     site-packages with torch's CUDA build, and where the libraries go
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parent / "null.cpp"
OF_NVIDIA = re.compile(r"(__cuda|cu[A-Z_a-z]|p?nccl|nvrtc|nvshmem|nvJitLink|nvml)\w*")
"""How the names of NVIDIA's functions begin."""
NVIDIA_LIBRARY = re.compile(r"lib(cu|nccl|nv)\S*\.so\.\d+\S*")
OPENED = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries that torch and NVIDIA's tools open by name instead of linking to them."""
LIBRARY = "libnull.so"
COMPILERS = ("g++", "c++", "clang++")
ASKING = (
    "torch/lib/*.so*",
    "bitsandbytes/*_cuda{version}.so",
    "*.so",
    "xformers/*.so",
    "vllm/*.so",
    "vllm/vllm_flash_attn/*.so",
    "vllm/third_party/deep_gemm/*.so",
    "torchvision/_C*.so",
    "torchaudio/lib/*.so",
)
"""Files that ask for NVIDIA's functions, in site-packages; ``{version}``: torch's CUDA version without its dot."""


class NotBuiltError(RuntimeError):
    """Why the libraries cannot be built, in one sentence."""


def cuda_of(packages: Path) -> str:
    """The CUDA version of an installed torch, such as 13.0; empty: built without."""
    text = (packages / "torch" / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found[1] if found else ""


def cached(packages: Path) -> Path:
    """The folder with the libraries for these packages, built at its first use."""
    asking = _asking(packages)
    parts = [SOURCE.read_text(encoding="utf-8"), Path(__file__).read_text(encoding="utf-8")]
    parts += [
        f"{library} {library.stat().st_size} {library.stat().st_mtime_ns}" for library in asking
    ]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "headroom" / "rehearse" / name
    if not folder.exists():
        begun = folder.with_name(f"{name}.{os.getpid()}")
        build(packages, begun)
        try:
            begun.rename(folder)  # at once: other ranks begin at the same time
        except OSError:
            shutil.rmtree(begun)
    return folder


def build(packages: Path, folder: Path) -> None:
    """Write the library into a folder, and beside it one for each name under which it is asked for."""
    for tool in ("readelf", "nm"):
        if shutil.which(tool) is None:
            raise NotBuiltError(f"{tool} is not here; install binutils and a C++ compiler, once.")
    asking = _asking(packages)
    folder.mkdir(parents=True, exist_ok=True)
    compiler = _compiler(packages)
    wanted = _wanted(asking)
    answered = _answered(compiler, folder)
    stubs, versions = folder / "stubs.cpp", folder / "versions"
    stubs.write_text(
        "".join(_stubs({name for names in wanted.values() for name in names} - answered))
    )
    versions.write_text("".join(_versions(wanted)))
    inputs = [str(folder / "null.o"), str(stubs), f"-Wl,--version-script={versions}"]
    _run(*compiler, "-shared", *inputs, f"-Wl,-soname,{LIBRARY}", "-o", str(folder / LIBRARY))
    empty = folder / "empty.cpp"
    empty.write_text("")
    own = ["-Wl,--no-as-needed", f"-L{folder}", f"-l:{LIBRARY}", "-Wl,-rpath,$ORIGIN"]
    for name in sorted({*_needed(asking), *OPENED}):
        (folder / name).unlink(missing_ok=True)
        _run(
            *compiler, "-shared", str(empty), *own, f"-Wl,-soname,{name}", "-o", str(folder / name)
        )


def _asking(packages: Path) -> list[Path]:
    version = cuda_of(packages).replace(".", "")
    return sorted(
        library for glob in ASKING for library in packages.glob(glob.format(version=version))
    )


def _compiler(packages: Path) -> list[str]:
    found = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "", *COMPILERS))), None)
    if found is None:
        raise NotBuiltError("no C++ compiler is here; install g++ or name one in CXX, once.")
    major, minor = cuda_of(packages).split(".")[:2]
    options = ["-O1", "-fPIC", "-w", "-std=c++17"]
    return [found, *options, f"-DCUDA_VERSION={1000 * int(major) + 10 * int(minor)}"]


def _run(*command: str) -> None:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise NotBuiltError(f"{command[0]} could not build the card that is not there: {said}")


def _lines(*command: str | Path) -> list[str]:
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout.splitlines()


def _wanted(asking: Iterable[Path]) -> dict[str, set[str]]:
    """NVIDIA's functions that libraries leave undefined, by version; those without one under an empty name."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for library in asking:
        for line in _lines("readelf", "--dyn-syms", "-W", library):
            fields = line.split()
            if len(fields) > 7 and fields[6] == "UND":
                name, _, version = fields[7].partition("@")
                if OF_NVIDIA.fullmatch(name):
                    wanted[version].add(name)
    return wanted


def _needed(asking: Iterable[Path]) -> set[str]:
    """The names of NVIDIA's libraries that libraries link to."""
    text = "\n".join(line for library in asking for line in _lines("readelf", "-d", "-W", library))
    return {
        name for name in re.findall(r"NEEDED.*\[(\S+)\]", text) if NVIDIA_LIBRARY.fullmatch(name)
    }


def _answered(compiler: list[str], folder: Path) -> set[str]:
    """The functions that the source defines."""
    compiled = folder / "null.o"
    _run(*compiler, "-c", str(SOURCE), "-o", str(compiled))
    return {line.split()[-1] for line in _lines("nm", "--defined-only", "-g", compiled)}


def _stubs(names: Iterable[str]) -> Iterator[str]:
    yield '#define DONE(name) extern "C" long name(...) { return 0; }\n'
    yield from (f"DONE({name})\n" for name in sorted(names))


def _versions(wanted: dict[str, set[str]]) -> Iterator[str]:
    """A linker's version script: each function under the version that PyTorch looks for."""
    for version, names in sorted(wanted.items()):
        if version:
            yield f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))

"""Builds one library that stands for all of NVIDIA's, by the names and versions that PyTorch asks for.

usage: python build.py ENVIRONMENT     a virtual environment with torch's CUDA build, and CUDA's headers in its headers/
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parent / "null.cpp"
OF_NVIDIA = re.compile(r"(__cuda|cu[A-Z_a-z]|p?nccl|nvrtc|nvshmem|nvJitLink)\w*")
"""How the names of NVIDIA's functions begin."""
NVIDIA_LIBRARY = re.compile(r"lib(cu|nccl|nv)\S*\.so\.\d+")
OPENED = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries that torch and NVIDIA's tools open by name instead of linking to them."""


def build(environment: Path) -> Path:
    """The folder with the library and its links."""
    packages = next(environment.glob("lib/python3*/site-packages"))
    asking = [*packages.glob("torch/lib/*.so*"), *packages.glob("bitsandbytes/*_cuda130.so")]
    folder = environment / "cuda"
    folder.mkdir(exist_ok=True)
    wanted = _wanted(asking)
    answered = _answered(environment)
    stubs, versions = folder / "stubs.cpp", folder / "versions"
    stubs.write_text(
        "".join(_stubs({name for names in wanted.values() for name in names} - answered))
    )
    versions.write_text("".join(_versions(wanted)))
    library = folder / "libnull.so"
    script = f"-Wl,--version-script={versions}"
    inputs = [str(SOURCE), str(stubs)]
    subprocess.run(
        [*_compiler(environment), "-shared", *inputs, script, "-o", str(library)], check=True
    )
    for name in {*_needed(asking), *OPENED}:
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(library.name)
    return folder


def _compiler(environment: Path) -> list[str]:
    include = environment / "headers" / "nvidia" / "cu13" / "include"
    return ["g++", "-O1", "-fPIC", "-w", "-std=c++17", f"-I{include}"]


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
    text = "\n".join(line for it in asking for line in _lines("readelf", "-d", "-W", it))
    return {
        name for name in re.findall(r"NEEDED.*\[(\S+)\]", text) if NVIDIA_LIBRARY.fullmatch(name)
    }


def _answered(environment: Path) -> set[str]:
    """The functions that the source defines."""
    compiled = environment / "cuda" / "null.o"
    subprocess.run([*_compiler(environment), "-c", str(SOURCE), "-o", str(compiled)], check=True)
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
    build(Path(sys.argv[1]))

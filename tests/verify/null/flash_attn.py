"""Builds flash-attn without its kernels, whose package on the index is a source that compiles for hours.

What allocates, `flash_api.cpp`, is compiled as it is, in a minute; in place of the kernels' launchers stand functions
that do nothing, as kernels do on a card that is not there. Needs g++ and the CUDA toolkit's headers; pip asks the
package's own setup script for its name, which imports a torch, such as that of `make verify`.

usage: python -m tests.verify.null.flash_attn PYTHON FOLDER [TOOLKIT]     the environment's Python with torch; where the
package goes, to be put on PYTHONPATH; where CUDA is, by default /usr/local/cuda
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

VERSION = "2.8.3.post2"
MODULE = "flash_attn_2_cuda"
DTYPES, HEADS, CAUSAL = ("half_t", "bfloat16_t"), (32, 64, 96, 128, 192, 256), ("true", "false")
LAUNCHERS = {
    "run_mha_fwd_": "Flash_fwd_params",
    "run_mha_fwd_splitkv_dispatch": "Flash_fwd_params",
    "run_mha_bwd_": "Flash_bwd_params",
}
"""Functions that flash_api.cpp calls, and their parameters: csrc/flash_attn/src/flash.h."""
ASKED = """
import sysconfig
from pathlib import Path
import importlib.util
print(Path(importlib.util.find_spec("torch").origin).parent)
print(sysconfig.get_paths()["include"])
print(sysconfig.get_config_var("EXT_SUFFIX"))
"""


def launchers() -> Iterator[str]:
    """Each instance of each launcher, which launches nothing."""
    yield '#include "namespace_config.h"\n#include <cuda_runtime.h>\n'
    yield "#include <ATen/cuda/PhiloxCudaState.h>\n#include <cutlass/numeric_types.h>\n"
    yield '#include "flash.h"\nnamespace FLASH_NAMESPACE {\n'
    for dtype, heads, causal in itertools.product(DTYPES, HEADS, CAUSAL):
        for name, parameters in LAUNCHERS.items():
            instance = f"{name}<cutlass::{dtype}, {heads}, {causal}>"
            yield f"template<> void {instance}({parameters}&, cudaStream_t) {{}}\n"
    yield "}\n"


def main(python: str, folder: Path, toolkit: Path) -> int:
    """Download the source, compile it, and lay the package into the folder."""
    asked = subprocess.run([python, "-c", ASKED], text=True, capture_output=True, check=True)
    torch, headers, suffix = asked.stdout.split()
    with tempfile.TemporaryDirectory() as name:
        source = _downloaded(Path(name))
        written = source / "launchers.cpp"
        written.write_text("".join(launchers()), encoding="utf-8")
        kernels = source / "csrc" / "flash_attn"
        included = [
            kernels, kernels / "src", source / "csrc" / "cutlass" / "include", f"{torch}/include",
            f"{torch}/include/torch/csrc/api/include", toolkit / "include", toolkit / "include" / "cccl", headers,
        ]  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                "g++", "-std=c++20", "-O1", "-fPIC", "-w", "-shared", f"-DTORCH_EXTENSION_NAME={MODULE}",
                "-DTORCH_API_INCLUDE_EXTENSION_H", *(f"-I{path}" for path in included), str(kernels / "flash_api.cpp"),
                str(written), "-o", str(folder / f"{MODULE}{suffix}"), f"-L{torch}/lib", f"-L{toolkit}/lib64",
                "-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-ltorch_python", "-lc10", "-lc10_cuda", "-lcudart",
            ],
            check=True,
        )  # fmt: skip
        shutil.copytree(source / "flash_attn", folder / "flash_attn", dirs_exist_ok=True)
    _describe(folder / f"flash_attn-{VERSION}.dist-info")
    return 0


def _downloaded(folder: Path) -> Path:
    """The package's source, unpacked."""
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        ":all:",
    ]
    subprocess.run(
        [*download, "--no-build-isolation", f"flash-attn=={VERSION}"],
        check=True,
        cwd=folder,
        env=os.environ | {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"},
    )
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"flash_attn-{VERSION}"


def _describe(folder: Path) -> None:
    """What transformers reads of an installed package: its name, version and modules."""
    folder.mkdir(exist_ok=True)
    for name, text in (
        ("METADATA", f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {VERSION}\n"),
        ("RECORD", "flash_attn/__init__.py,,\n"),
        ("top_level.txt", "flash_attn\n"),
    ):
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(
        main(
            sys.argv[1],
            Path(sys.argv[2]),
            Path(sys.argv[3] if len(sys.argv) > 3 else "/usr/local/cuda"),
        )
    )

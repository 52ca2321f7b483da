"""Remove from an environment what the page never loads: some 800 MB become 592 (Python 3.11 on x86).

    python deploy/slim.py .venv              # make run
    python deploy/slim.py /opt/headroom pip  # the image: pip, too, since nothing is installed later

`make audit` lists what remains: llvmlite, with which numba compiles the allocator, is 173 MB of it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

UNUSED = {
    "*/**/tests": "tests of pandas (46 MB), numpy and pyarrow",
    "pydeck/nbextension": "maps in notebooks; as are share/jupyter and etc/jupyter",
    "plotly/labextension": "figures in notebooks",
    "plotly/package_data/widgetbundle.js": "the same",
    "pyarrow/include": "headers",
    "pyarrow/src": "sources",
    "pyarrow/libarrow_flight*": "Arrow's network protocol",
    "pyarrow/libarrow_python_flight*": "the same",
    "pyarrow/_flight*": "the same",
    "pyarrow/libarrow_s3*": "files in S3; only _s3fs loads it",
    "pyarrow/_s3fs*": "the same",
    "pyarrow/_pyarrow_cpp_tests*": "tests",
    "pyarrow/libarrow_python*.so": "a copy for linkers: the loader reads libarrow_python.so.2600",
    "pyarrow/libarrow_python*.so.*.*.*": "another copy",
    "highspy/libhighs.so.*.*.*": "a copy: the loader reads libhighs.so.1",
    "setuptools*": "building; Python 3.12 no longer installs it",
    "_distutils_hack": "the same",
    "distutils-precedence.pth": "the same",
    "pkg_resources": "the same",
}
"""Paths in site-packages and their purpose."""


def slim(environment: Path, installers: tuple[str, ...] = ()) -> int:
    """Remove them, and the named installers; returns the remaining bytes."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    named = [*installers, *(f"{name}-*.dist-info" for name in installers)]
    unused = [path for pattern in (*UNUSED, *named) for path in packages.glob(pattern)]
    for path in (*unused, environment / "share" / "jupyter", environment / "etc" / "jupyter"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()
    return sum(
        path.stat().st_size
        for path in environment.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


if __name__ == "__main__":
    print(f"{slim(Path(sys.argv[1]), tuple(sys.argv[2:])) / 1e6:.0f} MB")

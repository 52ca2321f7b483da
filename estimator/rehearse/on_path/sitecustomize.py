"""Python runs this at its start where ``headroom rehearse`` has put this folder first on its path."""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _the_users_own() -> None:
    """Run the ``sitecustomize`` that this one hides, if there is one."""
    from importlib.machinery import PathFinder  # noqa: PLC0415 - only where Python begins
    from importlib.util import module_from_spec  # noqa: PLC0415

    others = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_the_users_own()
if "HEADROOM_REHEARSAL" in os.environ:
    from headroom_inside import begin  # type: ignore[import-not-found]

    begin.begin()

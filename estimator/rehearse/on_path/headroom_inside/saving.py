"""Keeps a rehearsal from writing weights that are zeros over a user's own, and from uploading them."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from . import record

UPLOADS = (
    "upload_file", "upload_folder", "upload_large_folder", "create_commit", "create_repo", "delete_repo", "delete_file",
)  # fmt: skip


def _not_done(what: str) -> Any:
    def nothing(*_: Any, **__: Any) -> None:
        record.note(f"{what} is not done in a rehearsal: the weights are zeros.")

    return nothing


def write_no_files(torch: Any) -> None:
    """``torch.save`` writes no file; into memory it writes as always."""
    save = torch.save
    told = _not_done("torch.save")

    @functools.wraps(save)
    def saved(what: Any, where: Any, *others: Any, **named: Any) -> Any:
        return save(what, where, *others, **named) if _is_in_memory(where) else told()

    torch.save = saved


def _is_in_memory(where: Any) -> bool:
    if not hasattr(where, "write"):
        return False  # a path
    try:
        where.fileno()
    except (AttributeError, OSError):  # io.UnsupportedOperation is one
        return True
    return False


def write_no_safetensors(module: ModuleType) -> None:
    """Nor does safetensors."""
    for name in ("save_file", "save_model"):
        setattr(module, name, _not_done(f"safetensors.torch.{name}"))


def upload_nothing(module: ModuleType) -> None:
    """Nothing is created, changed or deleted on the Hub."""
    for name in UPLOADS:
        if hasattr(module.HfApi, name):
            setattr(module.HfApi, name, _not_done(f"HfApi.{name}"))
    for name in UPLOADS:
        if hasattr(module, name):
            setattr(module, name, _not_done(f"HfApi.{name}"))

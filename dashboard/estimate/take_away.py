"""The files that run the setup on the page."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from estimator import (
    TOOLS,
    WRITABLE,
    Changed,
    Estimate,
    Imported,
    Model,
    TakeAway,
    Verdict,
    catalog,
    changed_files,
    changes_between,
    contract,
    estimate,
    files_of,
)

LANGUAGES: Mapping[str, str] = {
    "py": "python",
    "yaml": "yaml",
    "json": "json",
    "txt": "text",
    "sh": "bash",
}
"""Syntax highlighting, by file extension."""
OWN = "Your files"
"""First option of the tools' switch if a config was imported."""
NOTE = "Put your own data in; all else is as it was estimated. Versions are pinned to those that the estimate follows."

REHEARSE = "Rehearse it: its first steps run on any Linux machine with PyTorch's CUDA build, without a GPU."


def tools() -> dict[str, str]:
    """Tools for which files can be written, by label.

    >>> next(iter(tools().items()))
    ("TRL's SFTTrainer", 'trl')
    """
    return {TOOLS[name].label: name for name in WRITABLE}


def first_tool(answer: Estimate) -> str:
    """The label of the first tool that has words for the whole setup, such as its loss; else of the first."""
    labels = tools()
    for label, name in labels.items():
        with suppress(ValueError):
            files(answer, name)
            return label
    return next(iter(labels))


def files(answer: Estimate, tool: str) -> TakeAway:
    """A setup's files for a tool; ``ValueError`` names a key that the tool cannot express."""
    keys = contract.write_fields(answer.model, answer.gpu, answer.setup)
    return files_of(tool, keys, answer.model, about=contract.verdict(answer))


def rehearsal(answer: Estimate, away: TakeAway) -> str:
    """The command that rehearses a script of ours on this card; empty where that has not been tried."""
    gpu, setup = answer.gpu, answer.setup
    is_ours = away.command.endswith("train.py") and setup.task.objective.is_causal_lm
    if gpu is None or gpu.vendor != "NVIDIA" or gpu.name not in catalog.gpus() or not is_ours:
        return ""
    card = f"{setup.mesh.num_gpus}x {gpu.name}" if setup.mesh.num_gpus > 1 else gpu.name
    sets = "env " * ("=" in away.command.split()[0])  # its own words would be taken for a program
    return f'headroom rehearse --gpu "{card}" -- {sets}{away.command}'


def own_files(
    answer: Estimate, files: Mapping[str, str | bytes], was: Imported, known: Mapping[str, Model]
) -> Changed:
    """The visitor's files, changed to the setup on the page; ``ValueError`` names what they cannot express."""
    now = contract.write_fields(answer.model, answer.gpu, answer.setup)
    before: dict[str, object] = {**was.rows, "model": now["model"]}
    changes = changes_between(before, now, was.tool)
    return changed_files(files, changes, known)


def own_lead(answer: Estimate, change: Changed, was: Imported, known: Mapping[str, Model]) -> str:
    """The effect of a diff's lines, in a sentence or two."""
    if not change.diff:
        return "Your files say what the page shows; change the setup, and the lines that say so stand here."
    rows = [
        line
        for line in change.diff.splitlines()
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    count = sum(row.startswith("+") for row in rows) or len(rows)
    lines = "This line" if count == 1 else f"These {count} lines"
    follows = "".join(
        f" {key} follows: {before} → {after}." for key, (before, after) in change.also.items()
    )
    if answer.verdict is Verdict.FITS and not _fitted(answer, was, known):
        return f"{lines} make{'s' * (count == 1)} it fit.{follows}"
    return f"{lines} of yours change{'s' * (count == 1)} to what the page shows.{follows}"


def _fitted(answer: Estimate, was: Imported, known: Mapping[str, Model]) -> bool:
    """Whether the run in the original files fits this GPU."""
    now = contract.write_fields(answer.model, answer.gpu, answer.setup)
    keys: dict[str, object] = {**was.rows}
    keys |= {key: now[key] for key in ("model", "gpu") if key in now}
    try:
        return estimate(*contract.parse(keys, known)).verdict is Verdict.FITS
    except ValueError:
        return False


def language(name: str) -> str:
    """A file's language for syntax highlighting.

    >>> language("train.py"), language("accelerate.yaml")
    ('python', 'yaml')
    """
    return LANGUAGES[name.rpartition(".")[2]]

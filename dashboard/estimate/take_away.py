"""The files that run the setup on the page."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from estimator import TOOLS, WRITABLE, Estimate, TakeAway, contract, files_of

LANGUAGES: Mapping[str, str] = {"py": "python", "yaml": "yaml", "json": "json", "txt": "text"}
"""How a file is coloured, by its ending."""
NOTE = "Put your own data in; all else is as it was estimated. Versions are pinned to those that the estimate follows."


def tools() -> dict[str, str]:
    """The tools that files are written for, by their labels.

    >>> next(iter(tools().items()))
    ("TRL's SFTTrainer", 'trl')
    """
    return {TOOLS[name].label: name for name in WRITABLE}


def files(answer: Estimate, tool: str) -> TakeAway:
    """The files of a setup for a tool; ``ValueError`` names the key that it has no word for."""
    keys = contract.write_fields(answer.model, answer.gpu, answer.setup)
    return files_of(tool, keys, answer.model, about=contract.verdict(answer))


def language(name: str) -> str:
    """How a file is coloured.

    >>> language("train.py"), language("accelerate.yaml")
    ('python', 'yaml')
    """
    return LANGUAGES[name.rpartition(".")[2]]


def archive(away: TakeAway) -> bytes:
    """All files in one zip; the same files make the same bytes.

    >>> zipfile.ZipFile(io.BytesIO(archive(TakeAway(files={"a.txt": "x"}, command="run")))).namelist()
    ['a.txt', 'run.sh']
    """
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, text in {**away.files, "run.sh": f"{away.command}\n"}.items():
            zipped.writestr(zipfile.ZipInfo(name), text)
    return whole.getvalue()

"""Rehearses public training scripts, each with a tiny and a real model, and writes data/rehearsed.csv, worst first.

The scripts are read where they were checked out and run as they are, by their own entry points. Only the model (made
from its config), the data (few rows, made here), metrics (which are not asked) and the folder for output are ours;
axolotl gets PyTorch's attention, since flash-attn has no wheel on the package index.

usage: python -m tests.verify.null.public CHECKOUTS [TEXT …]     only plays whose name has one of these
CHECKOUTS has a folder for each project, at the revisions of public_scripts.py, and the environments' bin folders are
named in HEADROOM_TRL (transformers', TRL's and PEFT's; with evaluate), HEADROOM_AXOLOTL, HEADROOM_LLAMAFACTORY and
HEADROOM_VLLM (TRL's with vLLM: requirements-vllm.txt). flash_attn.py builds what asks for flash_attention_2.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.verify.null.public_commands import command, prepared
from tests.verify.null.public_scripts import PLAYS, REVISIONS, Play
from tests.verify.null.rehearsed import HEADROOM, ROOT

TABLE = ROOT / "data" / "rehearsed.csv"
ENVIRONMENTS = {"axolotl": "HEADROOM_AXOLOTL", "LLaMA-Factory": "HEADROOM_LLAMAFACTORY"}
CARD = "H100-SXM5-80GB"
STEPS = "2"
LONGEST = 600
"""Seconds that a rehearsal may take."""
COLUMNS = (
    "id", "size", "revision", "gpu", "status", "allocated_bytes", "reserved_bytes", "least_bytes", "estimated_bytes",
    "error", "versions", "sentence",
)  # fmt: skip


def rehearse(play: Play, size: str, checkouts: Path) -> dict[str, object]:
    """One row of the table."""
    row = {"id": play.id, "size": size, "revision": REVISIONS[play.project], "gpu": CARD}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(folder)
        try:
            done = _run(play, command(play, size, checkouts, folder), folder)
        except subprocess.TimeoutExpired:
            return {**row, "status": 2, "sentence": "It took more than ten minutes."}
        row["status"] = str(done.returncode)
        if log := os.environ.get("HEADROOM_LOGS"):
            shown = f"{play.id} {size}".replace("/", "_").replace(" ", "_")
            Path(log, f"{shown}.err").write_text(done.stderr, encoding="utf-8")
            Path(log, f"{shown}.json").write_text(done.stdout, encoding="utf-8")
        if not done.stdout:
            return {**row, "sentence": done.stderr.strip().splitlines()[-1]}
        found = _found(json.loads(done.stdout))
        sentence = str(found["sentence"]).replace(f"{checkouts}/", "").replace(f"{folder}/", "")
        if sentence and found["error"] and play.reason:
            sentence = f"{play.reason} {sentence}"
        return {**row, **found, "sentence": sentence}


def _run(play: Play, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    named = play.environment or ENVIRONMENTS.get(play.project, "HEADROOM_TRL")
    own = os.environ.get(named, "")
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "HF_MODULES_CACHE": str(folder / "modules"),
        "PATH": os.pathsep.join(filter(None, [own, os.environ["PATH"]])),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }
    return subprocess.run(
        [*HEADROOM, "--gpu", CARD, "--steps", STEPS, *play.flags, "--", *command],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
        env=environment,
        timeout=LONGEST,
    )


def _found(answer: Mapping[str, Any]) -> dict[str, object]:
    estimated = (answer["estimate"] or {}).get("allocated_bytes")
    whole = answer["with_memory_to_spare"] or answer
    is_whole = answer["fits"] is not None
    error = f"{estimated / whole['allocated_bytes'] - 1:.4f}" if estimated and is_whole else ""
    sentence = "" if error and abs(float(error)) <= 0.01 else answer["comparison"] or ""
    if not is_whole:
        sentence = answer["sentence"]
    return {
        "allocated_bytes": whole["allocated_bytes"],
        "reserved_bytes": whole["reserved_bytes"],
        "least_bytes": answer["least_bytes"],
        "estimated_bytes": estimated,
        "error": error,
        "versions": " ".join(f"{name} {number}" for name, number in answer["versions"].items()),
        "sentence": " ".join(sentence.split()),
    }


def order(row: Mapping[str, object]) -> tuple[bool, bool, float]:
    """Those that did not go through first, then those without an estimate, then by error."""
    error = str(row.get("error") or "")
    return str(row["status"]) == "0", bool(error), -abs(float(error or 0))


def plays(wanted: Sequence[str]) -> Iterator[tuple[Play, str]]:
    """Each script with its sizes."""
    for play in PLAYS:
        for size in play.sizes:
            if not wanted or any(text in f"{play.id} {size}" for text in wanted):
                yield play, size


def main(checkouts: Path, wanted: Sequence[str]) -> int:
    """Rehearse them, and put their rows into the table."""
    for play, size in plays(wanted):
        row = rehearse(play, size, checkouts)
        known: dict[tuple[object, object], dict[str, object]] = {}
        if TABLE.exists():
            with TABLE.open(encoding="utf-8") as file:
                known = {
                    (known_row["id"], known_row["size"]): dict(known_row)
                    for known_row in csv.DictReader(file)
                }
        known[play.id, size] = row
        print(play.id, size, row["status"], row.get("error"), row.get("sentence"), flush=True)
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(known.values(), key=order))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

"""The files that run a setup: a script or a config of the tool's, accelerate's, DeepSpeed's, and how to launch them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

from estimator.tools.defaults import tool_named, version_of
from estimator.tools.known.allocator import assignment
from estimator.tools.rules import Tool, Values
from estimator.tools.sayable import sayable
from estimator.tools.writing.registry import WRITERS, writer_of
from estimator.tools.writing.several_gpus import DEEPSPEED_FILE
from estimator.tools.writing.texts import json_text, nested, yaml
from estimator.tools.writing.theirs import theirs_of
from estimator.tools.writing.writer import ACCELERATE_FILE, Said, ToolWriter
from estimator.values.refusals import LIBRARIES, InputError
from estimator.values.specs import Model

REQUIREMENTS = "requirements.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeAway:
    """Files that run a setup, by their names, and the command that starts them."""

    files: Mapping[str, str]
    command: str

    @property
    def main(self) -> str:
        """The name of the first: the script, or the tool's own config."""
        return next(iter(self.files))

    def archive(self) -> bytes:
        """All files and the command in one zip. Equal files give equal bytes.

        >>> zipfile.ZipFile(io.BytesIO(TakeAway(files={"a.txt": "x"}, command="run").archive())).namelist()
        ['a.txt', 'run.sh']
        """
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, text in {**self.files, "run.sh": f"{self.command}\n"}.items():
                zipped.writestr(zipfile.ZipInfo(name), text)
        return whole.getvalue()


def files_of(
    tool_name: str,
    keys: Values,
    model: Model | None = None,
    *,
    about: str = "",
    dataset: str = "",
) -> TakeAway:
    """The files of a setup for a tool; ``InputError`` names the key that the tool has no word for.

    ``about``: a sentence for the head of the script, such as the verdict.

    >>> keys = {"model": "openai-community/gpt2", "loss": "chunked_trl", "num_gpus": 4, "strategy": "ddp"}
    >>> away = files_of("trl", keys)
    >>> [*away.files]
    ['train.py', 'sft.yaml', 'accelerate.yaml', 'requirements.txt']
    >>> away.command
    'accelerate launch --config_file accelerate.yaml train.py'
    """
    tool = tool_named(tool_name, keys.get("objective"))
    if tool.name not in WRITERS:
        raise InputError(f"files for {tool.label} are not written yet; take {_named()}.")
    if not isinstance(keys.get("model"), str):
        raise InputError("the model has no name that a file could load it by; take one of the Hub.")
    writer = WRITERS[tool.name]
    keys = writer.stated(keys, model)
    plain = sayable(keys, tool.name)
    _check_stops(writer, plain)
    theirs = theirs_of(tool, keys, model, writer.parts)
    objective = str(plain["objective"])
    if objective not in writer.datasets:
        raise InputError(f"files of {tool.label} for objective {objective} are not written yet.")
    said = Said(theirs, about, dataset or writer.datasets[objective], objective)
    files = writer.files(said)
    if writer.takes_accelerate_file and (accelerate := nested(theirs, "accelerate")):
        files[ACCELERATE_FILE] = yaml(accelerate)
    if deepspeed := nested(theirs, "deepspeed"):
        files[DEEPSPEED_FILE] = json_text(deepspeed)
    files[REQUIREMENTS] = requirements(tool, keys)
    before = "" if writer.command_is_a_file else assignment(nested(theirs, "allocator"))
    return TakeAway(files=files, command=f"{before}{writer.command(said)}")


def _named() -> str:
    return " or ".join(WRITERS)


def _check_stops(writer: ToolWriter, keys: Values) -> None:
    """``InputError`` where the tool would stop at these keys of ours."""
    if keys.get("mixed_precision") == "fp8":
        raise InputError(
            "mixed_precision fp8 is read from files but not written to them yet; set it in accelerate's own config."
        )
    for stop in writer.stops:
        if stop.when(keys):
            raise InputError(stop.says)


def requirements(tool: Tool, keys: Values) -> str:
    """What must be installed, pinned to the versions that were read for this estimate.

    >>> from estimator.tools.known import trl
    >>> requirements(trl.TOOL, {"method": "full"}).split()[:2]
    ['torch==2.13.0', 'transformers==5.23.0']
    """
    writer = writer_of(tool.name)
    if not tool.is_called:  # the tool pins the others itself
        more = ["deepspeed"] * str(keys.get("strategy", "")).startswith("zero")
        own = f"{tool.distribution}{writer.extras}=={version_of(tool.name)}"
        return "\n".join([own, *more, *writer.packages(keys), ""])
    names = [*dict.fromkeys(("torch", "transformers", tool.distribution))]
    if keys.get("method", "full") != "full":
        names.append("peft")
    names.append("accelerate")
    optimizer = str(keys.get("optim", ""))
    packs = keys.get("method") == "qlora" or keys.get("load_in_8bit")
    if packs or any(word in optimizer for word in ("bnb", "8bit", "paged", "lion", "ademamix")):
        names.append("bitsandbytes")
    if keys.get("use_liger_kernel"):
        names.append("liger-kernel")
    if str(keys.get("strategy", "")).startswith("zero"):
        names.append("deepspeed")
    pinned = [f"{name}=={LIBRARIES[name][0]}" for name in names]
    if keys.get("attn_implementation") == "flash_attention_2":
        pinned.append("flash-attn")
    return "\n".join([*pinned, "datasets", ""])

"""Reads configs with a tool's own classes: ``python real_parser.py TOOL < configs.json > answers.json``.

Each tool runs in its own process: its packages are in a separate folder, without their dependencies, so
that nothing else in ``make verify`` finds them. Each config becomes a mapping of the classes' fields, or the
message with which they refused it.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def with_axolotl(config: Mapping[str, Any]) -> Mapping[str, Any]:
    import axolotl
    from axolotl.utils.schemas.config import AxolotlInputConfig

    # only the file: its package would import Liger and Triton
    file = Path(axolotl.__file__).parent / "integrations" / "liger" / "args.py"
    spec = importlib.util.spec_from_file_location("liger_args", file)
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)

    class Config(AxolotlInputConfig, plugin.LigerArgs):
        """As axolotl merges the classes of the plugins that a config names."""

    read = Config(**config).model_dump(mode="json")
    return {str(key): value for key, value in read.items()}


def with_llamafactory(config: Mapping[str, Any]) -> Mapping[str, Any]:
    from llamafactory.hparams.data_args import DataArguments
    from llamafactory.hparams.finetuning_args import FinetuningArguments
    from llamafactory.hparams.generating_args import GeneratingArguments
    from llamafactory.hparams.model_args import ModelArguments
    from llamafactory.hparams.training_args import TrainingArguments
    from transformers import HfArgumentParser

    kinds = (ModelArguments, DataArguments, TrainingArguments, FinetuningArguments)
    read = HfArgumentParser((*kinds, GeneratingArguments)).parse_dict(dict(config))
    return {key: value for one in read for key, value in vars(one).items()}


def with_deepspeed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    from deepspeed.runtime.config import DeepSpeedConfig

    zero = DeepSpeedConfig(dict(config)).zero_config
    of = {what: getattr(zero, f"offload_{what}") for what in ("optimizer", "param")}
    return {
        "stage": int(zero.stage),
        "gathers": zero.gather_16bit_weights_on_model_save,
        **{what: str(value.device) if value else "none" for what, value in of.items()},
    }


READ = {
    "axolotl": with_axolotl,
    "llamafactory": with_llamafactory,
    "deepspeed": with_deepspeed,
}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    out, sys.stdout = sys.stdout, sys.stderr  # the libraries print
    answers: list[Any] = []
    for config in json.load(sys.stdin):
        try:
            answers.append(READ[sys.argv[1]](config))
        except ValueError as problem:
            answers.append(str(problem))
    json.dump(answers, out, default=str)


if __name__ == "__main__":
    main()

"""The whole run: examples, evaluation, checkpoints, price."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import Choice, Number, Percentages, ShortText, WholeNumber
from estimator.values.specs import FULL_STATE_DICT, LOWEST_MFU, SHARDED_STATE_DICT

_WHEN = ("no", "steps", "epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun(Checked):
    """The whole run: examples, evaluation, checkpoints, and the price per GPU-hour."""

    __hash__ = Hashed.__hash__

    num_train_examples: int = key(
        10_000,
        WholeNumber(10**12),
        "examples in the training set",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.RUN, "Examples", step=1000),
    )
    num_train_epochs: float = key(
        1.0,
        Number(1_000_000, open_low=True),
        "passes over the training set",
        default_from=DefaultSource.OURS,
        remark="Trainer's is 3",
        widget=Widget(Section.RUN, "Epochs", ends=(0.01, 1_000_000.0)),
    )
    mean_tokens_per_example: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "mean tokens per example",
        "The amount of work is examples × mean length. Memory depends on the context, not on this.",
        default_from=DefaultSource.OURS,
        null="the context length",
        widget=Widget(Section.RUN, "Mean tokens per example", step=64),
    )
    eval_strategy: str = key(
        "no",
        Choice(_WHEN),
        "when to evaluate",
        "Evaluation has its own batch size, so its own memory peak.",
        widget=Widget(Section.RUN, "Evaluation"),
    )
    per_device_eval_batch_size: int = key(
        8,
        WholeNumber(4096),
        "examples per evaluation batch",
        widget=Widget(Section.RUN, "Evaluation batch size"),
    )
    compute_metrics: bool = flag(
        False,
        "compute metrics of an evaluation's logits, which stay on the GPU",
        "Evaluation returns those of every batch and keeps them.",
        widget=Widget(Section.RUN, "Metrics of the logits"),
    )
    eval_accumulation_steps: int | None = key(
        None,
        WholeNumber(10**6, nullable=True),
        "evaluation batches whose logits are kept before they go to the host",
        "Only metrics of the logits keep them.",
        null="all of the evaluation",
        widget=Widget(Section.RUN, "Evaluation batches kept"),
    )
    save_strategy: str = key(
        "epoch",
        Choice((*_WHEN, "best")),
        "when to save",
        "Every 500 steps, every epoch, or at each new best metric.",
        default_from=DefaultSource.OURS,
        remark="Trainer's is steps",
        widget=Widget(Section.RUN, "Save"),
    )
    save_total_limit: int | None = key(
        None,
        WholeNumber(10**6, nullable=True),
        "checkpoints kept",
        "The oldest is deleted after the next one is written.",
        null="all",
        widget=Widget(Section.RUN, "Checkpoints kept"),
    )
    save_only_model: bool = flag(
        False,
        "checkpoints without optimizer states",
        "Training cannot resume from them.",
        widget=Widget(Section.RUN, "Weights only"),
    )
    fsdp_state_dict_type: str = key(
        FULL_STATE_DICT,
        Choice((FULL_STATE_DICT, SHARDED_STATE_DICT)),
        "how FSDP saves: the full model through rank 0, or each rank its own shards",
        remark=f"accelerate's launcher: {SHARDED_STATE_DICT}",
        widget=Widget(Section.SEVERAL_GPUS, "FSDP checkpoint type"),
    )
    zero3_save_16bit_model: bool = flag(
        False,
        "ZeRO-3 gathers the 16-bit weights when it saves",
        "They are saved in addition to DeepSpeed's shards.",
        default_from=DefaultSource.DEEPSPEED,
        aliases=("stage3_gather_16bit_weights_on_model_save",),
        widget=Widget(Section.SEVERAL_GPUS, "ZeRO-3 saves 16-bit weights"),
    )
    usd_per_gpu_hour: float | None = key(
        None,
        Number(1_000_000, nullable=True),
        "your own price in US dollars per GPU-hour",
        "Known listings, with dates and sources, are in data/prices.csv.",
        default_from=DefaultSource.OURS,
        null="the cheapest known listing",
        widget=Widget(Section.RUN, "US dollars per GPU-hour", step=0.1),
    )
    mfu: float | None = key(
        None,
        Number(1, low=LOWEST_MFU, nullable=True),
        "your own model FLOPs utilisation, from 0 to 1",
        "A value you measured on a similar run narrows the range of the estimate.",
        default_from=DefaultSource.OURS,
        null="the range of published runs",
        widget=Widget(Section.RUN, "Model FLOPs utilisation (0 to 1)", step=0.05),
    )
    pace: float | None = key(
        None,
        Number(1000, low=-1, open_low=True, nullable=True),
        "where your own machine's step lies between the ends of the estimate: 0 the fast end, 1 the slow end",
        default_from=DefaultSource.OURS,
        null="the range of published runs",
        widget="a box beside the seconds finds it from a step of your own",
    )
    pace_from: str | None = key(
        None,
        ShortText(nullable=True),
        "which step of your own the pace was taken from",
        default_from=DefaultSource.OURS,
        null="no step of your own",
        widget="the box beside the seconds says it",
    )
    pace_shares: str | None = key(
        None,
        Percentages(5, nullable=True),
        "what that step spent its seconds on, in percent: products/attention/memory/host/links",
        default_from=DefaultSource.OURS,
        null="unknown",
        widget="the box beside the seconds finds it",
    )

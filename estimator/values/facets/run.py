"""The whole run: examples, evaluation, checkpoints, price."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Choice, Flag, Number, Percentages, ShortText, WholeNumber
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
        code="x",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Examples",
            help="Examples in the training set.",
            step=1000,
        ),
    )
    num_train_epochs: float = key(
        1.0,
        Number(1_000_000, open_low=True),
        "passes over the training set",
        default_from=DefaultSource.OURS,
        remark="Trainer's is 3",
        code="e",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Epochs",
            help="Passes over the training set.",
            ends=(0.01, 1_000_000.0),
        ),
    )
    mean_tokens_per_example: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "mean tokens per example",
        default_from=DefaultSource.OURS,
        null="the context length",
        code="mt",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Mean tokens per example",
            help="The amount of work is examples × mean length. Memory depends on the context, not on this.",
            step=64,
        ),
    )
    eval_strategy: str = key(
        "no",
        Choice(_WHEN),
        "when to evaluate",
        code="es",
        widget=Widget(
            shape="select",
            section=Section.RUN,
            label="Evaluation",
            help="Trainer's eval_strategy. Evaluation has its own batch size, so its own memory peak.",
        ),
    )
    per_device_eval_batch_size: int = key(
        8,
        WholeNumber(4096),
        "examples per evaluation batch",
        code="eb",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Evaluation batch size",
            help="Trainer's per_device_eval_batch_size.",
        ),
    )
    compute_metrics: bool = key(
        False,
        Flag(),
        "compute metrics of an evaluation's logits, which stay on the GPU",
        code="cm",
        widget=Widget(
            shape="toggle",
            section=Section.RUN,
            label="Metrics of the logits",
            help="Trainer's compute_metrics: evaluation returns the logits of every batch and keeps them.",
        ),
    )
    eval_accumulation_steps: int | None = key(
        None,
        WholeNumber(10**6, nullable=True),
        "evaluation batches whose logits are kept before they go to the host",
        null="all of the evaluation",
        code="ea",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Evaluation batches kept",
            help="Trainer's eval_accumulation_steps: with metrics of the logits, after so many batches they go to the "
            "host.",
        ),
    )
    save_strategy: str = key(
        "epoch",
        Choice((*_WHEN, "best")),
        "when to save",
        default_from=DefaultSource.OURS,
        remark="Trainer's is steps",
        code="ss",
        widget=Widget(
            shape="select",
            section=Section.RUN,
            label="Save",
            help="Trainer's save_strategy: every 500 steps, every epoch, or at each new best metric.",
        ),
    )
    save_total_limit: int | None = key(
        None,
        WholeNumber(10**6, nullable=True),
        "checkpoints kept",
        null="all",
        code="sl",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Checkpoints kept",
            help="Trainer's save_total_limit. The oldest checkpoint is deleted after the next one is written.",
        ),
    )
    save_only_model: bool = key(
        False,
        Flag(),
        "checkpoints without optimizer states",
        code="so",
        widget=Widget(
            shape="toggle",
            section=Section.RUN,
            label="Weights only",
            help="Trainer's save_only_model: no optimizer states, so training cannot resume from the checkpoint.",
        ),
    )
    fsdp_state_dict_type: str = key(
        FULL_STATE_DICT,
        Choice((FULL_STATE_DICT, SHARDED_STATE_DICT)),
        "how FSDP saves: the full model through rank 0, or each rank its own shards",
        remark=f"accelerate's launcher: {SHARDED_STATE_DICT}",
        code="sd",
        widget=Widget(
            shape="select",
            section=Section.SEVERAL_GPUS,
            label="FSDP checkpoint type",
            help="fsdp_state_dict_type: rank 0 gathers and writes the full model, or each GPU writes its own shards.",
        ),
    )
    zero3_save_16bit_model: bool = key(
        False,
        Flag(),
        "ZeRO-3 gathers the 16-bit weights when it saves",
        default_from=DefaultSource.DEEPSPEED,
        code="z6",
        aliases=("stage3_gather_16bit_weights_on_model_save",),
        widget=Widget(
            shape="toggle",
            section=Section.SEVERAL_GPUS,
            label="ZeRO-3 saves 16-bit weights",
            help="zero3_save_16bit_model: gathers and saves the 16-bit model in addition to DeepSpeed's shards.",
        ),
    )
    usd_per_gpu_hour: float | None = key(
        None,
        Number(1_000_000, nullable=True),
        "your own price in US dollars per GPU-hour",
        default_from=DefaultSource.OURS,
        null="the cheapest known listing",
        code="us",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="US dollars per GPU-hour",
            help="Your own price. Known listings, with dates and sources, are in data/prices.csv.",
            step=0.1,
        ),
    )
    mfu: float | None = key(
        None,
        Number(1, low=LOWEST_MFU, nullable=True),
        "your own model FLOPs utilisation, from 0 to 1",
        default_from=DefaultSource.OURS,
        null="the range of published runs",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Model FLOPs utilisation (0 to 1)",
            help="A value you measured on a similar run. It narrows the range of the estimate.",
            step=0.05,
        ),
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

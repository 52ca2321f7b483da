"""The run around its steps: examples, evaluation, saving, price."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, Hashed, Section, Whose, Widget, key
from estimator.values.kinds import Choice, Flag, Number, WholeNumber
from estimator.values.specs import FULL_STATE_DICT, LOWEST_MFU, SHARDED_STATE_DICT

_WHEN = ("no", "steps", "epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun(Checked):
    """The run around the steps: examples, evaluations, checkpoints, and what an hour of it costs."""

    __hash__ = Hashed.__hash__

    num_train_examples: int = key(
        10_000,
        WholeNumber(10**12),
        "examples in the training set",
        whose=Whose.OURS,
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
        "passes over them",
        whose=Whose.OURS,
        beside="Trainer's is 3",
        code="e",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Epochs",
            help="Passes over the examples.",
            ends=(0.01, 1_000_000.0),
        ),
    )
    mean_tokens_per_example: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "tokens in an example on average",
        whose=Whose.OURS,
        null="as many as the context",
        code="mt",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Mean tokens of an example",
            help="The work is examples × their mean length; the memory follows the context.",
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
            help="Trainer's eval_strategy: evaluating holds its own batch.",
        ),
    )
    per_device_eval_batch_size: int = key(
        8,
        WholeNumber(4096),
        "examples in an evaluation batch",
        code="eb",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Examples in an evaluation batch",
            help="Trainer's per_device_eval_batch_size.",
        ),
    )
    save_strategy: str = key(
        "epoch",
        Choice((*_WHEN, "best")),
        "when to save",
        whose=Whose.OURS,
        beside="Trainer's is steps",
        code="ss",
        widget=Widget(
            shape="select",
            section=Section.RUN,
            label="Save",
            help="Trainer's save_strategy: every 500 steps, every epoch, or when the metric is best.",
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
            help="Trainer's save_total_limit; the oldest goes when the next is written.",
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
            help="Trainer's save_only_model: no optimizer states, so no run can go on from it.",
        ),
    )
    fsdp_state_dict_type: str = key(
        FULL_STATE_DICT,
        Choice((FULL_STATE_DICT, SHARDED_STATE_DICT)),
        "how FSDP saves: whole through rank 0, or each rank its shards",
        beside=f"of accelerate's launcher: {SHARDED_STATE_DICT}",
        code="sd",
        widget=Widget(
            shape="select",
            section=Section.SEVERAL_GPUS,
            label="Checkpoints of FSDP",
            help="fsdp_state_dict_type: the whole model through rank 0, or each GPU its shards.",
        ),
    )
    zero3_save_16bit_model: bool = key(
        False,
        Flag(),
        "ZeRO-3 gathers 16-bit weights to save them",
        whose=Whose.DEEPSPEED,
        code="z6",
        aliases=("stage3_gather_16bit_weights_on_model_save",),
        widget=Widget(
            shape="toggle",
            section=Section.SEVERAL_GPUS,
            label="ZeRO-3 saves 16-bit weights",
            help="zero3_save_16bit_model: gathers the model to save it, beside DeepSpeed's parts.",
        ),
    )
    usd_per_gpu_hour: float | None = key(
        None,
        Number(1_000_000, nullable=True),
        "your own price",
        whose=Whose.OURS,
        null="the cheapest listing known",
        code="us",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="US dollars a GPU-hour",
            help="Your own price; listings stand in data/prices.csv, named with their dates.",
            step=0.1,
        ),
    )
    mfu: float | None = key(
        None,
        Number(1, low=LOWEST_MFU, nullable=True),
        "your own utilisation, a share",
        whose=Whose.OURS,
        null="the bracket of published runs",
        widget=Widget(
            shape="number",
            section=Section.RUN,
            label="Model FLOPs utilisation (0 to 1)",
            help="What you have measured of such a run; it narrows the bracket.",
            step=0.05,
        ),
    )

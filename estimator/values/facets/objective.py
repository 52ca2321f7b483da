"""The objective of a step, and how its loss is computed."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Choice, Flag, Number, WholeNumber
from estimator.values.losses import NOT_GIVEN, Loss, LossFacts
from estimator.values.objective import OBJECTIVES, Objective
from estimator.values.objectives import sft

LOSS_TYPES = tuple(
    dict.fromkeys(word for objective in OBJECTIVES.values() for word in objective.loss_types)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Checked):
    """The objective of a step and its loss."""

    __hash__ = Hashed.__hash__

    objective: Objective = key(
        sft.OBJECTIVE,
        Choice(OBJECTIVES, member=OBJECTIVES.__getitem__, later=("ppo",)),
        "what is trained for",
        default_from=DefaultSource.OURS,
        code="oj",
        widget=Widget(
            shape="select",
            section=Section.ALWAYS,
            label="Objective",
            help="sft: the next token. dpo, orpo and reward take pairs of answers, kto single ones, embedding pairs of "
            "texts; grpo and rloo train on what the model writes.",
            decides=True,
        ),
    )
    loss: Loss | None = key(
        None,
        Choice(tuple(Loss), member=Loss, nullable=True),
        "how the loss is computed",
        null="Liger's with its kernels, else standard; the fused head of TRL for dpo, kto, grpo and rloo",
        code="lo",
        widget=Widget(
            shape="select",
            section=Section.MORE,
            label="Loss",
            help="Whether the full logits are ever in memory at once. Of dpo and kto standard is LLaMA-Factory's, "
            "selective ms-swift's, selective_trl that of TRL before 1.15. selective_verl is verl's of grpo and rloo.",
        ),
    )
    completion_fraction: float = key(
        1.0,
        Number(1, open_low=True),
        "share of an example's tokens that are scored; TRL's fused head computes these alone",
        default_from=DefaultSource.OURS,
        code="cf",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Scored share of an example",
            help="completion_fraction: of a prompt and its completion the share of the completion. TRL's fused head "
            "computes these tokens alone.",
            step=0.05,
            ends=(0.01, 1.0),
        ),
    )
    max_prompt_length: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "of max_length, the prompt's tokens, in preference training",
        default_from=DefaultSource.OURS,
        null="half of the context",
        code="pl",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Tokens of the prompt",
            help="max_prompt_length: of the context, the prompt's tokens, which are not scored.",
            step=64,
        ),
    )
    precompute_ref_log_probs: bool = key(
        False,
        Flag(),
        "ask the reference model before training, and keep its answers",
        default_from=DefaultSource.TRL,
        code="pr",
        widget=Widget(
            shape="toggle",
            section=Section.OBJECTIVE,
            label="Precompute the reference",
            help="precompute_ref_log_probs: one pass over the data before training, after which no reference model "
            "stays on the GPU.",
        ),
    )
    loss_type: str | None = key(
        None,
        Choice(LOSS_TYPES, nullable=True),
        "of dpo, kto, sft and grpo, as TRL names them",
        default_from=DefaultSource.TRL,
        null="sigmoid for dpo, kto for kto, nll for sft, dapo for grpo",
        code="ly",
        widget=Widget(
            shape="select",
            section=Section.OBJECTIVE,
            label="Loss type",
            help="TRL's loss_type. Of memory it changes one thing: kto's apo_zero_unpaired has no KL passes.",
        ),
    )
    beta: float | None = key(
        None,
        Number(1_000, nullable=True),
        "weight of the reference model in the loss; 0 in grpo and rloo: there is none",
        default_from=DefaultSource.TRL,
        null="that of the trainer",
        code="be",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Weight of the reference",
            help="beta: 0.05 in rloo and 0 in grpo, where other values load a reference model.",
            step=0.01,
        ),
    )
    max_completion_length: int = key(
        256,
        WholeNumber(2**24),
        "of max_length, the tokens that are generated and scored, in grpo and rloo",
        default_from=DefaultSource.OURS,
        remark="TRL's is 512",
        code="cl",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Tokens of a completion",
            help="max_completion_length: of the context, what the model writes itself; the rest is the prompt's.",
            step=64,
        ),
    )
    num_generations: int = key(
        8,
        WholeNumber(4096, low=2),
        "completions of a prompt, in grpo and rloo",
        default_from=DefaultSource.TRL,
        remark="RLOO's is 2",
        code="ng",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Completions of a prompt",
            help="num_generations: the rows of all GPUs are so many completions of each prompt.",
        ),
    )
    steps_per_generation: int | None = key(
        None,
        WholeNumber(65_536, nullable=True),
        "micro-steps on the completions of one generation",
        default_from=DefaultSource.TRL,
        null="as many as the accumulation",
        code="sg",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Micro-steps of a generation",
            help="steps_per_generation: micro-batches that are generated at once.",
        ),
    )
    num_iterations: int = key(
        1,
        WholeNumber(1024),
        "times that completions are trained on",
        default_from=DefaultSource.TRL,
        code="ni",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Uses of a generation",
            help="num_iterations: more than 1 asks the policy once more for its log-probabilities.",
        ),
    )
    num_labels: int = key(
        2,
        WholeNumber(1_000_000),
        "labels of a classification head; a reward model has 1",
        default_from=DefaultSource.TRANSFORMERS,
        code="nl",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Labels",
            help="num_labels of a classification head.",
        ),
    )
    mini_batch_size: int | None = key(
        None,
        WholeNumber(4096, nullable=True),
        "GradCache: rows of an embedding batch that go through the model at once",
        default_from=DefaultSource.OURS,
        null="the whole batch",
        remark="of sentence-transformers' cached losses: 32",
        code="mb",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Rows at once (GradCache)",
            help="mini_batch_size of CachedMultipleNegativesRankingLoss: the batch goes through the model in parts, "
            "twice.",
        ),
    )
    label_smoothing_factor: float = key(
        0.0,
        Number(1),
        "label smoothing, which needs the whole logits whatever the loss",
        code="sm",
        widget=Widget(
            shape="number",
            section=Section.OBJECTIVE,
            label="Label smoothing",
            help="label_smoothing_factor: any at all brings the whole logits back, with TRL's loss in tiles too.",
            step=0.05,
        ),
    )
    hold_outputs: bool = key(
        False,
        Flag(),
        "the training loop keeps the model's outputs during backward",
        code="ho",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Loop keeps model outputs",
            help="hold_outputs: for a custom loop that keeps the model's outputs, and so the logits, during backward.",
        ),
    )

    @property
    def given_loss(self) -> LossFacts:
        """The facts of the loss that is given; ``loss_of`` has those of the trainer's own."""
        return self.loss or NOT_GIVEN

    @property
    def smooths_labels(self) -> bool:
        """Whether labels are smoothed, which needs the whole logits.

        Source: transformers 5.23, trainer.py, ``compute_loss``; trl 1.16, trainer/sft_trainer.py (of ``nll`` alone).
        """
        is_plain = self.objective.is_causal_lm and self.loss_type in (None, "nll")
        return is_plain and self.label_smoothing_factor > 0

    @property
    def asks_reference(self) -> bool:
        """Whether steps ask a reference: GRPO's and RLOO's only where it has a weight in the loss.

        Source: trl 1.16, trainer/grpo_config.py:681 (``beta`` 0.0), trainer/rloo_config.py:502 (0.05).
        """
        if self.objective.generates:
            return (self.objective.beta if self.beta is None else self.beta) != 0
        return self.objective.has_reference and not self.precompute_ref_log_probs

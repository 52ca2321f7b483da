"""The objective of a step, and how its loss is computed."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import Choice, Number, WholeNumber
from estimator.values.losses import NOT_GIVEN, Loss, LossFacts
from estimator.values.objective import OBJECTIVES, Objective, having
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
        f"{'; '.join(f'{word}: {objective.takes}' for word, objective in OBJECTIVES.items())}.",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.ALWAYS, "Objective", decides=True),
    )
    loss: Loss | None = key(
        None,
        Choice(tuple(Loss), member=Loss, nullable=True),
        "how the loss is computed",
        "Of dpo and kto standard is LLaMA-Factory's, selective ms-swift's, selective_trl that of TRL before 1.15. "
        "selective_verl is verl's of grpo and rloo.",
        null=f"Liger's with its kernels, else standard; TRL's fused head for {', '.join(having('has_reference'))}",
        widget=Widget(Section.MORE, "Loss"),
    )
    completion_fraction: float = key(
        1.0,
        Number(1, open_low=True),
        "share of an example's tokens that are scored; TRL's fused head computes these alone",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.OBJECTIVE, "Scored share of an example", step=0.05, ends=(0.01, 1.0)),
    )
    max_prompt_length: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "of max_length, the prompt's tokens, in preference training",
        "They are not scored.",
        default_from=DefaultSource.OURS,
        null="half of the context",
        widget=Widget(Section.OBJECTIVE, "Tokens of the prompt", step=64),
    )
    precompute_ref_log_probs: bool = flag(
        False,
        "ask the reference model before training, and keep its answers",
        "It takes one pass over the data, after which no reference model stays on the GPU.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.OBJECTIVE, "Precompute the reference"),
    )
    loss_type: str | None = key(
        None,
        Choice(LOSS_TYPES, nullable=True),
        "which of an objective's losses, as TRL names them",
        "Of memory it changes one thing: kto's apo_zero_unpaired has no KL passes.",
        default_from=DefaultSource.TRL,
        null=", ".join(
            f"{objective.usual_loss_type} for {word}"
            for word, objective in OBJECTIVES.items()
            if objective.usual_loss_type
        ),
        widget=Widget(Section.OBJECTIVE, "Loss type"),
    )
    beta: float | None = key(
        None,
        Number(1_000, nullable=True),
        "weight of the reference model in the loss; 0 in grpo and rloo: there is none",
        "Other values load a reference model there.",
        default_from=DefaultSource.TRL,
        null="that of the trainer",
        widget=Widget(Section.OBJECTIVE, "Weight of the reference", step=0.01),
    )
    max_completion_length: int = key(
        256,
        WholeNumber(2**24),
        "of max_length, the tokens that are generated and scored, in grpo and rloo",
        "The rest is the prompt's.",
        default_from=DefaultSource.OURS,
        remark="TRL's is 512",
        widget=Widget(Section.OBJECTIVE, "Tokens of a completion", step=64),
    )
    num_generations: int = key(
        8,
        WholeNumber(4096, low=2),
        "completions of a prompt, in grpo and rloo",
        "The rows of all GPUs are so many of each.",
        default_from=DefaultSource.TRL,
        remark="RLOO's is 2",
        widget=Widget(Section.OBJECTIVE, "Completions of a prompt"),
    )
    steps_per_generation: int | None = key(
        None,
        WholeNumber(65_536, nullable=True),
        "micro-steps on the completions of one generation",
        default_from=DefaultSource.TRL,
        null="as many as the accumulation",
        widget=Widget(Section.OBJECTIVE, "Micro-steps of a generation"),
    )
    num_iterations: int = key(
        1,
        WholeNumber(1024),
        "times that completions are trained on",
        "More than 1 asks the policy once more for its log-probabilities.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.OBJECTIVE, "Uses of a generation"),
    )
    num_labels: int = key(
        2,
        WholeNumber(1_000_000),
        "labels of a classification head; a reward model has 1",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(Section.OBJECTIVE, "Labels"),
    )
    mini_batch_size: int | None = key(
        None,
        WholeNumber(4096, nullable=True),
        "GradCache: rows of an embedding batch that go through the model at once",
        "Of CachedMultipleNegativesRankingLoss; each part goes through it twice.",
        default_from=DefaultSource.OURS,
        remark="of sentence-transformers' cached losses: 32",
        null="the whole batch",
        widget=Widget(Section.OBJECTIVE, "Rows at once (GradCache)"),
    )
    label_smoothing_factor: float = key(
        0.0,
        Number(1),
        "label smoothing, which needs the whole logits whatever the loss",
        widget=Widget(Section.OBJECTIVE, "Label smoothing", step=0.05),
    )
    hold_outputs: bool = flag(
        False,
        "the training loop keeps the model's outputs during backward",
        "A custom loop does, and so keeps the logits.",
        widget=Widget(Section.MORE, "Loop keeps model outputs"),
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

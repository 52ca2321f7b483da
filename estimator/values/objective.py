"""What an objective is: one record, with the micro-step that its trainer takes and what others ask about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from estimator.values.refusals import RefusedError

if TYPE_CHECKING:
    from estimator.passes.step import Step
    from estimator.values.facets.objective import Task
    from estimator.values.setup import TrainingSetup


class TrlTrainer(NamedTuple):
    """TRL's trainer of an objective.

    Source: trl 1.16, trainer/*_config.py; docs/source/dataset_formats.md.
    """

    name: str
    """What the names of its classes begin with, ``DPO`` of ``DPOTrainer`` and ``DPOConfig``."""
    rows: str
    """What a data set has, in words."""
    dataset: str
    """One of TRL's own that has it."""
    arguments: str
    """Arguments of its config that not every config of TRL has, or that it had in an older TRL: trl 0.24."""
    module: str = "trl"
    """Where its classes are imported from."""
    has_script: bool = True
    """``trl`` has a command for it: trl 1.16, trl/scripts."""
    loads_auto_dtype: bool = False
    """Its trainer loads weights as their checkpoint has them, and its ``ModelConfig`` in no dtype of its own."""


def asked_reference(setup: TrainingSetup) -> int:
    """Forward calls of the reference in a micro-step (a count)."""
    return int(setup.task.asks_reference)


def one_row(setup: TrainingSetup) -> int:
    """The fewest rows of a micro-batch, where any number will do (a count)."""
    return 1


def once(task: Task) -> float:
    """Each logit is read once."""
    return 1


def nothing_refused(setup: TrainingSetup) -> RefusedError | None:
    """No refusal."""
    return None


@dataclass(frozen=True, eq=False, repr=False)
class Objective(str):
    """What a step trains for: a word of the contract, with its micro-step and its facts.

    Source: trl 1.16, trainer/*_config.py and experimental/*/*_config.py (loss types and beta, with their defaults, and
    ``activation_offloading``).
    """

    word: str
    step: Callable[[Step], None]
    """Plays a micro-step: its passes in order, the loss, and backward where the step is trained."""
    passes_without_grad: Callable[[TrainingSetup], int] = asked_reference
    """Its forward calls without gradients (a count), each on as many rows as the trained one."""
    least_batch: Callable[[TrainingSetup], int] = one_row
    """The fewest examples of a micro-batch that it takes, of which others are multiples (a count)."""
    logit_reads: Callable[[Task], float] = once
    """Times that the loss reads a logit, on average."""
    refuses: Callable[[TrainingSetup], RefusedError | None] = nothing_refused
    """What it does not go with."""
    takes: str = ""
    """What it trains on."""
    phrase: str = ""
    """What a sentence says of it after the model."""
    trl: TrlTrainer | None = None
    loss_types: tuple[str, ...] = ()
    usual_loss_type: str | None = None
    beta: float | None = None
    """The usual weight of the reference, or of what takes its place; None: there is none."""
    is_causal_lm: bool = False
    """The next token of whole rows, by the model's own loss."""
    is_paired: bool = False
    """An example is two rows."""
    is_preference: bool = False
    """An example is a prompt and its answers."""
    compares_rows: bool = False
    """The other rows of a micro-batch are what a row is compared with."""
    brings_mask: bool = True
    """A batch has an attention mask, padded or not: trl 1.16, trainer/dpo_trainer.py, ``DataCollatorForPreference``."""
    has_reference: bool = False
    """The loss may ask a reference model."""
    generates: bool = False
    """The model writes the answers that it is trained on."""
    has_score: bool = False
    """The model has a head of labels instead of the vocabulary."""
    labels: int | None = None
    """Outputs of that head; None: the vocabulary, or as many as the setup says."""
    asks_labels: bool = False
    """The setup says how many labels there are."""
    has_metrics: bool = False
    """``compute_metrics`` is modelled."""
    offloads_activations: bool = False
    """Its trainer has ``activation_offloading``."""
    zeroes_dropout: bool = False
    """Its trainer sets every ``nn.Dropout`` to 0, LoRA's too: trl 1.16, trainer/dpo_config.py, ``disable_dropout``, and
    trainer/utils.py, ``disable_dropout_in_model``, which is called after the adapters were added."""
    prepares_base: bool = False
    """Its trainer prepares a quantised base, and casts head and embeddings back."""

    @property
    def has_vocabulary(self) -> bool:
        """Whether the head has the vocabulary, so that there are logits and ways to compute their loss."""
        return self.labels is None and not self.asks_labels

    def __new__(cls, word: str, *facts: object, **more: object) -> Self:
        """The word itself."""
        return super().__new__(cls, word)

    def __reduce__(self) -> tuple[Callable[[str], Objective], tuple[str]]:
        """By its word, so that another process has its own record."""
        return objective_named, (self.word,)


OBJECTIVES: dict[str, Objective] = {}
"""Every objective by its word, registered by ``values/objectives``."""


def having(fact: str) -> tuple[str, ...]:
    """The objectives of which a fact is true, by their words.

    >>> having("generates")
    ('grpo', 'rloo')
    """
    return tuple(word for word, objective in OBJECTIVES.items() if getattr(objective, fact))


def objective_named(word: str) -> Objective:
    """The record of a word."""
    return OBJECTIVES[word]

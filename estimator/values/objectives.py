"""Each objective, and what is asked about it elsewhere; its micro-step is in ``estimator.passes.registry``."""

from __future__ import annotations

from estimator.values.records import Record


class ObjectiveFacts:
    """What is asked about an objective.

    Source: trl 1.16, trainer/*_config.py and experimental/orpo/orpo_config.py (loss types and beta, with their
    defaults, and ``activation_offloading``).
    """

    phrase: str = ""
    """What a sentence says of it after the model."""
    trl: str = ""
    """What the names of TRL's classes begin with, ``DPO`` of ``DPOTrainer`` and ``DPOConfig``; empty: it has none."""
    loss_types: tuple[str, ...] = ()
    usual_loss_type: str | None = None
    beta: float | None = None
    """The usual weight of the reference, or of ORPO's odds ratio; None: there is none."""
    is_causal_lm: bool = False
    """The next token of whole rows, by the model's own loss."""
    is_paired: bool = False
    """An example is two rows."""
    is_preference: bool = False
    """An example is a prompt and its answers."""
    is_unpaired: bool = False
    """An answer is good or bad by itself, and its loss is taken against mismatched ones: KTO's."""
    compares_rows: bool = False
    """The other rows of a micro-batch are what a row is compared with."""
    brings_mask: bool = True
    """A batch has an attention mask, padded or not: trl 1.16, trainer/dpo_trainer.py, ``DataCollatorForPreference``."""
    has_reference: bool = False
    """The loss may ask a reference model."""
    generates: bool = False
    """The model writes the answers that it is trained on."""
    scores_itself: bool = False
    """The policy is always asked for the log-probabilities of what it wrote: trl 1.16, trainer/rloo_trainer.py."""
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
    prepares_base: bool = False
    """Its trainer prepares a quantised base, and casts head and embeddings back: ORPO's."""
    logit_reads: float = 1
    """Times that the loss reads a logit, on average: ORPO's reads those of the chosen half twice."""


_OWN_ANSWERS = {"has_reference": True, "generates": True}


class Objective(ObjectiveFacts, Record):
    """What a step trains for, as TRL's trainers, Trainer and sentence-transformers do."""

    SFT = (
        "sft",
        {
            "trl": "SFT",
            "loss_types": ("nll", "dft"),
            "usual_loss_type": "nll",
            "brings_mask": False,
        },
        "is_causal_lm has_metrics offloads_activations",
    )
    """The next token."""
    DPO = (
        "dpo",
        {
            "phrase": "by DPO",
            "trl": "DPO",
            "loss_types": (
                *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair"),
                *("sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft"),
                "sigmoid_norm",
            ),
            "usual_loss_type": "sigmoid",
            "beta": 0.1,
        },
        "is_paired is_preference has_reference offloads_activations",
    )
    """Pairs of answers, against a reference model."""
    KTO = (
        "kto",
        {
            "phrase": "by KTO",
            "trl": "KTO",
            "loss_types": ("kto", "apo_zero_unpaired"),
            "usual_loss_type": "kto",
            "beta": 0.1,
        },
        "is_preference is_unpaired has_reference offloads_activations",
    )
    """Answers that are good or bad, against a reference model."""
    ORPO = (
        "orpo",
        {"phrase": "by ORPO", "trl": "ORPO", "beta": 0.1, "logit_reads": 1.5},
        "is_paired is_preference prepares_base",
    )
    """Pairs of answers, without a reference model."""
    REWARD = (
        "reward",
        {"phrase": "as a reward model", "trl": "Reward", "labels": 1},
        "is_paired has_score offloads_activations",
    )
    """Pairs of answers; a head of one number instead of the vocabulary."""
    SEQUENCE_CLASSIFICATION = (
        "sequence_classification",
        {"phrase": "as a classifier"},
        "has_score asks_labels has_metrics",
    )
    """A label for a text."""
    EMBEDDING = (
        "embedding",
        {"phrase": "as an embedding model", "labels": 0},
        "is_paired compares_rows",
    )
    """Pairs of texts whose vectors are drawn together, and from those of the rest of the batch apart."""
    GRPO = (
        "grpo",
        {
            "phrase": "by GRPO",
            "trl": "GRPO",
            "loss_types": ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
            "usual_loss_type": "dapo",
            "beta": 0.0,
        },
        "has_reference generates",
    )
    """Answers that the model gives itself, by their rewards against those of their group."""
    RLOO = (
        "rloo",
        {"phrase": "by RLOO", "trl": "RLOO", "beta": 0.05},
        "has_reference generates scores_itself",
    )
    """The same, each against the others."""

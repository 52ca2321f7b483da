"""Each way to compute head and loss, and what is asked about it elsewhere."""

from __future__ import annotations

from estimator.values.records import Record


class LossFacts:
    """What is asked about a loss; its own values are those of a setup that gives none."""

    sentence: str = ""
    """How head and loss are computed."""
    calls_head: bool = True
    """The head is called as a module, so that logits exist, whole or a chunk of each sequence."""
    takes_whole_logits: bool = False
    """The model's own loss of all logits; of preferences, LLaMA-Factory's."""
    fuses_gradient: bool = False
    """Both gradients of the head are computed with the loss, chunk by chunk: Liger's."""
    tiles_logits: bool = False
    """The logits of scored tokens are computed in tiles, in forward and once more in backward: TRL's."""
    chunks_sequence: bool = False
    """The logits of one part of each sequence at a time: torchtune's."""
    selects: bool = False
    """The log-probabilities of completions, row by row; no loss of whole rows."""
    keeps_logits: bool = False
    """All logits are kept with the loss, those of a reference too: TRL's before 1.15."""
    scores_completions: bool = False
    """The head computes scored tokens alone."""
    is_verls: bool = False
    """verl trains."""
    freezes_reference: bool = False
    """The reference's weights ask for no gradient, so that autocast keeps none of their casts. TRL leaves them asking.

    Source: llamafactory 0.9.5, model/loader.py:206; ms-swift 4.6.0, swift/pipelines/train/rlhf.py:111.
    """


class Loss(LossFacts, Record):
    """How head and loss are computed: from the full logits, or without ever materialising them."""

    STANDARD = "standard", None, "takes_whole_logits freezes_reference"
    LIGER = (
        "liger",
        {
            "sentence": "Liger computes head and loss together, in chunks of tokens, so the full logits never exist.",
            "calls_head": False,
        },
        "fuses_gradient",
    )
    CHUNKED_TRL = (
        "chunked_trl",
        {
            "sentence": "Head and loss are TRL's, which compute the logits tile by tile, twice per step.",
            "calls_head": False,
        },
        "tiles_logits scores_completions",
    )
    CHUNKED_TORCHTUNE = (
        "chunked_torchtune",
        {
            "sentence": "The loss is torchtune's, with one eighth of each sequence at a time in float32."
        },
        "chunks_sequence",
    )
    SELECTIVE = (
        "selective",
        {"sentence": "The loss is ms-swift's, which keeps the logits of the completions whole."},
        "selects scores_completions freezes_reference",
    )
    """Of dpo and kto: the logits of the completions, whole, and the log-probabilities row by row, as in ms-swift."""
    SELECTIVE_TRL = (
        "selective_trl",
        {"sentence": "The loss is TRL's before 1.15, which keeps all logits whole."},
        "selects keeps_logits",
    )
    """Of dpo and kto: all logits, and the log-probabilities row by row, as in TRL before 1.15."""
    SELECTIVE_VERL = "selective_verl", None, "selects is_verls"
    """Of grpo: the logits of all tokens in 16 bits, over which flash-attn writes their gradient, as in verl."""


NOT_GIVEN = LossFacts()
"""Those of a setup that leaves its loss to its trainer."""

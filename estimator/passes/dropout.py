"""Dropout that a trainer or ``eval`` turns off."""

from __future__ import annotations

from dataclasses import replace

from estimator.families.registry import family_of
from estimator.values.specs import Model


def without_dropout(model: Model) -> Model:
    """The model with every dropout at 0, as ``model.eval`` leaves it.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> dropping = replace(TINY_LLAMA, embd_pdrop=0.1, attn_pdrop=0.2, resid_pdrop=0.3)
    >>> without_dropout(dropping) == TINY_LLAMA
    True
    """
    return replace(model, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)


def without_dropout_modules(model: Model) -> Model:
    """The model with its ``nn.Dropout`` modules at 0; where a class calls the function, a number of its own remains.

    Leaves out: Falcon's sequential layer and MPT's, where one number serves a module and a function.
    Source: trl 1.16, trainer/utils.py, ``disable_dropout_in_model`` (``isinstance(module, torch.nn.Dropout)``).
    """
    embedding, attention, residual = family_of(model).config.dropout_modules
    return replace(
        model,
        embd_pdrop=0.0 if embedding else model.embd_pdrop,
        attn_pdrop=0.0 if attention else model.attn_pdrop,
        resid_pdrop=0.0 if residual else model.resid_pdrop,
    )

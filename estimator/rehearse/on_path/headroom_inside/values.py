"""Answers what code asks of values, which are zeros on a card that computes nothing: as training goes."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

from . import computed

LARGE = 2**20
"""Elements above which a tensor of the host is not filled at random: nobody reads a weight."""
INITIALISERS = (
    "uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_",
    "orthogonal_",
)  # fmt: skip


def of_torch(torch: Any) -> None:
    """Answer for tensors."""
    computed.answer(torch)
    for name in INITIALISERS:
        if hasattr(torch.nn.init, name):
            setattr(torch.nn.init, name, _skipped_if_large(getattr(torch.nn.init, name)))


def _skipped_if_large(fill: Any) -> Any:
    @functools.wraps(fill)
    def filled(tensor: Any, *told: Any, **named: Any) -> Any:
        large = tensor.numel() > LARGE and tensor.device.type == "cpu"
        return tensor if large else fill(tensor, *told, **named)

    return filled


# --- transformers' attention masks --------------------------------------------------------------


def answer_masks(masking: ModuleType) -> None:
    """Attention masks and positions are read as they were before they came to the card.

    Source: transformers 5.23, masking_utils.py, ``_ignore_causal_mask_sdpa``, ``find_packed_sequence_indices``.
    """
    module: Any = masking
    is_padded = [False]
    for name in dir(module):
        if name.startswith("create_") and name.endswith("_mask"):
            setattr(module, name, _looks_at_the_mask(getattr(module, name), is_padded))
    if hasattr(module, "fast_all"):
        module.fast_all = lambda _: not is_padded[0]
    if hasattr(module, "find_packed_sequence_indices"):
        module.find_packed_sequence_indices = _on_the_host(module.find_packed_sequence_indices)


def _looks_at_the_mask(create: Any, is_padded: list[bool]) -> Any:
    signature = inspect.signature(create)

    @functools.wraps(create)
    def looked_at(*told: Any, **named: Any) -> Any:
        try:
            mask = signature.bind_partial(*told, **named).arguments.get("attention_mask")
        except TypeError:
            mask = None
        is_padded[0] = _has_both(mask)
        return create(*told, **named)

    return looked_at


def _has_both(mask: Any) -> bool:
    """Whether a mask, as it arrived from the host, hides some tokens; one that was made on the card is all zeros."""
    if mask is None or not hasattr(mask, "is_cuda") or not mask.dim() or mask.is_meta:
        return False
    values = mask.cpu() != 0
    return bool(values.any()) and not bool(values.all())


def _on_the_host(find: Any) -> Any:
    @functools.wraps(find)
    def found(position_ids: Any) -> Any:
        if position_ids is None or not position_ids.is_cuda:
            return find(position_ids)
        values = position_ids.cpu()
        if not bool(values.any()):  # made on the card: one row after another, not packed
            return None
        indices = find(values)
        return None if indices is None else indices.to(position_ids.device)

    return found

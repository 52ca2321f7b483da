"""Sizes of the towers that a checkpoint of more than text has beside its text, frozen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """A tower of images, by the keys of its config; sizes in elements."""

    hidden_size: int
    intermediate_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    num_channels: int = 3
    patch_size: int = 0
    positions: int = 0
    """Rows of the table of positions."""
    vision_use_head: bool = False
    """SigLIP: one more layer of attention that pools all patches."""
    use_clipped_linears: bool = False
    """Gemma 4: beside each linear lie four scalars that its input and output are clamped to."""
    standardize: bool = False
    """Gemma 4: what comes out is shifted and scaled by two stored vectors."""
    vocab_size: int = 0
    """Gemma 3n: tokens that stand for images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTower:
    """A tower of sound, by the keys of its config; sizes in elements."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    conv_kernel_size: int
    channels: tuple[int, int]
    """Of the two convolutions that shorten the sound."""
    frequencies: int
    """That these leave."""
    output_size: int
    """Of what goes to the text."""
    use_clipped_linears: bool = False
    vocab_size: int = 0
    """Gemma 3n: tokens that stand for sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Towers:
    """What ``AutoModelForCausalLM`` makes of a checkpoint beside its text."""

    vision: VisionTower | None = None
    audio: AudioTower | None = None

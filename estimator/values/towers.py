"""Sizes of the vision and audio towers of multimodal checkpoints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """A vision tower, by the keys of its config; sizes in elements."""

    hidden_size: int
    intermediate_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    num_channels: int = 3
    patch_size: int = 0
    positions: int = 0
    """Rows of the position embedding."""
    vision_use_head: bool = False
    """SigLIP: an additional attention layer pools all patches."""
    use_clipped_linears: bool = False
    """Gemma 4: each linear has four scalars that clamp its input and output."""
    standardize: bool = False
    """Gemma 4: the output is shifted and scaled by two stored vectors."""
    vocab_size: int = 0
    """Gemma 3n: number of image tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTower:
    """An audio tower, by the keys of its config; sizes in elements."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    conv_kernel_size: int
    channels: tuple[int, int]
    """Channels of the two convolutions that downsample the sound."""
    frequencies: int
    """Frequency bins after these convolutions."""
    output_size: int
    """Width of the output to the text model."""
    use_clipped_linears: bool = False
    vocab_size: int = 0
    """Gemma 3n: number of audio tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Towers:
    """The towers that ``AutoModelForCausalLM`` loads in addition to the text model."""

    vision: VisionTower | None = None
    audio: AudioTower | None = None

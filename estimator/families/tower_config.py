"""Reads the sizes of towers from a wrapper's ``vision_config`` and ``audio_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from estimator.families.family import TowerConfig
from estimator.families.registry import family_of
from estimator.values.kinds import Flag, Kind, WholeNumber
from estimator.values.refusals import InputError
from estimator.values.specs import Model
from estimator.values.towers import AudioTower, Towers, VisionTower

MOBILENET = "mobilenetv5_300m_enc"

_SIZE, _FLAG = WholeNumber(10**7), Flag()


def with_towers(model: Model, config: Mapping[str, object]) -> Model:
    """The model with the towers of its config (sizes in elements; per model); unchanged if there are none.

    Missing keys take the class's default. Towers whose modules are unknown are left out.

    Source: transformers 5.23, models/gemma3/configuration_gemma3.py, models/gemma3n/configuration_gemma3n.py,
    models/gemma4/configuration_gemma4.py and models/siglip/configuration_siglip.py.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> with_towers(TINY_LLAMA, {"model_type": "llama"}) is TINY_LLAMA
    True
    """
    wrapper = config.get("model_type")
    family = family_of(model)
    classes = family.with_towers
    if classes is None or wrapper not in family.config.wrappers or "text_config" not in config:
        return model
    vision, audio = _part(config, "vision_config"), _part(config, "audio_config")
    if vision is not None and vision.get("model_type") not in (None, *classes.vision_types):
        return model
    towers = classes.read(vision, audio)
    return model if towers is None else replace(model, towers=towers)


def siglip_towers(vision: TowerConfig, audio: TowerConfig) -> Towers:
    """Gemma 3's towers."""
    return Towers(vision=_siglip(vision or {}))


def gemma3n_towers(vision: TowerConfig, audio: TowerConfig) -> Towers | None:
    """Gemma 3n's towers, always both; None: the vision tower is not MobileNet v5."""
    if (vision or {}).get("architecture", MOBILENET) != MOBILENET:
        return None
    return Towers(vision=_mobilenet(vision or {}), audio=_conformer(audio or {}))


def gemma4_towers(vision: TowerConfig, audio: TowerConfig) -> Towers:
    """Gemma 4's towers, each of which may be missing."""
    return Towers(
        vision=None if vision is None else _gemma4_vision(vision),
        audio=None if audio is None else _gemma4_audio(audio),
    )


def _siglip(part: Mapping[str, object]) -> VisionTower:
    side, patch = _size(part, "image_size", 224), _size(part, "patch_size", 16)
    return VisionTower(
        hidden_size=_size(part, "hidden_size", 768),
        intermediate_size=_size(part, "intermediate_size", 3072),
        num_hidden_layers=_size(part, "num_hidden_layers", 12),
        num_channels=_size(part, "num_channels", 3),
        patch_size=patch,
        positions=(side // patch) ** 2,
        vision_use_head=_flag(part, "vision_use_head", default=True),
    )


def _mobilenet(part: Mapping[str, object]) -> VisionTower:
    return VisionTower(
        hidden_size=_size(part, "hidden_size", 2048), vocab_size=_size(part, "vocab_size", 128)
    )


def _conformer(part: Mapping[str, object]) -> AudioTower:
    hidden = _size(part, "hidden_size", 1536)
    frequencies = _size(part, "input_feat_size", 128)
    for _ in range(2):  # two strides of 2, with one zero of padding on either side
        frequencies = (frequencies + 2 - 3) // 2 + 1
    return AudioTower(
        hidden_size=hidden,
        num_hidden_layers=_size(part, "conf_num_hidden_layers", 12),
        num_attention_heads=_size(part, "conf_num_attention_heads", 8),
        conv_kernel_size=_size(part, "conf_conv_kernel_size", 5),
        channels=_channels(part, "sscp_conv_channel_size"),
        frequencies=frequencies,
        output_size=hidden,
        vocab_size=_size(part, "vocab_size", 128),
    )


def _gemma4_vision(part: Mapping[str, object]) -> VisionTower:
    return VisionTower(
        hidden_size=_size(part, "hidden_size", 768),
        intermediate_size=_size(part, "intermediate_size", 3072),
        num_hidden_layers=_size(part, "num_hidden_layers", 16),
        num_attention_heads=_size(part, "num_attention_heads", 12),
        num_key_value_heads=_size(part, "num_key_value_heads", 12),
        head_dim=_size(part, "head_dim", 64),
        patch_size=_size(part, "patch_size", 16),
        positions=_size(part, "position_embedding_size", 10 * 1024),
        use_clipped_linears=_flag(part, "use_clipped_linears", default=False),
        standardize=_flag(part, "standardize", default=False),
    )


def _gemma4_audio(part: Mapping[str, object]) -> AudioTower:
    channels = _channels(part, "subsampling_conv_channels")
    return AudioTower(
        hidden_size=_size(part, "hidden_size", 1024),
        num_hidden_layers=_size(part, "num_hidden_layers", 12),
        num_attention_heads=_size(part, "num_attention_heads", 8),
        conv_kernel_size=_size(part, "conv_kernel_size", 5),
        channels=channels,
        frequencies=channels[0] // 4,
        output_size=_size(part, "output_proj_dims", 1536),
        use_clipped_linears=_flag(part, "use_clipped_linears", default=True),
    )


def _part(config: Mapping[str, object], name: str) -> Mapping[str, object] | None:
    part = config.get(name)
    if part is None or isinstance(part, Mapping):
        return part
    raise InputError(f"{name} must be an object or null; correct it in the config.")


def _read(part: Mapping[str, object], name: str, kind: Kind) -> object:
    try:
        return kind.read(part[name])
    except ValueError as problem:
        raise InputError(f"{name} {problem}") from None


def _size(part: Mapping[str, object], name: str, default: int) -> int:
    if part.get(name) is None:
        return default
    value = _read(part, name, _SIZE)
    assert isinstance(value, int)
    return value


def _flag(part: Mapping[str, object], name: str, *, default: bool) -> bool:
    return default if part.get(name) is None else bool(_read(part, name, _FLAG))


def _channels(part: Mapping[str, object], name: str) -> tuple[int, int]:
    """Channels of the two convolutions; both classes have the same default."""
    given = part.get(name, [128, 32])
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise InputError(f"{name} must list two whole numbers; correct it in the config.")
    first, second = (_size({name: channels}, name, 0) for channels in given)
    return first, second

"""The towers that ``AutoModelForCausalLM`` loads for Gemma 3, 3n and 4: their sizes and their modules with weights.

A step on text runs none of them, except Gemma 3n's embedders. Their weights, and adapters on their linears, take memory
but get neither gradients nor optimizer states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from estimator.families.family import TowerConfig
from estimator.families.modules import Embedding, Kernel, Linear, Module, Norm
from estimator.families.registry import family_of
from estimator.values.kinds import Flag, Kind, WholeNumber
from estimator.values.refusals import InputError
from estimator.values.specs import Model
from estimator.values.towers import AudioTower, Towers, VisionTower

# --- sizes --------------------------------------------------------------------------------------

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


# --- modules ------------------------------------------------------------------------------------


def siglip_modules(
    vision: VisionTower | None, audio: AudioTower | None, model: Model
) -> Iterator[tuple[Module, int]]:
    """SigLIP, and Gemma 3's projector."""
    if vision is not None:
        yield from _siglip_modules(vision)
        yield from _projector(vision, model)


def _siglip_modules(tower: VisionTower) -> Iterator[tuple[Module, int]]:
    name, hidden, width = "vision_tower", tower.hidden_size, tower.intermediate_size
    patch = (hidden, tower.num_channels, tower.patch_size, tower.patch_size)
    yield Kernel(f"{name}.embeddings.patch_embedding", (patch, (hidden,))), 1
    yield Embedding(f"{name}.embeddings.position_embedding", tower.positions, hidden), 1
    layer = f"{name}.encoder.layers"
    linears = (
        *(
            (f"self_attn.{projection}", hidden, hidden)
            for projection in ("k_proj", "v_proj", "q_proj", "out_proj")
        ),
        ("mlp.fc1", hidden, width),
        ("mlp.fc2", width, hidden),
    )
    for norm in ("layer_norm1", "layer_norm2"):
        yield Norm(f"{layer}.{norm}", hidden, bias=True), tower.num_hidden_layers
    for linear, rows, columns in linears:
        yield Linear(f"{layer}.{linear}", rows, columns, bias=True), tower.num_hidden_layers
    yield Norm(f"{name}.post_layernorm", hidden, bias=True), 1
    if not tower.vision_use_head:
        return
    head = f"{name}.head"
    own = ((1, 1, hidden), (3 * hidden, hidden), (3 * hidden,))
    # nn.MultiheadAttention: q, k and v as one bare matrix
    yield Kernel(f"{head}.attention", own), 1
    # a subclass of nn.Linear: torch 2.13, nn/modules/linear.py
    out = Linear(f"{head}.attention.out_proj", hidden, hidden, bias=True, own_class=True)
    yield out, 1
    yield Norm(f"{head}.layernorm", hidden, bias=True), 1
    yield Linear(f"{head}.mlp.fc1", hidden, width, bias=True), 1
    yield Linear(f"{head}.mlp.fc2", width, hidden, bias=True), 1


def _projector(tower: VisionTower, model: Model) -> Iterator[tuple[Module, int]]:
    name = "multi_modal_projector"
    yield Kernel(name, ((tower.hidden_size, model.hidden_size),)), 1
    yield Norm(f"{name}.mm_soft_emb_norm", tower.hidden_size), 1


def gemma4_tower_modules(
    vision: VisionTower | None, audio: AudioTower | None, model: Model
) -> Iterator[tuple[Module, int]]:
    """Gemma 4's towers and their projections."""
    if vision is not None:
        yield from _gemma4_vision_modules(vision)
    if audio is not None:
        yield from _gemma4_audio_modules(audio)
    projections = [("embed_vision", vision.hidden_size)] if vision is not None else []
    projections += [("embed_audio", audio.output_size)] if audio is not None else []
    for name, width in projections:
        # transformers mistakes the model's last parameter for the head's
        is_last = name == projections[-1][0]
        projection = f"{name}.embedding_projection"
        yield Linear(projection, width, model.hidden_size, is_last=is_last), 1


def _gemma4_vision_modules(tower: VisionTower) -> Iterator[tuple[Module, int]]:
    name, hidden, width = "vision_tower", tower.hidden_size, tower.intermediate_size
    queries = tower.num_attention_heads * tower.head_dim
    keys = tower.num_key_value_heads * tower.head_dim
    yield Kernel(f"{name}.patch_embedder", ((2, tower.positions, hidden),)), 1
    patch = tower.num_channels * tower.patch_size**2
    yield Linear(f"{name}.patch_embedder.input_proj", patch, hidden), 1
    layer, alike = f"{name}.encoder.layers", tower.num_hidden_layers
    linears = (
        ("self_attn.q_proj", hidden, queries),
        ("self_attn.k_proj", hidden, keys),
        ("self_attn.v_proj", hidden, keys),
        ("self_attn.o_proj", queries, hidden),
        ("mlp.gate_proj", hidden, width),
        ("mlp.up_proj", hidden, width),
        ("mlp.down_proj", width, hidden),
    )
    for linear, rows, columns in linears:
        yield Linear(f"{layer}.{linear}.linear", rows, columns), alike
    for norm in ("q_norm", "k_norm"):
        yield Norm(f"{layer}.self_attn.{norm}", tower.head_dim), alike
    for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        yield Norm(f"{layer}.{norm}_layernorm", hidden), alike


def _gemma4_audio_modules(tower: AudioTower) -> Iterator[tuple[Module, int]]:
    name, hidden, alike = "audio_tower", tower.hidden_size, tower.num_hidden_layers
    yield from _shortening(tower, ("layer0", "layer1"))
    layer = f"{name}.layers"
    clipped = (f"self_attn.{name}.linear" for name in ("q_proj", "k_proj", "v_proj", "post"))
    linears = (*clipped, "self_attn.relative_k_proj")
    feed_forwards = ("feed_forward1", "feed_forward2")
    yield from _conformer_modules(tower, layer, feed_forwards, "self_attn", linears, ".linear")
    for norm in ("norm_pre_attn", "norm_post_attn", "norm_out"):
        yield Norm(f"{layer}.{norm}", hidden), alike
    yield Linear(f"{name}.output_proj", hidden, tower.output_size, bias=True), 1


def _conformer_modules(
    tower: AudioTower,
    layer: str,
    feed_forwards: tuple[str, str],
    attention: str,
    linears: Iterable[str],
    inside: str = "",
) -> Iterator[tuple[Module, int]]:
    """What both conformers have in a layer; ``linears``: attention's; ``inside``: the linear in a wrapper of it."""
    hidden, alike = tower.hidden_size, tower.num_hidden_layers
    for ffw in feed_forwards:
        yield Linear(f"{layer}.{ffw}.ffw_layer_1{inside}", hidden, 4 * hidden), alike
        yield Linear(f"{layer}.{ffw}.ffw_layer_2{inside}", 4 * hidden, hidden), alike
        for norm in ("pre_layer_norm", "post_layer_norm"):
            yield Norm(f"{layer}.{ffw}.{norm}", hidden), alike
    yield Kernel(f"{layer}.{attention}", ((hidden // tower.num_attention_heads,),)), alike
    for linear in linears:
        yield Linear(f"{layer}.{linear}", hidden, hidden), alike
    yield Linear(f"{layer}.lconv1d.linear_start{inside}", hidden, 2 * hidden), alike
    yield Linear(f"{layer}.lconv1d.linear_end{inside}", hidden, hidden), alike
    yield Norm(f"{layer}.lconv1d.depthwise_conv1d", hidden, taps=tower.conv_kernel_size), alike
    for norm in ("pre_layer_norm", "conv_norm"):
        yield Norm(f"{layer}.lconv1d.{norm}", hidden), alike


def _shortening(tower: AudioTower, blocks: tuple[str, str]) -> Iterator[tuple[Module, int]]:
    """Two 3 × 3 convolutions that each halve time and frequency, and a linear."""
    name, before = "audio_tower.subsample_conv_projection", 1
    for block, channels in zip(blocks, tower.channels, strict=True):
        yield Kernel(f"{name}.{block}.conv", ((channels, before, 3, 3),)), 1
        yield Norm(f"{name}.{block}.norm", channels), 1
        before = channels
    rows = tower.frequencies * tower.channels[1]
    yield Linear(f"{name}.input_proj_linear", rows, tower.hidden_size), 1


def gemma3n_tower_modules(
    vision: VisionTower | None, audio: AudioTower | None, model: Model
) -> Iterator[tuple[Module, int]]:
    """Gemma 3n's towers and embedders."""
    if vision is None or audio is None:  # its class has both
        return
    yield from _mobilenet_v5(vision.hidden_size)
    yield from _gemma3n_audio(audio)
    embedders = (
        ("embed_vision", vision.vocab_size, vision.hidden_size),
        ("embed_audio", audio.vocab_size, audio.output_size),
    )
    for name, rows, width in embedders:
        yield Embedding(f"{name}.embedding", rows, width), 1
        yield Norm(f"{name}.hard_embedding_norm", width), 1
        yield Norm(f"{name}.soft_embedding_norm", width), 1
        # transformers mistakes the model's last parameter for the head's
        is_last = name == "embed_audio"
        projection = f"{name}.embedding_projection"
        yield Linear(projection, width, model.hidden_size, is_last=is_last), 1


def _gemma3n_audio(tower: AudioTower) -> Iterator[tuple[Module, int]]:
    hidden, alike = tower.hidden_size, tower.num_hidden_layers
    yield from _shortening(tower, ("conv_0", "conv_1"))
    layer = "audio_tower.conformer"
    own = "attention.attn"
    names = ("relative_position_embedding.pos_proj", "q_proj", "k_proj", "v_proj")
    linears = (*(f"{own}.{name}" for name in names), "attention.post")
    yield from _conformer_modules(tower, layer, ("ffw_layer_start", "ffw_layer_end"), own, linears)
    for norm in ("attention.pre_attn_norm", "attention.post_norm", "norm"):
        yield Norm(f"{layer}.{norm}", hidden), alike


Shapes = tuple[tuple[int, ...], ...]


def _mobilenet_v5(hidden: int) -> Iterator[tuple[Module, int]]:
    """``mobilenetv5_300m_enc``: only convolutions and their norms, no linear.

    Source: timm 1.0.31, models/mobilenetv5.py, ``_gen_mobilenet_v5`` (``arch_def``) and
    ``MobileNetV5MultiScaleFusionAdapter``; models/_efficientnet_blocks.py.
    """
    stages: tuple[tuple[Shapes, int], ...] = (
        (((64, 3, 3, 3), (64,), (64,)), 1),
        (_edge(64, 256, 128), 1),
        (_edge(128, 512, 128), 2),
        (_inverted(128, 768, 256, start=3, mid=5), 1),
        (_inverted(256, 1024, 256, start=5), 2),
        (_inverted(256, 1024, 256, start=3), 2),
        (_inverted(256, 1536, 640, start=5, mid=5), 1),
        (_inverted(640, 2560, 640, start=5), 7),
        (_inverted(640, 640, 640), 1),
        (_query_attention(640, 768, 64, shrinks=True), 14),
        (_inverted(640, 1280, 640), 14),
        (_inverted(640, 3840, 1280, start=5, mid=5), 1),
        (_query_attention(1280, 1536, 96), 19),
        (_inverted(1280, 2560, 1280), 19),
    )
    name = "vision_tower.timm_model"
    for number, (shapes, alike) in enumerate(stages):
        yield Kernel(f"{name}.blocks{number}", shapes), alike
    fusion = _inverted(640 + 1280, 2 * (640 + 1280), hidden)[:-1]  # has no layer scale
    yield Kernel(f"{name}.msfa", (*fusion, (hidden,))), 1


def _edge(before: int, inner: int, after: int) -> Shapes:
    return ((inner, before, 3, 3), (inner,), (after, inner, 1, 1), (after,))


def _inverted(before: int, inner: int, after: int, *, start: int = 0, mid: int = 0) -> Shapes:
    first = ((before, 1, start, start), (before,)) if start else ()
    middle = ((inner, 1, mid, mid), (inner,)) if mid else ()
    wide, narrow = ((inner, before, 1, 1), (inner,)), ((after, inner, 1, 1), (after,))
    return (*first, *wide, *middle, *narrow, (after,))


def _query_attention(width: int, queries: int, head: int, *, shrinks: bool = False) -> Shapes:
    down = ((width, 1, 3, 3), (width,)) if shrinks else ()
    key = (*down, (head, width, 1, 1))
    return ((width,), (queries, width, 1, 1), *key, *key, (width, queries, 1, 1), (width,))

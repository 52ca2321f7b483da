"""Modules with weights of the towers that ``AutoModelForCausalLM`` loads for Gemma 3, 3n and 4.

A step on text runs none of them, except Gemma 3n's embedders. Their weights, and adapters on their linears, take memory
but get neither gradients nor optimizer states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from estimator.families.by_layer import text_modules
from estimator.families.model_tree import vision_modules
from estimator.families.modules import (
    Embedding,
    Kernel,
    Linear,
    Module,
    Norm,
    module_parameters,
)
from estimator.families.registry import family_of
from estimator.families.vision_family import sees
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.images import Images
from estimator.values.specs import Model, ModelClass
from estimator.values.towers import AudioTower, VisionTower

Alike = tuple[tuple[Module, int], ...]
"""Modules with weights, and their multiplicity."""
BEFORE_THE_TEXT = ("vision_tower", "multi_modal_projector")
"""Name prefixes of modules that precede the text model in parameter order."""


def has_towers(model: Model, adapters: Adapters) -> bool:
    """Whether the class that loads the model has towers (a yes or no; the same on every GPU).

    Source: transformers 5.23, models/auto/modeling_auto.py, ``MODEL_FOR_CAUSAL_LM_MAPPING_NAMES``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> has_towers(TINY_LLAMA, Adapters())
    False
    """
    return model.towers is not None and adapters.model_class is ModelClass.AUTO


def tower_modules(model: Model, adapters: Adapters) -> Alike:
    """Modules with weights of the towers and their projectors, and their multiplicity; whole model.

    Names are those of transformers without the layer index. Empty for the text class.

    Leaves out: buffers.
    Error: none; compared with transformers' own module tree in tests/verify.
    Source: transformers 5.23, models/gemma3/modeling_gemma3.py, ``Gemma3Model.__init__``; models/gemma3n/
    modeling_gemma3n.py, ``Gemma3nModel.__init__``; models/gemma4/modeling_gemma4.py, ``Gemma4Model.__init__``;
    models/siglip/modeling_siglip.py; timm 1.0.31, models/mobilenetv5.py.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> tower_modules(TINY_LLAMA, Adapters())
    ()
    """
    if sees(model, adapters):
        return (*vision_modules(model), *_audio_modules(model))
    if model.towers is None or not has_towers(model, adapters):
        return ()
    classes = family_of(model).with_towers
    assert classes is not None
    return tuple(classes.modules(model.towers.vision, model.towers.audio, model))


def _audio_modules(model: Model) -> Alike:
    """A tower of sound beside one that sees, which images do not run."""
    classes = family_of(model).with_towers
    if model.towers is None or model.towers.audio is None or classes is None:
        return ()
    return tuple(classes.modules(None, model.towers.audio, model))


def made_modules(model: Model, adapters: Adapters) -> Alike:
    """Every module with weights of the loaded class, towers first, and their multiplicity, whole model.

    Source: derived, from ``tower_modules`` and ``text_modules``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> made_modules(TINY_LLAMA, Adapters()) == tuple(text_modules(TINY_LLAMA, Adapters()))
    True
    """
    return (*tower_modules(model, adapters), *text_modules(model, adapters))


def tower_parameters(model: Model, adapters: Adapters) -> int:
    """Parameters of the towers and their projectors, in elements, whole model; 0 for the text class.

    Error: none; equal to the published parameters beyond the text in data/models.csv.
    Source: derived, from ``tower_modules``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> tower_parameters(TINY_LLAMA, Adapters())
    0
    """
    return sum(
        count * module_parameters(module) for module, count in tower_modules(model, adapters)
    )


def run_on_text(model: Model, adapters: Adapters, images: Images) -> Alike:
    """The towers' modules that a step on text runs, and their multiplicity: Gemma 3n's embedders.

    Source: transformers 5.23, models/gemma3n/modeling_gemma3n.py, ``Gemma3nModel.forward`` (``vision_embeds``,
    ``audio_embeds``).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> run_on_text(TINY_LLAMA, Adapters(), Images())
    ()
    """
    modules = tower_modules(model, adapters)
    if sees(model, adapters):
        return vision_modules(model) if images.shows_any else ()
    classes = family_of(model).with_towers
    return tuple(
        (module, count)
        for module, count in modules
        if classes and module.name.startswith(classes.runs_on_text)
    )


def idle_modules(model: Model, adapters: Adapters, images: Images) -> Alike:
    """The towers' modules that a step on text does not run, and their multiplicity.

    Source: derived, from ``tower_modules`` and ``run_on_text``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> idle_modules(TINY_LLAMA, Adapters(), Images())
    ()
    """
    run = run_on_text(model, adapters, images)
    return tuple(counted for counted in tower_modules(model, adapters) if counted not in run)


def layers_before_the_text(model: Model, adapters: Adapters) -> int:
    """Tower layers that can be checkpointed and precede the text's (a count): those of Gemma 3's and 4's vision towers.

    Source: transformers 5.23, modeling_layers.py, ``GradientCheckpointingLayer``; models/siglip/modeling_siglip.py,
    ``SiglipEncoderLayer``; models/gemma4/modeling_gemma4.py, ``Gemma4VisionEncoderLayer``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layers_before_the_text(TINY_LLAMA, Adapters())
    0
    """
    if model.towers is None or not has_towers(model, adapters):
        return 0
    vision = model.towers.vision
    return vision.num_hidden_layers if vision is not None else 0


def clamps(model: Model, adapters: Adapters) -> int:
    """Scalars of Gemma 4's towers that clamp a linear's input and output (a count, whole model), 4 per linear.

    Source: transformers 5.23, models/gemma4/modeling_gemma4.py, ``Gemma4ClippableLinear.__init__``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> clamps(TINY_LLAMA, Adapters())
    0
    """
    if model.towers is None:
        return 0
    clipping = tuple(
        name
        for name, tower in (("vision", model.towers.vision), ("audio", model.towers.audio))
        if tower is not None and tower.use_clipped_linears
    )
    return 4 * sum(
        count
        for module, count in tower_modules(model, adapters)
        if module.name.endswith(".linear") and module.name.startswith(clipping)
    )


def siglip_modules(
    vision: VisionTower | None, audio: AudioTower | None, model: Model
) -> Iterator[tuple[Module, int]]:
    """SigLIP, and Gemma 3's projector."""
    if vision is not None:
        yield from _siglip(vision)
        yield from _projector(vision, model)


def _siglip(tower: VisionTower) -> Iterator[tuple[Module, int]]:
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
    yield (
        Kernel(f"{head}.attention", own),
        1,
    )  # nn.MultiheadAttention: q, k and v as one bare matrix
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
        yield from _gemma4_vision(vision)
    if audio is not None:
        yield from _gemma4_audio(audio)
    projections = [("embed_vision", vision.hidden_size)] if vision is not None else []
    projections += [("embed_audio", audio.output_size)] if audio is not None else []
    for (
        name,
        width,
    ) in projections:  # transformers mistakes the model's last parameter for the head's
        is_last = name == projections[-1][0]
        projection = f"{name}.embedding_projection"
        yield Linear(projection, width, model.hidden_size, is_last=is_last), 1


def _gemma4_vision(tower: VisionTower) -> Iterator[tuple[Module, int]]:
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


def _gemma4_audio(tower: AudioTower) -> Iterator[tuple[Module, int]]:
    name, hidden, alike = "audio_tower", tower.hidden_size, tower.num_hidden_layers
    yield from _shortening(tower, ("layer0", "layer1"))
    layer = f"{name}.layers"
    clipped = (f"self_attn.{name}.linear" for name in ("q_proj", "k_proj", "v_proj", "post"))
    linears = (*clipped, "self_attn.relative_k_proj")
    feed_forwards = ("feed_forward1", "feed_forward2")
    yield from _conformer(tower, layer, feed_forwards, "self_attn", linears, ".linear")
    for norm in ("norm_pre_attn", "norm_post_attn", "norm_out"):
        yield Norm(f"{layer}.{norm}", hidden), alike
    yield Linear(f"{name}.output_proj", hidden, tower.output_size, bias=True), 1


def _conformer(
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
    yield from _conformer(tower, layer, ("ffw_layer_start", "ffw_layer_end"), own, linears)
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

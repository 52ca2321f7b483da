"""Floating-point operations of one micro-batch on one GPU, counted per matrix product.

A multiply-add is two operations, so a matrix of n elements costs 2n per token in forward, 2n for the gradient of its
input and 2n for its own gradient. A frozen matrix has no gradient of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from estimator.families.adapters import adapter_rank, copied_modules, is_adapted
from estimator.families.delta_net import CHUNK
from estimator.families.kernels import attention_of
from estimator.families.layer_kinds import FULL_ATTENTION, LINEAR_ATTENTION, WITHOUT_ATTENTION
from estimator.families.liger import loss_of
from estimator.families.loaded import adapted_groups, modules_of_layer
from estimator.families.model_tree import (
    experts_run,
    outer_modules,
    tied_head,
    tower_layers,
    vision_modules,
)
from estimator.families.modules import Embedding, Linear, Module, Norm, weight_shapes
from estimator.families.registry import family_of
from estimator.families.vision_family import Seen, attended_patches, images_of, sees, vision_family
from estimator.passes.batch import passed_rows
from estimator.passes.stack import has_window, is_checkpointed, layer_kinds
from estimator.values.arithmetic import ceil_div, real
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.computation import Computation
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Part

FORWARD = 2
"""Operations per matrix element and token in forward: one multiplication, one addition."""
ATTENTION_PRODUCTS = 2
"""Products in attention: scores from queries and keys, outputs from scores and values."""
FLASH_BACKWARD = 2.5
"""Backward over forward of a flash kernel: five products against two, since it recomputes the scores.
Dao 2023, arXiv:2307.08691, section 4.1."""
PLAIN_BACKWARD = 2.0
"""Backward over forward if the scores are kept: two products for each."""


class Matrices(NamedTuple):
    """Matrix elements that one token is multiplied by, whole model, with only the experts in use."""

    layers: int
    """In all layers."""
    outside: int
    """Head and projections outside the layers, which checkpointing does not recompute."""
    quantizable: int
    """Those of the layers in linears, which 4-bit loading packs, unlike stacked experts."""
    adapter_inputs: int
    """Σ in_features of the adapted linears, all layers; other ranks are counted in multiples of ``lora_r``."""
    adapter_outputs: int
    """Σ out_features of the same."""
    copied: int
    """Those trained in full in addition to adapters."""
    adapted: int
    """Σ in · out of the adapted linears, all layers."""
    units: int
    """Σ in · (in + out) of the same: cost of DoRA's identity matrix, per rank."""
    inputs: int = 0
    """Σ in_features of all products, an expert's once for each of a token's experts: what they read per token."""
    outputs: int = 0
    """Σ out_features of the same: what they write per token."""
    stored: int = 0
    """Elements of the weights that a micro-batch reads: as ``layers`` and ``outside``, but all experts."""
    stacked: int = 0
    """Those of them in stacks of experts."""
    products: int = 0
    """Number of products in a forward pass; a stack of experts is one."""


def matrices(model: Model, adapters: Adapters) -> Matrices:
    """Matrix elements that one token is multiplied by, whole model: linears, experts in use, and the head, tied or not.

        layers = Σ in · out,  for a stack of experts k · in · out     k: experts per token

    Leaves out: embeddings (lookups), norms (no products), biases.
    Source: derived, from ``layer_modules`` and ``outer_modules``; Kaplan et al. 2020, arXiv:2001.08361, section 2.1.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> matrices(TINY_LLAMA, Adapters()).layers == 2 * (8 * (8 + 4 + 4 + 8) + 3 * 8 * 16)
    True
    >>> matrices(TINY_LLAMA, Adapters()).outside == 8 * 10
    True
    """
    return _matrices(model, _which(adapters))


@lru_cache(maxsize=1024)
def _which(adapters: Adapters) -> Adapters:
    """The adapters with only the keys that determine which modules have one."""
    which = {name: getattr(adapters, name) for name in _WHICH}
    if adapters.rank_pattern is not None:
        which["lora_r"] = adapters.lora_r
    return Adapters(**which)


_WHICH = (
    *("method", "lora_target_modules", "modules_to_save", "exclude_modules", "rank_pattern"),
    *("layers_to_transform", "target_parameters"),
)
"""Keys that determine which modules have an adapter."""


@lru_cache(maxsize=1024)
def _matrices(model: Model, adapters: Adapters) -> Matrices:
    outer = outer_modules(model)
    layer = [
        (module, count)
        for index, count in adapted_groups(model, adapters)
        for module in modules_of_layer(model, adapters, index)
    ]
    tied = sum(head.in_features * head.out_features for head in tied_head(model))
    linears = [(module, count) for module, count in layer if isinstance(module, Linear)]
    adapted = [
        (linear, count * adapter_rank(linear, adapters) / adapters.lora_r)
        for linear, count in (*linears, *((head, 1) for head in outer if isinstance(head, Linear)))
        if is_adapted(linear, adapters)
    ]
    return Matrices(
        sum(count * _elements(module, model) for module, count in layer),
        sum(_elements(module, model) for module in outer) + tied,
        sum(count * linear.in_features * linear.out_features for linear, count in linears),
        round(sum(count * linear.in_features for linear, count in adapted)),
        round(sum(count * linear.out_features for linear, count in adapted)),
        sum(times * _elements(module, model) for module, times in copied_modules(model, adapters)),
        round(sum(times * linear.in_features * linear.out_features for linear, times in adapted)),
        round(
            sum(
                times * linear.in_features * (linear.in_features + linear.out_features)
                for linear, times in adapted
            )
        ),
        *_shapes([*layer, *((module, 1) for module in (*outer, *tied_head(model)))], model),
    )


def _shapes(modules: Iterable[tuple[Module, int]], model: Model) -> tuple[int, int, int, int, int]:
    """What products read and write per token, elements of all weights and of stacked experts, number of products."""
    inputs = outputs = stored = stacked = products = 0
    for module, count in modules:
        shape = () if isinstance(module, Norm | Embedding) else weight_shapes(module)[0]
        if len(shape) < 2:
            continue
        *stack, rows, columns = shape
        times = count * (experts_run(model) if stack else 1)
        inputs, outputs = inputs + times * columns, outputs + times * rows
        size = count * rows * columns * math.prod(stack)
        stored += size
        stacked += size if stack else 0
        products += count
    return inputs, outputs, stored, stacked, products


def _elements(module: Module, model: Model) -> int:
    if isinstance(module, Norm | Embedding):
        return 0
    shape = weight_shapes(module)[0]
    if len(shape) < 2:  # a vector outside a tower's layers
        return 0
    *stack, rows, columns = shape
    return (experts_run(model) if stack else 1) * rows * columns


class Work(NamedTuple):
    """Operations of one micro-batch on one GPU."""

    products: float
    """Linears and head, forward and backward."""
    adapters: float
    """LoRA's two matrices, forward and backward."""
    attention: float
    """Scores and outputs, forward and backward; for delta nets and state spaces, their equivalents."""
    products_again: float
    """Recomputation: linears and adapters of checkpointed layers; the head if the loss recomputes it."""
    attention_again: float
    products_asked: float = 0.0
    """Linears and head of forward calls without gradients."""
    attention_asked: float = 0.0

    @property
    def model(self) -> float:
        """Model FLOPs, for utilisation: everything but recomputation."""
        return self.products + self.adapters + self.attention

    @property
    def hardware(self) -> float:
        """Hardware FLOPs: including recomputation and forward calls without gradients."""
        asked = self.products_asked + self.attention_asked
        return self.model + self.products_again + self.attention_again + asked


def work(model: Model, setup: TrainingSetup, length: int, *, pairs: int) -> Work:
    """Operations of one micro-batch with ``length`` tokens per example, on one GPU; ``pairs``: see ``attended_pairs``.

        full         2 · T · (3 · layers + 3 · outside) + attention     T: tokens in the micro-batch
        frozen       2 · T · (2 · layers + 2 · outside + copied + 3 · r · (in + out)) + attention
        attention    2 · 2 · b · pairs · q · (1 + backward)      q: query width; backward: 2.5 flash, 2 eager
        delta-nets   2 · b · m · (1 + 2), added to attention     m: ``delta_products``, ``scan_products``
        checkpoint   2 · T · (layers + r · (in + out)) + 2 · 2 · b · pairs · q, times the share of checkpointed layers;
                     selective checkpointing: without attention
        loss chunked_trl, whose backward recomputes the logits      2 · T · V · h
        DoRA         2 · r · in · (in + out), and with dropout 2 · T · 2 · in · out: the base again

    Leaves out: that the first layer's input needs no gradient if everything below an adapter is frozen (some linears of
    1 of L layers).

    Source: derived, as described above; Chowdhery et al. 2022, arXiv:2204.02311, appendix B, for the same count without
    a causal mask; Hu et al. 2021, arXiv:2106.09685, for the adapters.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> full = work(TINY_LLAMA, TrainingSetup(), 4, pairs=0)
    >>> full.products == 6 * 4 * (1152 + 80)
    True
    """
    tower = tower_work(model, setup)
    sizes = matrices(model, setup.adapters)
    rows = passed_rows(setup)
    forward = FORWARD * rows * length
    passes = 3 if trains_whole(setup.adapters) else 2
    branches = setup.adapters.lora_r * (sizes.adapter_inputs + sizes.adapter_outputs)
    dora = dora_again = 0
    if setup.adapters.use_dora:
        dora_again = FORWARD * setup.adapters.lora_r * sizes.units
        base = forward * sizes.adapted if setup.adapters.lora_dropout else 0
        dora_again += base
        dora = dora_again + base
    once = real(FORWARD * ATTENTION_PRODUCTS * rows * pairs)
    once *= (model.query_size + model.value_size) / 2
    eager = is_eager(model, setup.computation)
    backward = PLAIN_BACKWARD if eager else FLASH_BACKWARD
    mixed = delta_products(model, length) + scan_products(model, length)
    delta = real(FORWARD * rows * mixed)
    again = replayed(model, setup)
    keeps_attention = setup.computation.selective_checkpointing and not eager
    loss = loss_of(model, setup)
    unscored = round((1 - scored_share(setup)) * _head(model)) if loss.scores_completions else 0
    outside = sizes.outside - unscored
    asked = setup.passes_without_grad
    return Work(
        products=tower.products
        + real(forward * (passes * (sizes.layers + outside) + sizes.copied)),
        adapters=tower.adapters + real(forward * 3 * branches + dora),
        attention=tower.attention + once * (1 + backward) + 3 * delta,
        products_again=tower.products_again
        + again * (forward * (sizes.layers + branches) + dora_again)
        + (real(forward * (_head(model) - unscored)) if loss.tiles_logits else 0.0),
        attention_again=tower.attention_again
        + again * (delta + (0.0 if keeps_attention else once)),
        products_asked=real(asked * forward * (sizes.layers + outside)),
        attention_asked=asked * (once + delta),
    )


def trains_whole(adapters: Adapters) -> bool:
    """Whether the language model's own weights have gradients (a yes or no; the same on every GPU).

    Source: derived.

    >>> trains_whole(Adapters()), trains_whole(Adapters(method="lora"))
    (True, False)
    """
    return Part.TEXT not in adapters.frozen_parts and not adapters.uses_adapters


NO_WORK = Work(0.0, 0.0, 0.0, 0.0, 0.0)


def tower_work(model: Model, setup: TrainingSetup) -> Work:
    """Operations of the vision tower and its projector, of one micro-batch on one GPU; 0 without images.

        2 · patches · tower · passes + 2 · tokens · projector · passes + attention
        passes: forward, the weights' gradients if they are trained, and the input's if backward reaches it (pixels need
        none); adapters add 3 passes of r · (in + out) features

    Leaves out: that the first layer's input needs no gradient where only adapters are trained.
    Error: none in full, 1.4 % with adapters, against torch's FlopCounterMode on two-layer models of four families.
    Source: derived, as ``work``; transformers 5.23, modeling_utils.py, ``enable_input_require_grads``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> tower_work(TINY_LLAMA, TrainingSetup()) == NO_WORK
    True
    """
    vision = model.vision
    if vision is None or not sees(model, setup.adapters) or not setup.images.shows_any:
        return NO_WORK
    seen = Seen(images_of(model, setup.images), setup.batch.per_device_train_batch_size)
    modules = vision_modules(model)
    once, products, branches = 0, 0.0, 0
    trained = Part.VISION not in setup.adapters.frozen_parts
    family = vision_family(vision)
    enters = trained or (setup.computation.checkpoints_vision and family.hooks_embedding)
    projector_learns = Part.PROJECTOR not in setup.adapters.frozen_parts
    for module, count in modules:
        elements = FORWARD * count * _elements(module, model)
        is_projector = module.part is Part.PROJECTOR
        rows = seen.tokens if is_projector else seen.patches
        learns = module.part not in setup.adapters.frozen_parts and not setup.adapters.uses_adapters
        passes = 1 + learns
        if enters or (is_projector and projector_learns):
            passes += not _takes_pixels(module)  # the gradient of its input
        products += real(passes * elements * rows)
        if isinstance(module, Linear) and is_adapted(module, setup.adapters):
            branches += FORWARD * count * rows * (module.in_features + module.out_features)
        if module.name.startswith(f"{tower_layers(vision)}."):
            once += elements * rows
    branches *= setup.adapters.lora_r
    pairs = attended_patches(vision, seen)
    attention = real(FORWARD * ATTENTION_PRODUCTS * pairs * vision.tower.query_size)
    backward = PLAIN_BACKWARD if is_eager(vision.tower, setup.computation) else FLASH_BACKWARD
    again = real(setup.computation.checkpoints_vision and enters)
    return Work(
        products=products,
        adapters=real(3 * branches),
        attention=attention * (1 + backward * enters),
        products_again=again * (once + branches),
        attention_again=again * attention,
    )


def _takes_pixels(module: Module) -> bool:
    """Whether its input is the image, which needs no gradient."""
    return module.part is Part.VISION and "patch" in module.name


def replayed(model: Model, setup: TrainingSetup) -> float:
    """Share of the layers that backward recomputes (from 0 to 1; the same on every GPU).

    Leaves out: that dense layers of a mixture are smaller.
    Source: derived, from ``is_checkpointed``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> setup = TrainingSetup(gradient_checkpointing=True, checkpoint_every_n_layers=2)
    >>> replayed(TINY_LLAMA, setup), replayed(TINY_LLAMA, TrainingSetup())
    (0.5, 0.0)
    """
    if not setup.computation.gradient_checkpointing:
        return 0.0
    if setup.computation.checkpoint_every_n_layers == 1:
        return 1.0
    layers = range(model.num_hidden_layers)
    return sum(is_checkpointed(model, setup, index) for index in layers) / len(layers)


def scored_share(setup: TrainingSetup) -> float:
    """Share of the tokens that the fused head computes (no unit; the same on every GPU).

    Source: trl 1.16, trainer/utils.py, ``add_fused_lm_head`` (``labels != -100``).

    >>> scored_share(TrainingSetup(objective="dpo", max_length=1024, max_prompt_length=256))
    0.75
    """
    if setup.task.objective.generates:
        return min(1.0, setup.task.max_completion_length / setup.batch.max_length)
    if setup.task.objective.is_preference:
        return 1 - setup.prompt_tokens / setup.batch.max_length
    return setup.task.completion_fraction


def _head(model: Model) -> int:
    return (
        0
        if model.num_labels is not None
        else model.vocab_size * (model.word_embed_proj_dim or model.hidden_size)
    )


def is_eager(model: Model, computation: Computation) -> bool:
    """Whether attention runs eagerly and keeps all scores (a yes or no; the same on every GPU).

    Source: transformers 5.23, modeling_utils.py, ``_supports_sdpa`` (false in the families that run eagerly).
    """
    return attention_of(model, computation).keeps_scores


def delta_products(model: Model, length: int) -> int:
    """Multiplications in the gated delta nets of one example, forward, over all layers.

        layers · heads · rows · (c · (2 · dₖ + dᵥ) + c · (dₖ + dᵥ) / 2 + 3 · dₖ · dᵥ)
        c: tokens per chunk, 64; rows: tokens, rounded up to whole chunks

    Keys with keys, queries with keys, scores with values; two triangular systems; the state read twice and corrected.
    Leaves out: the convolution before it, products with decays.
    Source: derived, from transformers 5.23, models/qwen3_5/modeling_qwen3_5.py, ``torch_chunk_gated_delta_rule``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> delta_products(TINY_LLAMA, 64)
    0
    """
    sizes = model.delta_net
    if sizes is None:
        return 0
    keys, values = sizes.key_dim, sizes.value_dim
    rows = ceil_div(length, CHUNK) * CHUNK
    row = CHUNK * (2 * keys + values) + CHUNK * (keys + values) // 2 + 3 * keys * values
    return model.layer_types.count(LINEAR_ATTENTION) * sizes.value_heads * rows * row


def scan_products(model: Model, length: int) -> int:
    """Multiplications in the scans of Mamba 2's mixers of one example, forward, over all layers.

        layers · heads · rows · (c · (n + p) + 2 · n · p)
        c: tokens per chunk; rows: tokens, rounded up to whole chunks; n: state size, p: head width

    C with B, scores with values; states from values, outputs from states.
    Leaves out: the convolution before it, products with decays, the recurrence between chunks.
    Source: derived; transformers 5.23, models/granitemoehybrid/modeling_granitemoehybrid.py, ``mamba2_chunk_scan``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> scan_products(TINY_LLAMA, 64)
    0
    """
    sizes = model.state_space
    if sizes is None:
        return 0
    chunk, state, width = sizes.chunk_size, sizes.state_size, sizes.head_dim
    rows = ceil_div(length, chunk) * chunk
    return mixers(model) * sizes.heads * rows * (chunk * (state + width) + 2 * state * width)


def mixers(model: Model) -> int:
    """Layers with a Mamba 2 mixer (a count; the same on every GPU).

    Source: transformers 5.23, models/falcon_h1/modeling_falcon_h1.py (every layer), and ``layer_types`` elsewhere.
    """
    if model.state_space is None:
        return 0
    layers = model.layer_types
    return layers.count(LINEAR_ATTENTION) if layers else model.num_hidden_layers


def attended_pairs(model: Model, length: int, *, skips: bool) -> int:
    """Query-key pairs that a kernel multiplies in one example, over all layers.

        skips: causal  s · (s + 1) / 2, or with a window w  w · s - w · (w - 1) / 2     else: s · s
        in chunks of w (Llama 4)  ⌊s / w⌋ · w · (w + 1) / 2 + r · (r + 1) / 2     r: s mod w

    If layers without a window have wider heads (Gemma 4), their pairs count proportionally more.

    ``skips``: whether the kernel skips masked pairs, as flash kernels do and plain products do not.
    Source: derived; Dao 2023, arXiv:2307.08691, section 3.1 (blocks above the diagonal are skipped).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> attended_pairs(TINY_LLAMA, 4, skips=True), attended_pairs(TINY_LLAMA, 4, skips=False)
    (20, 32)
    """
    if model.global_head_dim:
        return _weighed_pairs(model, length, skips=skips)
    layers = model.num_hidden_layers - sum(map(model.layer_types.count, WITHOUT_ATTENTION))
    if not skips:
        return layers * length * length
    causal = length * (length + 1) // 2
    if not has_window(model, length):
        return layers * causal
    window = model.sliding_window
    windowed = window * length - window * (window - 1) // 2
    if family_of(model).has_chunks:  # each causal
        chunks, rest = divmod(length, window)
        windowed = chunks * (window * (window + 1) // 2) + rest * (rest + 1) // 2
    kinds = layer_kinds(model, windowed=True)
    return sum(windowed if kind.windowed else causal for kind in kinds)


def _weighed_pairs(model: Model, length: int, *, skips: bool) -> int:
    """The same if head widths differ between layers: a pair of heads twice as wide counts as two."""
    plain = replace(
        model,
        global_head_dim=0,
        layer_types=(),
        sliding_window=0,
        num_hidden_layers=1,
        num_kv_shared_layers=0,
    )
    windowed = replace(plain, sliding_window=model.sliding_window)
    of_global = model.layer_types.count(FULL_ATTENTION)
    of_others = (model.num_hidden_layers - of_global) * attended_pairs(
        windowed, length, skips=skips
    )
    pairs = of_global * attended_pairs(plain, length, skips=skips)
    return of_others + pairs * model.global_head_dim // model.head_dim

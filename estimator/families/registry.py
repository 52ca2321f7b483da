"""The families: which program each layer runs, which norm, how the embedding and the logits are scaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from estimator.families import gemma3n, gemma4, layers
from estimator.families.block import Block, LayerProgram, NormKind
from estimator.families.counts import modules_with_counts
from estimator.families.deepseek import deepseek
from estimator.families.delta_net import qwen3_5
from estimator.families.gpt_oss import gpt_oss
from estimator.families.hybrids import falcon_h1, granite_hybrid, nemotron_h
from estimator.families.lfm2 import lfm2
from estimator.families.llama4 import llama4
from estimator.families.modules import Norm
from estimator.families.parameters import check_modelled
from estimator.families.phimoe import phimoe
from estimator.families.rotary import Rotary
from estimator.tape.tape import Tensor
from estimator.values.setup import TrainingSetup
from estimator.values.specs import AttnImplementation, Model


@dataclass(frozen=True, slots=True)
class Architecture:
    """What follows from ``model_type`` alone."""

    layer: LayerProgram
    norm: NormKind = NormKind.RMS
    rotary: Rotary | None = Rotary.HALVES
    """How queries and keys are turned by their positions; None: not at all."""
    tables_by_kind: bool = False
    """Windowed layers turn by other tables than the rest (Gemma 3, OLMo 3)."""
    tables_if_turned: bool = False
    """There are no such tables where the config turns no layer (Granite 4.0)."""
    tables_by_text: bool = False
    """Each text of a batch has rotary tables of its own (Qwen3.5, whose positions are those of images as well)."""
    always_masked: bool = False
    """A mask is made even where causality would do (Falcon)."""
    scales_embedding: bool = False
    """The embedding is multiplied by a number (Gemma, Granite)."""
    scales_in_module: bool = False
    """It is so by the embedding's own module, so that the hook for input gradients comes after (Gemma)."""
    layer_inputs: Callable[[Block, Tensor, Tensor], Tensor] | None = None
    """What is made of ids and embeddings for all layers at once, before the first (Gemma 4)."""
    spread: Callable[[Block, Tensor], tuple[Tensor, list[Tensor]]] | None = None
    """What makes several streams of the hidden states before the first layer, and what of them is kept (Gemma 3n)."""
    gathered: Callable[[Block, Tensor], Tensor] | None = None
    """What makes one of them again after the last."""
    reads_weights: str = ""
    """A linear whose weight it reads past the module, where it is no matrix once it is packed."""
    scales_logits: bool = False
    """The logits are multiplied or divided by a number (Granite, Cohere)."""
    float32_logits: bool = False
    """The model itself hands on its logits in float32 (Nemotron-H)."""
    eager_only: bool = False
    """transformers refuses SDPA for this family: it sets ``_supports_sdpa = False``."""
    flash_lacks: str = ""
    """What of its attention flash_attention_2 does not know; transformers takes a kernel of another name instead."""
    has_chunks: bool = False
    """Its windows are chunks: a token attends to those of its own chunk."""
    runs_every_expert: bool = False
    """Every token goes through every expert, times a share that is 0 for those it was not chosen for."""
    fallback: tuple[str, str] | None = None
    """What is counted as PyTorch runs it, and the packages whose kernels transformers takes where it finds them."""
    masks_unused_window: bool = False
    """A window's mask is made although no layer has a window (Qwen2-MoE)."""
    returns_weights: bool = False
    """Each layer returns its eager attention's weights, which live until the next layer has returned."""
    softmax_float32: bool = True
    """Eager attention takes the softmax in float32 whatever the dtype."""


_MAMBA = ("state-space layers", "mamba-ssm and causal-conv1d")
_LAYER_NORM = NormKind.LAYER_NORM
_LLAMA = Architecture(layers.llama)
_OLMO2 = Architecture(layers.olmo2, NormKind.RMS_CAST_LAST, Rotary.CAST_BACK)
_GLM = Architecture(layers.glm, rotary=Rotary.PAIRS)
_GRANITE = Architecture(layers.llama, scales_embedding=True, scales_logits=True)
_QWEN3_5 = Architecture(
    qwen3_5,
    NormKind.RMS_ONE_PLUS,
    tables_by_text=True,
    fallback=("gated delta-nets", "flash-linear-attention and causal-conv1d"),
)
_GEMMA = Architecture(
    layers.gemma2, NormKind.RMS_ONE_PLUS, scales_embedding=True, scales_in_module=True
)
_COHERE = Architecture(
    layers.cohere, NormKind.LAYER_NORM_IN_STEPS, Rotary.FLOAT32_PAIRS, scales_logits=True
)

ARCHITECTURES: dict[str, Architecture] = {
    "apertus": Architecture(layers.apertus),
    "arcee": Architecture(layers.arcee),
    "bloom": Architecture(
        layers.bloom, _LAYER_NORM, rotary=None, eager_only=True, returns_weights=True
    ),
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "deepseek_v2": Architecture(deepseek, rotary=Rotary.COMPLEX),
    "deepseek_v3": Architecture(deepseek, rotary=Rotary.SPLIT_PAIRS),
    "ernie4_5": Architecture(layers.llama, rotary=Rotary.FLOAT32_SPREAD_PAIRS),
    "ernie4_5_moe": Architecture(deepseek, rotary=Rotary.FLOAT32_SPREAD_PAIRS),
    "exaone4": Architecture(layers.olmo2),
    "falcon": Architecture(layers.falcon, _LAYER_NORM, always_masked=True, returns_weights=True),
    "falcon_h1": Architecture(
        falcon_h1, scales_embedding=True, scales_logits=True, fallback=_MAMBA
    ),
    "gemma": replace(_GEMMA, layer=layers.llama),
    "gemma2": replace(_GEMMA, eager_only=True),
    "gemma3_text": replace(_GEMMA, tables_by_kind=True),
    "gemma4_text": replace(
        _GEMMA,
        layer=gemma4.gemma4,
        norm=NormKind.RMS_BY_POWER,
        tables_by_kind=True,
        layer_inputs=gemma4.layer_inputs,
        flash_lacks="heads of more than 256 numbers",
    ),
    "gemma3n_text": replace(
        _GEMMA,
        layer=gemma3n.gemma3n,
        norm=NormKind.RMS_BY_POWER,
        tables_by_kind=True,
        layer_inputs=gemma3n.layer_inputs,
        spread=gemma3n.spread,
        gathered=gemma3n.gathered,
        reads_weights="altup.correction_coefs",
    ),
    "glm": _GLM,
    "glm4": _GLM,
    "glm4_moe": Architecture(deepseek),
    "glm4_moe_lite": Architecture(deepseek, rotary=Rotary.SPLIT_PAIRS),
    "gpt2": Architecture(layers.gpt2, _LAYER_NORM, rotary=None, softmax_float32=False),
    "gpt_bigcode": Architecture(layers.gpt2, _LAYER_NORM, rotary=None),
    "gpt_oss": Architecture(
        gpt_oss,
        NormKind.RMS_CAST_LAST,
        Rotary.SPLIT_HALVES,
        eager_only=True,
        flash_lacks="attention sinks",
    ),
    "gpt_neox": Architecture(layers.gpt_neox, _LAYER_NORM),
    "gptj": Architecture(
        layers.gptj, _LAYER_NORM, rotary=None, eager_only=True, returns_weights=True
    ),
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "granitemoehybrid": replace(
        _GRANITE, layer=granite_hybrid, tables_if_turned=True, fallback=_MAMBA
    ),
    "hunyuan_v1_dense": Architecture(layers.hunyuan),
    "internlm3": _LLAMA,
    "lfm2": Architecture(lfm2, fallback=("short convolutions", "causal-conv1d")),
    "llama": _LLAMA,
    "llama4_text": Architecture(
        llama4,
        rotary=Rotary.COMPLEX,
        softmax_float32=False,
        flash_lacks="chunks",
        has_chunks=True,
        runs_every_expert=True,
    ),
    "ministral3": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "mpt": Architecture(
        layers.mpt, _LAYER_NORM, rotary=None, eager_only=True, returns_weights=True
    ),
    "nemotron": Architecture(layers.arcee, NormKind.LAYER_NORM_PLUS_ONE),
    "nemotron_h": Architecture(
        nemotron_h,
        NormKind.RMS_WEIGHT_FLOAT32,
        rotary=None,
        float32_logits=True,
        fallback=_MAMBA,
    ),
    "olmo": Architecture(layers.llama, NormKind.LAYER_NORM_FLOAT32, Rotary.CAST_BACK),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, tables_by_kind=True),
    "olmoe": _LLAMA,
    "opt": Architecture(layers.opt, _LAYER_NORM, rotary=None),
    "phi": Architecture(layers.phi, _LAYER_NORM),
    "phi3": Architecture(layers.phi3),
    "phimoe": Architecture(phimoe, _LAYER_NORM),
    "qwen2": _LLAMA,
    "qwen2_moe": Architecture(layers.llama, masks_unused_window=True),
    "qwen3": _LLAMA,
    "qwen3_5_moe_text": _QWEN3_5,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_moe": _LLAMA,
    "qwen3_next": replace(_QWEN3_5, tables_by_text=False),
    "seed_oss": _LLAMA,
    "smollm3": _LLAMA,
    "stablelm": Architecture(layers.stablelm, _LAYER_NORM),
    "starcoder2": Architecture(layers.starcoder2, _LAYER_NORM),
}


def architecture(model: Model) -> Architecture:
    """The model's family; refuses one that is not modelled, by name."""
    check_modelled(model.model_type)
    return ARCHITECTURES[model.model_type]


def fallback_of(model: Model) -> tuple[str, str] | None:
    """The family's ``fallback``, if the model has such layers: each of them begins with a convolution."""
    has_filters = any(isinstance(it, Norm) and it.taps for it, _ in modules_with_counts(model))
    return architecture(model).fallback if has_filters else None


def attention_of(model: Model, setup: TrainingSetup) -> AttnImplementation:
    """The kernel that transformers runs: the setup's, but eager attention where the family knows no SDPA."""
    wanted = setup.attn_implementation
    if wanted is AttnImplementation.SDPA and architecture(model).eager_only:
        return AttnImplementation.EAGER
    return wanted

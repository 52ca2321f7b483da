"""Qwen2 and Qwen3, with and without experts: Llama's layer.

Source: transformers 5.23, models/qwen2, models/qwen2_moe, models/qwen3, models/qwen3_moe, modeling_*.py.
"""

from __future__ import annotations

from estimator.families.config_class import ConfigClass, ExpertKeys, Why, WindowKeys
from estimator.families.config_keys import WINDOWS
from estimator.families.config_rules import fixed_biases, input_biases, shared_width
from estimator.families.experts import QWEN_NAMES, SPARSE, experts_tree, router
from estimator.families.family import Family, Kernels
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.layer_kinds import DENSE, FULL_ATTENTION, SLIDING
from estimator.families.layers import ATTENTION, GATED_MLP, NORMED_ATTENTION, decoder_layer
from estimator.families.modules import Tree, tree
from estimator.families.reader import MOST_LAYERS, Config, wrong
from estimator.values.refusals import InputError
from estimator.values.specs import Model

_QWEN3_LAYER = decoder_layer(NORMED_ATTENTION, GATED_MLP)


def _qwen3_sparse_tree(model: Model) -> Tree:
    # PEFT looks up the whole config's model_type, and its map of former names lacks qwen3_vl_moe
    former = None if model.vision is not None else QWEN_NAMES
    return tree("@SparseMoeBlock", experts=experts_tree(model, former), gate=router(model, former))


def _mlps(read: Config, layers: int) -> tuple[str, ...]:
    """Experts in every ``decoder_sparse_step``-th layer, but none in ``mlp_only_layers``.

    Source: transformers 5.23, models/qwen3_moe/modeling_qwen3_moe.py, ``Qwen3MoeDecoderLayer.__init__``.
    """
    every = read.whole("decoder_sparse_step", default=1, most=MOST_LAYERS)
    dense = read.values.get("mlp_only_layers") or ()
    if not isinstance(dense, list | tuple) or not all(type(layer) is int for layer in dense):
        raise wrong("mlp_only_layers", "list layers as whole numbers", dense)
    kinds = tuple(
        DENSE if layer in dense or (layer + 1) % every else "sparse" for layer in range(layers)
    )
    if "sparse" not in kinds:
        raise InputError(
            f"mlp_only_layers and decoder_sparse_step leave no layer with experts; take the dense "
            f"{read.model_type.removesuffix('_moe')} instead."
        )
    return kinds


def _first_windowed(read: Config) -> int:
    first = read.values.get("max_window_layers", 28)  # Qwen2Config, Qwen2MoeConfig and Qwen3Config
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise wrong("max_window_layers", "be a whole number from 0", first)
    return first


def _from_one_on(read: Config, layers: int) -> tuple[str, ...]:
    first = _first_windowed(read)
    return tuple(SLIDING if layer >= first else FULL_ATTENTION for layer in range(layers))


def _every_other_below(read: Config, layers: int) -> tuple[str, ...]:
    """``Qwen2MoeConfig``: every other layer below that one."""
    first = _first_windowed(read)
    return tuple(
        SLIDING if layer % 2 == 0 and layer < first else FULL_ATTENTION for layer in range(layers)
    )


FAMILIES = (
    Family(
        model_type="qwen2",
        config=ConfigClass(
            key_value_heads=32,
            biases=fixed_biases(True, False, False),
            windows=WindowKeys(default=4096, is_switched=True, unlisted=_from_one_on),
            wrappers=("internvl", "llava_onevision", "qwen2_5_vl", "qwen2_audio", "qwen2_vl"),
            flat_wrappers=("qwen2_vl", "qwen2_5_vl"),
            aliases=("qwen2_5_vl_text", "qwen2_vl_text"),
            nested_sizes={
                "vocab_size": 151_936,
                "hidden_size": 4_096,
                "intermediate_size": 22_016,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "max_position_embeddings": 32_768,
            },
        ),
        prefix="Qwen2",
        layer=LLAMA_LAYER,
        like="llama",
        liger=Kernels(),
        unread={Why.OFF: WINDOWS, Why.UNREAD: "use_mrope"},
        has_tp_plan=True,
    ),
    Family(
        model_type="qwen2_moe",
        config=ConfigClass(
            key_value_heads=16,
            biases=input_biases("qkv_bias", default=True),
            windows=WindowKeys(default=4096, is_switched=True, unlisted=_every_other_below),
            experts=ExpertKeys(
                have_own_width=True,
                shared_width=shared_width("shared_expert_intermediate_size"),
                layer_types=_mlps,
            ),
        ),
        prefix="Qwen2Moe",
        layer=decoder_layer(ATTENTION, SPARSE),
        others={DENSE: LLAMA_LAYER},
        masks_unused_window=True,
        unread={Why.OFF: WINDOWS},
        merges_experts=True,
    ),
    Family(
        model_type="qwen3",
        config=ConfigClass(
            key_value_heads=32,
            head_dim=128,
            windows=WindowKeys(default=4096, is_switched=True, unlisted=_from_one_on),
            wrappers=("qwen3_vl",),
            aliases=("qwen3_vl_text",),
        ),
        prefix="Qwen3",
        layer=_QWEN3_LAYER,
        like="llama",
        liger=Kernels(),
        unread={Why.OFF: WINDOWS},
        has_tp_plan=True,
    ),
    Family(
        model_type="qwen3_moe",
        config=ConfigClass(
            key_value_heads=4,
            windows=WindowKeys(default=4096, everywhere=True, is_switched=True),
            experts=ExpertKeys(have_own_width=True, layer_types=_mlps),
            wrappers=("qwen3_vl_moe",),
            aliases=("qwen3_vl_moe_text",),
        ),
        prefix="Qwen3Moe",
        layer=decoder_layer(NORMED_ATTENTION, SPARSE._replace(tree=_qwen3_sparse_tree)),
        like="llama",
        others={DENSE: _QWEN3_LAYER},
        liger=Kernels(experts=True),
        unread={Why.OFF: f"{WINDOWS} num_experts"},
        merges_experts=True,
    ),
)

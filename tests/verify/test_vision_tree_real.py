"""Module trees and device maps with a vision tower, compared with the real classes on the meta device.

Expected values come from accelerate 1.15, transformers 5.23 and bitsandbytes 0.50, run here on shrunk configs.
"""

from __future__ import annotations

import json
from functools import lru_cache
from random import Random
from typing import Any

import pytest
from test_placement_real import SEEING, _limits, accelerates, packed, transformers_own

from estimator.contract.setups import read_model
from estimator.families.adapters import trainable_parameters
from estimator.families.model_tree import module_tree, whole_classes
from estimator.families.target_pattern import with_names
from estimator.parallel.placement import (
    ACCELERATE,
    Balance,
    Packing,
    from_pretrained_device_map,
    infer_auto_device_map,
    sizes_in_bits,
)
from estimator.values.facets.adapters import Adapters
from estimator.values.refusals import NOT_MODELLED, InputError, RefusedError
from estimator.values.specs import Model, ModelClass

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")

pytestmark = [
    pytest.mark.filterwarnings("ignore:Current model requires .* bytes of buffer:UserWarning"),
    # peft 0.21 uses a name that transformers 5.23 has changed
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

TEXT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}
MIXTURE = {"num_experts": 4, "moe_intermediate_size": 48, "num_experts_per_tok": 2}
QWEN = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "depth": 3,
    "num_heads": 4,
    "out_hidden_size": 64,
}
TOWER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
DEEP = {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}
ROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "text_config": TEXT | ROPE,
        "vision_config": {"embed_dim": 64, "depth": 3, "num_heads": 4, "hidden_size": 64},
    },
    "qwen2_5_vl": {"text_config": TEXT | ROPE, "vision_config": QWEN},
    "qwen3_vl": {"text_config": TEXT | ROPE, "vision_config": QWEN | DEEP},
    "qwen3_vl_moe": {"text_config": TEXT | ROPE | MIXTURE, "vision_config": QWEN | DEEP},
    "qwen3_5": {"text_config": TEXT, "vision_config": QWEN | {"num_position_embeddings": 16}},
    "gemma3": {
        "text_config": TEXT | {"model_type": "gemma3_text"},
        "vision_config": TOWER | {"model_type": "siglip_vision_model", "vision_use_head": False},
    },
    "internvl": {
        "text_config": TEXT | {"model_type": "qwen2"},
        "vision_config": TOWER | {"attention_bias": True},
    },
    "mistral3": {
        "text_config": TEXT | {"model_type": "mistral"},
        "vision_config": TOWER | {"model_type": "pixtral"},
    },
    "llava": {
        "text_config": TEXT | {"model_type": "mistral"},
        "vision_config": TOWER | {"model_type": "pixtral"},
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    "smolvlm": {"text_config": TEXT | {"model_type": "llama"}, "vision_config": TOWER},
    "idefics3": {"text_config": TEXT | {"model_type": "llama"}, "vision_config": TOWER},
    "llama4": {
        "text_config": TEXT
        | {
            "model_type": "llama4_text",
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 96,
        },
        "vision_config": TOWER
        | {
            "image_size": 28,
            "patch_size": 14,
            "projector_input_dim": 64,
            "projector_output_dim": 64,
            "vision_output_dim": 64,
        },
    },
    "glm4v": {
        "text_config": TEXT | ROPE,
        "vision_config": QWEN,
    },
}
CASES = [(name, tied) for name in CONFIGS for tied in (False, True) if name != "llama4" or not tied]
SEES = ModelClass.IMAGE_TEXT
EACH = pytest.mark.parametrize(("wrapper", "tied"), CASES)


@lru_cache(maxsize=4)
def _given(wrapper: str, tied: bool) -> str:
    config = json.loads(json.dumps(CONFIGS[wrapper]))
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = tied
    return json.dumps(config)


def _config(wrapper: str, tied: bool) -> Any:
    return transformers.AutoConfig.for_model(wrapper, **json.loads(_given(wrapper, tied)))


def _real(wrapper: str, tied: bool, dtype: str = "float32") -> Any:
    with torch.device("meta"):
        made_by = getattr(transformers, SEEING)
        return made_by.from_config(_config(wrapper, tied), dtype=getattr(torch, dtype))


def _ours(wrapper: str, tied: bool) -> Model:
    return read_model({"model_type": wrapper, **json.loads(_given(wrapper, tied))})


@EACH
def test_modules_have_the_names_order_and_classes_of_the_real_class(wrapper, tied):
    real, model = _real(wrapper, tied), _ours(wrapper, tied)
    ours = [(node.name, node.class_name) for node in module_tree(model, with_tower=True).walk()][1:]
    theirs = [
        (name, type(module).__name__ if any(module.children()) else "")
        for name, module in real.named_modules()
    ][1:]
    assert ours == theirs
    inside = {type(module).__name__ for module in real.modules()}
    assert whole_classes(model, with_tower=True) == real._no_split_modules & inside


@EACH
def test_every_module_has_the_parameters_and_buffers_that_accelerate_counts(wrapper, tied):
    real, tree = _real(wrapper, tied), module_tree(_ours(wrapper, tied), with_tower=True)
    for dtype in ("float32", "bfloat16", "int8"):
        theirs = accelerate.utils.compute_module_sizes(real, dtype=dtype)
        ours = sizes_in_bits(tree, ACCELERATE[dtype])
        assert ours == {name: 8 * theirs[name] for name in ours}


@EACH
def test_every_tower_is_placed_as_by_the_libraries(wrapper, tied):
    model, real = _ours(wrapper, tied), _real(wrapper, tied)
    chance = Random(f"{wrapper} {tied}")
    total = accelerate.utils.compute_module_sizes(real)[""]
    own = list(real._no_split_modules)
    skeleton = _real(wrapper, tied, "bfloat16")
    quantisers = {packing: packed(_config(wrapper, tied), packing, SEEING) for packing in Packing}
    for _ in range(6):
        limits = _limits(chance, total)
        classes = chance.choice((None, []))
        for balance in Balance:
            said = infer_auto_device_map(
                model,
                limits,
                no_split_module_classes=classes,
                balance=balance,
                with_tower=True,
            )
            used = own if classes is None else classes
            assert said == accelerates(real, limits, "bfloat16", used, balance), (limits, balance)
            said = from_pretrained_device_map(model, limits, balance=balance, with_tower=True)
            assert said == transformers_own(skeleton, limits, balance), (limits, balance)
            for packing, (quantised, quantizer) in quantisers.items():
                if wrapper == "llama4":
                    with pytest.raises(ValueError, match="splits Llama 4's stacked experts"):
                        from_pretrained_device_map(model, limits, packing=packing, with_tower=True)
                    continue
                try:
                    theirs = transformers_own(quantised, limits, balance, quantizer)
                except ValueError:
                    with pytest.raises(ValueError, match="transformers refuses modules on the CPU"):
                        from_pretrained_device_map(
                            model, limits, balance=balance, packing=packing, with_tower=True
                        )
                else:
                    assert theirs == from_pretrained_device_map(
                        model, limits, balance=balance, packing=packing, with_tower=True
                    ), (limits, balance, packing)


@EACH
@pytest.mark.parametrize(
    "pattern",
    [
        r"model.(language_model|text_model).layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj",
        r"language_model.model.layers.\d+.self_attn.(q|v)_proj",
        r".*\.(q_proj|up_proj)",
        r".*(qkv|query|fc1|linear_1)",
        r".*self_attn.*",
    ],
)
def test_a_regular_expression_reaches_what_it_reaches_in_peft(wrapper, tied, pattern):
    model = _ours(wrapper, tied)
    given = Adapters(
        method="lora", lora_r=4, lora_dropout=0.0, model_class=SEES, lora_target_modules=pattern
    )
    config = peft.LoraConfig(r=4, target_modules=pattern, task_type="CAUSAL_LM")
    try:
        wrapped = peft.get_peft_model(_real(wrapper, tied), config)
    except (ValueError, TypeError):
        theirs = None
    else:
        theirs = sum(one.numel() for one in wrapped.parameters() if one.requires_grad)
    assert _asked(model, given) in {theirs, None if theirs is None else NOT_MODELLED}


def _asked(model: Model, given: Adapters) -> object:
    """Trained parameters; ``NOT_MODELLED`` where PEFT may run it; None where PEFT fails."""
    try:
        return trainable_parameters(model, with_names(model, given))
    except RefusedError as refused:
        return NOT_MODELLED if refused.refusal.cause is NOT_MODELLED else None
    except InputError:
        return None

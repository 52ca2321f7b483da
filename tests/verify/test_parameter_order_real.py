"""The order of trained tensors and which of them decay, compared with the real classes on the meta device.

Expected values come from transformers 5.23 and peft 0.21 themselves, run here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_parameters_meta import IDS, VARIANTS, build

from estimator.contract.setups import parse
from estimator.parallel.tensors import trained_in_order
from estimator.values.arithmetic import elements
from estimator.values.facets.adapters import Adapters
from estimator.values.methods import Method
from estimator.values.setup import TrainingSetup

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")


def _theirs(real: Any) -> list[tuple[int, bool]]:
    """Elements of every trained parameter, and whether it decays."""
    decays = set(transformers.Trainer.get_decay_parameter_names(None, real))
    return [(p.numel(), name in decays) for name, p in real.named_parameters() if p.requires_grad]


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=IDS)
def test_weights_have_the_order_of_the_real_class(model_type, keys):
    real, model = build(model_type, keys)
    ours = [
        (elements(parameter.shape), parameter.decays)
        for parameter in trained_in_order(model, Adapters())
    ]
    assert ours == _theirs(real)


@pytest.mark.parametrize(
    ("targets", "copies"), [("all-linear", None), (("down_proj", "o_proj"), ["lm_head", "norm"])]
)
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("model_type", ["llama", "phi3", "qwen2"])
def test_adapters_and_copies_have_peft_s_order(model_type, targets, copies):
    keys = next(keys for name, keys in VARIANTS if name == model_type)
    real, model = build(model_type, keys)
    real = peft.get_peft_model(
        real,
        peft.LoraConfig(
            r=8,
            task_type="CAUSAL_LM",
            target_modules=targets if isinstance(targets, str) else list(targets),
            modules_to_save=copies,
        ),
        autocast_adapter_dtype=False,
    )
    setup = TrainingSetup(
        method=Method.LORA,
        lora_r=8,
        lora_target_modules=targets,
        modules_to_save=copies and tuple(copies),
    )
    ours = [
        (elements(parameter.shape), parameter.decays)
        for parameter in trained_in_order(model, setup.adapters)
    ]
    assert ours == _theirs(real)


VISION = {
    "qwen2_5_vl": {
        "vision_config": {"depth": 2, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 64}
    },
    "qwen3_vl": {
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "num_heads": 4,
            "out_hidden_size": 64,
            "deepstack_visual_indexes": [0],
        }
    },
    "gemma3": {"vision_config": {"num_hidden_layers": 2, "vision_use_head": False}},
    "internvl": {"vision_config": {"num_hidden_layers": 2}},
    "glm4v": {
        "vision_config": {"depth": 2, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 64}
    },
    "smolvlm": {"vision_config": {"num_hidden_layers": 2}},
    "mistral3": {"vision_config": {"model_type": "pixtral", "num_hidden_layers": 2}},
}
TEXT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}
TEXT_TYPES = {
    "gemma3": "gemma3_text",
    "internvl": "qwen2",
    "smolvlm": "llama",
    "mistral3": "mistral",
}


@pytest.mark.parametrize("model_type", VISION)
def test_a_tower_has_the_order_of_the_real_class(model_type):
    text = TEXT | ({"model_type": TEXT_TYPES[model_type]} if model_type in TEXT_TYPES else {})
    config: dict[str, Any] = {"text_config": text, **VISION[model_type]}
    if model_type not in ("gemma3", "smolvlm"):
        config["tie_word_embeddings"] = text["tie_word_embeddings"] = False
    given = transformers.AutoConfig.for_model(model_type, **json.loads(json.dumps(config)))
    with torch.device("meta"):
        real = transformers.AutoModelForImageTextToText.from_config(given)
    keys = {"model_class": "image_text", "image_sizes": [[448, 448]], "max_length": 8192}
    model, _, setup = parse({"model": {"model_type": model_type, **config}, **keys})
    ours = [
        (elements(parameter.shape), parameter.decays)
        for parameter in trained_in_order(model, setup.adapters)
    ]
    assert ours == _theirs(real)

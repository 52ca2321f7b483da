"""Towers of multimodal models, compared with transformers' classes, and their adapters with PEFT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from estimator import TrainingSetup
from estimator.families.adapters import adapter_parameters, is_quantized, trainable_parameters
from estimator.families.hf_config import model_from_config
from estimator.families.loaded import clamps, idle_modules, tower_modules, tower_parameters
from estimator.families.model_tree import total_parameters
from estimator.families.modules import Kernel, Linear, module_parameters
from estimator.families.towers import with_towers
from estimator.families.wrapped import class_not_found, classes_of
from estimator.values.methods import Method
from estimator.values.specs import Model, ModelClass

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
quantizers = pytest.importorskip("transformers.quantizers.base")

# peft 0.21 uses a name that transformers 5.23 has changed
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

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
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
    "vision_use_head": False,
}
GEMMA_4_VISION = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 100,
}
GEMMA_4_AUDIO = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "conv_kernel_size": 3,
    "subsampling_conv_channels": [16, 8],
    "output_proj_dims": 40,
}
GEMMA_4_TEXT = TEXT | {"model_type": "gemma4_text", "vocab_size_per_layer_input": 96}
GEMMA_3N_AUDIO = {
    "hidden_size": 32,
    "conf_num_hidden_layers": 2,
    "conf_num_attention_heads": 4,
    "conf_conv_kernel_size": 3,
    "input_feat_size": 64,
    "sscp_conv_channel_size": [16, 8],
}
GEMMA_3N_TEXT = TEXT | {
    "model_type": "gemma3n_text",
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
}
WRAPPERS: Mapping[str, dict[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3",
        "text_config": TEXT | {"model_type": "gemma3_text"},
        "vision_config": SIGLIP,
        "mm_tokens_per_image": 4,
    },
    "gemma4, images and sound": {
        "model_type": "gemma4",
        "text_config": GEMMA_4_TEXT,
        "vision_config": GEMMA_4_VISION | {"use_clipped_linears": True},
        "audio_config": GEMMA_4_AUDIO,
    },
    "gemma4, images": {
        "model_type": "gemma4",
        "text_config": GEMMA_4_TEXT | {"hidden_size_per_layer_input": 0},
        "vision_config": GEMMA_4_VISION,
        "audio_config": None,
    },
    "gemma4, text": {
        "model_type": "gemma4",
        "text_config": GEMMA_4_TEXT | {"hidden_size_per_layer_input": 0},
        "vision_config": None,
        "audio_config": None,
    },
    "gemma3n": {
        "model_type": "gemma3n",
        "text_config": GEMMA_3N_TEXT,
        "vision_config": {"hidden_size": 40},
        "audio_config": GEMMA_3N_AUDIO,
    },
}
EACH = pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)


@pytest.fixture(autouse=True)
def no_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 3n's vision tower comes from timm, which is not installed here: an empty one replaces it.

    It has only convolutions; tests/test_towers.py checks the published count with it.
    """
    made = transformers.AutoModel.from_config

    def from_config(config: Any, **others: Any) -> Any:
        if config.model_type == "gemma3n_vision":
            return torch.nn.Identity()
        return made(config, **others)

    monkeypatch.setattr(transformers.AutoModel, "from_config", from_config)


def config_of(wrapper: Mapping[str, Any]) -> Any:
    given = {key: value for key, value in wrapper.items() if key != "model_type"}
    return transformers.AutoConfig.for_model(wrapper["model_type"], **given)


def real(wrapper: Mapping[str, Any], device: str = "meta") -> Any:
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config_of(wrapper))


def ours(wrapper: Mapping[str, Any]) -> Model:
    return with_towers(model_from_config(wrapper), wrapper)


def without_timm(model: Model, setup: TrainingSetup) -> int:
    """Parameters of the towers except timm's."""
    timm = sum(
        count * module_parameters(module)
        for module, count in tower_modules(model, setup.adapters)
        if module.name.startswith("vision_tower.timm_model")
    )
    return tower_parameters(model, setup.adapters) - timm


@EACH
def test_towers_match_the_parameters_and_linears_of_the_real_class(wrapper):
    model, made, setup = ours(wrapper), real(wrapper), TrainingSetup()
    assert type(made).__name__ == classes_of(model.model_type).made
    beside = {
        name: parameter
        for name, parameter in made.named_parameters()
        if "language_model" not in name
    }
    assert without_timm(model, setup) == sum(value.numel() for value in beside.values())
    linears = sorted(
        (tuple(reversed(module.weight.shape)), module.bias is not None)
        for name, module in made.named_modules()
        if type(module) is torch.nn.Linear and "language_model" not in name and name != "lm_head"
    )
    assert linears == sorted(
        ((module.in_features, module.out_features), module.bias)
        for module, count in tower_modules(model, setup.adapters)
        for _ in range(count)
        if isinstance(module, Linear)
    )
    scalars = [buffer for name, buffer in made.named_buffers() if name.endswith(("_min", "_max"))]
    assert clamps(model, setup.adapters) == len(scalars)


@EACH
def test_a_real_step_gives_gradients_to_exactly_the_modules_we_list_as_run(wrapper):
    """AdamW makes no state for a parameter whose gradient is None."""
    model, made, setup = ours(wrapper), real(wrapper, "cpu").train(), TrainingSetup()
    optimizer = torch.optim.AdamW(made.parameters())
    ids = torch.randint(1, 90, (1, 8))
    made(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    idle = {name for name, parameter in made.named_parameters() if parameter.grad is None}
    assert not [name for name in idle if "language_model" in name]
    states = sum(bool(optimizer.state[parameter]) for parameter in made.parameters())
    assert states == len(list(made.parameters())) - len(idle)
    timm = [
        module
        for module in idle_modules(model, setup.adapters, setup.images)
        if module[0].name.startswith("vision_tower.timm")
    ]
    said = sum(
        count * module_parameters(module)
        for module, count in idle_modules(model, setup.adapters, setup.images)
        if (module, count) not in timm
    )
    assert said == sum(made.get_parameter(name).numel() for name in idle)


TARGETS: Mapping[str, tuple[Any, ...]] = {
    "gemma3": ("all-linear", ("q_proj", "fc1"), ("o_proj",)),
    "gemma4": ("all-linear", ("embedding_projection", "down_proj.linear"), ("input_proj",)),
    "gemma3n": ("all-linear", ("q_proj", "embedding_projection"), ("ffw_layer_1",)),
}


def adapted(wrapper: dict[str, Any]) -> Iterator[tuple[Any, TrainingSetup]]:
    for targets in TARGETS[wrapper["model_type"]]:
        names = targets if isinstance(targets, str) else list(targets)
        setup = TrainingSetup(method=Method.LORA, lora_r=4, lora_target_modules=targets)
        yield names, setup


@EACH
def test_tower_adapters_match_peft(wrapper):
    model = ours(wrapper)
    for names, setup in adapted(wrapper):
        if not tower_modules(model, setup.adapters) and not isinstance(names, str):
            continue
        config = peft.LoraConfig(r=4, target_modules=names, task_type="CAUSAL_LM")
        trained, everything = peft.get_peft_model(
            real(wrapper), config
        ).get_nb_trainable_parameters()
        assert trainable_parameters(model, setup.adapters) == trained, names
        total = total_parameters(model) + without_timm(model, setup)
        assert total + adapter_parameters(model, setup.adapters) == everything
        text = replace(setup, model_class=ModelClass.TEXT)
        if isinstance(names, str):
            with torch.device("meta"):
                alone = transformers.AutoModelForCausalLM.from_config(
                    config_of(wrapper).get_text_config()
                )
            anew = peft.LoraConfig(r=4, target_modules=names, task_type="CAUSAL_LM")
            counts = peft.get_peft_model(alone, anew).get_nb_trainable_parameters()
            assert trainable_parameters(model, text.adapters) == counts[0]


def test_peft_refuses_the_linears_that_gemma_4_wraps():
    wrapper = WRAPPERS["gemma4, images"]
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="Gemma4ClippableLinear"):
        peft.get_peft_model(real(wrapper), config)
    setup = TrainingSetup(method=Method.LORA, lora_target_modules=("q_proj",))
    with pytest.raises(ValueError, match="linears of a custom class"):
        adapter_parameters(ours(wrapper), setup.adapters)


@EACH
def test_a_quantiser_skips_the_linears_we_list(wrapper):
    model, made = ours(wrapper), real(wrapper)
    setup = TrainingSetup(method=Method.QLORA)
    whole = {
        module.name
        for module, _ in tower_modules(model, setup.adapters)
        if isinstance(module, Linear) and not is_quantized(module, setup.adapters)
    }
    kept = quantizers.get_keys_to_not_convert(made)
    beside = {name.removeprefix("model.") for name in kept if "language_model" not in name}
    assert whole == beside - {"lm_head"}


@EACH
def test_accelerate_misses_the_class_we_name(wrapper):
    made = real(wrapper)
    has = {type(module).__name__ for module in made.modules()} | {"TimmWrapperModel"}
    missing = class_not_found(ours(wrapper))
    assert (missing in set(made._no_split_modules) - has) if missing else True
    assert bool(missing) is bool(set(made._no_split_modules) - has)


def test_a_kernel_replaces_no_linear():
    for wrapper in WRAPPERS.values():
        names = [
            name
            for name, module in real(wrapper).named_modules()
            if type(module) is torch.nn.Linear
        ]
        for module, _ in tower_modules(ours(wrapper), TrainingSetup().adapters):
            if isinstance(module, Kernel):
                assert not any(name.endswith(module.name) for name in names)

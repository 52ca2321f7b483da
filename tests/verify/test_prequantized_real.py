"""What transformers does with quantised checkpoints: its own classes on the meta device.

Expected values are transformers 5.23's: which formats Trainer trains, which configs are compatible, and the
bytes of the tensors that its FP8 and MXFP4 modules hold.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator.families.model_tree import layer_modules
from estimator.families.modules import weight_shapes
from estimator.resident.stored import stored_bytes
from estimator.run.prequantized import as_loaded
from estimator.sources.quantization_config import quantization_of
from estimator.sources.repository import from_config
from estimator.values.methods import Method
from estimator.values.refusals import RefusedError
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*is_gradient_checkpointing:FutureWarning"
    ),  # peft 0.21 asks
    pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning"),
]

auto = pytest.importorskip("transformers.quantizers.auto")
trainer_utils = pytest.importorskip("transformers.trainer_utils")

SIZES = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
FORMATS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "bnb 4": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "bnb 8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "fbgemm_fp8": {"quant_method": "fbgemm_fp8"},
    "mxfp4": {"quant_method": "mxfp4"},
}


def stored(quantization: dict[str, Any]) -> Model:
    found = from_config({"model_type": "llama", **SIZES, "quantization_config": quantization}).model
    assert found is not None
    return found


def is_refused(quantization: dict[str, Any], **setup: Any) -> bool:
    try:
        as_loaded(stored(quantization), TrainingSetup(**setup))
    except RefusedError as refused:
        return "not modelled yet" not in str(refused)
    return False


def trainer_refuses(quantization: dict[str, Any], *, adapters: bool) -> bool:
    """Whether Trainer's check refuses a model loaded by this config's quantizer."""
    config = auto.AutoQuantizationConfig.from_dict(quantization)
    name = str(getattr(config.quant_method, "value", config.quant_method))
    if name == "bitsandbytes":
        name += "_4bit" if config.load_in_4bit else "_8bit"
    quantizer = object.__new__(auto.AUTO_QUANTIZER_MAPPING[name])  # without its imports
    quantizer.quantization_config, quantizer.pre_quantized = config, True
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.hf_quantizer, model.is_quantized = quantizer, True
    if getattr(config, "dequantize", False):
        quantizer.remove_quantization_config(model)
    if adapters:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    try:
        trainer_utils.validate_quantization_for_training(model)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(
    "name", [one for one in FORMATS if one != "awq"]
)  # asks for gptqmodel's version
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_trainer_refuses_the_formats_we_refuse(name, method):
    quantization = dict(FORMATS[name])
    if name in {"fp8", "mxfp4"}:
        quantization["dequantize"] = True  # loaded as our answer states
    adapters = method is Method.LORA
    assert is_refused(FORMATS[name], method=method) == trainer_refuses(
        quantization, adapters=adapters
    )


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_mxfp4_without_dequantising_cannot_be_trained(method):
    assert trainer_refuses(FORMATS["mxfp4"], adapters=method is Method.LORA)


@pytest.mark.parametrize("name", FORMATS)
def test_bitsandbytes_does_not_combine_with_another_format(name):
    passed = transformers.BitsAndBytesConfig(load_in_4bit=True)
    try:
        merged = auto.AutoHfQuantizer.merge_quantization_configs(dict(FORMATS[name]), passed)
    except ValueError as problem:
        assert is_refused(FORMATS[name], method=Method.QLORA)
        with pytest.raises(RefusedError) as ours:
            as_loaded(stored(FORMATS[name]), TrainingSetup(method=Method.QLORA))
        named = str(problem).split()[5]  # "The model is quantized with GPTQConfig but …"
        assert f"a {named} " in str(ours.value)
    else:
        run = as_loaded(stored(FORMATS[name]), TrainingSetup(method=Method.QLORA))
        assert (run.adapters.method is Method.QLORA, run.adapters.has_8bit_base) == (
            merged.load_in_4bit,
            merged.load_in_8bit,
        )
        assert (
            run.adapters.bnb_4bit_use_double_quant == merged.bnb_4bit_use_double_quant
            or merged.load_in_8bit
        )


@pytest.mark.parametrize("block", [[128, 128], [64, 32], None])
def test_fp8_tensors_match_transformers(block):
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

    config = transformers.FineGrainedFP8Config(weight_block_size=block)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).bfloat16()
    replace_with_fp8_linear(model, ["lm_head"], config, pre_quantized=True)
    held = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    ours = {"quant_method": "fp8", "weight_block_size": block}
    quantization = quantization_of({"quantization_config": ours})
    assert stored_bytes(stored(ours), quantization) == held


def test_mxfp4_experts_match_transformers():
    from transformers.integrations.mxfp4 import Mxfp4GptOssExperts

    sizes = {**SIZES, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2}
    with torch.device("meta"):
        experts = Mxfp4GptOssExperts(transformers.GptOssConfig(**sizes))
    packed = sum(
        parameter.numel() * parameter.element_size()
        for parameter in experts.parameters()
        if parameter.dtype == torch.uint8
    )
    plain = from_config({"model_type": "gpt_oss", **sizes}).model
    assert plain is not None
    shapes = [
        weight_shapes(module)[0]
        for module in layer_modules(plain)
        if len(weight_shapes(module)[0]) == 3
    ]
    elements = sum(a * b * c for a, b, c in shapes)
    # the blocks, and one exponent per 32 weights
    assert packed == elements // 2
    mxfp4 = quantization_of({"quantization_config": {"quant_method": "mxfp4"}})
    saved = stored_bytes(plain, None) - stored_bytes(plain, mxfp4)
    layers = sizes["num_hidden_layers"]
    assert isinstance(layers, int)
    assert saved == layers * (2 * elements - packed - elements // 32)

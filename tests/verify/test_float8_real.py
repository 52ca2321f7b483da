"""What accelerate and torchao do with ``mixed_precision: fp8``, in a real Trainer on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimator.contract.setups import parse
from estimator.passes.float8 import converted, kept

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")
transformers = pytest.importorskip("transformers")

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


@pytest.fixture
def fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``accelerate launch --mixed_precision fp8`` sets the environment."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    monkeypatch.setenv("ACCELERATE_FP8_BACKEND", "AO")


def trained(folder: Path, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """A model after three steps, and its weights before."""
    config = transformers.AutoConfig.for_model(**LLAMA)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    row = torch.arange(32)
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=3,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        dataloader_pin_memory=False,
        optim="adamw_torch",
        **arguments,
    )
    rows = [{"input_ids": row, "labels": row}] * 8
    transformers.Trainer(model, settings, train_dataset=rows).train()
    return model, before


@pytest.mark.usefixtures("fp8")
def test_the_same_linears_are_converted(tmp_path, monkeypatch):
    from torchao.float8.float8_linear import Float8Linear

    monkeypatch.setenv("ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "false")
    model, before = trained(tmp_path)
    real = {name for name, module in model.named_modules() if isinstance(module, Float8Linear)}
    linears = {
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)
    }
    ours, _, _ = parse({"model": LLAMA})
    assert converted(ours) == (len(real), len(linears))
    left = {located.module.name for located in kept(ours)}
    assert linears - real == {"model.layers.0.self_attn.q_proj", "lm_head"}
    assert left == {"self_attn.q_proj", "lm_head"}
    changed = {
        name for name, parameter in model.named_parameters() if not parameter.equal(before[name])
    }
    assert changed == before.keys()


@pytest.mark.usefixtures("fp8")
def test_accelerates_default_leaves_converted_layers_untrained(tmp_path):
    """``enable_fsdp_float8_all_gather`` wraps each weight in a new parameter, which the optimizer does not have."""
    model, before = trained(tmp_path)
    same = {
        name
        for name, parameter in model.named_parameters()
        if parameter.float().equal(before[name].float())
    }
    assert len(same) == converted(parse({"model": LLAMA})[0])[0]


@pytest.mark.usefixtures("fp8")
def test_bf16_beside_fp8_stops_accelerate(tmp_path):
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'config'"):
        trained(tmp_path, bf16=True)


@pytest.mark.usefixtures("fp8")
def test_the_launchers_word_for_a_backend_is_refused(monkeypatch):
    from accelerate import Accelerator

    monkeypatch.setenv("ACCELERATE_FP8_BACKEND", "ao")
    with pytest.raises(ValueError, match="'ao' is not a valid FP8BackendType"):
        Accelerator(cpu=True)

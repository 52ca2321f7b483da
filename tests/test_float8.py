"""FP8 training with torchao's linears, as accelerate converts them.

tests/test_reference.py compares steps with traced ones ("FP8"); tests/reference/operators.csv has single linears, to
the byte.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator import (
    Gpu,
    MixedPrecision,
    Model,
    TrainingSetup,
    Verdict,
    accuracy,
    calibration_in_fp8,
    catalog,
    estimate,
)
from estimator.contract.setups import parse
from estimator.passes.float8 import converted, kept
from estimator.time.float8_time import casts_to_float8_part, float8_sizes
from estimator.time.rates import rates
from estimator.tools.imported import Imported, read_files

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256,
}
FP8 = {
    "mixed_precision": "fp8",
    "per_device_train_batch_size": 2,
    "max_length": 1024,
    "loss": "standard",
}


def read(**keys: object) -> tuple[Model, Gpu | None, TrainingSetup]:
    return parse({"model": LLAMA, **FP8, **keys})


def test_the_first_and_the_last_linear_stay_out_of_fp8():
    model, _, _ = read()
    # accelerate 1.15, utils/ao.py: 4 layers of 7 linears and the head, less the first query and the head
    assert [located.module.name for located in kept(model)] == ["self_attn.q_proj", "lm_head"]
    assert converted(model) == (27, 29)
    odd = replace(
        model, num_key_value_heads=1, head_dim=8
    )  # 8 outputs of k and v are no multiple of 16
    assert converted(odd) == (19, 29)


def test_a_convolution_of_gpt_2_is_no_linear():
    model = catalog.model("openai-community/gpt2")
    assert converted(model) == (0, 1)
    found = estimate(model, None, TrainingSetup(mixed_precision=MixedPrecision.FP8))
    plain = estimate(model, None, TrainingSetup())
    assert found.peak.bytes == plain.peak.bytes
    assert any("converts none of gpt2's linear layers" in line for line in found.assumptions)


@pytest.mark.parametrize("card", ["L40S", "H100-SXM5-80GB", "GeForce RTX 5090", "Instinct MI300X"])
def test_a_card_with_fp8_is_taken(card):
    assert estimate(*read(gpu=card)).verdict is Verdict.FITS


# --- time -----------------------------------------------------------------------------------------


def test_a_measured_rate_in_fp8_comes_before_the_datasheets():
    precision = TrainingSetup(mixed_precision=MixedPrecision.FP8).precision
    h100, l4 = (catalog.gpus()[name] for name in ("H100-SXM5-80GB", "L4"))
    # data/gpus.csv: 1,354 TFLOPS in FP8 and 755 in bfloat16 were measured; of an L4 only bfloat16, at 242 to 121
    of_h100, of_l4 = rates(h100, precision), rates(l4, precision)
    assert of_h100.fp8.high / of_h100.products.high == pytest.approx(1354 / 755)
    assert of_l4.fp8.low / of_l4.products.low == pytest.approx(0.9 * 2)
    assert rates(h100, TrainingSetup().precision).fp8 == of_h100.products


def test_casts_take_their_bytes_over_the_bandwidth():
    model, _, setup = read(max_length=4096)
    h100 = catalog.gpus()["H100-SXM5-80GB"]
    rate, tokens = rates(h100, setup.precision), 2 * 4096
    compiled = replace(setup, torch_compile=True)
    part = casts_to_float8_part(model, compiled.precision, compiled.computation, tokens, 0.0, rate)
    # 27 linears: 4 of k, v (256), o; 3 of q; and 4 of gate, up and down (1,408)
    inputs = 512 * (4 * 3 + 3 + 4 * 2) + 1408 * 4
    outputs = 256 * 8 + 512 * (4 + 3 + 4) + 1408 * 8
    weights = 512 * (256 * 8 + 512 * 7) + 12 * 512 * 1408
    assert float8_sizes(model, setup.precision) == (weights, inputs, outputs)
    # compiled, at best: inputs and weights twice, gradients once, each read twice in 16 bits and written in 8
    assert part.seconds.low * rate.bandwidth == pytest.approx(
        5 * (2 * weights + tokens * (2 * inputs + outputs))
    )
    # eager: 31 bytes a cast, the gradient's twice; 2 a copy: each factor padded, and three laid out by the other side
    eager = casts_to_float8_part(model, setup.precision, setup.computation, tokens, 0.0, rate)
    copies = weights + tokens * inputs + 2 * weights + tokens * (3 * outputs + 2 * inputs)
    assert eager.seconds.low * rate.bandwidth == pytest.approx(
        31 * (2 * weights + 2 * tokens * (inputs + outputs)) + 2 * copies
    )


def test_published_runs_in_fp8_are_judged_apart():
    found = calibration_in_fp8()
    assert (found.runs, found.inside) == (21, 10)
    assert not any(run.setup.precision.uses_fp8 for run in accuracy.published_runs())


# --- the files of tools ---------------------------------------------------------------------------

ACCELERATE = """mixed_precision: fp8
num_processes: 1
fp8_config:
  backend: AO
  enable_fsdp_float8_all_gather: {gathers}
  pad_inner_dim: false
"""
SCRIPT = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")
args = TrainingArguments(output_dir="x", bf16={bf16})
Trainer(model=model, args=args)
"""


def imported(*, gathers: bool = False, bf16: bool = False) -> Imported:
    files = {"accelerate.yaml": ACCELERATE.format(gathers=gathers)}
    return read_files(files | {"train.py": SCRIPT.format(bf16=bf16)})


def test_accelerates_file_sets_fp8_its_backend_and_padding():
    run = imported()
    assert run.setup["mixed_precision"] == "fp8"
    assert (run.setup["fp8_backend"], run.setup["fp8_pad_inner_dim"]) == ("ao", False)
    assert not run.contradictions


def test_an_fp8_all_gather_outside_fsdp_2_is_told():
    (row,) = [key for key in imported(gathers=True).keys if "all_gather" in key.key]
    assert "not modelled yet" in row.fate.value


def test_bf16_in_the_arguments_beside_fp8_contradicts_it():
    """tests/verify/test_float8_real.py runs it: accelerate 1.15 stops at accelerator.py:2090."""
    (said,) = imported(bf16=True).contradictions
    assert "'NoneType' object has no attribute 'config'" in said


def test_the_launchers_word_for_a_backend_is_one_that_accelerate_refuses():
    """accelerate 1.15, commands/launch.py (choices ao, te) and utils/dataclasses.py, ``FP8BackendType`` (AO, TE)."""
    launch = "accelerate launch --mixed_precision fp8 --fp8_backend ao train.py"
    run = read_files({"run.sh": launch, "train.py": SCRIPT.format(bf16=False)})
    (said,) = run.contradictions
    assert "'ao' is not a valid FP8BackendType" in said


def test_axolotls_fp8_keeps_the_dtype_and_does_not_pad():
    run = read_files({"axolotl.yaml": "base_model: openai-community/gpt2\nfp8: true\nbf16: true\n"})
    kept = {key: run.setup[key] for key in ("dtype", "mixed_precision", "fp8_pad_inner_dim")}
    assert kept == {"dtype": "bfloat16", "mixed_precision": "fp8", "fp8_pad_inner_dim": False}


def test_without_padding_tokens_are_a_multiple_of_16():
    unpadded = {"fp8_pad_inner_dim": False, "per_device_train_batch_size": 1}
    with pytest.raises(ValueError, match="multiple of 16 tokens"):
        estimate(*read(**unpadded, max_length=1001))
    assert estimate(*read(**unpadded, max_length=1008)).peak.bytes

"""Tools' defaults: their tables, and the contract's key ``tool``."""

from __future__ import annotations

import pytest

from estimator import TOOLS, defaults_of, estimate, with_defaults_of
from estimator.contract.setups import parse, read_setup, write_fields
from estimator.sources import catalog
from estimator.values.keys import BY_NAME, DEFAULT
from estimator.values.later_keys import LATER

LLAMA = "meta-llama/Llama-3.1-8B"
ASKED = {"model": LLAMA, "method": "lora", "per_device_train_batch_size": 2, "max_length": 4096}
GIB = 2**30


def peak(**others: object) -> float:
    return estimate(*parse({**ASKED, **others})).peak.bytes / GIB


def test_llama_under_trl_has_the_peaks_of_the_issue():
    """TRL 1.16's defaults one by one, in GiB: 90 by ours, 29 checkpointed, 21 with the chunked loss, 38 in float32."""
    assert peak() == pytest.approx(90, abs=0.5)
    assert peak(gradient_checkpointing=True) == pytest.approx(29, abs=0.5)
    assert peak(gradient_checkpointing=True, loss="chunked_trl") == pytest.approx(21, abs=0.5)
    whole = {"gradient_checkpointing": True, "loss": "chunked_trl", "dtype": "float32"}
    assert peak(**whole) == pytest.approx(38, abs=0.5)


def test_a_tool_fills_in_missing_keys():
    setup = parse({**ASKED, "tool": "trl"})[2]
    assert setup.computation.gradient_checkpointing
    assert not setup.computation.use_reentrant
    assert (setup.precision.dtype, setup.precision.mixed_precision, setup.task.loss) == (
        "float32",
        "bf16",
        "chunked_trl",
    )
    assert (setup.adapters.lora_r, setup.adapters.lora_alpha, setup.adapters.lora_dropout) == (
        16,
        32,
        0.05,
    )
    assert setup.adapters.lora_target_modules == ("q_proj", "v_proj"), (
        "peft 0.21.2, utils/constants.py:85"
    )
    assert setup.run.num_train_epochs == 3.0
    assert setup.batch.per_device_train_batch_size == 2, "what is given stays"


def test_an_object_without_a_tool_is_unchanged():
    assert parse({**ASKED, "tool": "trainer"}) == parse(ASKED)
    assert parse({"model": LLAMA})[2] == DEFAULT


def test_setups_read_with_a_tool_round_trip_without_it():
    model, gpu, setup = parse({**ASKED, "tool": "trl", "method": "qlora"})
    written = write_fields(model, gpu, setup)
    assert "tool" not in written
    assert parse(written)[2] == setup


def test_the_adapters_of_a_packed_base_are_16_bit_under_trl():
    assert not parse({**ASKED, "tool": "trl", "method": "qlora"})[2].adapters.autocast_adapter_dtype
    assert parse({**ASKED, "tool": "trl"})[2].adapters.autocast_adapter_dtype
    assert not parse({**ASKED, "tool": "trl", "method": "qlora"})[
        2
    ].adapters.bnb_4bit_use_double_quant


def test_adapters_under_zero_3_make_trl_use_reentrant_checkpoints():
    several = {"num_gpus": 4, "strategy": "zero3"}
    with_adapters = with_defaults_of("trl", {"method": "lora", **several})
    assert with_adapters["use_reentrant"] is True
    assert with_defaults_of("trl", {"method": "full", **several})["use_reentrant"] is False


def test_a_tool_does_not_override_an_alias():
    setup = parse({**ASKED, "tool": "trl", "activation_checkpointing": False})[2]
    assert not setup.computation.gradient_checkpointing


def test_an_unknown_version_is_reported():
    (problem,) = read_setup({**ASKED, "tool": "trl", "tool_version": "0.9"}).problems
    assert problem.startswith("tool_version '0.9': the defaults of trl are only known for ")


@pytest.mark.parametrize("wrong", ["x", True, [1], {"a": 1}, None, -1])
@pytest.mark.parametrize("key", ["per_device_train_batch_size", "method", "strategy", "num_gpus"])
def test_an_invalid_value_beside_a_tool_gets_one_sentence(key, wrong):
    (problem,) = read_setup({**ASKED, "tool": "trl", key: wrong}).problems
    assert problem.startswith(f"{key} ")


@pytest.mark.parametrize("tool", list(TOOLS))
def test_every_default_has_a_key_and_a_source(tool):
    model = catalog.model(LLAMA)
    for method in ("full", "lora", "qlora"):
        found = defaults_of(tool, {"method": method}, model)
        assert {one.key for one in found} >= {
            "per_device_train_batch_size",
            "gradient_checkpointing",
        }
        for one in found:
            assert one.key in BY_NAME or one.key in LATER, one.key
    lines = [row.source for row in defaults_of(tool) if row.key == "per_device_train_batch_size"]
    assert lines[0].partition(":")[0].endswith((".py", ".yaml")), lines
    assert all(read.source or read.says or not read.differs for read in defaults_of(tool))

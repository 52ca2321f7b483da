"""The measuring script's real run on a CPU: tiny models with transformers, peft, accelerate and bitsandbytes.

A CPU cannot show bytes, but it can show that every phase boundary is marked in the right place.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_parameters_meta import VARIANTS, WITHOUT_A_CLASS

from benchmarks.gpu import worker
from benchmarks.gpu.cases import DRY_RUN, TINY, Case, read_case
from benchmarks.gpu.configs import config_of
from estimator import Method, Model, Phase, TrainingSetup, catalog
from estimator.families.adapters import adapter_parameters, trainable_parameters
from estimator.families.hf_config import model_from_config
from estimator.families.model_tree import total_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("bitsandbytes")

from benchmarks.gpu import real_run  # noqa: E402

# The libraries warn about each other's names; those warnings are not under test.
pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).resolve().parents[2]
FORWARD, LOSS, BACKWARD, STEP = (
    Phase.FORWARD,
    Phase.LOSS,
    Phase.BACKWARD,
    Phase.OPTIMIZER_STEP,
)


def tiny(**keys: object) -> Case:
    return read_case({"model": TINY, "max_length": 16} | keys)


# --- the model ----------------------------------------------------------------------------------


def _distinct() -> Iterator[Model]:
    """Every distinct catalogued shape of each family in transformers."""
    seen = set()
    for entry in catalog.models().values():
        shape = replace(entry.model, hub_id="")
        if shape not in seen and shape.model_type not in WITHOUT_A_CLASS:
            seen.add(shape)
            yield entry.model


@pytest.mark.parametrize("model", list(_distinct()), ids=lambda model: model.hub_id)
def test_a_class_built_from_our_model_has_its_parameters_and_windows(model):
    config = transformers.AutoConfig.for_model(**config_of(model))
    with torch.device("meta"):
        real = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in real.parameters()) == total_parameters(model)
    if model.layer_types:  # Llama 4 has chunks instead of windows
        kinds = tuple(kind.replace("chunked", "sliding") for kind in config.layer_types)
        assert kinds == model.layer_types
    if model.sliding_window:
        window = getattr(config, "attention_chunk_size", None) or config.sliding_window
        assert window == model.sliding_window


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=[name for name, _ in VARIANTS])
def test_the_loader_accepts_a_random_checkpoint_of_every_family(model_type, keys):
    model = model_from_config({"model_type": model_type, **keys})
    real = real_run.load(model, TrainingSetup(), "cpu")
    parameters = list(real.parameters())
    assert sum(parameter.numel() for parameter in parameters) == total_parameters(model)
    routers = (
        {torch.float32} if model_type == "ernie4_5_moe" else set()
    )  # left unpacked by its class
    assert {parameter.dtype for parameter in parameters} == {torch.bfloat16} | routers
    assert all(parameter.isfinite().all() for parameter in parameters)
    head, embedding = real.get_output_embeddings(), real.get_input_embeddings()
    assert (head.weight is embedding.weight) == model.tie_word_embeddings


@pytest.mark.parametrize("double", [True, False])
def test_bitsandbytes_packs_a_4_bit_base_while_loading(double):
    case = tiny(method="qlora", bnb_4bit_use_double_quant=double)
    real = real_run.load(case.model, case.setup, "cpu")
    weight = real.model.layers[0].mlp.up_proj.weight
    assert weight.dtype is torch.uint8
    assert weight.numel() == 96 * 64 // 2
    assert weight.quant_state.nested is double
    assert real.lm_head.weight.dtype is torch.bfloat16
    assert real.is_loaded_in_4bit


@pytest.mark.parametrize("method", ["lora", "qlora"])
@pytest.mark.parametrize(("as_peft", "dtype"), [(True, "float32"), (False, "bfloat16")])
def test_adapters_have_the_dtype_of_the_setup(method, as_peft, dtype):
    case = tiny(method=method, autocast_adapter_dtype=as_peft)
    model = real_run.adapted(real_run.load(case.model, case.setup, "cpu"), case)
    trained = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    assert trained == {getattr(torch, dtype)}


# --- the steps ----------------------------------------------------------------------------------

SETUPS: dict[str, dict[str, Any]] = {
    "as Trainer, float32 under autocast": {"dtype": "float32"},
    "no autocast": {"mixed_precision": "no"},
    "accumulation": {"gradient_accumulation_steps": 2},
    "checkpointed": {"gradient_checkpointing": True},
    "checkpointed, reentrant": {"gradient_checkpointing": True, "use_reentrant": True},
    "padded": {"padded": True, "per_device_train_batch_size": 2},
    "outputs held": {"hold_outputs": True},
    "eager": {"attn_implementation": "eager"},
    "momentum": {"optim": "sgd", "optim_args": "momentum=0.9"},
    "8 bits": {"optim": "adamw_bnb_8bit", "mixed_precision": "no"},
    "lion": {"optim": "lion_8bit", "mixed_precision": "no"},
    "adafactor": {"optim": "adafactor"},
    "no clipping": {"max_grad_norm": 0},
    "LoRA": {"method": "lora"},
    "LoRA, float16": {"method": "lora", "dtype": "float16", "mixed_precision": "fp16"},
    "LoRA on two modules": {"method": "lora", "lora_target_modules": ["q_proj", "v_proj"]},
    "QLoRA": {"method": "qlora"},
    "QLoRA, upcast and checkpointed": {
        "method": "qlora",
        "prepare_model_for_kbit_training": True,
        "gradient_checkpointing": True,
    },
}


EXPERTS = {
    **TINY,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
SETUPS |= {
    "experts": {"model": EXPERTS},
    "experts with LoRA": {"model": EXPERTS, "method": "lora", "lora_dropout": 0},
}


@pytest.mark.parametrize("keys", SETUPS.values(), ids=SETUPS)
def test_four_steps_run_and_mark_every_phase_in_order(keys):
    case = tiny(**keys)
    recorder = real_run.Recorder(real_run.NoCounter())
    facts: dict[str, Any] = {}
    real_run._run(case, "cpu", recorder, facts)
    micro_steps = 4 * case.setup.batch.gradient_accumulation_steps
    assert recorder.marks == [FORWARD, LOSS, BACKWARD, STEP] * micro_steps
    assert [set(step) for step in recorder.steps] == [{FORWARD, LOSS, BACKWARD, STEP}] * 4
    assert len(recorder.seconds) == 4
    total = total_parameters(case.model)
    if case.setup.adapters.method is not Method.FULL:
        total += adapter_parameters(case.model, case.setup.adapters)
    assert facts["total_parameters"] == total
    assert facts["trainable_parameters"] == trainable_parameters(case.model, case.setup.adapters)


class Tally:
    """A device counter that grows by one byte at every reading, so that each reading shows its position."""

    def __init__(self) -> None:
        self.looks = 0

    def read(self) -> real_run.DeviceReading:
        self.looks += 1
        return real_run.DeviceReading(self.looks, 1000 + self.looks, 2000 + self.looks)

    def reset(self) -> None: ...

    def wait(self) -> None: ...

    def retries(self) -> int:
        return 7


def test_a_row_has_the_first_step_and_the_maximum_of_the_later_ones():
    """By hand: reading 1 before the model, 2 after it, then 4 per step, one at the end of each phase."""
    answer = worker._answer(real_run, tiny(), "cpu", Tally(), done=3)
    assert answer.outcome == "measured"
    allocated = {
        name.removeprefix("allocated_").removesuffix("_bytes"): value
        for name, value in answer.cells.items()
        if name.startswith("allocated_")
    }
    assert allocated == {
        "before": 1,
        "after_load": 2,
        "first_step": 6,  # 3, 4, 5, 6
        "forward": 15,  # of 7, 11, 15
        "loss": 16,
        "backward": 17,
        "optimizer_step": 18,
        "peak": 18,
    }
    assert answer.cells["reserved_backward_bytes"] == 1017
    assert answer.cells["device_after_load_bytes"] == 2002
    assert answer.cells["alloc_retries"] == 0
    assert answer.cells["cases_before"] == 3


def alive() -> set[int]:
    """Parameters and models in this process, by identity."""
    gc.collect()
    kinds = torch.nn.Parameter | transformers.PreTrainedModel
    return {id(thing) for thing in gc.get_objects() if isinstance(thing, kinds)}


def test_cases_leave_nothing_behind_and_precisions_do_not_mix():
    before = alive()  # dynamo keeps those that tests have compiled
    for given in (*DRY_RUN, DRY_RUN[0] | {"optim": "adamw_bnb_8bit"}):
        answer = worker._answer(real_run, read_case(given), "cpu", real_run.NoCounter(), 0)
        assert answer.outcome == "measured", answer.said
        assert not answer.retire
        assert alive() <= before


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), "out_of_memory"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "out_of_memory"),
        (RuntimeError("shapes do not match"), "failed"),
        (TypeError("out of memory of names"), "failed"),
    ],
)
def test_out_of_memory_keeps_earlier_readings_and_any_error_retires_the_process(
    monkeypatch, error, outcome
):
    def fails(model: Any, case: Case, recorder: Any, device: str) -> None:
        recorder.begin_step()
        recorder.enter(FORWARD)
        raise error

    monkeypatch.setattr(real_run, "train", fails)
    answer = worker._answer(real_run, tiny(), "cpu", Tally(), 0)
    assert answer.outcome == outcome
    assert answer.retire
    assert (answer.cells.get("allocated_after_load_bytes") == 2) == (outcome == "out_of_memory")


def test_memory_left_on_the_device_retires_the_process(monkeypatch):
    monkeypatch.setattr(worker, "LEFT_IN_PEACE", 3)
    assert worker._answer(real_run, tiny(), "cpu", Tally(), 0).retire


# --- the command --------------------------------------------------------------------------------


def test_dry_run_completes_and_writes_rows_without_bytes(tmp_path):
    table = tmp_path / "rows.csv"
    ran = subprocess.run(
        [sys.executable, "benchmarks/measure_gpu.py", "--device", "cpu", "--output", str(table)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1].startswith(f"{len(DRY_RUN)} measured")
    written = catalog.measurements(table)
    assert [row.outcome for row in written] == ["measured"] * len(DRY_RUN)
    assert all(not any(row.readings.values()) for row in written)
    assert all(row.total_parameters for row in written)
    assert all(f"torch {torch.__version__}" in row.versions for row in written)

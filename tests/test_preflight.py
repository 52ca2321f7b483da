"""A live Trainer, duck-typed: objects with the attributes of transformers' and PEFT's, without torch.

tests/verify/test_preflight_real.py checks that the real objects have these attributes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace as Has
from typing import Any

import pytest

from estimator import catalog, estimate
from estimator.contract.setups import parse
from estimator.preflight import DoesNotFitError, MemoryCheck, check, live
from estimator.preflight.callback import PeakReading
from estimator.values.refusals import RefusedError

LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Tensor:
    """The part of a torch parameter that is read."""

    elements: int
    dtype: str = "torch.bfloat16"
    dimensions: int = 2
    requires_grad: bool = True

    def numel(self) -> int:
        return self.elements

    def dim(self) -> int:
        return self.dimensions

    def is_floating_point(self) -> bool:
        return "float" in self.dtype


class Params4bit(Tensor):
    """Named like bitsandbytes' class."""


@dataclass
class Config:
    values: dict[str, object]
    _attn_implementation: str = "sdpa"
    _name_or_path: str = ""
    quantization_config: object = None
    dtype: str = "torch.bfloat16"

    def to_json_string(self, use_diff: bool) -> str:
        assert not use_diff  # True would leave out class defaults
        return json.dumps(self.values)


@dataclass
class Module:
    parameters_by_name: dict[str, Tensor]
    config: Config = field(default_factory=lambda: Config(LLAMA))

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.parameters_by_name.items()

    def parameters(self) -> Iterator[Tensor]:
        yield from self.parameters_by_name.values()


class Adapted(Module):
    """A PEFT model around a base."""

    peft_config: dict[str, object]

    def get_base_model(self) -> Module:
        return Module(self.parameters_by_name, self.config)


def arguments(**changed: object) -> Has:
    """The part of TrainingArguments that is read."""
    known: dict[str, object] = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": None,
        "optim": "adamw_torch_fused",
        "optim_args": None,
        "bf16": True,
        "fp16": False,
        "max_length": 2048,
        "max_steps": -1,
        "world_size": 1,
        "n_gpu": 1,
        "max_grad_norm": 1.0,
    }
    return Has(**known | changed)


def trainer(model: Module | None = None, **changed: Any) -> Has:
    """The part of a Trainer that is read."""
    state = changed.pop("state", Has())
    rows = changed.pop("rows", None)
    return Has(
        args=arguments(**changed),
        model=model or Module({"model.norm.weight": Tensor(4096, dimensions=1)}),
        train_dataset=rows,
        accelerator=Has(state=state),
    )


def lora(config: dict[str, object] | None = None, **parts: Tensor) -> Adapted:
    """A model with one LoRA adapter."""
    tensors = {"model.q_proj.base_layer.weight": Tensor(4096**2), **parts}
    tensors.setdefault("model.q_proj.lora_A.default.weight", Tensor(16, "torch.float32"))
    model = Adapted(tensors)
    known = {"peft_type": Has(value="LORA"), "r": 8, "lora_alpha": 16, "lora_dropout": 0.0}
    more = {"target_modules": {"v_proj", "q_proj"}, "bias": "none", "use_dora": False}
    model.peft_config = {"default": Has(**known | {"peft_type": "LORA"} | more | (config or {}))}
    return model


def keys(trainer: Has, **how: Any) -> dict[str, Any]:
    return live.keys_of(trainer, **how)


# --- reading --------------------------------------------------------------------------------------


def test_arguments_become_keys_of_the_same_name():
    found = keys(
        trainer(per_device_train_batch_size=3, optim="adamw_bnb_8bit", eval_strategy="steps")
    )
    assert found["per_device_train_batch_size"] == 3
    assert found["gradient_accumulation_steps"] == 4
    assert found["optim"] == "adamw_bnb_8bit"
    assert found["eval_strategy"] == "steps"
    assert (found["method"], found["dtype"], found["mixed_precision"]) == (
        "full",
        "bfloat16",
        "bf16",
    )


def test_dtype_comes_from_the_weights_not_the_arguments():
    """TRL loads models by name in float32, whatever ``bf16`` says."""
    found = keys(trainer(Module({"w": Tensor(10**6, "torch.float32"), "b": Tensor(10)}), bf16=True))
    assert found["dtype"] == "float32"
    assert found["mixed_precision"] == "bf16"
    embedding = {"w": Tensor(98), "b": Tensor(2, "torch.float32")}  # 2 %, as axolotl casts
    with pytest.raises(RefusedError, match="weights in float32 beside most in bfloat16 are not"):
        keys(trainer(Module(embedding)))


def test_the_newer_checkpointing_argument_wins_and_its_kwargs_are_read():
    asked = {"activation_checkpointing_kwargs": {"use_reentrant": True, "every_n_layers": 2}}
    found = keys(trainer(activation_checkpointing=True, gradient_checkpointing=False, **asked))
    assert found["gradient_checkpointing"] is True
    assert found["use_reentrant"] is True
    assert found["checkpoint_every_n_layers"] == 2


def test_the_peft_config_and_float32_adapters_are_read():
    head = {"lm_head.modules_to_save.default.weight": Tensor(4096)}
    found = keys(trainer(lora({"modules_to_save": ["lm_head"]}, **head)))
    assert found["method"] == "lora"
    assert (found["lora_r"], found["lora_alpha"]) == (8, 16)
    assert found["lora_target_modules"] == ["q_proj", "v_proj"]
    in_full = {"target_modules": {"model.q_proj"}}  # as PEFT names the linears of a shallow model
    assert keys(trainer(lora(in_full)))["lora_target_modules"] == ["q_proj"]
    scored = lora(
        {"modules_to_save": ["classifier", "score"]},
        **{"score.modules_to_save.default.weight": Tensor(4096)},
    )  # as PEFT names both of a classifier's heads
    assert keys(trainer(scored))["modules_to_save"] == ["score"]
    elsewhere = lora(in_full, **{"model.1.q_proj.weight": Tensor(4096**2)})
    assert keys(trainer(elsewhere))["lora_target_modules"] == ["model.q_proj"]
    assert found["modules_to_save"] == ["lm_head"]
    assert found["autocast_adapter_dtype"] is True
    half = {"model.q_proj.lora_A.default.weight": Tensor(16)}
    assert keys(trainer(lora(**half)))["autocast_adapter_dtype"] is False


def test_a_quantised_base_is_qlora_with_its_own_config():
    model = lora(**{"model.k_proj.weight": Params4bit(4096**2, "torch.uint8")})
    model.config.quantization_config = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "fp4",
        "bnb_4bit_use_double_quant": False,
    }
    found = keys(trainer(model))
    assert (found["method"], found["bnb_4bit_quant_type"]) == ("qlora", "fp4")
    assert found["bnb_4bit_use_double_quant"] is False
    assert "prepare_model_for_kbit_training" not in found
    norms = {"model.norm.weight": Tensor(4096, "torch.float32", 1)}
    model.parameters_by_name |= norms
    assert keys(trainer(model))["prepare_model_for_kbit_training"] is True


def test_the_longest_row_sets_the_length_packed_or_not():
    rows = [{"input_ids": [1] * n} for n in (5, 70, 9)]
    assert keys(trainer(rows=rows))["max_length"] == 70
    assert keys(trainer(rows=rows, pad_to_multiple_of=64))["max_length"] == 128
    assert keys(trainer(rows=rows, packing=True))["max_length"] == 70  # TRL packs before training
    assert keys(trainer(rows=rows), max_length=99)["max_length"] == 99
    assert keys(trainer(rows=rows))["num_train_examples"] == 3
    assert keys(trainer(rows=rows, max_steps=10))["num_train_examples"] == 40  # 10 · 1 · 4


class Columns(dict[str, list[list[int]]]):
    """A tokenised dataset of datasets.Dataset's shape."""

    @property
    def column_names(self) -> list[str]:
        return [*self]

    def __len__(self) -> int:
        return len(next(iter(self.values())))


def test_a_model_that_checkpoints_without_trainers_knowing_is_seen():
    """As LLaMA-Factory switches it on: llamafactory 0.9.5, model/model_utils/checkpointing.py."""
    one = trainer(gradient_checkpointing=False)
    assert keys(one)["gradient_checkpointing"] is False
    call = Has(__wrapped__=partial(print, use_reentrant=True))
    one.model.is_gradient_checkpointing = True
    one.model.modules = lambda: [Has(), Has(_gradient_checkpointing_func=call)]
    assert keys(one)["gradient_checkpointing"] is True
    assert keys(one)["use_reentrant"] is True


def test_a_pair_is_as_long_as_its_prompt_and_the_longer_answer():
    pairs = Columns(
        prompt_ids=[[1] * 5, [1]], chosen_ids=[[1] * 2, [1]], rejected_ids=[[1] * 9, [1]]
    )
    assert keys(trainer(rows=pairs))["max_length"] == 14
    assert keys(trainer(rows=pairs, max_length=12))["max_length"] == 12  # cut off by the collator
    scored = Columns(chosen_ids=[[1] * 5], rejected_ids=[[1] * 7])
    assert keys(trainer(rows=scored))["max_length"] == 7
    with_prompts = Columns(chosen_input_ids=[[1] * 5], rejected_input_ids=[[1] * 6])
    assert keys(trainer(rows=with_prompts))["max_length"] == 6


def test_of_a_pair_the_shorter_answer_is_padded_and_no_loss_counts_it():
    """DPO of 14 tokens scores 2 and 9 of 28: 6 a row, rounded up, as if 8 of 14 were the prompt's."""
    pairs = Columns(prompt_ids=[[1] * 5], chosen_ids=[[1] * 2], rejected_ids=[[1] * 9])
    found = keys(trainer(rows=pairs))
    assert (found["padded"], found["max_prompt_length"]) == (True, 8)
    alike = keys(trainer(rows=Columns(chosen_ids=[[1] * 5], rejected_ids=[[1] * 5])))
    assert alike["padded"] is False
    assert "max_prompt_length" not in alike
    answers = Columns(prompt_ids=[[1] * 5], completion_ids=[[1] * 2])
    assert keys(trainer(rows=answers))["max_prompt_length"] == 5


def test_axolotls_packed_rows_lie_in_one_row_as_long_as_all():
    rows = [{"input_ids": [1] * 5}]
    found = keys(trainer(rows=rows, sample_packing=True, max_seq_length=512))
    assert (found["max_length"], found["packing"], found["padding_free"]) == (512, True, True)
    as_rows = {"sample_packing": True, "multipack_real_batches": True, "max_seq_length": 512}
    found = keys(trainer(rows=rows, **as_rows))  # no kernel tells their examples apart
    assert (found["packing"], found["padding_free"], found["padded"]) == (False, False, False)


def test_rows_are_padded_only_in_batches_without_packing():
    assert keys(trainer())["padded"] is False
    assert keys(trainer(per_device_train_batch_size=2))["padded"] is True
    assert keys(trainer(per_device_train_batch_size=2, packing=True))["padded"] is False
    alike = {"rows": [{"input_ids": [1] * 64}] * 3, "per_device_train_batch_size": 2}
    assert keys(trainer(**alike))["padded"] is False
    assert keys(trainer(**alike, pad_to_multiple_of=48))["padded"] is True


def test_another_trainer_of_trls_or_head_is_refused_even_one_made_of_sfts():
    sft = type("SFTTrainer", (Has,), {"__module__": "trl.trainer.sft_trainer"})
    distills = type("GKDTrainer", (sft,), {"__module__": "trl.experimental.gkd.gkd_trainer"})
    of_a_user = type("MyTrainer", (sft,), {})
    parts = vars(trainer())
    assert keys(of_a_user(**parts))["objective"] == "sft"
    with pytest.raises(RefusedError, match="TRL's GKDTrainer is not modelled yet"):
        keys(distills(**parts))
    valued = type("AutoModelForCausalLMWithValueHead", (Module,), {})
    with pytest.raises(RefusedError, match="a model with a value head is not modelled yet"):
        keys(trainer(valued({"w": Tensor(1)})))
    tags = type("LlamaForTokenClassification", (Module,), {})
    with pytest.raises(RefusedError, match="the head of LlamaForTokenClassification is not"):
        keys(trainer(tags({"w": Tensor(1)})))


def test_a_loss_or_an_optimizer_that_no_argument_names_is_refused():
    """LLaMA-Factory's muon has 39 % less state than the AdamW that ``optim`` names."""
    one = trainer()
    one.compute_loss_func = "non-None value to disable scaling"  # trl 1.16, trainer/base_trainer.py
    one.finetuning_args = Has(use_muon=False)
    assert keys(one)["objective"] == "sft"
    one.finetuning_args = Has(use_muon=True)
    with pytest.raises(RefusedError, match="LLaMA-Factory's use_muon is not modelled yet"):
        keys(one)
    with pytest.raises(RefusedError, match="axolotl's lisa_n_layers is not modelled yet"):
        keys(trainer(lisa_n_layers=4))
    one = trainer()
    one.compute_loss_func = partial(print)
    with pytest.raises(RefusedError, match="a compute_loss_func of the run's own is not modelled"):
        keys(one)


def test_llamafactorys_preferences_keep_all_logits_as_do_trls_before_its_tiles(monkeypatch):
    dpo = type("DPOTrainer", (Has,), {"__module__": "trl.trainer.dpo_trainer"})
    own = {"__module__": "llamafactory.train.dpo.trainer"}
    parts = vars(trainer(loss_type="sigmoid"))
    monkeypatch.setitem(sys.modules, "trl", Has(__version__="0.24.0"))
    assert keys(dpo(**parts))["loss"] == "selective_trl"
    assert keys(type("CustomDPOTrainer", (dpo,), own)(**parts))["loss"] == "standard"
    monkeypatch.setitem(sys.modules, "trl", Has(__version__="1.15.0"))
    assert "loss" not in keys(dpo(**parts))


@pytest.mark.parametrize(("weight", "loss_type"), [(0.0, "alphapo"), (1.0, "simpo")])
def test_alphapo_is_simpo_without_a_cross_entropy(weight, loss_type):
    """As ``CPOConfig.__post_init__`` leaves it: trl 1.16, experimental/cpo/cpo_config.py."""
    cpo = type("CPOTrainer", (Has,), {"__module__": "trl.experimental.cpo.cpo_trainer"})
    read = keys(cpo(**vars(trainer(loss_type="simpo", cpo_alpha=weight, beta=2.0))))
    assert [read[key] for key in ("objective", "loss_type", "beta")] == ["cpo", loss_type, 2.0]


def test_buckets_of_another_size_than_trainers_are_refused():
    """DeepSpeed takes 500 million elements where its config says none: runtime/zero/config.py."""
    plugin = Has(deepspeed_config={"zero_optimization": {"stage": 2}})
    one = trainer(state=Has(deepspeed_plugin=plugin), world_size=8)
    one.model.config.hidden_size = 4096
    with pytest.raises(RefusedError, match=r"reduce_bucket_size of 500,000,000 .* here 16,777,216"):
        keys(one)


class OffloadPolicy:
    """As torch's of FSDP 2: everything stays on the card."""


class CPUOffloadPolicy(OffloadPolicy):
    """As torch's: weights rest on the host."""


@pytest.mark.parametrize(
    ("state", "read"),
    [
        (Has(), {"strategy": "ddp"}),
        (
            Has(
                deepspeed_plugin=Has(
                    deepspeed_config={
                        "zero_optimization": {
                            "stage": 3,
                            "offload_param": {"device": "cpu"},
                            "reduce_bucket_size": 4096**2,
                            "stage3_prefetch_bucket_size": "auto",
                        }
                    }
                )
            ),
            {"strategy": "zero3", "offload_param": "cpu", "offload_optimizer": "none"},
        ),
        (
            Has(
                fsdp_plugin=Has(
                    fsdp_version=2,
                    reshard_after_forward=False,
                    cpu_offload=CPUOffloadPolicy(),
                )
            ),
            {"strategy": "fsdp_grad_op", "fsdp_version": 2, "offload_param": "cpu"},
        ),
        (  # accelerate's FSDP 2 without offloading has an object, too
            Has(
                fsdp_plugin=Has(
                    fsdp_version=2, reshard_after_forward=True, cpu_offload=OffloadPolicy()
                )
            ),
            {"strategy": "fsdp", "offload_param": "none", "offload_optimizer": "none"},
        ),
        (
            Has(
                fsdp_plugin=Has(
                    fsdp_version=1,
                    reshard_after_forward=True,
                    sharding_strategy=Has(name="FULL_SHARD"),
                    cpu_offload=Has(offload_params=False),
                )
            ),
            {"strategy": "fsdp", "fsdp_version": 1, "offload_optimizer": "none"},
        ),
    ],
)
def test_the_accelerator_gives_ranks_and_strategy(state, read):
    found = keys(trainer(world_size=4, state=state))
    assert found["num_gpus"] == 4
    assert found | read == found


# --- sentences ------------------------------------------------------------------------------------


def test_one_sentence_says_whether_it_fits(capsys):
    found = check(trainer(lora()), gpu="RTX 4090")
    said = capsys.readouterr().out
    assert said == found.sentence + "\n"
    assert said.startswith("Fits: needs ")
    assert found.fits is True


def test_the_check_matches_the_estimate_of_the_same_keys():
    found = check(trainer(lora()), gpu="RTX 4090", show=False)
    assert found.estimate == estimate(*parse(json.loads(json.dumps(found.keys))))


def test_a_run_that_does_not_fit_names_a_change_and_raises_if_asked():
    full = trainer(gradient_checkpointing=False)
    found = check(full, gpu="RTX 4090", show=False)
    assert found.fits is False
    assert "Does not fit" in found.sentence
    assert (
        len(found.sentence) > len(found.sentence.split(" are missing.")[0]) + 20
    )  # the sentence names a change
    with pytest.raises(DoesNotFitError, match="Does not fit: needs"):
        check(full, gpu="RTX 4090", must_fit=True, show=False)


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        (trainer(max_length=None), "max_length is not known"),
        (trainer(lora({"peft_type": "IA3"})), "PEFT's IA3 is not modelled yet; LORA is."),
        (trainer(n_gpu=2), "2 GPUs in one process are DataParallel"),
        (trainer(optim="adalomo"), "optim"),
    ],
)
def test_an_unreadable_trainer_is_reported_and_raises_only_if_asked(trainer, says):
    found = check(trainer, show=False)
    assert found.estimate is None
    assert found.fits is None
    assert found.sentence.startswith("Not checked: ")
    assert says in found.sentence
    with pytest.raises(ValueError, match=says):
        check(trainer, must_fit=True, show=False)


def test_a_catalogued_model_is_sent_by_id_and_other_shapes_by_config():
    name = "mistralai/Mistral-7B-v0.1"
    mistral = LLAMA | {
        "model_type": "mistral",
        "sliding_window": 4096,
        "max_position_embeddings": 32768,
    }

    def read(config: dict[str, object]) -> object:
        return keys(trainer(Module({"w": Tensor(1)}, Config(config, _name_or_path=name))))["model"]

    assert read(mistral) == name
    assert read(mistral | {"num_hidden_layers": 2}) == mistral | {"num_hidden_layers": 2}
    assert read(LLAMA) == LLAMA  # a Llama of Mistral's sizes is not a Mistral


# --- the callback ---------------------------------------------------------------------------------


class FakeCounter:
    """A GPU with known readings."""

    name = "NVIDIA GeForce RTX 4090"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def reset(self) -> None:
        self.calls.append("reset")

    def read(self) -> PeakReading:
        self.calls.append("read")
        return PeakReading(allocated=2**34, reserved=2**34 + 2**30, device=2**34 + 2**31)


def run(callback: MemoryCheck, steps: int) -> None:
    for step in range(1, steps + 1):
        callback.on_step_end(None, Has(global_step=step), None)


def test_only_step_two_is_measured():
    counter = FakeCounter()
    run(MemoryCheck(trainer(lora()), gpu="RTX 4090", counter=counter), 4)
    assert counter.calls == ["reset", "read"]


def test_the_measured_peak_is_printed_beside_the_estimate(capsys):
    callback = MemoryCheck(trainer(lora()), gpu="RTX 4090", counter=FakeCounter())
    run(callback, 2)
    peak = callback.before.estimate.peak.bytes
    assert callback.sentence == (
        f"Measured in step 2: 16.00 GiB allocated at the peak, estimated {peak / 2**30:.2f} GiB "
        f"({100 * (peak / 2**34 - 1):+.1f} %)."
    )
    assert capsys.readouterr().out == callback.sentence + "\n"


def test_the_written_row_fits_the_measurements_table(tmp_path):
    table = tmp_path / "measured.csv"
    callback = MemoryCheck(trainer(lora()), gpu="RTX 4090", counter=FakeCounter(), rows_file=table)
    run(callback, 2)
    (row,) = catalog.measurements(table)
    assert row.outcome == "measured"
    assert row.readings["allocated"] == {"peak": 2**34}
    assert row.readings["reserved"] == {"peak": 2**34 + 2**30}
    assert row.trainable_parameters == 16 + 4096**2
    assert estimate(*parse(json.loads(row.setup))) == callback.before.estimate
    shipped = (catalog.DATA / "measurements.csv").read_text(encoding="utf-8").splitlines()[0]
    assert table.read_text(encoding="utf-8").splitlines()[0] == shipped


def test_without_a_gpu_the_callback_says_it_measures_nothing():
    callback = MemoryCheck(trainer(lora()), gpu="RTX 4090")
    run(callback, 2)
    assert callback.sentence == "Not measured: torch sees no CUDA device."


def test_importing_preflight_imports_neither_torch_nor_numpy_nor_peft():
    code = "import sys, estimator.preflight; print({'torch', 'numpy', 'peft'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def divided(**sizes: object) -> Module:
    """A model that was divided as it was loaded."""
    known = {"tp_size": 1, "fsdp_size": 1, "dp_replicate_size": 1, "pp_size": 1, "ep_size": 1}
    sizes = {**known, "fsdp_mixed_precision": False, "fsdp_cpu_offload": False, **sizes}
    dp_size = int(str(sizes["fsdp_size"])) * int(str(sizes["dp_replicate_size"]))
    model = Module({"model.norm.weight": Tensor(4096, dimensions=1)})
    model.config.distributed_config = Has(**sizes, dp_size=dp_size)
    return model


@pytest.mark.parametrize(
    ("sizes", "strategy"),
    [
        ({"tp_size": 4}, "none"),
        ({"tp_size": 2, "fsdp_size": 2}, "fsdp"),
        ({"tp_size": 2, "dp_replicate_size": 2}, "hsdp"),
    ],
)
def test_a_model_divided_as_it_was_loaded_is_no_ddp(sizes, strategy):
    found = keys(trainer(divided(**sizes), world_size=4))
    assert (found["num_gpus"], found["tp_size"], found["strategy"]) == (
        4,
        sizes["tp_size"],
        strategy,
    )


@pytest.mark.parametrize(
    "sizes",
    [{"fsdp_size": 4}, {"tp_size": 4, "ep_size": 4}, {"tp_size": 4, "fsdp_cpu_offload": True}],
)
def test_another_axis_of_a_live_model_is_refused(sizes):
    with pytest.raises(RefusedError, match="DistributedConfig's"):
        keys(trainer(divided(**sizes), world_size=4))

"""One run of a setup on the card that is not there: the model is loaded, a real Trainer takes three steps.

The model's weights arrive as a checkpoint's do: on the CPU, from where Trainer moves them; quantised ones on the GPU,
where bitsandbytes packs each. No value is computed, so what code asks of values is answered: how many elements a mask
selects, and that no row is padded unless the setup says so.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import transformers
from transformers import masking_utils

from estimator.values.losses import Loss
from estimator.values.setup import TrainingSetup
from estimator.values.specs import MixedPrecision, Optimizer
from estimator.values.strategies import Strategy
from tests.verify.null import ranks, triton_kernels

STEPS = 3
"""Steps of a run. The second finds the blocks of the first; from then on nothing changes."""
RADAM_STEPS = 6
"""RAdam divides by the second moment from the fifth step on: schedulefree 1.4.1, radam_schedulefree.py, ``rho_t``."""
TRAINER_OPTIM = {
    Optimizer.SGD_MOMENTUM: ("sgd", "momentum=0.9"),
    # as every 200th step does, the third one renews projectors and limits updates
    Optimizer.APOLLO_ADAMW: ("apollo_adamw", "update_proj_gap=2"),
}
IGNORED_LABEL = -100

null = ctypes.CDLL("libcudart.so.13")
null.null_limit.argtypes = [ctypes.c_size_t]
null.null_most.restype = ctypes.c_size_t


class Selected:
    """How many elements boolean masks select, by their shape; all where nothing is known."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, ...], int] = {}
        self.row_counts: dict[int, int] = {}
        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("nonzero", self._nonzero, "CUDA")

    def of(self, mask: torch.Tensor) -> None:
        """Masks of this shape select as many elements as this one, which lies on the CPU."""
        self.counts[tuple(mask.shape)] = int(mask.sum())

    def of_each_row(self, length: int, count: int) -> None:
        """Masks of rows of this length select so many elements of each row."""
        self.row_counts[length] = count

    def _nonzero(self, mask: torch.Tensor) -> torch.Tensor:
        all_of_a_row = mask.shape[-1] if mask.dim() else 1
        of_a_row = self.row_counts.get(all_of_a_row, all_of_a_row)
        rows = mask.numel() // all_of_a_row
        null.null_answer(self.counts.get(tuple(mask.shape), rows * of_a_row))
        found = torch.empty(0, dtype=torch.long, device=mask.device)
        return torch.ops.aten.nonzero.out(mask, out=found)


class Arriving(NamedTuple):
    """A checkpoint's tensor, with the interface of a safetensors slice; its pages are never touched."""

    shape: torch.Size
    dtype: torch.dtype

    def get_shape(self) -> list[int]:
        """Its shape, as a safetensors slice returns it."""
        return list(self.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """The part that the loader reads."""
        part = torch.empty(self.shape, dtype=self.dtype, device="meta")[index]
        return torch.empty(part.shape, dtype=self.dtype)


def answer_for_values(setup: TrainingSetup) -> Selected:
    """Give the answers that depend on values."""
    with triton_kernels.found():
        if setup.optimisation.optim is Optimizer.STABLE_ADAMW:
            import optimi  # noqa: F401
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    masking_utils.fast_all = lambda _: not setup.batch.padded
    return Selected()


def model_of(config: Mapping[str, Any], setup: TrainingSetup) -> Any:
    """The model as it is loaded, with its adapters."""
    config = transformers.AutoConfig.for_model(**config)
    real_class = transformers.AutoModelForCausalLM
    if setup.task.objective.has_score:
        real_class = transformers.AutoModelForSequenceClassification
        config.num_labels = 1 if setup.task.objective == "reward" else setup.task.num_labels
        config.pad_token_id = 0
    if setup.adapters.has_packed_base or setup.mesh.tp_size > 1:
        return _arrived(config, setup, real_class._model_mapping[type(config)])
    told = {
        "dtype": getattr(torch, setup.precision.dtype.value),
        "attn_implementation": setup.computation.attn_implementation.value,
    }
    if setup.mesh.strategy is Strategy.ZERO3:  # DeepSpeed shards each weight where it is made
        return real_class.from_config(config, **told)
    with torch.device("meta"):
        model = real_class.from_config(config, **told)
    model = model.to_empty(device="cpu")
    model.tie_weights()
    return model


def _arrived(config: Any, setup: TrainingSetup, real_class: Any) -> Any:
    """The model as `from_pretrained` returns it, packed by bitsandbytes on the GPU or divided among ranks."""
    dtype = getattr(torch, setup.precision.dtype.value)
    with torch.device("meta"):
        skeleton = real_class(config)
    names: dict[int, str] = {}
    tensors = skeleton.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), name)
    return real_class.from_pretrained(
        None,
        config=config,
        state_dict={name: Arriving(tensors[name].shape, dtype) for name in names.values()},
        dtype=dtype,
        attn_implementation=setup.computation.attn_implementation.value,
        **(ranks.divided(setup) if setup.mesh.tp_size > 1 else _packed(setup)),
    )


def _packed(setup: TrainingSetup) -> dict[str, Any]:
    quantization = transformers.BitsAndBytesConfig(
        load_in_8bit=setup.adapters.has_8bit_base,
        load_in_4bit=not setup.adapters.has_8bit_base,
        bnb_4bit_quant_type=setup.adapters.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=setup.adapters.bnb_4bit_use_double_quant,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"device_map": {"": "cuda"}, "quantization_config": quantization}


def lora_of(setup: TrainingSetup) -> Any:
    """PEFT's config of a setup's adapters."""
    import peft

    targets = setup.adapters.lora_target_modules
    return peft.LoraConfig(
        task_type="SEQ_CLS" if setup.task.objective.has_score else "CAUSAL_LM",
        r=setup.adapters.lora_r,
        lora_alpha=setup.adapters.lora_alpha,
        lora_dropout=setup.adapters.lora_dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
    )


def adapted(model: Any, setup: TrainingSetup) -> Any:
    """The model with its adapters."""
    import peft

    if setup.adapters.has_packed_base and setup.adapters.prepare_model_for_kbit_training:
        model = peft.prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=setup.computation.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": setup.computation.use_reentrant},
        )
    return peft.get_peft_model(
        model, lora_of(setup), autocast_adapter_dtype=setup.adapters.autocast_adapter_dtype
    )


def steps(setup: TrainingSetup) -> int:
    """Steps until nothing changes."""
    most = RADAM_STEPS if setup.optimisation.optim is Optimizer.SCHEDULE_FREE_RADAM else STEPS
    return max(most, 1 + (setup.allocator.torch_empty_cache_steps or 0))


def arguments(setup: TrainingSetup, folder: str) -> dict[str, Any]:
    """The arguments of Trainer and of TRL's trainers."""
    optim, optim_args = TRAINER_OPTIM.get(
        setup.optimisation.optim, (setup.optimisation.optim.value, None)
    )
    return {
        "output_dir": folder,
        "max_steps": steps(setup),
        "per_device_train_batch_size": setup.batch.per_device_train_batch_size,
        "gradient_accumulation_steps": setup.batch.gradient_accumulation_steps,
        "bf16": setup.precision.mixed_precision is MixedPrecision.BF16,
        "fp16": setup.precision.mixed_precision is MixedPrecision.FP16,
        "optim": optim,
        "optim_args": optim_args,
        "optim_target_modules": "all-linear" if "galore" in optim or "apollo" in optim else None,
        "max_grad_norm": setup.optimisation.max_grad_norm,
        "torch_empty_cache_steps": setup.allocator.torch_empty_cache_steps,
        "gradient_checkpointing": setup.computation.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": setup.computation.use_reentrant},
        "dataloader_pin_memory": False,
        "eval_strategy": "no" if setup.run.eval_strategy == "no" else "steps",
        "eval_steps": steps(setup) - 1,
        "per_device_eval_batch_size": setup.run.per_device_eval_batch_size,
        # "epoch" is the contract's default, not Trainer's: a row that saves says so
        "save_strategy": "steps" if setup.run.save_strategy == "steps" else "no",
        "save_steps": steps(setup) - 1,
        "save_only_model": setup.run.save_only_model,
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **ranks.arguments(setup),
    }


def example(setup: TrainingSetup) -> dict[str, Any]:
    """One row of tokens, all of them labels; padded in its last eighth where the setup says so."""
    length = setup.batch.max_length
    row = {"input_ids": [1] * length, "labels": [1] * length}
    if setup.batch.padded:
        padding = max(1, length // 8)
        row["attention_mask"] = [1] * (length - padding) + [0] * padding
        row["labels"] = [1] * (length - padding) + [IGNORED_LABEL] * padding
    return row


def rows(setup: TrainingSetup) -> int:
    """Examples of a run."""
    each = setup.batch.per_device_train_batch_size * setup.batch.gradient_accumulation_steps
    return steps(setup) * each * setup.mesh.num_gpus


def play(config: Mapping[str, Any], setup: TrainingSetup, rank: int = 0) -> None:
    """Load the model and train; ``rank``: which of several GPUs this is."""
    answers = answer_for_values(setup)
    if setup.task.objective != "sft" or setup.task.loss is Loss.CHUNKED_TRL:
        from tests.verify.null import objectives

        objectives.trainer_of(config, setup, answers).train()
        return
    ranks.begin(setup, rank)
    with tempfile.TemporaryDirectory() as folder:
        told = transformers.TrainingArguments(**arguments(setup, folder))
        model = model_of(config, setup)  # after the arguments, which tell it of DeepSpeed
        if setup.adapters.uses_adapters:
            model = adapted(model, setup)
        trainer = transformers.Trainer(
            model=model,
            args=told,
            train_dataset=[example(setup)] * rows(setup),
            eval_dataset=[example(setup)] * setup.run.per_device_eval_batch_size,
            data_collator=transformers.default_data_collator,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        if setup.mesh.num_gpus > 1:
            trainer.add_callback(ranks.Pause())
        trainer.train()

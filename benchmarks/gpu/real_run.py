"""One case on the real libraries: transformers' loader, PEFT's adapters, Trainer's steps, and the readings.

Nothing is downloaded: `from_pretrained` loads a checkpoint whose tensors are made at random, on the device, when it
asks for each. So the loader quantises, ties, casts and leaves behind what it does with a checkpoint of files.
The steps are Trainer's own; marks at the borders of its phases only read and reset the allocator's peaks.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from benchmarks.gpu.cases import Case
from benchmarks.gpu.configs import config_of
from estimator.families.registry import family_of
from estimator.values.methods import Method
from estimator.values.setup import TrainingSetup
from estimator.values.specs import AttnImplementation, MixedPrecision, Model, Optimizer, Phase

STEPS = 4
"""Steps of a case. The first creates the optimizer's states; readings are taken from the others."""
SPREAD = 0.02
"""Standard deviation of the random weights, as most families initialise them."""
PADDED_SHARE = 8
"""If a setup is padded, one in so many tokens, at the end of each row, is padding."""
IGNORED_LABEL = -100
TRAINER_OPTIM = {Optimizer.SGD_MOMENTUM: ("sgd", "momentum=0.9")}
"""The contract's optimizer names that Trainer lacks, as ``optim`` and ``optim_args``."""


# --- counting -----------------------------------------------------------------------------------


class DeviceReading(NamedTuple):
    """Peak bytes since the last reset, except the device's, which are current. None: there is no counter."""

    allocated: int | None
    reserved: int | None
    device: int | None

    def highest(self, other: DeviceReading) -> DeviceReading:
        """The larger of each counter."""
        pairs = zip(self, other, strict=True)
        return DeviceReading(
            *(max(a, b) if a is not None and b is not None else a for a, b in pairs)
        )


class DeviceCounter(Protocol):
    """Counts a device's bytes."""

    def read(self) -> DeviceReading:
        """The peaks since the last reset."""

    def reset(self) -> None:
        """Resets the peaks to the current bytes."""

    def wait(self) -> None:
        """Waits until the device is idle."""

    def retries(self) -> int | None:
        """How often the allocator emptied its cache because memory ran short."""


class CudaDeviceCounter:
    """torch's allocator, and the driver's reading of the whole card.

    The allocator's books are kept on the host, when a kernel is asked for, so that no mark has to wait for the
    device. It gives nothing back to the driver between two marks unless memory runs out, so the driver's reading
    at the end of a phase is that phase's highest.
    """

    def read(self) -> DeviceReading:
        """The peaks since the last reset."""
        free, total = torch.cuda.mem_get_info()
        return DeviceReading(
            torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free
        )

    def reset(self) -> None:
        """Resets the peaks to the current bytes."""
        torch.cuda.reset_peak_memory_stats()

    def wait(self) -> None:
        """Waits until the device is idle."""
        torch.cuda.synchronize()

    def retries(self) -> int | None:
        """How often the allocator emptied its cache because memory ran short, in this process."""
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))


class NoCounter:
    """A device whose allocator has no counters, such as a CPU."""

    def read(self) -> DeviceReading:
        """Nothing is known."""
        return DeviceReading(None, None, None)

    def reset(self) -> None:
        """Nothing to reset."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def retries(self) -> int | None:
        """Nothing is known."""
        return None


@dataclass
class Recorder:
    """The highest reading of each phase of each step; every mark ends a phase and begins the next."""

    counter: DeviceCounter
    steps: list[dict[Phase, DeviceReading]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    marks: list[Phase] = field(default_factory=list)
    _phase: Phase | None = None
    _began: float = 0.0

    def begin_step(self) -> None:
        """Begins an optimizer step."""
        self.steps.append({})
        self.counter.wait()
        self._began = time.perf_counter()

    def enter(self, phase: Phase) -> None:
        """Begins a phase; with accumulation, phases repeat within a step."""
        self._leave()
        self._phase = phase
        self.marks.append(phase)

    def end_step(self) -> None:
        """Ends the step."""
        self._leave()
        self.counter.wait()
        self.seconds.append(time.perf_counter() - self._began)

    def _leave(self) -> None:
        if self._phase is not None:
            reading, seen = self.counter.read(), self.steps[-1]
            seen[self._phase] = seen.get(self._phase, reading).highest(reading)
        self._phase = None
        self.counter.reset()


# --- the model ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomTensor:
    """A checkpoint's tensor that is created when the loader reads it, with the interface of a safetensors slice."""

    shape: torch.Size
    dtype: Any
    device: str

    def get_shape(self) -> list[int]:
        """Its shape, as a safetensors slice returns it."""
        return list(self.shape)

    def __getitem__(self, index: object) -> Any:
        """The whole tensor; the loader never reads parts."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device).normal_(std=SPREAD)


def load(model: Model, setup: TrainingSetup, device: str) -> Any:
    """The model as returned by `from_pretrained`, from a checkpoint in the setup's dtype."""
    config = transformers.AutoConfig.for_model(**config_of(model))
    real_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    dtype = getattr(torch, setup.precision.dtype.value)
    loaded, loading = real_class.from_pretrained(
        None,
        config=config,
        state_dict=_checkpoint(real_class, config, dtype, device),
        dtype=dtype,
        attn_implementation=_attention(model, setup),
        device_map={"": device},
        quantization_config=_quantization(setup),
        output_loading_info=True,
    )
    wrong = {kind: names for kind, names in loading.items() if names}
    if wrong:
        raise RuntimeError(f"The checkpoint does not fit the model: {wrong}.")
    return loaded


def _checkpoint(real_class: Any, config: Any, dtype: Any, device: str) -> dict[str, RandomTensor]:
    """Every tensor in this model's checkpoint; the first of tied ones."""
    with torch.device("meta"):
        skeleton = real_class(config)
    names: dict[int, str] = {}
    for name, tensor in skeleton.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), name)
    tensors = skeleton.state_dict(keep_vars=True)
    return {name: RandomTensor(tensors[name].shape, dtype, device) for name in names.values()}


def _attention(model: Model, setup: TrainingSetup) -> str:
    wanted = setup.computation.attn_implementation
    if family_of(model).eager_only and wanted is AttnImplementation.SDPA:
        wanted = AttnImplementation.EAGER  # as the estimate has it: transformers refuses SDPA there
    return wanted.value


def _quantization(setup: TrainingSetup) -> Any:
    if setup.adapters.method is not Method.QLORA:
        return None
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=setup.adapters.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=setup.adapters.bnb_4bit_use_double_quant,
        bnb_4bit_compute_dtype=_compute_dtype(setup),
    )


def _compute_dtype(setup: TrainingSetup) -> Any:
    """The dtype to which 4-bit weights are unpacked: that of the computation."""
    by_autocast = {MixedPrecision.BF16: torch.bfloat16, MixedPrecision.FP16: torch.float16}
    return by_autocast.get(
        setup.precision.mixed_precision, getattr(torch, setup.precision.dtype.value)
    )


def adapted(model: Any, case: Case) -> Any:
    """The model with LoRA adapters and the setup's upcasts."""
    import peft  # noqa: PLC0415 — only cases with adapters need it

    setup = case.setup
    if setup.adapters.method is Method.QLORA and setup.adapters.prepare_model_for_kbit_training:
        model = peft.prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=setup.computation.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": setup.computation.use_reentrant},
        )
    targets = setup.adapters.lora_target_modules
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=setup.adapters.lora_r,
        lora_alpha=setup.adapters.lora_alpha,
        lora_dropout=setup.adapters.lora_dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        fan_in_fan_out=case.model.model_type == "gpt2",
    )
    model = peft.get_peft_model(
        model, config, autocast_adapter_dtype=setup.adapters.autocast_adapter_dtype
    )
    if (
        not setup.adapters.autocast_adapter_dtype
    ):  # on a packed base PEFT leaves float32; TRL casts so
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(getattr(torch, setup.precision.dtype.value))
    return model


# --- the steps ----------------------------------------------------------------------------------


class _Marks(transformers.TrainerCallback):
    """Marks the beginning and end of each optimizer step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_step_begin(self, *_: object, **__: object) -> None:
        self._recorder.begin_step()

    def on_step_end(self, *_: object, **__: object) -> None:
        self._recorder.end_step()


class _Trainer(transformers.Trainer):
    """Trainer with marks around forward and backward; may hold the outputs as hand-written loops do."""

    recorder: Recorder
    hold_outputs = False
    _held: object = None

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        self.recorder.enter(Phase.FORWARD)
        loss = super().training_step(*arguments, **named)
        self._held = None
        self.recorder.enter(Phase.OPTIMIZER_STEP)
        return loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any
    ) -> Any:
        if not self.hold_outputs:
            return super().compute_loss(model, inputs, return_outputs, **named)
        loss, self._held = super().compute_loss(model, inputs, True, **named)
        return (loss, self._held) if return_outputs else loss


def train(model: Any, case: Case, recorder: Recorder, device: str) -> None:
    """Runs four steps of Trainer with marks."""
    _mark_forward(model, case, recorder)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _Trainer(
            model=model,
            args=_arguments(case, folder, device),
            train_dataset=_examples(case),
            data_collator=transformers.default_data_collator,
            callbacks=[_Marks(recorder)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.recorder, trainer.hold_outputs = recorder, case.setup.task.hold_outputs
        try:
            trainer.train()
        finally:
            trainer.accelerator.free_memory()


def _mark_forward(model: Any, case: Case, recorder: Recorder) -> None:
    """Marks when the logits exist, and when the forward call ends (including autocast's casts of its outputs)."""
    base = model.get_base_model() if case.setup.adapters.uses_adapters else model

    def begin_loss(*_: object) -> None:
        recorder.enter(Phase.LOSS)

    def end_forward(*_: object) -> None:
        recorder.enter(Phase.BACKWARD)

    if (
        case.use_liger_kernel
    ):  # its head and loss are one kernel: no logits, and no call of loss_function
        getattr(base, base.base_model_prefix).register_forward_hook(begin_loss)
    else:
        real_loss = base.loss_function

        def loss_function(*arguments: Any, **named: Any) -> Any:
            begin_loss()
            return real_loss(*arguments, **named)

        base.loss_function = loss_function
    model.register_forward_hook(end_forward)


def _arguments(case: Case, folder: str, device: str) -> Any:
    setup = case.setup
    optim, optim_args = TRAINER_OPTIM.get(
        setup.optimisation.optim, (setup.optimisation.optim.value, None)
    )
    return transformers.TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=setup.batch.per_device_train_batch_size,
        gradient_accumulation_steps=setup.batch.gradient_accumulation_steps,
        bf16=setup.precision.mixed_precision is MixedPrecision.BF16,
        fp16=setup.precision.mixed_precision is MixedPrecision.FP16,
        optim=optim,
        optim_args=optim_args,
        max_grad_norm=setup.optimisation.max_grad_norm,
        gradient_checkpointing=setup.computation.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": setup.computation.use_reentrant},
        use_liger_kernel=case.use_liger_kernel,
        use_cpu=device == "cpu",
        dataloader_pin_memory=False,  # memory of the host, which is not measured
        remove_unused_columns=False,
        label_names=["labels"],
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _examples(case: Case) -> list[dict[str, Any]]:
    """Enough examples for four steps, all equal, of random tokens."""
    setup = case.setup
    ids = torch.randint(0, case.model.vocab_size, (setup.batch.max_length,))
    example = {"input_ids": ids, "labels": ids.clone()}
    if setup.batch.padded:
        padding = max(1, setup.batch.max_length // PADDED_SHARE)
        mask = torch.ones_like(ids)
        mask[-padding:] = 0
        example["attention_mask"] = mask
        example["labels"][-padding:] = IGNORED_LABEL
    count = (
        STEPS * setup.batch.gradient_accumulation_steps * setup.batch.per_device_train_batch_size
    )
    return [example] * count


# --- one case -----------------------------------------------------------------------------------


def measure(case: Case, device: str, counter: DeviceCounter) -> dict[str, Any]:
    """The cells of one case's row, without the card, versions and date.

    The case's tensors are gone when this returns, whether it went well or the memory was not enough.
    """
    before = _swept(device, counter)
    retries = counter.retries()
    recorder = Recorder(counter)
    facts: dict[str, Any] = {}
    ran_out = ""
    try:
        _run(case, device, recorder, facts)
    except (torch.OutOfMemoryError, RuntimeError) as problem:
        if not _is_out_of_memory(problem):
            raise
        ran_out = str(problem).split(". ")[0]
    facts["before"] = before
    facts["out_of_memory"] = ran_out
    facts["steps"] = recorder.steps
    facts["step_seconds"] = (
        statistics.median(recorder.seconds[1:]) if recorder.seconds[1:] else None
    )
    after = counter.retries()
    facts["retries"] = after - retries if after is not None and retries is not None else None
    facts["left"] = _swept(device, counter)
    return facts


def _run(case: Case, device: str, recorder: Recorder, facts: dict[str, Any]) -> None:
    model = load(case.model, case.setup, device)
    if case.setup.adapters.uses_adapters:
        model = adapted(model, case)
    recorder.counter.wait()
    recorder.counter.reset()
    facts["after_load"] = recorder.counter.read()
    train(model, case, recorder, device)
    facts["total_parameters"], facts["trainable_parameters"] = _parameters(model)


def _parameters(model: Any) -> tuple[int, int]:
    """Total and trained elements; a packed 4-bit weight counts its unpacked elements."""
    total = trainable = 0
    for parameter in model.parameters():
        packed = getattr(parameter, "quant_state", None)
        count = packed.shape.numel() if packed is not None else parameter.numel()
        total += count
        trainable += count if parameter.requires_grad else 0
    return total, trainable


def _is_out_of_memory(problem: Exception) -> bool:
    """Whether the error is torch's out-of-memory error, or that of a library whose request the driver refused."""
    said = str(problem).lower()
    return (
        isinstance(problem, torch.OutOfMemoryError)
        or "out of memory" in said
        or "alloc_failed" in said
    )


def _swept(device: str, counter: DeviceCounter) -> DeviceReading:
    """Bytes still allocated after everything of a case is freed: the baseline of the next one."""
    if "bitsandbytes" in sys.modules:
        # Trainer registers embeddings for 32-bit states in this singleton, which keeps the modules alive
        sys.modules["bitsandbytes"].optim.GlobalOptimManager.get_instance().initialize()
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    counter.reset()
    return counter.read()
